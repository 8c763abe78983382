package bench

import (
	"runtime"
	"runtime/metrics"
)

// Usage is what a process has used since it began.
type Usage struct {
	CPUSeconds  float64 `json:"cpu_seconds"` // user and system, as the kernel counts
	RSSBytes    uint64  `json:"rss_bytes"`   // 0: not known on this system
	Allocations uint64  `json:"allocations"` // objects on the Go heap

	// The collector's time and all the time that the runtime kept cores busy, both as the runtime counts, which is by
	// the wall: comparable with each other alone. As of the end of the last collection; idle cores not counted.
	CollectorSeconds float64 `json:"collector_seconds"`
	BusySeconds      float64 `json:"busy_seconds"`
}

// ownUsage measures this process.
func ownUsage() Usage {
	samples := []metrics.Sample{
		{Name: "/gc/heap/allocs:objects"}, {Name: "/gc/heap/tiny/allocs:objects"}, {Name: "/cpu/classes/gc/total:cpu-seconds"},
		{Name: "/cpu/classes/gc/mark/idle:cpu-seconds"}, {Name: "/cpu/classes/total:cpu-seconds"}, {Name: "/cpu/classes/idle:cpu-seconds"},
	}
	metrics.Read(samples)
	seconds := func(i int) float64 { return samples[i].Value.Float64() }
	return Usage{
		CPUSeconds: cpuSeconds(), RSSBytes: residentBytes(), Allocations: samples[0].Value.Uint64() + samples[1].Value.Uint64(),
		CollectorSeconds: seconds(2) - seconds(3), BusySeconds: seconds(4) - seconds(5) - seconds(3),
	}
}

// since is what was used from b on; RSSBytes is the growth, not below 0.
func (u Usage) since(b Usage) Usage {
	return Usage{
		CPUSeconds: u.CPUSeconds - b.CPUSeconds, RSSBytes: u.RSSBytes - min(u.RSSBytes, b.RSSBytes), Allocations: u.Allocations - b.Allocations,
		CollectorSeconds: u.CollectorSeconds - b.CollectorSeconds, BusySeconds: u.BusySeconds - b.BusySeconds,
	}
}

// plus sums up what was used in two times of one process.
func (u Usage) plus(o Usage) Usage {
	return Usage{
		CPUSeconds: u.CPUSeconds + o.CPUSeconds, RSSBytes: u.RSSBytes + o.RSSBytes, Allocations: u.Allocations + o.Allocations,
		CollectorSeconds: u.CollectorSeconds + o.CollectorSeconds, BusySeconds: u.BusySeconds + o.BusySeconds,
	}
}

// collectorShare is the collector's part of the busy time, in percent.
func (u Usage) collectorShare() float64 {
	if u.BusySeconds <= 0 {
		return 0
	}
	return 100 * u.CollectorSeconds / u.BusySeconds
}

// settled is ownUsage after the collector has given back what it can.
func settled() Usage {
	runtime.GC()
	runtime.GC()
	freeOSMemory()
	return ownUsage()
}
