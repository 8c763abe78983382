/* xxh3-64 with seed 0 and the default secret, after the public xxHash specification (doc/xxhash_spec.md).
 *
 * Inputs up to 240 bytes are done here. Longer ones are done by _stripes.h, once for each instruction set, which uses
 * the constants, keys and last step from here. Little-endian machines only.
 */
#ifndef QUIRE_XXH3_H
#define QUIRE_XXH3_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the native kernels are for little-endian machines"
#endif

enum { STRIPE = 64, BLOCK_STRIPES = 16, SHORT_MAX = 240, LAST_KEY = 16, SCRAMBLE_KEY = 17, KEYS = 18 };

static const uint32_t P32_1 = 0x9E3779B1U, P32_2 = 0x85EBCA77U, P32_3 = 0xC2B2AE3DU;
static const uint64_t P64_1 = 0x9E3779B185EBCA87ULL, P64_2 = 0xC2B2AE3D27D4EB4FULL, P64_3 = 0x165667B19E3779F9ULL,
                      P64_4 = 0x85EBCA77C2B2AE63ULL, P64_5 = 0x27D4EB2F165667C5ULL, MIX_1 = 0x165667919E3779F9ULL,
                      MIX_2 = 0x9FB21C651E98DF25ULL;

static const uint8_t secret[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

/* The secret as aligned vectors: one for each stripe of a block, that of the last stripe, that of the scramble. */
static _Alignas(64) uint8_t keys[KEYS][STRIPE];

static void init_keys(void) {
    for (int k = 0; k < BLOCK_STRIPES; k++) memcpy(keys[k], secret + 8 * k, STRIPE);
    memcpy(keys[LAST_KEY], secret + 192 - STRIPE - 7, STRIPE);
    memcpy(keys[SCRAMBLE_KEY], secret + 192 - STRIPE, STRIPE);
}

static inline uint32_t read32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }
static inline uint64_t read64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return v; }
static inline uint64_t rotl64(uint64_t v, int n) { return v << n | v >> (64 - n); }

static inline uint64_t fold64(uint64_t a, uint64_t b) {
#ifdef __SIZEOF_INT128__
    __uint128_t p = (__uint128_t)a * b;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
#else
    uint64_t ll = (a & 0xffffffff) * (b & 0xffffffff), hl = (a >> 32) * (b & 0xffffffff);
    uint64_t lh = (a & 0xffffffff) * (b >> 32), hh = (a >> 32) * (b >> 32);
    uint64_t cross = (ll >> 32) + (hl & 0xffffffff) + lh;
    return (cross << 32 | (ll & 0xffffffff)) ^ ((hl >> 32) + (cross >> 32) + hh);
#endif
}

static inline uint64_t avalanche(uint64_t h) {
    h ^= h >> 37;
    h *= MIX_1;
    return h ^ h >> 32;
}

static inline uint64_t avalanche64(uint64_t h) {
    h ^= h >> 33;
    h *= P64_2;
    h ^= h >> 29;
    h *= P64_3;
    return h ^ h >> 32;
}

static inline uint64_t mix16(const uint8_t *p, const uint8_t *key) {
    return fold64(read64(p) ^ read64(key), read64(p + 8) ^ read64(key + 8));
}

static uint64_t hash_to_16(const uint8_t *p, size_t n) {
    if (n > 8) {
        uint64_t lo = read64(p) ^ (read64(secret + 24) ^ read64(secret + 32));
        uint64_t hi = read64(p + n - 8) ^ (read64(secret + 40) ^ read64(secret + 48));
        return avalanche(n + __builtin_bswap64(lo) + hi + fold64(lo, hi));
    }
    if (n >= 4) {
        uint64_t h = (read32(p + n - 4) + ((uint64_t)read32(p) << 32)) ^ (read64(secret + 8) ^ read64(secret + 16));
        h ^= rotl64(h, 49) ^ rotl64(h, 24);
        h *= MIX_2;
        h ^= (h >> 35) + n;
        h *= MIX_2;
        return h ^ h >> 28;
    }
    if (n > 0) {
        uint32_t v = (uint32_t)p[0] << 16 | (uint32_t)p[n >> 1] << 24 | p[n - 1] | (uint32_t)n << 8;
        return avalanche64(v ^ (uint64_t)(read32(secret) ^ read32(secret + 4)));
    }
    return avalanche64(read64(secret + 56) ^ read64(secret + 64));
}

/* Up to SHORT_MAX bytes. */
static uint64_t hash_short(const uint8_t *p, size_t n) {
    if (n <= 16) return hash_to_16(p, n);
    uint64_t h = n * P64_1;
    if (n <= 128) {
        for (size_t i = (n - 1) / 32; i > 0; i--)
            h += mix16(p + 16 * i, secret + 32 * i) + mix16(p + n - 16 * (i + 1), secret + 32 * i + 16);
        return avalanche(h + mix16(p, secret) + mix16(p + n - 16, secret + 16));
    }
    for (size_t i = 0; i < 8; i++) h += mix16(p + 16 * i, secret + 16 * i);
    h = avalanche(h);
    for (size_t i = 8; i < n / 16; i++) h += mix16(p + 16 * i, secret + 16 * (i - 8) + 3);
    return avalanche(h + mix16(p + n - 16, secret + 136 - 17));
}

static const uint64_t *initial_lanes(void) {
    static const uint64_t lanes[8] = {0xC2B2AE3DU,           0x9E3779B185EBCA87ULL, 0xC2B2AE3D27D4EB4FULL,
                                      0x165667B19E3779F9ULL, 0x85EBCA77C2B2AE63ULL, 0x85EBCA77U,
                                      0x27D4EB2F165667C5ULL, 0x9E3779B1U};
    return lanes;
}

static uint64_t merge_from(uint64_t h, const uint64_t *lanes, const uint8_t *key) {
    for (int i = 0; i < 4; i++) h += fold64(lanes[2 * i] ^ read64(key + 16 * i), lanes[2 * i + 1] ^ read64(key + 8 + 16 * i));
    return avalanche(h);
}

/* The sum of a long input of n bytes out of its eight lanes. */
static uint64_t merge_lanes(const uint64_t *lanes, size_t n) { return merge_from(n * P64_1, lanes, secret + 11); }

/* xxh3-128 with seed 0 in canonical form: 8 bytes at least, which is what headers and their sums have. */

struct pair { uint64_t lo, hi; };

static inline struct pair mul128(uint64_t a, uint64_t b) {
#ifdef __SIZEOF_INT128__
    __uint128_t p = (__uint128_t)a * b;
    return (struct pair){(uint64_t)p, (uint64_t)(p >> 64)};
#else
    uint64_t ll = (a & 0xffffffff) * (b & 0xffffffff), hl = (a >> 32) * (b & 0xffffffff);
    uint64_t lh = (a & 0xffffffff) * (b >> 32), hh = (a >> 32) * (b >> 32);
    uint64_t cross = (ll >> 32) + (hl & 0xffffffff) + lh;
    return (struct pair){cross << 32 | (ll & 0xffffffff), (hl >> 32) + (cross >> 32) + hh};
#endif
}

static inline struct pair mix32(struct pair acc, const uint8_t *a, const uint8_t *b, const uint8_t *key) {
    acc.lo = (acc.lo + mix16(a, key)) ^ (read64(b) + read64(b + 8));
    acc.hi = (acc.hi + mix16(b, key + 16)) ^ (read64(a) + read64(a + 8));
    return acc;
}

static struct pair hash128_mid(const uint8_t *p, size_t n) {
    struct pair acc = {n * P64_1, 0};
    if (n <= 128) {
        for (size_t i = (n - 1) / 32 + 1; i-- > 0;) acc = mix32(acc, p + 16 * i, p + n - 16 * (i + 1), secret + 32 * i);
    } else {
        for (size_t i = 0; i < 4; i++) acc = mix32(acc, p + 32 * i, p + 32 * i + 16, secret + 32 * i);
        acc.lo = avalanche(acc.lo), acc.hi = avalanche(acc.hi);
        for (size_t i = 4; i < n / 32; i++) acc = mix32(acc, p + 32 * i, p + 32 * i + 16, secret + 32 * (i - 4) + 3);
        acc = mix32(acc, p + n - 16, p + n - 32, secret + 136 - 17 - 16);
    }
    return (struct pair){avalanche(acc.lo + acc.hi), 0 - avalanche(acc.lo * P64_1 + acc.hi * P64_4 + n * P64_2)};
}

static struct pair hash128_short(const uint8_t *p, size_t n) {
    if (n > 8) {
        uint64_t lo = read64(p), hi = read64(p + n - 8);
        struct pair m = mul128(lo ^ hi ^ (read64(secret + 32) ^ read64(secret + 40)), P64_1);
        m.lo += (uint64_t)(n - 1) << 54;
        hi ^= read64(secret + 48) ^ read64(secret + 56);
        m.hi += hi + (hi & 0xffffffff) * (P32_2 - 1);
        m.lo ^= __builtin_bswap64(m.hi);
        struct pair h = mul128(m.lo, P64_2);
        return (struct pair){avalanche(h.lo), avalanche(h.hi + m.hi * P64_2)};
    }
    uint64_t both = read32(p) + ((uint64_t)read32(p + n - 4) << 32);
    struct pair m = mul128(both ^ (read64(secret + 16) ^ read64(secret + 24)), P64_1 + (n << 2));
    m.hi += m.lo << 1;
    m.lo ^= m.hi >> 3;
    m.lo = (m.lo ^ m.lo >> 35) * MIX_2;
    return (struct pair){m.lo ^ m.lo >> 28, avalanche(m.hi)};
}

#endif
