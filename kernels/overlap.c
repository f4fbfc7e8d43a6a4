/* Finds word n-grams that are in a table: which documents share a run of words with an evaluation set. */

#include "dedup.h"
#include "shingles.h"

#define AHEAD 16 /* n-grams whose slot is prefetched */

typedef struct {
    int64_t row, word;
    uint64_t key;
} Hit;

typedef struct {
    const uint64_t *table; /* NULL: all runs are wanted. 0: a free place */
    uint64_t mask;
    const int64_t *lengths;
    Py_ssize_t length_count;
    Room hits;
    size_t count;
} Search;

/* The key of an n-gram, which depends on n. Never 0. */
static inline uint64_t key_of(uint64_t shingle, int64_t n) {
    uint64_t key = scramble(shingle + (uint64_t)n * GOLDEN);
    return key ? key : 1;
}

static inline int is_there(const Search *search, uint64_t key) {
    uint64_t at = key & search->mask;
    for (; search->table[at]; at = (at + 1) & search->mask)
        if (search->table[at] == key)
            return 1;
    return 0;
}

static int add_hit(Search *search, int64_t row, int64_t word, uint64_t key) {
    Hit *hits = room(&search->hits, (search->count + 1) * sizeof *hits);
    if (!hits)
        return -1;
    hits[search->count++] = (Hit){row, word, key};
    return 0;
}

static int look_up(Search *search, int64_t row, uint64_t *runs, int64_t count, int64_t n) {
    for (int64_t i = 0; i < count; i++)
        runs[i] = key_of(runs[i], n);
    for (int64_t i = 0; i < count; i++) {
        if (search->table && i + AHEAD < count)
            __builtin_prefetch(search->table + (runs[i + AHEAD] & search->mask));
        if ((!search->table || is_there(search, runs[i])) && add_hit(search, row, i, runs[i]))
            return -1;
    }
    return 0;
}

static int search_all(const Column *texts, const Shingling *how, Search *search) {
    ShingleRoom rooms = {0};
    int failed = 0;
    for (int64_t row = 0; row < texts->array->length && !failed; row++) {
        int64_t words = shingle_words(column_text(texts, row), how, &rooms);
        failed = words < 0;
        for (Py_ssize_t i = 0; i < search->length_count && !failed; i++) {
            int64_t count = shingle_runs(&rooms, words, search->lengths[i]);
            failed = look_up(search, row, rooms.shingles.memory, count, search->lengths[i]);
        }
    }
    shingle_room_free(&rooms);
    return failed;
}

/* ngram_table(keys): a table of at least twice as many slots as keys, a power of two. */
PyObject *ngram_table(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer keys;
    if (!PyArg_ParseTuple(args, "y*", &keys))
        return NULL;
    uint64_t size = 2, count = (uint64_t)keys.len / 8;
    while (size < 2 * count)
        size *= 2;
    PyObject *result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(size * 8));
    if (result) {
        uint64_t *table = (uint64_t *)(void *)PyBytes_AS_STRING(result);
        const uint8_t *from = keys.buf;
        memset(table, 0, (size_t)size * 8);
        for (uint64_t i = 0; i < count; i++) {
            uint64_t key = load8(from + 8 * i), at = key & (size - 1);
            while (table[at] && table[at] != key)
                at = (at + 1) & (size - 1);
            table[at] = key;
        }
    }
    PyBuffer_Release(&keys);
    return result;
}

static int search_open(Search *search, const Py_buffer *lengths, const Py_buffer *table) {
    Py_ssize_t size = table->len / 8;
    int wrong = lengths->len % 8 || table->len % 8 || (size & (size - 1)) || size == 1;
    search->lengths = lengths->buf, search->length_count = lengths->len / 8;
    for (Py_ssize_t i = 0; i < search->length_count; i++)
        wrong |= search->lengths[i] < 1;
    search->table = size ? table->buf : NULL;
    search->mask = (uint64_t)size - 1;
    if (wrong)
        PyErr_SetString(PyExc_ValueError, "ngram_hits takes lengths of 1 or more, and what ngram_table made");
    return wrong ? -1 : 0;
}

/* ngram_hits(texts, lengths, table, seed): row, number of the first word, and key, 8 bytes each. */
PyObject *ngram_hits(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *object, *result = NULL;
    Py_buffer lengths, table;
    unsigned long long seed;
    Shingling how;
    Column texts;
    Search search = {0};
    if (!PyArg_ParseTuple(args, "Oy*y*K", &object, &lengths, &table, &seed))
        return NULL;
    if (!search_open(&search, &lengths, &table) && !shingling_open(&how, "words", 1, seed) && !column_open(&texts, object)) {
        if (!column_is_text(&texts))
            PyErr_Format(PyExc_TypeError, "ngram_hits takes a column of strings, not of Arrow format '%s'", texts.format);
        else {
            int failed;
            Py_BEGIN_ALLOW_THREADS;
            failed = search_all(&texts, &how, &search);
            Py_END_ALLOW_THREADS;
            result = failed ? PyErr_NoMemory()
                            : PyBytes_FromStringAndSize(search.hits.memory, (Py_ssize_t)(search.count * sizeof(Hit)));
        }
        column_close(&texts);
    }
    free(search.hits.memory);
    PyBuffer_Release(&lengths);
    PyBuffer_Release(&table);
    return result;
}
