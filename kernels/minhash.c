/* MinHash signatures. Each bin of a signature holds the smallest value of the shingles that fall into it. In a round, each
   shingle falls into one bin, and only bins that earlier rounds left empty take a value; so a long document needs one
   hash per shingle, and a short one a few rounds. For each bin, the probability that two documents have the same value is
   their Jaccard similarity, because the value is a minimum over the same random order of all shingles. */

#include "dedup.h"
#include "minhash.h"

#define FREE UINT64_MAX

static inline uint64_t turn(uint64_t hash) { return hash << 32 | hash >> 32; }

static void first_round(const uint64_t *shingles, int64_t count, uint64_t *bins, uint64_t size) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t hash = scramble(shingles[i]), bin = (hash >> 32) * size >> 32, value = turn(hash);
        uint64_t least = bins[bin];
        bins[bin] = value < least ? value : least; /* branchless: the branch would be mispredicted too often */
    }
}

/* `taken` is all ones for bins that were filled before this round. */
static void next_round(const uint64_t *shingles, int64_t count, uint64_t *bins, const uint64_t *taken, uint64_t size,
                       uint64_t round) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t hash = scramble(shingles[i] + round * GOLDEN), bin = (hash >> 32) * size >> 32;
        uint64_t value = turn(hash) | taken[bin];
        uint64_t least = bins[bin];
        bins[bin] = value < least ? value : least; /* branchless: the branch would be mispredicted too often */
    }
}

/* A round for a single bin: otherwise small documents would need many rounds for the last bins. */
static uint64_t fill(const uint64_t *shingles, int64_t count, uint64_t round) {
    uint64_t least = FREE;
    for (int64_t i = 0; i < count; i++) {
        uint64_t value = turn(scramble(shingles[i] + round * GOLDEN));
        if (value < least)
            least = value;
    }
    return least;
}

/* The same, when nearly all bins are taken. */
static void late_round(const uint64_t *shingles, int64_t count, uint64_t *bins, const uint64_t *taken, uint64_t size,
                       uint64_t round) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t hash = scramble(shingles[i] + round * GOLDEN), bin = (hash >> 32) * size >> 32;
        if (!taken[bin] && turn(hash) < bins[bin])
            bins[bin] = turn(hash);
    }
}

void sign(const uint64_t *shingles, int64_t count, uint64_t *bins, uint64_t *rooms, uint64_t size) {
    uint64_t *taken = rooms, *waiting = rooms + size, left = 0;
    for (uint64_t bin = 0; bin < size; bin++)
        bins[bin] = FREE;
    first_round(shingles, count, bins, size);
    for (uint64_t bin = 0; bin < size; bin++) {
        taken[bin] = bins[bin] == FREE ? 0 : FREE;
        waiting[left] = bin;
        left += bins[bin] == FREE;
    }
    for (uint64_t round = 1; left && round < size; round++) {
        if (left > size / 16)
            next_round(shingles, count, bins, taken, size, round);
        else
            late_round(shingles, count, bins, taken, size, round);
        uint64_t still = 0;
        for (uint64_t i = 0; i < left; i++) {
            uint64_t bin = waiting[i];
            taken[bin] = bins[bin] == FREE ? 0 : FREE;
            waiting[still] = bin;
            still += bins[bin] == FREE;
        }
        left = still;
    }
    for (uint64_t i = 0; i < left; i++)
        bins[waiting[i]] = fill(shingles, count, size + waiting[i]);
}

void store_signature(const uint64_t *bins, const Signing *signing, uint8_t *to) {
    if (signing->wide)
        memcpy(to, bins, signing->size * 8);
    else
        for (uint64_t bin = 0; bin < signing->size; bin++, to += 4) {
            uint32_t half = (uint32_t)(bins[bin] >> 32);
            memcpy(to, &half, 4);
        }
}

static int sign_all(const Column *texts, const Signing *signing, uint8_t *signatures, uint8_t *bitmap) {
    ShingleRoom rooms = {0};
    Room bin_room = {0};
    size_t width = signing->size * (signing->wide ? 8 : 4);
    uint64_t *bins = room(&bin_room, signing->size * 24);
    int failed = !bins;
    for (int64_t row = 0; row < texts->array->length && !failed; row++, signatures += width) {
        const uint64_t *shingles;
        int64_t count = shingle(column_text(texts, row), &signing->how, &rooms, &shingles);
        failed = count < 0;
        if (count > 0) {
            sign(shingles, count, bins, bins + signing->size, signing->size);
            store_signature(bins, signing, signatures);
            bitmap[row >> 3] |= (uint8_t)(1 << (row & 7));
        } else
            memset(signatures, 0, width);
    }
    free(bin_room.memory);
    shingle_room_free(&rooms);
    return failed;
}

static PyObject *sign_column(const Column *texts, const Signing *signing) {
    Py_ssize_t rows = (Py_ssize_t)texts->array->length, width = (Py_ssize_t)signing->size * (signing->wide ? 8 : 4);
    PyObject *signatures = PyBytes_FromStringAndSize(NULL, rows * width), *result = NULL;
    PyObject *bitmap = PyBytes_FromStringAndSize(NULL, (rows + 7) / 8);
    if (signatures && bitmap) {
        int failed;
        memset(PyBytes_AS_STRING(bitmap), 0, (size_t)PyBytes_GET_SIZE(bitmap));
        Py_BEGIN_ALLOW_THREADS;
        failed = sign_all(texts, signing, (uint8_t *)PyBytes_AS_STRING(signatures), (uint8_t *)PyBytes_AS_STRING(bitmap));
        Py_END_ALLOW_THREADS;
        result = failed ? PyErr_NoMemory() : PyTuple_Pack(2, signatures, bitmap);
    }
    Py_XDECREF(signatures);
    Py_XDECREF(bitmap);
    return result;
}

/* minhash(texts, unit, n, seed, size, wide) */
PyObject *minhash(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *object, *result = NULL;
    const char *unit;
    int n, size;
    unsigned long long seed;
    Signing signing;
    Column texts;
    if (!PyArg_ParseTuple(args, "OsiKip", &object, &unit, &n, &seed, &size, &signing.wide) ||
        shingling_open(&signing.how, unit, n, seed))
        return NULL;
    if (size < 1 || size > 1 << 20)
        return PyErr_Format(PyExc_ValueError, "a signature has from 1 to %d numbers", 1 << 20);
    signing.size = (uint64_t)size;
    if (column_open(&texts, object))
        return NULL;
    if (!column_is_text(&texts))
        PyErr_Format(PyExc_TypeError, "minhash takes a column of strings, not of Arrow format '%s'", texts.format);
    else
        result = sign_column(&texts, &signing);
    column_close(&texts);
    return result;
}
