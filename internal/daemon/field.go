package daemon

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quire-kv/quire/internal/sysmem"
)

// Field is one thing that can be set. Its key names it everywhere: in the file as it is, as a flag with dashes
// (grpc_listen: --grpc-listen), in the environment in capitals after QUIRE_ (QUIRE_GRPC_LISTEN).
type Field struct {
	Key    string
	Usage  string // unit, effect, default
	Bool   bool   // the flag needs no value
	On     bool   // the default of a Bool
	Secret bool   // printed as "(set)"
	value  func(*Config) value
}

// Flag is the field's flag without its dashes.
func (f Field) Flag() string { return strings.ReplaceAll(f.Key, "_", "-") }

// Env is the field's environment variable.
func (f Field) Env() string { return envPrefix + strings.ToUpper(f.Key) }

// value reads and writes one field of a Config as text: the same parser for file, environment and flags.
type value struct {
	set func(string) error
	get func() string
}

var (
	logLevels  = []string{"debug", "info", "warn", "error"}
	logFormats = []string{"text", "json"}
)

// Fields lists every field in the order of --check-config and the help.
func Fields() []Field {
	return []Field{
		text("data", "`directory` of registry and disk tier; empty keeps all in memory, and a restart forgets it", func(c *Config) *string { return &c.DataDir }),
		text("grpc_listen", "`host:port` of gRPC, port 0 takes a free one; or unix:/path for callers on this host alone (default "+defaultGRPCListen+")", func(c *Config) *string { return &c.GRPCListen }),
		text("data_listen", "`host:port` of data connections, which carry pages faster than gRPC, or off (default port "+defaultDataPort+" on the host of grpc_listen; off when that is a UNIX socket)", func(c *Config) *string { return &c.DataListen }),
		text("shm_socket", "`path` of the UNIX socket over which clients on this host share memory, or off (default quire.sock in data, or beside the UNIX socket of grpc_listen with "+shmSuffix+" behind its name; off with auth mtls)", func(c *Config) *string { return &c.ShmSocket }),
		text("admin_listen", "`host:port` of health, metrics and profiles, or off; profiles only on loopback (default "+defaultAdminListen+")", func(c *Config) *string { return &c.AdminListen }),
		bound("memory", "`size` of all that is held in host memory, index included, hard bound, for example 16GiB (default 60 % of what machine and cgroup allow)", func(c *Config) *uint64 { return &c.MemoryBytes }),
		bound("metadata", "`size` of the index of what is held, part of memory, hard bound (default enough for memory full of 16 KiB extents and a disk full of 128 KiB ones)", func(c *Config) *uint64 { return &c.MetadataBytes }),
		size("disk", "`size` of the disk tier in data, its own index included, hard bound; 0 for none (default none)", func(c *Config) *uint64 { return &c.DiskBytes }),
		onUnless("write_behind", "write pages in memory to the disk tier in the background too, so that they outlive eviction and restart; without it only durable publications", func(c *Config) *bool { return &c.NoWriteBehind }),
		text("eviction", "`policy` by which pages go when a tier is full: vbr, those whose bytes are expected to save least recomputing, or lru, those used longest ago (default vbr)", func(c *Config) *string { return &c.Eviction }),
		seed("eviction_seed", "`number` from which follows what eviction draws and which pages it watches, so that quire trace play can predict it page by page; for trials, not where strangers publish; 0 takes another at each start (default 0)", func(c *Config) *uint64 { return &c.EvictionSeed }),
		number("prefill_flops", "`number` of operations a second that the engines together do in prefill; what they could recompute while pages are loaded from disk is taken off what those are worth there (default 3.16e15, eight H100 at 40 %)", func(c *Config) *float64 { return &c.PrefillFLOPS }),
		count("shards", "`number` of independent parts with a lock each; more helps many writers (default 4)", func(c *Config) *int { return &c.Shards }),
		text("auth", "`mode` of authentication: none, token or mtls (default none, on loopback only)", func(c *Config) *string { return (*string)(&c.Auth) }),
		text("tls_cert", "PEM `file` of the server's certificate", func(c *Config) *string { return &c.TLSCert }),
		text("tls_key", "PEM `file` of the server's key", func(c *Config) *string { return &c.TLSKey }),
		text("tls_client_ca", "PEM `file` of the authority that signs client certificates (auth mtls)", func(c *Config) *string { return &c.TLSClientCA }),
		boolean("insecure", "allow service beyond loopback without TLS or authentication", func(c *Config) *bool { return &c.Insecure }),
		text("record", "`path` of a recording of which pages are asked for and when, under names that tell nothing, for quire replay; where there is one of that name, it stays and the new one gets a number (default none)", func(c *Config) *string { return &c.Record }),
		bound("record_limit", "`size` at which recording stops, all recordings of that name together (default 1GiB)", func(c *Config) *uint64 { return &c.RecordLimitBytes }),
		text("log_level", "`level`: debug, info, warn or error (default info)", func(c *Config) *string { return &c.LogLevel }),
		text("log_format", "`format`: text or json (default text)", func(c *Config) *string { return &c.LogFormat }),
		text("otlp_endpoint", "`URL` of an OTLP/gRPC collector for traces, for example http://127.0.0.1:4317; empty sends none", func(c *Config) *string { return &c.OTLPEndpoint }),
		secret(text("otlp_headers", "`key=value,...` sent to the collector", func(c *Config) *string { return &c.OTLPHeaders })),
		span("drain_timeout", "`time` that calls may take to finish after a stop was asked for (default 30s)", func(c *Config) *time.Duration { return &c.DrainTimeout }),
		span("default_lease", "`time` of a lease whose caller names none (default 10s)", func(c *Config) *time.Duration { return &c.DefaultLease }),
		span("max_lease", "longest `time` that a lease is granted for at once (default 1m)", func(c *Config) *time.Duration { return &c.MaxLease }),
		count("max_keys", "`number` of keys of one request (default 16384)", func(c *Config) *int { return &c.MaxKeys }),
		bound("max_batch", "payload `size` of one publish or fetch (default 1GiB, memory at most)", func(c *Config) *uint64 { return &c.MaxBatchBytes }),
		bound("max_chunk", "payload `size` of one message of a stream (default 1MiB)", func(c *Config) *uint64 { return &c.MaxChunkBytes }),
	}
}

func secret(f Field) Field {
	f.Secret = true
	return f
}

func text(key, usage string, at func(*Config) *string) Field {
	return Field{Key: key, Usage: usage, value: func(c *Config) value {
		return value{
			set: func(s string) error { *at(c) = s; return nil },
			get: func() string { return *at(c) },
		}
	}}
}

func boolean(key, usage string, at func(*Config) *bool) Field {
	return Field{Key: key, Usage: usage, Bool: true, value: func(c *Config) value {
		return value{
			set: func(s string) (err error) {
				if *at(c), err = strconv.ParseBool(s); err != nil {
					return fmt.Errorf("%q is neither true nor false", s)
				}
				return nil
			},
			get: func() string { return strconv.FormatBool(*at(c)) },
		}
	}}
}

// onUnless is a boolean that is on unless the config says that it is off.
func onUnless(key, usage string, isOff func(*Config) *bool) Field {
	return Field{Key: key, Usage: usage, Bool: true, On: true, value: func(c *Config) value {
		return value{
			set: func(s string) error {
				on, err := strconv.ParseBool(s)
				if err != nil {
					return fmt.Errorf("%q is neither true nor false", s)
				}
				*isOff(c) = !on
				return nil
			},
			get: func() string { return strconv.FormatBool(!*isOff(c)) },
		}
	}}
}

// number is above 0, and may be written as 3e15.
func number(key, usage string, at func(*Config) *float64) Field {
	return Field{Key: key, Usage: usage, value: func(c *Config) value {
		return value{
			set: func(s string) (err error) {
				if *at(c), err = strconv.ParseFloat(s, 64); err != nil || !(*at(c) > 0) || math.IsInf(*at(c), 0) {
					return fmt.Errorf("%q is no number above 0", s)
				}
				return nil
			},
			get: func() string { return strconv.FormatFloat(*at(c), 'g', -1, 64) },
		}
	}}
}

func count(key, usage string, at func(*Config) *int) Field {
	return Field{Key: key, Usage: usage, value: func(c *Config) value {
		return value{
			set: func(s string) (err error) {
				if *at(c), err = strconv.Atoi(s); err != nil || *at(c) == 0 {
					return fmt.Errorf("%q is no number from 1", s)
				}
				return nil
			},
			get: func() string { return strconv.Itoa(*at(c)) },
		}
	}}
}

// seed is any whole number.
func seed(key, usage string, at func(*Config) *uint64) Field {
	return Field{Key: key, Usage: usage, value: func(c *Config) value {
		return value{
			set: func(s string) (err error) {
				if *at(c), err = strconv.ParseUint(s, 10, 64); err != nil {
					return fmt.Errorf("%q is no number from 0", s)
				}
				return nil
			},
			get: func() string { return strconv.FormatUint(*at(c), 10) },
		}
	}}
}

// size is a number of bytes.
func size(key, usage string, at func(*Config) *uint64) Field {
	return Field{Key: key, Usage: usage, value: func(c *Config) value {
		return value{
			set: func(s string) error {
				n, err := sysmem.ParseBytes(s)
				*at(c) = uint64(n)
				return err
			},
			get: func() string { return sysmem.Bytes(*at(c)).String() },
		}
	}}
}

// bound is a size that cannot be nothing.
func bound(key, usage string, at func(*Config) *uint64) Field {
	f := size(key, usage, at)
	free := f.value
	f.value = func(c *Config) value {
		v := free(c)
		return value{get: v.get, set: func(s string) error {
			err := v.set(s)
			if err == nil && *at(c) == 0 {
				err = fmt.Errorf("%q is no bound; write a size such as 16GiB", s)
			}
			return err
		}}
	}
	return f
}

func span(key, usage string, at func(*Config) *time.Duration) Field {
	return Field{Key: key, Usage: usage, value: func(c *Config) value {
		return value{
			set: func(s string) (err error) {
				if *at(c), err = time.ParseDuration(s); err != nil || *at(c) <= 0 {
					return fmt.Errorf("%q is no time; write for example 30s or 5m", s)
				}
				return nil
			},
			get: func() string { return (*at(c)).String() },
		}
	}}
}

// keys of fields, sorted.
func keys(fields []Field) []string {
	all := make([]string, len(fields))
	for i, f := range fields {
		all[i] = f.Key
	}
	slices.Sort(all)
	return all
}

// parseHeaders reads key=value,key=value; nothing gives none.
func parseHeaders(s string) (map[string]string, error) {
	headers := map[string]string{}
	if s == "" {
		return headers, nil
	}
	for i, pair := range strings.Split(s, ",") {
		k, v, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok || k == "" {
			return nil, fmt.Errorf("header %d is no key=value", i+1) // its text may be a secret
		}
		headers[k] = v
	}
	return headers, nil
}
