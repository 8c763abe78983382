//go:build linux

package core

import (
	"encoding/binary"
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
