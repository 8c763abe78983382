/* The ordinary page of a Fetch over shared memory, without Python: its entries of a batch read, its header held against what
 * was asked for, its bytes copied out of the node's slabs and summed, its generations asked.
 *
 *     entry: header, first chunk | entry: chunk | ... | entry: chunk, trailer OK      one extent, the whole page, references
 *
 * Whatever is not exactly that is left to quire_kv/intake.py, which knows every case and names what is wrong: nothing is
 * refused here. Formats: docs/formats/frames.md, extent-header.md, shm.md.
 */
#ifndef QUIRE_PAGES_H
#define QUIRE_PAGES_H

enum {
    H_FLAGS = 6, H_SIZE = 8, H_PIECES = 12, H_PAYLOAD = 16, H_FAMILY = 24, H_HASH_BYTES = 128, H_PARENT_BYTES = 129,
    H_PROVENANCE = 130, H_HASH = 136, H_PARENT = 200, H_SEQUENCE = 280, H_DIGEST = 288, H_VIEW = 304, H_TOKENS_FROM = 312, H_SHARD = 324,
    H_SHAPE = 328, H_FLOPS = 384, H_RESERVED = 396, H_FIXED = 400, H_TAIL = 16, HASH_ROOM = 64,
    FAMILY_BYTES = 105, SHAPE_BYTES = 14, KNOWN_FLAGS = 7, PARENT_UNKNOWN = 4, MAX_PROVENANCE = 1 << 10,
    MAX_CHUNK = 8 << 20, REFERENCE_BYTES = 40,
};
static const uint32_t BY_REFERENCE = 1U << 31;

struct known_slab { /* Slabs.table of shm.py */
    uint64_t number, at, bytes, words, slot_bytes, slots;
};

struct page_chunk {
    uint8_t *at;
    uint64_t bytes;
    const struct known_slab *slab;
    uint64_t slot, slot_generation, slab_generation;
};

struct page_item {
    uint64_t number, sums, first, chunks; /* in the stream; index of its sums; its chunks */
};

enum { PAGE_OK = 1, PAGE_CORRUPT = 2, PAGE_STALE = 3 };

struct fetched {
    const uint8_t *expect, *hashes;
    uint64_t hash_bytes, count; /* of pages asked for */
    const struct known_slab *slabs;
    uint64_t slab_count;
    const struct layout *layout;
    struct pieces pieces;
    uint64_t payload;
    const int64_t *index; /* page of the memory, by number in the stream */
    uint8_t *status;
    uint64_t *where; /* place and size of a page's header in its body */
    struct page_chunk *chunks;
    struct page_item *items;
    uint64_t *sums;
    uint64_t chunk_count, item_count;
};

static inline uint16_t read16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return v; }

/* One FetchResponse: fields in order, each at most once. */
struct head {
    uint64_t page, extent, offset;
    const uint8_t *header;
    uint64_t header_bytes;
    int trailer; /* there and OK */
};

static int read_varint(const uint8_t **p, const uint8_t *end, uint64_t *to) {
    *to = 0;
    for (int shift = 0; *p < end && shift < 63; shift += 7) {
        uint8_t b = *(*p)++;
        *to |= (uint64_t)(b & 0x7f) << shift;
        if (b < 0x80) return 1;
    }
    return 0;
}

static int read_head(const uint8_t *p, const uint8_t *end, struct head *h) {
    memset(h, 0, sizeof *h);
    for (unsigned before = 0; p < end;) {
        uint64_t tag, v;
        if (!read_varint(&p, end, &tag) || tag >> 3 <= before) return 0;
        before = (unsigned)(tag >> 3);
        if (!read_varint(&p, end, &v)) return 0;
        switch (tag) {
        case 1 << 3: h->page = v; break;
        case 3 << 3: h->extent = v; break;
        case 4 << 3: h->offset = v; break;
        case 2 << 3 | 2:
            if (v > (uint64_t)(end - p)) return 0;
            h->header = p, h->header_bytes = v, p += v;
            break;
        case 6 << 3 | 2: /* outcome OK and nothing else */
            if (v != 2 || end - p < 2 || p[0] != 1 << 3 || p[1] != 1) return 0;
            h->trailer = 1, p += 2;
            break;
        default: return 0;
        }
    }
    return 1;
}

static int all_zero(const uint8_t *p, size_t n) {
    uint8_t any = 0;
    for (size_t i = 0; i < n; i++) any |= p[i];
    return !any;
}

/* What Expectation.read of page.py accepts without a second look: an extent that is all of the page that was asked for. */
static int sound_header(const struct fetched *f, const uint8_t *h, uint64_t n, const uint8_t *page_hash, const uint8_t **sums) {
    if (n < H_FIXED + H_TAIL || memcmp(h, "QEXT\1\0", 6) || read32(h + H_SIZE) != n) return 0;
    uint64_t provenance = read16(h + H_PROVENANCE), at = H_FIXED + provenance, tail = n - H_TAIL;
    if (provenance > MAX_PROVENANCE || read32(h + H_PIECES) != f->pieces.count || tail != at + 8 * f->pieces.count) return 0;
    unsigned flags = read16(h + H_FLAGS), parent = h[H_PARENT_BYTES];
    const uint16_t view[4] = {0, (uint16_t)f->layout->heads, 0, (uint16_t)f->layout->layers};
    if (flags & ~(unsigned)KNOWN_FLAGS || memcmp(h + H_FAMILY, f->expect, FAMILY_BYTES) ||
        memcmp(h + H_SHAPE, f->expect + FAMILY_BYTES, SHAPE_BYTES) || memcmp(h + H_HASH, page_hash, f->hash_bytes) ||
        !all_zero(h + H_HASH + f->hash_bytes, HASH_ROOM - f->hash_bytes) || memcmp(h + H_VIEW, view, sizeof view))
        return 0;
    if (parent && (parent != f->hash_bytes || flags & PARENT_UNKNOWN)) return 0;
    double flops;
    memcpy(&flops, h + H_FLOPS, sizeof flops);
    if (!all_zero(h + H_PARENT + parent, HASH_ROOM - parent) || !all_zero(h + H_TOKENS_FROM, H_SHARD - H_TOKENS_FROM) ||
        memcmp(h + H_SHARD, "\0\0\1\0", 4) || read32(h + H_RESERVED) || read64(h + H_PAYLOAD) != f->payload ||
        !(flops >= 0 && flops <= 1.7976931348623157e308))
        return 0;
    uint8_t digest[16];
    hash128(h + at, 8 * f->pieces.count, digest);
    if (memcmp(digest, h + H_DIGEST, sizeof digest)) return 0;
    hash128(h, tail, digest);
    *sums = h + at;
    return !memcmp(digest, h + tail, sizeof digest);
}

static const struct known_slab *find_slab(const struct fetched *f, uint64_t number) {
    for (uint64_t i = 0; i < f->slab_count; i++)
        if (f->slabs[i].number == number) return &f->slabs[i];
    return NULL;
}

/* Reads the entries of the next page from *at of the body on. 0, and nothing is taken, when it is not an ordinary one that
 * comes after page `after`. */
static int read_page(struct fetched *f, const uint8_t *body, uint64_t bytes, uint64_t *at, int64_t after) {
    const uint8_t *p = body + *at, *end = body + bytes, *sums = NULL;
    struct page_item item = {.first = f->chunk_count};
    uint64_t got = 0, chunks = f->chunk_count;
    uint64_t header_at = 0; /* place and size of the header in the body */
    const struct known_slab *slab = NULL;
    for (int first = 1;; first = 0) {
        if (end - p < 8) return 0;
        uint32_t n = read32(p), size = read32(p + 4);
        struct head h;
        p += 8;
        if (!(n & BY_REFERENCE) || !size || size > MAX_CHUNK) return 0;
        n &= ~BY_REFERENCE;
        if ((uint64_t)(end - p) < (uint64_t)n + REFERENCE_BYTES || !read_head(p, p + n, &h)) return 0;
        const uint8_t *r = p + n;
        p = r + REFERENCE_BYTES;
        if (first) {
            if ((int64_t)h.page <= after || h.page >= f->count || !h.header || f->status[h.page]) return 0;
            item.number = h.page;
            header_at = (uint64_t)(h.header - body) << 32 | h.header_bytes;
            if (!sound_header(f, h.header, h.header_bytes, f->hashes + h.page * f->hash_bytes, &sums)) return 0;
        } else if (h.page != item.number || h.header)
            return 0;
        if (h.extent || h.offset != got || size > f->payload - got) return 0;
        if (got % f->pieces.unit % f->pieces.bytes) return 0;
        struct page_chunk *c = &f->chunks[chunks++];
        uint64_t offset = read64(r + 8);
        if (!slab || slab->number != read64(r)) slab = find_slab(f, read64(r));
        if (!slab || read64(r + 16) != size || offset >= slab->bytes || size > slab->bytes - offset) return 0;
        *c = (struct page_chunk){(uint8_t *)(uintptr_t)(slab->at + offset), size, slab, offset / slab->slot_bytes, read64(r + 24), read64(r + 32)};
        if (c->slot >= slab->slots) return 0;
        got += size;
        if (h.trailer != (got == f->payload)) return 0;
        if (h.trailer) break;
    }
    f->where[item.number] = header_at;
    item.chunks = chunks - item.first;
    item.sums = f->item_count * f->pieces.count;
    memcpy(f->sums + item.sums, sums, 8 * f->pieces.count);
    f->items[f->item_count++] = item;
    f->chunk_count = chunks;
    *at = (uint64_t)(p - body);
    return 1;
}

static int fresh_chunk(const struct page_chunk *c) {
    const _Atomic uint64_t *words = (const _Atomic uint64_t *)(uintptr_t)c->slab->words;
    return atomic_load(&words[8 + c->slot]) == c->slot_generation && atomic_load(&words[5]) == c->slab_generation;
}

/* Where a page of the memory lies without holes in head-major order; NULL: another order. */
static uint8_t *in_one_run(const struct layout *l, const uint64_t *addresses) {
    const struct component *c = &l->c[0];
    if (l->components != 1 || (c->tokens > 1 && c->token_stride != c->row)) return NULL;
    if (l->heads > 1 && c->head_stride != l->layers * l->cell) return NULL;
    for (uint64_t i = 1; i < l->layers; i++)
        if (addresses[i] != addresses[0] + i * l->cell) return NULL;
    return (uint8_t *)(uintptr_t)addresses[0];
}

/* Copies a piece to where it belongs and sums what was stored: a page that fails has undefined bytes in its place. */
static uint64_t place_piece(uint8_t *to, uint8_t *from, size_t n, int stream) {
    if (!stream || n <= SHORT_MAX || n % STRIPE || (uintptr_t)to % STRIPE) return copy_hash(to, from, n);
    struct summer s;
    struct seg whole = {from, n};
    summer_start(&s, n);
    kern->feed_stream(&s, &whole, 1, to);
    return merge_lanes(s.lanes, n);
}

static void fetched_item(struct batch *b, struct walk *w, uint8_t *scratch, uint64_t i) {
    struct fetched *f = b->fetched;
    const struct page_item *item = &f->items[i];
    const struct layout *l = f->layout;
    uint64_t page = (uint64_t)f->index[item->number], at = 0;
    uint8_t *to = in_one_run(l, b->u.addresses + page * l->components * l->layers);
    const uint64_t *want = f->sums + item->sums;
    int good = 1;
    for (uint64_t k = 0; k < item->chunks && good; k++) {
        const struct page_chunk *c = &f->chunks[item->first + k];
        if (!to) {
            struct job j = {.src = (uintptr_t)c->at, .offset = at, .bytes = c->bytes, .first_sum = item->sums, .page = (uint32_t)page};
            j.eh1 = (uint16_t)l->heads, j.el1 = (uint16_t)l->layers;
            good = run_job(w, &b->u, &j, scratch) == OK;
            at += c->bytes;
            continue;
        }
        for (uint64_t done = 0; done < c->bytes && good; want++) {
            uint64_t within = at % f->pieces.unit, n = f->pieces.unit - within;
            if (n > f->pieces.bytes) n = f->pieces.bytes;
            good = n <= c->bytes - done && place_piece(to + at, c->at + done, n, b->stream) == *want;
            at += n, done += n;
        }
    }
    f->status[item->number] = good ? PAGE_OK : PAGE_CORRUPT;
}

#endif
