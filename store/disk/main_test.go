package disk

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/quire-kv/quire/internal/invariant"
	"github.com/quire-kv/quire/internal/memfs"
	"github.com/quire-kv/quire/store/tier"
	"github.com/quire-kv/quire/store/tier/tiertest"
)

func TestMain(m *testing.M) {
	if invariant.Enabled { // it is slow then; -rapid.checks overrides this
		if err := flag.Set("rapid.checks", "20"); err != nil {
			panic(err)
		}
	}
	if os.Getenv(failingDisk) != "" {
		os.Exit(m.Run())
	}
	goleak.VerifyTestMain(m)
}

// failingDisk marks the process that tests of a failing disk run in: Pebble leaves goroutines behind on a disk that
// failed, and there nobody counts them.
const failingDisk = "QUIRE_TEST_FAILING_DISK"

// inChild runs a test in a process of its own.
func inChild(t *testing.T) (parent bool) {
	if os.Getenv(failingDisk) != "" {
		return false
	}
	child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", fmt.Sprint("-test.short=", testing.Short()), fmt.Sprint("-seed=", *seedFlag))
	child.Env = append(os.Environ(), failingDisk+"=1")
	out, err := child.CombinedOutput()
	if err != nil {
		t.Error(err)
	}
	t.Logf("%s", out)
	return true
}

// own takes over whatever is recovered.
func own(batch []tier.Recovered, owners []tier.Owner) error {
	for i := range batch {
		owners[i] = tier.Owner{Shard: 7, Extent: uint32(batch[i].Region.Offset)}
	}
	return nil
}

func openDriver(t testing.TB, o Options) *Driver {
	t.Helper()
	d, err := New(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Recover(context.Background(), own); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestConformance on a file system in memory that can crash.
func TestConformance(t *testing.T) {
	disks := map[tier.Driver]memfs.FS{}
	tiertest.Run(t, tiertest.Harness{
		New: func(t testing.TB, capacity int64) tier.Driver {
			fs := memfs.NewCrashable()
			d := openDriver(t, Options{FS: fs, Dir: "data", CapacityBytes: capacity, SegmentBytes: 256 << 10})
			disks[d] = fs
			return d
		},
		Reopen: func(t testing.TB, d tier.Driver) tier.Durable {
			fs := disks[d].CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(1, 2))})
			next, err := New(context.Background(), Options{FS: fs, Dir: "data", CapacityBytes: d.Usage().Capacity})
			if err != nil {
				t.Fatal(err)
			}
			disks[next] = fs
			return next
		},
	})
}

// TestConformanceOnDisk on the real one, past the page cache where it allows that. What a process leaves that ends now is
// a copy of its files.
func TestConformanceOnDisk(t *testing.T) {
	o := Options{SegmentBytes: 256 << 10, CapacityBytes: MinCapacityBytes}
	tiertest.Run(t, tiertest.Harness{
		Slow: true,
		New: func(t testing.TB, capacity int64) tier.Driver {
			o.Dir = t.TempDir()
			return openDriver(t, o)
		},
		Reopen: func(t testing.TB, d tier.Driver) tier.Durable {
			o.Dir = t.TempDir()
			if err := os.CopyFS(o.Dir, os.DirFS(d.(*Driver).dir.path)); err != nil {
				t.Fatal(err)
			}
			next, err := New(context.Background(), o)
			if err != nil {
				t.Fatal(err)
			}
			return next
		},
	})
}
