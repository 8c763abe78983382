/* Ordinary pages of a Fetch off a TCP socket, without Python: frames read, headers held against what was asked for, bytes
 * received to where they belong and summed there while they are near.
 *
 *     frame: header | entry: header, first chunk | entry: chunk, trailer OK | ... || bytes || ...    a page may go over several
 *
 * What is not exactly that is left to quire_kv/frame_transport.py and intake.py, from the frame or the entry on where it begins,
 * with how far the page at hand has come. Formats: docs/formats/frames.md, extent-header.md.
 */
#ifndef QUIRE_RECEIVE_H
#define QUIRE_RECEIVE_H

#include <errno.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>

#include "_pages.h"

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* such a system has a signal for each socket that broke, and Python ignores it */
#endif

enum {
    RUN_BYTES = 256 << 10,  /* received at once: still in the near cache when it is summed */
    NEAR_BYTES = 8 << 10,   /* read ahead of what is needed: the entries of a frame, and little of what has a place of its own */
    FRAME_BYTES = 24, MAX_NEAR_BODY = 1 << 20, MAX_NEAR_CHUNK = 1 << 20, MESSAGE = 4, STATUS = 7, CHUNKS = 2,
    LEFT_FRAME = 0, LEFT_ENTRY = 1, LEFT_ERROR = 2, LEFT_NOTHING = 3, ENDED = -1, RAISED = -2, OVERDUE = -3,
};
static const double TIMER_SLACK = 0.005; /* seconds by which a wait may miss a deadline rather than set its timer again */

/* A socket that blocks, with timers that are set again when they would miss the call's deadline. */
struct wire {
    int fd, option;  /* SO_RCVTIMEO or SO_SNDTIMEO */
    double *armed;   /* seconds of that timer */
    double deadline; /* of the monotonic clock, seconds */
    PyThreadState *released;
};

/* Before a wait: 0, or OVERDUE when there is no time left. */
static int arm(struct wire *w) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    double left = w->deadline - ((double)t.tv_sec + (double)t.tv_nsec * 1e-9);
    if (!(left > 0)) return OVERDUE;
    if (left <= *w->armed && *w->armed <= left + TIMER_SLACK) return 0;
    struct timeval v = {.tv_sec = (time_t)left, .tv_usec = (suseconds_t)((left - (double)(time_t)left) * 1e6)};
    if (!v.tv_sec && !v.tv_usec) v.tv_usec = 1;
    if (setsockopt(w->fd, SOL_SOCKET, w->option, &v, sizeof v)) return errno;
    *w->armed = left;
    return 0;
}

/* After a signal: runs Python's handlers. 0, or RAISED. */
static int after_signal(struct wire *w) {
    PyEval_RestoreThread(w->released);
    int raised = PyErr_CheckSignals();
    w->released = PyEval_SaveThread();
    return raised ? RAISED : 0;
}

/* Receives 1 to n bytes, n unless a signal came with MSG_WAITALL. 0, an errno, ENDED, RAISED or OVERDUE. */
static int take(struct wire *w, uint8_t *to, size_t n, int flags, size_t *got) {
    for (;;) {
        int e = arm(w);
        if (e) return e;
        ssize_t k = recv(w->fd, to, n, flags);
        if (k == 0) return ENDED;
        if (k > 0) {
            *got = (size_t)k;
            return flags && (size_t)k < n ? after_signal(w) : 0;
        }
        if (errno == EINTR) {
            if ((e = after_signal(w))) return e;
        } else if (errno != EAGAIN && errno != EWOULDBLOCK)
            return errno;
    }
}

/* Sends all of the vectors, which it changes. 0, an errno, RAISED or OVERDUE. */
static int give(struct wire *w, struct iovec *v, size_t n) {
    while (n) {
        int e = arm(w);
        if (e) return e;
        struct msghdr m = {.msg_iov = v, .msg_iovlen = n};
        ssize_t k = sendmsg(w->fd, &m, MSG_NOSIGNAL);
        if (k < 0) {
            if (errno == EINTR) {
                if ((e = after_signal(w))) return e;
            } else if (errno != EAGAIN && errno != EWOULDBLOCK)
                return errno;
            continue;
        }
        for (size_t left = (size_t)k; n && left >= v->iov_len; v++, n--) left -= v->iov_len, k = (ssize_t)left;
        if (n) v->iov_base = (char *)v->iov_base + k, v->iov_len -= (size_t)k;
    }
    return 0;
}

struct reception {
    struct wire wire;
    uint8_t *ahead; /* read and not used: from, to */
    uint64_t from, to, room;
    uint32_t call;
    struct fetched f;
    struct unpack u;
    struct walk *walk;
    uint8_t *scratch; /* RUN_BYTES, for memory in another order; NULL: not made yet */
    int64_t page;     /* the last that began */
    uint64_t got;     /* of its bytes, while it is not whole */
    int corrupt;
    uint8_t *header, *body; /* copies */
    uint64_t header_bytes, header_room, body_room;
    const uint8_t *rest; /* entries that are left, and the bytes of data that are theirs */
    uint64_t rest_bytes, data;
};

static int grow(uint8_t **p, uint64_t *room, uint64_t want) {
    if (want <= *room) return 0;
    free(*p);
    *p = malloc(want);
    *room = *p ? want : 0;
    return *p ? 0 : ENOMEM;
}

/* Has n bytes read ahead, n within room. */
static int need(struct reception *r, uint64_t n) {
    if (r->from == r->to) r->from = r->to = 0;
    if (r->from + n > r->room) {
        memmove(r->ahead, r->ahead + r->from, r->to - r->from);
        r->to -= r->from, r->from = 0;
    }
    while (r->to - r->from < n) {
        uint64_t want = n - (r->to - r->from), most = r->room - r->to;
        size_t got = 0;
        if (want < NEAR_BYTES) want = NEAR_BYTES;
        int e = take(&r->wire, r->ahead + r->to, want < most ? want : most, 0, &got);
        r->to += got;
        if (e) return e;
    }
    return 0;
}

/* Fills n bytes with what comes next. */
static int fill(struct reception *r, uint8_t *to, uint64_t n) {
    uint64_t have = r->to - r->from < n ? r->to - r->from : n;
    memcpy(to, r->ahead + r->from, have);
    r->from += have;
    for (uint64_t at = have; at < n;) {
        size_t got = 0;
        int e = take(&r->wire, to + at, n - at, MSG_WAITALL, &got);
        at += got;
        if (e) return e;
    }
    return 0;
}

/* Receives a chunk of the page at hand, whole pieces, and sums it where it is then. */
static int fill_chunk(struct reception *r, uint64_t size) {
    const struct layout *l = r->f.layout;
    const struct pieces *p = &r->f.pieces;
    uint64_t page = (uint64_t)r->f.index[r->page];
    uint8_t *place = in_one_run(l, r->u.addresses + page * l->components * l->layers);
    if (!place && !r->scratch) {
        uint8_t *room = malloc(RUN_BYTES + sizeof(struct walk));
        if (!room) return ENOMEM;
        r->scratch = room, r->walk = (struct walk *)(room + RUN_BYTES);
        *r->walk = (struct walk){.layout = l, .to_engine = 1};
    }
    for (uint64_t end = r->got + size; r->got < end;) {
        uint64_t at = r->got, run = 0;
        for (uint64_t next = at; next < end; run = next - at) {
            uint64_t within = next % p->unit, n = p->unit - within < p->bytes ? p->unit - within : p->bytes;
            if (run && run + n > RUN_BYTES) break;
            next += n;
        }
        uint8_t *to = place ? place + at : r->scratch;
        int e = fill(r, to, run);
        if (e) return e;
        r->got += run;
        if (r->corrupt) continue; /* the rest of the chunk is read, and not looked at */
        if (!place) {
            struct job j = {.src = (uintptr_t)to, .offset = at, .bytes = run, .page = (uint32_t)page, .flags = PRIVATE};
            j.eh1 = (uint16_t)l->heads, j.el1 = (uint16_t)l->layers;
            r->corrupt = run_job(r->walk, &r->u, &j, NULL) != OK;
            continue;
        }
        for (uint64_t done = 0; done < run && !r->corrupt;) {
            uint64_t within = (at + done) % p->unit, n = p->unit - within < p->bytes ? p->unit - within : p->bytes;
            uint64_t number = (at + done) / p->unit * p->per_unit + within / p->bytes;
            r->corrupt = hash(to + done, n) != r->f.sums[number];
            done += n;
        }
    }
    return 0;
}

/* Whether size bytes from the page's byte `at` on are whole pieces. */
static int whole_pieces(const struct reception *r, uint64_t at, uint64_t size) {
    const struct pieces *p = &r->f.pieces;
    uint64_t end = at + size;
    return at % p->unit % p->bytes == 0 && (end % p->unit % p->bytes == 0 || end % p->unit == 0);
}

/* The chunks of one frame. 0: all of them; LEFT_ENTRY: from `rest` on they are for others; else as take. */
static int receive_batch(struct reception *r, const uint8_t *p, uint64_t bytes, int *e) {
    const uint8_t *end = p + bytes, *sums;
    while (p < end) {
        r->rest = p, r->rest_bytes = (uint64_t)(end - p);
        struct head h;
        if (end - p < 8) return LEFT_ENTRY;
        uint32_t n = read32(p), size = read32(p + 4);
        if (n & BY_REFERENCE || !size || size > MAX_NEAR_CHUNK || size > r->data || n > (uint64_t)(end - p - 8)) return LEFT_ENTRY;
        p += 8;
        if (!read_head(p, p + n, &h) || h.extent || h.offset != r->got) return LEFT_ENTRY;
        p += n;
        if (!whole_pieces(r, r->got, size) || size > r->f.payload - r->got || h.trailer != (r->got + size == r->f.payload)) return LEFT_ENTRY;
        if (r->got) {
            if ((int64_t)h.page != r->page || h.header) return LEFT_ENTRY;
        } else {
            if ((int64_t)h.page <= r->page || h.page >= r->f.count || !h.header || r->f.status[h.page]) return LEFT_ENTRY;
            if (!sound_header(&r->f, h.header, h.header_bytes, r->f.hashes + h.page * r->f.hash_bytes, &sums)) return LEFT_ENTRY;
            if ((*e = grow(&r->header, &r->header_room, h.header_bytes))) return LEFT_ERROR;
            memcpy(r->header, h.header, r->header_bytes = h.header_bytes);
            memcpy(r->f.sums, sums, 8 * r->f.pieces.count);
            r->page = (int64_t)h.page;
        }
        r->data -= size;
        if ((*e = fill_chunk(r, size))) return LEFT_ERROR;
        r->rest = p, r->rest_bytes = (uint64_t)(end - p);
        if (r->corrupt || h.trailer) {
            r->f.status[r->page] = r->corrupt ? PAGE_CORRUPT : PAGE_OK;
            r->got = 0;
            if (r->corrupt) return LEFT_ENTRY;
        }
    }
    return r->data ? LEFT_ENTRY : LEFT_FRAME;
}

/* Frames, up to one that is left: LEFT_FRAME and nothing of it is taken, LEFT_ENTRY, LEFT_NOTHING behind the good end of the
 * stream, or LEFT_ERROR and *e. */
static int receive_frames(struct reception *r, int *e) {
    for (;;) {
        if ((*e = need(r, FRAME_BYTES))) return LEFT_ERROR;
        const uint8_t *h = r->ahead + r->from;
        uint64_t body = read32(h + 12), data = read32(h + 16);
        if (!memcmp(h, "QRF1\7\0", 6) && read32(h + 8) == r->call && !body && !data && !read32(h + 20)) {
            r->from += FRAME_BYTES;
            return LEFT_NOTHING;
        }
        if (memcmp(h, "QRF1", 4) || h[4] != MESSAGE || h[5] != CHUNKS || read32(h + 8) != r->call || !body || body > MAX_NEAR_BODY || !data ||
            data > MAX_CHUNK)
            return LEFT_FRAME;
        r->from += FRAME_BYTES;
        if ((*e = grow(&r->body, &r->body_room, body)) || (*e = fill(r, r->body, body))) return LEFT_ERROR;
        r->data = data;
        int left = receive_batch(r, r->body, body, e);
        if (left != LEFT_FRAME) return left;
    }
}

/* See kernels.receive. */
static PyObject *py_receive(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    (void)self;
    char *texts[3];
    Py_ssize_t sizes[3];
    uint64_t v[15];
    if (n != 20) return wrong("20 arguments are wanted");
    if (!texts_of(args, 3, texts, sizes)) return NULL;
    double deadline = PyFloat_AsDouble(args[3]);
    if (deadline == -1 && PyErr_Occurred()) return NULL;
    int64_t after = PyLong_AsLongLong(args[4]);
    if ((after == -1 && PyErr_Occurred()) || !numbers(args + 5, 15, 15, v)) return NULL;
    struct layout l;
    struct reception r = {.ahead = (uint8_t *)(uintptr_t)v[2], .room = v[3], .from = v[4], .to = v[5], .call = (uint32_t)v[6], .page = after};
    r.wire = (struct wire){.fd = (int)v[0], .option = SO_RCVTIMEO, .armed = (double *)(uintptr_t)v[1], .deadline = deadline};
    const char *why = read_wanted(&r.f, &r.u, &l, texts, sizes, (struct table){v[7], v[8]}, (struct table){v[9], v[10]},
                                  (struct table){v[11], v[12]}, (struct table){v[13], v[14]});
    if (why) return wrong(why);
    if (v[0] > INT_MAX || v[1] < LOW || v[1] % 8 || v[2] < LOW || r.room < FRAME_BYTES || r.from > r.to || r.to > r.room)
        return wrong("socket or what was read ahead");
    if (!(r.f.sums = malloc(r.f.pieces.count * 8))) return PyErr_NoMemory();
    r.u.sums = r.f.sums, r.u.sum_count = r.f.pieces.count;
    struct wire asking = r.wire;
    struct iovec request = {texts[2], (size_t)sizes[2]};
    asking.option = SO_SNDTIMEO, asking.armed++;
    asking.released = PyEval_SaveThread();
    int error = sizes[2] ? give(&asking, &request, 1) : 0, left = LEFT_ERROR;
    r.wire.released = asking.released;
    if (!error) left = receive_frames(&r, &error);
    PyEval_RestoreThread(r.wire.released);
    PyObject *result = NULL;
    if (error == ENOMEM)
        PyErr_NoMemory();
    else if (error != RAISED) {
        int known = r.got || r.corrupt; /* who answers for the page needs its header */
        PyObject *header = PyBytes_FromStringAndSize((const char *)r.header, known ? (Py_ssize_t)r.header_bytes : 0);
        PyObject *rest = PyBytes_FromStringAndSize((const char *)r.rest, left == LEFT_ENTRY ? (Py_ssize_t)r.rest_bytes : 0);
        if (header && rest)
            result = Py_BuildValue("iKKLKNNKi", left, (unsigned long long)r.from, (unsigned long long)r.to, (long long)r.page,
                                   (unsigned long long)r.got, header, rest, (unsigned long long)r.data, error);
        else
            Py_XDECREF(header), Py_XDECREF(rest);
    }
    free(r.header), free(r.body), free(r.scratch), free(r.f.sums);
    return result;
}

#endif
