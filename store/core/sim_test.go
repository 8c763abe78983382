package core

import (
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the simulation; 0: a fixed set")

// simulation is a node of several shards that share one ledger and one tier, with writers that die, readers that
// forget, operators, time and memory that is refused.
type simulation struct {
	rnd    *rand.Rand
	tier   *fakeTier
	disk   *fakeTier
	ledger *Ledger
	nodes  []*world
	spaces []NamespaceState // by shard
	leases [][]leaseOf
	pubs   [][]pubOf
	reads  [][]Ticket
	waits  [][]Ticket // Persists and Deletes
	trace  io.Writer  // every effect goes in
	marks  map[string]int
}

type leaseOf struct {
	id LeaseID
	by Principal
}

type pubOf struct {
	token Token
	by    Principal
	pages int
}

const (
	simShards = 3
	simTier   = 100 * 12288
	simDisk   = 60 * 12288
	simDepth  = 12
	simChains = 4
)

func newSimulation(t *testing.T, seed uint64, trace io.Writer) *simulation {
	m := &simulation{
		rnd: rand.New(rand.NewPCG(seed, 1)), tier: newFakeTier(t, simTier), disk: newFakeTier(t, simDisk), trace: trace, marks: map[string]int{},
		ledger: NewLedger(Limits{Pages: 110, Extents: 220, Capacity: [evict.NumTiers]uint64{evict.Host: simTier, evict.Disk: simDisk}}),
		leases: make([][]leaseOf, simShards), pubs: make([][]pubOf, simShards), reads: make([][]Ticket, simShards), waits: make([][]Ticket, simShards),
	}
	for i := range simShards {
		policy := evict.Policy(evict.NewLRU(1024))
		if seed%2 == 0 {
			policy = evict.NewVBR(1024, seed+uint64(i))
		}
		w := newWorld(t, 0, Options{Ledger: m.ledger, Policy: policy, SweepRecords: 16, FingerprintKey: seed, WriteBehind: true, MaxBehind: 10})
		w.tier, w.disk = m.tier, m.disk
		w.makeRoom = m.reclaim
		w.onEffect = func(e Effect) { m.observe(i, e) }
		m.nodes = append(m.nodes, w)
		st := testNamespace(byte(i+1), 1)
		st.Tenant = uint32(i + 1)
		m.spaces = append(m.spaces, st)
		w.do(NamespaceChanged{m.spaces[i]})
	}
	return m
}

func (m *simulation) observe(shard int, e Effect) {
	fmt.Fprintf(m.trace, "%d %T %+v\n", shard, e, e)
	switch e := e.(type) {
	case Reply:
		if e.Reason != reason.None {
			m.marks["call "+e.Reason.String()]++
		}
		for _, r := range e.Results {
			m.marks[outcomeNames[r.Outcome]+" "+r.Reason.String()]++
		}
	case Announce:
		if e.Removed {
			m.marks["removed "+e.Why.String()]++
		}
		if e.Removed && e.Place.Tier == evict.Disk {
			m.marks["removed from disk "+e.Why.String()]++
		}
	case MoveRefused:
		m.marks["move refused"]++
	case Transfer:
		m.marks["transfer "+e.From.Tier.String()+" to "+e.To.String()]++
	case Landed:
		m.marks["landed "+e.Err.String()]++
	case Behind:
		m.marks["behind"]++
	case Restored:
		for _, x := range e.Extents {
			if x != 0 {
				m.marks["restored"]++
			} else {
				m.marks["not restored"]++
			}
		}
	}
}

// reclaim asks the shard whose next victim is worth least, as the runtime does.
func (m *simulation) reclaim(r Reclaim) (freed uint64, notWorth bool) {
	var lowest *world
	var least evict.Score
	for _, w := range m.nodes {
		if score, ok := w.s.NextVictim(w.now, r); ok && (lowest == nil || score < least) {
			lowest, least = w, score
		}
	}
	if lowest == nil {
		return 0, false
	}
	return lowest.reclaim(r)
}

func (m *simulation) run(i int) (Run, int) {
	from := m.rnd.IntN(simDepth)
	to := from + 1 + m.rnd.IntN(simDepth-from)
	if m.rnd.IntN(2) == 0 {
		from = 0
	}
	return chain(familyIn(m.spaces[i], testGroup), m.rnd.IntN(simChains), from, to), to - from
}

func (m *simulation) views() page.View {
	return []page.View{{}, {}, {H0: 0, H1: 1, L0: 0, L1: 4}, {H0: 1, H1: 2, L0: 0, L1: 4}}[m.rnd.IntN(4)]
}

func (m *simulation) step() {
	i := m.rnd.IntN(simShards)
	w := m.nodes[i]
	if m.rnd.IntN(3) == 0 {
		m.tierStep(i)
		return
	}
	by, session := Principal(1+m.rnd.IntN(3)), Session(m.rnd.IntN(4))
	switch n := m.rnd.IntN(100); {
	case n < 30:
		r, pages := m.run(i)
		b := w.beginEvent(r, m.views())
		b.Principal, b.Session, b.Provenance = by, session, uint16(1+m.rnd.IntN(3))
		if m.rnd.IntN(10) == 0 {
			b.Pages[len(b.Pages)-1].Expiry = w.wall + clock.Wall(1+m.rnd.IntN(20))
		}
		if r := w.begin(b); r.Token != (Token{}) {
			m.pubs[i] = append(m.pubs[i], pubOf{r.Token, by, pages})
		}
	case n < 55:
		if p, ok := pick(m.rnd, m.pubs[i]); ok {
			var pages []uint32
			for j := range p.pages {
				if m.rnd.IntN(8) > 0 {
					pages = append(pages, uint32(j))
				}
			}
			w.do(w.commitEvent(familyIn(m.spaces[i], testGroup), p.by, p.token, pages...))
		}
	case n < 63:
		r, _ := m.run(i)
		l := Lookup{Ticket: w.ticket(), Principal: by, Session: session, Runs: []Run{r}, View: m.views(), TTL: 5 * time.Second}
		w.do(l)
		if r := w.reply(l.Ticket); r.Lease != (LeaseID{}) {
			m.leases[i] = append(m.leases[i], leaseOf{r.Lease, by})
		}
	case n < 72:
		r, _ := m.run(i)
		e := Read{Ticket: w.ticket(), Principal: by, Run: r, View: m.views()}
		if l, ok := pick(m.rnd, m.leases[i]); ok && m.rnd.IntN(2) == 0 {
			e.Lease, e.Principal = l.id, l.by
		}
		w.do(e)
		m.reads[i] = append(m.reads[i], e.Ticket)
	case n < 80:
		if len(m.reads[i]) > 0 {
			w.readDone(m.reads[i][0])
			m.reads[i] = m.reads[i][1:]
		}
	case n < 84:
		if l, ok := pick(m.rnd, m.leases[i]); ok {
			w.do(Release{Principal: l.by, Lease: l.id})
		}
	case n < 86:
		w.do(SessionGone{session})
	case n < 89:
		r, _ := m.run(i)
		d := Delete{Ticket: w.ticket(), Runs: []Run{r}}
		w.do(d)
		m.waits[i] = append(m.waits[i], d.Ticket)
	case n < 91:
		r, _ := m.run(i)
		w.do(Pin{Ticket: w.ticket(), Principal: by, Runs: []Run{r}, Unpin: m.rnd.IntN(3) > 0})
	case n < 93:
		x := uint32(1 + m.rnd.IntN(40))
		if e := w.s.extentAt(x); e != nil && e.state() != extentFree {
			w.do(CorruptFound{x, e.place()})
		}
	case n < 95:
		x := uint32(1 + m.rnd.IntN(40))
		if e := w.s.extentAt(x); e != nil {
			w.do(Move{Extent: x, From: e.place(), Drop: evict.Score(m.rnd.IntN(2000))})
		}
	case n < 97:
		st := &m.spaces[i]
		st.Accepts = []uint64{1<<1 | st.Accepts[0] ^ 1<<(2+m.rnd.IntN(2))}
		w.do(NamespaceChanged{*st})
	case n == 97 && m.rnd.IntN(4) == 0:
		old := m.spaces[i]
		old.Life = Retired
		w.do(NamespaceChanged{old})
		m.spaces[i] = testNamespace(byte(i+1), old.Epoch+1)
		m.spaces[i].Tenant = old.Tenant
		w.do(NamespaceChanged{m.spaces[i]})
	default:
		m.advance(time.Duration(m.rnd.IntN(3000))*time.Millisecond, m.rnd.IntN(3) == 0)
	}
}

// tierStep is something between the tiers of shard i: transfers end in any order, some badly; tiers stop and resume; the
// node dies and comes back.
func (m *simulation) tierStep(i int) {
	w := m.nodes[i]
	switch n := m.rnd.IntN(100); {
	case n < 40:
		if k := len(w.transfers); k > 0 {
			before := w.s.totals.Tiers
			w.finishTransfer(m.rnd.IntN(k), []reason.Reason{reason.None, reason.None, reason.None, reason.Busy, reason.Corrupt, reason.NotWorth}[m.rnd.IntN(6)])
			for t := range before {
				if w.s.totals.Tiers[t].NotWorth > before[t].NotWorth {
					m.marks["not worth "+evict.Tier(t).String()]++
				}
			}
			if len(w.transfers) == k {
				m.marks["again, not judged"]++
			}
		}
	case n < 55:
		w.do(WriteBehind{Bytes: uint64(1 + m.rnd.IntN(100000))})
	case n < 67:
		r, _ := m.run(i)
		p := Persist{Ticket: w.ticket(), Run: r, View: m.views()}
		w.do(p)
		m.waits[i] = append(m.waits[i], p.Ticket)
	case n < 87:
		if t, ok := pick(m.rnd, m.reads[i]); ok {
			w.promote(w.reply(t))
		}
	case n < 93:
		w.do(Reclaim{Tier: evict.Tier(1 + m.rnd.IntN(2)), Bytes: uint64(m.rnd.IntN(50000)), Clean: m.rnd.IntN(2) == 0})
	case n < 99:
		e := TierState{Tier: evict.Tier(1 + m.rnd.IntN(2)), Writable: m.rnd.IntN(3) > 0}
		for _, w := range m.nodes {
			w.do(e)
		}
	case m.rnd.IntN(3) == 0:
		m.restart()
	default:
		m.setTenant(uint32(i + 1))
	}
}

// setTenant gives a tenant another quota, or refuses a guarantee for which there is no room.
func (m *simulation) setTenant(tenant uint32) {
	q := TenantQuota{Quota: uint64(m.rnd.IntN(3)) * 20 * 12288}
	if m.rnd.IntN(4) > 0 {
		q.Guarantee[evict.Host], q.Guarantee[evict.Disk] = uint64(m.rnd.IntN(simTier)), uint64(m.rnd.IntN(simDisk))
	}
	mark := "guarantee set"
	if m.ledger.SetTenant(tenant, q) != nil {
		mark = "guarantee refused"
	}
	m.marks[mark]++
	for _, w := range m.nodes {
		w.do(TenantsChanged{})
	}
}

// restart is of the whole node.
func (m *simulation) restart() {
	m.ledger, m.tier, m.disk = NewLedger(m.ledger.limits), m.tier.renewed(), m.disk.renewed()
	for i, w := range m.nodes {
		m.leases[i], m.pubs[i], m.reads[i], m.waits[i] = nil, nil, nil, nil
		w.reboot(m.ledger, m.tier, m.disk, w.kept())
	}
	m.marks["restart"]++
}

func pick[T any](r *rand.Rand, from []T) (x T, ok bool) {
	if len(from) == 0 {
		return x, false
	}
	return from[r.IntN(len(from))], true
}

func (m *simulation) advance(d time.Duration, tick bool) {
	for _, w := range m.nodes {
		w.now = w.now.Add(d)
		w.wall = 1000 + clock.Wall(time.Duration(w.now)/time.Second)
		if tick {
			w.do(Tick{})
		}
	}
}

func (m *simulation) check(t *testing.T) {
	t.Helper()
	var shards []*Shard
	var bytes tierBytes
	moving := false
	for i, w := range m.nodes {
		if err := w.s.Check(); err != nil {
			t.Fatalf("shard %d: %v", i, err)
		}
		if err := w.checkLeaves(); err != nil {
			t.Fatalf("shard %d: %v", i, err)
		}
		shards = append(shards, w.s)
		moving = moving || len(w.transfers) > 0
		for _, u := range w.s.Usage(nil) {
			for t, n := range u.Tiers {
				bytes[t] += n
			}
		}
	}
	if err := m.ledger.Check(shards...); err != nil {
		t.Fatal(err)
	}
	if held := (tierBytes{evict.Host: uint64(m.tier.used), evict.Disk: uint64(m.disk.used)}); !moving && bytes != held ||
		m.tier.used > simTier || m.disk.used > simDisk {
		t.Fatalf("shards account for %d bytes, the tiers hold %d of %d and %d", bytes, held, simTier, simDisk)
	}
}

// heal lets everything end and then asks for progress: nothing is held any more, and everything can be published.
func (m *simulation) heal(t *testing.T) {
	for i, w := range m.nodes {
		_ = m.ledger.SetTenant(m.spaces[i].Tenant, TenantQuota{}) // only a guarantee can be refused
		w.do(TierState{Tier: evict.Host, Writable: true})
		w.do(TierState{Tier: evict.Disk, Writable: true})
		for _, ticket := range m.reads[i] {
			w.readDone(ticket)
		}
		w.finishTransfers()
		for _, ticket := range m.waits[i] {
			w.reply(ticket)
		}
		for by := Principal(1); by <= 3; by++ {
			for c := range simChains {
				w.do(Pin{Ticket: w.ticket(), Principal: by, Unpin: true, Runs: []Run{chain(familyIn(m.spaces[i], testGroup), c, 0, simDepth)}})
			}
		}
	}
	for _, w := range m.nodes {
		w.do(TenantsChanged{})
	}
	for range 200 {
		m.advance(time.Second, true)
	}
	m.check(t)
	for i, w := range m.nodes {
		if n := w.s.Totals(); n.ReadLeases != 0 || n.Publications != 0 || n.PinnedBytes != 0 {
			t.Fatalf("shard %d still holds %+v", i, n)
		}
		f := familyIn(m.spaces[i], testGroup)
		w.delete(f, 0, 0, simDepth)
		w.publish(f, 0, 0, simDepth)
		if n := w.leading(f, 0, 0, simDepth); n != simDepth {
			t.Fatalf("shard %d: %d of %d pages after healing", i, n, simDepth)
		}
		w.settleOnDisk(f, 0, 0, simDepth)
		w.reclaimAll(evict.Host)
		r := w.read(f, 1, LeaseID{}, page.View{}, 0, 0, simDepth)
		w.promote(r)
		w.finishTransfers()
		w.readDone(r.Ticket)
		for d := range simDepth {
			if in := w.tiersOf(f, 0, d); in != "host disk" {
				t.Fatalf("shard %d: page %d is in %q after healing", i, d, in)
			}
		}
	}
	m.check(t)
}

func simulate(t *testing.T, seed uint64, steps int) (traceHash uint64, marks map[string]int) {
	trace := fnv.New64a()
	m := newSimulation(t, seed, trace)
	for n := range steps {
		m.step()
		if n%7 == 0 {
			m.check(t)
		}
	}
	m.check(t)
	m.heal(t)
	return trace.Sum64(), m.marks
}

// reachMarks are what a set of simulations must come across, or it shows too little.
var reachMarks = []string{
	"granted none", "committed none", "present none", "refused held", "refused busy", "refused parent_missing",
	"refused aborted", "refused provenance", "miss absent", "miss incomplete", "miss provenance", "miss expired",
	"miss lease_expired", "ok none", "call stale_token", "removed none", "removed absent", "removed expired",
	"removed corrupt", "removed retired", "removed provenance", "move refused", "call lease_expired",
	"transfer host to disk", "transfer disk to host", "transfer disk to disk", "transfer host to host", "landed none", "landed busy",
	"landed corrupt", "behind", "not worth host", "not worth disk", "again, not judged", "restart", "restored", "removed from disk none", "removed from disk absent", "removed from disk expired",
	"removed from disk provenance", "removed from disk corrupt", "guarantee set", "guarantee refused", "refused quota_exceeded",
}

// One long life: the leaf set is what is recomputed from the records all along.
func TestLeafSetOfALongLife(t *testing.T) {
	steps := 50_000
	if testing.Short() {
		steps = 5000
	}
	simulate(t, 50, steps)
}

func TestSimulation(t *testing.T) {
	seeds := []uint64{1, 2, 3, 4, 7}
	steps := 3000
	if *seedFlag != 0 {
		seeds = []uint64{*seedFlag}
	} else if testing.Short() {
		seeds, steps = seeds[:2], 1500
	}
	all := map[string]int{}
	for _, seed := range seeds {
		t.Logf("seed %d (replay with -seed)", seed)
		hash, marks := simulate(t, seed, steps)
		again, _ := simulate(t, seed, steps)
		if hash != again {
			t.Fatalf("seed %d: trace %x, then %x", seed, hash, again)
		}
		for k, n := range marks {
			all[k] += n
		}
	}
	if *seedFlag != 0 || testing.Short() {
		return
	}
	for _, m := range reachMarks {
		if all[m] == 0 {
			t.Errorf("never reached: %s", m)
		}
	}
}
