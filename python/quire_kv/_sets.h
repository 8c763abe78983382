/* The loops of _stripes.h for each instruction set, and the choice among them at run time.
 *
 * AVX-512 and AVX2 on x86-64, plain C everywhere; results are equal. Each set says how 64 bytes go into the eight lanes of
 * xxh3 and, on the way, to where they are copied.
 */
#ifndef QUIRE_SETS_H
#define QUIRE_SETS_H

#include "_xxh3.h"

/* A run of bytes in an engine's memory; NULL: of no cell that is asked for. */
struct seg {
    uint8_t *at;
    size_t bytes;
};

/* A sum under way: `left` stripes of the piece are to come. */
struct summer {
    _Alignas(64) uint64_t lanes[8];
    unsigned k;
    size_t left;
};

struct kernels {
    void (*feed)(struct summer *, const struct seg *, size_t, uint8_t *);
    void (*feed_stream)(struct summer *, const struct seg *, size_t, uint8_t *); /* past the caches, to aligned lines */
    void (*lanes_long)(const uint8_t *, size_t, uint64_t *); /* to eight lanes, aligned to 64 */
    void (*gather)(const struct seg *, size_t, uint8_t *);
    void (*scatter)(const struct seg *, size_t, const uint8_t *, int stream);
};

/* Rows are read in an order that no prefetcher of a processor follows: asks for one that comes some rows later. */
enum { AHEAD = 8 }; /* rows; a few, so that what comes is there, and still there, when it is read */
static inline void ahead(const struct seg *s) {
    size_t n = s->bytes < 512 ? s->bytes : 64;
    for (size_t i = 0; i < n; i += 64) __builtin_prefetch(s->at + i);
}

/* How far a long run is asked for beyond the stripe at hand: a processor's own prefetch stops at 4 KiB. */
enum { FAR = 2 << 10, FAR_STRIPES = 2 * FAR / STRIPE };

#define T(name) name##_plain
#define TARGET
struct lanes_plain { uint64_t v[8]; };
#define LANES struct lanes_plain
static inline struct lanes_plain load_plain(const uint64_t *from) {
    struct lanes_plain l;
    memcpy(&l, from, sizeof l);
    return l;
}
static inline void step_plain(struct lanes_plain *l, const uint8_t *from, uint8_t *to, const uint8_t *key) {
    uint64_t d[8];
    memcpy(d, from, STRIPE);
    if (to) memcpy(to, d, STRIPE);
    for (int i = 0; i < 8; i++) {
        uint64_t x = d[i] ^ read64(key + 8 * i);
        l->v[i ^ 1] += d[i];
        l->v[i] += (x & 0xffffffff) * (x >> 32);
    }
}
static inline void scramble_plain(struct lanes_plain *l) {
    for (int i = 0; i < 8; i++) {
        uint64_t x = l->v[i];
        l->v[i] = (x ^ x >> 47 ^ read64(keys[SCRAMBLE_KEY] + 8 * i)) * P32_1;
    }
}
#define LANES_LOAD(from) load_plain(from)
#define LANES_STORE(to, lanes) memcpy(to, &lanes, sizeof lanes)
#define STEP(lanes, from, to, key) step_plain(&lanes, from, to, key)
#define STREAM_STEP STEP
#define STREAM(to, from) memcpy(to, from, STRIPE)
#define SCRAMBLE(lanes) scramble_plain(&lanes)
#include "_stripes.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define HAVE_X86 1
#include <immintrin.h>

#define INLINE(isa) __attribute__((target(isa), always_inline)) static inline

struct lanes_avx2 { __m256i a, b; };
INLINE("avx2") __m256i mix_avx2(__m256i acc, __m256i d, const uint8_t *key) {
    __m256i x = _mm256_xor_si256(d, _mm256_load_si256((const __m256i *)key));
    __m256i p = _mm256_mul_epu32(x, _mm256_srli_epi64(x, 32));
    return _mm256_add_epi64(acc, _mm256_add_epi64(p, _mm256_shuffle_epi32(d, 0x4e)));
}
INLINE("avx2")
void step_avx2(struct lanes_avx2 *l, const uint8_t *from, uint8_t *to, const uint8_t *key, int stream) {
    __m256i a = _mm256_loadu_si256((const __m256i *)from), b = _mm256_loadu_si256((const __m256i *)(from + 32));
    if (stream) {
        _mm256_stream_si256((__m256i *)to, a);
        _mm256_stream_si256((__m256i *)(to + 32), b);
    } else if (to) {
        _mm256_storeu_si256((__m256i *)to, a);
        _mm256_storeu_si256((__m256i *)(to + 32), b);
    }
    l->a = mix_avx2(l->a, a, key);
    l->b = mix_avx2(l->b, b, key + 32);
}
INLINE("avx2") __m256i scramble_avx2(__m256i v, const uint8_t *key) {
    __m256i prime = _mm256_set1_epi32((int)P32_1);
    v = _mm256_xor_si256(v, _mm256_srli_epi64(v, 47));
    v = _mm256_xor_si256(v, _mm256_load_si256((const __m256i *)key));
    __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(v, 32), prime);
    return _mm256_add_epi64(_mm256_mul_epu32(v, prime), _mm256_slli_epi64(high, 32));
}
INLINE("avx2") struct lanes_avx2 load_avx2(const uint64_t *from) {
    struct lanes_avx2 l = {_mm256_loadu_si256((const __m256i *)from), _mm256_loadu_si256((const __m256i *)(from + 4))};
    return l;
}
#define T(name) name##_avx2
#define TARGET __attribute__((target("avx2")))
#define LANES struct lanes_avx2
#define LANES_LOAD(from) load_avx2(from)
#define LANES_STORE(to, lanes) \
    (_mm256_storeu_si256((__m256i *)(to), lanes.a), _mm256_storeu_si256((__m256i *)(to) + 1, lanes.b))
#define STEP(lanes, from, to, key) step_avx2(&lanes, from, to, key, 0)
#define STREAM_STEP(lanes, from, to, key) step_avx2(&lanes, from, to, key, 1)
#define STREAM(to, from)                                                                               \
    (_mm256_stream_si256((__m256i *)(to), _mm256_loadu_si256((const __m256i *)(from))),                \
     _mm256_stream_si256((__m256i *)(to) + 1, _mm256_loadu_si256((const __m256i *)(from) + 1)))
#define SCRAMBLE(lanes) \
    (lanes.a = scramble_avx2(lanes.a, keys[SCRAMBLE_KEY]), lanes.b = scramble_avx2(lanes.b, keys[SCRAMBLE_KEY] + 32))
#include "_stripes.h"

INLINE("avx512f") __m512i step_avx512(__m512i l, const uint8_t *from, uint8_t *to, const uint8_t *key, int stream) {
    __m512i d = _mm512_loadu_si512(from);
    if (stream)
        _mm512_stream_si512((__m512i *)to, d);
    else if (to)
        _mm512_storeu_si512(to, d);
    __m512i x = _mm512_xor_si512(d, _mm512_load_si512(key));
    __m512i p = _mm512_mul_epu32(x, _mm512_srli_epi64(x, 32));
    return _mm512_add_epi64(l, _mm512_add_epi64(p, _mm512_shuffle_epi32(d, _MM_PERM_BADC)));
}
INLINE("avx512f") __m512i scramble_avx512(__m512i v) {
    __m512i prime = _mm512_set1_epi32((int)P32_1);
    v = _mm512_xor_si512(v, _mm512_srli_epi64(v, 47));
    v = _mm512_xor_si512(v, _mm512_load_si512(keys[SCRAMBLE_KEY]));
    __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(v, 32), prime);
    return _mm512_add_epi64(_mm512_mul_epu32(v, prime), _mm512_slli_epi64(high, 32));
}
#define T(name) name##_avx512
#define TARGET __attribute__((target("avx512f")))
#define LANES __m512i
#define LANES_LOAD(from) _mm512_loadu_si512(from)
#define LANES_STORE(to, lanes) _mm512_storeu_si512(to, lanes)
#define STEP(lanes, from, to, key) (lanes = step_avx512(lanes, from, to, key, 0))
#define STREAM_STEP(lanes, from, to, key) (lanes = step_avx512(lanes, from, to, key, 1))
#define STREAM(to, from) _mm512_stream_si512((__m512i *)(to), _mm512_loadu_si512(from))
#define SCRAMBLE(lanes) (lanes = scramble_avx512(lanes))
#include "_stripes.h"
#define STREAM_END() _mm_sfence()
#else
#define STREAM_END() ((void)0)
#endif

static const struct kernels *kern = &kernels_plain;
static const char *kern_name = "plain";

/* Chooses the kernels by name, NULL for the best; 0 if this machine has none of that name. */
static int choose(const char *name) {
#ifdef HAVE_X86
    __builtin_cpu_init();
    if ((!name || !strcmp(name, "avx512")) && __builtin_cpu_supports("avx512f")) {
        kern = &kernels_avx512, kern_name = "avx512";
        return 1;
    }
    if ((!name || !strcmp(name, "avx2")) && __builtin_cpu_supports("avx2")) {
        kern = &kernels_avx2, kern_name = "avx2";
        return 1;
    }
#endif
    if (name && strcmp(name, "plain")) return 0;
    kern = &kernels_plain, kern_name = "plain";
    return 1;
}

#endif
