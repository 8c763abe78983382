package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quire-kv/quire/store/disk/index"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/tier"
)

// benchDir is a directory on a disk: QUIRE_BENCH_DIR, or where temporary files are.
func benchDir(b *testing.B) string {
	dir, err := os.MkdirTemp(os.Getenv("QUIRE_BENCH_DIR"), "quire-disk-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			b.Error(err)
		}
	})
	return dir
}

// extent is a whole region with a header, in memory aligned as a slab's.
func extent(tb testing.TB, regionBytes int, seed byte) []byte {
	tb.Helper()
	at := page.PayloadOffset(page.EncodedHeaderBytes(page.View{H1: 1, L1: 1}, uint32(regionBytes-page.PayloadAlign), 0))
	payload := make([]byte, regionBytes-at)
	for i := range payload {
		payload[i] = seed + byte(i*7)
	}
	hash, err := page.MakeHash(append(make([]byte, 15), seed))
	if err != nil {
		tb.Fatal(err)
	}
	h := page.Header{
		Key: page.Key{Family: page.Family{Epoch: 1}, Hash: hash}, Tokens: 16, View: page.View{H1: 1, L1: 1}, Heads: 1, Layers: 1,
		CellBytes: uint32(len(payload)), Grade: page.Whole, PayloadBytes: uint64(len(payload)),
	}
	sums, err := page.AppendSumsOf(nil, payload, h.View, h.CellBytes)
	if err != nil {
		tb.Fatal(err)
	}
	h.SetSums(sums)
	region := aligned(regionBytes)
	enc, err := h.AppendEncode(region[page.HeadBytes:page.HeadBytes:regionBytes])
	if err != nil {
		tb.Fatal(err)
	}
	copy(region[page.HeadBytes:], enc)
	copy(region[at:], payload)
	return region
}

const benchRegion = page.PayloadAlign + 1<<20

// BenchmarkAppend writes regions of 1 MiB in batches of 16, each durable before the next; "device" is the same bytes
// written to a preallocated file past the page cache, one after the other, without any sync.
func BenchmarkAppend(b *testing.B) {
	const batch = 16
	mem := make([][]byte, 128)
	for i := range mem {
		mem[i] = extent(b, benchRegion, byte(i))
	}
	b.Run("device", func(b *testing.B) {
		dir := directory{fs: vfs.Default, path: benchDir(b), direct: true}
		f, err := dir.make("reference", label{bytes: 2 << 30})
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		b.SetBytes(batch << 20)
		at := int64(blockBytes)
		for i := 0; b.Loop(); i++ {
			for k := range batch {
				if err := f.writeParts([][]byte{mem[(i*batch+k)%len(mem)][page.PayloadAlign:]}, at); err != nil {
					b.Fatal(err)
				}
				if at += 1 << 20; at > 1<<30 {
					at = blockBytes
				}
			}
		}
	})
	for _, buffered := range []bool{false, true} {
		b.Run(fmt.Sprintf("tier/buffered=%v", buffered), func(b *testing.B) {
			d := openDriver(b, Options{Dir: benchDir(b), CapacityBytes: 4 << 30, buffered: buffered})
			defer d.Close()
			b.SetBytes(batch << 20)
			var live []tier.Region
			var wait sync.WaitGroup
			ops := make([]tier.Op, batch)
			for i := 0; b.Loop(); i++ {
				wait.Add(batch)
				for k := range ops {
					r, err := d.Alloc(tier.Class{Bytes: benchRegion}, tier.Owner{Extent: uint32(len(live))})
					for err != nil {
						for _, old := range live[:64] {
							d.Free(old)
						}
						live = live[64:]
						barrier(b, d)
						r, err = d.Alloc(tier.Class{Bytes: benchRegion}, tier.Owner{Extent: uint32(len(live))})
					}
					live = append(live, r)
					ops[k] = tier.Op{Region: r, Memory: mem[(i*batch+k)%len(mem)], Write: true, Note: &tier.Note{Lineage: "x"}, Done: func(err error) {
						if err != nil {
							b.Error(err)
						}
						wait.Done()
					}}
				}
				d.Submit(ops)
				wait.Wait()
			}
			b.StopTimer()
			s := d.Stats()
			b.ReportMetric(float64(s.PayloadBytes+s.FrameBytes+s.JournalBytes+s.IndexBytes)/float64(s.PayloadBytes), "device-B/B")
		})
	}
}

func barrier(tb testing.TB, d *Driver) {
	tb.Helper()
	done := make(chan error, 1)
	d.Barrier(func(err error) { done <- err })
	if err := <-done; err != nil {
		tb.Fatal(err)
	}
}

// BenchmarkRead reads regions of 1 MiB in batches of 16, out of the page cache ("hot") and from the device ("cold").
func BenchmarkRead(b *testing.B) {
	const batch, regions = 16, 512
	for _, hot := range []bool{true, false} {
		b.Run(fmt.Sprintf("hot=%v", hot), func(b *testing.B) {
			d := openDriver(b, Options{Dir: benchDir(b), CapacityBytes: 4 << 30, buffered: hot})
			defer d.Close()
			src := extent(b, benchRegion, 1)
			var wait sync.WaitGroup
			done := func(err error) {
				if err != nil {
					b.Error(err)
				}
				wait.Done()
			}
			var ops []tier.Op
			for range regions {
				r, err := d.Alloc(tier.Class{Bytes: benchRegion}, tier.Owner{})
				if err != nil {
					b.Fatal(err)
				}
				ops = append(ops, tier.Op{Region: r, Memory: src, Write: true, Note: &tier.Note{}, Done: done})
			}
			wait.Add(regions)
			d.Submit(ops)
			wait.Wait()
			for i := range ops {
				ops[i].Write, ops[i].Memory = false, aligned(benchRegion)
			}
			b.SetBytes(batch << 20)
			for i := 0; b.Loop(); i++ {
				at := i * batch % regions
				if !hot && at == 0 {
					b.StopTimer()
					dropCache(b, d.dir.path)
					b.StartTimer()
				}
				wait.Add(batch)
				d.Submit(ops[at : at+batch])
				wait.Wait()
			}
		})
	}
}

// dropCache puts the files of a directory out of the page cache.
func dropCache(b *testing.B, dir string) {
	names, err := filepath.Glob(filepath.Join(dir, "*.seg"))
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range names {
		forgetCached(b, name)
	}
	runtime.GC()
}

// BenchmarkRecover opens a directory of a million regions that was closed in order: 8 KiB each, or 1 MiB in 256 MiB
// segments. Segments are holes: nothing reads them.
func BenchmarkRecover(b *testing.B) {
	for _, regionBytes := range []int64{8 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("region=%d", regionBytes), func(b *testing.B) {
			const regions, segmentBytes = 1_000_000, 256 << 20
			dir := benchDir(b)
			o := Options{Dir: dir, CapacityBytes: 2 << 40, SegmentBytes: segmentBytes}
			d := openDriver(b, o)
			per := (segmentBytes - blockBytes) / regionBytes
			batch := d.index.NewBatch()
			for i := range int64(regions) {
				number := uint64(100 + i/per)
				if i%per == 0 {
					f, err := os.Create(filepath.Join(dir, segmentName(number)))
					if err != nil {
						b.Fatal(err)
					}
					if err := errors.Join(f.Truncate(segmentBytes), f.Close()); err != nil {
						b.Fatal(err)
					}
					batch.Applied(number, segmentBytes)
				}
				id := uint64(i)
				e := index.Entry{Segment: number, Offset: blockBytes + i%per*regionBytes, Bytes: regionBytes, Seq: uint64(i) + 1, View: page.View{H1: 1, L1: 1}}
				e.Key.Epoch = 1
				e.Key.Hash, _ = page.MakeHash(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(make([]byte, 16), id*0x9E3779B97F4A7C15), id*0xC2B2AE3D27D4EB4F))
				e.Parent = e.Key.Hash
				batch.Put(&e)
				if i%1000 == 999 {
					if err := d.index.Apply(batch); err != nil {
						b.Fatal(err)
					}
				}
			}
			if err := errors.Join(d.index.Apply(batch), d.Close()); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				d := openDriver(b, o)
				if n := d.Recovery().Regions; n != regions {
					b.Fatalf("%d regions", n)
				}
				b.StopTimer()
				if err := d.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
