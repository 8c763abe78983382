package client_test

import (
	"context"
	"crypto/sha256"
	"testing"

	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/client/clienttest"
	"github.com/quire-kv/quire/store/page"
)

// big is the suite's model with pages of 1 MiB.
func big(b *testing.B) *namespace.Spec {
	s := clienttest.Spec(b, "big")
	s.Groups[0].Layers = namespace.LayerRange(0, 32)
	s.Groups[1].Layers = namespace.LayerRange(32, 35)
	return s
}

// BenchmarkFetch: 8 pages of 1 MiB a call, verified; client and server in one process. Compare with Memcpy.
func BenchmarkFetch(b *testing.B) {
	s, r, items := benchSession(b)
	if rs, err := s.Publish(b.Context(), r, page.View{}, nil, items, client.PublishOptions{}); err != nil || client.GoodPrefix(rs) != len(rs) {
		b.Fatal(err, rs)
	}
	dst := make([][]byte, len(items))
	for i := range dst {
		dst[i] = make([]byte, 1<<20)
		copy(dst[i], items[i].Bytes)
	}
	b.SetBytes(int64(len(items)) << 20)
	b.ReportAllocs()
	for b.Loop() {
		if rs, err := s.FetchInto(b.Context(), r, page.View{}, nil, dst, nil); err != nil || client.GoodPrefix(rs) != len(rs) {
			b.Fatal(err, rs)
		}
	}
}

// BenchmarkPublish: 8 pages of 1 MiB a call, lent and staged; deleted again.
func BenchmarkPublish(b *testing.B) {
	for name, o := range map[string]client.PublishOptions{"lent": {}, "staged": {Stage: true}} {
		b.Run(name, func(b *testing.B) {
			s, r, items := benchSession(b)
			b.SetBytes(int64(len(items)) << 20)
			b.ReportAllocs()
			for b.Loop() {
				if rs, err := s.Publish(b.Context(), r, page.View{}, nil, items, o); err != nil || client.GoodPrefix(rs) != len(rs) {
					b.Fatal(err, rs)
				}
				if _, err := s.Delete(b.Context(), r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkMemcpy is the reference: the same pages copied.
func BenchmarkMemcpy(b *testing.B) {
	src, dst := make([]byte, 64<<20), make([]byte, 8<<20)
	b.SetBytes(8 << 20)
	for i := 0; b.Loop(); i++ {
		copy(dst, src[i%8*(8<<20):])
	}
}

// BenchmarkExists: 1,024 keys a call.
func BenchmarkExists(b *testing.B) {
	s, r, _ := benchSession(b)
	for len(r.Hashes) < 32*1024 {
		r.Hashes = append(r.Hashes, r.Hashes...)
	}
	r = s.First(r, 1024)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Exists(context.Background(), r, 0); err != nil {
			b.Fatal(err)
		}
	}
}

func benchSession(b *testing.B) (*client.Session, client.Run, []client.Item) {
	n := newNode(b)
	c := n.dial(b, "acme", client.Options{})
	s, err := c.Open(b.Context(), big(b))
	if err != nil {
		b.Fatal(err)
	}
	var r client.Run
	for _, g := range s.Namespace().GetGroups() {
		if g.GetKind() == "full" {
			r.Group = page.GroupID(g.GetId())
		}
	}
	items := make([]client.Item, 8)
	for i := range items {
		h := sha256.Sum256([]byte{byte(i)})
		r.Hashes = append(r.Hashes, h[:]...)
		items[i].Bytes = make([]byte, 1<<20)
		for k := 0; k < 1<<20; k += 32 {
			h = sha256.Sum256(h[:])
			copy(items[i].Bytes[k:], h[:])
		}
	}
	items[0].Root = true
	return s, r, items
}
