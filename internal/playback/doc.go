// Package playback plays the requests of a trace against a live store, as an engine would make them, and says what a
// replay of the same requests predicts.
//
//	request ──Exists with a lease──> the pages from the root on that are there: the hits
//	        ──Fetch, or not────────> their bytes, verified and compared
//	        ──Publish──────────────> the rest, as one run below the last hit
//	        ──Release──────────────> the lease
//
// Requests begin in the order of the trace, one after the other or several at a time. Pages are of few bytes, so that a
// small store holds many; each namespace of a recording has one of its own, with the shape of the model whose costs are
// meant. What is asked is noted in the order of the answers, with their times: that is what is replayed.
package playback
