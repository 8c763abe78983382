//go:build unix

package bench

import (
	"runtime/debug"
	"syscall"
	"time"
)

// cpuSeconds is user and system time of this process.
func cpuSeconds() float64 {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return (time.Duration(r.Utime.Nano()) + time.Duration(r.Stime.Nano())).Seconds()
}

func freeOSMemory() { debug.FreeOSMemory() }
