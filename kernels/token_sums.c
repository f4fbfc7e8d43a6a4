/* Sums the vectors of the tokens of texts: what static embeddings are made of. A text is a list of words, and a word a list
   of tokens, each a row of a matrix of floats. */

#include "text.h"

enum { VECTORS, TOKENS, STARTS, TEXT_WORDS, ENDS, HELD };

typedef float Four __attribute__((vector_size(16)));

static void add_row(float *sum, const float *row, int64_t dim) {
    int64_t i = 0;
    for (; i + 16 <= dim; i += 16)
        for (int64_t j = i; j < i + 16; j += 4) {
            Four left, right;
            memcpy(&left, sum + j, sizeof left);
            memcpy(&right, row + j, sizeof right);
            left += right;
            memcpy(sum + j, &left, sizeof left);
        }
    for (; i < dim; i++)
        sum[i] += row[i];
}

/* Each sum, and how many rows are in it. */
static void sum_texts(const Py_buffer *held, int64_t dim, float *sums, int64_t *counts) {
    const float *matrix = held[VECTORS].buf;
    const int32_t *tokens = held[TOKENS].buf, *words = held[TEXT_WORDS].buf;
    const int64_t *starts = held[STARTS].buf, *ends = held[ENDS].buf;
    int64_t texts = held[ENDS].len / 8, at = 0;
    for (int64_t text = 0; text < texts; text++, sums += dim) {
        counts[text] = 0;
        for (; at < ends[text]; at++) {
            int64_t first = starts[words[at]], last = starts[words[at] + 1];
            counts[text] += last - first;
            for (int64_t token = first; token < last; token++)
                add_row(sums, matrix + (int64_t)tokens[token] * dim, dim);
        }
    }
}

/* Whether numbers rise from 0 or more to at most `most`. */
static int rises(const int64_t *numbers, int64_t count, int64_t most) {
    for (int64_t i = 0, last = 0; i < count; last = numbers[i++])
        if (numbers[i] < last || numbers[i] > most)
            return 0;
    return 1;
}

static int within(const int32_t *numbers, int64_t count, int64_t end) {
    for (int64_t i = 0; i < count; i++)
        if (numbers[i] < 0 || numbers[i] >= end)
            return 0;
    return 1;
}

static const char *check_texts(const Py_buffer *held, int64_t dim) {
    if (dim < 1 || dim > 1 << 20 || held[VECTORS].len % (4 * dim) || held[STARTS].len % 8 || held[ENDS].len % 8)
        return "a buffer is not of rows of this size";
    int64_t tokens = held[TOKENS].len / 4, words = held[TEXT_WORDS].len / 4, starts = held[STARTS].len / 8;
    if (starts < 1 || !rises(held[STARTS].buf, starts, tokens) || !rises(held[ENDS].buf, held[ENDS].len / 8, words))
        return "a start or an end is out of range";
    if (!within(held[TOKENS].buf, tokens, held[VECTORS].len / (4 * dim)) || !within(held[TEXT_WORDS].buf, words, starts - 1))
        return "a token or a word is out of range";
    return NULL;
}

static PyObject *sums_and_counts(const Py_buffer *held, int64_t dim) {
    Py_ssize_t texts = (Py_ssize_t)(held[ENDS].len / 8);
    PyObject *sums = PyBytes_FromStringAndSize(NULL, texts * (Py_ssize_t)dim * 4), *result = NULL;
    PyObject *counts = PyBytes_FromStringAndSize(NULL, texts * 8);
    if (sums && counts) {
        memset(PyBytes_AS_STRING(sums), 0, (size_t)PyBytes_GET_SIZE(sums));
        Py_BEGIN_ALLOW_THREADS;
        sum_texts(held, dim, (float *)(void *)PyBytes_AS_STRING(sums), (int64_t *)(void *)PyBytes_AS_STRING(counts));
        Py_END_ALLOW_THREADS;
        result = PyTuple_Pack(2, sums, counts);
    }
    Py_XDECREF(sums);
    Py_XDECREF(counts);
    return result;
}

PyObject *token_sums(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *objects[HELD], *result = NULL;
    Py_buffer held[HELD];
    long long dim;
    int count = 0;
    if (!PyArg_ParseTuple(args, "O(OO)(OO)L", &objects[VECTORS], &objects[TOKENS], &objects[STARTS], &objects[TEXT_WORDS],
                          &objects[ENDS], &dim))
        return NULL;
    for (; count < HELD; count++)
        if (PyObject_GetBuffer(objects[count], &held[count], PyBUF_SIMPLE))
            goto done;
    const char *wrong = check_texts(held, dim);
    if (wrong)
        PyErr_SetString(PyExc_ValueError, wrong);
    else
        result = sums_and_counts(held, dim);
done:
    for (int i = 0; i < count; i++)
        PyBuffer_Release(&held[i]);
    return result;
}
