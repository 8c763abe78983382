package daemon

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quire-kv/quire/evict"
)

const gib = 1 << 30

func writeFile(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "quire.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// describe is what --check-config prints.
func describe(t testing.TB, l *Loaded, availableBytes uint64) string {
	t.Helper()
	var b bytes.Buffer
	resolved := l.Config.Resolve(availableBytes)
	if err := l.Describe(&b, &resolved); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestEveryFieldOfConfigCanBeSet(t *testing.T) {
	if n := reflect.TypeFor[Config]().NumField(); n != len(Fields()) {
		t.Fatalf("Config has %d fields, %d can be set", n, len(Fields()))
	}
	// Each field writes a place of its own: setting one changes one.
	for _, f := range Fields() {
		var c Config
		text := "7"
		switch {
		case f.Bool:
			text = strconv.FormatBool(!f.On)
		case strings.Contains(f.Usage, "`time`"):
			text = "7s"
		}
		if err := f.value(&c).set(text); err != nil {
			t.Fatalf("%s: %v", f.Key, err)
		}
		changed := 0
		for i := range reflect.TypeFor[Config]().NumField() {
			if !reflect.ValueOf(c).Field(i).IsZero() {
				changed++
			}
		}
		if changed != 1 {
			t.Errorf("setting %s changed %d fields", f.Key, changed)
		}
	}
}

func TestFlagBeatsEnvironmentBeatsFileBeatsDefault(t *testing.T) {
	file := writeFile(t, "shards: 5\nmax_keys: 50\nlog_level: warn\n")
	env := []string{"QUIRE_SHARDS=6", "QUIRE_MAX_KEYS=60", "HOME=/"}
	l, err := Load(Sources{File: file, Env: env, Flags: map[string]string{"shards": "7"}})
	if err != nil {
		t.Fatal(err)
	}
	c := l.Config.Resolve(gib)
	if c.Shards != 7 || c.MaxKeys != 60 || c.LogLevel != "warn" || c.LogFormat != "text" {
		t.Errorf("got shards %d, max_keys %d, log_level %s, log_format %s", c.Shards, c.MaxKeys, c.LogLevel, c.LogFormat)
	}
	text := describe(t, l, gib)
	for _, want := range []string{"# flag --shards\n", "# environment QUIRE_MAX_KEYS\n", "# file " + file + ", line 3\n", "log_format: text"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestWhatCannotBeReadNamesThePlaceAndTheCure(t *testing.T) {
	for _, c := range []struct{ name, file, env, flag, want string }{
		{name: "unknown key", file: "grcp_listen: x\n", want: `line 1: unknown key "grcp_listen"; did you mean grpc_listen?`},
		{name: "unlike any key", file: "shards: 4\ncolour: red\n", want: `line 2: unknown key "colour"`},
		{name: "twice", file: "shards: 4\nshards: 5\n", want: `"shards"`},
		{name: "a list", file: "shards: [1, 2]\n", want: "line 1: shards must be one value"},
		{name: "no map", file: "- a\n", want: "line 1: want lines of the form key: value"},
		{name: "no yaml", file: "a: [\n", want: "quire.yaml"},
		{name: "bad number", file: "shards: four\n", want: `line 1: shards: "four" is no number`},
		{name: "bad size", env: "QUIRE_MEMORY=lots", want: "environment QUIRE_MEMORY: memory: "},
		{name: "zero size", env: "QUIRE_MEMORY=0", want: "is no bound"},
		{name: "bad time", flag: "never", want: `flag --drain-timeout: drain_timeout: "never" is no time`},
		{name: "no file", file: "-", want: "no such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := Sources{Flags: map[string]string{}}
			switch {
			case c.file == "-":
				s.File = filepath.Join(t.TempDir(), "none.yaml")
			case c.file != "":
				s.File = writeFile(t, c.file)
			}
			if c.env != "" {
				s.Env = []string{c.env}
			}
			if c.flag != "" {
				s.Flags["drain_timeout"] = c.flag
			}
			if _, err := Load(s); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestUnknownEnvironmentIsAWarning(t *testing.T) {
	l, err := Load(Sources{Env: []string{"QUIRE_MEMROY=1GiB", "QUIRE_SERVICE_HOST=10.0.0.1", "QUIRE_SERVER=a:1"}})
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(l.Warnings, "\n")
	if len(l.Warnings) != 2 || !strings.Contains(text, "QUIRE_MEMROY sets nothing; did you mean QUIRE_MEMORY?") {
		t.Errorf("warnings: %q", text)
	}
}

func TestValidateSaysWhatToWrite(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   string // empty: valid
	}{
		{"defaults", func(*Config) {}, ""},
		{"open to others", func(c *Config) { c.GRPCListen = "0.0.0.0:7420" }, "--insecure"},
		{"all interfaces by omission", func(c *Config) { c.GRPCListen = ":7420" }, "--insecure"},
		{"token without data", func(c *Config) { c.Auth = AuthToken }, "data: auth token needs a data directory"},
		{"token without TLS", func(c *Config) { c.GRPCListen, c.Auth, c.DataDir = "0.0.0.0:7420", AuthToken, "d" }, "TLS certificate"},
		{"written out", func(c *Config) { c.GRPCListen, c.Insecure = "0.0.0.0:7420", true }, ""},
		{"token with TLS", func(c *Config) {
			c.GRPCListen, c.Auth, c.TLSCert, c.TLSKey, c.DataDir = "0.0.0.0:7420", AuthToken, "a", "b", "d"
		}, ""},
		{"mtls without authority", func(c *Config) { c.Auth, c.TLSCert, c.TLSKey = AuthMTLS, "a", "b" }, "tls_client_ca"},
		{"half a pair", func(c *Config) { c.TLSCert = "a" }, "set both or neither"},
		{"idle authority", func(c *Config) { c.TLSClientCA = "a" }, "only used with auth mtls"},
		{"mode", func(c *Config) { c.Auth = "basic" }, "none, token, mtls"},
		{"address", func(c *Config) { c.GRPCListen = "7420" }, "write host:port"},
		{"port", func(c *Config) { c.GRPCListen = "127.0.0.1:70000" }, "is no port"},
		{"socket", func(c *Config) { c.GRPCListen, c.DataListen = "unix:/run/q", "off" }, ""},
		{"relative socket", func(c *Config) { c.GRPCListen = "unix:q" }, "write for example unix:/run/quire/quire.sock"},
		{"no socket", func(c *Config) { c.GRPCListen = "unix:" }, "is no absolute path"},
		{"long gRPC socket", func(c *Config) { c.GRPCListen = "unix:/" + strings.Repeat("x", 103) }, "grpc_listen: a path of 104 bytes"},
		{"socket with TLS", func(c *Config) { c.GRPCListen, c.TLSCert, c.TLSKey = "unix:/q", "a", "b" }, "carries no TLS"},
		{"socket with data connections beyond it", func(c *Config) { c.GRPCListen, c.DataListen = "unix:/q", "0.0.0.0:7422" }, "data_listen: only this host"},
		{"one socket for both", func(c *Config) { c.GRPCListen, c.ShmSocket = "unix:/q", "/q" }, "shm_socket: is the socket of grpc_listen"},
		{"admin off", func(c *Config) { c.AdminListen = "off" }, ""},
		{"admin address", func(c *Config) { c.AdminListen = "x" }, `or "off" for none`},
		{"data off", func(c *Config) { c.DataListen = "off" }, ""},
		{"data address", func(c *Config) { c.DataListen = "x" }, "data_listen: \"x\" is no address"},
		{"data open to others", func(c *Config) { c.DataListen = "0.0.0.0:7422" }, "data_listen: refusing"},
		{"socket off", func(c *Config) { c.ShmSocket = "off" }, ""},
		{"long socket", func(c *Config) { c.ShmSocket = "/" + strings.Repeat("x", 103) }, "shm_socket: a path of 104 bytes"},
		{"socket without callers", func(c *Config) {
			c.Auth, c.TLSCert, c.TLSKey, c.TLSClientCA, c.ShmSocket = AuthMTLS, "a", "b", "c", "/s"
		}, "with auth mtls"},
		{"disk", func(c *Config) { c.DataDir, c.DiskBytes = "d", 1<<40 }, ""},
		{"disk without data", func(c *Config) { c.DiskBytes = 1 << 40 }, "disk: a disk tier needs a data directory"},
		{"small disk", func(c *Config) { c.DataDir, c.DiskBytes = "d", 1<<20 }, "disk: 1MiB is outside 64MiB to 1PiB"},
		{"small", func(c *Config) { c.MemoryBytes = 1 << 20 }, "memory: "},
		{"shards", func(c *Config) { c.Shards = 1000 }, "shards: 1000 is outside 1 to 256"},
		{"eviction", func(c *Config) { c.Eviction = "fifo" }, `eviction: "fifo" is no policy; write one of [vbr lru]`},
		{"prefill", func(c *Config) { c.PrefillFLOPS = 1e12 }, ""},
		{"metadata of many shards", func(c *Config) { c.Shards, c.MetadataBytes = 256, 64*mib }, "metadata: 64MiB is outside 128MiB to"},
		{"metadata of many shards, lru", func(c *Config) { c.Shards, c.MetadataBytes, c.Eviction = 256, 64*mib, evictLRU }, ""},
		{"lease", func(c *Config) { c.DefaultLease = time.Hour }, "default_lease: 1h0m0s is outside 1ms to 1m0s"},
		{"level", func(c *Config) { c.LogLevel = "loud" }, "log_level"},
		{"collector", func(c *Config) { c.OTLPEndpoint = "collector:4317" }, "http://127.0.0.1:4317"},
		{"headers", func(c *Config) { c.OTLPHeaders = "secret" }, "otlp_headers: header 1 is no key=value"},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := Config{}.Resolve(8 * gib)
			c.change(&config)
			err := config.Validate()
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	l, err := Load(Sources{Flags: map[string]string{"otlp_headers": "authorization=hunter2"}})
	if err != nil {
		t.Fatal(err)
	}
	if text := describe(t, l, gib); strings.Contains(text, "hunter2") || !strings.Contains(text, "otlp_headers: (set)") {
		t.Error(text)
	}
	bad := l.Config.Resolve(gib)
	bad.OTLPHeaders = "hunter2"
	if err := bad.Validate(); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Error(err)
	}
}

func TestDefaultsFollowTheMachine(t *testing.T) {
	for _, available := range []uint64{0, 64 << 20, 8 * gib, 1 << 44} {
		c := Config{}.Resolve(available)
		if err := c.Validate(); err != nil {
			t.Errorf("%d bytes available: %v", available, err)
		}
		if available >= gib && c.MemoryBytes+c.MetadataBytes > available*2/3 {
			t.Errorf("%d bytes available: %d and %d are taken", available, c.MemoryBytes, c.MetadataBytes)
		}
	}
}

// TestDefaultsFollowEachOther: where the other listeners are, and what the index of a disk needs.
func TestDefaultsFollowEachOther(t *testing.T) {
	for _, c := range []struct {
		grpc, dataDir, data, shm string
	}{
		{"", "", "127.0.0.1:7422", "off"},
		{"127.0.0.1:0", "/var/lib/quire", "127.0.0.1:0", "/var/lib/quire/quire.sock"},
		{"0.0.0.0:9000", "d", "0.0.0.0:7422", "d/quire.sock"},
		{"[::1]:7420", "", "[::1]:7422", "off"},
		{"unix:/run/q.sock", "", "off", "/run/q.sock.shm"},
		{"unix:/run/q.sock", "/var/lib/quire", "off", "/run/q.sock.shm"},
		{"unix:/" + strings.Repeat("x", 100), "/var/lib/quire", "off", "off"},
	} {
		got := Config{GRPCListen: c.grpc, DataDir: c.dataDir}.Resolve(gib)
		if got.DataListen != c.data || got.ShmSocket != c.shm {
			t.Errorf("%+v: data_listen %s, shm_socket %s", c, got.DataListen, got.ShmSocket)
		}
	}
	for _, c := range []struct {
		memory, disk uint64
		eviction     string
		want         uint64
	}{
		{gib, 0, "", 35 << 20},         // 65,536 pages of 16 KiB
		{gib, 64 * gib, "", 295 << 20}, // and 524,288 of 128 KiB
		{gib, 1024 * gib, "", gib / 2}, // more than memory can hold: its half
		{16 << 20, 1 << 40, "", 8 << 20},
		{gib, 64 * gib, evictLRU, 92 << 20},
	} {
		got := Config{MemoryBytes: c.memory, DiskBytes: c.disk, Eviction: c.eviction}.Resolve(0)
		if got.MetadataBytes != c.want {
			t.Errorf("memory %d, disk %d, %q: metadata %d, want %d", c.memory, c.disk, c.eviction, got.MetadataBytes>>20, c.want>>20)
		}
	}
}

// TestMetadataHoldsWhatItIsFor: records and policies of as many pages as the limits allow keep within metadata, and take
// most of it.
func TestMetadataHoldsWhatItIsFor(t *testing.T) {
	for _, eviction := range evictions {
		for _, shards := range []int{1, 4, 256} {
			for _, metadata := range []uint64{0, mib, 64 * mib, gib, 64 * gib} {
				c := Config{Eviction: eviction, Shards: shards, MetadataBytes: metadata}
				c.MetadataBytes = max(c.MetadataBytes, c.minMetadata())
				l := c.limits()
				taken := l.Pages*(64+10) + l.Extents*32
				if eviction == evictLRU {
					taken += l.Pages * lruPageBytes
				} else {
					taken += l.Pages*evict.VBRPageBytes + uint64(shards)*c.sampleBytes()
					taken += min(l.Pages*evict.VBRGhostsPageBytes+uint64(shards)*evict.VBRLeastGhostsBytes, uint64(shards)*evict.VBRMostGhostsBytes)
				}
				if taken > c.MetadataBytes || taken < c.MetadataBytes*9/10 {
					t.Errorf("%+v: %+v take %d", c, l, taken)
				}
			}
		}
	}
}

// FuzzConfigFile: whatever a file holds, it is read or refused; what is read and printed reads back the same.
func FuzzConfigFile(f *testing.F) {
	f.Add("memory: 16GiB\nauth: token\n")
	f.Add("shards: 4\nshards: 5\n")
	f.Add("data: \"/var/lib/quire # not a comment\"\n")
	f.Add("data: d\ndisk: 1TiB\nwrite_behind: no\nshm_socket: off\n")
	f.Add("default_lease: 1h30m\ninsecure: yes\nmax_chunk: 65537\n")
	f.Add("&a [*a]")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := Load(Sources{File: writeFile(t, text)})
		if err != nil || l.Config.OTLPHeaders != "" { // secrets are not printed
			return
		}
		first := l.Config.Resolve(gib)
		again, err := Load(Sources{File: writeFile(t, describe(t, l, gib))})
		if err != nil {
			t.Fatalf("what --check-config prints does not read back: %v\n%s", err, describe(t, l, gib))
		}
		if second := again.Config.Resolve(gib); first != second {
			t.Fatalf("%+v became %+v", first, second)
		}
	})
}
