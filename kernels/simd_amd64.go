//go:build !purego

package kernels

import (
	"math/bits"
	"unsafe"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/cpu"
)

// simd is a set of instructions that the kernels are written for.
type simd int

const (
	plain simd = iota
	avx2
	avx512
)

// level is the widest set that this processor is good at. Processors with AVX-512 but without VBMI lower their clock for
// it.
var level = widest()

func widest() simd {
	switch {
	case cpu.X86.HasAVX512F && cpu.X86.HasAVX512VBMI:
		return avx512
	case cpu.X86.HasAVX2:
		return avx2
	}
	return plain
}

//go:noescape
func sumAVX512(lanes *[8]uint64, src, last *byte, stripes uintptr)

//go:noescape
func copySumAVX512(lanes *[8]uint64, dst, src, last *byte, stripes uintptr)

//go:noescape
func streamSumAVX512(lanes *[8]uint64, dst, src, last *byte, stripes uintptr)

//go:noescape
func sumAVX2(lanes *[8]uint64, src, last *byte, stripes uintptr)

//go:noescape
func copySumAVX2(lanes *[8]uint64, dst, src, last *byte, stripes uintptr)

//go:noescape
func streamSumAVX2(lanes *[8]uint64, dst, src, last *byte, stripes uintptr)

//go:noescape
func rowsAVX2(dst, src *byte, n, dstStride, srcStride, run uintptr)

const (
	stripeBytes = 64
	shortBytes  = 240 // up to here xxh3 has other forms, which are a handful of instructions
	rowBytes    = 32  // of a row, at least, for vectors
)

// Primes of xxh3.
const (
	prime32x1 = 0x9e3779b1
	prime32x2 = 0x85ebca77
	prime32x3 = 0xc2b2ae3d
	prime64x1 = 0x9e3779b185ebca87
	prime64x2 = 0xc2b2ae3d27d4eb4f
	prime64x3 = 0x165667b19e3779f9
	prime64x4 = 0x85ebca77c2b2ae63
	prime64x5 = 0x27d4eb2f165667c5
)

// fresh are the lanes before the first stripe.
func fresh() [8]uint64 {
	return [8]uint64{prime32x3, prime64x1, prime64x2, prime64x3, prime64x4, prime32x2, prime64x5, prime32x1}
}

// merge is the sum of n bytes whose stripes are in the lanes.
func merge(lanes *[8]uint64, n int) uint64 {
	x := uint64(n) * prime64x1
	x += fold(lanes[0]^0x6dd4de1cad21f72c, lanes[1]^0xa44072db979083e9) // secret from byte 11 on
	x += fold(lanes[2]^0xe679cb1f67b3b7a4, lanes[3]^0xd05a8278e5c0cc4e)
	x += fold(lanes[4]^0x4608b82172ffcc7d, lanes[5]^0x9035e08e2443f774)
	x += fold(lanes[6]^0x52283c4c263a81e6, lanes[7]^0x65d088cb00c391bb)
	x ^= x >> 37
	x *= 0x165667919e3779f9
	return x ^ x>>32
}

func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

func sum(b []byte) uint64 {
	if len(b) <= shortBytes || level == plain {
		return xxh3.Hash(b)
	}
	lanes, last, stripes := fresh(), &b[len(b)-stripeBytes], uintptr(len(b)-1)/stripeBytes
	if level == avx512 {
		sumAVX512(&lanes, &b[0], last, stripes)
	} else {
		sumAVX2(&lanes, &b[0], last, stripes)
	}
	return merge(&lanes, len(b))
}

// copySum has dst and src of one length. What is behind the whole stripes goes first, since the last stripe, which ends
// with it and begins inside of the one before, is read from where it arrives.
func copySum(dst, src []byte, stream bool) uint64 {
	n := len(src)
	if n <= shortBytes || level == plain {
		return plainCopySum(dst, src)
	}
	stripes := uintptr(n-1) / stripeBytes
	copy(dst[stripes*stripeBytes:], src[stripes*stripeBytes:])
	lanes, last := fresh(), &dst[n-stripeBytes]
	stream = stream && uintptr(unsafe.Pointer(&dst[0]))%stripeBytes == 0
	switch {
	case level == avx512 && stream:
		streamSumAVX512(&lanes, &dst[0], &src[0], last, stripes)
	case level == avx512:
		copySumAVX512(&lanes, &dst[0], &src[0], last, stripes)
	case stream:
		streamSumAVX2(&lanes, &dst[0], &src[0], last, stripes)
	default:
		copySumAVX2(&lanes, &dst[0], &src[0], last, stripes)
	}
	return merge(&lanes, n)
}

// rows copies n rows of run bytes, at least one.
func rows(dst, src []byte, n, dstStride, srcStride, run int) {
	if run < rowBytes || level == plain {
		plainRows(dst, src, n, dstStride, srcStride, run)
		return
	}
	_, _ = dst[(n-1)*dstStride+run-1], src[(n-1)*srcStride+run-1]
	rowsAVX2(&dst[0], &src[0], uintptr(n), uintptr(dstStride), uintptr(srcStride), uintptr(run))
}
