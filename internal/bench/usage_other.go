//go:build !linux

package bench

func residentBytes() uint64 { return 0 }
