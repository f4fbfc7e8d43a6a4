/* Text in a form in which differences that do not matter are gone. Only rows of ASCII: the rest needs Unicode's tables,
   which Python has. */

#include "dedup.h"

enum { LOWER = 1, SPACE = 2, PUNCTUATION_OUT = 4 };

static int is_ascii(Text text) {
    uint8_t high = 0;
    for (int64_t i = 0; i < text.size; i++)
        high |= text.bytes[i];
    return high < 0x80;
}

/* What becomes of each byte; 0xFF: nothing is left of it. */
static void make_table(uint8_t *table, int what) {
    for (int c = 0; c < 128; c++) {
        table[c] = (uint8_t)c;
        if (what & LOWER && c >= 'A' && c <= 'Z')
            table[c] = (uint8_t)(c + 32);
        if (what & SPACE && byte_lanes[c] & IS_SPACE)
            table[c] = ' ';
        if (what & PUNCTUATION_OUT && byte_lanes[c] & LANE(LANE_PUNCTUATION))
            table[c] = 0xFF;
    }
}

static int64_t normalise(Text text, const uint8_t *table, int what, uint8_t *to) {
    uint8_t *start = to;
    int spaces = what & SPACE, after_space = spaces; /* white space at the beginning is left out */
    for (int64_t i = 0; i < text.size; i++) {
        uint8_t c = table[text.bytes[i]];
        int space = spaces && c == ' ';
        *to = c;
        to += c != 0xFF && !(space && after_space);
        after_space = c == 0xFF ? after_space : space;
    }
    if (spaces && to > start && to[-1] == ' ')
        to--;
    return to - start;
}

/* Fills the offsets, the bytes and the flags of rows that were left out. Returns how many bytes there are. */
static int64_t normalise_all(const Column *texts, int what, int64_t *offsets, uint8_t *bytes, uint8_t *left_out) {
    uint8_t table[128];
    int64_t end = 0;
    make_table(table, what);
    offsets[0] = 0;
    for (int64_t row = 0; row < texts->array->length; row++) {
        Text text = column_text(texts, row);
        left_out[row] = !is_ascii(text);
        if (!left_out[row])
            end += normalise(text, table, what, bytes + end);
        offsets[row + 1] = end;
    }
    return end;
}

static int64_t total_size(const Column *texts) {
    int64_t size = 1; /* a byte is written, and perhaps not kept, before the end is known */
    for (int64_t row = 0; row < texts->array->length; row++)
        size += column_text(texts, row).size;
    return size;
}

/* normalise_ascii(texts, what): the ends and the bytes of the new texts, and a byte for each row that says whether it
   was left out, since it has more than ASCII. */
PyObject *normalise_ascii(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *object, *result = NULL;
    int what;
    Column texts;
    if (!PyArg_ParseTuple(args, "Oi", &object, &what) || column_open(&texts, object))
        return NULL;
    if (!column_is_text(&texts)) {
        PyErr_Format(PyExc_TypeError, "normalise_ascii takes a column of strings, not of Arrow format '%s'", texts.format);
        column_close(&texts);
        return NULL;
    }
    Py_ssize_t rows = (Py_ssize_t)texts.array->length;
    PyObject *ends = PyBytes_FromStringAndSize(NULL, (rows + 1) * 8), *flags = PyBytes_FromStringAndSize(NULL, rows);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total_size(&texts));
    if (ends && flags && bytes) {
        int64_t size;
        Py_BEGIN_ALLOW_THREADS;
        size = normalise_all(&texts, what, (int64_t *)(void *)PyBytes_AS_STRING(ends), (uint8_t *)PyBytes_AS_STRING(bytes),
                             (uint8_t *)PyBytes_AS_STRING(flags));
        Py_END_ALLOW_THREADS;
        if (!_PyBytes_Resize(&bytes, (Py_ssize_t)size))
            result = PyTuple_Pack(3, ends, bytes, flags);
    }
    Py_XDECREF(ends);
    Py_XDECREF(bytes);
    Py_XDECREF(flags);
    column_close(&texts);
    return result;
}
