package daemon

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/quire-kv/quire/namespace/pebbleregistry"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// small is a daemon that a test can afford, on free ports.
func small(t *testing.T, change func(*Config)) Config {
	t.Helper()
	c := Config{GRPCListen: "127.0.0.1:0", AdminListen: "127.0.0.1:0", MemoryBytes: 32 << 20, DrainTimeout: 10 * time.Second}
	if change != nil {
		change(&c)
	}
	return c.Resolve(0)
}

func started(t *testing.T, c Config, deps Deps) *Daemon {
	t.Helper()
	d, err := Start(t.Context(), c, deps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(context.Background()); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return d
}

func connect(t *testing.T, d *Daemon) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+d.GRPCAddress(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// get asks the admin listener and answers code and body. Its connection does not outlive the call.
func get(t *testing.T, d *Daemon, path string) (int, string) {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport}).Get("http://" + d.AdminAddress() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

func TestAdminEndpoints(t *testing.T) {
	d := started(t, small(t, nil), Deps{})
	for _, c := range []struct {
		path string
		code int
		want string
	}{
		{"/livez", 200, "livez: ok\n"},
		{"/readyz", 200, "readyz: ok\n"},
		{"/readyz?verbose", 200, "[+]serving ok\n[+]tier_host ok\nreadyz: ok\n"},
		{"/debug/pprof/cmdline", 200, ""},
		{"/nothing", 404, ""},
	} {
		if code, body := get(t, d, c.path); code != c.code || c.want != "" && body != c.want {
			t.Errorf("%s: %d %q", c.path, code, body)
		}
	}
	answer, err := healthpb.NewHealthClient(connect(t, d)).Check(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil || answer.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("grpc.health: %v %v", answer, err)
	}
}

func TestProfilesStayOnLoopback(t *testing.T) {
	d := started(t, small(t, func(c *Config) { c.AdminListen = "0.0.0.0:0" }), Deps{})
	if code, _ := get(t, d, "/livez"); code != 200 {
		t.Errorf("health: %d", code)
	}
	if code, _ := get(t, d, "/debug/pprof/heap"); code != 404 {
		t.Errorf("profiles are served to everyone: %d", code)
	}
}

func TestAFailedCheckIsNamed(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	failing := check{name: "tier_host", ok: func() error { return errors.New("degraded") }}
	d := &Daemon{admin: startAdmin(listener, false, []check{failing}, prometheus.NewRegistry())}
	if code, body := get(t, d, "/readyz"); code != 503 || body != "[-]tier_host: degraded\nreadyz: 1 of 1 checks failed\n" {
		t.Errorf("%d %q", code, body)
	}
	if code, _ := get(t, d, "/livez"); code != 200 {
		t.Error("what is not ready is alive all the same")
	}
	if err := d.admin.stop(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestMetricsAreServed: a tier of 32 MiB less the 2 MiB of its index; ours and the process's; docs/metrics.md is held equal to ours where they are made.
func TestMetricsAreServed(t *testing.T) {
	d := started(t, small(t, nil), Deps{Version: "v1.2.3"})
	code, body := get(t, d, "/metrics")
	for _, want := range []string{`quire_build_info{version="v1.2.3"} 1`, `quire_tier_capacity_bytes{tier="host"} 3.145728e+07`, "go_goroutines ", "process_resident_memory_bytes "} {
		if code != 200 || !strings.Contains(body, want) {
			t.Errorf("%d, no %q", code, want)
		}
	}
}

// TestStopDrains: a call that runs when the stop begins finishes, new ones are turned away, and readiness says so first.
func TestStopDrains(t *testing.T) {
	d, err := Start(t.Context(), small(t, nil), Deps{})
	if err != nil {
		t.Fatal(err)
	}
	pages := quirev1.NewPageServiceClient(connect(t, d))
	upload, err := pages.WritePages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// The call has reached its handler, which waits for the first message, when it is counted.
	for inFlight := ""; !strings.Contains(inFlight, "\nquire_requests_in_flight 1\n"); {
		_, inFlight = get(t, d, "/metrics")
	}
	var stops sync.WaitGroup
	for range 3 {
		stops.Go(func() {
			if err := d.Stop(context.Background()); err != nil {
				t.Errorf("stop: %v", err)
			}
		})
	}
	for code, body := 200, ""; code != 503; {
		if code, body = get(t, d, "/readyz"); code == 503 && !strings.Contains(body, "[-]serving: stopping") {
			t.Errorf("not ready, but %q", body)
		}
	}
	// Refused for its token, as without a stop: the call was answered, not cut.
	if err := upload.Send(&quirev1.WritePagesRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := upload.CloseAndRecv(); status.Code(err) == codes.Unavailable || status.Code(err) == codes.OK {
		t.Errorf("the call in flight ended with %v", err)
	}
	stops.Wait()
	if err := d.Wait(); err != nil {
		t.Errorf("wait: %v", err)
	}
	if _, err := pages.GetCapabilities(t.Context(), &quirev1.GetCapabilitiesRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("after the stop: %v", err)
	}
}

// TestStopIsBounded: a session that never ends does not hold the stop beyond the drain timeout.
func TestStopIsBounded(t *testing.T) {
	d, err := Start(t.Context(), small(t, func(c *Config) { c.DrainTimeout = 50 * time.Millisecond }), Deps{})
	if err != nil {
		t.Fatal(err)
	}
	session, err := quirev1.NewPageServiceClient(connect(t, d)).Attach(t.Context(), &quirev1.AttachRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := session.Recv(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- d.Stop(context.Background()) }()
	select {
	case err := <-done: // an attached session ends with the drain; it is no call that was cut
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("stop does not end")
	}
	if _, err := session.Recv(); err == nil {
		t.Error("the session goes on after the stop")
	}
}

func TestFirstStartWritesTheOperatorsToken(t *testing.T) {
	dir := t.TempDir()
	config := small(t, func(c *Config) { c.DataDir, c.Auth = dir, AuthToken })
	path := filepath.Join(dir, operatorTokenFile)
	ask := func(d *Daemon, token string) codes.Code {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
		_, err := quirev1.NewAdminServiceClient(connect(t, d)).ListTokens(ctx, &quirev1.ListTokensRequest{})
		return status.Code(err)
	}
	var log bytes.Buffer
	d, err := Start(t.Context(), config, Deps{Logger: slog.New(slog.NewJSONHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	secret := strings.TrimSpace(string(text))
	if code := ask(d, secret); code != codes.OK {
		t.Errorf("the operator's token is answered %v", code)
	}
	if code := ask(d, secret[:len(secret)-1]+"A"); code != codes.Unauthenticated && secret[len(secret)-1] != 'A' {
		t.Errorf("another token is answered %v", code)
	}
	if err := d.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(log.String(), secret) {
		t.Error("the log holds the secret")
	}
	// The next start keeps it.
	d = started(t, config, Deps{})
	again, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(again, text) {
		t.Errorf("the second start wrote another token (%v)", err)
	}
	if code := ask(d, secret); code != codes.OK {
		t.Errorf("after a restart the token is answered %v", code)
	}
}

func TestADataDirectoryHasOneOwner(t *testing.T) {
	config := small(t, func(c *Config) { c.DataDir = t.TempDir() })
	d := started(t, config, Deps{})
	_ = d
	_, err := Start(t.Context(), config, Deps{})
	if !errors.Is(err, pebbleregistry.ErrInUse) {
		t.Errorf("a second daemon on one directory: %v", err)
	}
}

func TestAFailedStartGivesEverythingBack(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, change := range []func(*Config){
		func(c *Config) { c.GRPCListen = taken.Addr().String() },
		func(c *Config) { c.AdminListen = taken.Addr().String() },
		func(c *Config) { c.DataListen, c.DiskBytes = taken.Addr().String(), minDiskBytes },
		func(c *Config) { c.ShmSocket, c.DiskBytes = "/dev/null", minDiskBytes },
		func(c *Config) { c.TLSCert, c.TLSKey = "none.pem", "none.pem" },
		func(c *Config) { c.LogLevel = "loud" },
	} {
		dir := t.TempDir()
		config := small(t, func(c *Config) { c.DataDir = dir; change(c) })
		if _, err := Start(t.Context(), config, Deps{}); err == nil {
			t.Fatalf("%+v started", config)
		}
		config = small(t, func(c *Config) { c.DataDir = dir })
		d, err := Start(t.Context(), config, Deps{})
		if err != nil {
			t.Fatalf("after a failed start: %v", err)
		}
		if err := d.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
