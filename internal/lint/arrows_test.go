package lint

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// room is one package, or a family of packages, and what it may import of ours.
type room struct {
	may []string // directly; "..." at the end stands for what is below, "*" for everything
	// never lists what must not be reachable, however far away: standard library, ours and others.
	never []string
	why   string
}

// noWorld is what a package of pure decisions must not reach: it could not be replayed from a seed.
var noWorld = []string{"net", "net/http", "os/exec", "os/signal", "google.golang.org/grpc", "google.golang.org/protobuf",
	"golang.org/x/sync", "github.com/cockroachdb/pebble", "github.com/prometheus"}

// noNetwork is what a node's runtime must not reach.
var noNetwork = []string{"net", "net/http", "google.golang.org/grpc", "google.golang.org/protobuf", "go.etcd.io"}

// rooms is the one map of arrows. A package that is not in it does not pass: say what it may import, and why.
var rooms = map[string]room{
	"reason":             {never: noWorld, why: "everyone's word list; imports nothing"},
	"kernels":            {never: noWorld, why: "bytes only; equal results for Go, SIMD and CUDA"},
	"store/page":         {never: noWorld, why: "what a page is; imports nothing of ours"},
	"evict":              {may: []string{"internal/offheap"}, never: noWorld, why: "pure policy"},
	"evict/classic":      {may: []string{"evict"}, never: noWorld, why: "the policies that ours is measured against"},
	"evict/...":          {may: []string{"evict", "evict/...", "internal/offheap"}, never: noWorld, why: "policies and their replay"},
	"internal/clock":     {why: "the only source of time"},
	"internal/invariant": {why: "checks that tests turn on"},
	"internal/offheap":   {never: noWorld, why: "memory for records that the garbage collector need not see"},
	"internal/suggest":   {never: noWorld, why: "pure"},
	"internal/sysmem":    {why: "asks the machine, nobody else"},
	"internal/lint":      {why: "tests only"},

	"internal/pebblefuse": {why: "what every Pebble store of ours stands behind"},
	"internal/memfs":      {why: "tests only"},

	"namespace":                {may: []string{"reason", "store/page", "namespace/internal/..."}, never: noNetwork, why: "identity: pure decisions over a small backend"},
	"namespace/internal/...":   {may: []string{"namespace"}, never: noNetwork, why: "parts of namespace"},
	"namespace/memregistry":    {may: []string{"namespace", "namespace/internal/..."}, never: noNetwork, why: "a backend: the model"},
	"namespace/pebbleregistry": {may: []string{"internal/pebblefuse", "namespace", "namespace/internal/..."}, why: "a backend: one node"},
	"namespace/registrytest":   {may: []string{"namespace", "namespace/...", "reason", "store/page"}, why: "the suite that every backend passes"},

	"store/core":          {may: []string{"evict", "internal/clock", "internal/invariant", "internal/offheap", "reason", "store/page"}, never: noWorld, why: "one shard's decisions: pure, run by runtime, cluster and simulator"},
	"store/tier":          {may: []string{"internal/clock", "store/page"}, never: noNetwork, why: "the driver contract"},
	"store/tier/...":      {may: []string{"store/tier", "store/page", "internal/clock", "internal/invariant"}, never: noNetwork, why: "the suite that every tier passes"},
	"store/host":          {may: []string{"store/tier", "store/page", "store/shm", "internal/invariant", "internal/clock"}, never: noNetwork, why: "a tier"},
	"store/shm":           {never: noNetwork, why: "memory that a node and clients of its host share: both ends"},
	"store/shm/socket":    {why: "a UNIX socket that carries descriptors: both ends"},
	"store/disk":          {may: []string{"internal/clock", "internal/invariant", "internal/pebblefuse", "store/disk/index", "store/page", "store/tier"}, why: "a tier that outlives the process"},
	"store/disk/index":    {may: []string{"store/page", "internal/clock", "internal/pebblefuse"}, why: "where the disk tier's regions are"},
	"store":               {may: []string{"evict", "evict/...", "internal/clock", "internal/invariant", "kernels", "reason", "store/core", "store/page", "store/tier"}, never: noNetwork, why: "one node's runtime: no network, no registry, no proto"},
	"store/rpc":           {may: []string{"namespace", "proto/quire/v1", "reason", "store/core", "store/page"}, why: "what both ends of the wire share: codec and error map"},
	"store/server":        {may: []string{"evict", "internal/auth", "internal/clock", "internal/cost", "namespace", "proto/quire/v1", "reason", "store", "store/core", "store/page", "store/rpc"}, why: "the gRPC face of one node"},
	"store/client":        {may: []string{"internal/auth", "internal/clock", "kernels", "namespace", "proto/quire/v1", "reason", "store/core", "store/frame", "store/page", "store/rpc", "store/shm", "store/shm/socket"}, why: "what Go programs import: no server, no store"},
	"store/frame":         {may: []string{"internal/clock", "proto/quire/v1", "store/rpc"}, why: "the page service over plain byte streams: both ends"},
	"store/server/data":   {may: []string{"internal/auth", "store/frame", "store/server"}, why: "the frames of one node over TCP"},
	"store/server/record": {may: []string{"internal/clock", "store/core", "store/page", "store/server"}, why: "writes down what is asked of a node"},
	"store/server/shm":    {may: []string{"store/frame", "store/host", "store/rpc", "store/server", "store/shm", "store/shm/socket"}, why: "the frames of one node over a UNIX socket, and the memory that it shares"},
	"store/storetest":     {may: []string{"*"}, why: "tests only"},
	"store/client/...":    {may: []string{"*"}, why: "doubles for tests of the client"},
	"proto/quire/v1":      {why: "the wire contract, generated"},

	"internal/checkpoint": {never: noNetwork, why: "a model's files; imports nothing of ours"},
	"internal/cost":       {may: []string{"evict", "namespace"}, never: noWorld, why: "what a spec's pages cost: pure"},
	"internal/playback":   {may: []string{"evict", "evict/replay", "internal/clock", "namespace", "reason", "store/client", "store/page"}, why: "a client that plays traces: no server, no store"},
	"internal/modelspec":  {may: []string{"namespace", "store/page"}, never: noWorld, why: "a model's configuration as identity: pure"},

	"internal/auth":   {may: []string{"namespace", "reason", "store/rpc"}, why: "who calls; what they may do is the registry's"},
	"internal/daemon": {may: []string{"*"}, why: "the assembly"},
	"internal/doctor": {may: []string{"internal/sysmem", "namespace", "namespace/pebbleregistry", "store/disk"}, why: "looks at what a server left, offline, and at the machine"},
	"internal/demo":   {may: []string{"*"}, why: "a server and two engines in one process"},
	"internal/bench":  {may: []string{"*"}, why: "measures every part"},
	"cmd/quire":       {may: []string{"evict", "evict/replay", "internal/...", "namespace", "proto/quire/v1", "reason", "store/client", "store/page", "store/rpc", "kernels"}, why: "a client of the server; serve goes through internal/daemon, replay through evict/replay"},
	"e2e":             {may: []string{"*"}, why: "tests only"},
	"e2e/...":         {may: []string{"*"}, why: "tests only"},
}

// owners says which packages may import a library directly. A library that is not here may be imported anywhere that
// never allows it; cobra, Pebble and the like must stay replaceable.
var owners = map[string][]string{
	"github.com/cockroachdb/pebble":     {"internal/doctor", "internal/memfs", "internal/pebblefuse", "namespace/pebbleregistry", "store/disk", "store/disk/index", "store/storetest"},
	"go.etcd.io":                        {"namespace/etcdregistry"},
	"github.com/hashicorp":              {"store/cluster/gossip"},
	"github.com/spf13":                  {"cmd/quire"},
	"github.com/prometheus":             {"store/server", "internal/daemon", "store/client"},
	"go.opentelemetry.io":               {"internal/daemon"},
	"go.yaml.in/yaml":                   {"namespace", "internal/daemon"},
	"google.golang.org/grpc":            {"proto/quire/v1", "store/rpc", "store/frame", "store/server", "store/server/shm", "store/client", "store/client/...", "internal/auth", "internal/daemon", "internal/demo", "internal/bench", "cmd/quire", "e2e", "e2e/..."},
	"golang.org/x/sys":                  {"internal/doctor", "internal/offheap", "internal/sysmem", "internal/bench", "kernels", "store/disk", "store/host", "store/frame", "store/shm", "store/shm/socket", "store/server/shm", "store/client"},
	"github.com/go-analyze/charts":      {"cmd/quire"},
	"github.com/gdamore/tcell":          {"cmd/quire"},
	"github.com/schollz/progressbar":    {"internal/demo", "internal/bench", "cmd/quire"},
	"github.com/cockroachdb/datadriven": {}, "pgregory.net/rapid": {}, "go.uber.org/goleak": {}, "github.com/anishathalye/porcupine": {},
}

// suites are packages that hold tests in files of another name: they may import test libraries.
var suites = []string{"namespace/registrytest", "store/storetest", "store/tier/...", "store/client/...", "e2e", "e2e/...", "internal/demo"}

// listed is one package as go list tells of it.
type listed struct {
	ImportPath    string
	Imports, Deps []string
}

func listPackages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,Deps", "./...")
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var all []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// ours is a package's path in the module; ok is false for those of others.
func ours(path string) (string, bool) {
	rel, ok := strings.CutPrefix(path, module)
	return strings.TrimPrefix(rel, "/"), ok && (rel == "" || rel[0] == '/')
}

// matches reports whether path is named by pattern: itself, below "x/...", or anything for "*".
func matches(pattern, path string) bool {
	if pattern == "*" || pattern == path {
		return true
	}
	below, ok := strings.CutSuffix(pattern, "...")
	return ok && strings.HasPrefix(path, below)
}

func anyMatches(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, path) })
}

// within reports whether a package belongs to a library: itself, below it, or a later major version of it.
func within(library, path string) bool {
	return path == library || strings.HasPrefix(path, library+"/")
}

// roomOf is the room of a package: its own entry, else the longest family it is in.
func roomOf(path string) (room, bool) {
	if r, ok := rooms[path]; ok {
		return r, true
	}
	best := ""
	for pattern := range rooms {
		if matches(pattern, path) && len(pattern) > len(best) {
			best = pattern
		}
	}
	r, ok := rooms[best]
	return r, ok
}

func TestArrows(t *testing.T) {
	for _, p := range listPackages(t) {
		path, ok := ours(p.ImportPath)
		if !ok {
			t.Fatalf("go list told of %s", p.ImportPath)
		}
		r, ok := roomOf(path)
		if !ok {
			t.Errorf("%s is not in the map of arrows: say what it may import, and why", path)
			continue
		}
		if r.why == "" {
			t.Errorf("%s has no reason in the map of arrows", path)
		}
		for _, i := range p.Imports {
			if rel, ok := ours(i); ok && !anyMatches(r.may, rel) {
				t.Errorf("%s imports %s, which the map of arrows does not allow", path, rel)
			}
			for library, who := range owners {
				if within(library, i) && !anyMatches(who, path) && !(len(who) == 0 && anyMatches(suites, path)) {
					t.Errorf("%s imports %s, which belongs to %v alone", path, i, who)
				}
			}
		}
		for _, d := range p.Deps {
			for _, n := range r.never {
				if within(n, d) && !(n == "net" && d != "net") {
					t.Errorf("%s reaches %s, from which it must stay apart (%s)", path, d, r.why)
				}
			}
		}
	}
}

func TestRoomsAndFamilies(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{"store", "store", true}, {"store", "store/core", false}, {"store/...", "store/core", true},
		{"store/...", "store", false}, {"*", "anything", true},
	} {
		if matches(c.pattern, c.path) != c.want {
			t.Errorf("matches(%q, %q) is not %v", c.pattern, c.path, c.want)
		}
	}
	if _, ok := roomOf("store/unheard-of"); ok {
		t.Error("a package that nobody wrote down has a room")
	}
}
