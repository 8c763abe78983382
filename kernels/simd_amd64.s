//go:build !purego

#include "textflag.h"

// The long form of xxh3-64 without seed (XXH3_hashLong_64b, specification of xxHash 0.8): eight lanes of 64 bits take a
// stripe of 64 bytes at a time, under 64 bytes of the secret that begin 8 bytes later with each stripe of a block. A block
// is 16 stripes; then the lanes are scrambled with the end of the secret.
//
//	x      = stripe ^ secret
//	lane i += low32(x[i]) * high32(x[i]) + stripe[i ^ 1]
//	scramble: lane = (lane ^ lane >> 47 ^ secret) * prime32_1
//
// sum:     AX lanes, SI source, R8 last stripe, CX stripes
// copySum: DI destination besides: a stripe is stored as it was loaded, so what is summed is what is stored

DATA secret<>+0(SB)/8, $0xbe4ba423396cfeb8
DATA secret<>+8(SB)/8, $0x1cad21f72c81017c
DATA secret<>+16(SB)/8, $0xdb979083e96dd4de
DATA secret<>+24(SB)/8, $0x1f67b3b7a4a44072
DATA secret<>+32(SB)/8, $0x78e5c0cc4ee679cb
DATA secret<>+40(SB)/8, $0x2172ffcc7dd05a82
DATA secret<>+48(SB)/8, $0x8e2443f7744608b8
DATA secret<>+56(SB)/8, $0x4c263a81e69035e0
DATA secret<>+64(SB)/8, $0xcb00c391bb52283c
DATA secret<>+72(SB)/8, $0xa32e531b8b65d088
DATA secret<>+80(SB)/8, $0x4ef90da297486471
DATA secret<>+88(SB)/8, $0xd8acdea946ef1938
DATA secret<>+96(SB)/8, $0x3f349ce33f76faa8
DATA secret<>+104(SB)/8, $0x1d4f0bc7c7bbdcf9
DATA secret<>+112(SB)/8, $0x3159b4cd4be0518a
DATA secret<>+120(SB)/8, $0x647378d9c97e9fc8
DATA secret<>+128(SB)/8, $0xc3ebd33483acc5ea
DATA secret<>+136(SB)/8, $0xeb6313faffa081c5
DATA secret<>+144(SB)/8, $0x49daf0b751dd0d17
DATA secret<>+152(SB)/8, $0x9e68d429265516d3
DATA secret<>+160(SB)/8, $0xfca1477d58be162b
DATA secret<>+168(SB)/8, $0xce31d07ad1b8f88f
DATA secret<>+176(SB)/8, $0x280416958f3acb45
DATA secret<>+184(SB)/8, $0x7e404bbbcafbd7af
GLOBL secret<>(SB), RODATA|NOPTR, $192

// ahead is how far the source is prefetched beyond the stripe at hand: the processor's own prefetch stops at 4 KiB.
#define ahead 2048

// What becomes of a stripe besides: nothing, a store, a store past the caches.
#define KEEP(data, to)
#define STORE512(data, to) VMOVDQU64 data, to
#define STREAM512(data, to) VMOVNTDQ data, to
#define STORE256(data, to) VMOVDQU data, to
#define STREAM256(data, to) VMOVNTDQ data, to

// AVX-512: lanes Z0, prime Z1, secret of the 16 stripes Z2 to Z17 and of the scramble Z18.

#define MIX512(secret)        \
	VPXORQ   secret, Z19, Z20 \
	VPSHUFD  $0x31, Z20, Z21  \
	VPMULUDQ Z20, Z21, Z20    \
	VPSHUFD  $0x4e, Z19, Z19  \
	VPADDQ   Z19, Z20, Z20    \
	VPADDQ   Z20, Z0, Z0

#define STRIPE512(at, secret, STORE) \
	VMOVDQU64  at(SI), Z19           \
	PREFETCHT0 (at+ahead)(SI)        \
	STORE(Z19, at(DI))               \
	MIX512(secret)

#define BODY512(STORE)             \
	VMOVDQU64 (AX), Z0             \
	MOVL      $0x9e3779b1, BX      \
	VPBROADCASTQ BX, Z1            \
	LEAQ      secret<>(SB), DX     \
	VMOVDQU64 0(DX), Z2            \
	VMOVDQU64 8(DX), Z3            \
	VMOVDQU64 16(DX), Z4           \
	VMOVDQU64 24(DX), Z5           \
	VMOVDQU64 32(DX), Z6           \
	VMOVDQU64 40(DX), Z7           \
	VMOVDQU64 48(DX), Z8           \
	VMOVDQU64 56(DX), Z9           \
	VMOVDQU64 64(DX), Z10          \
	VMOVDQU64 72(DX), Z11          \
	VMOVDQU64 80(DX), Z12          \
	VMOVDQU64 88(DX), Z13          \
	VMOVDQU64 96(DX), Z14          \
	VMOVDQU64 104(DX), Z15         \
	VMOVDQU64 112(DX), Z16         \
	VMOVDQU64 120(DX), Z17         \
	VMOVDQU64 128(DX), Z18         \
	SUBQ      $16, CX              \
	JB        rest                 \
block:                             \
	STRIPE512(0, Z2, STORE)        \
	STRIPE512(64, Z3, STORE)       \
	STRIPE512(128, Z4, STORE)      \
	STRIPE512(192, Z5, STORE)      \
	STRIPE512(256, Z6, STORE)      \
	STRIPE512(320, Z7, STORE)      \
	STRIPE512(384, Z8, STORE)      \
	STRIPE512(448, Z9, STORE)      \
	STRIPE512(512, Z10, STORE)     \
	STRIPE512(576, Z11, STORE)     \
	STRIPE512(640, Z12, STORE)     \
	STRIPE512(704, Z13, STORE)     \
	STRIPE512(768, Z14, STORE)     \
	STRIPE512(832, Z15, STORE)     \
	STRIPE512(896, Z16, STORE)     \
	STRIPE512(960, Z17, STORE)     \
	VPSRLQ    $47, Z0, Z19         \
	VPTERNLOGQ $0x96, Z0, Z18, Z19 \
	VPMULUDQ  Z1, Z19, Z0          \
	VPSRLQ    $32, Z19, Z19        \
	VPMULUDQ  Z1, Z19, Z19         \
	VPSLLQ    $32, Z19, Z19        \
	VPADDQ    Z19, Z0, Z0          \
	ADDQ      $1024, SI            \
	ADDQ      $1024, DI            \
	SUBQ      $16, CX              \
	JAE       block                \
rest:                              \
	ADDQ      $16, CX              \
	JZ        last                 \
stripe:                            \
	STRIPE512(0, (DX), STORE)      \
	ADDQ      $8, DX               \
	ADDQ      $64, SI              \
	ADDQ      $64, DI              \
	DECQ      CX                   \
	JNZ       stripe               \
last:                              \
	LEAQ      secret<>+121(SB), DX \
	VMOVDQU64 (R8), Z19            \
	MIX512((DX))                   \
	VMOVDQU64 Z0, (AX)             \
	VZEROUPPER

// func sumAVX512(lanes *[8]uint64, src, last *byte, stripes uintptr)
TEXT ·sumAVX512(SB), NOSPLIT, $0-32
	MOVQ lanes+0(FP), AX
	MOVQ src+8(FP), SI
	MOVQ last+16(FP), R8
	MOVQ stripes+24(FP), CX
	BODY512(KEEP)
	RET

// func copySumAVX512(lanes *[8]uint64, dst, src, last *byte, stripes uintptr)
TEXT ·copySumAVX512(SB), NOSPLIT, $0-40
	MOVQ lanes+0(FP), AX
	MOVQ dst+8(FP), DI
	MOVQ src+16(FP), SI
	MOVQ last+24(FP), R8
	MOVQ stripes+32(FP), CX
	BODY512(STORE512)
	RET

// func streamSumAVX512(lanes *[8]uint64, dst, src, last *byte, stripes uintptr)
TEXT ·streamSumAVX512(SB), NOSPLIT, $0-40
	MOVQ lanes+0(FP), AX
	MOVQ dst+8(FP), DI
	MOVQ src+16(FP), SI
	MOVQ last+24(FP), R8
	MOVQ stripes+32(FP), CX
	BODY512(STREAM512)
	SFENCE
	RET

// AVX2: lanes Y0 and Y1, prime Y2, the secret in memory.

#define MIX256(at, half, lanes, data)  \
	VPXOR    (at/8+half)(DX), data, Y5 \
	VPSHUFD  $0x31, Y5, Y6             \
	VPMULUDQ Y5, Y6, Y5                \
	VPSHUFD  $0x4e, data, data         \
	VPADDQ   data, Y5, Y5              \
	VPADDQ   Y5, lanes, lanes

#define STRIPE256(at, STORE)   \
	VMOVDQU    at(SI), Y3      \
	VMOVDQU    (at+32)(SI), Y4 \
	PREFETCHT0 (at+ahead)(SI)  \
	STORE(Y3, at(DI))          \
	STORE(Y4, (at+32)(DI))     \
	MIX256(at, 0, Y0, Y3)      \
	MIX256(at, 32, Y1, Y4)

#define SCRAMBLE256(half, lanes)    \
	VPSRLQ   $47, lanes, Y5         \
	VPXOR    lanes, Y5, Y5          \
	VPXOR    (128+half)(DX), Y5, Y5 \
	VPMULUDQ Y2, Y5, lanes          \
	VPSRLQ   $32, Y5, Y5            \
	VPMULUDQ Y2, Y5, Y5             \
	VPSLLQ   $32, Y5, Y5            \
	VPADDQ   Y5, lanes, lanes

#define BODY256(STORE)           \
	VMOVDQU (AX), Y0             \
	VMOVDQU 32(AX), Y1           \
	MOVL    $0x9e3779b1, BX      \
	VMOVQ   BX, X2               \
	VPBROADCASTQ X2, Y2          \
	LEAQ    secret<>(SB), DX     \
	SUBQ    $16, CX              \
	JB      rest                 \
block:                           \
	STRIPE256(0, STORE)          \
	STRIPE256(64, STORE)         \
	STRIPE256(128, STORE)        \
	STRIPE256(192, STORE)        \
	STRIPE256(256, STORE)        \
	STRIPE256(320, STORE)        \
	STRIPE256(384, STORE)        \
	STRIPE256(448, STORE)        \
	STRIPE256(512, STORE)        \
	STRIPE256(576, STORE)        \
	STRIPE256(640, STORE)        \
	STRIPE256(704, STORE)        \
	STRIPE256(768, STORE)        \
	STRIPE256(832, STORE)        \
	STRIPE256(896, STORE)        \
	STRIPE256(960, STORE)        \
	SCRAMBLE256(0, Y0)           \
	SCRAMBLE256(32, Y1)          \
	ADDQ    $1024, SI            \
	ADDQ    $1024, DI            \
	SUBQ    $16, CX              \
	JAE     block                \
rest:                            \
	ADDQ    $16, CX              \
	JZ      last                 \
stripe:                          \
	STRIPE256(0, STORE)          \
	ADDQ    $8, DX               \
	ADDQ    $64, SI              \
	ADDQ    $64, DI              \
	DECQ    CX                   \
	JNZ     stripe               \
last:                            \
	LEAQ    secret<>+121(SB), DX \
	VMOVDQU (R8), Y3             \
	VMOVDQU 32(R8), Y4           \
	MIX256(0, 0, Y0, Y3)         \
	MIX256(0, 32, Y1, Y4)        \
	VMOVDQU Y0, (AX)             \
	VMOVDQU Y1, 32(AX)           \
	VZEROUPPER

// func sumAVX2(lanes *[8]uint64, src, last *byte, stripes uintptr)
TEXT ·sumAVX2(SB), NOSPLIT, $0-32
	MOVQ lanes+0(FP), AX
	MOVQ src+8(FP), SI
	MOVQ last+16(FP), R8
	MOVQ stripes+24(FP), CX
	BODY256(KEEP)
	RET

// func copySumAVX2(lanes *[8]uint64, dst, src, last *byte, stripes uintptr)
TEXT ·copySumAVX2(SB), NOSPLIT, $0-40
	MOVQ lanes+0(FP), AX
	MOVQ dst+8(FP), DI
	MOVQ src+16(FP), SI
	MOVQ last+24(FP), R8
	MOVQ stripes+32(FP), CX
	BODY256(STORE256)
	RET

// func streamSumAVX2(lanes *[8]uint64, dst, src, last *byte, stripes uintptr)
TEXT ·streamSumAVX2(SB), NOSPLIT, $0-40
	MOVQ lanes+0(FP), AX
	MOVQ dst+8(FP), DI
	MOVQ src+16(FP), SI
	MOVQ last+24(FP), R8
	MOVQ stripes+32(FP), CX
	BODY256(STREAM256)
	SFENCE
	RET

// func rowsAVX2(dst, src *byte, n, dstStride, srcStride, run uintptr)
//
// A row is copied 128 bytes at a time, then 32; what is left of it is its last 32 bytes once more. A store to memory
// that is not in cache first reads it, so the destination is prefetched, eight rows ahead as long as there are so many.
TEXT ·rowsAVX2(SB), NOSPLIT, $0-48
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ dstStride+24(FP), R8
	MOVQ srcStride+32(FP), R9
	MOVQ run+40(FP), BX
	LEAQ (R8*8), R12

row:
	CMPQ CX, $8
	JHI  far
	XORL R12, R12

far:
	MOVQ DI, R11
	MOVQ SI, R10
	MOVQ BX, DX
	SUBQ $128, DX
	JB   narrow

wide:
	VMOVDQU    (R10), Y0
	VMOVDQU    32(R10), Y1
	VMOVDQU    64(R10), Y2
	VMOVDQU    96(R10), Y3
	PREFETCHT0 (R11)(R12*1)
	PREFETCHT0 64(R11)(R12*1)
	VMOVDQU    Y0, (R11)
	VMOVDQU    Y1, 32(R11)
	VMOVDQU    Y2, 64(R11)
	VMOVDQU    Y3, 96(R11)
	ADDQ       $128, R10
	ADDQ       $128, R11
	SUBQ       $128, DX
	JAE        wide

narrow:
	ADDQ       $128, DX
	JZ         next
	PREFETCHT0 (R11)(R12*1)
	SUBQ       $32, DX
	JB         tail

one:
	VMOVDQU (R10), Y0
	VMOVDQU Y0, (R11)
	ADDQ    $32, R10
	ADDQ    $32, R11
	SUBQ    $32, DX
	JAE     one

tail:
	CMPQ    DX, $-32
	JEQ     next
	VMOVDQU (R10)(DX*1), Y0
	VMOVDQU Y0, (R11)(DX*1)

next:
	ADDQ R8, DI
	ADDQ R9, SI
	DECQ CX
	JNZ  row
	VZEROUPPER
	RET
