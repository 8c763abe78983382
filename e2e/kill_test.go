package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
	roleEnv      = "QUIRE_E2E_ROLE"
	addressEnv   = "QUIRE_E2E_ADDRESS"
	transportEnv = "QUIRE_E2E_TRANSPORT"
)

const exitWrongBytes = 3

// stagingName is what the kernel calls a client's staging memory.
const stagingName = "memfd:quire-staging"

// clientLease is so long that no time but the connection's end can end it within the test.
const clientLease = time.Minute

var errWrongBytes = errors.New("wrong bytes")

// clientMain publishes and fetches until it is killed. It ends by itself only when it sees a wrong byte, or after a
// minute, so that nothing is left when the test is killed.
func clientMain() int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.Dial(ctx, client.Options{
		Address: os.Getenv(addressEnv), Conns: 1, Transport: client.Transport(os.Getenv(transportEnv)),
	})
	if err != nil {
		return 1
	}
	s, err := c.Open(ctx, largeSpec(fatal{})) // most of its time it copies
	if err != nil {
		return 1
	}
	fmt.Println("ready")
	for ctx.Err() == nil {
		hashes := storetest.Chain(fmt.Sprint("shared", rand.IntN(60)), 8) // others publish and read the same chains
		p, err := s.Exists(ctx, run(s, hashes), clientLease)
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
	eachTransport(t, func(t *testing.T, over client.Transport) { killClients(t, over) })
}

// killClients kills clients in the middle of what they do: nothing is held for them the moment they are gone, what is
// listed can be fetched, and what was half published can be published.
func killClients(t *testing.T, over client.Transport) {
	clients, mapped := 40, 0
	if testing.Short() {
		clients = 10
	}
	s := startServer(t, "--default-lease", clientLease.String(), "--memory", "256MiB")
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := dialOver(t, s.address, over)
	stored := func() uint64 {
		st, err := c.Admin().Status(t.Context(), &quirev1.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return st.GetPages()
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, 12)                                  // at once: two cores start no more in good time
	for i := 0; i < clients || i < 10*clients && stored() == 0; i++ { // how far they get is the machine's matter
		life := time.Duration(100+r.IntN(900)) * time.Millisecond
		slots <- struct{}{}
		mapped = max(mapped, stagingOf(t, s.cmd.Process.Pid))
		wg.Go(func() {
			defer func() { <-slots }()
			if code := oneClient(self, s.address, over, life); code != 0 {
				t.Errorf("client %d saw wrong bytes", i)
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		wg.Wait()
		close(ended)
	}()
	for alive := true; alive; {
		select {
		case <-ended:
			alive = false
		case <-time.After(5 * time.Millisecond):
			mapped = max(mapped, stagingOf(t, s.cmd.Process.Pid))
		}
	}
	if over == client.SharedMemory && mapped == 0 {
		t.Error("no client's memory was mapped while they lived: the test shows nothing of it")
	}
	waitForTruth(t, c, func() int { return stagingOf(t, s.cmd.Process.Pid) })
	session := open(t, c, largeSpec(t))
	served := 0
	for i := range 60 {
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
func oneClient(self, address string, over client.Transport, life time.Duration) int {
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roleEnv+"=client", addressEnv+"="+address, transportEnv+"="+string(over))
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

// stagingOf counts what a process maps and holds open of clients' staging memory.
func stagingOf(t *testing.T, pid int) (n int) {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	n = strings.Count(string(maps), stagingName)
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(fds) == 0 {
		t.Fatalf("no descriptors of %d: %v", pid, err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.Contains(to, stagingName) {
			n++
		}
	}
	return n
}

// waitForTruth waits until nothing is held for anyone: no lease, no publication, no session, no pinned byte, and nothing
// of what mapped counts of dead clients' memory. It waits for much less than the leases of clients killed just now.
func waitForTruth(t *testing.T, c *client.Client, mapped func() int) {
	t.Helper()
	const within = clientLease / 2
	var last *quirev1.StatusResponse
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		st, err := c.Admin().Status(t.Context(), &quirev1.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if last = st; st.GetReadLeases()+st.GetPublications()+st.GetSessions()+st.GetPinnedBytes() == 0 && mapped() == 0 {
			return
		}
	}
	t.Fatalf("still held after %v: %d mappings or descriptors, %v", within, mapped(), last)
}
