package daemon

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/shm/socket"
)

// onSocket is a daemon without a port but the admin listener's.
func onSocket(t *testing.T, path string, change func(*Config)) Config {
	t.Helper()
	return small(t, func(c *Config) {
		c.GRPCListen = "unix:" + path
		if change != nil {
			change(c)
		}
	})
}

// TestGRPCOverAUNIXSocket: an engine on this host needs no port. Stock gRPC clients reach the socket too, and pages go
// over shared memory, also without a data directory.
func TestGRPCOverAUNIXSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "quire.sock")
	d := started(t, onSocket(t, path, nil), Deps{})
	if d.GRPCAddress() != "unix:"+path || d.DataAddress() != "" {
		t.Errorf("gRPC at %s, data connections at %q", d.GRPCAddress(), d.DataAddress())
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	for _, over := range []client.Transport{client.GRPC, client.SharedMemory, client.Auto} {
		w := write(t, d, over)
		w.mustPublish("by "+string(over), false)
		want := over
		if over == client.Auto {
			want = client.SharedMemory
		}
		if s := w.client.Stats(); s.Transport != want {
			t.Errorf("%q: the client goes over %q", over, s.Transport)
		}
	}
	w := write(t, d, client.GRPC)
	for _, by := range []string{"by grpc", "by shm", "by "} {
		w.mustServe(by, reason.None)
	}
	if c, err := client.Dial(t.Context(), client.Options{Address: "unix://" + path}); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}

	stock, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer stock.Close()
	caps, err := quirev1.NewPageServiceClient(stock).GetCapabilities(t.Context(), &quirev1.GetCapabilitiesRequest{})
	if err != nil || caps.GetDataAddress() != "" || caps.GetShmSocket() != path+".shm" {
		t.Errorf("capabilities: %v, %v", caps, err)
	}
}

// TestDataConnectionsBesideAUNIXSocket: where they are written out, a client that dialled the socket finds them.
func TestDataConnectionsBesideAUNIXSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	d := started(t, onSocket(t, path, func(c *Config) { c.DataListen, c.ShmSocket = "127.0.0.1:0", "off" }), Deps{})
	w := write(t, d, client.Auto)
	w.mustPublish("a", false)
	w.mustServe("a", reason.None)
	if s := w.client.Stats(); s.Transport != client.Data {
		t.Errorf("the client goes over %q", s.Transport)
	}
}

// TestTheSocketsLife: a second daemon is told, one that was killed leaves nothing in the way, and a stop leaves none.
func TestTheSocketsLife(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	d, err := Start(t.Context(), onSocket(t, path, nil), Deps{})
	if err != nil {
		t.Fatalf("in place of a socket that was left behind: %v", err)
	}
	if _, err := Start(t.Context(), onSocket(t, path, func(c *Config) { c.ShmSocket = "off" }), Deps{}); !errors.Is(err, socket.ErrInUse) || !strings.Contains(err.Error(), "grpc_listen") {
		t.Errorf("a second daemon: %v", err)
	}
	write(t, d, client.GRPC).mustPublish("the first is as it was", false)
	if err := d.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	for _, p := range []string{path, path + shmSuffix} {
		if _, err := os.Lstat(p); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", p, err)
		}
	}
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), onSocket(t, path, nil), Deps{}); err == nil {
		t.Error("a file that is no socket was replaced")
	}
}

// TestTokensOverAUNIXSocket: with tokens other users may connect, since the token says who calls.
func TestTokensOverAUNIXSocket(t *testing.T) {
	path, dir := filepath.Join(t.TempDir(), "s"), t.TempDir()
	d := started(t, onSocket(t, path, func(c *Config) { c.DataDir, c.Auth = dir, AuthToken }), Deps{})
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	o := client.Options{Address: d.GRPCAddress(), CallTimeout: 20 * time.Second, TokenFile: filepath.Join(dir, operatorTokenFile)}
	w := writeAs(t, o)
	w.mustPublish("a", false)
	w.mustServe("a", reason.None)
	o.TokenFile, o.Token = "", "qk_nobody"
	c, err := client.Dial(t.Context(), o)
	if err == nil {
		c.Close()
	}
	if !errors.Is(err, reason.Unauthorized) {
		t.Errorf("a stranger: %v", err)
	}
}
