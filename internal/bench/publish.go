package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/host"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/tier"
)

// benchPublish copies pages into a store of this process, through Begin, Write and Commit. The store is full, so each
// page evicts another: the steady state of a cache. One round of copies out of the same arena is the reference.
func benchPublish(ctx context.Context, o *Options) (_ []Figure, err error) {
	pages := newReference(buffers(o.Batch, o.PageBytes), newArena(o.arena))
	driver, err := host.New(host.Options{CapacityBytes: int64(o.Resident) * tier.RoundUp(int64(o.PageBytes)+pageUnit) * 9 / 8})
	if err != nil {
		return nil, fmt.Errorf("host memory: %w", err)
	}
	st, err := store.New(store.Options{
		Tiers:     [evict.NumTiers]tier.Driver{evict.Host: driver},
		NewPolicy: func(int) evict.Policy { return evict.NewLRU(0) }, // takes in all that is offered
	})
	if err != nil {
		return nil, errors.Join(err, driver.Close())
	}
	defer func() { err = errors.Join(err, st.Close(context.WithoutCancel(ctx))) }()
	p, err := newPublishing(st, pages, o)
	if err != nil {
		return nil, err
	}
	if err := p.fillUp(ctx, o.Resident); err != nil {
		return nil, err
	}
	end, err := o.profile()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	var s sheet
	err = o.rounds(ctx, func(measured bool) error {
		reference := pages.rate(ctx, o.Duration/4)
		before := ownUsage()
		t, err := closedLoop(ctx, o.InFlight, o.Duration, func(ctx context.Context, caller int) (int, error) {
			return o.Batch, p.batch(ctx, caller)
		})
		if err != nil || !measured {
			return err
		}
		used := ownUsage().since(before)
		rate := t.perSecond() * float64(o.PageBytes)
		s.add("memcpy", "GB/s", reference/1e9)
		s.add("publish", "GB/s", rate/1e9)
		s.add("ratio_to_memcpy", "", rate/reference)
		s.add("cpu_seconds_per_gb", "s/GB", used.CPUSeconds/(float64(t.units)*float64(o.PageBytes)/1e9))
		s.add("allocations_per_page", "", float64(used.Allocations)/float64(t.units))
		t.addLatency(&s)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := p.slice(ctx, &s); err != nil {
		return nil, err
	}
	s.add("huge_pages_in_tier", "share", driver.Usage().HugePages)
	runtime.KeepAlive(pages)
	return s.figures(map[string]goal{"ratio_to_memcpy": atLeast(0.6), "tp_slice_bytes_touched": atMost(1)}), nil
}

// publishing is the callers of benchPublish: each writes chains of its own, in Batch pages.
type publishing struct {
	pages   *reference
	sources []source // of the arena's blocks, in random order
	writers []*writer
	turn    []int // of each writer, into sources
	keys    [][]byte
	seq     []uint64
}

func newPublishing(st *store.Store, pages *reference, o *Options) (*publishing, error) {
	spec := specOf(o.PageBytes)
	group := spec.Groups[0].Info()
	id, canonical := page.NamespaceID{1}, spec.CanonicalProvenance()
	st.SetNamespace(store.Namespace{State: core.NamespaceState{
		ID: id, Epoch: 1, Life: core.Active, Tenant: 1, HashBytes: hashBytes,
		Groups: map[page.GroupID]core.Geometry{group.ID: {
			Heads: group.Heads, Layers: group.Layers, CellBytes: group.CellBytes, Tokens: group.PageTokens, Grade: group.Grade,
		}},
	}})
	p := &publishing{pages: pages, keys: make([][]byte, o.InFlight), seq: make([]uint64, o.InFlight), turn: make([]int, o.InFlight)}
	for i := range o.InFlight {
		w := newWriter(st, id, 1, group.ID, canonical, o.PageBytes)
		w.header.Extent.Writer[1] = byte(i)
		p.writers = append(p.writers, w)
		p.turn[i] = i * 17
		p.keys[i] = make([]byte, 0, o.Batch*hashBytes)
	}
	for _, i := range pages.order {
		s, err := p.writers[0].sourceOf(pages.block(i))
		if err != nil {
			return nil, err
		}
		p.sources = append(p.sources, s)
	}
	p.sources = append(p.sources, p.sources[:min(len(p.sources), o.Batch)]...) // a batch may begin at the last block
	return p, nil
}

// batch publishes the next pages of a caller under keys never seen before.
func (p *publishing) batch(ctx context.Context, caller int) error {
	n := cap(p.keys[caller]) / hashBytes
	p.keys[caller] = p.keys[caller][:0]
	for range n {
		p.seq[caller]++
		p.keys[caller] = appendKey(p.keys[caller], uint64(10+caller), p.seq[caller])
	}
	at := p.turn[caller] % len(p.pages.order)
	p.turn[caller] += n
	if at+n > len(p.sources) {
		at = 0
	}
	return p.writers[caller].publish(ctx, p.keys[caller], p.sources[at:at+n])
}

// fillUp publishes more than the store holds.
func (p *publishing) fillUp(ctx context.Context, resident int) error {
	for done := 0; done < resident+resident/4; done += cap(p.keys[0]) / hashBytes {
		if err := p.batch(ctx, 0); err != nil {
			return fmt.Errorf("fill the store: %w", err)
		}
	}
	return nil
}

// slice reads what the last of eight ranks holds of the page that was written last, and says how many bytes of it were
// handed out, in units of the slice.
func (p *publishing) slice(ctx context.Context, s *sheet) error {
	w := p.writers[0]
	key := p.keys[0][len(p.keys[0])-hashBytes:]
	view, err := page.TPView(benchHeads-1, benchHeads, w.geometry.Heads, w.geometry.Layers)
	if err != nil {
		return err
	}
	rd, why, err := w.store.Read(ctx, w.caller, store.ReadRequest{
		Run: core.Run{Family: w.family, Hashes: slices.Clone(key)}, View: view.View,
	})
	if err = joined(why, err); err != nil {
		return fmt.Errorf("read a slice: %w", err)
	}
	defer rd.Close()
	touched := 0
	for x := range rd.Extents(0) {
		chunks, why := rd.Chunks(0, x, 1<<20, nil)
		if why != reason.None {
			return fmt.Errorf("read a slice: %w", why)
		}
		for _, c := range chunks {
			touched += len(c.Bytes)
		}
	}
	want := page.PayloadBytes(view.View, w.geometry.CellBytes)
	s.add("tp_slice", "B", float64(want))
	s.add("tp_slice_bytes_touched", "slices", float64(touched)/float64(want))
	return nil
}
