// Package frame carries the page service over plain byte streams: TCP between hosts, TLS, a UNIX socket on one host.
// The calls and messages are those of gRPC; page bytes travel raw behind them, written out of the sender's memory and
// read straight into their destination. docs/formats/frames.md has every byte.
//
//	client                                     server
//	  | hello (version, token)  ───────────────>  |     once
//	  | <───────────────  welcome (limits, boot)  |
//	  | request (method, deadline, message) ───>  |
//	  | [message ...] end  ────────────────────>  |     methods that take a stream
//	  | <───────────────────────  [message ...]   |     methods that answer a stream
//	  | <─────────────────── response, or status  |     the call is over; the next may begin
//
// A connection carries one call at a time. So what a caller waits for is what comes next: its own goroutine reads it,
// the back-pressure of a stream is that of the socket, and giving up a call is closing the connection, after which not
// one byte of it can arrive. ClientConn keeps a pool of connections, as many as calls run at once.
//
// ClientConn is a grpc.ClientConnInterface and Server a grpc.ServiceRegistrar: generated stubs and handlers work over
// frames unchanged. What gRPC adds beyond that is not here: headers and trailers of a call's own, compression, call
// options, streams in both directions at once.
package frame
