/* The part of Arrow's C data interface that the kernels need: columns of strings, bytes and booleans, read in place. */

#ifndef GRISTMILL_ARROW_H
#define GRISTMILL_ARROW_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

struct ArrowSchema {
    const char *format;
    const char *name;
    const char *metadata;
    int64_t flags;
    int64_t n_children;
    struct ArrowSchema **children;
    struct ArrowSchema *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};

struct ArrowArray {
    int64_t length;
    int64_t null_count;
    int64_t offset;
    int64_t n_buffers;
    int64_t n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

/* A column exported by Python: its memory is valid while `owner` is held. */
typedef struct {
    PyObject *owner;
    const struct ArrowArray *array;
    const char *format;
} Column;

typedef struct {
    const uint8_t *bytes;
    int64_t size;
} Text;

static inline int bit(const uint8_t *bits, int64_t index) { return bits[index >> 3] >> (index & 7) & 1; }

/* Takes the column from an object with __arrow_c_array__. Returns 0, or -1 with an exception set. */
int column_open(Column *column, PyObject *object);
void column_close(Column *column);
int column_is_text(const Column *column);
int column_is_bytes(const Column *column); /* strings or binary */

static inline int column_null(const Column *column, int64_t row) {
    const uint8_t *validity = column->array->buffers[0];
    return validity && !bit(validity, row + column->array->offset);
}

/* The text of a row; null is empty. */
static inline Text column_text(const Column *column, int64_t row) {
    const struct ArrowArray *array = column->array;
    const uint8_t *bytes = array->buffers[2];
    if (column_null(column, row))
        return (Text){(const uint8_t *)"", 0};
    row += array->offset;
    int64_t start, end;
    if (column->format[0] == 'u' || column->format[0] == 'z') {
        const int32_t *offsets = array->buffers[1];
        start = offsets[row], end = offsets[row + 1];
    } else {
        const int64_t *offsets = array->buffers[1];
        start = offsets[row], end = offsets[row + 1];
    }
    if (end <= start || !bytes)
        return (Text){(const uint8_t *)"", 0};
    return (Text){bytes + start, end - start};
}

static inline int column_flag(const Column *column, int64_t row) {
    return bit(column->array->buffers[1], row + column->array->offset);
}

#endif
