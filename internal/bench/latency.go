package bench

import (
	"math/bits"
	"time"
)

// Latencies are counted in buckets of 1/32 of a power of two of nanoseconds: 3 % exact, no memory per call.
//
//	nanoseconds  1.....0 1 1 0 1 x x x x      bucket = (place of the first bit, the five bits behind it)
const (
	subBits      = 5
	latencyRange = (64 - subBits + 1) << subBits
)

// latencies is a histogram. The zero value is empty. Not for concurrent use.
type latencies struct {
	counts [latencyRange]uint64
	n      uint64
}

func bucketOf(ns uint64) int {
	if ns < 1<<subBits {
		return int(ns)
	}
	shift := bits.Len64(ns) - 1 - subBits
	return (shift+1)<<subBits + int(ns>>shift&(1<<subBits-1))
}

// bucketStart is the least latency of a bucket.
func bucketStart(b int) uint64 {
	if b < 1<<subBits {
		return uint64(b)
	}
	shift := b>>subBits - 1
	return (1<<subBits + uint64(b)&(1<<subBits-1)) << shift
}

func (l *latencies) add(d time.Duration) {
	l.counts[bucketOf(uint64(max(d, 0)))]++
	l.n++
}

func (l *latencies) merge(o *latencies) {
	for i, c := range o.counts {
		l.counts[i] += c
	}
	l.n += o.n
}

// quantile is the latency that a share q of calls does not exceed, within a bucket; 0 of none.
func (l *latencies) quantile(q float64) time.Duration {
	if l.n == 0 {
		return 0
	}
	left := int64(q * float64(l.n))
	for b, c := range l.counts {
		if left -= int64(c); left < 0 {
			return time.Duration(bucketStart(b))
		}
	}
	return time.Duration(bucketStart(latencyRange - 1))
}
