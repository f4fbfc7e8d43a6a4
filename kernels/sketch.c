/* The data of each document that goes through exchanges, in one pass over the texts: the keys of its bands, and the body by
   which documents are compared. */

#include "dedup.h"
#include "minhash.h"
#include "sets.h"

typedef struct {
    uint64_t key;
    int64_t node;
} Entry;

typedef struct {
    Signing signing;
    uint64_t bands, rows, buckets;
    int body; /* the data by which documents are compared */
} Sketching;

enum { NO_BODY, SET_BODY, SIGNATURE_BODY };

#define SIGN ((uint64_t)1 << 63)

typedef struct {
    ShingleRoom shingles;
    SetRoom sorting;
    Room bins, stored, entries, bodies, ends, leasts;
    size_t body_bytes;
    uint64_t documents;
} Sketches;

static void sketches_free(Sketches *made) {
    shingle_room_free(&made->shingles);
    set_room_free(&made->sorting);
    Room *rooms[] = {&made->bins, &made->stored, &made->entries, &made->bodies, &made->ends, &made->leasts};
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++)
        free(rooms[i]->memory);
}

static inline uint64_t bucket_of(uint64_t key, uint64_t buckets) { return (key >> 32) * buckets >> 32; }

/* One byte of each number: enough to compare a pair. */
static int append_signature(const uint64_t *bins, const Sketching *how, Sketches *made) {
    uint8_t *to = room(&made->bodies, made->body_bytes + how->signing.size);
    if (!to)
        return -1;
    for (uint64_t bin = 0; bin < how->signing.size; bin++)
        to[made->body_bytes++] = (uint8_t)(bins[bin] >> 32);
    return 0;
}

static int sketch_one(const uint64_t *shingles, int64_t count, int64_t node, const Sketching *how, Sketches *made) {
    uint64_t *bins = made->bins.memory, document = made->documents++;
    uint8_t *stored = made->stored.memory;
    size_t piece = how->rows * (how->signing.wide ? 8 : 4);
    Entry *entries = room(&made->entries, (document + 1) * how->bands * sizeof *entries);
    int64_t *ends = room(&made->ends, (document + 2) * sizeof *ends);
    uint64_t *leasts = room(&made->leasts, (document + 1) * sizeof *leasts), least = UINT64_MAX;
    if (!entries || !ends || !leasts)
        return -1;
    for (int64_t i = 0; i < count; i++)
        least = shingles[i] < least ? shingles[i] : least;
    leasts[document] = least;
    if (how->bands) {
        sign(shingles, count, bins, bins + how->signing.size, how->signing.size);
        store_signature(bins, &how->signing, stored);
    }
    for (uint64_t band = 0; band < how->bands; band++)
        entries[document * how->bands + band] = (Entry){xxh3(stored + band * piece, piece, band).low, node};
    if (how->body == SET_BODY && set_append(shingles, count, &made->sorting, &made->bodies, &made->body_bytes))
        return -1;
    if (how->body == SIGNATURE_BODY && append_signature(bins, how, made))
        return -1;
    ends[document + 1] = (int64_t)made->body_bytes;
    return 0;
}

static int sketch_all(const Column *texts, const int64_t *nodes, const Sketching *how, Sketches *made, uint8_t *bitmap) {
    if (!room(&made->bins, (how->signing.size + 1) * 24) || !room(&made->stored, (how->signing.size + 1) * 8) ||
        !room(&made->ends, 8))
        return -1;
    *(int64_t *)made->ends.memory = 0;
    for (int64_t row = 0; row < texts->array->length; row++) {
        const uint64_t *shingles;
        int64_t count = shingle(column_text(texts, row), &how->signing.how, &made->shingles, &shingles);
        if (count < 0 || (count > 0 && sketch_one(shingles, count, nodes[row], how, made)))
            return -1;
        if (count > 0)
            bitmap[row >> 3] |= (uint8_t)(1 << (row & 7));
    }
    return 0;
}

/* Entries by bucket, in the order in which they were made, as little-endian numbers; `ends` has where each bucket ends. */
static void share_out(const Sketches *made, const Sketching *how, int64_t *ends, uint8_t *to) {
    const Entry *entries = made->entries.memory;
    uint64_t count = made->documents * how->bands;
    memset(ends, 0, how->buckets * sizeof *ends);
    for (uint64_t i = 0; i < count; i++)
        ends[bucket_of(entries[i].key, how->buckets)]++;
    int64_t sum = 0;
    for (uint64_t bucket = 0; bucket < how->buckets; bucket++) {
        int64_t mine = ends[bucket];
        ends[bucket] = sum;
        sum += mine;
    }
    for (uint64_t i = 0; i < count; i++) {
        uint8_t *place = to + 16 * ends[bucket_of(entries[i].key, how->buckets)]++;
        store8(place, entries[i].key);
        store8(place + 8, (uint64_t)entries[i].node);
    }
}

static PyObject *sketch_column(const Column *texts, const int64_t *nodes, const Sketching *how) {
    Sketches made = {0};
    PyObject *bitmap = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(texts->array->length + 7) / 8), *result = NULL;
    if (!bitmap)
        return NULL;
    memset(PyBytes_AS_STRING(bitmap), 0, (size_t)PyBytes_GET_SIZE(bitmap));
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    failed = sketch_all(texts, nodes, how, &made, (uint8_t *)PyBytes_AS_STRING(bitmap));
    Py_END_ALLOW_THREADS;
    PyObject *entries = NULL, *ends = NULL, *bodies = NULL, *body_ends = NULL, *leasts = NULL;
    if (failed)
        PyErr_NoMemory();
    else {
        entries = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(made.documents * how->bands * 16));
        ends = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)how->buckets * 8);
        bodies = PyBytes_FromStringAndSize(made.body_bytes ? made.bodies.memory : "", (Py_ssize_t)made.body_bytes);
        body_ends = PyBytes_FromStringAndSize(made.ends.memory, (Py_ssize_t)(made.documents + 1) * 8);
        leasts = PyBytes_FromStringAndSize(made.documents ? made.leasts.memory : "", (Py_ssize_t)made.documents * 8);
    }
    if (entries && ends && bodies && body_ends && leasts) {
        share_out(&made, how, (int64_t *)(void *)PyBytes_AS_STRING(ends), (uint8_t *)PyBytes_AS_STRING(entries));
        result = PyTuple_Pack(6, bitmap, entries, ends, body_ends, bodies, leasts);
    }
    Py_XDECREF(entries);
    Py_XDECREF(ends);
    Py_XDECREF(bodies);
    Py_XDECREF(body_ends);
    Py_XDECREF(leasts);
    Py_DECREF(bitmap);
    sketches_free(&made);
    return result;
}

/* sketch(texts, nodes, unit, n, seed, bands, rows, wide, buckets, body) */
PyObject *sketch(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *object, *result = NULL;
    Py_buffer nodes;
    const char *unit;
    int n, bands, rows, buckets;
    unsigned long long seed;
    Sketching how;
    Column texts;
    if (!PyArg_ParseTuple(args, "Oy*siKiipii", &object, &nodes, &unit, &n, &seed, &bands, &rows, &how.signing.wide,
                          &buckets, &how.body))
        return NULL;
    how.bands = (uint64_t)bands, how.rows = (uint64_t)rows, how.buckets = (uint64_t)buckets;
    how.signing.size = how.bands * how.rows;
    if (bands < 0 || rows < 1 || buckets < 1 || (int64_t)bands * rows > 1 << 20)
        PyErr_SetString(PyExc_ValueError, "a sketch has bands of 1 or more rows, and 1 or more buckets");
    else if (!shingling_open(&how.signing.how, unit, n, seed) && !column_open(&texts, object)) {
        if (!column_is_text(&texts) || nodes.len != texts.array->length * 8)
            PyErr_SetString(PyExc_TypeError, "sketch takes a column of strings, and a number of 64 bits for each");
        else
            result = sketch_column(&texts, nodes.buf, &how);
        column_close(&texts);
    }
    PyBuffer_Release(&nodes);
    return result;
}

/* -- pairs of entries ---------------------------------------------------------------------------------- */

typedef struct {
    int64_t left, right;
} Pair;

typedef struct {
    Room seen, entries, pairs;
    size_t count;
} Buckets;

static int in_order(const void *a, const void *b) {
    const Entry *x = a, *y = b;
    return x->key != y->key ? (x->key > y->key) - (x->key < y->key) : (x->node > y->node) - (x->node < y->node);
}

/* Entries whose key may occur more than once: most keys do not, and need not be sorted. */
static int64_t not_alone(const uint8_t *data, size_t count, Buckets *found) {
    size_t size = 64;
    while (size < 4 * count)
        size *= 2;
    uint8_t *seen = room(&found->seen, size);
    Entry *entries = room(&found->entries, count * sizeof *entries);
    if (!seen || !entries)
        return -1;
    memset(seen, 0, size);
    for (size_t i = 0; i < count; i++) {
        uint8_t *times = seen + (little8(data + 16 * i) & (size - 1));
        *times = (uint8_t)(*times + (*times < 2));
    }
    int64_t left = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t key = little8(data + 16 * i);
        entries[left] = (Entry){key, (int64_t)little8(data + 16 * i + 8)};
        left += seen[key & (size - 1)] > 1;
    }
    return left;
}

/* Pairs of the `size` different nodes of a key. */
/* Of many entries with one key each is paired with the first of its circle, and that with the first of all: what is
   known of a text goes to all that it is paired with, so these must not be too many. lsh.py has the same number. */
enum { CIRCLE = 256 };

static int pair_up(const Entry *entries, size_t size, size_t all_up_to, Buckets *found) {
    size_t more = size <= all_up_to ? size * (size - 1) / 2 : 2 * size;
    Pair *pairs = room(&found->pairs, (found->count + more) * sizeof *pairs);
    if (!pairs)
        return -1;
    for (size_t i = 0; i < size; i++) {
        if (size > all_up_to) {
            size_t hub = i % CIRCLE ? i - i % CIRCLE : 0;
            if (i > 0)
                pairs[found->count++] = (Pair){entries[hub].node, entries[i].node};
            if (i > hub + 1)
                pairs[found->count++] = (Pair){entries[i - 1].node, entries[i].node};
        } else
            for (size_t j = i + 1; j < size; j++)
                pairs[found->count++] = (Pair){entries[i].node, entries[j].node};
    }
    return 0;
}

static int pair_all(const uint8_t *data, size_t count, size_t all_up_to, Buckets *found) {
    int64_t left = not_alone(data, count, found);
    if (left < 0)
        return -1;
    Entry *entries = found->entries.memory;
    qsort(entries, (size_t)left, sizeof *entries, in_order);
    size_t kept = 0;
    for (size_t i = 0; i < (size_t)left; i++)
        if (!kept || in_order(entries + kept - 1, entries + i))
            entries[kept++] = entries[i];
    for (size_t start = 0, end; start < kept; start = end) {
        for (end = start + 1; end < kept && entries[end].key == entries[start].key;)
            end++;
        if (pair_up(entries + start, end - start, all_up_to, found))
            return -1;
    }
    return 0;
}

/* entry_pairs(entries, all_up_to): pairs of the nodes that have a key in common, 16 bytes each, by key. */
PyObject *entry_pairs(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer data;
    Py_ssize_t all_up_to;
    PyObject *result = NULL;
    Buckets found = {0};
    int failed;
    if (!PyArg_ParseTuple(args, "y*n", &data, &all_up_to))
        return NULL;
    if (data.len % 16 || all_up_to < 1)
        PyErr_SetString(PyExc_ValueError, "entry_pairs takes entries of 16 bytes, and how many of a key are all paired");
    else {
        Py_BEGIN_ALLOW_THREADS;
        failed = pair_all(data.buf, (size_t)data.len / 16, (size_t)all_up_to, &found);
        Py_END_ALLOW_THREADS;
        result = failed ? PyErr_NoMemory()
                        : PyBytes_FromStringAndSize(found.count ? found.pairs.memory : "", (Py_ssize_t)(found.count * 16));
    }
    free(found.seen.memory);
    free(found.entries.memory);
    free(found.pairs.memory);
    PyBuffer_Release(&data);
    return result;
}

/* -- pairs once each ----------------------------------------------------------------------------------- */

static int by_numbers(const void *a, const void *b) {
    const Pair *x = a, *y = b;
    return x->left != y->left ? (x->left > y->left) - (x->left < y->left) : (x->right > y->right) - (x->right < y->right);
}

static void sort_few(Pair *pairs, size_t count) {
    for (size_t i = 1; i < count; i++) {
        Pair pair = pairs[i];
        size_t at = i;
        for (; at && by_numbers(pairs + at - 1, &pair) > 0; at--)
            pairs[at] = pairs[at - 1];
        pairs[at] = pair;
    }
}

/* Numbers of texts are spread evenly, so that sharing pairs out by the upper bits of the first all but sorts them. Returns
   how many different ones there are, or -1 without memory. */
static int64_t distinct(const Pair *pairs, size_t count, Pair *to) {
    int bits = 1;
    while ((size_t)1 << bits < count && bits < 24)
        bits++;
    size_t slots = (size_t)1 << bits, kept = 0;
    size_t *ends = calloc(slots + 1, sizeof *ends);
    if (!ends)
        return -1;
    for (size_t i = 0; i < count; i++)
        ends[((uint64_t)pairs[i].left ^ SIGN) >> (64 - bits)]++;
    for (size_t slot = 0, sum = 0; slot < slots; slot++) {
        size_t mine = ends[slot];
        ends[slot] = sum;
        sum += mine;
    }
    for (size_t i = 0; i < count; i++)
        to[ends[((uint64_t)pairs[i].left ^ SIGN) >> (64 - bits)]++] = pairs[i];
    for (size_t slot = 0, start = 0; slot < slots; start = ends[slot++]) {
        size_t size = ends[slot] - start;
        if (size > 24)
            qsort(to + start, size, sizeof *to, by_numbers);
        else
            sort_few(to + start, size);
        for (size_t i = start; i < ends[slot]; i++)
            if (!kept || by_numbers(to + kept - 1, to + i))
                to[kept++] = to[i];
    }
    free(ends);
    return (int64_t)kept;
}

/* distinct_pairs(pairs): pairs of 64-bit numbers in order, each once. */
PyObject *distinct_pairs(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer data;
    PyObject *result = NULL;
    int64_t kept;
    if (!PyArg_ParseTuple(args, "y*", &data))
        return NULL;
    if (data.len % (Py_ssize_t)sizeof(Pair))
        PyErr_SetString(PyExc_ValueError, "distinct_pairs takes pairs of 16 bytes");
    else if ((result = PyBytes_FromStringAndSize(NULL, data.len))) {
        Py_BEGIN_ALLOW_THREADS;
        kept = distinct(data.buf, (size_t)data.len / sizeof(Pair), (Pair *)(void *)PyBytes_AS_STRING(result));
        Py_END_ALLOW_THREADS;
        if (kept < 0) {
            Py_CLEAR(result);
            PyErr_NoMemory();
        } else
            _PyBytes_Resize(&result, (Py_ssize_t)kept * (Py_ssize_t)sizeof(Pair));
    }
    PyBuffer_Release(&data);
    return result;
}
