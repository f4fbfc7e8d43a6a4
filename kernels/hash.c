/* Hashes of rows, and of fixed-size pieces of rows. */

#include "dedup.h"

/* hash128(column, seed): 16 bytes for each row; zeros for null. */
PyObject *hash128(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *object, *result = NULL;
    unsigned long long seed;
    Column column;
    if (!PyArg_ParseTuple(args, "OK", &object, &seed) || column_open(&column, object))
        return NULL;
    if (!column_is_bytes(&column))
        PyErr_Format(PyExc_TypeError, "hash128 takes a column of strings or binary, not of Arrow format '%s'", column.format);
    else
        result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)column.array->length * 16);
    if (result) {
        uint8_t *to = (uint8_t *)PyBytes_AS_STRING(result);
        Py_BEGIN_ALLOW_THREADS;
        for (int64_t row = 0; row < column.array->length; row++, to += 16) {
            Text text = column_text(&column, row);
            Hash128 hash = column_null(&column, row) ? (Hash128){0, 0} : xxh3(text.bytes, (size_t)text.size, seed);
            store8(to, hash.low);
            store8(to + 8, hash.high);
        }
        Py_END_ALLOW_THREADS;
    }
    column_close(&column);
    return result;
}

void roll_hashes(const uint8_t *p, int64_t places, int64_t n, uint64_t *hashes) {
    const uint64_t base = 0xD1342543DE82EF95u;
    uint64_t hash = 0, leave = 1;
    for (int64_t i = 0; i < n; i++)
        hash = hash * base + p[i] + 1, leave *= base;
    for (int64_t i = 0;; i++) {
        hashes[i] = scramble(hash);
        if (i + 1 == places)
            return;
        hash = hash * base + p[i + n] + 1 - (p[i] + (uint64_t)1) * leave;
    }
}

/* hash_pieces(data, size, per_row, first, width): hashes of pieces of `size` bytes, of which `per_row` belong to a
   row; the number of a piece in its row, counted from `first`, is the seed. Each hash has `width` bytes, 8 or 16. */
PyObject *hash_pieces(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer data;
    Py_ssize_t size, per_row, first, width;
    if (!PyArg_ParseTuple(args, "y*nnnn", &data, &size, &per_row, &first, &width))
        return NULL;
    PyObject *result = NULL;
    if (size < 1 || per_row < 1 || data.len % size || (width != 8 && width != 16))
        PyErr_SetString(PyExc_ValueError, "hash_pieces takes pieces of one size, and makes hashes of 8 or 16 bytes");
    else
        result = PyBytes_FromStringAndSize(NULL, data.len / size * width);
    if (result) {
        const uint8_t *from = data.buf;
        uint8_t *to = (uint8_t *)PyBytes_AS_STRING(result);
        Py_BEGIN_ALLOW_THREADS;
        for (Py_ssize_t piece = 0; piece < data.len / size; piece++, from += size, to += width) {
            Hash128 hash = xxh3(from, (size_t)size, (uint64_t)(first + piece % per_row));
            store8(to, hash.low);
            if (width == 16)
                store8(to + 8, hash.high);
        }
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&data);
    return result;
}
