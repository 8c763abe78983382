package core

import (
	"testing"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

func TestCase_C22_DeletedWhileItIsCopied(t *testing.T) {
	for name, c := range map[string]struct {
		start  func(w *world, f page.Family) // a transfer of page 0
		answer bool                          // the Delete is answered at once
	}{
		"to Disk": {func(w *world, f page.Family) { w.persist(f, 0, 0, 1) }, false},
		"to Host": {func(w *world, f page.Family) {
			w.settleOnDisk(f, 0, 0, 1)
			w.reclaimAll(evict.Host)
			r := w.read(f, 1, LeaseID{}, page.View{}, 0, 0, 1)
			w.promote(r)
			w.readDone(r.Ticket)
		}, true},
		"moved on Disk": {func(w *world, f page.Family) {
			w.settleOnDisk(f, 0, 0, 1)
			x := w.copyOf(f, 0, 0, evict.Disk)
			w.do(Move{Extent: x, From: w.s.extents.At(x).place()})
		}, false},
	} {
		for _, why := range []reason.Reason{reason.None, reason.Busy} {
			for _, leased := range []bool{false, true} {
				w, f := newTestWorld(t, 1<<20)
				w.publish(f, 0, 0, 1)
				c.start(w, f)
				var l Reply
				if leased {
					l = w.lookup(f, 1, 0, 0, 0, 1)
				}
				d := Delete{Ticket: w.ticket(), Runs: []Run{chain(f, 0, 0, 1)}}
				w.do(d)
				if _, answered := w.replies[d.Ticket]; answered != c.answer || w.leading(f, 0, 0, 1) != 0 {
					t.Errorf("%s: answered %v, %d pages left", name, answered, w.leading(f, 0, 0, 1))
				}
				w.check()
				w.finishTransfer(0, why)
				if w.reply(d.Ticket).Results[0].Outcome != OK || w.leading(f, 0, 0, 1) != 0 {
					t.Errorf("%s: %s, %d pages came back", name, show(w.reply(d.Ticket).Results[0]), w.leading(f, 0, 0, 1))
				}
				for n, e := range w.effects { // whoever hears that it is deleted may rely on it
					if r, ok := e.(Reply); ok && r.Ticket == d.Ticket && n < len(w.effects)-1 {
						if _, free := w.effects[len(w.effects)-1].(Free); free {
							t.Errorf("%s: answered before the place is freed", name)
						}
					}
				}
				w.check()
				if leased {
					if w.readReason(f, 1, l.Lease, page.View{}, 0, 0) != reason.None {
						t.Errorf("%s: the lease lost its page", name)
					}
					w.do(Release{Principal: 1, Lease: l.Lease})
				}
				w.publish(f, 0, 0, 1)
				w.restart()
				if w.tier.used != 0 || w.disk.used != 0 || w.leading(f, 0, 0, 1) != 0 {
					t.Errorf("%s: %d and %d bytes after a restart", name, w.tier.used, w.disk.used)
				}
			}
		}
	}
}

// Whatever was under way when the process died, what is listed afterwards can be read.
func TestCase_C24_RestartBetweenTiers(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	w.publish(f, 0, 0, 8)
	w.settleOnDisk(f, 0, 0, 3)
	w.persist(f, 0, 3, 6) // under way
	w.reclaimAll(evict.Host)
	r := w.read(f, 1, LeaseID{}, page.View{}, 0, 0, 2)
	w.promote(r) // under way too
	x := w.copyOf(f, 0, 2, evict.Disk)
	w.do(Move{Extent: x, From: w.s.extents.At(x).place()})
	w.check()
	w.restart()
	if n := w.leading(f, 0, 0, 8); n != 3 {
		t.Errorf("%d pages lead after a restart", n)
	}
	l := w.lookup(f, 1, 0, 0, 0, 8)
	r = w.read(f, 1, l.Lease, page.View{}, 0, 0, int(l.Leading[0]))
	w.promote(r)
	w.finishTransfers()
	if len(w.landed) != 3 {
		t.Errorf("%d parts landed", len(w.landed))
	}
	for _, e := range w.landed {
		if e.Err != reason.None || e.Place.Tier != evict.Host {
			t.Errorf("listed, and not readable: %+v", e)
		}
	}
	w.readDone(r.Ticket)
	w.publish(f, 0, 3, 8)
	if n := w.leading(f, 0, 0, 8); n != 8 {
		t.Errorf("%d pages lead after they were published again", n)
	}
	w.check()
}

// Nearly all pages are on Disk only, many of them children of what is in Host: they neither count nor stand in the way.
func TestCase_C26_HostFreesAmongPagesOnDisk(t *testing.T) {
	const chains, depth, pageBytes = 40, 20, 12288
	w, f := newTestWorld(t, 1<<30)
	for c := range chains {
		w.now = w.now.Add(time.Second)
		w.publish(f, c, 0, depth)
		w.settleOnDisk(f, c, 0, depth)
	}
	w.reclaimAll(evict.Host)
	var reads []Reply
	for c := range chains { // 5 % come back to Host: the first page of each chain
		w.now = w.now.Add(time.Second)
		r := w.read(f, 1, LeaseID{}, page.View{}, c, 0, 1)
		w.promote(r)
		reads = append(reads, r)
	}
	w.finishTransfers()
	for _, r := range reads {
		w.readDone(r.Ticket)
	}
	if w.tier.used != chains*pageBytes {
		t.Fatalf("%d bytes in Host", w.tier.used)
	}
	for _, clean := range []bool{false, true} {
		for _, want := range []uint64{1, pageBytes, 2*pageBytes + 1, 7 * pageBytes} {
			before := w.tier.used
			w.do(Reclaim{Tier: evict.Host, Bytes: want, Clean: clean})
			if freed := uint64(before - w.tier.used); freed != w.reclaimed || freed < want || freed >= want+pageBytes {
				t.Errorf("asked for %d bytes, freed %d, told %d", want, freed, w.reclaimed)
			}
		}
	}
	if n := w.s.Totals(); n.Pages != chains*depth || n.Evicted != 0 {
		t.Errorf("%d pages left, %d evicted", n.Pages, n.Evicted)
	}
	w.check()
}

// Under pressure on both tiers, in any mixture, what survives of a chain is a prefix, and in each tier too.
func TestCase_C27_WhatSurvivesOnTwoTiersIsAPrefix(t *testing.T) {
	const n = 60
	for _, restart := range []bool{false, true} {
		w, f := newTestWorld(t, 1<<30)
		w.publish(f, 0, 0, n)
		w.settleOnDisk(f, 0, 0, n*2/3)
		for round := 0; w.s.Totals().Pages > 0; round++ {
			w.now = w.now.Add(time.Second)
			if round%5 == 3 { // something comes back to Host
				r := w.read(f, 1, LeaseID{}, page.View{}, 0, 0, 1+round%7)
				w.promote(r)
				w.finishTransfers()
				w.readDone(r.Ticket)
			}
			if restart && round == n/2 {
				w.restart()
			}
			tier := evict.Host
			if round%3 == 1 || w.tier.used == 0 {
				tier = evict.Disk
			}
			w.do(Reclaim{Tier: tier, Bytes: 1})
			lead := w.leading(f, 0, 0, n)
			if uint64(lead) != w.s.Totals().Pages {
				t.Fatalf("round %d: %d pages left, of which %d lead", round, w.s.Totals().Pages, lead)
			}
			for tier, name := range map[evict.Tier]string{evict.Host: "Host", evict.Disk: "Disk"} {
				copies, lead := w.s.Totals().Tiers[tier].Extents, uint64(0)
				for lead < n && w.copyOf(f, 0, int(lead), tier) != 0 {
					lead++
				}
				if copies != lead {
					t.Fatalf("round %d: %d pages in %s, of which %d lead", round, copies, name, lead)
				}
			}
			w.check()
		}
	}
}

// Nothing of a retired life is ever a hit: not under way to another tier, not after a restart.
func TestCase_C67_RetiredOnDisk(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	w.publish(f, 0, 0, 6)
	w.settleOnDisk(f, 0, 0, 3)
	kept := w.kept()
	ticket := w.persist(f, 0, 3, 5)
	old := testNamespace(1, 1)
	old.Life = Retired
	w.do(NamespaceChanged{old})
	w.check()
	w.finishTransfers()
	if r := w.reply(ticket); r.Results[0].Outcome != Refused {
		t.Errorf("persist of what was retired meanwhile: %s", show(r.Results[0]))
	}
	w.check()
	w.do(NamespaceChanged{testNamespace(1, 2)})
	fresh := familyIn(testNamespace(1, 2), testGroup)
	for _, e := range append(kept, kept...) { // bytes not yet reclaimed
		e.Place, _ = w.disk.alloc(evict.Disk, e.Place.Bytes)
		if x := w.restore(e)[0]; x != 0 {
			t.Errorf("restored as %d", x)
		}
	}
	w.settle()
	w.restart(old, testNamespace(1, 2))
	if w.leading(f, 0, 0, 6) != 0 || w.leading(fresh, 0, 0, 6) != 0 || w.disk.used != 0 {
		t.Errorf("pages of a retired life are found, or %d bytes are kept", w.disk.used)
	}
	w.publish(fresh, 0, 0, 2)
	w.settleOnDisk(fresh, 0, 0, 2)
	w.restart(old, testNamespace(1, 2))
	if w.leading(fresh, 0, 0, 6) != 2 || w.s.Totals().Pages != 2 {
		t.Errorf("%d pages of the new life", w.leading(fresh, 0, 0, 6))
	}
}
