//go:build !amd64 || purego

package kernels

import "github.com/zeebo/xxh3"

func sum(b []byte) uint64 { return xxh3.Hash(b) }

func copySum(dst, src []byte, _ bool) uint64 { return plainCopySum(dst, src) }

func rows(dst, src []byte, n, dstStride, srcStride, run int) {
	plainRows(dst, src, n, dstStride, srcStride, run)
}
