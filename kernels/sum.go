package kernels

// Sum is the xxh3-64 of b, without seed.
func Sum(b []byte) uint64 { return sum(b) }

// CopySum copies src to the first len(src) bytes of dst and returns their xxh3-64, in one pass. The sum is of what then
// lies in dst, even if somebody writes to src meanwhile. The two must not overlap. Like an index, it panics if dst is
// shorter.
func CopySum(dst, src []byte) uint64 { return copySum(dst[:len(src)], src, false) }

// StreamSum is CopySum for a destination that is large, not in cache, and not read soon: stores go past the caches. Memory
// is then not read before it is written, which saves a third of the traffic; a destination that was in cache, or is read
// at once, is slower for it. Without effect where dst is not aligned to 64 bytes.
func StreamSum(dst, src []byte) uint64 { return copySum(dst[:len(src)], src, true) }
