// Package clock is the only source of time. Pure packages take an Instant as an argument and never ask.
package clock

import (
	"math"
	"time"
)

// Instant is monotonic nanoseconds since the boot of this process. Instants of two boots are never compared.
type Instant int64

// Add is i+d, saturating at both ends.
func (i Instant) Add(d time.Duration) Instant {
	s := i + Instant(d)
	switch {
	case d > 0 && s < i:
		return math.MaxInt64
	case d < 0 && s > i:
		return math.MinInt64
	}
	return s
}

// Sub is the duration from j to i.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i - j) }

// Wall is seconds since the Unix epoch; used for page and waiver expiry and for nothing else. 0 is "never".
type Wall uint32

// WallOf converts t, saturating.
func WallOf(t time.Time) Wall {
	s := t.Unix()
	switch {
	case s <= 0:
		return 0
	case s >= math.MaxUint32:
		return math.MaxUint32
	}
	return Wall(s)
}

// Time converts back; the zero Wall is the zero Time.
func (w Wall) Time() time.Time {
	if w == 0 {
		return time.Time{}
	}
	return time.Unix(int64(w), 0)
}

// Clock is the seam; the simulator and tests own another. Safe for concurrent use.
type Clock interface {
	Now() Instant
	Wall() Wall
	// AfterFunc runs f on a goroutine of its own after d; stop reports whether f was kept from running.
	AfterFunc(d time.Duration, f func()) (stop func() bool)
}

// System is the real clock.
func System() Clock { return system{start: time.Now()} }

type system struct{ start time.Time }

func (s system) Now() Instant { return Instant(time.Since(s.start)) }
func (s system) Wall() Wall   { return WallOf(time.Now()) }
func (s system) AfterFunc(d time.Duration, f func()) func() bool {
	return time.AfterFunc(d, f).Stop
}
