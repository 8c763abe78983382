/* quire_kv._native: copies between an engine's memory and head-major payloads, with xxh3-64 sums of their pieces.
 *
 * One call does a batch without the GIL. quire_kv/kernels.py is the only caller and says what the calls mean; tables come
 * as pairs of address and bytes. Every size, count, offset and product of a table is checked here before memory that it
 * speaks of is touched: a wrong table is a ValueError. Addresses themselves are taken as they are.
 *
 * Limited API of Python 3.10.
 */
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "_sets.h"

/* A batch of this many bytes is written past the caches: it would not stay in them until it is read, and memory is then
 * not read before it is written, which saves a third of the traffic. */
enum { STREAM_BYTES = 1 << 20 };

enum { PIECE = 64 << 10, MAX_COMPONENTS = 64, MAX_DIM = 1 << 16, MAX_THREADS = 64, SEGS = 1100 };
static const uint64_t MAX_ROW = 1ULL << 28, MAX_STRIDE = 1ULL << 44, MAX_PAGE = 1ULL << 40, LOW = 4096;

static uint64_t hash(const uint8_t *p, size_t n) {
    if (n <= SHORT_MAX) return hash_short(p, n);
    _Alignas(64) uint64_t lanes[8];
    kern->lanes_long(p, n, lanes);
    return merge_lanes(lanes, n);
}

/* xxh3-128 of 8 bytes or more. */
static void hash128(const uint8_t *p, size_t n, uint8_t *to) {
    struct pair h;
    if (n > SHORT_MAX) {
        _Alignas(64) uint64_t lanes[8];
        kern->lanes_long(p, n, lanes);
        h = (struct pair){merge_lanes(lanes, n), merge_from(~(n * P64_2), lanes, secret + 192 - 64 - 11)};
    } else
        h = n <= 16 ? hash128_short(p, n) : hash128_mid(p, n);
    h.lo = __builtin_bswap64(h.lo), h.hi = __builtin_bswap64(h.hi);
    memcpy(to, &h.hi, 8);
    memcpy(to + 8, &h.lo, 8);
}

static void summer_start(struct summer *s, size_t bytes) {
    memcpy(s->lanes, initial_lanes(), sizeof s->lanes);
    s->k = 0;
    s->left = bytes / STRIPE;
}

/* The sum of what is then at `to`. */
static uint64_t copy_hash(uint8_t *to, uint8_t *from, size_t n) {
    if (n <= SHORT_MAX || n % STRIPE) {
        memcpy(to, from, n);
        return hash(to, n);
    }
    struct summer s;
    struct seg whole = {from, n};
    summer_start(&s, n);
    kern->feed(&s, &whole, 1, to);
    return merge_lanes(s.lanes, n);
}

/* Pieces of an extent: docs/formats/pieces.md. */
struct pieces {
    uint64_t per_unit, bytes, unit, count;
};

static struct pieces pieces_of(uint64_t heads, uint64_t layers, uint64_t cell) {
    struct pieces p;
    if (cell > PIECE) {
        p.bytes = PIECE, p.unit = cell, p.per_unit = (cell + PIECE - 1) / PIECE;
        p.count = p.per_unit * heads * layers;
        return p;
    }
    uint64_t cells = PIECE / cell < layers ? PIECE / cell : layers;
    p.bytes = cells * cell, p.unit = layers * cell, p.per_unit = (layers + cells - 1) / cells;
    p.count = p.per_unit * heads;
    return p;
}

struct component {
    uint64_t row, head_stride, token_stride, tokens, at, bytes;
};

struct layout {
    uint64_t heads, layers, components, cell;
    int striped; /* every row is whole stripes */
    struct component c[MAX_COMPONENTS];
};

/* Collects the places of a range of bytes and copies them when it is full, and at the end. */
struct walk {
    const struct layout *layout;
    const uint64_t *addresses; /* of one page: [components][layers] */
    uint8_t *flat;             /* the other side, head-major, behind what was copied */
    struct summer *summer;     /* of a gather that sums at once, else NULL */
    int to_engine;
    int stream;
    size_t n, pending; /* segs, and their bytes */
    struct seg segs[SEGS];
};

static void walk_flush(struct walk *w) {
    if (w->to_engine)
        kern->scatter(w->segs, w->n, w->flat, w->stream);
    else if (w->summer)
        (w->stream && (uintptr_t)w->flat % STRIPE == 0 ? kern->feed_stream : kern->feed)(w->summer, w->segs, w->n, w->flat);
    else
        kern->gather(w->segs, w->n, w->flat);
    w->flat += w->pending;
    w->n = w->pending = 0;
}

static void walk_add(struct walk *w, uint8_t *at, size_t bytes) {
    struct seg *last = w->n ? &w->segs[w->n - 1] : NULL;
    w->pending += bytes;
    if (last && (at ? last->at && last->at + last->bytes == at : !last->at)) {
        last->bytes += bytes;
        return;
    }
    if (w->n == SEGS) {
        w->pending -= bytes;
        walk_flush(w);
        w->pending = bytes;
    }
    w->segs[w->n++] = (struct seg){at, bytes};
}

/* All rows of one component of a cell. */
static void walk_rows(struct walk *w, const struct component *c, uint8_t *at) {
    if (c->token_stride == c->row || c->tokens == 1) {
        walk_add(w, at, c->bytes);
        return;
    }
    walk_add(w, at, c->row);
    for (uint64_t t = 1; t < c->tokens;) { /* no two rows touch: no look at the one before */
        size_t room = SEGS - w->n;
        if (!room) {
            walk_flush(w);
            continue;
        }
        if (room > c->tokens - t) room = c->tokens - t;
        struct seg *s = w->segs + w->n;
        for (size_t i = 0; i < room; i++, t++) s[i] = (struct seg){at + t * c->token_stride, c->row};
        w->n += room;
        w->pending += room * c->row;
    }
}

/* Bytes [lo, hi) of one cell, head and layer numbered within the layout. */
static void walk_cell(struct walk *w, uint64_t head, uint64_t layer, uint64_t lo, uint64_t hi) {
    const struct layout *l = w->layout;
    for (uint64_t i = 0; i < l->components; i++) {
        const struct component *c = &l->c[i];
        uint8_t *base = (uint8_t *)(uintptr_t)(w->addresses[i * l->layers + layer] + head * c->head_stride);
        if (lo <= c->at && c->at + c->bytes <= hi) {
            walk_rows(w, c, base);
            continue;
        }
        uint64_t from = lo > c->at ? lo - c->at : 0, to = hi < c->at + c->bytes ? hi : c->at + c->bytes;
        if (to <= c->at + from) continue;
        for (to -= c->at; from < to;) {
            uint64_t token = from / c->row, byte = from % c->row, n = c->row - byte;
            if (n > to - from) n = to - from;
            walk_add(w, base + token * c->token_stride + byte, n);
            from += n;
        }
    }
}

static void pack_piece(struct walk *w, uint64_t bytes, uint64_t head, uint64_t l0, uint64_t l1, uint64_t lo, uint64_t hi,
                       uint64_t *sum) {
    struct summer s;
    uint8_t *start = w->flat;
    w->summer = w->layout->striped && bytes > SHORT_MAX ? &s : NULL;
    if (w->summer) summer_start(&s, bytes);
    for (uint64_t l = l0; l < l1; l++) walk_cell(w, head, l, lo, hi);
    walk_flush(w);
    *sum = w->summer ? merge_lanes(s.lanes, bytes) : hash(start, bytes);
}

static void pack_page(struct walk *w, uint8_t *out, uint64_t *sums) {
    const struct layout *l = w->layout;
    w->flat = out;
    for (uint64_t h = 0; h < l->heads; h++) {
        if (l->cell <= PIECE) {
            uint64_t step = PIECE / l->cell;
            for (uint64_t l0 = 0; l0 < l->layers; l0 += step) {
                uint64_t l1 = l0 + step < l->layers ? l0 + step : l->layers;
                pack_piece(w, (l1 - l0) * l->cell, h, l0, l1, 0, l->cell, sums++);
            }
            continue;
        }
        for (uint64_t l0 = 0; l0 < l->layers; l0++)
            for (uint64_t lo = 0; lo < l->cell; lo += PIECE) {
                uint64_t hi = lo + PIECE < l->cell ? lo + PIECE : l->cell;
                pack_piece(w, hi - lo, h, l0, l0 + 1, lo, hi, sums++);
            }
    }
}

struct job { /* UNPACK of kernels.py */
    uint64_t src, offset, bytes, first_sum, cut_sums[2];
    uint32_t page;
    uint16_t eh0, eh1, el0, el1;
    uint8_t cuts, flags;
    uint16_t status;
};
_Static_assert(sizeof(struct job) == 64, "job");
enum { PRIVATE = 1, IN_PLACE = 2, OK = 0, CORRUPT = 1, REFUSED = 2 };

struct unpack {
    const struct layout *layout; /* NULL: verify only */
    const uint64_t *addresses;
    uint64_t pages, cell;
    uint64_t h0, h1, l0, l1; /* view of the memory */
    const uint64_t *sums;
    uint64_t sum_count;
};

/* Bytes of one piece, verified, from `offset` of the extent's payload on, to where they belong. */
static void scatter_piece(struct walk *w, const struct unpack *u, const struct job *j, uint64_t offset, uint8_t *data,
                          uint64_t n) {
    uint64_t layers = (uint64_t)j->el1 - j->el0, cell = u->cell, number = offset / cell, lo = offset % cell;
    uint64_t head = j->eh0 + number / layers, layer = j->el0 + number % layers;
    int in_head = head >= u->h0 && head < u->h1;
    w->flat = data;
    while (n > 0) { /* a piece never leaves its head */
        uint64_t part = cell - lo < n ? cell - lo : n;
        if (in_head && layer >= u->l0 && layer < u->l1)
            walk_cell(w, head - u->h0, layer - u->l0, lo, lo + part);
        else
            walk_add(w, NULL, part);
        n -= part, lo = 0, layer++;
    }
    walk_flush(w);
}

static uint16_t run_job(struct walk *w, const struct unpack *u, const struct job *j, uint8_t *scratch) {
    int copies = u->layout && !(j->flags & IN_PLACE);
    if (j->eh0 >= j->eh1 || j->el0 >= j->el1 || j->cuts > 2) return REFUSED;
    uint64_t heads = (uint64_t)j->eh1 - j->eh0, layers = (uint64_t)j->el1 - j->el0;
    if (u->cell > MAX_PAGE / (heads * layers)) return REFUSED;
    uint64_t total = heads * layers * u->cell;
    struct pieces p = pieces_of(heads, layers, u->cell);
    if (j->offset > total || j->bytes > total - j->offset) return REFUSED;
    if (j->first_sum > u->sum_count || p.count > u->sum_count - j->first_sum) return REFUSED;
    if (copies && j->page >= u->pages) return REFUSED;
    if (j->src < LOW || j->src > UINT64_MAX - j->bytes) return REFUSED;
    if (copies) w->addresses = u->addresses + j->page * u->layout->components * u->layout->layers;
    uint8_t *src = (uint8_t *)(uintptr_t)j->src;
    unsigned cut = 0;
    for (uint64_t at = j->offset, end = j->offset + j->bytes; at < end;) {
        uint64_t unit = at / p.unit, within = at % p.unit, k = within / p.bytes;
        uint64_t start = k * p.bytes, whole = p.unit - start < p.bytes ? p.unit - start : p.bytes;
        uint64_t n = start + whole - within, want;
        if (n > end - at) n = end - at;
        if (n == whole)
            want = u->sums[j->first_sum + unit * p.per_unit + k];
        else if (cut < j->cuts)
            want = j->cut_sums[cut++];
        else
            return CORRUPT;
        int through = copies && !(j->flags & PRIVATE);
        if ((through ? copy_hash(scratch, src, n) : hash(src, n)) != want) return CORRUPT;
        if (copies) scatter_piece(w, u, j, at, through ? scratch : src, n);
        at += n, src += n;
    }
    return OK;
}

struct fetched; /* _pages.h */

/* A batch of items that threads take one by one. */
struct batch {
    void (*item)(struct batch *, struct walk *, uint8_t *scratch, uint64_t);
    _Atomic uint64_t next;
    uint64_t count;
    int stream; /* write past the caches */
    const struct layout *layout;
    /* pack */
    const uint64_t *addresses, *out;
    const int64_t *pages;
    uint64_t *sums, pieces;
    /* unpack */
    struct unpack u;
    uint8_t *jobs;
    struct fetched *fetched;
    int to_engine; /* what a walk does */
};

static void pack_item(struct batch *b, struct walk *w, uint8_t *scratch, uint64_t i) {
    (void)scratch;
    w->addresses = b->addresses + (uint64_t)b->pages[i] * b->layout->components * b->layout->layers;
    pack_page(w, (uint8_t *)(uintptr_t)b->out[i], b->sums + i * b->pieces);
}

static void unpack_item(struct batch *b, struct walk *w, uint8_t *scratch, uint64_t i) {
    struct job j;
    memcpy(&j, b->jobs + i * sizeof j, sizeof j);
    j.status = run_job(w, &b->u, &j, scratch);
    memcpy(b->jobs + i * sizeof j + offsetof(struct job, status), &j.status, sizeof j.status);
}

#include "_pages.h"

static void *work(void *arg) {
    struct batch *b = arg;
    uint8_t *room = malloc(sizeof(struct walk) + PIECE + 2 * 64);
    if (!room) return NULL;
    uint8_t *scratch = (uint8_t *)(((uintptr_t)room + 63) & ~(uintptr_t)63);
    struct walk *w = (struct walk *)(scratch + PIECE);
    w->layout = b->layout, w->summer = NULL, w->n = w->pending = 0;
    w->to_engine = b->to_engine;
    w->stream = b->stream;
    for (uint64_t i; (i = atomic_fetch_add(&b->next, 1)) < b->count;) b->item(b, w, scratch, i);
    STREAM_END();
    free(room);
    return NULL;
}

/* Runs the batch. 0, or -1: no memory for even one thread. The GIL is not wanted. */
static int run_threads(struct batch *b, uint64_t threads) {
    pthread_t ids[MAX_THREADS];
    uint64_t started = 0;
    while (started + 1 < threads && started + 1 < b->count && !pthread_create(&ids[started], NULL, work, b)) started++;
    work(b);
    while (started > 0) pthread_join(ids[--started], NULL);
    return atomic_load(&b->next) < b->count ? -1 : 0;
}

/* The same without the GIL, which the caller has. -1 with an exception set. */
static int run_batch(struct batch *b, uint64_t threads) {
    PyThreadState *state = PyEval_SaveThread();
    int failed = run_threads(b, threads);
    PyEval_RestoreThread(state);
    if (failed) PyErr_NoMemory();
    return failed;
}

/* A table that Python passed: address and bytes. */
struct table {
    uint64_t at, bytes;
};

static PyObject *wrong(const char *what) {
    PyErr_SetString(PyExc_ValueError, what);
    return NULL;
}

/* All arguments are unsigned numbers. */
static int numbers(PyObject *const *args, Py_ssize_t n, Py_ssize_t want, uint64_t *to) {
    if (n != want) {
        PyErr_Format(PyExc_TypeError, "%zd arguments, want %zd", n, want);
        return 0;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        to[i] = PyLong_AsUnsignedLongLong(args[i]);
        if (to[i] == (uint64_t)-1 && PyErr_Occurred()) {
            if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
                PyErr_Clear();
                wrong("a number is negative or does not fit into 64 bits");
            }
            return 0;
        }
    }
    return 1;
}

static int texts_of(PyObject *const *args, int n, char **texts, Py_ssize_t *sizes) {
    for (int i = 0; i < n; i++)
        if (PyBytes_AsStringAndSize(args[i], &texts[i], &sizes[i])) return 0;
    return 1;
}

/* A table of `count` items of `size` bytes, aligned to its 8-byte numbers. */
static int fits(struct table t, uint64_t count, uint64_t size) {
    return t.at >= LOW && t.at % 8 == 0 && (size == 0 || count <= (UINT64_MAX >> 1) / size) && t.bytes == count * size;
}

static int read_layout(struct layout *l, struct table t) {
    if (t.at < LOW || t.at % 8 || t.bytes < 64 || t.bytes > 32 * (2 + MAX_COMPONENTS)) return 0;
    const uint64_t *v = (const uint64_t *)(uintptr_t)t.at;
    l->heads = v[0], l->layers = v[1], l->components = v[2], l->cell = v[3];
    if (l->heads - 1 >= MAX_DIM || l->layers - 1 >= MAX_DIM || l->components - 1 >= MAX_COMPONENTS) return 0;
    if (t.bytes != 32 * (2 + l->components)) return 0;
    uint64_t at = 0;
    l->striped = 1;
    for (uint64_t i = 0; i < l->components; i++) {
        const uint64_t *r = v + 8 + 4 * i;
        struct component c = {r[0], r[1], r[2], r[3], at, r[0] * r[3]};
        if (c.row - 1 >= MAX_ROW || c.tokens - 1 >= MAX_DIM || c.head_stride > MAX_STRIDE || c.token_stride > MAX_STRIDE)
            return 0;
        if (c.tokens > 1 && c.token_stride < c.row) return 0;
        at += c.bytes;
        l->striped &= c.row % STRIPE == 0;
        l->c[i] = c;
    }
    return l->cell == at && at <= MAX_PAGE / (l->heads * l->layers);
}

/* The addresses of one page: none so low or so high that the layout could leave the address space. */
static int sane(const struct layout *l, const uint64_t *a) {
    for (uint64_t c = 0; c < l->components; c++) {
        const struct component *k = &l->c[c];
        uint64_t span = (l->heads - 1) * k->head_stride + (k->tokens - 1) * k->token_stride + k->row;
        for (uint64_t i = 0; i < l->layers; i++, a++)
            if (*a < LOW || *a > UINT64_MAX - span) return 0;
    }
    return 1;
}

/* Reads what the pages of a Fetch are held against, the expectation and the hashes asked for, and where they belong: tables of
 * layout and addresses, index and status. NULL, or what is wrong with it. */
static const char *read_wanted(struct fetched *f, struct unpack *u, struct layout *l, char *const *texts, const Py_ssize_t *sizes,
                               struct table layout, struct table addresses, struct table index, struct table status) {
    if (!read_layout(l, layout)) return "layout";
    uint64_t per_page = l->components * l->layers, pages = addresses.bytes / 8 / per_page;
    *f = (struct fetched){.expect = (const uint8_t *)texts[0], .hashes = (const uint8_t *)texts[1], .layout = l, .count = index.bytes / 8};
    if (!fits(addresses, pages * per_page, 8)) return "addresses";
    if (!fits(index, f->count, 8)) return "index";
    if (status.at < LOW || status.bytes != f->count) return "status";
    if (sizes[0] != FAMILY_BYTES + SHAPE_BYTES) return "expectation";
    f->hash_bytes = f->expect[H_HASH_BYTES - H_FAMILY];
    if (f->hash_bytes > HASH_ROOM || f->count * f->hash_bytes != (uint64_t)sizes[1]) return "hashes";
    f->pieces = pieces_of(l->heads, l->layers, l->cell), f->payload = l->heads * l->layers * l->cell;
    f->index = (const int64_t *)(uintptr_t)index.at, f->status = (uint8_t *)(uintptr_t)status.at;
    *u = (struct unpack){.layout = l, .pages = pages, .cell = l->cell, .h1 = l->heads, .l1 = l->layers};
    u->addresses = (const uint64_t *)(uintptr_t)addresses.at;
    for (uint64_t i = 0; i < f->count; i++) {
        if (f->index[i] < 0 || (uint64_t)f->index[i] >= pages) return "page outside of the memory";
        if (!sane(l, u->addresses + (uint64_t)f->index[i] * per_page)) return "address of a page";
    }
    return NULL;
}

static PyObject *py_pack(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    (void)self;
    uint64_t v[11];
    struct layout l;
    if (!numbers(args, n, 11, v)) return NULL;
    struct table addresses = {v[2], v[3]}, pages = {v[4], v[5]}, out = {v[6], v[7]}, sums = {v[8], v[9]};
    if (!read_layout(&l, (struct table){v[0], v[1]})) return wrong("layout");
    uint64_t per_page = l.components * l.layers, mem_pages = addresses.bytes / 8 / per_page, count = pages.bytes / 8;
    struct pieces p = pieces_of(l.heads, l.layers, l.cell);
    if (!fits(addresses, mem_pages * per_page, 8)) return wrong("addresses");
    if (!fits(pages, count, 8)) return wrong("pages");
    if (!fits(out, count, 8)) return wrong("out addresses");
    if (p.count > (UINT64_MAX >> 4) / (count + 1) || !fits(sums, count * p.count, 8)) return wrong("sums");
    if (v[10] - 1 >= MAX_THREADS) return wrong("threads");
    struct batch b = {.item = pack_item, .count = count, .layout = &l, .pieces = p.count};
    b.addresses = (const uint64_t *)(uintptr_t)addresses.at;
    b.out = (const uint64_t *)(uintptr_t)out.at;
    b.pages = (const int64_t *)(uintptr_t)pages.at;
    b.sums = (uint64_t *)(uintptr_t)sums.at;
    for (uint64_t i = 0; i < count; i++) {
        if (b.pages[i] < 0 || (uint64_t)b.pages[i] >= mem_pages) return wrong("page outside of the memory");
        if (!sane(&l, b.addresses + (uint64_t)b.pages[i] * per_page)) return wrong("address of a page");
        if (b.out[i] < LOW || b.out[i] > UINT64_MAX - MAX_PAGE) return wrong("out address");
    }
    uint64_t page_bytes = l.heads * l.layers * l.cell;
    b.stream = count >= (STREAM_BYTES + page_bytes - 1) / page_bytes;
    if (run_batch(&b, v[10])) return NULL;
    Py_RETURN_NONE;
}

static PyObject *py_unpack(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    (void)self;
    uint64_t v[14];
    struct layout l;
    if (!numbers(args, n, 14, v)) return NULL;
    struct table jobs = {v[0], v[1]}, addresses = {v[4], v[5]}, sums = {v[6], v[7]};
    if (!read_layout(&l, (struct table){v[2], v[3]})) return wrong("layout");
    uint64_t per_page = l.components * l.layers, mem_pages = addresses.bytes / 8 / per_page;
    if (!fits(jobs, jobs.bytes / sizeof(struct job), sizeof(struct job))) return wrong("jobs");
    if (!fits(addresses, mem_pages * per_page, 8)) return wrong("addresses");
    if (!fits(sums, sums.bytes / 8, 8)) return wrong("sums");
    if (v[8] > MAX_DIM || v[9] - v[8] != l.heads || v[10] > MAX_DIM || v[11] - v[10] != l.layers || v[12] != l.cell)
        return wrong("view");
    if (v[13] - 1 >= MAX_THREADS) return wrong("threads");
    struct batch b = {.item = unpack_item, .to_engine = 1, .count = jobs.bytes / sizeof(struct job), .layout = &l};
    b.jobs = (uint8_t *)(uintptr_t)jobs.at;
    b.u = (struct unpack){.layout = &l, .pages = mem_pages, .cell = l.cell, .sum_count = sums.bytes / 8};
    b.u.addresses = (const uint64_t *)(uintptr_t)addresses.at;
    b.u.sums = (const uint64_t *)(uintptr_t)sums.at;
    b.u.h0 = v[8], b.u.h1 = v[9], b.u.l0 = v[10], b.u.l1 = v[11];
    for (uint64_t i = 0; i < mem_pages; i++)
        if (!sane(&l, b.u.addresses + i * per_page)) return wrong("address of a page");
    for (uint64_t i = 0, bytes = 0; i < b.count && !b.stream; i++) {
        struct job j;
        memcpy(&j, b.jobs + i * sizeof j, sizeof j);
        bytes += j.bytes < STREAM_BYTES ? j.bytes : STREAM_BYTES;
        b.stream = bytes >= STREAM_BYTES;
    }
    if (run_batch(&b, v[13])) return NULL;
    Py_RETURN_NONE;
}

#include "_fetch.h"

static PyObject *py_verify(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    (void)self;
    uint64_t v[6];
    if (!numbers(args, n, 6, v)) return NULL;
    struct table jobs = {v[0], v[1]}, sums = {v[2], v[3]};
    if (!fits(jobs, jobs.bytes / sizeof(struct job), sizeof(struct job))) return wrong("jobs");
    if (!fits(sums, sums.bytes / 8, 8)) return wrong("sums");
    if (v[4] - 1 >= MAX_PAGE) return wrong("cell bytes");
    if (v[5] - 1 >= MAX_THREADS) return wrong("threads");
    struct batch b = {.item = unpack_item, .count = jobs.bytes / sizeof(struct job)};
    b.jobs = (uint8_t *)(uintptr_t)jobs.at;
    b.u = (struct unpack){.cell = v[4], .sums = (const uint64_t *)(uintptr_t)sums.at, .sum_count = sums.bytes / 8};
    if (run_batch(&b, v[5])) return NULL;
    Py_RETURN_NONE;
}

static void sums_item(struct batch *b, struct walk *w, uint8_t *scratch, uint64_t i) {
    (void)w, (void)scratch;
    struct pieces p = pieces_of(b->layout->heads, b->layout->layers, b->layout->cell);
    for (uint64_t k = 0; k < p.count; k++) {
        uint64_t start = k % p.per_unit * p.bytes, whole = p.unit - start < p.bytes ? p.unit - start : p.bytes;
        b->sums[i * p.count + k] = hash((const uint8_t *)(uintptr_t)(b->out[i] + k / p.per_unit * p.unit + start), whole);
    }
}

static PyObject *py_sums(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    (void)self;
    uint64_t v[8];
    if (!numbers(args, n, 8, v)) return NULL;
    if (v[2] - 1 >= MAX_DIM || v[3] - 1 >= MAX_DIM || v[4] - 1 >= MAX_PAGE / (v[2] * v[3])) return wrong("view");
    struct table at = {v[0], v[1]}, sums = {v[5], v[6]};
    struct layout l = {.heads = v[2], .layers = v[3], .cell = v[4]};
    struct pieces p = pieces_of(v[2], v[3], v[4]);
    struct batch b = {.item = sums_item, .count = at.bytes / 8, .layout = &l};
    if (!fits(at, b.count, 8)) return wrong("addresses");
    if (p.count > (UINT64_MAX >> 4) / (b.count + 1) || !fits(sums, b.count * p.count, 8)) return wrong("sums");
    if (v[7] - 1 >= MAX_THREADS) return wrong("threads");
    b.out = (const uint64_t *)(uintptr_t)at.at;
    b.sums = (uint64_t *)(uintptr_t)sums.at;
    for (uint64_t i = 0; i < b.count; i++)
        if (b.out[i] < LOW || b.out[i] > UINT64_MAX - MAX_PAGE) return wrong("address");
    if (run_batch(&b, v[7])) return NULL;
    Py_RETURN_NONE;
}

#include "_publish.h"

static PyObject *py_xxh3_64(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    (void)self;
    uint64_t v[2], h;
    if (!numbers(args, n, 2, v)) return NULL;
    if (v[1] && (v[0] < LOW || v[0] > UINT64_MAX - v[1])) return wrong("address");
    PyThreadState *state = PyEval_SaveThread();
    h = hash((const uint8_t *)(uintptr_t)v[0], v[1]);
    PyEval_RestoreThread(state);
    return PyLong_FromUnsignedLongLong(h);
}

static PyObject *py_use(PyObject *self, PyObject *name) {
    (void)self;
    PyObject *utf8 = PyUnicode_AsUTF8String(name);
    if (!utf8) return NULL;
    const char *s = PyBytes_AsString(utf8);
    int there = s && choose(*s ? s : NULL);
    Py_DECREF(utf8);
    return there ? PyUnicode_FromString(kern_name) : wrong("this machine has no such instruction set");
}

#define FAST(f) ((PyCFunction)(void (*)(void))(f))
static PyMethodDef methods[] = {
    {"pack", FAST(py_pack), METH_FASTCALL, "layout, addresses, pages, out, sums (each address, bytes), threads"},
    {"unpack", FAST(py_unpack), METH_FASTCALL, "jobs, layout, addresses, sums (each address, bytes), view, cell bytes, threads"},
    {"fetched", FAST(py_fetched), METH_FASTCALL, "body, expectation, hashes, page before, layout, addresses, slabs, index, status, where, threads, start"},
    {"receive", FAST(py_receive), METH_FASTCALL, "see kernels.receive"},
    {"publish", FAST(py_publish), METH_FASTCALL, "see kernels.publish"},
    {"fetch", FAST(py_fetch), METH_FASTCALL, "request, expectation, hashes, page before, socket, call, deadline, room, what fetched takes"},
    {"headers", FAST(py_headers), METH_FASTCALL, "template, hashes, parents, sequence of the first, sums (address, bytes)"},
    {"verify", FAST(py_verify), METH_FASTCALL, "jobs, sums (each address, bytes), cell bytes, threads"},
    {"sums", FAST(py_sums), METH_FASTCALL, "addresses (address, bytes), heads, layers, cell bytes, sums (address, bytes), threads"},
    {"xxh3_64", FAST(py_xxh3_64), METH_FASTCALL, "address, bytes"},
    {"use", py_use, METH_O, "chooses avx512, avx2 or plain for the whole process, '' the best; for tests and measurements"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", "Native kernels of quire_kv.kernels.", -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    init_keys();
    choose(NULL);
    return PyModule_Create(&module);
}
