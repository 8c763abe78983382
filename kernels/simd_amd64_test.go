//go:build !purego

package kernels

import (
	"testing"

	"golang.org/x/sys/cpu"
)

// atEveryLevel runs f with every set of instructions that this processor has, the ones that it would not choose included.
func atEveryLevel(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	chosen := level
	t.Cleanup(func() { level = chosen })
	for _, l := range []struct {
		level simd
		name  string
		has   bool
	}{{plain, "plain", true}, {avx2, "avx2", cpu.X86.HasAVX2}, {avx512, "avx512", cpu.X86.HasAVX512F && cpu.X86.HasAVX2}} {
		if l.has {
			level = l.level
			t.Run(l.name, f)
		}
	}
}
