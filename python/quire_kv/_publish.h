/* Whole pages published over one connection in one call, without Python: named or sent, summed, their headers made, committed, and
 * the usual answers received.
 *
 *     Begin, WritePages, pages ──> sums, headers ──> END, Commit ──> answers, as far as each is the RESPONSE that comes next
 *
 * Whether they are those of pages that are all stored now is seen here; quire_kv/frame_transport.py reads what is left of other
 * answers, and publish.py knows every case.
 * Formats: docs/formats/frames.md, extent-header.md, proto/quire/v1/page.proto.
 */
#ifndef QUIRE_PUBLISH_H
#define QUIRE_PUBLISH_H

#include "_fetch.h"
#include "_send.h"

/* A sound header that others are made like: they differ in hash, parent, sequence and sums. */
struct likeness {
    const uint8_t *text;
    uint64_t size, hash_bytes, parent_bytes, pieces, sums; /* where the sums begin */
};

static int read_likeness(struct likeness *l, const uint8_t *text, uint64_t size) {
    if (size < H_FIXED + H_TAIL || read32(text + H_SIZE) != size) return 0;
    *l = (struct likeness){text, size, text[H_HASH_BYTES], text[H_PARENT_BYTES], read32(text + H_PIECES), H_FIXED + read16(text + H_PROVENANCE)};
    return l->hash_bytes - 1 < HASH_ROOM && l->parent_bytes <= HASH_ROOM && l->pieces && size - H_TAIL == l->sums + 8 * l->pieces;
}

static void make_header(const struct likeness *l, uint8_t *to, const uint8_t *page, const uint8_t *parent, uint64_t sequence, const uint64_t *sums) {
    uint64_t tail = l->size - H_TAIL;
    memcpy(to, l->text, l->sums);
    memcpy(to + H_HASH, page, l->hash_bytes);
    memcpy(to + H_PARENT, parent, l->parent_bytes);
    memcpy(to + H_SEQUENCE, &sequence, sizeof sequence);
    memcpy(to + l->sums, sums, 8 * l->pieces);
    hash128(to + l->sums, 8 * l->pieces, to + H_DIGEST);
    hash128(to, tail, to + tail);
}

/* See kernels.headers. */
static PyObject *py_headers(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    (void)self;
    char *texts[3], *out;
    Py_ssize_t sizes[3];
    uint64_t v[3];
    if (n != 6) return wrong("6 arguments are wanted");
    if (!texts_of(args, 3, texts, sizes)) return NULL;
    if (!numbers(args + 3, 3, 3, v)) return NULL;
    struct likeness l;
    if (!read_likeness(&l, (const uint8_t *)texts[0], (uint64_t)sizes[0])) return wrong("template");
    uint64_t count = (uint64_t)sizes[1] / l.hash_bytes;
    if (count * l.hash_bytes != (uint64_t)sizes[1] || count * l.parent_bytes != (uint64_t)sizes[2]) return wrong("hashes or parents");
    if (!fits((struct table){v[1], v[2]}, count * l.pieces, 8) || l.size > PY_SSIZE_T_MAX / (count + 1)) return wrong("sums");
    PyObject *all = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * l.size));
    if (!all || !(out = PyBytes_AsString(all))) return NULL;
    const uint64_t *sums = (const uint64_t *)(uintptr_t)v[1];
    for (uint64_t i = 0; i < count; i++)
        make_header(&l, (uint8_t *)out + i * l.size, (uint8_t *)texts[1] + i * l.hash_bytes, (uint8_t *)texts[2] + i * l.parent_bytes, v[0] + i,
                    sums + i * l.pieces);
    return all;
}

enum {
    REQUEST = 3, END = 5, RESPONSE = 6, MORE = 1, BEGIN_PUBLISH = 4, WRITE_PAGES = 5, COMMIT_PUBLISH = 6,
    H_EXTENT = 264, EXTENT_BYTES = 40, COMMITTED_BYTES = 6 + EXTENT_BYTES, WRITTEN_BYTES = 4,
    FULL_BODY = 32 << 10, FULL_DATA = 1 << 20,  /* of a batch of chunks */
    ENTRY_ROOM = 8 + 18 + REFERENCE_BYTES, PAGE_ROOM = 24, /* at most, of an entry; of a page in a commit, beside its header */
    MOST_CHUNKS = 1 << 20, MIN_CHUNK_BYTES = 4096, MAX_ANSWERS = 3,
    WORTH_A_SEND = 1 << 20, /* bytes that take longer to sum than it takes to wake the server once more */
};

struct publishing {
    struct sending s; /* its heads are here: all that is sent but for the bytes of pages */
    struct line line;
    const uint8_t *begin, *granted, *named, *hashes, *parents; /* texts of kernels.publish */
    uint64_t begin_bytes, granted_bytes, named_bytes;
    struct likeness kinds[2];
    uint64_t lead, sequence; /* pages of the first kind; of the first page */
    const int64_t *names;    /* of the pages in the Begin */
    uint64_t chunk_bytes, area, base;
    int shared;
    uint8_t *heads, *tail;
    const uint8_t **extents; /* their ids in the tail */
    uint64_t head_bytes, commit_body;
    struct frame *frames;
    struct layout shape;     /* heads, layers and cell of the view alone */
    struct batch packed;     /* into where they are sent from; count 0: pages are there */
    uint64_t threads;
    struct {
        uint8_t *body;
        uint64_t bytes;
    } answers[MAX_ANSWERS];
    int answer_count, wanted;
};

static uint8_t *put_varint(uint8_t *p, uint64_t v) {
    for (; v >= 0x80; v >>= 7) *p++ = (uint8_t)(v | 0x80);
    *p++ = (uint8_t)v;
    return p;
}

static void put_frame(uint8_t *p, unsigned kind, unsigned flags, unsigned method, uint32_t call, uint64_t body, uint64_t data, uint32_t extra) {
    const uint32_t words[4] = {call, (uint32_t)body, (uint32_t)data, extra};
    memcpy(p, "QRF1", 4);
    p[4] = (uint8_t)kind, p[5] = (uint8_t)flags, p[6] = (uint8_t)method, p[7] = 0;
    memcpy(p + 8, words, sizeof words);
}

static uint32_t milliseconds_left(const struct publishing *p) {
    uint64_t now = now_ns(), left = p->line.deadline > now ? (p->line.deadline - now) / 1000000 : 0;
    return left < 1 ? 1 : left < UINT32_MAX ? (uint32_t)left : UINT32_MAX;
}

/* Makes the requests of Begin and WritePages and the frames of all chunks, without their data. */
static void make_heads(struct publishing *p) {
    struct sending *s = &p->s;
    uint8_t *at = p->heads, *batch = NULL, *counted = at;
    uint64_t data = 0, before = 0;
    uint32_t left = milliseconds_left(p);
    if (p->begin_bytes) {
        put_frame(at, REQUEST, 0, BEGIN_PUBLISH, p->line.call - 1, p->begin_bytes, 0, left);
        memcpy(at + FRAME_BYTES, p->begin, p->begin_bytes);
        at += FRAME_BYTES + p->begin_bytes;
    }
    put_frame(at, REQUEST, MORE, WRITE_PAGES, p->line.call, 0, 0, left);
    at += FRAME_BYTES;
    for (uint64_t i = 0; i < s->page_count; i++)
        for (uint64_t off = 0; off < s->payload;) {
            uint64_t size = s->payload - off < p->chunk_bytes ? s->payload - off : p->chunk_bytes;
            if (!batch) batch = at, at += FRAME_BYTES;
            uint8_t *entry = at;
            at += 8;
            if (!i && !off) memcpy(at, p->named, p->named_bytes), at += p->named_bytes;
            if (p->names[i]) *at++ = 3 << 3, at = put_varint(at, (uint64_t)p->names[i]);
            if (off) *at++ = 5 << 3, at = put_varint(at, off);
            const uint32_t lengths[2] = {(uint32_t)(at - entry - 8) | (p->shared ? BY_REFERENCE : 0), (uint32_t)size};
            memcpy(entry, lengths, sizeof lengths);
            if (p->shared) {
                const uint64_t reference[5] = {p->area, s->pages[i] - p->base + off, size};
                memcpy(at, reference, sizeof reference);
                at += sizeof reference;
            } else
                data += size;
            off += size;
            int last = i + 1 == s->page_count && off == s->payload;
            if (!last && data < FULL_DATA && at - batch < FRAME_BYTES + FULL_BODY) continue;
            put_frame(batch, MESSAGE, CHUNKS, WRITE_PAGES, p->line.call, (uint64_t)(at - batch - FRAME_BYTES), data, 0);
            p->frames[s->frame_count++] = (struct frame){(uint64_t)(at - counted), before, data};
            before += data, data = 0, batch = NULL, counted = at;
        }
    p->head_bytes = (uint64_t)(at - p->heads);
}

/* Makes END and the commit, of which all sums are known. */
static struct iovec make_tail(void *of) {
    struct publishing *p = of;
    struct sending *s = &p->s;
    uint8_t *at = p->tail, *commit = at + FRAME_BYTES;
    put_frame(at, END, 0, WRITE_PAGES, p->line.call, 0, 0, 0);
    at = commit + FRAME_BYTES;
    memcpy(at, p->named, p->named_bytes);
    at += p->named_bytes;
    const uint8_t *parent = p->parents;
    for (uint64_t i = 0; i < s->page_count; i++) {
        const struct likeness *l = &p->kinds[i >= p->lead];
        uint8_t name[12], prefix[12], *name_end = name, *prefix_end = prefix;
        if (p->names[i]) *name_end++ = 1 << 3, name_end = put_varint(name_end, (uint64_t)p->names[i]);
        *prefix_end++ = 2 << 3 | 2, prefix_end = put_varint(prefix_end, l->size);
        *at++ = 3 << 3 | 2;
        at = put_varint(at, (uint64_t)(name_end - name) + (uint64_t)(prefix_end - prefix) + l->size);
        memcpy(at, name, (size_t)(name_end - name)), at += name_end - name;
        memcpy(at, prefix, (size_t)(prefix_end - prefix)), at += prefix_end - prefix;
        make_header(l, at, p->hashes + i * l->hash_bytes, parent, p->sequence + i, s->sums + i * l->pieces);
        p->extents[i] = at + H_EXTENT;
        at += l->size, parent += l->parent_bytes;
    }
    p->commit_body = (uint64_t)(at - commit - FRAME_BYTES);
    put_frame(commit, REQUEST, 0, COMMIT_PUBLISH, p->line.call + 1, p->commit_body, 0, milliseconds_left(p));
    return (struct iovec){p->tail, (size_t)(at - p->tail)};
}

/* Sends everything. Pages that are named are copied by the server while they are summed here, where that is worth it; those
 * that go in the frames are summed while they are near, and the commit goes with the last. 0, or as give. */
static int send_publication(struct publishing *p) {
    struct sending *s = &p->s;
    int e, early = p->shared && !p->packed.count && s->payload * s->page_count >= WORTH_A_SEND;
    struct iovec v[2] = {{p->heads, p->head_bytes}};
    if (p->packed.count) {
        if (run_threads(&p->packed, p->threads)) return ENOMEM;
        s->summed_bytes = s->payload * s->page_count;
    }
    make_heads(p);
    if (!p->shared) return send_frames(s, make_tail, p);
    v[0].iov_len = p->head_bytes;
    if (early && (e = give(&s->wire, v, 1))) return e;
    if (!p->packed.count) {
        struct batch b = {.item = sums_item, .count = s->page_count, .layout = &p->shape, .out = s->pages, .sums = s->sums};
        if (run_threads(&b, p->threads)) return ENOMEM;
    }
    v[0] = (struct iovec){p->heads, p->head_bytes}, v[1] = make_tail(p);
    return early ? give(&s->wire, v + 1, 1) : give(&s->wire, v, 2);
}

/* Receives the answers that are wanted, in order, as long as each is the usual. 0, or ENOMEM. */
static int take_answers(struct publishing *p) {
    struct line *c = &p->line;
    struct wire wait = p->s.wire;
    wait.option = SO_RCVTIMEO, wait.armed--;
    while (p->answer_count < p->wanted) {
        const uint8_t *h = c->room + c->from;
        uint64_t have = c->to - c->from, body = have < FRAME_BYTES ? 0 : read32(h + 12);
        if (have < FRAME_BYTES || (have - FRAME_BYTES < body && body <= c->bytes - FRAME_BYTES)) {
            if (arm(&wait) || !receive(c)) return 0;
            continue;
        }
        int number = p->answer_count + MAX_ANSWERS - p->wanted; /* 0 Begin, 1 WritePages, 2 CommitPublish */
        uint32_t call = c->call + (uint32_t)number - 1;
        if (memcmp(h, "QRF1", 4) || h[5] || read32(h + 8) != call || read32(h + 16) || body > c->bytes - FRAME_BYTES) return 0;
        if (h[4] == RELEASE && number == 1 && !body) {
            c->from += FRAME_BYTES;
            continue;
        }
        if (h[4] != RESPONSE || read32(h + 20)) return 0;
        uint8_t *copy = malloc(body + 1);
        if (!copy) return ENOMEM;
        memcpy(copy, h + FRAME_BYTES, body);
        p->answers[p->answer_count].body = copy, p->answers[p->answer_count++].bytes = body;
        c->from += FRAME_BYTES + body;
    }
    return 0;
}

/* Whether the rest of an answer is at most when that was decided, its field `number`. */
static int decided(const uint8_t *p, const uint8_t *end, unsigned number) {
    uint64_t at;
    return p == end || (*p++ == number << 3 && read_varint(&p, end, &at) && p == end);
}

/* Whether the answer to a Begin grants all pages whole. */
static int all_granted(const struct publishing *p, const uint8_t *at, const uint8_t *end) {
    while (end - at > 1 && (*at == (1 << 3 | 2) || *at == (2 << 3 | 2))) { /* token and lease */
        uint64_t size;
        at++;
        if (!read_varint(&at, end, &size) || size > (uint64_t)(end - at)) return 0;
        at += size;
    }
    for (uint64_t i = 0; i < p->s.page_count; i++, at += p->granted_bytes)
        if ((uint64_t)(end - at) < p->granted_bytes || memcmp(at, p->granted, p->granted_bytes)) return 0;
    return decided(at, end, 4);
}

/* Whether the answers are those of pages that were granted whole, written, and committed as the extents that were sent: as a
 * server encodes them, else it is for publish.py to read. */
static int all_stored(const struct publishing *p) {
    uint64_t n = p->s.page_count, committed_bytes = n * COMMITTED_BYTES;
    int k = MAX_ANSWERS - p->wanted;
    if (p->answer_count < p->wanted) return 0;
    if (!k && !all_granted(p, p->answers[0].body, p->answers[0].body + p->answers[0].bytes)) return 0;
    const uint8_t *written = p->answers[1 - k].body, *committed = p->answers[2 - k].body;
    if (p->answers[1 - k].bytes != n * WRITTEN_BYTES || p->answers[2 - k].bytes < committed_bytes) return 0;
    for (uint64_t i = 0; i < n; i++) {
        if (memcmp(written + i * WRITTEN_BYTES, "\x0a\x02\x08\x01", WRITTEN_BYTES)) return 0;
        if (memcmp(committed + i * COMMITTED_BYTES, "\x0a\x2c\x08\x04\x1a\x28", 6) || memcmp(committed + i * COMMITTED_BYTES + 6, p->extents[i], EXTENT_BYTES))
            return 0;
    }
    return decided(committed + committed_bytes, committed + p->answers[2 - k].bytes, 2);
}

/* Reads tables and texts and checks them. NULL, or what is wrong. */
static const char *read_publication(struct publishing *p, struct layout *l, char *const *texts, const Py_ssize_t *sizes, const uint64_t *v) {
    struct sending *s = &p->s;
    struct table pages = {v[7], v[8]}, names = {v[9], v[10]}, addresses = {v[21], v[22]}, index = {v[23], v[24]};
    if (v[0] > INT_MAX || v[1] < LOW || v[1] % 8 || v[2] > UINT32_MAX - 1 || !v[2] || v[4] < FRAME_BYTES || v[4] > 1 << 30 || v[3] < LOW) return "connection";
    if (v[11] - 1 >= MAX_DIM || v[12] - 1 >= MAX_DIM || v[13] - 1 >= MAX_PAGE / (v[11] * v[12])) return "view";
    s->page_count = pages.bytes / 8, s->payload = v[11] * v[12] * v[13], s->pieces = pieces_of(v[11], v[12], v[13]);
    p->shape = (struct layout){.heads = v[11], .layers = v[12], .cell = v[13]};
    s->pages = (const uint64_t *)(uintptr_t)pages.at, p->names = (const int64_t *)(uintptr_t)names.at;
    if (!s->page_count || !fits(pages, s->page_count, 8) || !fits(names, s->page_count, 8)) return "pages";
    p->shared = v[16] != 0, p->area = v[17], p->base = v[18], p->chunk_bytes = v[14], p->threads = v[15];
    if (p->chunk_bytes < MIN_CHUNK_BYTES || p->chunk_bytes > MAX_CHUNK || p->threads - 1 >= MAX_THREADS) return "chunk bytes or threads";
    if (s->page_count > MOST_CHUNKS / ((s->payload - 1) / p->chunk_bytes + 1)) return "so many chunks";
    for (uint64_t i = 0; i < s->page_count; i++) {
        if (s->pages[i] < LOW || s->pages[i] > UINT64_MAX - MAX_PAGE || (p->shared && s->pages[i] < p->base)) return "address";
        if (p->names[i] < 0 || p->names[i] > UINT32_MAX) return "name of a page";
    }
    p->begin = (const uint8_t *)texts[5], p->granted = (const uint8_t *)texts[0], p->named = (const uint8_t *)texts[1];
    p->begin_bytes = (uint64_t)sizes[5], p->granted_bytes = (uint64_t)sizes[0], p->named_bytes = (uint64_t)sizes[1];
    p->hashes = (const uint8_t *)texts[3], p->parents = (const uint8_t *)texts[4];
    uint64_t kinds = (uint64_t)sizes[2], hashes = 0, parents = 0, step = kinds;
    p->lead = v[5], p->sequence = v[6];
    if (p->lead > s->page_count) return "pages of the first kind";
    if (p->lead && p->lead < s->page_count) step = kinds / 2;
    for (int i = 0; i < 2; i++) {
        const uint8_t *text = (const uint8_t *)texts[2] + (i ? kinds - step : 0);
        uint64_t count = i ? s->page_count - p->lead : p->lead;
        struct likeness *k = &p->kinds[i];
        if (step * (kinds == step ? 1 : 2) != kinds || !read_likeness(k, text, step) || k->pieces != s->pieces.count) return "template";
        if (k->hash_bytes != p->kinds[0].hash_bytes) return "template";
        hashes += count * k->hash_bytes, parents += count * k->parent_bytes;
    }
    if (hashes != (uint64_t)sizes[3] || parents != (uint64_t)sizes[4]) return "hashes or parents";
    if (!index.bytes) return NULL;
    if (!read_layout(l, (struct table){v[19], v[20]}) || l->heads != v[11] || l->layers != v[12] || l->cell != v[13]) return "layout";
    uint64_t per_page = l->components * l->layers, mem_pages = addresses.bytes / 8 / per_page;
    if (!fits(addresses, mem_pages * per_page, 8) || !fits(index, s->page_count, 8)) return "addresses";
    p->packed = (struct batch){.item = pack_item, .count = s->page_count, .layout = l, .pieces = s->pieces.count, .out = s->pages};
    p->packed.addresses = (const uint64_t *)(uintptr_t)addresses.at, p->packed.pages = (const int64_t *)(uintptr_t)index.at;
    p->packed.stream = s->page_count >= (STREAM_BYTES + s->payload - 1) / s->payload;
    for (uint64_t i = 0; i < s->page_count; i++) {
        if (p->packed.pages[i] < 0 || (uint64_t)p->packed.pages[i] >= mem_pages) return "page outside of the memory";
        if (!sane(l, p->packed.addresses + (uint64_t)p->packed.pages[i] * per_page)) return "address of a page";
    }
    return NULL;
}

/* See kernels.publish. */
static PyObject *py_publish(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    (void)self;
    char *texts[6];
    Py_ssize_t sizes[6];
    uint64_t v[25];
    if (n != 32) return wrong("32 arguments are wanted");
    if (!texts_of(args, 6, texts, sizes)) return NULL;
    double deadline = PyFloat_AsDouble(args[6]);
    if ((deadline == -1 && PyErr_Occurred()) || !numbers(args + 7, 25, 25, v)) return NULL;
    struct layout l;
    struct publishing p = {.wanted = sizes[5] ? MAX_ANSWERS : MAX_ANSWERS - 1};
    const char *why = deadline >= 0 && deadline < 1e9 ? read_publication(&p, &l, texts, sizes, v) : "deadline";
    if (why) return wrong(why);
    struct sending *s = &p.s;
    s->wire = (struct wire){.fd = (int)v[0], .option = SO_SNDTIMEO, .armed = (double *)(uintptr_t)v[1] + 1, .deadline = deadline};
    p.line = (struct line){.fd = (int)v[0], .call = (uint32_t)v[2], .deadline = (uint64_t)(deadline * 1e9), .room = (uint8_t *)(uintptr_t)v[3], .bytes = v[4]};
    uint64_t chunks = s->page_count * ((s->payload - 1) / p.chunk_bytes + 1);
    s->sums = malloc(s->page_count * s->pieces.count * 8);
    p.packed.sums = s->sums;
    p.frames = malloc(chunks * sizeof *p.frames);
    p.heads = malloc(2 * FRAME_BYTES + p.begin_bytes + p.named_bytes + chunks * (FRAME_BYTES + ENTRY_ROOM));
    p.extents = malloc(s->page_count * sizeof *p.extents);
    p.tail = malloc(2 * FRAME_BYTES + p.named_bytes + s->page_count * (PAGE_ROOM + p.kinds[0].size));
    int error = ENOMEM;
    int stored = 0;
    if (s->sums && p.frames && p.heads && p.extents && p.tail) {
        s->frames = p.frames, s->heads = p.heads;
        s->wire.released = PyEval_SaveThread();
        error = send_publication(&p);
        if (!error && !(error = take_answers(&p))) stored = all_stored(&p);
        PyEval_RestoreThread(s->wire.released);
    }
    PyObject *answers = PyTuple_New(p.answer_count), *commit = NULL, *descriptors = NULL, *result = NULL;
    if (!error) /* what was sent behind the frames of END and the commit */
        commit = PyBytes_FromStringAndSize((const char *)p.tail + 2 * FRAME_BYTES, p.answer_count < p.wanted ? (Py_ssize_t)p.commit_body : 0);
    else
        commit = PyBytes_FromStringAndSize(NULL, 0);
    free(s->sums), free(p.frames), free(p.heads), free(p.extents), free(p.tail);
    for (int i = 0; i < p.answer_count; i++) {
        PyObject *body = PyBytes_FromStringAndSize((const char *)p.answers[i].body, (Py_ssize_t)p.answers[i].bytes);
        free(p.answers[i].body);
        if (answers && (!body || PyTuple_SetItem(answers, i, body))) Py_CLEAR(answers);
    }
    if (error == ENOMEM)
        PyErr_NoMemory();
    else if (error != RAISED && answers && commit)
        descriptors = PyBytes_FromStringAndSize((const char *)p.line.descriptors, (Py_ssize_t)((size_t)p.line.descriptor_count * sizeof(int)));
    if (descriptors)
        result = Py_BuildValue("iiKKOOiN", error, stored, (unsigned long long)p.line.from, (unsigned long long)p.line.to, answers, commit, p.line.state, descriptors);
    Py_XDECREF(answers), Py_XDECREF(commit);
    return result;
}

#endif
