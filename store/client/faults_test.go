package client

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
)

// TestPublishToStoppedServer: a server that stops reading in the middle of an upload does not keep Publish beyond its
// context, and when Publish has returned, nothing reads the items any more (the race detector watches).
func TestPublishToStoppedServer(t *testing.T) {
	over(t, func(t *testing.T, tr Transport) {
		w := newWorld(t, tr, small, Options{Conns: 1})
		w.fake.begin = func(r *quirev1.BeginPublishRequest) (*quirev1.BeginPublishResponse, error) { return grantAll(r), nil }
		began := make(chan struct{})
		w.fake.write = func(st grpc.ClientStreamingServer[quirev1.WritePagesRequest, quirev1.WritePagesResponse]) error {
			st.Recv()
			w.conns.stop()
			close(began)
			<-st.Context().Done()
			return nil
		}
		ctx, cancel := context.WithCancel(w.ctx())
		go func() { <-began; cancel() }()
		items := w.items(90, small.Full()) // 25 MiB: more than windows and socket buffers take
		rs, err := w.s.Publish(ctx, w.run(90), page.View{}, nil, items, PublishOptions{})
		if !errors.Is(err, context.Canceled) || GoodPrefix(rs) != 0 {
			t.Fatal(err)
		}
		for i := range items {
			clear(items[i].Bytes)
		}
	})
}

// TestPublishToKilledServer: a connection that dies in the middle of an upload is an error for every page, and the
// lent memory is the caller's again.
func TestPublishToKilledServer(t *testing.T) {
	over(t, func(t *testing.T, tr Transport) {
		w := newWorld(t, tr, small, Options{Conns: 1})
		w.fake.begin = func(r *quirev1.BeginPublishRequest) (*quirev1.BeginPublishResponse, error) { return grantAll(r), nil }
		w.fake.write = func(st grpc.ClientStreamingServer[quirev1.WritePagesRequest, quirev1.WritePagesResponse]) error {
			st.Recv()
			w.conns.kill()
			<-st.Context().Done()
			return nil
		}
		items := w.items(90, small.Full())
		rs, err := w.s.Publish(w.ctx(), w.run(90), page.View{}, nil, items, PublishOptions{})
		if !errors.Is(err, reason.Unknown) || GoodPrefix(rs) != 0 {
			t.Fatal(err)
		}
		for i := range items {
			clear(items[i].Bytes)
		}
	})
}

// TestReattach: a session whose connection dies attaches again, and later leases belong to the new stream.
func TestReattach(t *testing.T) {
	over(t, func(t *testing.T, tr Transport) {
		w := newWorld(t, tr, small, Options{Conns: 1})
		if id := w.s.sessionID(); len(id) != 1 || id[0] != 1 {
			t.Fatal(id)
		}
		w.conns.kill()
		for deadline := time.Now().Add(guard); ; runtime.Gosched() {
			if id := w.s.sessionID(); len(id) == 1 && id[0] == 2 {
				return
			}
			if time.Now().After(deadline) {
				t.Fatal("not attached again")
			}
		}
	})
}

// TestCase_C42_Garbage: counts and sizes that are not those asked for are never a hit and never a panic.
func TestCase_C42_Garbage(t *testing.T) {
	over(t, func(t *testing.T, tr Transport) {
		for name, a := range map[string]*quirev1.BatchExistsResponse{
			"nothing":        {},
			"too short":      {Present: []byte{1}, Leading: []uint32{1}},
			"too long":       {Present: make([]byte, 1000), Leading: []uint32{0, 1, 2, 3}},
			"leading beyond": {Present: []byte{0, 0}, Leading: []uint32{1 << 31}, Lease: &quirev1.LeaseGrant{LeaseId: []byte{1}, Covered: []uint32{1 << 31}}},
		} {
			w := newWorld(t, tr, small, Options{})
			w.fake.exists = func(*quirev1.BatchExistsRequest) (*quirev1.BatchExistsResponse, error) { return a, nil }
			p, err := w.s.Exists(w.ctx(), w.run(12), time.Second)
			if err != nil || len(p.Bits) != 2 || len(p.Unknown) != 2 || p.Leading > 12 || p.Leased > 12 || p.Has(11) || p.Has(1000) {
				t.Errorf("%s: %+v %v", name, p, err)
			}
		}
		w := newWorld(t, tr, small, Options{})
		for name, pages := range map[string][]*quirev1.PageStatus{
			"no page":       nil,
			"outcome OK":    {{Outcome: quirev1.Outcome_OUTCOME_OK}, {Outcome: quirev1.Outcome_OUTCOME_COMMITTED}},
			"bad extent id": {{Outcome: quirev1.Outcome_OUTCOME_PRESENT, ExtentIds: [][]byte{{1}}}, {}},
			"view outside":  {{Outcome: quirev1.Outcome_OUTCOME_GRANTED, Grants: []*quirev1.View{{H1: 99, L1: 1}}}, {}},
			"huge view":     {{Outcome: quirev1.Outcome_OUTCOME_GRANTED, Grants: []*quirev1.View{{H1: 1 << 31, L1: 1 << 31}}}, {}},
			"token slice":   {{Outcome: quirev1.Outcome_OUTCOME_GRANTED, Grants: []*quirev1.View{{H1: 1, L1: 1, TokenRun: 4}}}, {}},
		} {
			u := &uploads{}
			w.fake.write = u.take(t)
			w.fake.begin = func(*quirev1.BeginPublishRequest) (*quirev1.BeginPublishResponse, error) {
				return &quirev1.BeginPublishResponse{Pages: pages}, nil
			}
			rs, err := w.s.Publish(w.ctx(), w.run(2), page.View{}, nil, w.items(2, small.Full()), PublishOptions{})
			if len(rs) != 2 || GoodPrefix(rs) != 0 {
				t.Errorf("%s: %+v %v", name, rs, err)
			}
		}
	})
}

// TestCase_C43_Absent: no server, one that refuses, one that is not ours: a clear error within the deadline.
func TestCase_C43_Absent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := l.Addr().String()
	l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), guard)
	defer cancel()
	if _, err := Dial(ctx, Options{Address: gone, Retries: -1}); !errors.Is(err, reason.Unknown) || !strings.Contains(err.Error(), gone) {
		t.Errorf("nobody there: %v", err)
	}
	strange := grpc.NewServer()
	l, err = net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { defer close(served); strange.Serve(l) }()
	defer func() { strange.Stop(); <-served }()
	if _, err := Dial(ctx, Options{Address: l.Addr().String()}); !errors.Is(err, reason.Unsupported) {
		t.Errorf("another service: %v", err)
	}
}

func TestOptions(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("  secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := Options{Address: "127.0.0.1:1", TokenFile: token}
	if err := o.fill(); err != nil || o.Token != "secret" || o.CallTimeout != 5*time.Second || o.BatchKeys != 1024 || o.Conns != 2 {
		t.Errorf("%v %+v", err, o)
	}
	for name, bad := range map[string]Options{
		"no port":                {Address: "localhost"},
		"no address":             {},
		"no token file":          {Address: "h:1", TokenFile: token + "x"},
		"half a certificate":     {Address: "h:1", CertFile: "c"},
		"insecure and TLS":       {Address: "h:1", Insecure: true, CAFile: "c"},
		"too many connections":   {Address: "h:1", Conns: 1000},
		"negative streams":       {Address: "h:1", Parallel: -1},
		"too many retries":       {Address: "h:1", Retries: 1000},
		"negative call deadline": {Address: "h:1", CallTimeout: -1},
	} {
		if err := bad.fill(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for _, c := range []struct {
		o     Options
		plain bool
	}{
		{Options{Address: "127.0.0.1:1"}, true}, {Options{Address: "[::1]:1"}, true}, {Options{Address: "localhost:1"}, true},
		{Options{Address: "10.0.0.1:1"}, false}, {Options{Address: "example.org:1"}, false}, {Options{Address: "localhost.example.org:1"}, false},
		{Options{Address: "127.0.0.1:1", CAFile: "ca"}, false}, {Options{Address: "10.0.0.1:1", Insecure: true}, true},
	} {
		if c.o.plaintext() != c.plain {
			t.Errorf("%+v: plaintext %v", c.o, !c.plain)
		}
	}
	if newBearer("x", true).RequireTransportSecurity() != true {
		t.Error("a token would go over plaintext")
	}
}

// TestRefusalText: what a refused Open says is there for the caller: reason, path, differences.
func TestRefusalText(t *testing.T) {
	over(t, func(t *testing.T, tr Transport) {
		w := newWorld(t, tr, small, Options{})
		_, err := w.c.Namespaces().List(w.ctx(), &quirev1.ListRequest{})
		var e *rpc.Error
		if !errors.As(err, &e) || !errors.Is(err, reason.Unsupported) {
			t.Errorf("raw clients answer %T: %v", err, err)
		}
	})
}
