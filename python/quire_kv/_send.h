/* Pages on their way to a TCP socket, without Python: each is summed while it is near, and sent from where it lies.
 *
 *     frame: head (made by quire_kv/frame_transport.py) || bytes of the pages, as they follow each other      one writev each
 */
#ifndef QUIRE_SEND_H
#define QUIRE_SEND_H

#include <sys/uio.h>

#include "_receive.h"

enum { MAX_VECTORS = 512 };

struct frame { /* FRAME of kernels.py */
    uint64_t head, start, bytes; /* bytes of its head; of all pages' payload, from where and how much it carries */
};

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

struct sending {
    struct wire wire;
    const uint8_t *heads;
    const struct frame *frames;
    uint64_t frame_count, page_count, payload;
    const uint64_t *pages; /* addresses */
    struct pieces pieces;
    uint64_t *sums;
    uint64_t summed; /* pieces */
    uint64_t summed_bytes;
};

/* Sums pieces up to one that ends at byte `end` of all payload or behind it. */
static void sum_to(struct sending *s, uint64_t end) {
    const struct pieces *p = &s->pieces;
    while (s->summed_bytes < end) {
        uint64_t page = s->summed_bytes / s->payload, at = s->summed_bytes % s->payload, within = at % p->unit;
        uint64_t n = p->unit - within < p->bytes ? p->unit - within : p->bytes;
        s->sums[s->summed++] = hash((const uint8_t *)(uintptr_t)(s->pages[page] + at), n);
        s->summed_bytes += n;
    }
}

static int send_frames(struct sending *s) {
    const uint8_t *head = s->heads;
    for (uint64_t i = 0; i < s->frame_count; i++) {
        const struct frame *f = &s->frames[i];
        struct iovec v[MAX_VECTORS] = {{(void *)(uintptr_t)head, f->head}};
        size_t n = 1;
        head += f->head;
        sum_to(s, f->start + f->bytes);
        for (uint64_t at = f->start, end = f->start + f->bytes; at < end;) {
            uint64_t within = at % s->payload, size = s->payload - within < end - at ? s->payload - within : end - at;
            v[n++] = (struct iovec){(void *)(uintptr_t)(s->pages[at / s->payload] + within), size};
            at += size;
            if (n < MAX_VECTORS && at < end) continue;
            int e = give(&s->wire, v, n);
            if (e) return e;
            n = 0;
        }
    }
    return 0;
}

/* See kernels.send. */
static PyObject *py_send(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    (void)self;
    char *heads;
    Py_ssize_t size;
    uint64_t v[11];
    if (n != 13) return wrong("13 arguments are wanted");
    if (PyBytes_AsStringAndSize(args[0], &heads, &size)) return NULL;
    double deadline = PyFloat_AsDouble(args[1]);
    if ((deadline == -1 && PyErr_Occurred()) || !numbers(args + 2, 11, 11, v)) return NULL;
    struct table frames = {v[2], v[3]}, pages = {v[4], v[5]}, sums = {v[9], v[10]};
    if (v[0] > INT_MAX || v[1] < LOW || v[1] % 8) return wrong("socket");
    if (v[6] - 1 >= MAX_DIM || v[7] - 1 >= MAX_DIM || v[8] - 1 >= MAX_PAGE / (v[6] * v[7])) return wrong("view");
    struct sending s = {.heads = (const uint8_t *)heads, .frame_count = frames.bytes / sizeof(struct frame), .page_count = pages.bytes / 8};
    s.wire = (struct wire){.fd = (int)v[0], .option = SO_SNDTIMEO, .armed = (double *)(uintptr_t)v[1], .deadline = deadline};
    s.pieces = pieces_of(v[6], v[7], v[8]), s.payload = v[6] * v[7] * v[8];
    s.frames = (const struct frame *)(uintptr_t)frames.at, s.pages = (const uint64_t *)(uintptr_t)pages.at, s.sums = (uint64_t *)(uintptr_t)sums.at;
    if (!fits(frames, s.frame_count, sizeof(struct frame))) return wrong("frames");
    if (!fits(pages, s.page_count, 8) || s.page_count > (UINT64_MAX >> 1) / s.payload) return wrong("pages");
    if (s.pieces.count > (UINT64_MAX >> 4) / (s.page_count + 1) || !fits(sums, s.page_count * s.pieces.count, 8)) return wrong("sums");
    for (uint64_t i = 0; i < s.page_count; i++)
        if (s.pages[i] < LOW || s.pages[i] > UINT64_MAX - MAX_PAGE) return wrong("address");
    uint64_t left = (uint64_t)size, at = 0;
    for (uint64_t i = 0; i < s.frame_count; i++) {
        const struct frame *f = &s.frames[i];
        if (!f->head || f->head > left || f->start != at || !f->bytes || f->bytes > s.page_count * s.payload - at) return wrong("frames");
        left -= f->head, at += f->bytes;
    }
    if (left || at != s.page_count * s.payload) return wrong("frames");
    s.wire.released = PyEval_SaveThread();
    int e = send_frames(&s);
    PyEval_RestoreThread(s.wire.released);
    return e == RAISED ? NULL : PyLong_FromLong(e);
}

#endif
