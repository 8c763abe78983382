package server_test

import (
	"fmt"
	"io"
	"testing"

	"google.golang.org/grpc"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/rpc"
	"github.com/quire-kv/quire/store/server"
	"github.com/quire-kv/quire/store/storetest"

	"github.com/quire-kv/quire/namespace"
)

// Client and server share the machine's cores here; quire bench measures them apart.

func BenchmarkBatchExists(b *testing.B) {
	s := engineSpace(b, server.Limits{})
	hashes := storetest.Chain("x", 200)
	s.publish(hashes)
	for _, keys := range []int{128, 1024, 8192} {
		b.Run(fmt.Sprint(keys), func(b *testing.B) {
			var all []byte
			for len(all) < 32*keys {
				all = append(all, hashes...)
			}
			r := &quirev1.BatchExistsRequest{Namespace: s.ref, Runs: s.runs(all[:32*keys])}
			b.ReportAllocs()
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					if got, err := s.page.BatchExists(b.Context(), r); err != nil || got.Leading[0] == 0 {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(keys)*float64(b.N)/b.Elapsed().Seconds(), "keys/s")
		})
	}
}

func BenchmarkFetch(b *testing.B) {
	w := newWorld(b, server.Limits{})
	s := w.as("a", namespace.RoleEngine).open("w", "1")
	hashes := storetest.Chain("x", 128)
	s.publish(hashes)
	wide := s.seenBy(w.as("a", namespace.RoleEngine,
		grpc.WithInitialWindowSize(8<<20), grpc.WithInitialConnWindowSize(8<<20), grpc.WithReadBufferSize(128<<10),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rpc.NewCodec()))))
	dst := make([]byte, pageBytes)
	b.SetBytes(128 * pageBytes)
	b.ReportAllocs()
	for b.Loop() {
		st, err := wide.page.Fetch(b.Context(), &quirev1.FetchRequest{Namespace: wide.ref, Run: wide.run(hashes)})
		if err != nil {
			b.Fatal(err)
		}
		head, n := &rpc.FetchHead{}, 0
		in := &rpc.Received{Head: head, Begin: func(int) error { n = 0; return nil }, Chunk: func(p []byte) error { n += copy(dst[n:], p); return nil }}
		for err == nil {
			err = st.RecvMsg(in)
		}
		if err != io.EOF {
			b.Fatal(err)
		}
	}
}
