package kernels

import "github.com/zeebo/xxh3"

// plainCopySum is what the others are equal to.
func plainCopySum(dst, src []byte) uint64 {
	copy(dst, src)
	return xxh3.Hash(dst)
}

// plainRows copies n rows of run bytes, at least one. A call a row costs more than the bytes of a short one.
func plainRows(dst, src []byte, n, dstStride, srcStride, run int) {
	switch run {
	case 1:
		for k := range n {
			dst[k*dstStride] = src[k*srcStride]
		}
	case 2:
		for k := range n {
			*(*[2]byte)(dst[k*dstStride:]) = [2]byte(src[k*srcStride:])
		}
	case 4:
		for k := range n {
			*(*[4]byte)(dst[k*dstStride:]) = [4]byte(src[k*srcStride:])
		}
	case 8:
		for k := range n {
			*(*[8]byte)(dst[k*dstStride:]) = [8]byte(src[k*srcStride:])
		}
	case 16:
		for k := range n {
			*(*[16]byte)(dst[k*dstStride:]) = [16]byte(src[k*srcStride:])
		}
	case 32:
		for k := range n {
			*(*[32]byte)(dst[k*dstStride:]) = [32]byte(src[k*srcStride:])
		}
	default:
		for k := range n {
			copy(dst[k*dstStride:k*dstStride+run], src[k*srcStride:])
		}
	}
}
