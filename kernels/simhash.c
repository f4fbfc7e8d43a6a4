/* SimHash: each bit of the hash is the majority of that bit over the shingles of a document. */

#include "dedup.h"
#include "shingles.h"

/* Adds the bits of up to 255 shingles, in lanes of a byte each, before they are added to the counts. */
static void vote(const uint64_t *shingles, int64_t count, int64_t *votes) {
    memset(votes, 0, 64 * sizeof *votes);
    for (int64_t start = 0; start < count; start += 255) {
        int64_t end = start + 255 < count ? start + 255 : count;
        uint64_t lanes[8] = {0};
        for (int64_t i = start; i < end; i++) {
            uint64_t hash = scramble(shingles[i]);
            for (int shift = 0; shift < 8; shift++)
                lanes[shift] += hash >> shift & 0x0101010101010101u;
        }
        for (int bit = 0; bit < 64; bit++)
            votes[bit] += lanes[bit & 7] >> (bit & 56) & 0xFF;
    }
}

static uint64_t elect(const int64_t *votes, int64_t count) {
    uint64_t hash = 0;
    for (int bit = 0; bit < 64; bit++)
        if (2 * votes[bit] > count)
            hash |= (uint64_t)1 << bit;
    return hash;
}

static int simhash_all(const Column *texts, const Shingling *how, uint64_t *found, uint8_t *bitmap) {
    ShingleRoom rooms = {0};
    int failed = 0;
    for (int64_t row = 0; row < texts->array->length && !failed; row++) {
        const uint64_t *shingles;
        int64_t votes[64], count = shingle(column_text(texts, row), how, &rooms, &shingles);
        failed = count < 0;
        found[row] = 0;
        if (count > 0) {
            vote(shingles, count, votes);
            found[row] = elect(votes, count);
            bitmap[row >> 3] |= (uint8_t)(1 << (row & 7));
        }
    }
    shingle_room_free(&rooms);
    return failed;
}

/* simhash(texts, unit, n, seed): a 64-bit hash for each row, and a bitmap of the rows that have one. */
PyObject *simhash(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *object, *hashes = NULL, *bitmap = NULL, *result = NULL;
    const char *unit;
    int n, failed;
    unsigned long long seed;
    Shingling how;
    Column texts;
    if (!PyArg_ParseTuple(args, "OsiK", &object, &unit, &n, &seed) || shingling_open(&how, unit, n, seed) ||
        column_open(&texts, object))
        return NULL;
    if (!column_is_text(&texts))
        PyErr_Format(PyExc_TypeError, "simhash takes a column of strings, not of Arrow format '%s'", texts.format);
    else {
        Py_ssize_t rows = (Py_ssize_t)texts.array->length;
        hashes = PyBytes_FromStringAndSize(NULL, rows * 8);
        bitmap = PyBytes_FromStringAndSize(NULL, (rows + 7) / 8);
    }
    if (hashes && bitmap) {
        memset(PyBytes_AS_STRING(bitmap), 0, (size_t)PyBytes_GET_SIZE(bitmap));
        Py_BEGIN_ALLOW_THREADS;
        failed = simhash_all(&texts, &how, (uint64_t *)(void *)PyBytes_AS_STRING(hashes), (uint8_t *)PyBytes_AS_STRING(bitmap));
        Py_END_ALLOW_THREADS;
        result = failed ? PyErr_NoMemory() : PyTuple_Pack(2, hashes, bitmap);
    }
    Py_XDECREF(hashes);
    Py_XDECREF(bitmap);
    column_close(&texts);
    return result;
}
