package server_test

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quire-kv/quire/internal/auth"
	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/server"
	"github.com/quire-kv/quire/store/storetest"
)

// begun is a fetch of which the client has taken one message only, far more being underway.
func (s *space) begun(hashes []byte) grpc.ServerStreamingClient[quirev1.FetchResponse] {
	s.w.t.Helper()
	st, err := s.page.Fetch(ctx(s.w.t), &quirev1.FetchRequest{Namespace: s.ref, Run: s.run(hashes)})
	if err != nil {
		s.w.t.Fatal(err)
	}
	if _, err := st.Recv(); err != nil {
		s.w.t.Fatal(err)
	}
	return st
}

// narrowSpace is a space whose connection has the smallest windows, and 200 pages (12.5 MiB) in it.
func narrowSpace(t testing.TB, l server.Limits) (*space, []byte) {
	return narrowIn(newWorld(t, l))
}

func narrowIn(w *world, options ...grpc.DialOption) (*space, []byte) {
	s := w.as("a", namespace.RoleEngine, options...).open("w", "1")
	hashes := storetest.Chain("x", 200)
	for i := 0; i < 200; i += 50 {
		s.publishAfter(hashes[32*i:32*(i+50)], i > 0)
	}
	options = append(options, grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<10))
	return s.seenBy(w.as("a", namespace.RoleEngine, options...)), hashes
}

func (s *space) nothingHeld(what string) {
	s.w.t.Helper()
	s.w.eventually(what+": everything is given back", func() bool {
		return s.w.metric("quire_fetches_in_flight") == 0 && s.w.metric("quire_fetch_pinned_bytes") == 0
	})
	// All pages can go: no read holds one.
	run := core.Run{Family: s.fix.Family(), Hashes: storetest.Chain("x", 200)}
	if _, why, err := s.w.store.Delete(ctx(s.w.t), store.Caller{Principal: s.w.store.Intern("x")}, []core.Run{run}); err != nil || why != reason.None {
		s.w.t.Fatal(why, err)
	}
	s.w.eventually(what+": the tier is empty", func() bool { return s.w.metric("quire_tier_live_bytes", "host") == 0 })
}

// A fetching client that is killed, that cancels, or that stops reading: its pins go.
func TestCase_C21_FetchLeavesNothing(t *testing.T) {
	for name, end := range map[string]func(s *space, st grpc.ServerStreamingClient[quirev1.FetchResponse], cancel func()){
		"killed": func(s *space, _ grpc.ServerStreamingClient[quirev1.FetchResponse], _ func()) { (<-s.raw).Close() },
		"cancels": func(_ *space, _ grpc.ServerStreamingClient[quirev1.FetchResponse], cancel func()) {
			cancel()
		},
		"stops reading": func(s *space, _ grpc.ServerStreamingClient[quirev1.FetchResponse], _ func()) {
			s.w.clock.Advance(31 * time.Second)
			s.w.eventually("the slow client's connection is broken", func() bool {
				s.w.clock.Advance(31 * time.Second)
				return s.w.metric("quire_slow_clients_total") == 1
			})
		},
		"reads all": func(s *space, st grpc.ServerStreamingClient[quirev1.FetchResponse], _ func()) {
			for {
				if _, err := st.Recv(); err != nil {
					if !errors.Is(err, io.EOF) {
						s.w.t.Error(err)
					}
					return
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, hashes := narrowSpace(t, server.Limits{})
			c, cancel := cancelable(t)
			st, err := s.page.Fetch(c, &quirev1.FetchRequest{Namespace: s.ref, Run: s.run(hashes)})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := st.Recv(); err != nil {
				t.Fatal(err)
			}
			if s.w.metric("quire_fetches_in_flight") != 1 {
				t.Fatal("the fetch is over already: this test shows nothing")
			}
			end(s, st, cancel)
			s.nothingHeld(name)
		})
	}
}

// The connection of a client that stops reading is found and broken through TLS too.
func TestCase_C21_SlowClientOverTLS(t *testing.T) {
	dir := t.TempDir()
	if _, err := auth.WriteDevCA(auth.DevCA{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	config, err := auth.ServerTLS(auth.Files{Cert: at(auth.ServerCertFile), Key: at(auth.ServerKeyFile)}, false, false)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := auth.ClientTLS(auth.Files{CA: at(auth.CAFile)}, "")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, server.Limits{}, func(o *server.Options) { o.TLS = config })
	s, hashes := narrowIn(w, grpc.WithTransportCredentials(credentials.NewTLS(trust)))
	s.begun(hashes)
	w.eventually("the slow client's connection is broken", func() bool {
		w.clock.Advance(31 * time.Second)
		return w.metric("quire_slow_clients_total") == 1
	})
	s.nothingHeld("slow over TLS")
}

// From the moment that Retire answered, no page of a running fetch gets its OK.
func TestCase_C67_RetireMidFetch(t *testing.T) {
	s, hashes := narrowSpace(t, server.Limits{})
	st := s.begun(hashes)
	op := s.w.as("ops", namespace.RoleOperator)
	if _, err := op.ns.Drain(ctx(t), &quirev1.DrainRequest{Id: s.ref.Id}); err != nil {
		t.Fatal(err)
	}
	if _, err := op.ns.Retire(ctx(t), &quirev1.RetireRequest{Id: s.ref.Id}); err != nil {
		t.Fatal(err)
	}
	endsIn(t, st, quirev1.Reason_REASON_RETIRED)
	_, err := s.exists(hashes)
	is(t, err, reason.Retired)
	_, err = s.fetch(&quirev1.FetchRequest{Namespace: s.ref, Run: s.run(hashes)})
	is(t, err, reason.Retired)
}

// endsIn reads a fetch to its end: the first pages may be served, the rest are misses of one reason, and none is
// served after the first miss.
func endsIn(t *testing.T, st grpc.ServerStreamingClient[quirev1.FetchResponse], want quirev1.Reason) {
	t.Helper()
	missed := 0
	for {
		m, err := st.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case m.Trailer == nil:
		case m.Trailer.Outcome == quirev1.Outcome_OUTCOME_OK && missed > 0:
			t.Fatalf("page %d is served after a page was refused", m.Page)
		case m.Trailer.Outcome == quirev1.Outcome_OUTCOME_MISS && m.Trailer.Reason == want:
			missed++
		case m.Trailer.Outcome != quirev1.Outcome_OUTCOME_OK:
			t.Fatalf("page %d: %v", m.Page, m.Trailer)
		}
	}
	if missed == 0 {
		t.Fatal("every page was served")
	}
}

// waiverLife is shorter than whatever else makes the server look at a namespace again.
const waiverLife = 20 * time.Second

// A waiver that is revoked, or ends by its time, while pages that came in through it are being read.
func TestCase_C66_WaiverEndsMidRead(t *testing.T) {
	for _, how := range []string{"revoked", "expired"} {
		t.Run(how, func(t *testing.T) {
			w := newWorld(t, server.Limits{ProgressTimeout: 2 * time.Hour})
			old, op := w.as("a", namespace.RoleEngine).open("w", "0.32.0"), w.as("ops", namespace.RoleOperator)
			waived, err := op.ns.Waive(ctx(t), &quirev1.WaiveRequest{
				Id: old.ref.Id, Factor: "engine_version", Values: []string{"0.32.0", "0.32.1"}, Reason: "same kernels", Lifetime: durationpb.New(waiverLife),
			})
			if err != nil {
				t.Fatal(err)
			}
			fresh := w.as("a", namespace.RoleEngine).open("w", "0.32.1")
			if string(fresh.ref.Id) != string(old.ref.Id) || string(fresh.ref.Provenance) == string(old.ref.Provenance) {
				t.Fatal("the waiver does not join the two versions")
			}
			own, theirs := storetest.Chain("own", 2), storetest.Chain("x", 200)
			old.publish(own)
			for i := 0; i < 200; i += 50 {
				fresh.publishAfter(theirs[32*i:32*(i+50)], i > 0)
			}
			thin := old.seenBy(w.as("a", namespace.RoleEngine, grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<10)))
			thin.ref.Provenance = old.ref.Provenance
			thin.mustExist(theirs, 200)
			st := thin.begun(theirs)
			if how == "revoked" {
				_, err = op.ns.RevokeWaiver(ctx(t), &quirev1.RevokeWaiverRequest{Id: old.ref.Id, WaiverId: waived.Namespace.Waivers[0].Id})
				if err != nil {
					t.Fatal(err)
				}
			} else {
				w.clock.Advance(waiverLife)
			}
			endsIn(t, st, quirev1.Reason_REASON_PROVENANCE)
			old.mustExist(theirs, 0)
			old.mustMiss(theirs[:64], reason.Provenance)
			old.mustServe(own)
			_, err = fresh.exists(theirs) // whose own provenance is no longer accepted
			is(t, err, reason.Provenance)
			old.publish(theirs[:64])
			old.mustServe(theirs[:64])
		})
	}
}

func TestFetchBudget(t *testing.T) {
	s, hashes := narrowSpace(t, server.Limits{FetchesPerPrincipal: 2})
	first, second := s.begun(hashes), s.begun(hashes)
	_, err := s.fetch(&quirev1.FetchRequest{Namespace: s.ref, Run: s.run(hashes)})
	is(t, err, reason.Busy)
	other := s.seenBy(s.w.as("a", namespace.RoleEngine))
	other.mustServe(hashes[:64])
	for _, st := range []grpc.ServerStreamingClient[quirev1.FetchResponse]{first, second} {
		if _, err := collectRest(st); err != nil {
			t.Fatal(err)
		}
	}
	s.w.eventually("the budget is given back", func() bool { return s.w.metric("quire_fetches_in_flight") == 0 })
	s.mustServe(hashes[:64])
}

func TestFetchDeadline(t *testing.T) {
	s, hashes := narrowSpace(t, server.Limits{})
	var c context.Context
	var st grpc.ServerStreamingClient[quirev1.FetchResponse]
	err := context.DeadlineExceeded
	for d := 200 * time.Millisecond; err != nil; d *= 2 { // one that is over before the call is made shows nothing of the server
		if d > 20*time.Second {
			t.Fatal(err)
		}
		var cancel context.CancelFunc
		c, cancel = deadline(t, d)
		defer cancel()
		st, err = s.page.Fetch(c, &quirev1.FetchRequest{Namespace: s.ref, Run: s.run(hashes)})
	}
	<-c.Done()
	for err == nil {
		_, err = st.Recv()
	}
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("got %v", err)
	}
	s.nothingHeld("deadline")
}

func collectRest(st grpc.ServerStreamingClient[quirev1.FetchResponse]) (n int, err error) {
	for {
		if _, err := st.Recv(); errors.Is(err, io.EOF) {
			return n, nil
		} else if err != nil {
			return n, err
		}
		n++
	}
}
