package client_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/client/clienttest"
	"github.com/quire-kv/quire/store/page"
)

// benchBytes is how much is stored: far more than any cache.
const benchBytes = 1 << 30

// shared is a session over shared memory with pages of one size, and what a copy of them is compared with.
type shared struct {
	b         *testing.B
	c         *client.Client
	s         *client.Session
	run       client.Run
	pageBytes int
	arena     []byte
	dst       [][]byte
	seed      uint64
}

// newShared makes pages of 4 KiB cells.
func newShared(b *testing.B, pageBytes int) *shared {
	n := newNodeOf(b, benchBytes+benchBytes/4)
	n.transport = client.SharedMemory
	k := &shared{b: b, c: n.dial(b, "acme", client.Options{Parallel: 1}), pageBytes: pageBytes}
	spec := clienttest.Spec(b, "shared")
	layers := uint16(pageBytes / (8 * 4096))
	spec.Groups[0].Layers = namespace.LayerRange(0, layers)
	spec.Groups[1].Layers = namespace.LayerRange(layers, layers+3)
	var err error
	if k.s, err = k.c.Open(b.Context(), spec); err != nil {
		b.Fatal(err)
	}
	for _, g := range k.s.Namespace().GetGroups() {
		if g.GetKind() == "full" {
			k.run.Group = page.GroupID(g.GetId())
		}
	}
	k.arena = make([]byte, benchBytes)
	rng := rand.NewChaCha8([32]byte{1})
	for i := 0; i < benchBytes; i += 4096 {
		rng.Read(k.arena[i : i+4096])
	}
	return k
}

func (k *shared) hash() (h [32]byte) {
	k.seed++
	rng := rand.NewChaCha8([32]byte{byte(k.seed), byte(k.seed >> 8), byte(k.seed >> 16), byte(k.seed >> 24), 7})
	rng.Read(h[:])
	return h
}

// fill stores as many pages as the arena has.
func (k *shared) fill() {
	for at := 0; at < benchBytes; {
		r, items := client.Run{Group: k.run.Group}, []client.Item(nil)
		for len(items) < 64 {
			h := k.hash()
			r.Hashes = append(r.Hashes, h[:]...)
			items = append(items, client.Item{ParentUnknown: true, Bytes: k.arena[at : at+k.pageBytes]})
			at += k.pageBytes
		}
		rs, err := k.s.Publish(k.b.Context(), r, page.View{}, nil, items, client.PublishOptions{})
		if err != nil || client.GoodPrefix(rs) != len(rs) {
			k.b.Fatal(err, rs[0])
		}
		k.run.Hashes = append(k.run.Hashes, r.Hashes...)
	}
}

func (k *shared) buffers(n int) {
	for range n {
		d := make([]byte, k.pageBytes)
		copy(d, k.arena)
		k.dst = append(k.dst, d)
	}
}

// batch is n of the stored pages.
func (k *shared) batch(n, i int) client.Run {
	all := len(k.run.Hashes) / 32
	at := i * n % (all - n)
	return client.Run{Group: k.run.Group, Hashes: k.run.Hashes[32*at : 32*(at+n)]}
}

// against times op and a plain copy of as many pages in turn and reports how much of the copy's speed op has.
func (k *shared) against(n int, op func(i int)) {
	var ours, copies []float64
	var cpu time.Duration
	k.b.SetBytes(int64(n) * int64(k.pageBytes))
	for i := 0; k.b.Loop(); i++ {
		c0, t0 := used(), time.Now()
		op(i)
		t1 := time.Now()
		cpu += used() - c0
		for j := range n {
			at := (i*n + j) * 7919 * k.pageBytes % (benchBytes - k.pageBytes)
			copy(k.dst[j], k.arena[at:])
		}
		ours, copies = append(ours, t1.Sub(t0).Seconds()), append(copies, time.Since(t1).Seconds())
	}
	slices.Sort(ours)
	slices.Sort(copies)
	k.b.ReportMetric(copies[len(copies)/2]/ours[len(ours)/2], "memcpy")
	k.b.ReportMetric(1e6*ours[len(ours)/2], "p50-us")
	k.b.ReportMetric(cpu.Seconds()/(float64(len(ours))*float64(n*k.pageBytes)/1e9), "cpu-s/GB")
}

func used() time.Duration {
	var r unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkShared: over shared memory, both sides in one process, as a part of the speed of Go's copy ("memcpy").
func BenchmarkShared(b *testing.B) {
	for _, size := range []struct {
		name    string
		bytes   int
		batches []int
	}{{"1MiB", 1 << 20, []int{1, 16, 128}}, {"64KiB", 64 << 10, []int{128}}} {
		b.Run(size.name, func(b *testing.B) {
			k := newShared(b, size.bytes)
			k.fill()
			k.buffers(128)
			for _, n := range size.batches {
				b.Run("fetch/"+name(n), func(b *testing.B) { k.b = b; k.fetch(n) })
				b.Run("mapped/"+name(n), func(b *testing.B) { k.b = b; k.mapped(n) })
			}
			k.b = b
			k.full()
			for _, n := range size.batches {
				b.Run("publish/"+name(n), func(b *testing.B) { k.b = b; k.publish(n, k.arena) })
				b.Run("staged/"+name(n), func(b *testing.B) { k.b = b; k.staged(n) })
			}
			b.Run("exists/128", func(b *testing.B) { k.b = b; k.exists() })
		})
	}
}

// full publishes until every page that follows takes the place of another: all memory was written once.
func (k *shared) full() {
	for at := 0; at < benchBytes/2; at += 64 * k.pageBytes {
		k.put(64, at, k.arena)
	}
}

func name(n int) string { return map[int]string{1: "1", 16: "16", 128: "128"}[n] }

func (k *shared) fetch(n int) {
	k.against(n, func(i int) {
		rs, err := k.s.FetchInto(k.b.Context(), k.batch(n, i), page.View{}, nil, k.dst[:n], nil)
		if err != nil || client.GoodPrefix(rs) != n {
			k.b.Fatal(err, rs)
		}
	})
}

func (k *shared) mapped(n int) {
	k.against(n, func(i int) {
		m, err := k.s.MapPages(k.b.Context(), k.batch(n, i), page.View{}, nil)
		if err != nil {
			k.b.Fatal(err)
		}
		for j := range n {
			if !m.Valid(j) {
				k.b.Fatal(m.Result(j))
			}
		}
		m.Close()
	})
}

func (k *shared) publish(n int, from []byte) {
	k.against(n, func(i int) { k.put(n, i*n*k.pageBytes, from) })
}

// put publishes n pages out of from.
func (k *shared) put(n, at int, from []byte) {
	items := make([]client.Item, n)
	r := client.Run{Group: k.run.Group}
	for j := range items {
		h := k.hash()
		r.Hashes = append(r.Hashes, h[:]...)
		at := (at + j*k.pageBytes) % len(from)
		items[j] = client.Item{ParentUnknown: true, Bytes: from[at : at+k.pageBytes]}
	}
	rs, err := k.s.Publish(k.b.Context(), r, page.View{}, nil, items, client.PublishOptions{})
	if err != nil || client.GoodPrefix(rs) != n {
		k.b.Fatal(err, rs)
	}
}

func (k *shared) staged(n int) {
	st, err := k.c.Staging(128 << 20)
	if err != nil {
		k.b.Fatal(err)
	}
	defer st.Close()
	copy(st.Bytes(), k.arena)
	k.publish(n, st.Bytes())
}

func (k *shared) exists() {
	r := k.batch(64, 0)
	for range 64 {
		h := k.hash()
		r.Hashes = append(r.Hashes, h[:]...)
	}
	var took []float64
	for k.b.Loop() {
		t0 := time.Now()
		if _, err := k.s.Exists(k.b.Context(), r, 0); err != nil {
			k.b.Fatal(err)
		}
		took = append(took, time.Since(t0).Seconds())
	}
	slices.Sort(took)
	p50 := took[len(took)/2]
	k.b.ReportMetric(1e6*p50, "p50-us")
	k.b.ReportMetric(128/p50, "keys/s")
}
