/* JSON lines to columns and back: the functions that the module exports. */

#ifndef GRISTMILL_JSON_H
#define GRISTMILL_JSON_H

#include "text.h"

PyObject *json_columns(PyObject *self, PyObject *block);
PyObject *json_columns_of(PyObject *self, PyObject *args);
PyObject *json_wide(PyObject *self, PyObject *wanted);
PyObject *json_lines(PyObject *self, PyObject *args);
PyObject *keep_lines(PyObject *self, PyObject *args);
PyObject *tidy_json(PyObject *self, PyObject *block);

/* Bytes that are collected. Appending reserves first. */
typedef struct {
    Room room;
    size_t size;
} Heap;

static inline uint8_t *heap_reserve(Heap *heap, size_t more) {
    uint8_t *memory = room(&heap->room, heap->size + more);
    return memory ? memory + heap->size : NULL;
}

/* Reserves just so much, of which nothing more can be needed: a larger gap would have to be found for it. */
static inline int heap_fit(Heap *heap, size_t more) {
    void *memory = realloc(heap->room.memory, heap->size + more);
    if (memory)
        heap->room.memory = memory, heap->room.size = heap->size + more;
    return memory != NULL;
}

#endif
