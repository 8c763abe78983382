package client

import (
	"errors"
	"runtime/debug"

	"google.golang.org/grpc"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/frame"
	"github.com/quire-kv/quire/store/rpc"
)

// flushBytes are referred to before they are sent: the node works while more is filled.
const flushBytes = 1 << 20

// guarded runs f, which reads what a node shares. The node takes memory back from who is too late: where it is of
// reserved huge pages, such a read faults. False: it did.
func guarded(f func()) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		var fault interface{ Addr() uintptr }
		if err, is := v.(error); !is || !errors.As(err, &fault) {
			panic(v)
		}
		ok = false
	}()
	f()
	return true
}

// frameOf is the stream of a stub that goes over frames; nil: it goes over gRPC.
func frameOf(stream any) *frame.Stream {
	var s grpc.ClientStream
	switch g := stream.(type) {
	case *grpc.GenericClientStream[quirev1.FetchRequest, quirev1.FetchResponse]:
		s = g.ClientStream
	case *grpc.GenericClientStream[quirev1.WritePagesRequest, quirev1.WritePagesResponse]:
		s = g.ClientStream
	}
	f, _ := s.(*frame.Stream)
	return f
}

// sharingOf is the memory that both ends of a stub's stream share; nil: none.
func sharingOf(stream any) rpc.Sharing {
	if f := frameOf(stream); f != nil {
		return f.Sharing()
	}
	return nil
}
