/* Normalises text, so that insignificant differences disappear. Python builds the table of replacements for characters.
   Rows with a character that the table leaves to Python are skipped. */

#include "dedup.h"

#define KNOWN 0x3100 /* characters below are in the table */
#define GONE 0xFFFFFFFFu
#define UNKNOWN 0xFFFFFFFEu

typedef struct {
    const uint32_t *table;
    int space; /* white space becomes one space, and none at the ends */
    int beyond; /* whether characters beyond the table that have no other form are known to stay as they are */
} Form;

/* Ideographs, Hangul, emoji and the mark that follows them: in no normal form that composes are they anything else. */
static int stays(uint32_t c) {
    return (c >= 0x3400 && c <= 0x9FFF) || (c >= 0xAC00 && c <= 0xD7A3) || (c >= 0x1F300 && c <= 0x1F9FF) || c == 0xFE0F;
}

static uint8_t *encode(uint32_t c, uint8_t *to) {
    if (c < 0x80) {
        *to++ = (uint8_t)c;
        return to;
    }
    if (c < 0x800)
        *to++ = (uint8_t)(0xC0 | c >> 6);
    else
        *to++ = (uint8_t)(0xE0 | c >> 12), *to++ = (uint8_t)(0x80 | (c >> 6 & 0x3F));
    *to++ = (uint8_t)(0x80 | (c & 0x3F));
    return to;
}

/* Writes the new text. Returns its end, or NULL where a character is left to Python. */
static uint8_t *normalise_text(Text text, const Form *form, uint8_t *to) {
    const uint8_t *p = text.bytes, *end = p + text.size;
    uint8_t *start = to;
    int after_space = form->space; /* white space at the beginning is left out */
    while (p < end) {
        uint32_t c = *p;
        int size = c < 0x80 ? 1 : decode(p, end, &c);
        uint32_t new = c < KNOWN ? form->table[c] : UNKNOWN;
        if (new == UNKNOWN) {
            if (c < KNOWN || !form->beyond || !stays(c))
                return NULL;
            memcpy(to, p, (size_t)size);
            to += size, p += size, after_space = 0;
            continue;
        }
        p += size;
        if (new == GONE || (new == ' ' && after_space))
            continue;
        after_space = form->space && new == ' ';
        to = encode(new, to);
    }
    return form->space && to > start && to[-1] == ' ' ? to - 1 : to;
}

/* Fills the offsets, the bytes and the flags of rows that were left out. Returns how many bytes there are. */
static int64_t normalise_all(const Column *texts, const Form *form, int64_t *offsets, uint8_t *bytes, uint8_t *left_out) {
    uint8_t *to = bytes;
    offsets[0] = 0;
    for (int64_t row = 0; row < texts->array->length; row++) {
        uint8_t *end = normalise_text(column_text(texts, row), form, to);
        left_out[row] = !end;
        to = end ? end : to;
        offsets[row + 1] = to - bytes;
    }
    return to - bytes;
}

static int64_t total_size(const Column *texts) {
    int64_t size = 0;
    for (int64_t row = 0; row < texts->array->length; row++)
        size += column_text(texts, row).size;
    return size;
}

static PyObject *normalise_column(const Column *texts, const Form *form) {
    Py_ssize_t rows = (Py_ssize_t)texts->array->length;
    PyObject *ends = PyBytes_FromStringAndSize(NULL, (rows + 1) * 8), *flags = PyBytes_FromStringAndSize(NULL, rows);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total_size(texts)), *result = NULL;
    if (ends && flags && bytes) {
        int64_t size;
        Py_BEGIN_ALLOW_THREADS;
        size = normalise_all(texts, form, (int64_t *)(void *)PyBytes_AS_STRING(ends), (uint8_t *)PyBytes_AS_STRING(bytes),
                             (uint8_t *)PyBytes_AS_STRING(flags));
        Py_END_ALLOW_THREADS;
        if (!_PyBytes_Resize(&bytes, (Py_ssize_t)size))
            result = PyTuple_Pack(3, ends, bytes, flags);
    }
    Py_XDECREF(ends);
    Py_XDECREF(bytes);
    Py_XDECREF(flags);
    return result;
}

/* normalise(texts, table, space, beyond) */
PyObject *normalise(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *object, *result = NULL;
    Py_buffer table;
    Form form;
    Column texts;
    if (!PyArg_ParseTuple(args, "Oy*pp", &object, &table, &form.space, &form.beyond))
        return NULL;
    form.table = table.buf;
    if (table.len != KNOWN * 4)
        PyErr_Format(PyExc_ValueError, "normalise takes a table of %d characters", KNOWN);
    else if (!column_open(&texts, object)) {
        if (!column_is_text(&texts))
            PyErr_Format(PyExc_TypeError, "normalise takes a column of strings, not of Arrow format '%s'", texts.format);
        else
            result = normalise_column(&texts, &form);
        column_close(&texts);
    }
    PyBuffer_Release(&table);
    return result;
}
