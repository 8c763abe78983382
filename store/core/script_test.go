package core

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// script runs conversations with one shard. Pages are named chain.depth ("0.3"), ranges chain.from-to ("0.0-4", the end
// not included); publications and leases by the name that `as` gave them. Each command prints the answer, then what else
// the shard asked for.
type script struct {
	w     *world
	st    NamespaceState
	names map[string]any // Token or LeaseID
	reads map[string]Ticket
	waits map[Ticket]string // Persists
}

func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &script{names: map[string]any{}, reads: map[string]Ticket{}, waits: map[Ticket]string{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "new" {
				return s.start(t, d)
			}
			s.w.t = t
			s.w.tier.t, s.w.disk.t = t, t
			out := s.run(t, d)
			s.w.check()
			return out
		})
	})
}

func (s *script) start(t *testing.T, d *datadriven.TestData) string {
	pages, quota := 1000, 0
	d.MaybeScanArgs(t, "pages", &pages)
	d.MaybeScanArgs(t, "quota", &quota)
	s.w = newWorld(t, int64(pages)*12288, Options{WriteBehind: d.HasArg("behind")})
	s.st = testNamespace(1, 1)
	s.st.Strict = d.HasArg("strict")
	s.st.Quota = uint64(quota) * 12288
	s.w.do(NamespaceChanged{s.st})
	return ""
}

// pages reads the first argument.
func (s *script) pages(t *testing.T, d *datadriven.TestData) Run {
	var c, from, to int
	if n, _ := fmt.Sscanf(d.CmdArgs[0].Key, "%d.%d-%d", &c, &from, &to); n == 2 {
		to = from + 1
	} else if n != 3 {
		d.Fatalf(t, "%q is no page range", d.CmdArgs[0].Key)
	}
	g := testGroup
	switch {
	case d.HasArg("alone"):
		g = aloneGroup
	case d.HasArg("window"):
		g = windGroup
	}
	return chain(familyIn(s.st, g), c, from, to)
}

func (s *script) view(t *testing.T, d *datadriven.TestData) (v page.View) {
	var text string
	if d.MaybeScanArgs(t, "view", &text); text != "" {
		if _, err := fmt.Sscanf(text, "%d-%dx%d-%d", &v.H0, &v.H1, &v.L0, &v.L1); err != nil {
			d.Fatalf(t, "view %q: %v", text, err)
		}
	}
	return v
}

func (s *script) principal(t *testing.T, d *datadriven.TestData) Principal {
	p := uint64(1)
	d.MaybeScanArgs(t, "by", &p)
	return Principal(p)
}

func (s *script) lease(t *testing.T, d *datadriven.TestData) (id LeaseID) {
	var name string
	if d.MaybeScanArgs(t, "lease", &name); name != "" {
		id, _ = s.names[name].(LeaseID)
	}
	return id
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	w := s.w
	ticket := w.ticket()
	w.effects = w.effects[:0]
	switch d.Cmd {
	case "begin":
		s.begin(t, d, ticket)
	case "commit", "abort", "renew", "release":
		s.named(t, d, ticket)
	case "lookup":
		l := Lookup{Ticket: ticket, Principal: s.principal(t, d), Runs: []Run{s.pages(t, d)}, View: s.view(t, d), TTL: 10 * time.Second, Link: d.HasArg("link")}
		w.do(l)
		s.name(t, d, w.reply(ticket).Lease)
	case "read":
		r := Read{Ticket: ticket, Principal: s.principal(t, d), Run: s.pages(t, d), View: s.view(t, d), Lease: s.lease(t, d), AnyView: d.HasArg("any")}
		w.do(r)
		var name string
		if d.MaybeScanArgs(t, "as", &name); name != "" {
			s.reads[name] = ticket
		} else {
			shown := s.effects(ticket)
			w.readDone(ticket)
			return shown + s.effects(0)
		}
	case "done":
		w.readDone(s.reads[d.CmdArgs[0].Key])
	case "exists":
		r := s.pages(t, d)
		bits := make([]byte, 8)
		leading, hits, why := w.s.Exists(w.wall, &r, s.view(t, d), bits, 0)
		return fmt.Sprintf("leading %d, hits %d, %v\n", leading, hits, why)
	case "delete":
		w.do(Delete{Ticket: ticket, Runs: []Run{s.pages(t, d)}})
	case "pin", "unpin":
		w.do(Pin{Ticket: ticket, Principal: s.principal(t, d), Runs: []Run{s.pages(t, d)}, Unpin: d.Cmd == "unpin"})
	case "reclaim":
		n := 0
		d.ScanArgs(t, "pages", &n)
		w.do(Reclaim{Tier: s.tier(t, d), Bytes: uint64(n) * 12288, Clean: d.HasArg("clean")})
	case "corrupt":
		x := s.copyOf(t, d)
		w.do(CorruptFound{x, w.s.extents.At(x).place()})
	case "move":
		x, drop := s.copyOf(t, d), 0
		d.MaybeScanArgs(t, "drop", &drop)
		w.do(Move{Extent: x, From: w.s.extents.At(x).place(), Drop: evict.Score(drop)})
	case "persist":
		s.waits[ticket] = d.CmdArgs[0].Key
		w.do(Persist{Ticket: ticket, Run: s.pages(t, d), View: s.view(t, d)})
		return s.effects(0)
	case "promote":
		w.promote(w.reply(s.reads[d.CmdArgs[0].Key]))
	case "behind":
		n := 0
		d.ScanArgs(t, "pages", &n)
		w.do(WriteBehind{Bytes: uint64(n) * 12288})
	case "finish": // the first n transfers
		n, why := 1, reason.None
		d.MaybeScanArgs(t, "n", &n)
		if d.HasArg("busy") {
			why = reason.Busy
		} else if d.HasArg("corrupt") {
			why = reason.Corrupt
		}
		shown := ""
		for range n {
			w.finishTransfer(0, why)
			shown += s.effects(0)
		}
		return shown
	case "writable", "readonly":
		w.do(TierState{Tier: s.tier(t, d), Writable: d.Cmd == "writable"})
	case "where":
		return s.where(t, d)
	case "restart":
		w.restart()
		return fmt.Sprintf("restored %d of %d\n", w.s.Totals().Extents, len(w.restored))
	case "accept":
		s.st.Accepts = []uint64{0}
		for _, a := range d.CmdArgs {
			var p int
			if _, err := fmt.Sscan(a.Key, &p); err != nil {
				d.Fatalf(t, "%v", err)
			}
			s.st.Accepts[0] |= 1 << p
		}
		w.do(NamespaceChanged{s.st})
	case "drain", "retire":
		if s.st.Life = Draining; d.Cmd == "retire" {
			s.st.Life = Retired
		}
		w.do(NamespaceChanged{s.st})
	case "open": // the next life
		s.st = testNamespace(1, s.st.Epoch+1)
		w.do(NamespaceChanged{s.st})
	case "advance":
		n, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		w.advance(n)
	case "orphans":
		return fmt.Sprintf("now %v, since start %v, placeholders %d\n", w.s.Usage(nil)[0].Orphans, w.s.Totals().Orphaned, w.s.Totals().Placeholders)
	default:
		d.Fatalf(t, "unknown command %q", d.Cmd)
	}
	return s.effects(ticket)
}

// tier is the one named, or Host.
func (s *script) tier(t *testing.T, d *datadriven.TestData) evict.Tier {
	var name string
	if d.MaybeScanArgs(t, "tier", &name); name == "disk" {
		return evict.Disk
	}
	return evict.Host
}

// copyOf is the record of the first extent of a page in a tier.
func (s *script) copyOf(t *testing.T, d *datadriven.TestData) uint32 {
	r := s.pages(t, d)
	i := s.w.s.index.find(fingerprintOf(r.Hashes, s.w.s.o.FingerprintKey), s.w.s.families.ids[r.Family])
	return s.w.s.copyIn(s.w.s.pages.At(i).extents, s.tier(t, d))
}

// where lists the tiers of pages.
func (s *script) where(t *testing.T, d *datadriven.TestData) string {
	var b strings.Builder
	r := s.pages(t, d)
	for i := range len(r.Hashes) / testHashBytes {
		e := s.w.s.Explain(s.w.now, s.w.wall, &page.Key{Family: r.Family, Hash: mustHash(r.Hashes[i*testHashBytes:][:testHashBytes])})
		fmt.Fprintf(&b, "%d:", i)
		for _, p := range e.Parts {
			fmt.Fprintf(&b, " %v %v", p.Place.Tier, p.View)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func (s *script) begin(t *testing.T, d *datadriven.TestData, ticket Ticket) {
	b := s.w.beginEvent(s.pages(t, d), s.view(t, d))
	b.Ticket, b.Principal = ticket, s.principal(t, d)
	prov, group, expiry := uint64(1), uint64(0), uint64(0)
	d.MaybeScanArgs(t, "prov", &prov)
	d.MaybeScanArgs(t, "group", &group)
	d.MaybeScanArgs(t, "expiry", &expiry)
	b.Provenance, b.WriterGroup = uint16(prov), [16]byte{byte(group)}
	var parent string
	d.MaybeScanArgs(t, "parent", &parent)
	for i := range b.Pages {
		if expiry > 0 {
			b.Pages[i].Expiry = s.w.wall + clock.Wall(expiry)
		}
		var c, depth int
		switch _, err := fmt.Sscanf(parent, "%d.%d", &c, &depth); {
		case i > 0 || parent == "":
		case parent == "unknown":
			b.Pages[0].Link = LinkUnknown
		case parent == "root":
			b.Pages[0].Link = LinkRoot
		case err == nil:
			b.Pages[0].Link, b.Pages[0].Parent = LinkHash, mustHash(testHash(c, depth))
		}
	}
	s.w.do(b)
	s.name(t, d, s.w.reply(ticket).Token)
}

// name keeps a token or a lease under the name that `as` gives.
func (s *script) name(t *testing.T, d *datadriven.TestData, v any) {
	var name string
	if d.MaybeScanArgs(t, "as", &name); name != "" {
		s.names[name] = v
	}
}

// named runs commands whose first argument is a token or a lease.
func (s *script) named(t *testing.T, d *datadriven.TestData, ticket Ticket) {
	what := s.names[d.CmdArgs[0].Key]
	var pages []uint32
	for _, a := range d.CmdArgs[1:] {
		var i uint32
		if _, err := fmt.Sscan(a.Key, &i); err == nil {
			pages = append(pages, i)
		}
	}
	token, _ := what.(Token)
	lease, _ := what.(LeaseID)
	by := s.principal(t, d)
	switch d.Cmd {
	case "commit":
		s.w.do(Commit{Ticket: ticket, Principal: by, Namespace: s.st.ID, Epoch: s.st.Epoch, Token: token, Pages: pages})
	case "abort":
		s.w.do(Abort{Token: token, Pages: pages})
	case "renew":
		s.w.do(Renew{Ticket: ticket, Principal: by, Lease: lease, Token: token, TTL: 10 * time.Second})
	case "release":
		s.w.do(Release{Principal: by, Lease: lease})
	}
}

// effects prints the reply to ticket and what else was asked for.
func (s *script) effects(ticket Ticket) string {
	var b strings.Builder
	for _, e := range s.w.effects {
		switch e := e.(type) {
		case Reply:
			if e.Ticket == ticket {
				s.reply(&b, e)
			}
			if pages, ok := s.waits[e.Ticket]; ok {
				fmt.Fprintf(&b, "persist %s\n", pages)
				s.reply(&b, e)
			}
		case Announce:
			verb := "+"
			if e.Removed {
				verb = "-"
			}
			fmt.Fprintf(&b, "announce %s %v", verb, e.View)
			if e.Place.Tier != evict.Host {
				fmt.Fprintf(&b, " %v", e.Place.Tier)
			}
			if e.Removed {
				fmt.Fprintf(&b, " %v", e.Why)
			}
			b.WriteString("\n")
		case Free:
			fmt.Fprintf(&b, "free %d", e.Place.Bytes)
			if e.Place.Tier != evict.Host {
				fmt.Fprintf(&b, " %v", e.Place.Tier)
			}
			b.WriteString("\n")
		case Transfer:
			fmt.Fprintf(&b, "transfer from %v to %v\n", e.From.Tier, e.To)
		case Landed:
			fmt.Fprintf(&b, "landed %v\n", e.Err)
		case Behind:
			fmt.Fprintf(&b, "behind %d\n", e.Bytes)
		case MoveRefused:
			b.WriteString("move refused\n")
		case Revoke:
			fmt.Fprintf(&b, "revoke %v\n", e.Pages)
		case Reclaimed:
			fmt.Fprintf(&b, "reclaimed %d\n", e.Bytes)
		}
	}
	return b.String()
}

func (s *script) reply(b *strings.Builder, r Reply) {
	if r.Reason != reason.None {
		fmt.Fprintf(b, "reason %v\n", r.Reason)
	}
	if len(r.Leading) > 0 {
		fmt.Fprintf(b, "leading %d covered %d\n", r.Leading[0], r.Covered[0])
	}
	for i, res := range r.Results {
		fmt.Fprintf(b, "%d: %s\n", i, show(res))
	}
	if r.TTL > 0 {
		fmt.Fprintf(b, "for %v\n", r.TTL)
	}
}
