/* Pages on their way to a TCP socket, without Python: each is summed while it is near, and sent from where it lies.
 *
 *     frame: head (made in _publish.h) || bytes of the pages, as they follow each other      one writev each
 */
#ifndef QUIRE_SEND_H
#define QUIRE_SEND_H

#include "_receive.h"

enum { MAX_VECTORS = 512 };

struct frame {
    uint64_t head, start, bytes; /* bytes of its head; of all pages' payload, from where and how much it carries */
};

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

/* Sends all frames with the bytes of their pages, and with the last what `tail` makes when all sums are known. */
static int send_frames(struct sending *s, struct iovec (*tail)(void *), void *of) {
    const uint8_t *head = s->heads;
    for (uint64_t i = 0; i < s->frame_count; i++) {
        const struct frame *f = &s->frames[i];
        struct iovec v[MAX_VECTORS + 1] = {{(void *)(uintptr_t)head, f->head}};
        size_t n = 1;
        head += f->head;
        sum_to(s, f->start + f->bytes);
        for (uint64_t at = f->start, end = f->start + f->bytes; at < end;) {
            uint64_t within = at % s->payload, size = s->payload - within < end - at ? s->payload - within : end - at;
            v[n++] = (struct iovec){(void *)(uintptr_t)(s->pages[at / s->payload] + within), size};
            at += size;
            if (n < MAX_VECTORS && at < end) continue;
            if (at == end && i + 1 == s->frame_count) v[n++] = tail(of);
            int e = give(&s->wire, v, n);
            if (e) return e;
            n = 0;
        }
    }
    return 0;
}

#endif
