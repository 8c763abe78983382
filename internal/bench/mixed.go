package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/page"
)

// benchMixed lets readers, writers and deletes at one server that is far too small for what they use, with a disk tier
// below it, and watches: every byte that is read, the server's memory, what its tiers hold, and latencies.
//
//	kind      what a caller does                                                   share
//	read      look up a chain with a lease, fetch what is there, compare it       60 %
//	publish   publish a chain                                                     30 %
//	durable   the same, committed on disk                                          5 %
//	delete    delete a chain                                                       5 %
const (
	chainPages  = 8
	mixedTimes  = 4   // what is used is so many times the disk tier
	mixedSkew   = 1.1 // of the Zipf law by which chains are drawn
	mixedLease  = 5 * time.Second
	mixedSample = 250 * time.Millisecond
	mixedTold   = 10 * time.Second
	rssGoal     = 10 // per cent that memory may grow from the first tenth to the last
)

type opKind int

const (
	opRead opKind = iota
	opPublish
	opDurable
	opDelete
	opKinds
)

func (k opKind) String() string { return [...]string{"read", "publish", "durable", "delete"}[k] }

func benchMixed(ctx context.Context, o *Options) (_ []Figure, err error) {
	dir, remove, err := o.workDir(o.DiskBytes * 5 / 4)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	t, err := openTarget(ctx, o, Node{MemoryBytes: o.MemoryBytes, DiskBytes: o.DiskBytes, Dir: dir})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	m := newMixing(t, o)
	if err := m.fill(ctx); err != nil {
		return nil, fmt.Errorf("fill: %w", err)
	}
	end, err := t.profile(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	seen, err := m.run(ctx)
	if err != nil {
		return nil, err
	}
	var s sheet
	m.figures(&s, seen)
	return s.figures(map[string]goal{
		"wrong_bytes": atMost(0), "rss_growth": atMost(rssGoal), "host_most_used": atMost(1), "disk_most_used": atMost(1),
	}), nil
}

// mixing is the callers.
type mixing struct {
	t       *target
	o       *Options
	chains  int
	callers []mixingCaller
	wrong   atomic.Uint64 // bytes
	read    atomic.Uint64 // bytes that were right
	written atomic.Uint64 // bytes
	ops     atomic.Uint64
	busy    atomic.Uint64 // publications refused for want of room
	misses  [reason.Count]atomic.Uint64
}

// mixingCaller is what one caller keeps from call to call.
type mixingCaller struct {
	rng     *rand.Rand
	chain   *rand.Zipf
	keys    []byte
	dst     [][]byte
	items   []client.Item
	want    []byte
	latency [opKinds]latencies
}

func newMixing(t *target, o *Options) *mixing {
	m := &mixing{t: t, o: o, chains: max(1, mixedTimes*int(o.DiskBytes/int64(o.PageBytes*chainPages)))}
	for i := range o.InFlight {
		rng := rand.New(rand.NewPCG(8, uint64(i)))
		c := mixingCaller{
			rng: rng, chain: rand.NewZipf(rng, mixedSkew, float64(m.chains)/16, uint64(m.chains-1)), want: make([]byte, o.PageBytes),
			dst: buffers(chainPages, o.PageBytes), items: make([]client.Item, chainPages),
		}
		for j := range c.items {
			c.items[j].Bytes = make([]byte, o.PageBytes)
		}
		c.items[0].Root = true
		m.callers = append(m.callers, c)
	}
	return m
}

// draw takes a chain for the next operation.
func (c *mixingCaller) draw(chain uint64) {
	c.keys = c.keys[:0]
	for i := range uint64(chainPages) {
		c.keys = appendKey(c.keys, storedKeys, chain*chainPages+i)
	}
}

// key is the i-th page's hash.
func (c *mixingCaller) key(i int) []byte { return c.keys[i*hashBytes : (i+1)*hashBytes] }

// payload writes the bytes of the page that has this hash.
func payload(b, hash []byte) { noise(b, binary.LittleEndian.Uint64(hash)) }

// fill publishes chains until both tiers have been full: what is measured is the steady state.
func (m *mixing) fill(ctx context.Context) error {
	c := &m.callers[0]
	for chain := uint64(0); m.written.Load() < uint64(m.o.DiskBytes*5/4); chain++ {
		c.draw(chain % uint64(m.chains))
		if err := m.publish(ctx, c, true); err != nil {
			return err
		}
	}
	m.written.Store(0)
	return nil
}

// op is one operation of a caller, of a kind drawn by the shares above.
func (m *mixing) op(ctx context.Context, caller int) (int, error) {
	c := &m.callers[caller]
	c.draw(c.chain.Uint64())
	kind := opRead
	switch x := c.rng.IntN(100); {
	case x < 5:
		kind = opDelete
	case x < 10:
		kind = opDurable
	case x < 40:
		kind = opPublish
	}
	begun := time.Now()
	var err error
	switch kind {
	case opRead:
		err = m.readChain(ctx, c)
	case opDelete:
		_, err = m.t.session.Delete(ctx, m.t.run(c.keys))
	default:
		err = m.publish(ctx, c, kind == opDurable)
	}
	if err != nil {
		return 0, fmt.Errorf("%v: %w", kind, err)
	}
	c.latency[kind].add(time.Since(begun))
	m.ops.Add(1)
	return 1, nil
}

func (m *mixing) readChain(ctx context.Context, c *mixingCaller) (err error) {
	p, err := m.t.session.Exists(ctx, m.t.run(c.keys), mixedLease)
	if err != nil || p.Leading == 0 {
		return err
	}
	if p.Lease != nil {
		defer func() { err = errors.Join(err, p.Lease.Release(ctx)) }()
	}
	lease := p.Lease
	if p.Leased < p.Leading {
		lease = nil // the lease covers a part: without it all that is there can be asked for
	}
	results, err := m.t.session.FetchInto(ctx, m.t.run(c.keys[:p.Leading*hashBytes]), page.View{}, nil, c.dst[:p.Leading], lease)
	if err != nil {
		return err
	}
	for i, r := range results {
		if r.Outcome != client.OK {
			m.misses[r.Reason].Add(1)
			continue
		}
		if payload(c.want, c.key(i)); !bytes.Equal(c.want, c.dst[i]) {
			for j := range c.want {
				if c.want[j] != c.dst[i][j] {
					m.wrong.Add(1)
				}
			}
			continue
		}
		m.read.Add(uint64(len(c.want)))
	}
	return nil
}

func (m *mixing) publish(ctx context.Context, c *mixingCaller, durable bool) error {
	for i := range c.items {
		payload(c.items[i].Bytes, c.key(i))
	}
	results, err := m.t.session.Publish(ctx, m.t.run(c.keys), page.View{}, nil, c.items, client.PublishOptions{Durable: durable})
	if err != nil {
		return err
	}
	for _, r := range results {
		switch r.Outcome {
		case client.Committed:
			m.written.Add(uint64(m.o.PageBytes))
		case client.Refused:
			m.busy.Add(1)
		}
	}
	return nil
}
