package client

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/quire-kv/quire/internal/auth"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/store/rpc"
)

// Options of Dial. Zero values are defaults.
type Options struct {
	Address string // host:port, or unix:/path of a server on this host

	// Token, or the content of TokenFile, is the bearer token. It is never sent over a plaintext connection, save to
	// a loopback address or under Insecure.
	Token, TokenFile string
	// CAFile verifies the server; CertFile and KeyFile are the client's own certificate (mTLS). PEM.
	CAFile, CertFile, KeyFile string
	// Insecure allows plaintext to any address. Without it plaintext is for loopback addresses without CAFile, and
	// everything else is TLS (with the system's roots when CAFile is empty).
	Insecure bool

	CallTimeout time.Duration // of a call without a deadline, and of a stream without progress; default 5 s
	BatchKeys   int           // keys of one call; default 1,024, at most what the server takes
	BatchBytes  int64         // payload bytes of one call; default 256 MiB, at most what the server takes
	Parallel    int           // streams of one FetchInto; default 2
	Conns       int           // gRPC connections, used in turn; default 2
	Transport   Transport     // of the page service; default Auto
	DataConns   int           // bulk streams at once over frames, and as many other calls, each on a connection of its own; default 4
	Retries     int           // further attempts of what is safe to repeat; default 2, negative: none
	Instance    string        // shown to operators; default the host's name

	Clock clock.Clock       // of leases, progress and back-off; default clock.System
	GRPC  []grpc.DialOption // further options: interceptors, tracing

	copied func() // tests: called between the last byte copied out of shared memory and the look at its generations
}

// Bounds of Options, and of what they stand for.
const (
	maxConns        = 64
	maxParallel     = 64
	maxRetries      = 16
	windowBytes     = 8 << 20          // HTTP/2 windows: more than one chunk of each of a few streams
	ioBufferBytes   = 128 << 10        // of one write or read system call: fits the near cache
	maxMessageBytes = 32 << 20         // received: a chunk, its header and sums, or answers to a full batch
	pingIdleAfter   = 20 * time.Second // silence before a ping, while a session is open
	pingTimeout     = 5 * time.Second  // without an answer to it the connection is over
	retryPause      = 20 * time.Millisecond
	breakAfter      = 250 * time.Millisecond // lent memory that a dead peer does not take: the connection is closed
)

func (o *Options) fill() error {
	if o.Token == "" && o.TokenFile != "" {
		b, err := os.ReadFile(o.TokenFile)
		if err != nil {
			return fmt.Errorf("read token: %w", err)
		}
		if o.Token = strings.TrimSpace(string(b)); o.Token == "" {
			return fmt.Errorf("token file %s is empty", o.TokenFile)
		}
	}
	if o.Instance == "" {
		o.Instance, _ = os.Hostname()
	}
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	o.CallTimeout = cmp.Or(o.CallTimeout, 5*time.Second)
	o.BatchKeys = cmp.Or(o.BatchKeys, 1024)
	o.BatchBytes = cmp.Or(o.BatchBytes, 256<<20)
	o.Parallel = cmp.Or(o.Parallel, 2)
	o.Conns = cmp.Or(o.Conns, 2)
	o.DataConns = cmp.Or(o.DataConns, 4)
	o.Retries = cmp.Or(o.Retries, 2)
	o.Retries = max(o.Retries, 0)
	return o.check()
}

func (o *Options) check() error {
	if err := CheckAddress(o.Address); err != nil {
		return err
	}
	if _, local := rpc.UnixPath(o.Address); local && (o.CAFile != "" || o.CertFile != "") {
		return fmt.Errorf("address %s: no certificates are used over a UNIX socket", o.Address)
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		return errors.New("a client certificate needs both CertFile and KeyFile")
	}
	if o.Insecure && (o.CAFile != "" || o.CertFile != "") {
		return errors.New("option Insecure and certificates exclude each other")
	}
	switch {
	case o.CallTimeout < 0, o.BatchKeys < 0, o.BatchBytes < 0:
		return errors.New("options CallTimeout, BatchKeys and BatchBytes must be positive")
	case o.Parallel < 1 || o.Parallel > maxParallel:
		return fmt.Errorf("option Parallel is %d: want 1 to %d", o.Parallel, maxParallel)
	case o.Conns < 1 || o.Conns > maxConns:
		return fmt.Errorf("option Conns is %d: want 1 to %d", o.Conns, maxConns)
	case o.DataConns < 1 || o.DataConns > maxConns:
		return fmt.Errorf("option DataConns is %d: want 1 to %d", o.DataConns, maxConns)
	case !o.Transport.valid():
		return fmt.Errorf("option Transport is %q: want shm, data, grpc or nothing", o.Transport)
	case o.Retries > maxRetries:
		return fmt.Errorf("option Retries is %d: want at most %d", o.Retries, maxRetries)
	}
	return nil
}

// CheckAddress says what is wrong with an address to dial.
func CheckAddress(address string) error {
	if path, local := rpc.UnixPath(address); local {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("address %q: want an absolute path, unix:/path", address)
		}
		return nil
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return fmt.Errorf("address %q: want host:port or unix:/path", address)
	}
	return nil
}

// plaintext says whether the connection goes without TLS.
func (o *Options) plaintext() bool {
	if o.Insecure {
		return true
	}
	if o.CAFile != "" || o.CertFile != "" {
		return false
	}
	local, err := auth.Loopback(o.Address)
	return err == nil && local
}
