package core

import (
	"slices"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

func (d *driver) aLease() (LeaseID, *mlease) {
	ids := d.m.leaseIDs()
	if len(ids) == 0 {
		return LeaseID{7}, nil
	}
	id := ids[d.int("lease", 0, len(ids)-1)]
	return id, d.m.lease[id]
}

func (d *driver) release() {
	id, l := d.aLease()
	if l == nil {
		return
	}
	ev := Release{Principal: l.by.principal, Lease: id}
	var keys []mkey
	if d.chance("part", 50) {
		var run Run
		run, keys = d.run()
		ev.Runs = []Run{run}
	}
	d.do(ev)
	if l = d.m.lease[id]; l == nil {
		return
	}
	for _, k := range keys {
		d.m.letGo(l, k)
	}
	if ev.Runs == nil || len(l.entries) == 0 {
		d.m.endLease(id)
	}
	d.m.gc()
}

func (d *driver) renew() {
	id, l := d.aLease()
	if l == nil {
		return
	}
	ev := Renew{Ticket: d.w.ticket(), Principal: l.by.principal, Lease: id, TTL: 30 * time.Second}
	d.do(ev)
	r := d.w.reply(ev.Ticket)
	if l = d.m.lease[id]; l == nil {
		if r.Reason != reason.LeaseExpired {
			d.t.Fatalf("renewal of what is over: %v", r.Reason)
		}
		return
	}
	if r.Reason != reason.None || r.Until < l.until {
		d.t.Fatalf("renewal: %v until %d, was %d", r.Reason, r.Until, l.until)
	}
	l.until = r.Until
}

func (d *driver) read() {
	run, keys := d.run()
	ev := Read{Ticket: d.w.ticket(), Principal: d.principal(), Run: run, View: d.view(), NoTouch: d.chance("still", 50)}
	if d.chance("leased", 50) {
		ev.Lease, _ = d.aLease()
	}
	d.do(ev)
	r := d.w.reply(ev.Ticket)
	d.open = append(d.open, ev.Ticket)
	l := d.m.lease[ev.Lease]
	if ev.Lease != (LeaseID{}) && (l == nil || l.by.principal != ev.Principal) {
		if r.Reason != reason.LeaseExpired {
			d.t.Fatalf("read under a lease of another, or none: %v", r.Reason)
		}
		return
	}
	for i, k := range keys {
		d.expectRead(&ev, k, l, r.Results[i])
	}
}

func (d *driver) expectRead(ev *Read, k mkey, l *mlease, got Result) {
	var ext []*mextent
	var expiry clock.Wall
	if p := d.m.pages[k]; p != nil {
		ext, expiry = p.ext, p.expiry
	}
	if l != nil {
		life := l.entries[k]
		if life == nil {
			if got.Reason != reason.LeaseExpired {
				d.t.Fatalf("read of %v, which the lease does not cover: %s", k, show(got))
			}
			return
		}
		if life.ended {
			ext, expiry = life.gone, life.expiry
		}
	}
	why := d.m.served(ext, expiry, d.w.wall, ev.View)
	if got.Reason != why || (got.Outcome == OK) != (why == reason.None) {
		d.t.Fatalf("read of %v: got %s, want %v", k, show(got), why)
	}
	var cells mask
	for _, part := range got.Parts {
		if cells&maskOf(part.Take) != 0 || !part.View.Contains(part.Take) || !part.Accepted {
			d.t.Fatalf("read of %v: parts %s", k, show(got))
		}
		cells |= maskOf(part.Take)
		if !slices.ContainsFunc(ext, func(e *mextent) bool {
			_, inHost := e.in(evict.Host)
			return e.pub == nil && slices.Contains(e.places, part.Place) && e.cells == maskOf(part.View) && d.m.accepted(e) &&
				inHost == (part.Place.Tier == evict.Host)
		}) {
			d.t.Fatalf("read of %v: bytes at %v are not its own", k, part.Place)
		}
	}
	if why == reason.None && cells != maskOf(ev.View) {
		d.t.Fatalf("read of %v: %08b of %08b", k, cells, maskOf(ev.View))
	}
}

func (d *driver) readDone() {
	if len(d.open) > 0 {
		i := d.int("read", 0, len(d.open)-1)
		t := d.open[i]
		d.open = slices.Delete(d.open, i, i+1)
		d.m.expire(d.w.now)
		d.w.readDone(t)
	}
}

func (d *driver) deleteRun() {
	run, keys := d.run()
	ev := Delete{Ticket: d.w.ticket(), Runs: []Run{run}}
	d.m.expire(d.w.now)
	had := map[mkey]bool{}
	for _, k := range keys {
		had[k] = d.m.pages[k] != nil && len(d.m.pages[k].ext) > 0
	}
	var writing int
	for _, tr := range d.w.transfers {
		if k, known := d.find(tr.From); known && tr.To == evict.Disk && slices.Contains(keys, k) {
			writing++
		}
	}
	d.do(ev)
	r, answered := d.w.replies[ev.Ticket]
	stopped := d.w.s.readOnly[evict.Disk]
	if answered != (writing == 0 || stopped) || answered && (r.Reason == reason.Busy) != (writing > 0) {
		d.t.Fatalf("delete answered: %v, %v, while %d of its extents are being written to a disk that is stopped: %v", answered, r.Reason, writing, stopped)
	}
	for i := range keys {
		if answered && (r.Results[i].Outcome == OK) != had[keys[i]] {
			d.t.Fatalf("delete of %v: %s, had %v", keys[i], show(r.Results[i]), had[keys[i]])
		}
		for _, pub := range d.m.pubs {
			for n, g := range pub.pages {
				if g.key == keys[i] {
					d.m.giveUp(pub, n)
				}
			}
		}
	}
	d.m.closeEmpty()
}

func (d *driver) pinRun() {
	run, keys := d.run()
	ev := Pin{Ticket: d.w.ticket(), Principal: d.principal(), Runs: []Run{run}, Unpin: d.chance("unpin", 40)}
	d.do(ev)
	l := d.m.held[ev.Principal]
	if l == nil {
		l = &mlease{by: payer{ev.Principal, 0}, entries: map[mkey]*mlife{}}
	}
	for i, res := range d.w.reply(ev.Ticket).Results {
		p := d.m.pages[keys[i]]
		want := OK
		switch {
		case ev.Unpin && l.entries[keys[i]] != nil:
			d.m.letGo(l, keys[i])
		case p == nil || !p.committed() || p.expiry != 0 && d.w.wall >= p.expiry:
			want = Miss
		case ev.Unpin:
		case !d.m.hold(l, keys[i]):
			want = Refused
		}
		if res.Outcome != want {
			d.t.Fatalf("pin of %v: %s, want %s", keys[i], show(res), outcomeNames[want])
		}
	}
	delete(d.m.held, ev.Principal)
	if len(l.entries) > 0 {
		d.m.held[ev.Principal] = l
	}
	d.m.gc()
}

func (d *driver) waive() {
	st := d.m.st
	st.Accepts = []uint64{1<<1 | st.Accepts[0] ^ 1<<d.int("provenance", 2, 3)}
	d.m.expire(d.w.now)
	d.m.st = st
	d.do(NamespaceChanged{st})
}

// retire ends the namespace's life and begins another.
func (d *driver) retire() {
	old := d.m.st
	old.Life = Retired
	fresh := newModel(testNamespace(1, old.Epoch+1), d.m.limit)
	d.do(NamespaceChanged{old})
	r := chain(familyIn(old, testGroup), 0, 0, 1)
	if _, hits, why := d.w.s.Exists(d.w.wall, &r, page.View{}, make([]byte, 1), 0); hits != 0 || why != reason.Retired {
		d.t.Fatalf("retired: %d hits, %v", hits, why)
	}
	d.m = fresh
	d.do(NamespaceChanged{fresh.st})
	if _, hits, why := d.w.s.Exists(d.w.wall, &r, page.View{}, make([]byte, 1), 0); hits != 0 || why != reason.StaleEpoch {
		d.t.Fatalf("purged: %d hits, %v", hits, why)
	}
}

func (d *driver) corrupt() {
	if x := uint32(d.int("extent", 1, 40)); x <= d.w.s.extents.top && d.w.s.extents.At(x).state() != extentFree {
		e := d.w.s.extents.At(x)
		gone := e.state() == extentGone
		at := e.place()
		d.do(CorruptFound{Extent: x, Place: at})
		for _, life := range d.m.gone {
			life.gone = slices.DeleteFunc(life.gone, func(m *mextent) bool { return gone && m.drop(at) && len(m.places) == 0 })
		}
		d.m.gc()
	}
}

func (d *driver) move() {
	x := uint32(d.int("extent", 1, 40))
	if x > d.w.s.extents.top {
		return
	}
	n := len(d.w.transfers)
	e := *d.w.s.extents.At(x)
	drop := evict.Score(d.int("drop", -1, 3))
	frees := 0
	d.do(Move{Extent: x, From: e.place(), Drop: drop})
	for _, eff := range d.w.effects {
		if f, ok := eff.(Free); ok && f.Place == e.place() {
			frees++
		}
	}
	if movable := e.state() == extentCommitted && e.users == 0; movable != (len(d.w.transfers)+frees == n+1) && e.place() != (Place{}) {
		if _, known := d.find(e.place()); known { // may have expired in this very Step
			d.t.Fatalf("move of an extent in state %d with %d users: %d transfers, %d freed", e.state(), e.users, len(d.w.transfers)-n, frees)
		}
	}
}

func (d *driver) finishMove() {
	if len(d.w.transfers) == 0 {
		return
	}
	i := d.int("transfer", 0, len(d.w.transfers)-1)
	tr := d.w.transfers[i]
	k, known := d.find(tr.From)
	why := reason.None
	if d.chance("fails", 20) {
		why = reason.Corrupt
	} else if d.chance("not worth it", 20) {
		why = reason.NotWorth
	}
	d.prepare(TransferDone{ID: tr.ID})
	d.w.finishTransfer(i, why)
	if !known || tr.Into != tr.Extent {
		d.copied(k, known, tr, why)
		return
	}
	for _, e := range d.m.pages[k].ext {
		if e.drop(tr.From) {
			e.places = append(e.places, d.w.s.extents.At(tr.Extent).place())
		}
	}
}

// copied files a copy that was announced.
func (d *driver) copied(k mkey, known bool, tr Transfer, why reason.Reason) {
	if len(d.added) == 0 {
		return // it failed, or its source is gone
	}
	if !known || why != reason.None || len(d.added) > 1 || d.added[0].Place.Tier != tr.To || d.keyOf(d.added[0]) != k {
		d.t.Fatalf("copy of %v from %v announced: %+v", k, tr.From, d.added)
	}
	for _, e := range d.m.pages[k].ext {
		if e.pub == nil && slices.Contains(e.places, tr.From) {
			e.places = append(e.places, d.added[0].Place)
		}
	}
}

func (d *driver) persist() {
	run, keys := d.run()
	ev := Persist{Ticket: d.w.ticket(), Run: run, View: d.view()}
	d.do(ev)
	r, ok := d.w.replies[ev.Ticket]
	if !ok {
		return // it waits, so something was to be written
	}
	for i, k := range keys {
		p := d.m.pages[k]
		accepted, hidden, _ := d.m.cells(p)
		if p != nil && p.expiry != 0 && d.w.wall >= p.expiry {
			accepted = 0
		}
		if stored := accepted&maskOf(ev.View) != 0; stored != (r.Results[i].Outcome == Committed) && r.Results[i].Reason != reason.Busy {
			d.t.Fatalf("persist of %v: %s, accepted %08b, hidden %08b", k, show(r.Results[i]), accepted, hidden)
		}
		if r.Results[i].Outcome == Committed {
			for _, e := range p.ext {
				if _, there := e.in(evict.Disk); !there && e.pub == nil && d.m.accepted(e) && e.cells&maskOf(ev.View) != 0 {
					d.t.Fatalf("persist of %v: done at once, and %v is not there", k, e)
				}
			}
		}
	}
}

func (d *driver) promote() {
	if len(d.open) == 0 {
		return
	}
	t := d.open[d.int("read", 0, len(d.open)-1)]
	var parts []uint32
	for _, res := range d.w.reply(t).Results {
		for _, part := range res.Parts {
			parts = append(parts, part.Extent)
		}
	}
	d.w.landed = d.w.landed[:0]
	d.do(Promote{Ticket: t, Extents: parts})
	for _, l := range d.w.landed {
		if l.Ticket != t || l.Err == reason.Absent || l.Err == reason.None && l.Place.Tier != evict.Host {
			d.t.Fatalf("promoted: %+v", l)
		}
	}
}

// written holds a Transfer that a WriteBehind asked for against its rule: where every page before is needed, the parent is on
// Disk, or on its way there.
func (d *driver) written(tr Transfer) {
	k, known := d.find(tr.From)
	if !known {
		d.t.Fatalf("write-behind of %+v, which is nowhere", tr)
	}
	p := d.m.pages[k]
	if p.parent == nil || d.m.st.Groups[k.group].Parents != ParentPrefix {
		return
	}
	if d.m.doomed(k, d.w.wall) && d.rest {
		d.t.Fatalf("write-behind of %v, which is doomed", k)
	}
	for _, e := range d.m.pages[*p.parent].ext {
		if _, ok := e.in(evict.Disk); ok {
			return
		}
	}
	if !slices.Contains(d.copiedTo(*p.parent), evict.Disk) {
		d.t.Fatalf("write-behind of %v before its parent", k)
	}
}

func (d *driver) restart() {
	d.m.expire(d.w.now)
	d.w.restart(d.m.st)
	d.m.restart(d.w.wall)
	d.open, d.asked = nil, nil
}

func (d *driver) advance() {
	d.w.now = d.w.now.Add(time.Duration(d.int("ms", 1, 8000)) * time.Millisecond)
	d.w.wall = 1000 + clock.Wall(time.Duration(d.w.now)/time.Second)
}
