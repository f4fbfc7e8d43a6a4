/* fastText models: maps texts to rows of the input matrix, and the mean of the rows to a label. Floats are added in the
   same order as in the library `fasttext`, so that results are equal to the last bit. */

#ifndef GRISTMILL_FASTTEXT_H
#define GRISTMILL_FASTTEXT_H

#include "text.h"

#define IDS 4096 /* rows collected before they are added */

enum { LOSS_TREE = 1, LOSS_SAMPLES, LOSS_SOFTMAX, LOSS_EACH };

/* A cache of the rows of words, so that a repeated word costs one lookup. */
typedef struct {
    uint32_t *slots; /* two for each place: part of a hash, and where the entry begins; 0: free */
    uint32_t mask;
    Room entries;
    size_t used, count; /* bytes and words */
} Memory;

enum { INPUT, BITS, RANKS, PLACES, OUTPUT, SCALES, TREE, BUFFERS };

typedef struct {
    int64_t dim, words, bucket, least, most, run, loss, pruned; /* as Python gives them */
    int64_t labels, rows;
    uint64_t inverse; /* of the number of buckets */
    Py_buffer held[BUFFERS];
    int held_count;
    Column entries; /* of the dictionary: first words, then labels */
    uint32_t *slots; /* two for each place: part of a hash, and the number of the entry and 1 */
    uint64_t mask;
    int32_t *parents; /* of the nodes of the tree */
    float sigmoids[513];
    Memory *memory; /* NULL while a call uses it */
} FastText;

/* The state of one call. */
typedef struct {
    const FastText *model;
    Memory *memory;
    float *sum, *outputs;
    Room word, hashes;
    size_t hash_count;
    int64_t count, flushes; /* of rows in the sum; of times that `ids` was full */
    Room kept; /* the rows themselves, instead of their sum */
    size_t kept_count;
    int keeps, used;
    int32_t ids[IDS];
} Reading;

/* The rows of a text are added to `sum`, and counted. Returns -1 when there is no memory. */
int add_text(Reading *reading, Text text);
int dictionary_open(FastText *model);
Memory *memory_make(void);
void memory_free(Memory *memory);

PyObject *fasttext_open(PyObject *self, PyObject *args);
PyObject *fasttext_predict(PyObject *self, PyObject *args);
PyObject *fasttext_rows(PyObject *self, PyObject *args);
PyObject *fasttext_fit(PyObject *self, PyObject *args);

#endif
