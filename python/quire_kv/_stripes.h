/* The loops over bytes, included once for each instruction set. Before each inclusion:
 *
 *   T(name)   the name with the set's suffix
 *   TARGET    the attribute that turns the set on
 *   LANES     type of the eight xxh3 lanes; LANES_LOAD(from), LANES_STORE(to, lanes)
 *   STEP(lanes, from, to, key)   takes 64 bytes of `from` into the lanes and, unless `to` is NULL, stores them there: what
 *                                was summed is what was stored, whatever happens to `from` meanwhile
 *   STREAM_STEP                  the same past the caches, `to` aligned to 64
 *   STREAM(to, from)             64 bytes past the caches, `to` aligned to 64
 *   SCRAMBLE(lanes)
 *
 * They are undefined at its end, for the next set.
 */

/* Stripes of one piece, in portions: the last one has a key of its own. */
#define FEED(name, STORE)                                                                              \
    TARGET static void T(name)(struct summer *s, const struct seg *segs, size_t n, uint8_t *to) {      \
        LANES lanes = LANES_LOAD(s->lanes);                                                            \
        unsigned k = s->k;                                                                             \
        size_t left = s->left;                                                                         \
        for (size_t i = 0; i < n; i++) {                                                               \
            const uint8_t *from = segs[i].at;                                                          \
            size_t m = segs[i].bytes / STRIPE, far = m < FAR_STRIPES ? 0 : FAR;                        \
            if (i + AHEAD < n) ahead(&segs[i + AHEAD]);                                                \
            left -= m;                                                                                 \
            int last = left == 0 && m > 0;                                                             \
            m -= (size_t)last;                                                                         \
            while (m > 0) {                                                                            \
                unsigned run = BLOCK_STRIPES - k;                                                      \
                if (run > m) run = (unsigned)m;                                                        \
                for (unsigned j = 0; j < run; j++, from += STRIPE, to += STRIPE) {                     \
                    __builtin_prefetch(from + far);                                                    \
                    STORE(lanes, from, to, keys[k + j]);                                               \
                }                                                                                      \
                m -= run;                                                                              \
                k += run;                                                                              \
                if (k == BLOCK_STRIPES) {                                                              \
                    SCRAMBLE(lanes);                                                                   \
                    k = 0;                                                                             \
                }                                                                                      \
            }                                                                                          \
            if (last) {                                                                                \
                STORE(lanes, from, to, keys[LAST_KEY]);                                                \
                to += STRIPE;                                                                          \
            }                                                                                          \
        }                                                                                              \
        LANES_STORE(s->lanes, lanes);                                                                  \
        s->k = k;                                                                                      \
        s->left = left;                                                                                \
    }
FEED(feed, STEP)
FEED(feed_stream, STREAM_STEP)
#undef FEED

/* The lanes of xxh3 after more than SHORT_MAX bytes, where they lie. */
TARGET static void T(lanes_long)(const uint8_t *from, size_t n, uint64_t *out) {
    LANES lanes = LANES_LOAD(initial_lanes());
    size_t m = (n - 1) / STRIPE;
    for (const uint8_t *p = from; m > 0;) {
        unsigned run = m < BLOCK_STRIPES ? (unsigned)m : BLOCK_STRIPES;
        for (unsigned k = 0; k < run; k++, p += STRIPE) {
            __builtin_prefetch(p + FAR);
            STEP(lanes, p, (uint8_t *)NULL, keys[k]);
        }
        m -= run;
        if (run == BLOCK_STRIPES) SCRAMBLE(lanes);
    }
    STEP(lanes, from + n - STRIPE, (uint8_t *)NULL, keys[LAST_KEY]);
    LANES_STORE(out, lanes);
}

typedef uint8_t T(line) __attribute__((vector_size(64), aligned(1), may_alias));

TARGET static inline __attribute__((always_inline)) void T(copy_row)(uint8_t *to, const uint8_t *from, size_t n) {
    T(line) *d = (T(line) *)to;
    const T(line) *s = (const T(line) *)from;
    switch (n) {
    case 64: d[0] = s[0]; break;
    case 128: { T(line) a = s[0], b = s[1]; d[0] = a; d[1] = b; break; }
    case 192: { T(line) a = s[0], b = s[1], c = s[2]; d[0] = a; d[1] = b; d[2] = c; break; }
    case 256: { T(line) a = s[0], b = s[1], c = s[2], e = s[3]; d[0] = a; d[1] = b; d[2] = c; d[3] = e; break; }
    case 512:
        for (int i = 0; i < 8; i += 4) {
            T(line) a = s[i], b = s[i + 1], c = s[i + 2], e = s[i + 3];
            d[i] = a; d[i + 1] = b; d[i + 2] = c; d[i + 3] = e;
        }
        break;
    default: memcpy(to, from, n);
    }
}

/* From many places to one run. */
TARGET static void T(gather)(const struct seg *segs, size_t n, uint8_t *to) {
    for (size_t i = 0; i < n; to += segs[i].bytes, i++) T(copy_row)(to, segs[i].at, segs[i].bytes);
}

/* From one run to many places; a place that is NULL is left out. With `stream`, whole lines go past the caches. */
TARGET static void T(scatter)(const struct seg *segs, size_t n, const uint8_t *from, int stream) {
    for (size_t i = 0; i < n; i++) {
        uint8_t *to = segs[i].at;
        size_t bytes = segs[i].bytes;
        if (stream && to && (uintptr_t)to % STRIPE == 0 && bytes % STRIPE == 0)
            for (size_t j = 0; j < bytes; j += STRIPE) STREAM(to + j, from + j);
        else if (to)
            T(copy_row)(to, from, bytes);
        from += bytes;
    }
}

static const struct kernels T(kernels) = {T(feed), T(feed_stream), T(lanes_long), T(gather), T(scatter)};

#undef T
#undef TARGET
#undef LANES
#undef LANES_LOAD
#undef LANES_STORE
#undef STEP
#undef SCRAMBLE
#undef STREAM
#undef STREAM_STEP
