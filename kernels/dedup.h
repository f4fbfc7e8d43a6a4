/* The functions that module.c registers for gristmill.dedup. Each is defined in dedup/columns/kernel_reference.py, those of keys.c
   next to their callers. */

#ifndef GRISTMILL_DEDUP_H
#define GRISTMILL_DEDUP_H

#include "hash.h"

PyObject *hash128(PyObject *self, PyObject *args);
PyObject *hash_pieces(PyObject *self, PyObject *args);
PyObject *hash_partitions(PyObject *self, PyObject *args);
PyObject *by_number(PyObject *self, PyObject *args);
PyObject *repeated(PyObject *self, PyObject *args);
PyObject *normalise(PyObject *self, PyObject *args);
PyObject *minhash(PyObject *self, PyObject *args);
PyObject *sketch(PyObject *self, PyObject *args);
PyObject *entry_pairs(PyObject *self, PyObject *args);
PyObject *distinct_pairs(PyObject *self, PyObject *args);
PyObject *set_jaccard(PyObject *self, PyObject *args);
PyObject *jaccard(PyObject *self, PyObject *args);
PyObject *similar_pairs(PyObject *self, PyObject *args);
PyObject *components(PyObject *self, PyObject *args);
PyObject *forest(PyObject *self, PyObject *args);
PyObject *simhash(PyObject *self, PyObject *args);
PyObject *bloom(PyObject *self, PyObject *args);
PyObject *anchors(PyObject *self, PyObject *args);
PyObject *ngram_table(PyObject *self, PyObject *args);
PyObject *ngram_hits(PyObject *self, PyObject *args);
PyObject *repeated_spans(PyObject *self, PyObject *args);

#endif
