package client

import (
	"context"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/rpc"
)

// stayAttached keeps the session's attach stream open until the session ends, over reconnects; first gets the outcome
// of the first attempt. What was leased under an earlier stream ended with it.
func (s *Session) stayAttached(first chan<- error) {
	for attempt := 0; s.ctx.Err() == nil; attempt++ {
		err := s.attachOnce(func() {
			attempt = 0
			if first != nil {
				first <- nil
				first = nil
			}
		})
		s.attached.Store(nil)
		if first != nil {
			first <- err
			return
		}
		s.c.pause(s.ctx, attempt)
	}
}

// attachOnce returns when the stream ends; up is called when it stands.
func (s *Session) attachOnce(up func()) error {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	stream, err := s.c.link().pages.Attach(ctx, &quirev1.AttachRequest{Instance: s.c.opt.Instance})
	if err != nil {
		return rpc.FromStatus(err)
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return rpc.FromStatus(err)
		}
		if id := m.GetSessionId(); len(id) > 0 && s.attached.Load() == nil {
			s.attached.Store(&id)
			up()
		}
	}
}
