package server

import (
	"errors"
	"io"

	"google.golang.org/grpc"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/rpc"
)

// upload is one WritePages stream. Chunks go from gRPC's frames straight into their places; a page whose write
// failed takes no more, and the others go on.
type upload struct {
	node  *node
	bytes *total                            // of the transport
	ctx   func() (asked, core.Token, error) // admits by the first message
	asked asked
	token core.Token
	open  bool
	head  rpc.WriteHead
	at    uint64          // where the next slice of the chunk goes
	pages []reason.Reason // by page index: why its write failed; grown to the highest page named
	err   error           // ends the stream; a callback that returned it would have gRPC send it as text first
}

// WritePages fills grants.
func (s pageService) WritePages(stream grpc.ClientStreamingServer[quirev1.WritePagesRequest, quirev1.WritePagesResponse]) error {
	u := &upload{node: s.node, bytes: &s.node.metrics.writeBytes.of[s.transport(stream.Context())]}
	u.ctx = func() (asked, core.Token, error) {
		return s.node.admitToken(stream.Context(), u.head.Namespace, u.head.Token)
	}
	in := &rpc.Received{Head: &u.head, Begin: u.begin, Chunk: u.chunk}
	for {
		err := stream.RecvMsg(in)
		switch {
		case u.err != nil:
			return u.err
		case errors.Is(err, io.EOF):
			return stream.SendAndClose(&quirev1.WritePagesResponse{Pages: u.statuses()})
		case err != nil:
			return err
		}
	}
}

// begin checks a message before any byte of it moves.
func (u *upload) begin(chunkBytes int) error {
	u.err = u.check(chunkBytes)
	return nil
}

func (u *upload) check(chunkBytes int) error {
	limits := &u.node.limits
	if chunkBytes > limits.MaxChunkBytes {
		return rpc.Errorf(reason.LimitExceeded, "a chunk of %d bytes; at most %d", chunkBytes, limits.MaxChunkBytes)
	}
	if u.head.Page >= uint32(limits.MaxKeys) {
		return limits.tooManyKeys()
	}
	if !u.open {
		var err error
		if u.asked, u.token, err = u.ctx(); err != nil {
			return err
		}
		u.open = true
	}
	for len(u.pages) <= int(u.head.Page) {
		u.pages = append(u.pages, reason.None)
	}
	u.at = u.head.Offset
	u.bytes.Add(uint64(chunkBytes))
	return nil
}

func (u *upload) chunk(p []byte) error {
	if u.err != nil {
		return nil
	}
	failed := &u.pages[u.head.Page]
	if *failed == reason.None {
		*failed = u.node.store.Write(u.asked.caller, u.asked.ns.ID, u.asked.ns.Epoch, u.token, int(u.head.Page), int(u.head.Grant), u.at, p)
		u.at += uint64(len(p))
	}
	return nil
}

func (u *upload) statuses() []*quirev1.PageStatus {
	out := make([]*quirev1.PageStatus, len(u.pages))
	for i, why := range u.pages {
		out[i] = &quirev1.PageStatus{Outcome: quirev1.Outcome_OUTCOME_OK}
		if why != reason.None {
			out[i] = &quirev1.PageStatus{Outcome: quirev1.Outcome_OUTCOME_REFUSED, Reason: rpc.ToProto(why)}
		}
	}
	return out
}
