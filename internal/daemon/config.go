package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/quire-kv/quire/internal/auth"
	"github.com/quire-kv/quire/internal/sysmem"
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
	DataDir     string // holds the registry; empty: it is in memory and a restart forgets it
	GRPCListen  string // host:port; port 0 takes a free one
	AdminListen string // host:port of health, metrics and profiles; "off" for none

	MemoryBytes   uint64 // of all that is held in host memory, MetadataBytes included: hard bound
	MetadataBytes uint64 // of the index of what is held, hard bound
	Shards        int    // independent parts of the store, each with a lock of its own

	Auth        AuthMode
	TLSCert     string // PEM file of the server's certificate
	TLSKey      string // PEM file of its key
	TLSClientCA string // PEM file of the authority of client certificates (mtls)
	Insecure    bool   // allows plain or unauthenticated service beyond loopback

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
	adminOff             = "off"
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
	minChunkBytes        = 64 << 10 // one piece
	maxMaxChunkBytes     = 4 << 20
	minMessageBytes      = 32 << 20
	longestHashBytes     = 64

	// memoryShare of what machine and cgroup allow goes to pages: the rest is for the index, the runtime, the kernel's
	// page cache and the neighbours.
	memoryShare = 0.6
	// minMemoryBytes holds one slab of the smallest kind and room to turn it over.
	minMemoryBytes = 16 << 20
	// Index bytes at their documented bounds: 100 of a page and 32 of each extent; pages have two extents on average
	// at most (a TP8 writer's have eight, but then they are large). Memory full of 4 KiB slots with a page each is
	// the worst case, and what the default is enough for.
	extentsPerPage       = 2
	metadataPerPageBytes = 100 + 32*extentsPerPage
	slotBytes            = 4096
	minMetadataBytes     = mib

	mib = 1 << 20 // defaults are whole ones: people read them
)

// Resolve is c with every default filled from what the machine has. It does not validate.
func (c Config) Resolve(availableBytes uint64) Config {
	c.GRPCListen = cmp.Or(c.GRPCListen, defaultGRPCListen)
	c.AdminListen = cmp.Or(c.AdminListen, defaultAdminListen)
	c.MemoryBytes = cmp.Or(c.MemoryBytes, max(minMemoryBytes, uint64(memoryShare*float64(availableBytes))&^(mib-1)))
	c.MetadataBytes = cmp.Or(c.MetadataBytes, max(minMetadataBytes, (c.MemoryBytes/slotBytes*metadataPerPageBytes+mib-1)&^(mib-1)))
	c.Shards = cmp.Or(c.Shards, defaultShards)
	c.Auth = cmp.Or(c.Auth, AuthNone)
	c.LogLevel = cmp.Or(c.LogLevel, "info")
	c.LogFormat = cmp.Or(c.LogFormat, "text")
	c.DrainTimeout = cmp.Or(c.DrainTimeout, defaultDrainTimeout)
	c.MaxLease = cmp.Or(c.MaxLease, defaultMaxLease)
	c.DefaultLease = cmp.Or(c.DefaultLease, min(defaultDefaultLease, c.MaxLease))
	c.MaxKeys = cmp.Or(c.MaxKeys, defaultMaxKeys)
	c.MaxBatchBytes = cmp.Or(c.MaxBatchBytes, min(defaultMaxBatchBytes, c.MemoryBytes))
	c.MaxChunkBytes = cmp.Or(c.MaxChunkBytes, defaultMaxChunkBytes)
	return c
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
	if err := checkListen(c.GRPCListen); err != nil {
		bad("grpc_listen", "%v", err)
		return
	}
	if c.AdminListen != adminOff {
		if err := checkListen(c.AdminListen); err != nil {
			bad("admin_listen", "%v; or %q for none", err, adminOff)
		}
	}
	if err := c.listenPolicy().Check(c.GRPCListen); err != nil {
		bad("grpc_listen", "%v", err)
	}
}

// listenPolicy is what the gRPC listener has to offer to those who can reach it.
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
	const anyBytes = 1 << 50
	size("memory", c.MemoryBytes, minMemoryBytes, anyBytes)
	size("metadata", c.MetadataBytes, minMetadataBytes, max(minMetadataBytes, c.MemoryBytes/2))
	size("max_chunk", c.MaxChunkBytes, minChunkBytes, maxMaxChunkBytes)
	size("max_batch", c.MaxBatchBytes, minChunkBytes, anyBytes)
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
