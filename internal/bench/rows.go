package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/quire-kv/quire/internal/offheap"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/tier"
)

// row is one line of a transport's table: a kind of call with its sizes, and what it should reach. Each measured round
// of a row has a round of the reference before it, into as many buffers as the calls under way have pages.
type row struct {
	name      string
	kind      rowKind
	pageBytes int
	batch     int // pages or keys of a call
	inFlight  int
	ratio     float64 // at least, of memcpy; 0: no goal
	hugeRatio float64 // instead of ratio where the server's memory has huge pages
	ofBare    float64 // at least, of the bare loop
	cpu       float64 // at most, seconds per GB of both sides
	memcpys   float64 // p50, at most
}

type rowKind uint8

const (
	fetchRow   rowKind = iota // whole pages into touched buffers
	mappedRow                 // leased views of the server's memory, verified in place
	existsRow                 // half of the keys stored
	bareRow                   // no Quire: the bare loop
	publishRow                // out of the caller's memory
	stagedRow                 // out of a staging area that is filled already
)

func (k rowKind) writes() bool { return k == publishRow || k == stagedRow }

// Goals of exists, 128 keys a call.
const (
	existsGoal    = 1.2e6 // keys per second
	existsP50Goal = 120   // us
	existsKeys    = 128
)

const hugeShare = 0.9 // of the tier, from which on it counts as having huge pages

const smallPage = 64 << 10

// shmRows are over shared memory.
func shmRows() []row {
	return []row{
		{name: "fetch_16", kind: fetchRow, pageBytes: mib, batch: 16, inFlight: 1, ratio: 0.65, hugeRatio: 0.75, cpu: 0.13},
		{name: "mapped_16", kind: mappedRow, pageBytes: mib, batch: 16, inFlight: 1, ratio: 1.1, hugeRatio: 1.4},
		{name: "fetch_one", kind: fetchRow, pageBytes: mib, batch: 1, inFlight: 1, memcpys: 3},
		{name: "staged_16", kind: stagedRow, pageBytes: mib, batch: 16, inFlight: 1, ratio: 0.6},
		{name: "staged_128", kind: stagedRow, pageBytes: mib, batch: 128, inFlight: 1, ratio: 0.6},
		{name: "publish_16", kind: publishRow, pageBytes: mib, batch: 16, inFlight: 1, ratio: 0.35},
		{name: "publish_128", kind: publishRow, pageBytes: mib, batch: 128, inFlight: 1, ratio: 0.35},
		{name: "small_fetch_128", kind: fetchRow, pageBytes: smallPage, batch: 128, inFlight: 1, ratio: 0.55},
		{name: "exists_128", kind: existsRow, pageBytes: smallPage, batch: existsKeys, inFlight: 1},
		{name: "exists_128_8", kind: existsRow, pageBytes: smallPage, batch: existsKeys, inFlight: 8},
		{name: "small_staged_128", kind: stagedRow, pageBytes: smallPage, batch: 128, inFlight: 1, ratio: 0.4},
		{name: "small_publish_128", kind: publishRow, pageBytes: smallPage, batch: 128, inFlight: 1},
	}
}

// dataRows are over data connections.
func dataRows() []row {
	return []row{
		{name: "bare", kind: bareRow, pageBytes: mib, batch: 16, inFlight: 2},
		{name: "fetch_16", kind: fetchRow, pageBytes: mib, batch: 16, inFlight: 1, ratio: 0.33, ofBare: 0.85, cpu: 0.33},
		{name: "fetch_128", kind: fetchRow, pageBytes: mib, batch: 128, inFlight: 1, ratio: 0.33, ofBare: 0.85, cpu: 0.33},
		{name: "fetch_8_single", kind: fetchRow, pageBytes: mib, batch: 1, inFlight: 8, ratio: 0.33, ofBare: 0.85, cpu: 0.33},
		{name: "fetch_one", kind: fetchRow, pageBytes: mib, batch: 1, inFlight: 1, memcpys: 6},
		{name: "publish_16", kind: publishRow, pageBytes: mib, batch: 16, inFlight: 1, ratio: 0.28, cpu: 0.4},
		{name: "publish_128", kind: publishRow, pageBytes: mib, batch: 128, inFlight: 1, ratio: 0.28, cpu: 0.4},
		{name: "small_fetch_128", kind: fetchRow, pageBytes: smallPage, batch: 128, inFlight: 1, ratio: 0.28},
		{name: "exists_128", kind: existsRow, pageBytes: smallPage, batch: existsKeys, inFlight: 1},
		{name: "exists_128_8", kind: existsRow, pageBytes: smallPage, batch: existsKeys, inFlight: 8},
		{name: "small_publish_128", kind: publishRow, pageBytes: smallPage, batch: 128, inFlight: 1, ratio: 0.2},
	}
}

// benchRows measures the rows of one transport that are asked for.
func benchRows(transport client.Transport, rows []row) func(context.Context, *Options) ([]Figure, error) {
	return func(ctx context.Context, o *Options) ([]Figure, error) {
		rows, err := o.chosen(rows)
		if err != nil {
			return nil, err
		}
		b := &rowBench{o: o, transport: transport, arena: newArena(o.arena), goals: map[string]goal{}, bare: map[int]float64{}}
		for len(rows) > 0 { // one server for each size of page
			n := slices.IndexFunc(rows, func(r row) bool { return r.pageBytes != rows[0].pageBytes })
			if n < 0 {
				n = len(rows)
			}
			if err := b.server(ctx, rows[:n]); err != nil {
				return nil, err
			}
			rows = rows[n:]
		}
		runtime.KeepAlive(b.arena)
		return b.s.figures(b.goals), nil
	}
}

// chosen are the rows named by the options, or all of them.
func (o *Options) chosen(rows []row) ([]row, error) {
	if len(o.Rows) == 0 {
		return rows, nil
	}
	var out []row
	for _, r := range rows {
		if slices.Contains(o.Rows, r.name) {
			out = append(out, r)
		}
	}
	for _, name := range o.Rows {
		if !slices.ContainsFunc(rows, func(r row) bool { return r.name == name }) {
			var names []string
			for _, r := range rows {
				names = append(names, r.name)
			}
			return nil, optionf("--rows: no row %q; write some of %s", name, strings.Join(names, ","))
		}
	}
	return out, nil
}

// rowBench is a transport's table being measured.
type rowBench struct {
	o         *Options
	transport client.Transport
	arena     *offheap.Array[byte]
	s         sheet
	goals     map[string]goal
	bare      map[int]float64 // of the round at hand, bytes per second by page size
}

// server measures rows of one page size on one server, which holds as many bytes of pages as the arena: first those
// that read, then those that write and thereby evict.
func (b *rowBench) server(ctx context.Context, rows []row) (err error) {
	o := *b.o
	o.PageBytes, o.Transport = rows[0].pageBytes, b.transport
	o.Resident = max(2, b.o.arena/o.PageBytes)
	t, err := openTarget(ctx, &o, Node{MemoryBytes: roomFor(o.Resident, o.PageBytes)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	if err := t.fill(ctx, &o); err != nil {
		return err
	}
	end, err := t.profile(ctx, &o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	for _, writes := range []bool{false, true} {
		var part []row
		for _, r := range rows {
			if r.kind.writes() == writes {
				part = append(part, r)
			}
		}
		if err := b.rounds(ctx, t, part); err != nil {
			return err
		}
	}
	b.s.add(fmt.Sprintf("huge_pages_in_tier_of_%d_kib_pages", o.PageBytes>>10), "share", t.state.Host.HugePages)
	return nil
}

// roomFor is a host tier that holds so many pages of so many bytes.
func roomFor(pages, pageBytes int) int64 {
	return max(int64(pages)*tier.RoundUp(int64(pageBytes)+2*pageUnit)*9/8, 64<<20)
}

func (b *rowBench) rounds(ctx context.Context, t *target, rows []row) (err error) {
	if len(rows) == 0 {
		return nil
	}
	var subjects []*subject
	defer func() {
		for _, x := range subjects {
			err = errors.Join(err, x.close())
		}
	}()
	for i := range rows {
		x, err := b.subject(ctx, t, &rows[i])
		if err != nil {
			return fmt.Errorf("%s: %w", rows[i].name, err)
		}
		subjects = append(subjects, x)
	}
	return b.o.rounds(ctx, func(measured bool) error {
		for _, x := range subjects {
			if err := b.measure(ctx, t, x, measured); err != nil {
				return fmt.Errorf("%s: %w", x.row.name, err)
			}
		}
		return nil
	})
}

// slicesOfRound is into how many parts a round is cut, so that what else the machine does meets reference and row alike.
const slicesOfRound = 4

// measure is one round of one row: slices of the reference and of the row in turn.
func (b *rowBench) measure(ctx context.Context, t *target, x *subject, measured bool) error {
	var memcpy rateMeter
	var w window
	for range slicesOfRound {
		if x.reference != nil {
			memcpy.add(x.reference.copyFor(ctx, b.o.Duration/4/slicesOfRound))
		}
		part, err := t.window(ctx, func() (*tally, error) {
			return closedLoop(ctx, x.row.inFlight, b.o.Duration/slicesOfRound, x.call)
		})
		if err != nil {
			return err
		}
		w.join(part)
	}
	rate := float64(w.units) * float64(x.row.pageBytes) / w.wall.Seconds()
	if x.row.kind == bareRow {
		b.bare[x.row.pageBytes] = rate
	}
	if !measured {
		return nil
	}
	if x.row.kind == existsRow {
		b.addExists(x.row, &w)
		return nil
	}
	b.addBytes(x.row, &w, rate, memcpy.perSecond(), t.state.Host.HugePages)
	return nil
}

// figure adds one value of a row, with its goal if it has one.
func (b *rowBench) figure(r *row, name, unit string, v float64, g goal) {
	name = r.name + "_" + name
	b.s.add(name, unit, v)
	if g.bound != 0 {
		b.goals[name] = g
	}
}

func (b *rowBench) addExists(r *row, w *window) {
	p50 := float64(w.latency.quantile(.5)) / 1e3
	var p50Goal goal
	if r.inFlight == 1 {
		p50Goal = atMost(existsP50Goal)
	}
	b.figure(r, "keys_per_second", "1/s", w.perSecond(), atLeast(existsGoal))
	b.figure(r, "p50", "us", p50, p50Goal)
	b.figure(r, "cpu_seconds_per_million_keys", "s", w.cpuSeconds()/(float64(w.units)/1e6), goal{})
}

func (b *rowBench) addBytes(r *row, w *window, rate, memcpy, huge float64) {
	ratio := r.ratio
	if r.hugeRatio != 0 && huge >= hugeShare {
		ratio = r.hugeRatio
	}
	b.figure(r, "cpu_seconds_per_gb", "s", w.cpuSeconds()/(float64(w.units)*float64(r.pageBytes)/1e9), atMost(r.cpu))
	if r.memcpys != 0 {
		p50 := w.latency.quantile(.5).Seconds()
		b.figure(r, "p50", "us", p50*1e6, goal{})
		b.figure(r, "p50_in_memcpys", "", p50*memcpy/float64(r.pageBytes), atMost(r.memcpys))
		return
	}
	b.figure(r, "ratio_to_memcpy", "", rate/memcpy, atLeast(ratio))
	b.figure(r, "rate", "GB/s", rate/1e9, goal{})
	if bare := b.bare[r.pageBytes]; r.ofBare != 0 && bare != 0 {
		b.figure(r, "ratio_to_bare", "", rate/bare, atLeast(r.ofBare))
	}
}
