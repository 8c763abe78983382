//go:build linux

package core

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// benchHash is the i-th page hash of a benchmark: as spread as a digest.
func benchHash(dst []byte, i uint64) []byte {
	h := (i + 1) * 0x9e3779b97f4a7c15
	for range testHashBytes / 8 {
		h ^= h >> 29
		h *= 0xbf58476d1ce4e5b9
		dst = binary.LittleEndian.AppendUint64(dst, h)
	}
	return dst
}

// fill commits pages [0, n) as chains of 1,024 through the events, as a runtime would.
func fill(tb testing.TB, n uint64) (*Shard, page.Family) {
	s := New(Options{Policy: evict.NewLRU(0)})
	st := testNamespace(1, 1)
	f := familyIn(st, testGroup)
	s.Step(0, 1000, NamespaceChanged{st}, nil)
	const batch = 1024
	var next int64
	var out []Effect
	hashes := make([]byte, 0, batch*testHashBytes)
	pages, indices := make([]BeginPage, batch), make([]uint32, batch)
	for i := range pages {
		pages[i] = BeginPage{Link: LinkPrevious, PayloadBytes: cellsOf(testGeometry(), page.View{})}
		indices[i] = uint32(i)
	}
	pages[0].Link = LinkRoot
	var places []Place
	for at := uint64(0); at < n; at += batch {
		hashes = hashes[:0]
		for i := range uint64(batch) {
			hashes = benchHash(hashes, at+i)
		}
		b := Begin{Ticket: 1, Principal: 1, Run: Run{f, hashes}, Pages: pages, Provenance: 1, ProvBytes: 40}
		out = s.Step(0, 1000, b, out[:0])
		a := out[0].(Alloc)
		places = places[:0]
		for _, item := range a.Items {
			places = append(places, Place{evict.Host, uint32(1 + next>>40), next & (1<<40 - 1), item.Bytes})
			next += int64(roundUp(uint64(item.Bytes)))
		}
		out = s.Step(0, 1000, Allocated{ID: a.ID, Places: places}, out[:0])
		r := out[0].(Reply)
		out = s.Step(0, 1000, Commit{Ticket: 2, Principal: 1, Namespace: st.ID, Epoch: 1, Token: r.Token, Pages: indices}, out[:0])
	}
	if s.Totals().Pages != n {
		tb.Fatalf("%d pages, want %d", s.Totals().Pages, n)
	}
	return s, f
}

// rssBytes is the resident memory of this process, 0 where it cannot be told.
func rssBytes() uint64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseUint(strings.Fields(string(b))[1], 10, 64)
	return n * uint64(os.Getpagesize())
}

func settledRSS() uint64 {
	runtime.GC()
	debug.FreeOSMemory()
	return rssBytes()
}

// cpuTime is what this process has used of the processors: other work on the machine does not count.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkExists probes 4 Mi pages, 1,024 keys a call, half of them misses. B/page is resident memory, 32 B for the
// extent of each page taken off.
func BenchmarkExists(b *testing.B) {
	const pages, perCall = 4 << 20, 1024
	before := settledRSS()
	s, f := fill(b, pages)
	perPage := float64(settledRSS()-before)/pages - 32
	var runs [256]Run
	for i := range runs {
		runs[i].Family = f
		for j := range uint64(perCall) {
			at := (uint64(i)*perCall + j) * 2654435761 % (2 * pages)
			runs[i].Hashes = benchHash(runs[i].Hashes, at)
		}
	}
	bits := make([]byte, perCall/8)
	hits := 0
	b.ReportAllocs()
	b.ResetTimer()
	start := cpuTime()
	for i := 0; b.Loop(); i++ {
		_, n, why := s.Exists(1000, &runs[i%len(runs)], page.View{}, bits, 0)
		if hits += n; why != reason.None {
			b.Fatal(why)
		}
	}
	keys := float64(b.N) * perCall
	b.ReportMetric(keys/(cpuTime()-start).Seconds()/1e6, "Mkeys/cpu-s")
	b.ReportMetric(perPage, "B/page")
	b.ReportMetric(float64(hits)/keys, "hit/key")
	runtime.KeepAlive(s)
}

// BenchmarkPublish begins and commits whole pages, 1,024 a batch.
func BenchmarkPublish(b *testing.B) {
	n := uint64(b.N+1023) &^ 1023
	s, _ := fill(b, n)
	runtime.KeepAlive(s)
}

// BenchmarkRestore files pages of earlier lives, 4,096 a batch, chains of 1,024 with their parents first (sequential) or
// in any order, and settles them. ns/op is of one page, its share of Settle included.
func BenchmarkRestore(b *testing.B) {
	const pages = 1 << 20
	for _, shuffled := range []bool{false, true} {
		b.Run(map[bool]string{false: "sequential", true: "shuffled"}[shuffled], func(b *testing.B) {
			st := testNamespace(1, 1)
			f := familyIn(st, testGroup)
			geo := testGeometry()
			order := rand.New(rand.NewPCG(1, 2)).Perm(pages)
			batch := make([]RestoredExtent, 4096)
			hashes := make([]page.Hash, pages)
			for i := range hashes {
				hashes[i] = mustHash(benchHash(nil, uint64(i)))
			}
			size := page.RegionBytes(geo.Full(), geo.CellBytes, 40)
			var spent, filed time.Duration
			restored := 0
			for b.Loop() {
				s := New(Options{Policy: evict.NewLRU(0)})
				s.Step(0, 1000, NamespaceChanged{st}, nil)
				for at := 0; at < pages; at += len(batch) {
					for j := range batch {
						i := at + j
						if shuffled {
							i = order[i]
						}
						batch[j] = RestoredExtent{Family: f, Hash: hashes[i], Link: LinkRoot, View: geo.Full(), Lineage: []uint16{1},
							Place: Place{evict.Disk, 1, int64(i) << 14, size}}
						if i%1024 != 0 {
							batch[j].Link, batch[j].Parent = LinkHash, hashes[i-1]
						}
					}
					start := cpuTime()
					s.Step(0, 1000, Restore{batch}, nil)
					spent += cpuTime() - start
				}
				start := cpuTime()
				s.Step(0, 1000, Settle{}, nil)
				filed += cpuTime() - start
				if n := s.Totals(); n.Pages != pages || n.Placeholders != 0 {
					b.Fatalf("%d pages, %d placeholders", n.Pages, n.Placeholders)
				}
				restored += pages
			}
			b.ReportMetric(float64(spent.Nanoseconds())/float64(restored), "restore-ns/page")
			b.ReportMetric(float64(filed.Nanoseconds())/float64(restored), "settle-ns/page")
		})
	}
}

// BenchmarkRead pins and unpins 64 pages a call, each with a copy in Host and one on Disk. ns/op is of one page.
func BenchmarkRead(b *testing.B) {
	const pages, perCall = 1 << 16, 64
	s, f := fill(b, pages)
	var out []Effect
	var hashes []byte
	at := int64(0)
	for i := uint64(0); i < pages; i += 1024 {
		hashes = hashes[:0]
		for j := range uint64(1024) {
			hashes = benchHash(hashes, i+j)
		}
		for _, e := range s.Step(0, 1000, Persist{Ticket: 3, Run: Run{f, hashes}}, nil) {
			if t, ok := e.(Transfer); ok {
				at += 1 << 14
				out = s.Step(0, 1000, TransferDone{ID: t.ID, To: Place{evict.Disk, 1, at, t.From.Bytes}}, out[:0])
			}
		}
	}
	if n := s.Totals().Extents; n != 2*pages {
		b.Fatalf("%d copies of %d pages", n, pages)
	}
	var runs [64]Run
	for i := range runs {
		runs[i].Family = f
		for j := range uint64(perCall) {
			runs[i].Hashes = benchHash(runs[i].Hashes, (uint64(i)*perCall+j)*2654435761%pages)
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i += perCall {
		t := Ticket(10 + i)
		out = s.Step(0, 1000, Read{Ticket: t, Principal: 1, Run: runs[i/perCall%len(runs)]}, out[:0])
		out = s.Step(0, 1000, ReadDone{t}, out[:0])
	}
	runtime.KeepAlive(s)
}
