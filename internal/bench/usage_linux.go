package bench

import (
	"bytes"
	"os"
	"strconv"
)

// residentBytes is the second field of statm: pages of memory in use, shared ones included.
func residentBytes() uint64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := bytes.Fields(b)
	if len(fields) < 2 {
		return 0
	}
	n, err := strconv.ParseUint(string(fields[1]), 10, 64)
	if err != nil {
		return 0
	}
	return n * uint64(os.Getpagesize())
}
