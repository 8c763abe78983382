package daemon

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quire-kv/quire/internal/auth"
	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/frame"
	"github.com/quire-kv/quire/store/page"
)

// writer is a client with an open namespace, which publishes single pages of bytes that follow from their name.
type writer struct {
	t       *testing.T
	client  *client.Client
	session *client.Session
	group   page.GroupID
}

// write dials d over one transport.
func write(t *testing.T, d *Daemon, over client.Transport) *writer {
	t.Helper()
	return writeAs(t, client.Options{Address: d.GRPCAddress(), Transport: over, CallTimeout: 20 * time.Second})
}

func writeAs(t *testing.T, o client.Options) *writer {
	t.Helper()
	w := &writer{t: t}
	var err error
	if w.client, err = client.Dial(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.client.Close() })
	text, _ := namespace.ExampleSpec("smollm2-135m")
	spec, err := namespace.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if w.session, err = w.client.Open(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	w.group = page.GroupID(w.session.Namespace().GetGroups()[0].GetId())
	return w
}

func (w *writer) run(name string) client.Run {
	hash := namespace.DigestOf([]byte(name))
	return client.Run{Group: w.group, Hashes: hash[:]}
}

func (w *writer) payload(name string) []byte {
	g, _ := w.session.Geometry(w.group)
	n := page.PayloadBytes(page.View{H1: g.Heads, L1: g.Layers}, g.CellBytes)
	return bytes.Repeat([]byte(name+"\n"), int(n)/(len(name)+1)+1)[:n]
}

func (w *writer) publish(name string, durable bool) ([]client.PageResult, error) {
	items := []client.Item{{Bytes: w.payload(name), Root: true}}
	return w.session.Publish(w.t.Context(), w.run(name), page.View{}, nil, items, client.PublishOptions{Durable: durable})
}

func (w *writer) mustPublish(name string, durable bool) {
	w.t.Helper()
	if got, err := w.publish(name, durable); err != nil || got[0].Outcome != client.Committed {
		w.t.Fatalf("publish %s: %+v, %v", name, got, err)
	}
}

// mustServe wants every byte; a reason other than none wants a miss with it.
func (w *writer) mustServe(name string, why reason.Reason) {
	w.t.Helper()
	want := w.payload(name)
	dst := make([]byte, len(want))
	got, err := w.session.FetchInto(w.t.Context(), w.run(name), page.View{}, nil, [][]byte{dst}, nil)
	switch {
	case err != nil:
		w.t.Fatalf("fetch %s: %v", name, err)
	case why == reason.None && (got[0].Outcome != client.OK || !bytes.Equal(dst, want)):
		w.t.Errorf("fetch %s: %+v, right bytes: %v", name, got[0], bytes.Equal(dst, want))
	case why != reason.None && (got[0].Outcome != client.Miss || got[0].Reason != why):
		w.t.Errorf("fetch %s: %+v, want a miss: %v", name, got[0], why)
	}
}

// TestEveryWayIn: one server, three transports, the same pages.
func TestEveryWayIn(t *testing.T) {
	d := started(t, small(t, func(c *Config) { c.DataDir = t.TempDir() }), Deps{})
	ways := []client.Transport{client.GRPC, client.Data, client.SharedMemory}
	for _, over := range ways {
		w := write(t, d, over)
		w.mustPublish("by "+string(over), false)
		if s := w.client.Stats(); s.Transport != over {
			t.Errorf("%s: the client goes over %q", over, s.Transport)
		}
	}
	for _, over := range ways {
		w := write(t, d, over)
		for _, by := range ways {
			w.mustServe("by "+string(by), reason.None)
		}
	}
	_, metrics := get(t, d, "/metrics")
	for _, over := range ways {
		for _, name := range []string{"fetch", "write"} {
			series := fmt.Sprintf("quire_%s_bytes_total{transport=%q} ", name, over)
			if !strings.Contains(metrics, series) || strings.Contains(metrics, series+"0\n") {
				t.Errorf("%s is 0 or not there", series)
			}
		}
	}
}

// TestDataConnectionsAreAsSecureAsGRPC: the same certificates, and nobody without.
func TestDataConnectionsAreAsSecureAsGRPC(t *testing.T) {
	dir := t.TempDir()
	engine := namespace.Principal{Name: "e", Tenant: "default", Role: namespace.RoleEngine}
	if _, err := auth.WriteDevCA(auth.DevCA{Dir: dir, Clients: []namespace.Principal{engine}}); err != nil {
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	d := started(t, small(t, func(c *Config) {
		c.Auth, c.TLSCert, c.TLSKey, c.TLSClientCA = AuthMTLS, in(auth.ServerCertFile), in(auth.ServerKeyFile), in(auth.CAFile)
	}), Deps{})
	cert, key := auth.ClientFiles(engine)
	w := writeAs(t, client.Options{Address: d.GRPCAddress(), Transport: client.Data, CAFile: in(auth.CAFile), CertFile: in(cert), KeyFile: in(key)})
	w.mustPublish("a", false)
	w.mustServe("a", reason.None)
	plain := frame.NewClientConn(frame.ClientOptions{Dial: func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", d.DataAddress())
	}})
	defer plain.Close()
	if _, err := plain.Connect(t.Context()); err == nil {
		t.Error("a stranger in plain text is welcome")
	}
}

// TestWaysThatAreOff: a server without them tells of none, and clients do without.
func TestWaysThatAreOff(t *testing.T) {
	d := started(t, small(t, func(c *Config) { c.DataListen = "off" }), Deps{})
	w := write(t, d, client.Auto)
	w.mustPublish("a", false)
	w.mustServe("a", reason.None)
	if s := w.client.Stats(); s.Transport != client.GRPC || d.DataAddress() != "" {
		t.Errorf("the client goes over %q", s.Transport)
	}
	for _, over := range []client.Transport{client.Data, client.SharedMemory} {
		c, err := client.Dial(context.Background(), client.Options{Address: d.GRPCAddress(), Transport: over})
		if err == nil {
			c.Close()
			t.Errorf("dialled over %s", over)
		}
	}
}
