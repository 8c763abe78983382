package clienttest

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/page"
)

// Spec is the suite's model with the weights that a name stands for: a full group of 8 heads x 4 layers of 4 KiB
// cells, and an MLA group of 1 head x 3 layers of 72 KiB cells, larger than a piece.
func Spec(t testing.TB, weights string) *namespace.Spec {
	t.Helper()
	d := func(s string) string { return namespace.DigestOf([]byte(s)).String() }
	s, err := namespace.Parse(fmt.Appendf(nil, `
model: {id: test/suite, weights: %q, config: %q}
rope: {regime: none}
attention: {mask: causal, multimodal: none}
hash: {algorithm: sha256_cbor, seed: %q, unit: 16, bytes: 32, probe: %q, extra_keys: 1}
depends_on: prefix
groups:
- kind: full
  layers: 0-3
  page_tokens: 16
  kv_heads: 8
  grade: elements
  components:
  - {name: k, width: 64, bits: 16, dtype: bfloat16, scale: none}
  - {name: v, width: 64, bits: 16, dtype: bfloat16, scale: none}
- kind: mla
  layers: 4-6
  page_tokens: 64
  kv_heads: 1
  grade: elements
  components:
  - {name: latent, width: 512, bits: 16, dtype: bfloat16, scale: none}
  - {name: rope, width: 64, bits: 16, dtype: bfloat16, scale: none}
provenance: {engine: suite, engine_version: "1", runner: v1, attention_backend: flash, kernel_build: k1, device_arch: cpu}
`, d(weights), d("config"), d(""), d("probe")))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// group is the full group, or the MLA group.
func (w *world) group(mla bool) (page.GroupID, client.Geometry) {
	w.t.Helper()
	for _, g := range w.s.Namespace().GetGroups() {
		if (g.GetKind() == "mla") == mla {
			id := page.GroupID(g.GetId())
			geo, ok := w.s.Geometry(id)
			if !ok {
				w.t.Fatal("no geometry")
			}
			return id, geo
		}
	}
	w.t.Fatal("no such group")
	return page.GroupID{}, client.Geometry{}
}

// chain is a run of n pages of the full group that name tells apart.
func (w *world) chain(name string, n int) client.Run {
	g, _ := w.group(false)
	return chainOf(g, name, n)
}

// Hashes are the page hashes of a chain of n pages that name tells apart, packed.
func Hashes(name string, n int) []byte { return chainOf(page.GroupID{}, name, n).Hashes }

func chainOf(g page.GroupID, name string, n int) client.Run {
	r := client.Run{Group: g}
	prev := sha256.Sum256([]byte(name))
	for range n {
		prev = sha256.Sum256(prev[:])
		r.Hashes = append(r.Hashes, prev[:]...)
	}
	return r
}

func pages(r client.Run) int { return len(r.Hashes) / 32 }

func (w *world) key(r client.Run, i int) *page.Key {
	h, err := page.MakeHash(r.Hashes[32*i : 32*i+32])
	if err != nil {
		w.t.Fatal(err)
	}
	return &page.Key{Family: page.Family{Namespace: w.s.ID(), Epoch: w.s.Epoch(), Scope: r.Scope, Group: r.Group}, Hash: h}
}

// payload is view v of page i: every byte follows from hash, salt, head, layer and offset.
func (w *world) payload(r client.Run, i int, v page.View, salt uint64) []byte {
	geo, _ := w.s.Geometry(r.Group)
	var b []byte
	for h := v.H0; h < v.H1; h++ {
		for l := v.L0; l < v.L1; l++ {
			rng := rand.NewPCG(binary.LittleEndian.Uint64(r.Hashes[32*i:])^salt, uint64(h)<<16|uint64(l))
			for range geo.CellBytes / 8 {
				b = binary.LittleEndian.AppendUint64(b, rng.Uint64())
			}
		}
	}
	return b
}

func (w *world) items(r client.Run, v page.View, salt uint64) []client.Item {
	items := make([]client.Item, pages(r))
	for i := range items {
		items[i].Bytes = w.payload(r, i, v, salt)
	}
	items[0].Root = true
	return items
}

func (w *world) full(r client.Run) page.View {
	geo, _ := w.s.Geometry(r.Group)
	return geo.Full()
}

// publish publishes view v of a whole chain and answers the results.
func (w *world) publish(s *client.Session, r client.Run, v page.View, salt uint64) []client.PageResult {
	w.t.Helper()
	rs, err := s.Publish(w.ctx(), r, v, nil, w.items(r, v, salt), client.PublishOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return rs
}

// mustPublish wants every page committed.
func (w *world) mustPublish(r client.Run, v page.View) {
	w.t.Helper()
	for i, p := range w.publish(w.s, r, v, 0) {
		if p.Outcome != client.Committed || len(p.Extents) == 0 {
			w.t.Fatalf("page %d: %+v", i, p)
		}
	}
}

// fetch fetches view v of a chain.
func (w *world) fetch(s *client.Session, r client.Run, v page.View, l *client.Lease) ([]client.PageResult, [][]byte, error) {
	w.t.Helper()
	geo, _ := s.Geometry(r.Group)
	dst := make([][]byte, pages(r))
	for i := range dst {
		dst[i] = make([]byte, page.PayloadBytes(v, geo.CellBytes))
	}
	rs, err := s.FetchInto(w.ctx(), r, v, nil, dst, l)
	return rs, dst, err
}

// mustFetch wants every page whole and as it was published with salt 0.
func (w *world) mustFetch(s *client.Session, r client.Run, v page.View) {
	w.t.Helper()
	rs, dst, err := w.fetch(s, r, v, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	for i := range rs {
		if rs[i].Outcome != client.OK || string(dst[i]) != string(w.payload(r, i, v, 0)) {
			w.t.Fatalf("page %d of view %v: %+v", i, v, rs[i])
		}
	}
}

func (w *world) leading(s *client.Session, r client.Run) int {
	w.t.Helper()
	p, err := s.Exists(w.ctx(), r, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	return p.Leading
}

// shouldBe fails unless every result has this outcome and reason.
func (w *world) shouldBe(rs []client.PageResult, want client.PageResult) {
	w.t.Helper()
	for i, r := range rs {
		if r.Outcome != want.Outcome || r.Reason != want.Reason {
			w.t.Errorf("page %d: %+v, want outcome %d reason %v", i, r, want.Outcome, want.Reason)
		}
	}
}
