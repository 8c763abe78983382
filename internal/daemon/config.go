package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/quire-kv/quire/internal/auth"
	"github.com/quire-kv/quire/internal/cost"
	"github.com/quire-kv/quire/internal/sysmem"
	"github.com/quire-kv/quire/store/rpc"
)

// AuthMode says how callers prove who they are.
type AuthMode string

// The modes.
const (
	AuthNone  AuthMode = "none"  // everyone is an operator: loopback only, unless insecure
	AuthToken AuthMode = "token" // bearer tokens, hashed at rest in the registry
	AuthMTLS  AuthMode = "mtls"  // client certificates of one authority
)

// Config is all that can be set. The zero value of a field is its documented default; Resolve fills it. Where values
// come from and which wins is in Load.
type Config struct {
	DataDir     string // holds registry and disk tier; empty: all is in memory and a restart forgets it
	GRPCListen  string // host:port, port 0 takes a free one; or unix:/path, for this host alone
	DataListen  string // host:port of data connections, pages in frames of our own; "off" for none
	ShmSocket   string // path of the UNIX socket over which clients on this host share memory; "off" for none
	AdminListen string // host:port of health, metrics and profiles; "off" for none

	MemoryBytes   uint64  // of all that is held in host memory, MetadataBytes included: hard bound
	MetadataBytes uint64  // of the index of what is held, hard bound
	DiskBytes     uint64  // of the disk tier, its own index included: hard bound; 0: there is none
	NoWriteBehind bool    // only what is published durably goes to the disk tier
	Eviction      string  // policy: vbr, lru
	PrefillFLOPS  float64 // of the engines together: what loading from disk costs them
	EvictionSeed  uint64  // what eviction draws and watches follows from it; 0: another at each start
	Shards        int     // independent parts of the store, each with a lock of its own

	Auth        AuthMode
	TLSCert     string // PEM file of the server's certificate
	TLSKey      string // PEM file of its key
	TLSClientCA string // PEM file of the authority of client certificates (mtls)
	Insecure    bool   // allows plain or unauthenticated service beyond loopback

	Record           string // path of the recording of what is asked; empty: nothing is recorded
	RecordLimitBytes uint64 // of all recordings of that name together: hard bound

	LogLevel     string // debug, info, warn, error
	LogFormat    string // text, json
	OTLPEndpoint string // URL of an OTLP/gRPC collector, http or https; empty: no traces
	OTLPHeaders  string // key=value,key=value sent to it; may hold a secret

	DrainTimeout  time.Duration // how long calls may finish after a stop was asked for
	DefaultLease  time.Duration // of a caller that names none
	MaxLease      time.Duration // longest that is granted at once
	MaxKeys       int           // of one request
	MaxBatchBytes uint64        // payload of one publish or fetch
	MaxChunkBytes uint64        // payload of one message of a stream
}

// Defaults and the bounds of what may be set.
const (
	defaultGRPCListen    = "127.0.0.1:7420"
	defaultAdminListen   = "127.0.0.1:7421"
	defaultDataPort      = "7422" // on the host of gRPC
	off                  = "off"
	shmSuffix            = ".shm" // beside gRPC's UNIX socket
	maxSocketPath        = 103    // bytes: of the 107 of a UNIX socket's address, 4 are taken while it is made
	defaultShards        = 4
	maxShards            = 256
	defaultDrainTimeout  = 30 * time.Second
	defaultDefaultLease  = 10 * time.Second
	defaultMaxLease      = time.Minute
	maxMaxLease          = time.Hour
	defaultMaxKeys       = 16_384
	maxMaxKeys           = 1 << 18 // 16 MiB of the longest hashes
	defaultMaxBatchBytes = 1 << 30
	defaultMaxChunkBytes = 1 << 20
	defaultRecordLimit   = 1 << 30
	minChunkBytes        = 64 << 10 // one piece
	maxMaxChunkBytes     = 4 << 20
	minMessageBytes      = 32 << 20
	longestHashBytes     = 64

	// memoryShare of what machine and cgroup allow goes to pages: the rest is for the index, the runtime, the kernel's
	// page cache and the neighbours.
	memoryShare = 0.6
	// minMemoryBytes holds one slab of the smallest kind and room to turn it over.
	minMemoryBytes = 16 << 20
	// minDiskBytes holds the tier's own index and enough segments to clean one while others are written.
	minDiskBytes = 64 << 20

	anyBytes = 1 << 50 // more than any machine has

	mib = 1 << 20 // defaults are whole ones: people read them
)

// Resolve is c with every default filled from what the machine has. It does not validate.
func (c Config) Resolve(availableBytes uint64) Config {
	c.GRPCListen = cmp.Or(c.GRPCListen, defaultGRPCListen)
	c.DataListen = cmp.Or(c.DataListen, dataListen(c.GRPCListen))
	c.AdminListen = cmp.Or(c.AdminListen, defaultAdminListen)
	c.MemoryBytes = cmp.Or(c.MemoryBytes, max(minMemoryBytes, uint64(memoryShare*float64(availableBytes))&^(mib-1)))
	c.Shards = cmp.Or(c.Shards, defaultShards)
	c.Eviction = cmp.Or(c.Eviction, evictVBR)
	c.PrefillFLOPS = cmp.Or(c.PrefillFLOPS, cost.DefaultFLOPS)
	c.MetadataBytes = cmp.Or(c.MetadataBytes, c.defaultMetadata())
	c.Auth = cmp.Or(c.Auth, AuthNone)
	c.ShmSocket = cmp.Or(c.ShmSocket, c.defaultShmSocket())
	c.LogLevel = cmp.Or(c.LogLevel, "info")
	c.LogFormat = cmp.Or(c.LogFormat, "text")
	c.DrainTimeout = cmp.Or(c.DrainTimeout, defaultDrainTimeout)
	c.MaxLease = cmp.Or(c.MaxLease, defaultMaxLease)
	c.DefaultLease = cmp.Or(c.DefaultLease, min(defaultDefaultLease, c.MaxLease))
	c.MaxKeys = cmp.Or(c.MaxKeys, defaultMaxKeys)
	c.MaxBatchBytes = cmp.Or(c.MaxBatchBytes, min(defaultMaxBatchBytes, c.MemoryBytes))
	c.MaxChunkBytes = cmp.Or(c.MaxChunkBytes, defaultMaxChunkBytes)
	c.RecordLimitBytes = cmp.Or(c.RecordLimitBytes, defaultRecordLimit)
	return c
}

// dataListen is the default of data_listen: beside gRPC, and a free port where gRPC takes one.
func dataListen(grpcListen string) string {
	host, port, err := net.SplitHostPort(grpcListen)
	_, local := rpc.UnixPath(grpcListen)
	switch {
	case local:
		return off // who reaches the socket can share memory, which is faster
	case err != nil:
		return off // grpc_listen is refused
	case port == "0":
		return net.JoinHostPort(host, "0")
	}
	return net.JoinHostPort(host, defaultDataPort)
}

// defaultShmSocket is beside gRPC's socket, or else in the data directory, where callers can say there who they are.
func (c *Config) defaultShmSocket() string {
	path, local := rpc.UnixPath(c.GRPCListen)
	switch {
	case c.Auth == AuthMTLS:
		return off
	case local && len(path)+len(shmSuffix) <= maxSocketPath:
		return path + shmSuffix
	case local || c.DataDir == "":
		return off
	}
	return filepath.Join(c.DataDir, "quire.sock")
}

// Validate says everything that is wrong with a resolved config, each line with its key and what to write instead.
func (c *Config) Validate() error {
	var all []error
	bad := func(key, format string, args ...any) {
		all = append(all, fmt.Errorf("%s: "+format, append([]any{key}, args...)...))
	}
	c.validateListeners(bad)
	c.validateAuth(bad)
	c.validateSizes(bad)
	c.validateDisk(bad)
	if !slices.Contains(evictions, c.Eviction) {
		bad("eviction", "%q is no policy; write one of %v", c.Eviction, evictions)
	}
	if !slices.Contains(logLevels, c.LogLevel) {
		bad("log_level", "%q is no level; write one of %v", c.LogLevel, logLevels)
	}
	if !slices.Contains(logFormats, c.LogFormat) {
		bad("log_format", "%q is no format; write one of %v", c.LogFormat, logFormats)
	}
	if c.OTLPEndpoint != "" {
		u, err := url.Parse(c.OTLPEndpoint)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
			bad("otlp_endpoint", "is no collector; write for example http://127.0.0.1:4317, and secrets into otlp_headers")
		}
	}
	if _, err := parseHeaders(c.OTLPHeaders); err != nil {
		bad("otlp_headers", "%v", err)
	}
	return errors.Join(all...)
}

type badFunc func(key, format string, args ...any)

func (c *Config) validateListeners(bad badFunc) {
	path, local := rpc.UnixPath(c.GRPCListen)
	if local {
		c.validateLocal(bad, path)
	} else if err := checkListen(c.GRPCListen); err != nil {
		bad("grpc_listen", "%v, or unix:/path", err)
		return
	}
	if c.AdminListen != off {
		if err := checkListen(c.AdminListen); err != nil {
			bad("admin_listen", "%v; or %q for none", err, off)
		}
	}
	if c.DataListen != off {
		if err := checkListen(c.DataListen); err != nil {
			bad("data_listen", "%v; or %q for none", err, off)
		}
	}
	if err := c.listenPolicy().Check(c.GRPCListen); err != nil {
		bad("grpc_listen", "%v", err) // what is missing is missing for data_listen too
	} else if err := c.listenPolicy().Check(c.DataListen); c.DataListen != off && !local && err != nil {
		bad("data_listen", "%v", err)
	}
	c.validateSocket(bad)
}

// validateLocal checks what goes with gRPC over a UNIX socket.
func (c *Config) validateLocal(bad badFunc, path string) {
	switch {
	case !filepath.IsAbs(path):
		bad("grpc_listen", "%q is no absolute path; write for example unix:/run/quire/quire.sock", path)
	case len(path) > maxSocketPath:
		bad("grpc_listen", "a path of %d bytes is longer than the %d that a UNIX socket may have; write a shorter one", len(path), maxSocketPath)
	}
	if c.Auth == AuthMTLS || c.TLSCert != "" {
		bad("grpc_listen", "a UNIX socket carries no TLS; remove tls_cert and auth mtls, or listen on host:port")
	}
	if here, err := auth.Loopback(c.DataListen); c.DataListen != off && err == nil && !here {
		bad("data_listen", "only this host reaches grpc_listen, where clients begin; write %q or a loopback address", off)
	}
	if shm, err := filepath.Abs(c.ShmSocket); c.ShmSocket != off && err == nil && shm == path {
		bad("shm_socket", "is the socket of grpc_listen; write another path, or %q for none", off)
	}
}

func (c *Config) validateSocket(bad badFunc) {
	if c.ShmSocket == off {
		return
	}
	if c.Auth == AuthMTLS {
		bad("shm_socket", "with auth mtls nobody can say there who they are; set shm_socket to %q, or auth to token", off)
	}
	if path, err := filepath.Abs(c.ShmSocket); err != nil || len(path) > maxSocketPath {
		bad("shm_socket", "a path of %d bytes is longer than the %d that a UNIX socket may have; write a shorter one, or %q for none", len(path), maxSocketPath, off)
	}
}

// validateDisk wants a place for the disk tier and a size that it can work with.
func (c *Config) validateDisk(bad badFunc) {
	switch {
	case c.DiskBytes == 0:
	case c.DataDir == "":
		bad("disk", "a disk tier needs a data directory: its pages are kept in DATA/pages; set data")
	case c.DiskBytes < minDiskBytes || c.DiskBytes > anyBytes:
		bad("disk", "%s is outside %s to %s", sysmem.Bytes(c.DiskBytes), sysmem.Bytes(minDiskBytes), sysmem.Bytes(anyBytes))
	}
}

// listenPolicy is what the listeners of pages have to offer to those who can reach them.
func (c *Config) listenPolicy() auth.ListenPolicy {
	return auth.ListenPolicy{TLS: c.TLSCert != "", Mode: c.authMode(), Insecure: c.Insecure}
}

func (c *Config) authMode() auth.Mode {
	switch c.Auth {
	case AuthToken:
		return auth.Tokens
	case AuthMTLS:
		return auth.MTLS
	}
	return auth.None
}

func (c *Config) validateAuth(bad badFunc) {
	switch c.Auth {
	case AuthNone, AuthToken:
		if c.Auth == AuthToken && c.DataDir == "" {
			bad("data", "auth token needs a data directory: tokens are kept there, and the operator's first one is written there")
		}
		if c.TLSClientCA != "" {
			bad("tls_client_ca", "is only used with auth mtls; remove it or set auth to mtls")
		}
	case AuthMTLS:
		if c.TLSClientCA == "" || c.TLSCert == "" {
			bad("auth", "mtls needs tls_cert, tls_key and tls_client_ca")
		}
	default:
		bad("auth", "%q is no mode; write one of none, token, mtls", c.Auth)
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		bad("tls_cert", "tls_cert and tls_key go together; set both or neither")
	}
}

func (c *Config) validateSizes(bad badFunc) {
	size := func(key string, n, least, most uint64) {
		if n < least || n > most {
			bad(key, "%s is outside %s to %s", sysmem.Bytes(n), sysmem.Bytes(least), sysmem.Bytes(most))
		}
	}
	count := func(key string, n, most int) {
		if n < 1 || n > most {
			bad(key, "%d is outside 1 to %d", n, most)
		}
	}
	span := func(key string, d, least, most time.Duration) {
		if d < least || d > most {
			bad(key, "%v is outside %v to %v", d, least, most)
		}
	}
	size("memory", c.MemoryBytes, minMemoryBytes, anyBytes)
	size("metadata", c.MetadataBytes, c.minMetadata(), max(c.minMetadata(), c.MemoryBytes/2))
	size("max_chunk", c.MaxChunkBytes, minChunkBytes, maxMaxChunkBytes)
	size("max_batch", c.MaxBatchBytes, minChunkBytes, anyBytes)
	size("record_limit", c.RecordLimitBytes, mib, anyBytes)
	count("shards", c.Shards, maxShards)
	count("max_keys", c.MaxKeys, maxMaxKeys)
	span("drain_timeout", c.DrainTimeout, time.Millisecond, time.Hour)
	span("max_lease", c.MaxLease, time.Millisecond, maxMaxLease)
	span("default_lease", c.DefaultLease, time.Millisecond, c.MaxLease)
}

// messageBytes is room for the headers of a batch of small extents, or for all keys of a call.
func messageBytes(c *Config) int { return max(minMessageBytes, c.MaxKeys*2*longestHashBytes) }

// checkListen wants host:port.
func checkListen(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q is no address; write host:port, for example %s", address, defaultGRPCListen)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q is no port; write a number from 0 to 65535", port)
	}
	return nil
}
