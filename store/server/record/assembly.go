package record

import (
	"crypto/sha256"
	"encoding/binary"
	"strconv"

	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/server"
)

// Bounds of what is kept of requests that are not written yet, and of names.
const (
	maxRequestPages = 1 << 17 // as the reader of traces
	maxAnswer       = 1 << 26 // tokens: likewise
	maxOpenPages    = 1 << 18 // of all open requests: 2 MiB, and some 12 MiB to find them
	maxOpen         = 1 << 14 // requests
	maxNumbers      = 1 << 16 // tenants, namespaces and groups with numbers of their own
	maxFamilyKeys   = 1 << 12
	depthSlots      = 1 << 17 // 2 MiB
)

// request is one request under way, in the order of its pages.
//
//	a lookup ──> [k0 k1 k2 ... kn] <── a publication of some of them adds nothing, one that goes on behind kn adds its own
type request struct {
	at                       int64 // milliseconds
	tenant, namespace, group uint32
	tokens                   uint32
	ids                      []uint64
	answer                   uint32 // tokens; 0: nobody said
	asked                    int    // the first of ids, looked up or fetched; the others were published only
	depth                    int64  // pages before ids[0]; unknown: below 0
	parent                   uint64 // of ids[0]
	hasParent                bool
}

const unknownDepth = -1

// append adds the line.
func (q *request) append(b []byte) []byte {
	number := func(name string, n int64) {
		b = append(b, name...)
		b = strconv.AppendInt(b, n, 10)
	}
	tokens := int64(len(q.ids)) * int64(q.tokens)
	number(`{"timestamp":`, q.at)
	number(`,"input_length":`, tokens)
	number(`,"output_length":`, int64(q.answer))
	b = append(b, `,"hash_ids":[`...)
	for i, id := range q.ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, id, 10)
	}
	number(`],"page_tokens":`, int64(q.tokens))
	number(`,"asked":`, int64(q.asked))
	if q.depth >= 0 {
		number(`,"depth":`, q.depth)
	}
	if q.hasParent {
		number(`,"parent":`, int64(q.parent))
	}
	number(`,"tenant":`, int64(q.tenant))
	number(`,"namespace":`, int64(q.namespace))
	number(`,"group":`, int64(q.group))
	return append(b, "}\n"...)
}

// place is where an id is, in the open request that had it last.
type place struct {
	q  *request
	at int
}

// assembly puts requests together. Not safe for concurrent use.
type assembly struct {
	names  names
	window int64 // milliseconds
	open   []*request
	pages  int // of open
	places map[uint64]place
	due    []*request // to be written, in the order of their times
	last   int64      // time of the newest call
	depths depths
}

func newAssembly(key [32]byte, window int64) *assembly {
	return &assembly{names: newNames(key), window: window, places: map[uint64]place{}, depths: newDepths()}
}

// take adds a call, and moves to due what is complete. False: the call was too long to be taken in whole.
func (a *assembly) take(c *call) bool {
	a.last = max(a.last, c.at) // calls may overtake each other on their way into the queue
	a.until(a.last)
	ids := a.names.ids(c)
	whole := len(ids) <= maxRequestPages
	ids = ids[:min(len(ids), maxRequestPages)]
	switch c.Kind {
	case server.AccessLookup:
		a.begin(c, ids, len(ids))
	case server.AccessFetch:
		if _, asked := a.places[ids[len(ids)-1]]; !asked { // an engine may fetch without having asked
			a.begin(c, ids, len(ids))
		}
	case server.AccessPublish:
		whole = a.publish(c, ids) && whole
	case server.AccessAnswer:
		a.answer(ids, c.Answer)
	}
	a.bound()
	return whole
}

// begin opens a request.
func (a *assembly) begin(c *call, ids []uint64, asked int) *request {
	q := &request{at: a.last, tokens: c.PageTokens, asked: asked, depth: unknownDepth}
	q.tenant, q.namespace, q.group = a.names.numbers(c)
	q.depth = a.depths.of(ids[0])
	a.open = append(a.open, q)
	a.extend(q, ids)
	return q
}

// extend adds pages behind those of q. False: they were too many.
func (a *assembly) extend(q *request, ids []uint64) bool {
	room := maxRequestPages - len(q.ids)
	whole := len(ids) <= room
	for _, id := range ids[:min(len(ids), room)] {
		a.places[id] = place{q, len(q.ids)}
		q.ids = append(q.ids, id)
		a.pages++
	}
	return whole
}

// publish goes on with the request that asked for its pages or for those before them. The last page that a request has
// finds it: of several with one beginning, it is of the right one.
func (a *assembly) publish(c *call, ids []uint64) bool {
	depth := a.learn(c, ids)
	for i := len(ids) - 1; i >= 0; i-- {
		p, ok := a.places[ids[i]]
		if !ok {
			continue
		}
		if depth >= 0 && p.q.depth < 0 {
			p.q.depth = max(0, depth+int64(i-p.at))
		}
		if h, known := c.parent(); known && p.at == i { // both begin with one page
			p.q.parent, p.q.hasParent = a.names.id(c, h.Bytes()), true
		}
		rest := ids[i+1:]
		switch {
		case len(rest) == 0:
			return true
		case p.at == len(p.q.ids)-1:
			return a.extend(p.q, rest)
		}
		q := a.begin(c, rest, 0) // a branch: two went on from one beginning
		q.parent, q.hasParent = ids[i], true
		return true
	}
	parent, known := uint64(0), false
	if h, ok := c.parent(); ok {
		parent, known = a.names.id(c, h.Bytes()), true
		if p, ok := a.places[parent]; ok && p.at == len(p.q.ids)-1 {
			return a.extend(p.q, ids)
		}
	}
	q := a.begin(c, ids, 0)
	q.parent, q.hasParent = parent, known
	return true
}

// answer notes how long the answer to a request was: to the newest that has the last of these pages that any has.
func (a *assembly) answer(ids []uint64, tokens uint32) {
	for i := len(ids) - 1; i >= 0; i-- {
		if p, ok := a.places[ids[i]]; ok {
			p.q.answer = min(tokens, maxAnswer)
			return
		}
	}
}

// learn remembers how deep pages are, where a publication tells; below 0: it does not.
func (a *assembly) learn(c *call, ids []uint64) int64 {
	depth := int64(unknownDepth)
	if h, ok := c.parent(); ok {
		if d := a.depths.of(a.names.id(c, h.Bytes())); d >= 0 {
			depth = d + 1
		}
	} else if c.root() {
		depth = 0
	}
	if depth < 0 {
		depth = a.depths.of(ids[0])
	}
	if depth >= 0 {
		for i, id := range ids {
			a.depths.put(id, depth+int64(i))
		}
	}
	return depth
}

// until closes requests that began a window ago, and answers all that are due.
func (a *assembly) until(now int64) []*request {
	for len(a.open) > 0 && a.open[0].at+a.window <= now {
		a.closeFirst()
	}
	return a.due
}

// all closes every request.
func (a *assembly) all() []*request {
	for len(a.open) > 0 {
		a.closeFirst()
	}
	return a.due
}

// bound closes the oldest requests before their time where there are too many.
func (a *assembly) bound() {
	for len(a.open) > maxOpen || a.pages > maxOpenPages {
		a.closeFirst()
	}
}

func (a *assembly) closeFirst() {
	q := a.open[0]
	a.open[0] = nil
	a.open = a.open[1:]
	a.pages -= len(q.ids)
	for _, id := range q.ids {
		if a.places[id].q == q {
			delete(a.places, id)
		}
	}
	a.due = append(a.due, q)
}

// names are what stands for pages, tenants, namespaces and groups.
type names struct {
	key        [32]byte
	families   map[page.Family][32]byte
	tenants    map[string]uint32
	namespaces map[life]uint32
	groups     map[page.GroupID]uint32
	scratch    []uint64
}

type life struct {
	id    page.NamespaceID
	epoch page.Epoch
}

func newNames(key [32]byte) names {
	return names{
		key: key, families: map[page.Family][32]byte{}, tenants: map[string]uint32{}, namespaces: map[life]uint32{}, groups: map[page.GroupID]uint32{},
	}
}

// numbers are from 1 in order of appearance; 0 for those beyond the bound.
func (n *names) numbers(c *call) (tenant, namespace, group uint32) {
	return number(n.tenants, c.Tenant), number(n.namespaces, life{c.Family.Namespace, c.Family.Epoch}), number(n.groups, c.Family.Group)
}

func number[K comparable](of map[K]uint32, k K) uint32 {
	v, ok := of[k]
	if !ok && len(of) < maxNumbers {
		v = uint32(len(of) + 1)
		of[k] = v
	}
	return v
}

// ids are the names of a call's pages; valid until the next call.
func (n *names) ids(c *call) []uint64 {
	n.scratch = n.scratch[:0]
	for at := 0; at+c.HashBytes <= len(c.hashes); at += c.HashBytes {
		n.scratch = append(n.scratch, n.id(c, c.hashes[at:at+c.HashBytes]))
	}
	return n.scratch
}

// idBits are few enough for every reader of JSON, and for nobody to go back from.
const idBits = 52

// id is SHA-256(SHA-256(key, family), page hash), cut: without the key, which is in this process alone, nobody can
// tell which page it is, whether it is of another recording, or whether a page that he has is among them.
func (n *names) id(c *call, hash []byte) uint64 {
	key := n.family(&c.Family)
	var text [32 + 64]byte
	copy(text[:], key[:])
	sum := sha256.Sum256(text[:32+copy(text[32:], hash)])
	return binary.BigEndian.Uint64(sum[:]) >> (64 - idBits)
}

func (n *names) family(f *page.Family) [32]byte {
	if k, ok := n.families[*f]; ok {
		return k
	}
	var text []byte
	text = append(text, n.key[:]...)
	text = append(text, f.Namespace[:]...)
	text = binary.BigEndian.AppendUint64(text, uint64(f.Epoch))
	text = append(append(text, f.Scope[:]...), f.Group[:]...)
	if len(n.families) >= maxFamilyKeys {
		clear(n.families)
	}
	k := sha256.Sum256(text)
	n.families[*f] = k
	return k
}

// depths remembers the depths of many pages in little memory: a page that falls on another's slot takes it.
type depths struct{ slots []depthSlot }

type depthSlot struct {
	id    uint64
	depth int64 // and 1; 0: empty
}

func newDepths() depths { return depths{make([]depthSlot, depthSlots)} }

func (d depths) put(id uint64, depth int64) { d.slots[id%depthSlots] = depthSlot{id, depth + 1} }

// of is below 0 for a page that is not known.
func (d depths) of(id uint64) int64 {
	if s := d.slots[id%depthSlots]; s.id == id && s.depth > 0 {
		return s.depth - 1
	}
	return unknownDepth
}
