package replay

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
)

// Fit is what was learned of a workload to make others like it. It holds no block id of the workload.
//
// A request is seen as a step of a session below a hub. A hub is a prefix after which many different ones go on, such as
// a system prompt; hubs lie below hubs. A session is one path below its hub that grows from request to request, now and
// then after some of its end was dropped. Of each request the fit keeps: its hub; whether it goes on with a session, then how
// long after that session's last request, how long it was, how many requests it had, how long the last answer was, how many pages
// were dropped; how many pages it adds; its tokens behind the last page and its output.
//
// Generating draws such steps anew, with repetition, and times between requests likewise. That keeps the times between
// uses, what is concentrated on few pages, and the families that share a prefix; StatsOf says how well.
type Fit struct {
	pageTokens uint32
	hubs       []hub
	steps      []step
	waits      []float64 // between requests
}

type hub struct {
	parent int // -1: none
	pages  int // its own, behind those of the parent
}

type step struct {
	hub     int // -1: none
	goesOn  bool
	gap     float64 // seconds
	length  int     // pages of the session, before
	turns   int     // of the session, before
	answer  int     // tokens of the last one, before
	dropped int     // of them
	added   int
	tail    int // tokens behind the last page
	output  int
}

// hubChildren is how many different pages follow the last page of a hub.
const hubChildren = 8

// FitTo learns from a workload.
func FitTo(w *Workload) *Fit {
	f := &Fit{pageTokens: w.PageTokens}
	hubOf := f.findHubs(w)
	lastUser := make([]int32, w.Pages()) // request from 1
	turns := make([]int, len(w.Requests))
	for i := range w.Requests {
		a := &w.Requests[i]
		if i > 0 {
			f.waits = append(f.waits, a.Seconds-w.Requests[i-1].Seconds)
		}
		tail := int(a.Input) - len(a.Pages)*int(w.PageTokens)
		s := step{hub: -1, tail: min(max(tail, 0), int(w.PageTokens)-1), output: int(a.Output)}
		reused, under := 0, 0 // pages; pages of the deepest hub among them
		for d, p := range a.Pages {
			if h := hubOf[p]; h >= 0 {
				s.hub, under = h, d+1
			}
			if reused == d && lastUser[p] != 0 {
				reused++
			}
		}
		if reused > under {
			before := lastUser[a.Pages[reused-1]] - 1
			user := &w.Requests[before]
			s.goesOn, s.gap, s.turns = true, a.Seconds-user.Seconds, turns[before]
			s.answer = int(user.Output)
			s.length, s.dropped = len(user.Pages), len(user.Pages)-reused
		}
		turns[i] = s.turns + 1
		s.added = len(a.Pages) - max(reused, under)
		for _, p := range a.Pages {
			lastUser[p] = int32(i + 1)
		}
		f.steps = append(f.steps, s)
	}
	return f
}

// findHubs numbers them, parents first, and gives each page the hub that ends with it, or -1.
func (f *Fit) findHubs(w *Workload) []int {
	children := make([]int, w.Pages())
	for _, parent := range w.Parents {
		if parent >= 0 {
			children[parent]++
		}
	}
	hubOf, deepest := make([]int, w.Pages()), make([]int, w.Pages())
	depth := func(h int) (n int) {
		for ; h >= 0; h = f.hubs[h].parent {
			n += f.hubs[h].pages
		}
		return n
	}
	for p, parent := range w.Parents {
		hubOf[p], deepest[p] = -1, -1
		if parent >= 0 {
			deepest[p] = deepest[parent]
		}
		if children[p] >= hubChildren {
			hubOf[p] = len(f.hubs)
			f.hubs = append(f.hubs, hub{deepest[p], int(w.Depths[p]) + 1 - depth(deepest[p])})
			deepest[p] = hubOf[p]
		}
	}
	return hubOf
}

// Bounds of one generated trace.
const (
	maxGenerated       = 1 << 22 // requests
	maxGeneratedBlocks = 1 << 27 // of all requests: 1 GiB of memory
)

// Generate makes a trace of so many requests (0: as many as were fitted to). Block ids are fresh numbers from 0 in the
// order of their first use, as in the public traces. Equal arguments give equal traces.
func (f *Fit) Generate(requests int, seed uint64) ([]Request, error) {
	switch {
	case f.pageTokens != BlockTokens:
		return nil, fmt.Errorf("a trace has blocks of %d tokens, the workload pages of %d", BlockTokens, f.pageTokens)
	case requests < 0 || requests > maxGenerated:
		return nil, fmt.Errorf("%d requests; at most %d", requests, maxGenerated)
	case requests == 0:
		requests = len(f.steps)
	}
	if len(f.steps) == 0 {
		return nil, nil
	}
	g := &generator{
		Fit: f, random: rand.New(rand.NewPCG(seed, 2)),
		hubPages: make([][]uint64, len(f.hubs)), below: make([]sessions, len(f.hubs)+1),
	}
	out := make([]Request, requests)
	blocks := 0
	for i := range out {
		out[i] = g.request()
		if blocks += len(out[i].Blocks); blocks > maxGeneratedBlocks {
			return nil, fmt.Errorf("%d requests have more than %d blocks; fewer requests have fewer", requests, maxGeneratedBlocks)
		}
		if len(f.waits) > 0 {
			g.now += f.waits[g.random.IntN(len(f.waits))]
		}
	}
	return out, nil
}

type generator struct {
	*Fit
	random   *rand.Rand
	now      float64
	next     uint64     // block id
	hubPages [][]uint64 // of each hub, from the root on; nil: not used yet
	below    []sessions // of each hub; the first is of none
}

// sessions of one hub by their last use, oldest first. A session that went on has left an entry behind, which no longer
// holds its time.
type sessions []*lastUse

type lastUse struct {
	at      float64
	session *session
}

type session struct {
	used   float64
	turns  int
	answer int // tokens
	blocks []uint64
}

func (g *generator) request() Request {
	s := g.steps[g.random.IntN(len(g.steps))]
	list := &g.below[s.hub+1]
	chosen := (*session)(nil)
	if s.goesOn {
		chosen = list.near(g.now, s)
	}
	if chosen == nil {
		chosen = &session{blocks: slices.Clone(g.hub(s.hub))}
	} else {
		keep := max(len(chosen.blocks)-s.dropped, min(len(chosen.blocks), len(g.hub(s.hub))+1))
		chosen.blocks = slices.Clone(chosen.blocks[:keep])
	}
	chosen.blocks = g.fresh(chosen.blocks, min(s.added, maxBlocks-1-len(chosen.blocks)))
	chosen.used, chosen.turns, chosen.answer = g.now, chosen.turns+1, s.output
	*list = append(*list, &lastUse{g.now, chosen})
	q := Request{
		TimestampMS: int64(math.Round(g.now * 1000)), OutputTokens: s.output,
		InputTokens: len(chosen.blocks)*BlockTokens + s.tail, Blocks: chosen.blocks,
	}
	if s.tail > 0 {
		q.Blocks = g.fresh(slices.Clone(chosen.blocks), 1)
	}
	return q
}

// hub is the path of a hub; of none, it is empty.
func (g *generator) hub(h int) []uint64 {
	if h < 0 {
		return nil
	}
	if g.hubPages[h] == nil {
		g.hubPages[h] = g.fresh(slices.Clone(g.hub(g.hubs[h].parent)), g.hubs[h].pages)
	}
	return g.hubPages[h]
}

func (g *generator) fresh(blocks []uint64, n int) []uint64 {
	for range n {
		blocks = append(blocks, g.next)
		g.next++
	}
	return blocks
}

// nearSessions is how many sessions are looked at on each side of the wanted time.
const nearSessions = 64

// near is the session that fits a step best: last used about so long ago, and about so long; nil if there is none.
func (l *sessions) near(now float64, s step) (best *session) {
	wanted := now - s.gap
	at := sort.Search(len(*l), func(i int) bool { return (*l)[i].at >= wanted })
	least := math.Inf(1)
	look := func(from, stride int) {
		for seen := 0; seen < nearSessions && from >= 0 && from < len(*l); from += stride {
			u := (*l)[from]
			if u.session.used != u.at {
				continue
			}
			seen++
			off := apart(now-u.at, s.gap) + apart(float64(len(u.session.blocks)), float64(s.length)) +
				apart(float64(u.session.turns), float64(s.turns)) + apart(float64(u.session.answer), float64(s.answer))
			if off < least {
				least, best = off, u.session
			}
		}
	}
	look(at, 1)
	look(at-1, -1)
	if len(*l) > 64 && l.stale() > len(*l)/2 {
		*l = slices.DeleteFunc(*l, func(u *lastUse) bool { return u.session.used != u.at })
	}
	return best
}

// apart is how many times larger one is than the other, as a logarithm; 0 where they are equal.
func apart(a, b float64) float64 { return math.Abs(math.Log((a + 1) / (b + 1))) }

func (l *sessions) stale() (n int) {
	for _, u := range *l {
		if u.session.used != u.at {
			n++
		}
	}
	return n
}

// WriteMooncake writes requests in the Mooncake format, one JSON object a line.
func WriteMooncake(w io.Writer, requests []Request) error {
	b := bufio.NewWriter(w)
	enc := json.NewEncoder(b)
	for i := range requests {
		if err := enc.Encode(&requests[i]); err != nil {
			return err
		}
	}
	return b.Flush()
}

// FromRequests makes a workload of requests, as Load does of their text.
func FromRequests(name string, requests []Request) (*Workload, error) {
	b, err := newBuilder(name, BlockTokens, BlockTokens)
	if err != nil {
		return nil, err
	}
	for i := range requests {
		q := &requests[i]
		a := Access{Seconds: float64(q.TimestampMS) / 1000, Input: int32(q.InputTokens), Output: int32(q.OutputTokens)}
		if err := b.add(a, q.FullBlocks()); err != nil {
			return nil, err
		}
	}
	return b.w, nil
}
