package demo

import (
	"fmt"
	"runtime"
	"sort"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/evict/replay"
	"github.com/quire-kv/quire/internal/cost"
	"github.com/quire-kv/quire/reason"
)

// Report is what a demo saw. Field names in JSON are stable.
type Report struct {
	Trace    string    `json:"trace"`
	Machine  Machine   `json:"machine"`
	Model    Model     `json:"model"`
	Replay   Replay    `json:"replay"`
	Bytes    Bytes     `json:"bytes"`
	Speed    Speed     `json:"speed"`
	Saved    Saved     `json:"saved"`
	Store    Store     `json:"store"`
	Refusals []Refusal `json:"refusals"`

	shape evict.Shape
	flops float64
	seen  map[uint64]struct{} // blocks of the trace so far; nil beyond maxSeen
}

// Machine is where it ran.
type Machine struct {
	OS   string `json:"os"`
	Arch string `json:"arch"`
	CPUs int    `json:"cpus"`
}

// Model is what is served, and how the demo's pages stand to real ones.
type Model struct {
	Name            string `json:"name"`
	PageTokens      int    `json:"page_tokens"`
	RealPageBytes   uint64 `json:"real_page_bytes"`
	StoredPageBytes uint64 `json:"stored_page_bytes"`
	PayloadScale    int    `json:"payload_scale"` // real to stored
}

// Replay is the requests and what they found.
type Replay struct {
	Requests        int               `json:"requests"`
	PagesLookedUp   uint64            `json:"pages_looked_up"`
	PagesHit        uint64            `json:"pages_hit"`
	PageHitRate     float64           `json:"page_hit_rate"`
	PagesSeenBefore uint64            `json:"pages_seen_before"` // what a store without bound and without a past would have hit; 0 beyond maxSeen
	PagesHitEarlier uint64            `json:"pages_hit_earlier"` // of PagesHit: written by an earlier demo on the same data; 0 beyond maxSeen
	TokensAsked     uint64            `json:"tokens_asked"`
	TokensHit       uint64            `json:"tokens_hit"`
	TokenHitRate    float64           `json:"token_hit_rate"`
	PagesReadByTP   map[string]uint64 `json:"pages_read_by_tp"`
	PagesStoredByTP map[string]uint64 `json:"pages_stored_by_tp"`
	LeasedMisses    map[string]uint64 `json:"leased_misses"` // leased pages that were not served, by reason
	NotPublished    map[string]uint64 `json:"not_published"` // views not taken, by reason
}

// Bytes are payload.
type Bytes struct {
	Fetched   uint64 `json:"fetched"`
	Published uint64 `json:"published"`
	Verified  uint64 `json:"verified"` // against the checksums, and against what was generated
	Wrong     uint64 `json:"wrong"`    // must be 0
}

// Speed is in GB/s (1e9), beside a plain copy of equal sizes on one core of this machine.
type Speed struct {
	FetchGBs   float64 `json:"fetch_gb_per_s"`
	PublishGBs float64 `json:"publish_gb_per_s"`
	MemcpyGBs  float64 `json:"memcpy_gb_per_s"`
	Seconds    float64 `json:"replay_transfer_seconds"`
}

// Saved is the prefill work that hits spared, for the model at its real size: F(S) = 2PS + 2 L h d_h S^2.
type Saved struct {
	PrefillFLOPs  float64 `json:"prefill_flops"`
	OfFLOPs       float64 `json:"of_flops"` // of all prompts, without a cache
	Share         float64 `json:"share"`
	AtFLOPS       float64 `json:"at_flops_per_second"`
	PrefillSecond float64 `json:"prefill_seconds"`
}

// Store is the server at the end of the replay.
type Store struct {
	Transport     string `json:"transport"` // that the engines took
	Data          string `json:"data"`      // directory that is kept; empty: none
	MemoryBytes   uint64 `json:"memory_bytes"`
	HeldBytes     uint64 `json:"held_bytes"` // in memory
	DiskBytes     uint64 `json:"disk_bytes"`
	DiskHeldBytes uint64 `json:"disk_held_bytes"`
	PagesAtStart  uint64 `json:"pages_at_start"` // of earlier demos on the same data
	Pages         uint64 `json:"pages"`
	EvictedPages  uint64 `json:"evicted_pages"`
}

func newReport(o *Options, w *world) *Report {
	stored := w.group.PageBytes()
	shape, _ := cost.ShapeOf(w.spec) // it has one
	r := &Report{
		Trace: o.TraceName, Machine: Machine{runtime.GOOS, runtime.GOARCH, runtime.NumCPU()},
		Model: Model{
			Name: modelName, PageTokens: replay.BlockTokens, StoredPageBytes: stored, RealPageBytes: stored * scale, PayloadScale: scale,
		},
		Store: Store{
			Transport: string(w.a.client.Stats().Transport), Data: o.DataDir, MemoryBytes: o.MemoryBytes, PagesAtStart: w.found,
		},
		shape: shape, flops: o.FLOPS, seen: map[uint64]struct{}{},
	}
	if w.keep {
		r.Store.DiskBytes = o.DiskBytes
	}
	return r
}

// maxSeen bounds the memory for PagesSeenBefore: about 40 MB.
const maxSeen = 1 << 20

// seenBefore counts the leading blocks that an earlier request had, which a store without bound would have served, and
// those that were hit beyond them.
func (r *Report) seenBefore(blocks []uint64, hit int) {
	if r.seen == nil || len(r.seen)+len(blocks) > maxSeen {
		r.seen, r.Replay.PagesSeenBefore, r.Replay.PagesHitEarlier = nil, 0, 0
		return
	}
	leading := true
	for i, b := range blocks {
		_, ok := r.seen[b]
		switch leading = leading && ok; {
		case leading:
			r.Replay.PagesSeenBefore++
		case i < hit:
			r.Replay.PagesHitEarlier++
		}
		r.seen[b] = struct{}{}
	}
}

// request counts one request of which hit pages were loaded.
func (r *Report) request(q *replay.Request, hit int) {
	p := &r.Replay
	p.Requests++
	p.PagesLookedUp += uint64(len(q.FullBlocks()))
	p.PagesHit += uint64(hit)
	r.seenBefore(q.FullBlocks(), hit)
	p.TokensAsked += uint64(q.InputTokens)
	p.TokensHit += uint64(hit * replay.BlockTokens)
	r.Saved.PrefillFLOPs += r.shape.SpanFLOPs(0, uint64(hit*replay.BlockTokens))
	r.Saved.OfFLOPs += r.shape.SpanFLOPs(0, uint64(q.InputTokens))
}

// count takes over what was moved.
func (r *Report) count(t *totals) {
	r.Bytes = Bytes{Fetched: t.fetched, Published: t.published, Verified: t.fetched, Wrong: t.wrong}
	r.Speed.FetchGBs = rate(t.fetched, t.fetchWall.Seconds())
	r.Speed.PublishGBs = rate(t.published, t.publishWall.Seconds())
	r.Speed.Seconds = (t.fetchWall + t.publishWall).Seconds()
	r.Replay.PagesReadByTP, r.Replay.PagesStoredByTP = byTP(t.readBy), byTP(t.writtenBy)
	r.Replay.LeasedMisses, r.Replay.NotPublished = byReason(t.misses), byReason(t.refused)
}

// finish adds what is known when the replay is over.
func (r *Report) finish(w *world) {
	p := &r.Replay
	p.PageHitRate, p.TokenHitRate = share(p.PagesHit, p.PagesLookedUp), share(p.TokensHit, p.TokensAsked)
	if r.Saved.OfFLOPs > 0 {
		r.Saved.Share = r.Saved.PrefillFLOPs / r.Saved.OfFLOPs
	}
	r.Saved.AtFLOPS, r.Saved.PrefillSecond = r.flops, r.Saved.PrefillFLOPs/r.flops
	st := w.daemon.Store().Status()
	r.Store.Pages, r.Store.EvictedPages = st.Totals.Pages, st.Totals.Evicted
	for _, t := range st.Tiers {
		held := uint64(t.Live + t.Slack + t.Metadata)
		if t.Tier == evict.Disk {
			r.Store.DiskHeldBytes = held
		} else {
			r.Store.HeldBytes += held
		}
	}
}

func rate(bytes uint64, seconds float64) float64 {
	if seconds == 0 {
		return 0
	}
	return float64(bytes) / 1e9 / seconds
}

func share(part, of uint64) float64 {
	if of == 0 {
		return 0
	}
	return float64(part) / float64(of)
}

func byTP(m map[int]uint64) map[string]uint64 {
	out := map[string]uint64{}
	for tp, n := range m {
		out[fmt.Sprintf("tp%d", tp)] = n
	}
	return out
}

func byReason(m map[reason.Reason]uint64) map[string]uint64 {
	out := map[string]uint64{}
	for r, n := range m {
		out[r.String()] = n
	}
	return out
}

// Problems is what was not as promised, a line each; none is success.
func (r *Report) Problems() []string {
	var out []string
	if r.Bytes.Wrong > 0 {
		out = append(out, fmt.Sprintf("%d wrong bytes were served", r.Bytes.Wrong))
	}
	for _, why := range sorted(r.Replay.LeasedMisses) {
		out = append(out, fmt.Sprintf("leased pages were not served: %s, %d times", why, r.Replay.LeasedMisses[why]))
	}
	if r.Store.HeldBytes > r.Store.MemoryBytes {
		out = append(out, fmt.Sprintf("the store holds %d bytes, more than its %d", r.Store.HeldBytes, r.Store.MemoryBytes))
	}
	if r.Store.DiskHeldBytes > r.Store.DiskBytes {
		out = append(out, fmt.Sprintf("the store holds %d bytes on disk, more than its %d", r.Store.DiskHeldBytes, r.Store.DiskBytes))
	}
	for _, x := range r.Refusals {
		if !x.AsExpected {
			out = append(out, fmt.Sprintf("%s: %s was answered %s, %s, expected %s, %s", x.Name, x.Tried, x.Answer, x.Reason, x.Expected, x.ExpectedReason))
		}
	}
	return out
}

// sorted names of a map, for people.
func sorted(m map[string]uint64) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}
