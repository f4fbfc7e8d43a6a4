/* Writes rows of columns as JSON lines: strings are escaped as orjson does it; other columns hold JSON text already. */

#include "json_text.h"

typedef struct {
    Column column;
    int is_json;
    const char *key; /* with what stands before and after it */
    Py_ssize_t key_size;
} Field;

static int is_null(const Column *column, int64_t row) {
    const uint8_t *validity = column->array->buffers[0];
    return validity && !bit(validity, row + column->array->offset);
}

static int write_string(Heap *out, Text text) {
    const uint8_t *p = text.bytes, *end = p + text.size;
    uint8_t *to = heap_reserve(out, (size_t)text.size + 2);
    if (!to)
        return -1;
    *to++ = '"';
    while (p < end) {
        size_t run = clean_run(p, end);
        memcpy(to, p, run);
        to += run, p += run;
        if (p == end)
            break;
        out->size = (size_t)(to - (uint8_t *)out->room.memory);
        if (!(to = heap_reserve(out, (size_t)(end - p) + 8))) /* the escape, the rest and the quote */
            return -1;
        to = escape(to, *p++);
    }
    *to++ = '"';
    out->size = (size_t)(to - (uint8_t *)out->room.memory);
    return 0;
}

static int write_raw(Heap *out, const void *bytes, size_t size) {
    uint8_t *to = heap_reserve(out, size);
    if (!to)
        return -1;
    memcpy(to, bytes, size);
    out->size += size;
    return 0;
}

static int write_row(Heap *out, const Field *fields, Py_ssize_t count, int64_t row) {
    for (Py_ssize_t i = 0; i < count; i++) {
        const Field *field = fields + i;
        if (write_raw(out, field->key, (size_t)field->key_size))
            return -1;
        Text text = column_text(&field->column, row);
        int failed = is_null(&field->column, row) ? write_raw(out, "null", 4)
                     : field->is_json             ? write_raw(out, text.bytes, (size_t)text.size)
                                                  : write_string(out, text);
        if (failed)
            return -1;
    }
    return write_raw(out, "}\n", 2);
}

static PyObject *write_rows(const Field *fields, Py_ssize_t count, int64_t rows) {
    Heap out = {{NULL, 0}, 0};
    int failed = 0;
    Py_BEGIN_ALLOW_THREADS;
    for (int64_t row = 0; row < rows && !failed; row++)
        failed = write_row(&out, fields, count, row);
    Py_END_ALLOW_THREADS;
    PyObject *result = failed ? PyErr_NoMemory() : PyBytes_FromStringAndSize(out.room.memory, (Py_ssize_t)out.size);
    free(out.room.memory);
    return result;
}

/* Opens the columns. Returns how many are open; fewer than there are when one cannot be used. */
static Py_ssize_t open_fields(Field *fields, PyObject *columns) {
    Py_ssize_t count = PyTuple_GET_SIZE(columns);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *array;
        Field *field = fields + i;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(columns, i), "y#Op", &field->key, &field->key_size, &array, &field->is_json) ||
            column_open(&field->column, array))
            return i;
        if (!column_is_text(&field->column) || field->column.array->length != fields->column.array->length) {
            PyErr_SetString(PyExc_TypeError, "json_lines takes columns of strings, all of one length");
            return i + 1;
        }
    }
    return count;
}

PyObject *json_lines(PyObject *Py_UNUSED(self), PyObject *columns) {
    if (!PyTuple_Check(columns) || !PyTuple_GET_SIZE(columns)) {
        PyErr_SetString(PyExc_TypeError, "json_lines takes a tuple of columns, at least one");
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(columns);
    Field *fields = calloc((size_t)count, sizeof *fields);
    if (!fields)
        return PyErr_NoMemory();
    Py_ssize_t open = open_fields(fields, columns);
    PyObject *result = PyErr_Occurred() ? NULL : write_rows(fields, count, fields->column.array->length);
    for (Py_ssize_t i = 0; i < open; i++)
        column_close(&fields[i].column);
    free(fields);
    return result;
}
