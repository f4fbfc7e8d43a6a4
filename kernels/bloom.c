/* A Bloom filter over 128-bit hashes: each hash sets `probes` bits. */

#include "dedup.h"

/* bloom(bits, hashes, probes, add): for each hash of 16 bytes a byte that says whether it was there, or seemed so. With
   `add` each is there from then on, so the second of two equal ones is. */
PyObject *bloom(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer bits, hashes;
    Py_ssize_t probes;
    int add;
    if (!PyArg_ParseTuple(args, "w*y*np", &bits, &hashes, &probes, &add))
        return NULL;
    PyObject *result = NULL;
    if (hashes.len % 16 || bits.len < 1 || probes < 1)
        PyErr_SetString(PyExc_ValueError, "bloom takes bits, hashes of 16 bytes and a number of probes");
    else
        result = PyBytes_FromStringAndSize(NULL, hashes.len / 16);
    if (result) {
        uint8_t *table = bits.buf, *seen = (uint8_t *)PyBytes_AS_STRING(result);
        const uint8_t *hash = hashes.buf;
        uint64_t size = (uint64_t)bits.len * 8;
        Py_BEGIN_ALLOW_THREADS;
        for (Py_ssize_t row = 0; row < hashes.len / 16; row++, hash += 16) {
            uint64_t place = little8(hash), step = little8(hash + 8) | 1;
            seen[row] = 1;
            for (Py_ssize_t probe = 0; probe < probes; probe++, place += step) {
                uint64_t at = (uint64_t)((__uint128_t)place * size >> 64);
                seen[row] &= (uint8_t)bit(table, (int64_t)at);
                if (add)
                    table[at >> 3] |= (uint8_t)(1 << (at & 7));
            }
        }
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&bits);
    PyBuffer_Release(&hashes);
    return result;
}
