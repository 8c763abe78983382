package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/page"
)

// subject is a row made ready: its call, and the reference beside it.
type subject struct {
	row       *row
	reference *reference // nil: no bytes move
	call      func(ctx context.Context, caller int) (units int, err error)
	close     func() error
}

func (b *rowBench) subject(ctx context.Context, t *target, r *row) (*subject, error) {
	x := &subject{row: r, close: func() error { return nil }}
	o := &Options{
		PageBytes: r.pageBytes, Batch: r.batch, InFlight: r.inFlight, Resident: max(2, b.o.arena/r.pageBytes), arena: b.o.arena,
	}
	if r.kind == existsRow {
		asking := newAsking(t, o)
		x.call = asking.call
		return x, nil
	}
	f := newFetching(t, o)
	x.reference = newReference(f.all, b.arena)
	switch r.kind {
	case fetchRow:
		x.call = f.call
	case mappedRow:
		x.call = f.mapped
	case bareRow:
		loop, err := dialBare(ctx, t, o, f.all)
		if err != nil {
			return nil, err
		}
		x.call, x.close = loop.call, loop.close
	case publishRow:
		x.call = newSending(t, r, x.reference.blocks()).call
	case stagedRow:
		staging, err := t.client.Staging(r.batch * r.pageBytes)
		if err != nil {
			return nil, err
		}
		noise(staging.Bytes(), 1)
		x.call, x.close = newSending(t, r, cut(staging.Bytes(), r.pageBytes)).call, staging.Close
	}
	return x, nil
}

// blocks are all blocks of the arena, in the reference's order.
func (r *reference) blocks() [][]byte {
	out := make([][]byte, len(r.order))
	for i, at := range r.order {
		out[i] = r.block(at)
	}
	return out
}

// cut is b in blocks of n bytes.
func cut(b []byte, n int) [][]byte {
	var out [][]byte
	for ; len(b) >= n; b = b[n:] {
		out = append(out, b[:n])
	}
	return out
}

// sending publishes batches of blocks, round and round, under keys never seen before. One caller.
type sending struct {
	target  *target
	set     uint64 // of keys
	seq     uint64
	blocks  [][]byte
	turn    int
	items   []client.Item
	keys    []byte
	options client.PublishOptions
}

func newSending(t *target, r *row, blocks [][]byte) *sending {
	s := &sending{target: t, set: t.keySet(), blocks: blocks, items: make([]client.Item, r.batch)}
	s.items[0].Root = true
	return s
}

func (s *sending) call(ctx context.Context, _ int) (int, error) {
	s.keys = s.keys[:0]
	for i := range s.items {
		s.keys = appendKey(s.keys, s.set, s.seq)
		s.items[i].Bytes = s.blocks[s.turn%len(s.blocks)]
		s.seq, s.turn = s.seq+1, s.turn+1
	}
	results, err := s.target.session.Publish(ctx, s.target.run(s.keys), page.View{}, nil, s.items, s.options)
	if err != nil {
		return 0, err
	}
	for i := range results {
		if results[i].Outcome != client.Committed {
			return 0, fmt.Errorf("a page was not published: outcome %v: %w", results[i].Outcome, results[i].Reason)
		}
	}
	return len(results), nil
}

// mapped looks at pages where the server keeps them: verified in place, and asked at the end whether they still hold.
func (f *fetching) mapped(ctx context.Context, caller int) (int, error) {
	c := f.draw(caller)
	m, err := f.target.session.MapPages(ctx, f.target.run(c.keys), page.View{}, nil)
	if err != nil {
		return 0, err
	}
	defer m.Close()
	for i := range m.Pages() {
		if r := m.Result(i); r.Outcome != client.OK {
			return 0, fmt.Errorf("a stored page cannot be mapped: %w", r.Reason)
		}
		if !m.Valid(i) {
			return 0, errors.New("a mapped page did not hold")
		}
	}
	return m.Pages(), nil
}
