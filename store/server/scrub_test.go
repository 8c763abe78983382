package server_test

import (
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/server"
	"github.com/quire-kv/quire/store/storetest"
)

// flip changes one bit in the middle of a stored page.
func (s *space) flip(hash []byte) {
	t := s.w.t
	t.Helper()
	h, err := page.MakeHash(hash)
	if err != nil {
		t.Fatal(err)
	}
	parts := s.w.store.Explain(t.Context(), &page.Key{Family: s.fix.Family(), Hash: h}).Parts
	if len(parts) == 0 {
		t.Fatal("the page to damage is not stored")
	}
	region, ok := s.w.host.Lookup(parts[0].Place.Handle, parts[0].Place.Offset)
	if !ok {
		t.Fatal("the page to damage has no memory")
	}
	region.Memory[len(region.Memory)/2] ^= 1 << 4
}

// through receives until the scrub ends, while time goes on, and answers its last message.
func (w *world) through(st grpc.ServerStreamingClient[quirev1.ScrubResponse]) (last *quirev1.ScrubResponse, messages int, err error) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			var m *quirev1.ScrubResponse
			if m, err = st.Recv(); err != nil {
				return
			}
			last, messages = m, messages+1
		}
	}()
	w.eventually("the scrub ends", func() bool {
		w.clock.Advance(50 * time.Millisecond)
		select {
		case <-ended:
			return true
		default:
			_ = w.store.Status() // takes its time
			return false
		}
	})
	return last, messages, err
}

func TestScrub(t *testing.T) {
	w := newWorld(t, server.Limits{})
	s := w.as("a", namespace.RoleEngine).open("w", "1")
	op := w.as("ops", namespace.RoleOperator)
	hashes := storetest.Chain("x", 40)
	s.publish(hashes)
	s.flip(hashes[32*35 : 32*36])
	st, err := op.admin.Scrub(ctx(t), &quirev1.ScrubRequest{BytesPerSecond: 10 * pageBytes})
	if err != nil {
		t.Fatal(err)
	}
	last, messages, err := w.through(st)
	if !errors.Is(err, io.EOF) || !last.GetDone() || last.VerifiedExtents != 39 || last.CorruptExtents != 1 || last.VerifiedBytes < 39*pageBytes || last.TotalBytes < last.VerifiedBytes {
		t.Fatalf("%v, %v", last, err)
	}
	if messages < 3 {
		t.Errorf("%d words of progress in four seconds", messages)
	}
	s.mustMiss(hashes[32*35:32*36], reason.Absent)
	s.mustServe(hashes[:32*35])
	if v, c := w.metric("quire_scrub_verified_bytes_total"), w.metric("quire_scrub_corrupt_extents_total"); v != float64(last.VerifiedBytes) || c != 1 {
		t.Errorf("metrics: %v bytes, %v corrupt", v, c)
	}
	if w.metric("quire_scrub_running") != 0 || w.metric("quire_scrub_remaining_bytes") != 0 {
		t.Error("a scrub that ended is still running")
	}
}

func TestScrubRefused(t *testing.T) {
	w := newWorld(t, server.Limits{})
	s := w.as("a", namespace.RoleEngine).open("w", "1")
	s.publish(storetest.Chain("x", 40))
	op := w.as("ops", namespace.RoleOperator)
	scrub := func(p *peer, r *quirev1.ScrubRequest) error {
		st, err := p.admin.Scrub(ctx(t), r)
		if err == nil {
			_, err = st.Recv()
		}
		return err
	}
	is(t, scrub(s.peer, nil), reason.Unauthorized)
	is(t, scrub(w.as("a", namespace.RoleReadOnly), nil), reason.Unauthorized)
	is(t, scrub(op, &quirev1.ScrubRequest{Tier: "disk"}), reason.InvalidSpec)

	slow, stop := cancelable(t)
	if _, err := op.admin.Scrub(slow, &quirev1.ScrubRequest{BytesPerSecond: 1}); err != nil {
		t.Fatal(err)
	}
	w.eventually("it runs", func() bool {
		return w.metric("quire_scrub_running") == 1 && w.metric("quire_scrub_remaining_bytes") > 0
	})
	is(t, scrub(op, nil), reason.Busy)
	stop()
	w.eventually("it ends with its caller", func() bool { return w.metric("quire_scrub_running") == 0 })
}

// A stop does not wait for a scrub.
func TestScrubEndsWithTheNode(t *testing.T) {
	w := newWorld(t, server.Limits{})
	w.as("a", namespace.RoleEngine).open("w", "1").publish(storetest.Chain("x", 40))
	st, err := w.as("ops", namespace.RoleOperator).admin.Scrub(ctx(t), &quirev1.ScrubRequest{Tier: "host", BytesPerSecond: 1})
	if err != nil {
		t.Fatal(err)
	}
	w.eventually("it runs", func() bool { return w.metric("quire_scrub_running") == 1 })
	if err := w.server.Stop(ctx(t)); err != nil {
		t.Error(err)
	}
	if _, err := st.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("ended with %v", err)
	}
}
