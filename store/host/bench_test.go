package host

import (
	"runtime"
	"testing"

	"github.com/quire-kv/quire/store/tier"
)

func BenchmarkAllocFree(b *testing.B) {
	d := newTier(b, Options{CapacityBytes: 1 << 30, memory: &fakeMemory{}})
	defer closeTier(b, d)
	c := sized(1 << 20)
	for range 100 {
		alloc(b, d, c)
	}
	b.ReportAllocs()
	for b.Loop() {
		r, err := d.Alloc(c, tier.Owner{})
		if err != nil {
			b.Fatal(err)
		}
		d.Free(r)
	}
}

func BenchmarkLookup(b *testing.B) {
	d := newTier(b, Options{CapacityBytes: 1 << 30, memory: &fakeMemory{}})
	defer closeTier(b, d)
	var all []tier.Region
	for range 256 {
		all = append(all, alloc(b, d, sized(1<<20)))
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		r := all[i%len(all)]
		if _, ok := d.Lookup(r.Handle, r.Offset); !ok {
			b.Fatal("lost")
		}
		i++
	}
}

// BenchmarkFull is what an Alloc costs that finds no room.
func BenchmarkFull(b *testing.B) {
	d := newTier(b, Options{CapacityBytes: 1 << 30, memory: &fakeMemory{}})
	defer closeTier(b, d)
	for {
		if _, err := d.Alloc(sized(1<<20), tier.Owner{}); err != nil {
			break
		}
	}
	for b.Loop() {
		if _, err := d.Alloc(sized(1<<20), tier.Owner{}); !isFull(err) {
			b.Fatal(err)
		}
		d.Compact(nil)
	}
}

func (d *Driver) isCold() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.cold) > 0
}

// BenchmarkCopy compares copies of 1 MiB out of and into the tier with copies from and to heap memory, all populated.
func BenchmarkCopy(b *testing.B) {
	const span, page = 256 << 20, 1 << 20
	scratch := make([]byte, page)
	heap := make([]byte, span)
	for i := 0; i < span; i += 4096 {
		heap[i] = 1
	}
	source := map[string]func(b *testing.B) ([][]byte, func()){
		"heap": func(*testing.B) (out [][]byte, _ func()) {
			for at := 0; at < span; at += page {
				out = append(out, heap[at:at+page])
			}
			return out, func() {}
		},
	}
	for name, small := range map[string]bool{"4KiB": true, "huge": false} {
		source[name] = func(b *testing.B) (out [][]byte, _ func()) {
			d := newTier(b, Options{CapacityBytes: 2 * span, SmallPages: small})
			for range span / page {
				out = append(out, alloc(b, d, sized(page)).Memory)
			}
			for d.isCold() {
				d.populateAll()
				runtime.Gosched()
			}
			if share := d.Usage().HugePages; !small && share < enoughHugePages {
				b.Skipf("%.0f%% of memory is in huge pages", 100*share)
			}
			return out, func() { closeTier(b, d) }
		}
	}
	for _, name := range []string{"heap", "4KiB", "huge"} {
		regions, done := source[name](b)
		for _, way := range []string{"out", "in"} {
			b.Run(name+"/"+way, func(b *testing.B) {
				b.SetBytes(page)
				i := 0
				for b.Loop() {
					r := regions[i*7%len(regions)]
					if way == "out" {
						copy(scratch, r)
					} else {
						copy(r, scratch)
					}
					i++
				}
			})
		}
		done()
	}
}

// BenchmarkPopulate makes fresh memory resident.
func BenchmarkPopulate(b *testing.B) {
	const span = 64 << 20
	for _, name := range []string{"4KiB", "huge"} {
		b.Run(name, func(b *testing.B) {
			f := newMemory(name == "4KiB")
			b.SetBytes(span)
			for b.Loop() {
				m, err := f.mapping(span, false)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := f.populate(m, 0, span); err != nil {
					b.Fatal(err)
				}
				if err := f.unmap(m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
