package index

import (
	"context"
	"os"
	"testing"
)

// big fills an index of n entries in a real directory.
func big(b *testing.B, n int) (dir string, x *Index) {
	b.Helper()
	dir = b.TempDir()
	x, err := Open(Options{Dir: dir, MaxBytes: MinBytes + int64(n)*BytesPerEntry})
	if err != nil {
		b.Fatal(err)
	}
	g, batch := newGenerator(newRand(b), 4), x.NewBatch()
	for i := range n {
		var e Entry
		g.next(&e)
		batch.Put(&e)
		if i%64 == 63 {
			batch.Applied(e.Segment, e.Offset+e.Bytes)
			batch.NextSeq(e.Seq)
			apply(b, x, batch)
		}
	}
	apply(b, x, batch)
	return dir, x
}

func BenchmarkOpenScan(b *testing.B) {
	n := 1_000_000
	if os.Getenv("QUIRE_BENCH_LARGE") != "" {
		n = 10_000_000
	}
	dir, x := big(b, n)
	closeIndex(b, x)
	disk, written := x.DiskBytes(), x.Written()
	b.ResetTimer()
	b.ReportAllocs()
	for range b.N {
		x, err := Open(Options{Dir: dir, MaxBytes: MinBytes + int64(n)*BytesPerEntry})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := x.State(); err != nil {
			b.Fatal(err)
		}
		got := 0
		if err := x.Scan(context.Background(), func(es []Entry) error { got += len(es); return nil }); err != nil || got != n {
			b.Fatalf("%d entries, want %d: %v", got, n, err)
		}
		closeIndex(b, x)
	}
	b.ReportMetric(float64(disk)/float64(n), "B/entry")
	b.ReportMetric(float64(written)/float64(n), "written-B/entry")
}

func BenchmarkApply(b *testing.B) {
	_, x := big(b, 1000)
	g, batch := newGenerator(newRand(b), 4), x.NewBatch()
	g.segment = 1000
	es := make([]Entry, 1<<16)
	for i := range es {
		g.next(&es[i])
	}
	b.ResetTimer()
	b.ReportAllocs()
	for i := range b.N {
		e := &es[i%len(es)]
		e.Segment = 1000 + uint64(i/512)
		batch.Put(e)
		if i%16 == 15 {
			apply(b, x, batch)
		}
	}
	apply(b, x, batch)
	b.StopTimer()
	closeIndex(b, x)
}
