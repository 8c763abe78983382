package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"

	"github.com/quire-kv/quire/internal/offheap"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/page"
)

// Goals of the disk tier.
const (
	durableGoal   = 0.7  // of sequential direct writes
	appendGoal    = 1.1  // device bytes per payload byte while nothing is cleaned
	churnGoal     = 1.6  // the same at 90 % full
	hotReadGoal   = 0.35 // of memcpy
	churnFull     = 0.9
	churnWrites   = 5   // capacities
	churnSkew     = 1.1 // of the Zipf law by which pages are chosen
	churnHostPart = 8   // of the disk tier: the host tier's size
)

// The rows of benchDisk.
const (
	rowDurable  = "durable"   // one caller
	rowDurable2 = "durable_2" // two of them
	rowChurn    = "churn"
	rowHot      = "hot"
)

// benchDisk measures the disk tier in a directory of the disk that is meant.
func benchDisk(ctx context.Context, o *Options) (_ []Figure, err error) {
	rows, err := o.chosen([]row{{name: rowDurable, inFlight: 1}, {name: rowDurable2, inFlight: 2}, {name: rowChurn}, {name: rowHot}})
	if err != nil {
		return nil, err
	}
	dir, remove, err := o.workDir(o.DiskBytes * 5 / 2)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	b := &diskBench{o: o, dir: dir, arena: newArena(o.arena), goals: map[string]goal{}}
	for _, r := range rows {
		switch r.name {
		case rowChurn:
			err = b.churn(ctx)
		case rowHot:
			err = b.hot(ctx)
		default:
			err = b.durable(ctx, &r)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
	}
	runtime.KeepAlive(b.arena)
	return b.s.figures(b.goals), nil
}

// workDir is a new directory in Dir, or in the working directory, on a disk that has so many bytes free.
func (o *Options) workDir(bytes int64) (dir string, remove func() error, err error) {
	parent := o.Dir
	if parent == "" {
		if parent, err = os.Getwd(); err != nil {
			return "", nil, err
		}
	}
	if free := freeBytes(parent); free >= 0 && free < bytes {
		return "", nil, optionf("--dir: %s has %d MiB free, %d are needed; name another directory or ask for less", parent, free>>20, bytes>>20)
	}
	if dir, err = os.MkdirTemp(parent, "quire-bench-"); err != nil {
		return "", nil, err
	}
	return dir, func() error { return os.RemoveAll(dir) }, nil
}

// diskBench is benchDisk under way. Each part has a directory and a server of its own.
type diskBench struct {
	o     *Options
	dir   string
	arena *offheap.Array[byte] // what is written, and the reference's
	s     sheet
	goals map[string]goal
}

func (b *diskBench) add(name, unit string, v float64, g goal) {
	b.s.add(name, unit, v)
	if g.bound != 0 {
		b.goals[name] = g
	}
}

// open starts a server with a data directory of its own; close ends both.
func (b *diskBench) open(ctx context.Context, n Node) (_ *target, close func() error, err error) {
	dir, err := os.MkdirTemp(b.dir, "data-")
	if err != nil {
		return nil, nil, err
	}
	n.Dir = dir
	t, err := openTarget(ctx, b.o, n)
	if err != nil {
		return nil, nil, err
	}
	end, err := t.profile(ctx, b.o)
	if err != nil {
		return nil, nil, errors.Join(err, t.close())
	}
	return t, func() error {
		return errors.Join(end(), t.close(), os.RemoveAll(dir))
	}, nil
}

// durable publishes new pages that are on disk when they are committed, beside direct writes of the same size to a file
// of the same disk. Rounds are cut so that the tier does not become full.
func (b *diskBench) durable(ctx context.Context, r *row) (err error) {
	t, closeAll, err := b.open(ctx, Node{MemoryBytes: b.o.DiskBytes / 4, DiskBytes: 2 * b.o.DiskBytes, NoWriteBehind: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	r.pageBytes, r.batch = b.o.PageBytes, b.o.Batch
	var callers []*sending
	blocks := cut(b.arena.Slice(), b.o.PageBytes)
	for range r.inFlight {
		s := newSending(t, r, blocks)
		s.options.Durable = true
		callers = append(callers, s)
	}
	direct, err := newDirectFile(b.dir, b.o.DiskBytes/4, b.o.PageBytes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, direct.close()) }()
	budget := int(b.o.DiskBytes * 7 / 4 / int64(b.o.PageBytes) / int64(b.o.Rounds+1)) // pages of a round
	return b.o.rounds(ctx, func(measured bool) error {
		plain, err := direct.rate(ctx, b.o.Duration/4)
		if err != nil {
			return err
		}
		before, err := t.stateNow(ctx)
		if err != nil {
			return err
		}
		w, err := t.window(ctx, func() (*tally, error) {
			return closedLoopOf(ctx, r.inFlight, b.o.Duration, budget, func(ctx context.Context, caller int) (int, error) {
				return callers[caller].call(ctx, 0)
			})
		})
		if err != nil || !measured {
			return err
		}
		bytes := float64(w.units) * float64(b.o.PageBytes)
		rate := bytes / w.wall.Seconds()
		b.add(r.name+"_ratio_to_direct_writes", "", rate/plain, atLeast(durableGoal))
		b.add(r.name+"_rate", "GB/s", rate/1e9, goal{})
		b.add("direct_writes", "GB/s", plain/1e9, goal{})
		b.add(r.name+"_device_bytes_per_byte", "", float64(t.state.DeviceBytes-before.DeviceBytes)/bytes, atMost(appendGoal))
		b.add(r.name+"_cpu_seconds_per_gb", "s", w.cpuSeconds()/(bytes/1e9), goal{})
		b.add(r.name+"_p50", "us", w.latency.quantile(.5).Seconds()*1e6, goal{})
		return nil
	})
}

// churn keeps the disk tier full, 90 % of it, of pages that the benchmark counts on, and overwrites them: a page is deleted and
// published again, drawn by a skewed law, until five capacities are written.
func (b *diskBench) churn(ctx context.Context) (err error) {
	disk := b.o.DiskBytes
	t, closeAll, err := b.open(ctx, Node{MemoryBytes: disk / churnHostPart, DiskBytes: disk, NoWriteBehind: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	c := &churning{t: t, batch: b.o.Batch, bytes: b.o.PageBytes, rng: rand.New(rand.NewPCG(6, 7))}
	c.pages = int(b.o.Full * float64(disk) / float64(b.o.PageBytes+pageUnit))
	blocks := cut(b.arena.Slice(), b.o.PageBytes)
	c.source = func(i int) []byte { return blocks[i%len(blocks)] }
	zipf := rand.NewZipf(c.rng, churnSkew, float64(c.pages)/16, uint64(c.pages-1))
	order := c.rng.Perm(c.pages)
	if err := c.fill(ctx); err != nil {
		return err
	}
	before, err := t.stateNow(ctx)
	if err != nil {
		return err
	}
	steps, all := 0, max(1, int(b.o.capacities*float64(disk))/(b.o.PageBytes*b.o.Batch))
	most := 0.0
	for ; steps < all; steps++ {
		if err := c.overwrite(ctx, func() int { return order[zipf.Uint64()] }); err != nil {
			return err
		}
		if steps%16 == 0 {
			st, err := t.stateNow(ctx)
			if err != nil {
				return err
			}
			most = max(most, st.Disk.used())
		}
		b.o.Progress(steps+1, all)
	}
	after, err := t.stateNow(ctx)
	if err != nil {
		return err
	}
	written := float64(steps * b.o.Batch * b.o.PageBytes)
	kept, err := c.kept(ctx)
	if err != nil {
		return err
	}
	goalOf90 := atMost(churnGoal)
	if b.o.Full < churnFull {
		goalOf90 = goal{}
	}
	b.add("churn_device_bytes_per_byte", "", float64(after.DeviceBytes-before.DeviceBytes)/written, goalOf90)
	b.add("churn_moved_per_byte", "", float64(after.Moved-before.Moved)/written, goal{})
	b.add("churn_written", "capacities", written/float64(disk), goal{})
	b.add("churn_live_pages", "of capacity", float64(c.pages*(b.o.PageBytes+pageUnit))/float64(disk), goal{})
	b.add("churn_pages_kept", "share", kept, goal{})
	b.add("churn_most_used", "of capacity", most, atMost(1))
	return nil
}

// churning is the live set of churn.
type churning struct {
	t      *target
	batch  int
	bytes  int // of a page
	pages  int
	rng    *rand.Rand
	source func(i int) []byte
	turn   int
	items  []client.Item
	keys   []byte
}

func (c *churning) fill(ctx context.Context) error {
	for at := 0; at < c.pages; at += c.batch {
		c.keys = c.keys[:0]
		for i := range min(c.batch, c.pages-at) {
			c.keys = appendKey(c.keys, storedKeys, uint64(at+i))
		}
		if err := c.publish(ctx); err != nil {
			return err
		}
	}
	return nil
}

// overwrite deletes a batch of different pages and publishes them again.
func (c *churning) overwrite(ctx context.Context, draw func() int) error {
	chosen := map[int]bool{}
	c.keys = c.keys[:0]
	for len(chosen) < c.batch {
		if i := draw(); !chosen[i] {
			chosen[i] = true
			c.keys = appendKey(c.keys, storedKeys, uint64(i))
		}
	}
	if _, err := c.t.session.Delete(ctx, c.t.run(c.keys)); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	return c.publish(ctx)
}

// publish stores the pages of keys, none of which has a parent.
func (c *churning) publish(ctx context.Context) error {
	n := len(c.keys) / hashBytes
	c.items = c.items[:0]
	for i := range n {
		c.items = append(c.items, client.Item{Bytes: c.source(c.turn + i), ParentUnknown: true})
	}
	c.turn += n
	results, err := c.t.session.Publish(ctx, c.t.run(c.keys), page.View{}, nil, c.items, client.PublishOptions{Durable: true})
	if err != nil {
		return err
	}
	if good := client.GoodPrefix(results); good < n {
		return fmt.Errorf("a page was not published: %w", results[good].Reason)
	}
	return nil
}

// kept is the share of the live set that is still there: what is missing was evicted for room.
func (c *churning) kept(ctx context.Context) (float64, error) {
	there := 0
	for at := 0; at < c.pages; at += existsKeys {
		c.keys = c.keys[:0]
		n := min(existsKeys, c.pages-at)
		for i := range n {
			c.keys = appendKey(c.keys, storedKeys, uint64(at+i))
		}
		p, err := c.t.session.Exists(ctx, c.t.run(c.keys), 0)
		if err != nil {
			return 0, err
		}
		for i := range n {
			if p.Has(i) {
				there++
			}
		}
	}
	return float64(there) / float64(c.pages), nil
}

// hot fetches pages that are on disk alone: the host tier is far too small for them, the kernel's page cache is not.
func (b *diskBench) hot(ctx context.Context) (err error) {
	o := *b.o
	o.Resident, o.InFlight = int(o.DiskBytes/2/int64(o.PageBytes+pageUnit)), 1
	t, closeAll, err := b.open(ctx, Node{MemoryBytes: max(64*mib, o.DiskBytes/32), DiskBytes: o.DiskBytes})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	fill := t.fillOf(&o)
	fill.Durable = true
	if err := t.server(ctx, order{Fill: fill}); err != nil {
		return err
	}
	f := newFetching(t, &o)
	reference := newReference(f.all, b.arena)
	return o.rounds(ctx, func(measured bool) error {
		memcpy := reference.rate(ctx, o.Duration/4)
		before, err := t.stateNow(ctx)
		if err != nil {
			return err
		}
		w, err := t.window(ctx, func() (*tally, error) { return closedLoop(ctx, 1, o.Duration, f.call) })
		if err != nil || !measured {
			return err
		}
		bytes := float64(w.units) * float64(o.PageBytes)
		rate := bytes / w.wall.Seconds()
		b.add("hot_read_ratio_to_memcpy", "", rate/memcpy, atLeast(hotReadGoal))
		b.add("hot_read_rate", "GB/s", rate/1e9, goal{})
		b.add("hot_read_memcpy", "GB/s", memcpy/1e9, goal{})
		b.add("hot_read_from_disk", "share", float64(t.state.Promoted-before.Promoted)/bytes, goal{})
		b.add("hot_read_cpu_seconds_per_gb", "s", w.cpuSeconds()/(bytes/1e9), goal{})
		b.add("hot_read_p50", "us", w.latency.quantile(.5).Seconds()*1e6, goal{})
		return nil
	})
}
