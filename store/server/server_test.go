package server_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/rpc"
	"github.com/quire-kv/quire/store/server"
	"github.com/quire-kv/quire/store/storetest"
)

// A running fetch ends whole, streams that live long are ended, then the server is gone.
func TestGracefulStop(t *testing.T) {
	s, hashes := narrowSpace(t, server.Limits{})
	attached, err := s.page.Attach(ctx(t), &quirev1.AttachRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := attached.Recv(); err != nil {
		t.Fatal(err)
	}
	watch, err := s.ns.Watch(ctx(t), &quirev1.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	health, err := healthpb.NewHealthClient(s.cc).Watch(ctx(t), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if h, err := health.Recv(); err != nil || h.Status != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("health: %v %v", h, err)
	}
	running := s.begun(hashes)
	stopped := make(chan error)
	go func() {
		c, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		stopped <- s.w.server.Stop(c)
	}()
	if h, err := health.Recv(); err != nil || h.Status != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health: %v %v", h, err)
	}
	n, err := collectRest(running)
	if err != nil || n < 100 {
		t.Errorf("the running fetch ends with %v after %d messages", err, n)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if _, err := attached.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("attach ends with %v", err)
	}
	for err = nil; err == nil; {
		_, err = watch.Recv()
	}
	if status.Code(err) != codes.Unavailable {
		t.Errorf("watch ends with %v", err)
	}
	if st := s.w.store.Status(); st.Sessions != 0 {
		t.Errorf("%d sessions", st.Sessions)
	}
}

// A client that takes nothing does not hold the server up beyond the deadline.
func TestStopDeadline(t *testing.T) {
	s, hashes := narrowSpace(t, server.Limits{})
	st := s.begun(hashes)
	c, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := s.w.server.Stop(c); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stop: %v", err)
	}
	if _, err := collectRest(st); err == nil {
		t.Error("the fetch ended well")
	}
}

func TestCase_C53_ServeRefusesOpenAddress(t *testing.T) {
	w := newWorld(t, server.Limits{})
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.server.Serve(l); err == nil || !strings.Contains(err.Error(), "--insecure") {
		t.Errorf("served: %v", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener stays open: %v", err)
	}
}

func TestNewRefuses(t *testing.T) {
	w := newWorld(t, server.Limits{})
	for name, o := range map[string]server.Options{
		"no store":     {Registry: w.registry},
		"no registry":  {Store: w.store},
		"small chunks": {Store: w.store, Registry: w.registry, Limits: server.Limits{MaxChunkBytes: 1}},
		"leases":       {Store: w.store, Registry: w.registry, Limits: server.Limits{MaxLease: time.Second, DefaultLease: time.Minute}},
		"messages":     {Store: w.store, Registry: w.registry, Limits: server.Limits{MaxMessageBytes: 1 << 10}},
		"metrics":      {Store: w.store, Registry: w.registry, Metrics: w.metrics}, // registered already
	} {
		if _, err := server.New(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// Every bound is told before anything is done.
func TestLimits(t *testing.T) {
	w := newWorld(t, server.Limits{MaxKeys: 64, MaxBatchBytes: 8 * pageBytes, MaxChunkBytes: 64 << 10, SessionsPerPrincipal: 1, WatchersPerPrincipal: 1})
	s := w.as("a", namespace.RoleEngine).open("w", "1")
	many, nine := storetest.Chain("x", 65), storetest.Chain("x", 9)
	page := func(size uint64) *quirev1.PublishPage { return &quirev1.PublishPage{PayloadBytes: size} }
	for name, c := range map[string]struct {
		want reason.Reason
		call func() error
	}{
		"exists keys": {reason.LimitExceeded, func() error { _, err := s.exists(many); return err }},
		"exists runs": {reason.LimitExceeded, func() error {
			_, err := s.page.BatchExists(ctx(t), &quirev1.BatchExistsRequest{Namespace: s.ref, Runs: make([]*quirev1.KeyRun, 65)})
			return err
		}},
		"exists in two runs": {reason.LimitExceeded, func() error {
			_, err := s.page.BatchExists(ctx(t), &quirev1.BatchExistsRequest{Namespace: s.ref, Runs: []*quirev1.KeyRun{s.run(many[:64*32]), s.run(many[:64*32])}})
			return err
		}},
		"hash length": {reason.InvalidSpec, func() error { _, err := s.exists(many[:40]); return err }},
		"fetch bytes": {reason.LimitExceeded, func() error {
			_, err := s.fetch(&quirev1.FetchRequest{Namespace: s.ref, Run: s.run(nine)})
			return err
		}},
		"fetch view outside": {reason.InvalidView, func() error {
			_, err := s.fetch(&quirev1.FetchRequest{Namespace: s.ref, Run: s.run(nine), View: &quirev1.View{H1: 5, L1: 4}})
			return err
		}},
		"fetch view huge": {reason.InvalidView, func() error {
			_, err := s.fetch(&quirev1.FetchRequest{Namespace: s.ref, Run: s.run(nine), View: &quirev1.View{H1: 1 << 16, L1: 4}})
			return err
		}},
		"fetch empty view": {reason.InvalidView, func() error {
			_, err := s.fetch(&quirev1.FetchRequest{Namespace: s.ref, Run: s.run(nine), View: &quirev1.View{H0: 2, H1: 2, L1: 4}})
			return err
		}},
		"token slices": {reason.Unsupported, func() error {
			_, err := s.fetch(&quirev1.FetchRequest{Namespace: s.ref, Run: s.run(nine), View: &quirev1.View{H1: 4, L1: 4, TokenStride: 2, TokenRun: 1}})
			return err
		}},
		"shards": {reason.Unsupported, func() error {
			_, err := s.fetch(&quirev1.FetchRequest{Namespace: s.ref, Run: s.run(nine), View: &quirev1.View{H1: 4, L1: 4, Shards: 2}})
			return err
		}},
		"resume page": {reason.InvalidSpec, func() error {
			_, err := s.fetch(&quirev1.FetchRequest{Namespace: s.ref, Run: s.run(nine[:64]), Resume: []*quirev1.ResumePage{{Page: 2}}})
			return err
		}},
		"begin bytes": {reason.LimitExceeded, func() error {
			_, err := s.page.BeginPublish(ctx(t), &quirev1.BeginPublishRequest{Namespace: s.ref, Run: s.run(nine[:64]), Pages: []*quirev1.PublishPage{page(7 * pageBytes), page(1<<64 - pageBytes)}})
			return err
		}},
		"begin pages": {reason.InvalidSpec, func() error {
			_, err := s.page.BeginPublish(ctx(t), &quirev1.BeginPublishRequest{Namespace: s.ref, Run: s.run(nine[:64]), Pages: []*quirev1.PublishPage{page(pageBytes)}})
			return err
		}},
		"begin without provenance": {reason.Provenance, func() error {
			_, err := s.page.BeginPublish(ctx(t), &quirev1.BeginPublishRequest{Namespace: &quirev1.NamespaceRef{Id: s.ref.Id, Epoch: s.ref.Epoch}})
			return err
		}},
		"durability": {reason.Unsupported, func() error {
			_, err := s.page.BeginPublish(ctx(t), &quirev1.BeginPublishRequest{Namespace: s.ref, Run: s.run(nine[:32]), Pages: []*quirev1.PublishPage{page(pageBytes)}, Durability: quirev1.Durability_DURABILITY_DISK})
			return err
		}},
		"group": {reason.InvalidSpec, func() error {
			_, err := s.page.BeginPublish(ctx(t), &quirev1.BeginPublishRequest{Namespace: s.ref, Run: &quirev1.KeyRun{Group: many[:32], Hashes: nine[:32]}, Pages: []*quirev1.PublishPage{page(pageBytes)}})
			return err
		}},
		"unknown provenance": {reason.Provenance, func() error {
			_, err := s.page.Touch(ctx(t), &quirev1.TouchRequest{Namespace: &quirev1.NamespaceRef{Id: s.ref.Id, Epoch: s.ref.Epoch, Provenance: make([]byte, 31+1)[:32:32]}, Runs: s.runs(nine)})
			if err == nil { // 32 zero bytes state none
				_, err = s.page.Touch(ctx(t), &quirev1.TouchRequest{Namespace: &quirev1.NamespaceRef{Id: s.ref.Id, Epoch: s.ref.Epoch, Provenance: many[:32]}, Runs: s.runs(nine)})
			}
			return err
		}},
		"stale epoch": {reason.StaleEpoch, func() error {
			_, err := s.page.Touch(ctx(t), &quirev1.TouchRequest{Namespace: &quirev1.NamespaceRef{Id: s.ref.Id, Epoch: 7}, Runs: s.runs(nine)})
			return err
		}},
		"negative lease": {reason.InvalidSpec, func() error {
			_, err := s.page.RenewLease(ctx(t), &quirev1.RenewLeaseRequest{Namespace: s.ref, Lease: &quirev1.RenewLeaseRequest_LeaseId{LeaseId: many[:16]}, Ttl: durationpb.New(-1)})
			return err
		}},
		"chunk": {reason.LimitExceeded, func() error {
			b := s.begin(nine[:32])
			_, err := s.write(b, nine[:32], func(m *quirev1.WritePagesRequest) *quirev1.WritePagesRequest {
				m.Chunk = make([]byte, 64<<10+1)
				return m
			})
			return err
		}},
		"write page": {reason.LimitExceeded, func() error {
			_, err := s.write(&quirev1.BeginPublishResponse{Token: &quirev1.FencingToken{BootId: many[:16]}}, nine[:32], func(m *quirev1.WritePagesRequest) *quirev1.WritePagesRequest {
				m.Page = 1 << 31
				return m
			})
			return err
		}},
		"second session": {reason.Busy, func() error {
			for range 2 {
				st, err := s.page.Attach(ctx(t), &quirev1.AttachRequest{})
				if err != nil {
					return err
				}
				if _, err := st.Recv(); err != nil {
					return err
				}
			}
			return nil
		}},
		"second watch": {reason.Busy, func() error {
			for range 2 {
				st, err := s.page.WatchPages(ctx(t), &quirev1.WatchPagesRequest{Namespace: s.ref})
				if err != nil {
					return err
				}
				if _, err := st.Recv(); err != nil {
					return err
				}
			}
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) { is(t, c.call(), c.want) })
	}
	caps, err := s.page.GetCapabilities(ctx(t), &quirev1.GetCapabilitiesRequest{})
	if err != nil || caps.MaxKeys != 64 || caps.MaxBatchBytes != 8*pageBytes || caps.MaxChunkBytes != 64<<10 || len(caps.BootId) != 16 || caps.Version != "test" {
		t.Errorf("capabilities %v %v", caps, err)
	}
	if err := rpc.FromStatus(s.cc.Invoke(ctx(t), quirev1.PageService_Touch_FullMethodName, &quirev1.TouchRequest{Runs: s.runs(make([]byte, 33<<20))}, new(quirev1.TouchResponse))); !errors.Is(err, reason.LimitExceeded) {
		t.Errorf("an oversized message: %v", err)
	}
}
