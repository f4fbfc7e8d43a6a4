/* Copies JSON lines without parsing them: selects lines, and rewrites them as orjson would write them. Both work in place,
   since the result is never longer than the input. */

#include "json_text.h"

/* -- which lines ------------------------------------------------------------------------------------------------ */

/* Moves the lines whose bit is 1 to the beginning; how many bytes they are, or -1 if there are more lines than bits.
`*row` is the number of the first line, and then of the one after the last. */
static int64_t move_lines(uint8_t *bytes, int64_t size, const uint8_t *bits, int64_t rows, int64_t *row) {
    uint8_t *to = bytes, *from = bytes, *end = bytes + size; /* `from`: the first of some lines in a row that are kept */
    const uint8_t *p = bytes;
    for (; p < end; ++*row) {
        const uint8_t *line = p, *stop = memchr(p, '\n', (size_t)(end - p));
        if (!stop || *row >= rows)
            return -1;
        p = stop + 1;
        if (!bits || bits[*row >> 3] >> (*row & 7) & 1)
            continue;
        if (to != from)
            memmove(to, from, (size_t)(line - from));
        to += line - from;
        from = bytes + (p - bytes);
    }
    if (to != from)
        memmove(to, from, (size_t)(p - from));
    return to + (p - from) - bytes;
}

PyObject *keep_lines(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer block, bits = {0};
    Py_ssize_t rows, first;
    if (!PyArg_ParseTuple(args, "w*z*nn", &block, &bits, &rows, &first))
        return NULL;
    int64_t left = -1, row = first;
    if (first < 0 || rows < first || (bits.buf && bits.len < (rows + 7) / 8))
        PyErr_SetString(PyExc_ValueError, "keep_lines takes a bit for each line");
    else {
        Py_BEGIN_ALLOW_THREADS;
        left = move_lines(block.buf, block.len, bits.buf, rows, &row);
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&block);
    PyBuffer_Release(&bits);
    return PyErr_Occurred() ? NULL : Py_BuildValue("(LL)", (long long)left, (long long)row);
}

/* -- as they would be written ------------------------------------------------------------------------------------ */

/* Rewrites the escape at `*p` as it would be written; NULL if it is none. */
static uint8_t *tidy_escape(const uint8_t **p, const uint8_t *end, uint8_t *to) {
    if (end - *p < 2)
        return NULL;
    uint8_t c = (*p)[1];
    *p += 2;
    if (c == '/') {
        *to++ = c;
        return to;
    }
    if (c != 'u') {
        *to++ = '\\', *to++ = c;
        return c && strchr("\"\\bfnrt", c) ? to : NULL;
    }
    int32_t code = escaped_code(p, end);
    if (code < 0)
        return NULL;
    return code < 0x20 || code == '"' || code == '\\' ? escape(to, (uint8_t)code) : encode(to, (uint32_t)code);
}

/* Copies the string that begins at `*p`, with its quotes; NULL if it has no end. */
static uint8_t *tidy_string(const uint8_t **p, const uint8_t *end, uint8_t *to) {
    *to++ = *(*p)++;
    for (;;) {
        size_t run = clean_run(*p, end);
        if (to != *p)
            memmove(to, *p, run);
        to += run, *p += run;
        if (*p == end || **p < 0x20)
            return NULL;
        if (**p == '"') {
            *to++ = *(*p)++;
            return to;
        }
        if (!(to = tidy_escape(p, end, to)))
            return NULL;
    }
}

static int64_t tidy(uint8_t *bytes, int64_t size) {
    const uint8_t *p = bytes, *end = bytes + size;
    uint8_t *to = bytes;
    while (to && p < end) {
        if (*p == '"')
            to = tidy_string(&p, end, to);
        else if (*p == ' ' || *p == '\t' || *p == '\r')
            p++;
        else
            *to++ = *p++;
    }
    return to ? to - bytes : -1;
}

PyObject *tidy_json(PyObject *Py_UNUSED(self), PyObject *block) {
    Py_buffer view;
    if (PyObject_GetBuffer(block, &view, PyBUF_WRITABLE))
        return NULL;
    int64_t left;
    Py_BEGIN_ALLOW_THREADS;
    left = tidy(view.buf, view.len);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&view);
    return PyLong_FromLongLong(left);
}
