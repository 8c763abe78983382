// Package playback plays the requests of a trace against a live store, as an engine would make them, and says what a
// replay of the same requests predicts.
//
//	request ──Exists with a lease──> the pages from the root on that are there: the hits
//	        ──Fetch, or not────────> their bytes, verified and compared
//	        ──Publish──────────────> the rest, as one run below the last hit
//	        ──Release──────────────> the lease
//
// Requests go one after the other, in the order of the trace. Pages are of few bytes, so that a small store holds many;
// the namespace has the shape of the model whose costs are meant.
package playback
