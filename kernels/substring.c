/* Finds repeated spans: each window of n bytes is looked up among all windows before it. Windows with equal hashes are
   compared, so there are no false repetitions. */

#include "dedup.h"
#include <sys/mman.h>

#define AHEAD 16 /* windows whose slot is prefetched */

typedef struct {
    uint32_t place; /* where the window starts, plus one; 0: free */
    uint32_t tag;
} Slot;

typedef struct {
    const uint8_t *base;
    Slot *slots;
    uint64_t size;
    int64_t n;
    int text; /* of characters, which are not cut */
    Room hashes, spans, ends; /* ends: where each document that is not empty ends */
    size_t span_count, end_count;
} Windows;

typedef struct {
    int64_t row, start, end;
} Span;

static inline uint64_t slot_of(const Windows *w, uint64_t hash) { return (uint64_t)((__uint128_t)hash * w->size >> 64); }

/* The slot of an earlier equal window, or NULL; then the window is inserted. */
static inline const uint8_t *find_window(Windows *w, const uint8_t *window, uint64_t hash) {
    uint64_t at = slot_of(w, hash);
    uint32_t tag = (uint32_t)hash;
    for (; w->slots[at].place; at = at + 1 == w->size ? 0 : at + 1)
        if (w->slots[at].tag == tag && !memcmp(w->base + w->slots[at].place - 1, window, (size_t)w->n))
            return w->base + w->slots[at].place - 1;
    w->slots[at] = (Slot){(uint32_t)(window - w->base) + 1, tag};
    return NULL;
}

/* The end of the document that a byte belongs to. */
static const uint8_t *document_end(const Windows *w, const uint8_t *byte) {
    const uint32_t *ends = w->ends.memory, place = (uint32_t)(byte - w->base);
    size_t low = 0, high = w->end_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ends[middle] > place)
            high = middle;
        else
            low = middle + 1;
    }
    return w->base + ends[low];
}

static inline int inside(uint8_t c) { return (c & 0xC0) == 0x80; }

/* A span, of text without the parts of characters at its ends. */
static int add_span(Windows *w, int64_t row, Text text, int64_t start, int64_t end) {
    Span *spans = room(&w->spans, (w->span_count + 1) * sizeof *spans);
    if (!spans)
        return -1;
    while (w->text && start < end && inside(text.bytes[start]))
        start++;
    while (w->text && end > start && end < text.size && inside(text.bytes[end]))
        end--;
    if (start < end)
        spans[w->span_count++] = (Span){row, start, end};
    return 0;
}

/* Whether a window was there before. `next` is where it was if the window before it was there, and the text went on the
   same: then a byte is to be compared, and nothing to be looked up. */
static inline int seen(Windows *w, const uint8_t *window, uint64_t hash, const uint8_t **next, const uint8_t **limit) {
    if (*next && *next + w->n <= *limit && (*next)[w->n - 1] == window[w->n - 1]) {
        (*next)++;
        return 1;
    }
    const uint8_t *found = find_window(w, window, hash);
    *next = found ? found + 1 : NULL;
    if (found)
        *limit = document_end(w, found);
    return found != NULL;
}

static int look_through(Windows *w, int64_t row, Text text) {
    int64_t windows = text.size - w->n + 1, start = -1, end = 0;
    const uint8_t *next = NULL, *limit = NULL;
    if (windows < 1)
        return 0;
    uint64_t *hashes = room(&w->hashes, (size_t)windows * 8);
    if (!hashes)
        return -1;
    roll_hashes(text.bytes, windows, w->n, hashes);
    for (int64_t i = 0; i < windows; i++) {
        if (i + AHEAD < windows)
            __builtin_prefetch(w->slots + slot_of(w, hashes[i + AHEAD]));
        if (!seen(w, text.bytes + i, hashes[i], &next, &limit))
            continue;
        if (start >= 0 && i > end) {
            if (add_span(w, row, text, start, end))
                return -1;
            start = -1;
        }
        if (start < 0)
            start = i;
        end = i + w->n;
    }
    return start >= 0 ? add_span(w, row, text, start, end) : 0;
}

/* A table of zeros. A large one is looked up all over, which is twice as fast in large pages. */
static Slot *make_table(uint64_t size) {
#ifdef MADV_HUGEPAGE
    size_t page = (size_t)1 << 21, bytes = ((size_t)size * sizeof(Slot) + page - 1) & ~(page - 1);
    if (bytes > 2 * page) {
        Slot *slots = aligned_alloc(page, bytes);
        if (slots) {
            madvise(slots, bytes, MADV_HUGEPAGE);
            memset(slots, 0, bytes);
        }
        return slots;
    }
#endif
    return calloc((size_t)size, sizeof(Slot));
}

/* Returns -1 without memory, -2 for more text than can be numbered. */
static int find_spans(const Column *texts, Windows *w) {
    int64_t rows = texts->array->length, total = 0;
    uint32_t *ends = room(&w->ends, ((size_t)rows + 1) * sizeof *ends);
    for (int64_t row = 0; ends && row < rows; row++) {
        Text text = column_text(texts, row);
        if (!text.size)
            continue;
        if (!w->base)
            w->base = text.bytes;
        if (text.bytes + text.size - w->base >= (int64_t)UINT32_MAX - 1)
            return -2;
        ends[w->end_count++] = (uint32_t)(text.bytes + text.size - w->base);
        total += text.size >= w->n ? text.size - w->n + 1 : 0;
    }
    w->size = (uint64_t)total + (uint64_t)total / 2 + 16;
    w->slots = ends ? make_table(w->size) : NULL;
    if (!w->slots)
        return -1;
    for (int64_t row = 0; row < rows; row++)
        if (look_through(w, row, column_text(texts, row)))
            return -1;
    return 0;
}

/* repeated_spans(texts, n): row, start and end of each span, 8 bytes each. */
PyObject *repeated_spans(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *object, *result = NULL;
    Py_ssize_t n;
    Column texts;
    if (!PyArg_ParseTuple(args, "On", &object, &n) || column_open(&texts, object))
        return NULL;
    if (!column_is_bytes(&texts) || n < 1)
        PyErr_SetString(PyExc_TypeError, "repeated_spans takes a column of strings or binary, and spans of 1 byte or more");
    else {
        Windows windows = {.n = n, .text = column_is_text(&texts)};
        int failed;
        Py_BEGIN_ALLOW_THREADS;
        failed = find_spans(&texts, &windows);
        Py_END_ALLOW_THREADS;
        if (failed == -2)
            PyErr_SetString(PyExc_OverflowError, "spans are found in less than 4 GiB of text at a time");
        else
            result = failed ? PyErr_NoMemory()
                            : PyBytes_FromStringAndSize(windows.spans.memory, (Py_ssize_t)(windows.span_count * sizeof(Span)));
        free(windows.slots);
        free(windows.hashes.memory);
        free(windows.ends.memory);
        free(windows.spans.memory);
    }
    column_close(&texts);
    return result;
}
