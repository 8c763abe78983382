package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/storetest"
)

// The environment of this test binary when it runs as a client that will be killed.
const (
	roleEnv    = "QUIRE_E2E_ROLE"
	addressEnv = "QUIRE_E2E_ADDRESS"
)

const exitWrongBytes = 3

var errWrongBytes = errors.New("wrong bytes")

// clientMain publishes and fetches until it is killed. It ends by itself only when it sees a wrong byte, or after a
// minute, so that nothing is left when the test is killed.
func clientMain() int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.Dial(ctx, client.Options{Address: os.Getenv(addressEnv), Conns: 1})
	if err != nil {
		return 1
	}
	s, err := c.Open(ctx, smallSpec(fatal{}))
	if err != nil {
		return 1
	}
	fmt.Println("ready")
	for ctx.Err() == nil {
		hashes := storetest.Chain(fmt.Sprint("shared", rand.IntN(60)), 8) // others publish and read the same chains
		p, err := s.Exists(ctx, run(s, hashes), time.Second)
		if err != nil {
			continue
		}
		if p.Leading > 0 {
			if _, _, err := fetch(ctx, s, hashes[:32*p.Leading]); errors.Is(err, errWrongBytes) {
				return exitWrongBytes
			}
		}
		if p.Leading < 8 {
			_, _ = publish(ctx, s, hashes)
		}
	}
	return 0
}

// fatal is a testing.TB for a process that is no test.
type fatal struct{ testing.TB }

func (fatal) Fatal(args ...any) {
	fmt.Fprintln(os.Stderr, args...)
	os.Exit(1)
}

func TestCase_C58_ClientsKilledAtRandomMoments(t *testing.T) {
	const leaseTTL = 2 * time.Second
	clients := 100
	if testing.Short() {
		clients = 10
	}
	s := startServer(t, "--default-lease", leaseTTL.String(), "--max-lease", leaseTTL.String())
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, 12) // at once: two cores start no more in good time
	for i := range clients {
		life := time.Duration(100+r.IntN(900)) * time.Millisecond
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if code := oneClient(self, s.address, life); code != 0 {
				t.Errorf("client %d saw wrong bytes", i)
			}
		})
	}
	wg.Wait()
	c := dial(t, s.address)
	waitForTruth(t, c, 2*leaseTTL)
	session := open(t, c, smallSpec(t))
	served := 0
	for i := range 60 { // what is listed can be fetched, and what was half published can be published
		hashes := storetest.Chain(fmt.Sprint("shared", i), 8)
		p, err := session.Exists(t.Context(), run(session, hashes), 0)
		if err != nil {
			t.Fatal(err)
		}
		rs, n, err := fetch(t.Context(), session, hashes)
		if err != nil {
			t.Fatal(err)
		}
		for j := range rs {
			if p.Has(j) != (rs[j].Outcome == client.OK) {
				t.Fatalf("chain %d page %d: listed %v, fetched %v (%v)", i, j, p.Has(j), rs[j].Outcome, rs[j].Reason)
			}
		}
		served += n
		if _, err := publish(t.Context(), session, hashes); err != nil {
			t.Fatal(err)
		}
		if _, n, err := fetch(t.Context(), session, hashes); err != nil || n != 8 {
			t.Fatalf("chain %d after a fresh publish: %d pages, %v", i, n, err)
		}
	}
	if served == 0 {
		t.Error("nothing survived the clients: the test shows nothing")
	}
}

// oneClient runs a client for life after it is ready, kills it, and answers exitWrongBytes if it ended by itself so.
func oneClient(self, address string, life time.Duration) int {
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roleEnv+"=client", addressEnv+"="+address)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil || cmd.Start() != nil {
		return 0
	}
	_, _ = out.Read(make([]byte, 5)) // "ready", or the end
	time.Sleep(life)
	_ = cmd.Process.Signal(syscall.SIGKILL)
	_ = cmd.Wait()
	if cmd.ProcessState.ExitCode() == exitWrongBytes {
		return exitWrongBytes
	}
	return 0
}

// waitForTruth waits until nothing is held for anyone: no lease, no publication, no session, no pinned byte.
func waitForTruth(t *testing.T, c *client.Client, within time.Duration) {
	t.Helper()
	var last *quirev1.StatusResponse
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		st, err := c.Admin().Status(t.Context(), &quirev1.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if last = st; st.GetReadLeases()+st.GetPublications()+st.GetSessions()+st.GetPinnedBytes() == 0 {
			return
		}
	}
	t.Fatalf("still held after %v: %v", within, last)
}
