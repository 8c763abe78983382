package disk

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/tier"
)

var seedFlag = flag.Uint64("seed", 0, "replays a randomised test; 0: another each time")

// newRand prints the seed that replays the test.
func newRand(t testing.TB) *rand.Rand {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-seed %d", seed)
	return newRandOf(seed)
}

func newRandOf(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

// thing is one extent of a test: everything about it follows from id, epoch and size.
type thing struct {
	id     uint64
	epoch  page.Epoch
	bytes  int
	copies []tier.Region // more than one while it is moved

	acked  bool // its write was answered
	ending bool // a free, bury or retire of all copies was asked for
	ended  bool // and a barrier after it was answered
}

func (x *thing) namespace() page.NamespaceID { return page.NamespaceID{byte(x.epoch % 3)} }

func (x *thing) note() *tier.Note {
	return &tier.Note{Expiry: clock.Wall(x.id % 5), Lineage: []string{"", "one", "two", "three", "four", "five"}[x.id%6]}
}

// region is the bytes of x, heads heads of cells.
func (x *thing) region(tb testing.TB) []byte {
	tb.Helper()
	view := page.View{H1: 1, L1: 1}
	at := page.PayloadOffset(page.EncodedHeaderBytes(view, uint32(x.bytes-page.PayloadAlign), 0))
	payload := make([]byte, x.bytes-at)
	for i := 0; i+8 <= len(payload); i += 8 {
		binary.LittleEndian.PutUint64(payload[i:], x.id*0x9E3779B97F4A7C15+uint64(i))
	}
	hash, err := page.MakeHash(binary.LittleEndian.AppendUint64(make([]byte, 8), x.id))
	if err != nil {
		tb.Fatal(err)
	}
	h := page.Header{
		Key:    page.Key{Family: page.Family{Namespace: x.namespace(), Epoch: x.epoch}, Hash: hash},
		Extent: page.ExtentID{Seq: x.id}, Tokens: 16, View: view, Heads: 1, Layers: 1,
		CellBytes: uint32(len(payload)), Grade: page.Whole, PayloadBytes: uint64(len(payload)), DeclaredFLOPs: float64(x.id),
	}
	sums, err := page.AppendSumsOf(nil, payload, view, h.CellBytes)
	if err != nil {
		tb.Fatal(err)
	}
	h.SetSums(sums)
	b, err := h.AppendEncode(make([]byte, page.HeadBytes, x.bytes))
	if err != nil {
		tb.Fatal(err)
	}
	b = b[:x.bytes]
	copy(b[at:], payload)
	return b
}

// world drives a driver and knows what must be true of it. Only the test's goroutine drives; answers come from others.
type world struct {
	t   testing.TB
	d   *Driver
	rng *rand.Rand

	mu     sync.Mutex
	things map[uint64]*thing
	order  []uint64
	next   uint64
	epochs [4]page.Epoch // in use
	faults bool          // writes and barriers may fail
}

func newWorld(t testing.TB, rng *rand.Rand) *world {
	return &world{t: t, rng: rng, things: map[uint64]*thing{}, epochs: [4]page.Epoch{1, 2, 3, 4}}
}

func worldOptions(fs vfs.FS) Options {
	return Options{FS: fs, Dir: "data", CapacityBytes: MinCapacityBytes, SegmentBytes: MinSegmentBytes, Readers: 1, Patience: 1000 * time.Hour, Clock: clock.NewManual(time.Unix(1_000_000, 0))}
}

// publish allocates and writes n extents in one batch.
func (w *world) publish(n int) {
	var ops []tier.Op
	var wait sync.WaitGroup
	for range n {
		w.mu.Lock()
		w.next++
		x := &thing{id: w.next, epoch: w.epochs[w.next%4], bytes: 5_000 + w.rng.IntN(12_000)}
		if w.next%16 == 0 {
			x.bytes = 30_000 // a segment of its own
		}
		w.mu.Unlock()
		r, err := w.d.Alloc(tier.Class{Bytes: int64(x.bytes)}, tier.Owner{Shard: 1, Extent: uint32(x.id)})
		if err != nil {
			if w.faults && errors.Is(err, tier.ErrDegraded) || errors.Is(err, tier.ErrFull) {
				continue
			}
			w.t.Fatalf("alloc: %v", err)
		}
		x.copies = []tier.Region{r}
		w.mu.Lock()
		w.things[x.id] = x
		w.order = append(w.order, x.id)
		w.mu.Unlock()
		wait.Add(1)
		ops = append(ops, tier.Op{Region: r, Memory: x.region(w.t), Write: true, Note: x.note(), Done: func(err error) {
			w.mu.Lock()
			x.acked = err == nil
			w.mu.Unlock()
			if err != nil && !w.faults {
				w.t.Errorf("write: %v", err)
			}
			wait.Done()
		}})
	}
	w.d.Submit(ops)
	wait.Wait()
	for _, id := range w.order { // what failed is given back
		if x := w.things[id]; !x.acked && !x.ending {
			w.free(x)
		}
	}
}

func (w *world) free(x *thing) {
	w.mu.Lock()
	x.ending = true
	w.mu.Unlock()
	for _, r := range x.copies {
		w.d.Free(r)
	}
	x.copies = nil
}

// some picks a share of the live extents.
func (w *world) some(oneIn int) (out []*thing) {
	for _, id := range w.order {
		if x := w.things[id]; x.acked && !x.ending && w.rng.IntN(oneIn) == 0 {
			out = append(out, x)
		}
	}
	return out
}

// bury ends extents that stay readable until the barrier, then frees them.
func (w *world) bury(xs []*thing) {
	w.mu.Lock()
	for _, x := range xs {
		x.ending = true
	}
	w.mu.Unlock()
	for _, x := range xs {
		w.d.Bury(x.copies[0])
	}
	w.barrier()
	for _, x := range xs {
		w.free(x)
	}
}

// retire ends the ith epoch, durably, and frees what is of it.
func (w *world) retire(i int) {
	e := w.epochs[i]
	w.epochs[i] += 4
	w.mu.Lock()
	for _, x := range w.things {
		x.ending = x.ending || x.epoch == e
	}
	w.mu.Unlock()
	w.d.Retire(page.NamespaceID{byte(e % 3)}, e)
	w.barrier()
	for _, id := range w.order {
		if x := w.things[id]; x.epoch == e && x.copies != nil {
			w.free(x)
		}
	}
}

// barrier waits, and then holds that what was ending has ended.
func (w *world) barrier() {
	var ending []*thing
	w.mu.Lock()
	for _, x := range w.things {
		if x.ending && !x.ended {
			ending = append(ending, x)
		}
	}
	w.mu.Unlock()
	done := make(chan error, 1)
	w.d.Barrier(func(err error) {
		if err == nil {
			w.mu.Lock()
			for _, x := range ending {
				x.ended = true
			}
			w.mu.Unlock()
		}
		done <- err
	})
	if err := <-done; err != nil && !w.faults {
		w.t.Fatalf("barrier: %v", err)
	}
}

// clean empties one segment as the store does: copy, then free the old place.
func (w *world) clean() bool {
	handle, residents := w.d.Compact(nil)
	if handle == 0 {
		return false
	}
	for _, res := range residents {
		x := w.things[uint64(res.Owner.Extent)]
		if x == nil || len(x.copies) == 0 || x.copies[0].Handle != res.Region.Handle || x.copies[0].Offset != res.Region.Offset {
			w.t.Fatalf("resident %+v is not ours", res)
		}
		r, err := w.d.Alloc(tier.Class{Bytes: int64(x.bytes)}, res.Owner)
		if err != nil {
			if !w.faults {
				w.t.Fatalf("no place for what is moved: %v, %+v", err, w.d.Usage())
			}
			w.d.Keep(handle)
			return false
		}
		done := make(chan error, 1)
		w.d.Submit([]tier.Op{{Region: r, Memory: x.region(w.t), Write: true, Note: x.note(), Done: func(err error) { done <- err }}})
		if err := <-done; err != nil {
			w.d.Free(r)
			w.d.Keep(handle)
			if !w.faults {
				w.t.Fatalf("move: %v", err)
			}
			return false
		}
		w.d.Free(x.copies[0])
		x.copies[0] = r
	}
	return true
}

// script is what the crash and fault tests run: publications, all ways to end, cleaning, restarts of segments.
func (w *world) script() {
	for round := range 6 {
		w.publish(1)
		w.publish(6)
		for _, x := range w.some(3) {
			w.free(x)
		}
		if round%2 == 0 {
			w.barrier()
		}
		w.publish(5)
		w.bury(w.some(6))
		if round == 3 {
			w.retire(1)
		}
		w.clean()
		w.barrier()
	}
}

// state is what is known of things at one instant.
type state struct {
	acked, ended map[uint64]bool
}

func (w *world) state() state {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := state{map[uint64]bool{}, map[uint64]bool{}}
	for id, x := range w.things {
		s.acked[id] = x.acked
		s.ended[id] = x.ended
	}
	return s
}

// verify opens a file system as a crash left it. before was true when the crash came or earlier, and what is ending now
// may have been ending then.
func (w *world) verify(fs vfs.FS, before state, what string) {
	w.t.Helper()
	d, err := New(context.Background(), worldOptions(fs))
	if err != nil {
		w.t.Errorf("%s: open: %v", what, err)
		return
	}
	w.check(d, before, what)
	if err := d.Close(); err != nil {
		w.t.Errorf("%s: close: %v", what, err)
	}
}

// check recovers d and holds it against what must be true.
func (w *world) check(d *Driver, before state, what string) {
	w.t.Helper()
	told := map[uint64][]tier.Recovered{}
	err := d.Recover(context.Background(), func(batch []tier.Recovered, owners []tier.Owner) error {
		for i, x := range batch {
			told[x.Extent.Seq] = append(told[x.Extent.Seq], x)
			owners[i] = tier.Owner{Shard: 2, Extent: uint32(x.Extent.Seq)}
		}
		return nil
	})
	if err != nil {
		w.t.Errorf("%s: recover: %v", what, err)
		return
	}
	w.mu.Lock()
	things := map[uint64]thing{}
	for id, x := range w.things {
		things[id] = *x
	}
	w.mu.Unlock()
	for id, x := range things {
		switch {
		case before.ended[id] && len(told[id]) > 0:
			w.t.Errorf("%s: extent %d ended before a barrier and is back: %+v", what, id, told[id])
		case before.acked[id] && !x.ending && len(told[id]) == 0:
			w.t.Errorf("%s: extent %d was acknowledged and is gone; %+v", what, id, d.Recovery())
		}
		for _, c := range told[id] {
			w.intact(d, &x, c, what)
		}
	}
	for id := range told {
		if _, ok := things[id]; !ok {
			w.t.Errorf("%s: extent %d was never written", what, id)
		}
	}
}

// intact reads what was recovered.
func (w *world) intact(d *Driver, x *thing, c tier.Recovered, what string) {
	w.t.Helper()
	if c.Note != *x.note() || c.Key.Epoch != x.epoch || c.Region.Bytes != int64(x.bytes) || c.DeclaredFLOPs != float64(x.id) {
		w.t.Errorf("%s: extent %d is told of as %+v", what, x.id, c)
		return
	}
	got := make([]byte, x.bytes)
	if err := transfer(d, tier.Op{Region: c.Region, Memory: got}); err != nil {
		w.t.Errorf("%s: read extent %d: %v", what, x.id, err)
	} else if !bytes.Equal(got, x.region(w.t)) {
		w.t.Errorf("%s: extent %d reads back other bytes", what, x.id)
	}
}

func transfer(d *Driver, op tier.Op) error {
	done := make(chan error, 1)
	op.Done = func(err error) { done <- err }
	d.Submit([]tier.Op{op})
	return <-done
}
