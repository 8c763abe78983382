//go:build race && linux

package frame

import (
	"runtime"
	"syscall"
	"unsafe"
)

// Package syscall tells the race detector of its calls: which memory the kernel touched, and that what was done before
// a write is done after the read that it led to. These say the same of ours; an empty call of syscall's does the latter.

func raceRead(fd uintptr, p []byte) {
	if len(p) > 0 {
		runtime.RaceWriteRange(unsafe.Pointer(unsafe.SliceData(p)), len(p))
	}
	syscall.Read(int(fd), nil)
}

func raceWrite(v [][]byte) {
	for _, p := range v {
		if len(p) > 0 {
			runtime.RaceReadRange(unsafe.Pointer(unsafe.SliceData(p)), len(p))
		}
	}
	syscall.Write(-1, nil)
}
