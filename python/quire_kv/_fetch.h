/* Fetch over shared memory in one call: the request sent, frames received and ordinary pages (_pages.h) placed as they come,
 * what they refer to released.
 *
 *     send request ──> receive ──frame of ordinary pages──> place ──> receive ... ──STATUS OK──> send RELEASE
 *                         │                                   └── anything else: left to Python, from there on
 *                         └── time over, connection over, descriptors, a signal: left to Python
 *
 * Nothing is refused here, and nothing of a connection is ended: quire_kv/frame_transport.py goes on with what is left in the
 * room, and finds out itself what is wrong with it.
 */
#ifndef QUIRE_FETCH_H
#define QUIRE_FETCH_H

#include "_receive.h"

/* Reads what a Fetch takes: that of read_wanted, the tables of slabs and of where, and the threads, in the order of PageTables.numbers.
 * NULL, or what is wrong with it. */
static const char *read_fetched(struct fetched *f, struct layout *l, struct batch *b, char *const *texts, const Py_ssize_t *sizes,
                                const uint64_t *v) {
    struct table slabs = {v[4], v[5]}, where = {v[10], v[11]};
    *b = (struct batch){.item = fetched_item, .to_engine = 1, .layout = l, .fetched = f};
    const char *why =
        read_wanted(f, &b->u, l, texts, sizes, (struct table){v[0], v[1]}, (struct table){v[2], v[3]}, (struct table){v[6], v[7]}, (struct table){v[8], v[9]});
    if (why) return why;
    f->slab_count = slabs.bytes / sizeof(struct known_slab);
    if (!fits(slabs, f->slab_count, sizeof(struct known_slab))) return "slabs";
    if (!fits(where, f->count, 8)) return "where";
    if (v[12] - 1 >= MAX_THREADS) return "threads";
    f->slabs = (const struct known_slab *)(uintptr_t)slabs.at;
    f->where = (uint64_t *)(uintptr_t)where.at;
    return NULL;
}

/* Takes ordinary pages off a body from *at on, after page *after of the stream. -1: there is no memory for it. */
static int take_pages(struct fetched *f, struct batch *b, const uint8_t *body, uint64_t size, uint64_t *at, int64_t *after,
                      uint64_t threads) {
    uint64_t left = size - *at, room = left / (8 + REFERENCE_BYTES);
    uint64_t pages = left / (8 + H_FIXED + REFERENCE_BYTES + 8 * f->pieces.count);
    int failed = -1;
    f->chunk_count = f->item_count = 0;
    f->chunks = malloc((room + 1) * sizeof *f->chunks);
    f->items = malloc((pages + 1) * sizeof *f->items);
    f->sums = malloc((pages + 1) * f->pieces.count * 8);
    if (!f->chunks || !f->items || !f->sums) goto done;
    while (*at < size && f->item_count < pages && read_page(f, body, size, at, *after))
        *after = (int64_t)f->items[f->item_count - 1].number;
    b->count = f->item_count;
    atomic_store(&b->next, 0);
    b->stream = f->payload >= STREAM_BYTES || b->count >= (STREAM_BYTES + f->payload - 1) / f->payload;
    b->u.sums = f->sums, b->u.sum_count = f->item_count * f->pieces.count;
    if (b->count && run_threads(b, threads)) goto done;
    failed = 0;
    atomic_thread_fence(memory_order_seq_cst); /* every byte was read before any generation is */
    for (uint64_t i = 0; i < f->item_count; i++)
        for (uint64_t k = 0; k < f->items[i].chunks; k++)
            if (!fresh_chunk(&f->chunks[f->items[i].first + k])) f->status[f->items[i].number] = PAGE_STALE;
done:
    free(f->chunks), free(f->items), free(f->sums);
    return failed;
}

/* Ordinary pages at the start of a batch: see kernels.fetched. */
static PyObject *py_fetched(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    (void)self;
    char *texts[3];
    Py_ssize_t sizes[3];
    uint64_t v[14];
    if (n != 18) return wrong("18 arguments are wanted");
    if (!texts_of(args, 3, texts, sizes)) return NULL;
    int64_t after = PyLong_AsLongLong(args[3]);
    if ((after == -1 && PyErr_Occurred()) || !numbers(args + 4, 14, 14, v)) return NULL;
    struct layout l;
    struct fetched f;
    struct batch b;
    const char *what = read_fetched(&f, &l, &b, texts + 1, sizes + 1, v);
    uint64_t size = (uint64_t)sizes[0], at = v[13];
    if (what || at > size) return wrong(what ? what : "start");
    PyThreadState *state = PyEval_SaveThread();
    int failed = take_pages(&f, &b, (const uint8_t *)texts[0], size, &at, &after, v[12]);
    PyEval_RestoreThread(state);
    if (failed) return PyErr_NoMemory();
    return Py_BuildValue("KLK", (unsigned long long)at, (long long)after, (unsigned long long)f.chunk_count);
}

enum {
    RELEASE = 8, MAX_DESCRIPTORS = 64,
    GO_ON = 0, OVER = 1, CUT_OFF = 2, /* descriptors were lost */
};

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Sends as much as goes without an error: how much. */
static size_t send_all(int fd, const uint8_t *p, size_t n) {
    size_t sent = 0;
    while (sent < n) {
        ssize_t k = send(fd, p + sent, n - sent, MSG_NOSIGNAL);
        if (k <= 0) break;
        sent += (size_t)k;
    }
    return sent;
}

/* A connection while one call of it is under way. */
struct line {
    int fd;
    uint32_t call;
    uint64_t deadline;
    uint8_t *room;
    uint64_t bytes, from, to; /* of the room; what is in it */
    int descriptors[MAX_DESCRIPTORS], descriptor_count, state;
};

/* Receives more. 0: Python is to look, for whatever reason. */
static int receive(struct line *c) {
    if (c->from == c->to) c->from = c->to = 0;
    if (c->to == c->bytes && c->from) {
        memmove(c->room, c->room + c->from, c->to - c->from);
        c->to -= c->from, c->from = 0;
    }
    if (c->to == c->bytes || now_ns() >= c->deadline) return 0;
    union {
        struct cmsghdr align;
        uint8_t room[CMSG_SPACE(MAX_DESCRIPTORS * sizeof(int))];
    } control;
    struct iovec to = {c->room + c->to, c->bytes - c->to};
    struct msghdr m = {.msg_iov = &to, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
#ifdef MSG_CMSG_CLOEXEC
    ssize_t n = recvmsg(c->fd, &m, MSG_CMSG_CLOEXEC);
#else
    ssize_t n = -1; /* no memory is shared on such a system */
#endif
    if (n <= 0) return 0; /* what it is shows when it is tried again */
    c->to += (uint64_t)n;
    if (m.msg_flags & MSG_CTRUNC) c->state = CUT_OFF;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
        size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count && c->descriptor_count < MAX_DESCRIPTORS; i++)
            memcpy(&c->descriptors[c->descriptor_count++], CMSG_DATA(h) + i * sizeof(int), sizeof(int));
    }
    return !c->descriptor_count && c->state == GO_ON;
}

/* See kernels.fetch. */
static PyObject *py_fetch(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    (void)self;
    char *texts[3];
    Py_ssize_t sizes[3];
    uint64_t v[19];
    if (n != 23) return wrong("23 arguments are wanted");
    if (!texts_of(args, 3, texts, sizes)) return NULL;
    int64_t after = PyLong_AsLongLong(args[3]);
    if ((after == -1 && PyErr_Occurred()) || !numbers(args + 4, 19, 19, v)) return NULL;
    struct layout l;
    struct fetched f;
    struct batch b;
    const char *what = read_fetched(&f, &l, &b, texts + 1, sizes + 1, v + 5);
    if (what) return wrong(what);
    if (v[0] > INT32_MAX || v[1] > UINT32_MAX || v[3] < LOW || v[4] < FRAME_BYTES || v[4] > 1 << 30) return wrong("connection");
    struct line c = {.fd = (int)v[0], .call = (uint32_t)v[1], .deadline = v[2], .room = (uint8_t *)(uintptr_t)v[3], .bytes = v[4]};
    uint64_t references = 0, skip = 0;
    int failed = 0, released = 0;
    PyThreadState *state = PyEval_SaveThread();
    size_t sent = send_all(c.fd, (const uint8_t *)texts[0], (size_t)sizes[0]);
    while (sent == (size_t)sizes[0]) {
        const uint8_t *h = c.room + c.from;
        uint64_t have = c.to - c.from, body = have < FRAME_BYTES ? 0 : read32(h + 12);
        if (have < FRAME_BYTES || (have - FRAME_BYTES < body && body <= c.bytes - FRAME_BYTES)) {
            if (!receive(&c)) break;
            continue;
        }
        if (memcmp(h, "QRF1", 4) || read32(h + 8) != c.call || read32(h + 16) || read32(h + 20) || body > c.bytes - FRAME_BYTES) break;
        if (h[4] == STATUS && !h[5] && !body) {
            c.from += FRAME_BYTES, c.state = OVER;
            break;
        }
        if (h[4] != MESSAGE || h[5] != CHUNKS) break;
        int64_t before = after;
        if ((failed = take_pages(&f, &b, h + FRAME_BYTES, body, &skip, &after, v[17]))) break;
        references += f.chunk_count;
        int odd = skip < body || !body;
        for (int64_t i = before + 1; i <= after; i++) odd |= f.status[i] == PAGE_CORRUPT;
        if (odd) break;
        c.from += FRAME_BYTES + body, skip = 0;
    }
    if (c.state == OVER && references && references <= UINT32_MAX && v[18]) {
        uint8_t release[FRAME_BYTES] = {'Q', 'R', 'F', '1', RELEASE};
        uint32_t count = (uint32_t)references;
        memcpy(release + 8, &c.call, 4), memcpy(release + 20, &count, 4);
        released = send_all(c.fd, release, sizeof release) > 0; /* of so few bytes a UNIX socket takes all or nothing */
    }
    PyEval_RestoreThread(state);
    if (failed) return PyErr_NoMemory();
    PyObject *descriptors = PyBytes_FromStringAndSize((const char *)c.descriptors, (Py_ssize_t)(c.descriptor_count * sizeof(int)));
    if (!descriptors) return NULL;
    return Py_BuildValue("KKKLKKiiN", (unsigned long long)sent, (unsigned long long)c.from, (unsigned long long)c.to, (long long)after,
                         (unsigned long long)references, (unsigned long long)skip, c.state, released, descriptors);
}

#endif
