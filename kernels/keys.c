/* Keys that are hashes: the partition of each key, the rows of each partition, and the keys that occur more than once.
   core/arrow/hash_partitioning.py and dedup/columns/arrow_numpy.py define the results. */

#include "dedup.h"

static inline uint64_t mixed(uint64_t bits) {
    bits = (bits ^ bits >> 32) * 0xBF58476D1CE4E5B9u;
    bits = (bits ^ bits >> 32) * 0x94D049BB133111EBu;
    return bits ^ bits >> 32;
}

/* hash_partitions(hashes, width, count): a 64-bit number below `count` for each hash of `width` bytes, 8 or more. */
PyObject *hash_partitions(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer hashes;
    Py_ssize_t width;
    unsigned long long count;
    if (!PyArg_ParseTuple(args, "y*nK", &hashes, &width, &count))
        return NULL;
    PyObject *result = NULL;
    if (width < 8 || hashes.len % width || count < 1 || count > UINT32_MAX)
        PyErr_SetString(PyExc_ValueError, "hash_partitions takes hashes of 8 bytes or more, and a number of partitions");
    else
        result = PyBytes_FromStringAndSize(NULL, hashes.len / width * 8);
    if (result) {
        const uint8_t *from = hashes.buf;
        uint64_t *to = (uint64_t *)(void *)PyBytes_AS_STRING(result);
        for (Py_ssize_t row = 0; row < hashes.len / width; row++, from += width)
            to[row] = (mixed(load8(from)) >> 32) * count >> 32;
    }
    PyBuffer_Release(&hashes);
    return result;
}

/* Numbers that are larger are left to Python: what is counted has a place for each. */
#define MOST_NUMBERS ((uint64_t)1 << 20)

/* Fills in the order of the rows, and gives the list of numbers and ends. */
static PyObject *ordered(const uint8_t *numbers, Py_ssize_t rows, uint64_t top, int64_t *order) {
    int64_t *ends = calloc(top + 1, sizeof *ends);
    PyObject *parts = ends ? PyList_New(0) : PyErr_NoMemory();
    if (parts) {
        for (Py_ssize_t row = 0; row < rows; row++)
            ends[load8(numbers + 8 * row)]++;
        int64_t start = 0;
        for (uint64_t number = 0; parts && number <= top; number++) {
            int64_t size = ends[number];
            ends[number] = start;
            start += size;
            PyObject *part = size ? Py_BuildValue("KL", (unsigned long long)number, (long long)start) : NULL;
            if (size && (!part || PyList_Append(parts, part)))
                Py_CLEAR(parts);
            Py_XDECREF(part);
        }
        for (Py_ssize_t row = 0; parts && row < rows; row++)
            order[ends[load8(numbers + 8 * row)]++] = row;
    }
    free(ends);
    return parts;
}

/* by_number(numbers): the rows in the order of their 64-bit numbers, those of one number as they lie, as the bytes of 64-bit
   integers; and each number that there is, with the place in that order where it ends. None if numbers are too large. */
PyObject *by_number(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer numbers;
    if (!PyArg_ParseTuple(args, "y*", &numbers))
        return NULL;
    Py_ssize_t rows = numbers.len / 8;
    const uint8_t *from = numbers.buf;
    PyObject *result = NULL;
    uint64_t top = 0;
    if (numbers.len % 8)
        PyErr_SetString(PyExc_ValueError, "by_number takes 64-bit numbers");
    else {
        for (Py_ssize_t row = 0; row < rows; row++) {
            uint64_t number = load8(from + 8 * row);
            top = number > top ? number : top;
        }
        if (top >= MOST_NUMBERS)
            result = Py_NewRef(Py_None);
    }
    if (!result && !PyErr_Occurred()) {
        PyObject *order = PyBytes_FromStringAndSize(NULL, rows * 8);
        PyObject *parts = order ? ordered(from, rows, top, (int64_t *)(void *)PyBytes_AS_STRING(order)) : NULL;
        result = parts ? PyTuple_Pack(2, order, parts) : NULL;
        Py_XDECREF(order);
        Py_XDECREF(parts);
    }
    PyBuffer_Release(&numbers);
    return result;
}

static inline void mark(uint8_t *bits, uint32_t row) { bits[row >> 3] |= (uint8_t)(1 << (row & 7)); }

/* Marks each key whose first eight bytes another one has. `slots` is a table of rows, from 1, with `mask` + 1 places. */
static void mark_repeated(const uint8_t *keys, Py_ssize_t width, uint32_t rows, uint32_t *slots, uint64_t mask, uint8_t *bits) {
    for (uint32_t row = 0; row < rows; row++) {
        uint64_t key = load8(keys + row * width), place = scramble(key ^ hash_seed);
        for (;; place++) {
            uint32_t *slot = slots + (place & mask);
            if (!*slot) {
                *slot = row + 1;
                break;
            }
            if (load8(keys + (*slot - 1) * width) == key) {
                mark(bits, row);
                mark(bits, *slot - 1);
                break;
            }
        }
    }
}

/* repeated(keys, width): a bitmap of the keys of `width` bytes, 8 or more, whose first eight bytes another one has. */
PyObject *repeated(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer keys;
    Py_ssize_t width;
    if (!PyArg_ParseTuple(args, "y*n", &keys, &width))
        return NULL;
    PyObject *result = NULL;
    if (width < 8 || keys.len % width || keys.len / width > INT32_MAX)
        PyErr_SetString(PyExc_ValueError, "repeated takes keys of 8 bytes or more, and no more than 2 billion of them");
    else {
        Py_ssize_t rows = keys.len / width;
        uint64_t size = 16;
        while (size < 2 * (uint64_t)rows)
            size *= 2;
        uint32_t *slots = calloc(size, sizeof *slots);
        result = slots ? PyBytes_FromStringAndSize(NULL, (rows + 7) / 8) : PyErr_NoMemory();
        if (result) {
            uint8_t *bits = (uint8_t *)PyBytes_AS_STRING(result);
            memset(bits, 0, (size_t)(rows + 7) / 8);
            Py_BEGIN_ALLOW_THREADS;
            mark_repeated(keys.buf, width, (uint32_t)rows, slots, size - 1, bits);
            Py_END_ALLOW_THREADS;
        }
        free(slots);
    }
    PyBuffer_Release(&keys);
    return result;
}
