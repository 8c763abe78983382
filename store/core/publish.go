package core

import (
	"slices"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
)

// publication is a writer's lease: from Begin until all its pages are committed or given up.
//
//	Begin --> asking --Allocated--> live --all committed or aborted--> over
//	             |                    |
//	             +-- session gone, retired, TTL: grants undone --------> over
type publication struct {
	tenure
	token   Token
	ticket  Ticket // of the Begin
	family  uint32
	group   [16]byte
	prov    uint16
	hint    evict.Hint
	pages   []pubPage
	openNow int           // pages that are granted and neither committed nor given up
	allocID uint64        // not 0: asking for places
	items   []AllocItem   // lent to the runtime until Allocated
	results []Result      // kept for the Reply while asking
	passed  []evict.Attrs // pages that were not worth it, for the policy
	above   []PageRef     // parents of these
	passing evict.Ref     // the last of them
}

// pubPage is one page of a publication.
type pubPage struct {
	outcome  Outcome // Granted, then Committed; Refused when given up. Others are as Begin answered
	slot     uint32
	ref      PageRef  // of Present and Committed
	grants   []uint32 // open extents
	items    int      // places that were asked for
	expiry   clock.Wall
	declared float32
}

// openPage finds who writes to a page.
type openPage struct {
	pub   *publication
	index int
}

func (s *Shard) newPublication(b *batch) *publication {
	ev := b.ev
	pub := &publication{
		token:  Token{Boot: s.o.Boot, Seq: s.o.Ledger.next()},
		ticket: ev.Ticket, family: b.family, group: ev.WriterGroup, prov: ev.Provenance, hint: ev.Hint,
		pages: make([]pubPage, len(ev.Pages)), results: make([]Result, 0, len(ev.Pages)),
	}
	pub.tenure = tenure{
		seq: pub.token.Seq, principal: ev.Principal, session: ev.Session, ep: b.ep, started: s.now, asked: ev.TTL, pub: pub,
	}
	return pub
}

// replyPublish counts refusals and answers a Begin or a Commit.
func (s *Shard) replyPublish(r Reply) {
	for i := range r.Results {
		switch r.Results[i].Outcome {
		case Refused:
			if why := int(r.Results[i].Reason); r.Results[i].Reason == reason.NotWorth {
				s.totals.NotWorth++
			} else if why < len(s.totals.RefusedPages) { // a tier may say anything
				s.totals.RefusedPages[why]++
			}
		case Granted:
			s.totals.Granted++
		}
	}
	s.emit(r)
}

// askForPlaces makes the publication live in the books and asks the tier; with nothing granted it is over at once.
func (s *Shard) askForPlaces(pub *publication) {
	for i := range pub.pages {
		for _, x := range pub.pages[i].grants {
			pub.pages[i].items++
			pub.items = append(pub.items, AllocItem{Extent: x, Bytes: int64(s.extents.At(x).bytes)})
		}
		if pub.pages[i].outcome == Granted {
			pub.openNow++
		}
	}
	if len(pub.items) == 0 {
		s.replyPublish(Reply{Ticket: pub.ticket, At: pub.started, Results: pub.results})
		return
	}
	s.families.retain(pub.family)
	s.tenures.add(&pub.tenure)
	s.pubs[pub.token] = pub
	if pub.ep.state.Strict {
		pub.ep.groups[pub.group]++
	}
	s.nextID++
	pub.allocID = s.nextID
	s.allocs[pub.allocID] = pub
	st := &pub.ep.state
	s.emit(Alloc{ID: pub.allocID, Tier: s.o.Tier, Namespace: st.ID, Epoch: st.Epoch, Items: pub.items, Tenant: st.Tenant, Worth: s.worthOf(pub)})
}

// allocated gives the places to the grants in order. A page that did not get all of its places, and every granted page
// after it, is refused: what is granted of a run has no hole.
func (s *Shard) allocated(ev *Allocated) {
	pub := s.allocs[ev.ID]
	delete(s.allocs, ev.ID)
	if pub == nil || pub.allocID == 0 { // given up meanwhile; nobody has been told of these places
		for _, p := range ev.Places {
			s.emit(Free{p})
		}
		return
	}
	pub.allocID, pub.items = 0, nil
	why := ev.Err
	if why == reason.None {
		why = reason.Busy
	}
	places, short, from := ev.Places, false, 0
	for i := range pub.pages {
		pp := &pub.pages[i]
		mine := places[:min(pp.items, len(places))]
		places = places[len(mine):]
		if pp.outcome == Granted && !short && s.placeGrants(pub, i, mine) {
			continue
		}
		for _, p := range mine {
			s.emit(Free{p})
		}
		if pp.outcome == Granted && !short {
			short, from = true, i
		}
		if pp.outcome == Granted && why == reason.NotWorth {
			s.pass(pub, i)
		}
	}
	for i := range slices.Backward(pub.pages) { // children first: no page stands on nothing meanwhile
		if short && i >= from && pub.pages[i].outcome == Granted {
			s.giveUpPage(pub, i)
			pub.results[i] = Result{Outcome: Refused, Reason: why}
		}
	}
	s.startPublication(pub)
}

// placeGrants puts the grants of page i in their places, all or none.
func (s *Shard) placeGrants(pub *publication, i int, places []Place) bool {
	grants := pub.pages[i].grants
	if len(places) < len(grants) {
		return false
	}
	for j, x := range grants {
		if !s.extents.At(x).setPlace(places[j]) {
			for _, x := range grants[:j] {
				s.extents.At(x).clearPlace()
			}
			return false
		}
		pub.results[i].Grants[j].Place = places[j]
	}
	return true
}

// startPublication answers the Begin; the lease counts from here.
func (s *Shard) startPublication(pub *publication) {
	r := Reply{Ticket: pub.ticket, At: pub.started, Results: pub.results}
	pub.results = nil
	if pub.openNow > 0 {
		s.tenures.setEnd(&pub.tenure, s.grantTTL(s.now, pub.asked))
		pub.started = s.now
		r.Token, r.Until, r.TTL = pub.token, pub.until, pub.until.Sub(s.now)
	} else {
		s.closePublication(pub)
	}
	s.replyPublish(r)
}

// livePublication finds a publication by its token for its owner, once it was answered.
func (s *Shard) livePublication(t Token, by Principal) *publication {
	pub := s.pubs[t]
	if pub == nil || pub.principal != by || pub.allocID != 0 {
		return nil
	}
	return pub
}

// abort gives up pages of a publication; what is committed stays.
func (s *Shard) abort(ev *Abort) {
	pub := s.pubs[ev.Token]
	if pub == nil || pub.allocID != 0 {
		return
	}
	s.revoke(pub, ev.Pages)
	if pub.openNow == 0 {
		s.closePublication(pub)
	}
}

// endPublication gives up all that is not committed.
func (s *Shard) endPublication(pub *publication) {
	if pub.allocID != 0 { // the places that are on their way are freed when they come
		pub.allocID = 0
		why := reason.Aborted
		if pub.ep.state.Life == Retired {
			why = reason.Retired
		}
		for i := range pub.results {
			pub.results[i] = Result{Outcome: Refused, Reason: why}
		}
		s.replyPublish(Reply{Ticket: pub.ticket, Reason: why, Results: pub.results})
		pub.results = nil
		for i := range slices.Backward(pub.pages) {
			if pub.pages[i].outcome == Granted {
				s.giveUpPage(pub, i)
			}
		}
	} else {
		s.revoke(pub, nil)
	}
	s.closePublication(pub)
}

// revoke takes the right to write to the named pages (nil: all) that are still open, then their places.
func (s *Shard) revoke(pub *publication, pages []uint32) {
	s.revoked = s.revoked[:0]
	if pages == nil {
		for i := range pub.pages {
			if pub.pages[i].outcome == Granted {
				s.revoked = append(s.revoked, uint32(i))
			}
		}
	}
	for _, i := range pages {
		if int(i) < len(pub.pages) && pub.pages[i].outcome == Granted {
			s.revoked = append(s.revoked, i)
		}
	}
	if len(s.revoked) == 0 {
		return
	}
	s.emit(Revoke{Token: pub.token, Pages: append([]uint32(nil), s.revoked...)})
	for _, i := range slices.Backward(s.revoked) { // children first: no page stands on nothing meanwhile
		if pub.pages[i].outcome == Granted { // may be named twice
			s.giveUpPage(pub, int(i))
		}
	}
}

// giveUpPage undoes the grants of one page.
func (s *Shard) giveUpPage(pub *publication, i int) {
	s.forgetOpen(pub, i)
	s.ungrant(pub, i)
	pub.pages[i].outcome = Refused
	pub.openNow--
	if pub.results != nil { // not answered yet
		pub.results[i] = Result{Outcome: Refused, Reason: reason.Aborted}
	}
}

// ungrant drops the open extents of a page. The record may go with them.
func (s *Shard) ungrant(pub *publication, i int) {
	pp := &pub.pages[i]
	var slot uint32
	for _, x := range pp.grants {
		slot = s.extents.At(x).owner
		s.dropOpen(x)
	}
	pp.grants = nil
	if slot != 0 {
		s.settle(slot)
	}
}

// forgetOpen ends the note that this publication writes to page i.
func (s *Shard) forgetOpen(pub *publication, i int) {
	slot := pub.pages[i].slot
	list := s.open[slot]
	for j := range list {
		if list[j] == (openPage{pub, i}) {
			list = append(list[:j], list[j+1:]...)
			break
		}
	}
	if len(list) == 0 {
		delete(s.open, slot)
		return
	}
	s.open[slot] = list
}

// closePublication takes a publication out of the books; its token is stale from now on.
func (s *Shard) closePublication(pub *publication) {
	s.passOn(pub)
	s.tenures.remove(&pub.tenure)
	delete(s.pubs, pub.token)
	if ep := pub.ep; ep.state.Strict {
		if ep.groups[pub.group]--; ep.groups[pub.group] == 0 {
			delete(ep.groups, pub.group)
		}
	}
	s.families.release(pub.family)
}

// Live reports whether a publication of this token can still be written to and committed.
func (s *Shard) Live(t Token) bool {
	return s.pubs[t] != nil
}
