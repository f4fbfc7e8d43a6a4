/* Parses blocks of JSON lines into columns, for the most common kind: objects whose keys hold either strings or other
   values, but not both. Keys may be in any order; missing keys are null. Strings are decoded into the memory of an Arrow
   column; other values are collected as JSON text for Python to parse. For any other input, including invalid JSON, the
   result only says so: Python then reads the block line by line and reports the error. */

#include "json_text.h"
#include "utf8.h"
#include <sys/stat.h>
#include <unistd.h>

enum { UNKNOWN, STRINGS, OTHERS };
enum { FINE = 0, UNLIKE = 1, NO_MEMORY = -1 };
#define MOST_COLUMNS 256
#define LARGE (1 << 18)
#define PIECE (1 << 18) /* bytes of a file read at a time: they stay in the processor's cache until they are parsed */

typedef struct {
    Heap spelling; /* the key as first written in the block, with its escapes */
    Heap key;
    int64_t seen; /* one more than the last row that has it */
    int kind;
    int64_t nulls;
    Heap bytes;    /* the strings; or the values, each with a comma */
    Heap ends;     /* int32: 0, then the end of each string */
    Heap validity; /* a byte for each row, once there was a null */
} Values;

typedef struct {
    const uint8_t *p, *end;
    int64_t before; /* bytes of the block before those that are here */
    size_t later;   /* and after them, at most */
    Values columns[MOST_COLUMNS];
    int count;
    int64_t rows;
    Heap starts; /* int64: where each row's line begins */
    Heap key;    /* one that is looked for */
    int plain;   /* all lines so far are as they would be written: strings, keys and what is between them */
    int alike;   /* all lines so far have the same keys in the same order, and nothing else is between them than blanks */
} Reader;

static inline void skip_blanks(Reader *r, const uint8_t *end) {
    while (r->p < end && (*r->p == ' ' || *r->p == '\t' || *r->p == '\r'))
        r->p++, r->plain = 0;
}

/* -- strings ------------------------------------------------------------------------------------------------- */

#ifdef __SSE2__
/* Which of 16 bytes need decoding or end a string. */
static inline unsigned not_plain(__m128i bytes) {
    __m128i quotes = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('"')), slashes = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\'));
    __m128i low = _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(0x1F)), bytes);
    return (unsigned)_mm_movemask_epi8(_mm_or_si128(_mm_or_si128(quotes, slashes), low));
}
#endif

/* Copies bytes that stand for themselves in a string; how many they are. There is room for all up to `end`. Most are few: they
are looked at 16 at a time, before more are at once. */
ALWAYS_INLINE size_t copy_run(const uint8_t *p, const uint8_t *end, uint8_t *to, int wide) {
    const uint8_t *start = p;
    (void)wide;
#ifdef __SSE2__
    for (; end - p >= 16; p += 16, to += 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)p);
        unsigned found = not_plain(bytes);
        _mm_storeu_si128((__m128i *)(void *)to, bytes);
        if (found)
            return (size_t)(p - start) + (size_t)__builtin_ctz(found);
        for (; wide && end - p >= 80; p += 64, to += 64) {
            uint64_t others = wide_copy(p + 16, to + 16);
            if (others)
                return (size_t)(p + 16 - start) + (size_t)__builtin_ctzll(others);
        }
    }
#endif
    while (p < end && *p >= 0x20 && *p != '"' && *p != '\\')
        *to++ = *p++;
    return (size_t)(p - start);
}

/* Whether the \u escape of these four digits is the one that is written for a character. */
static int is_own(const uint8_t *digits) {
    uint8_t low = digits[3];
    if (digits[0] != '0' || digits[1] != '0' || (digits[2] != '0' && digits[2] != '1') || (low >= 'A' && low <= 'F'))
        return 0;
    return digits[2] == '1' || !strchr("89acd", low); /* those have an escape of one letter, but for 0x0b */
}

static uint8_t *unescape(Reader *r, const uint8_t **p, const uint8_t *end, uint8_t *to) {
    if (end - *p < 2)
        return NULL;
    uint8_t c = (*p)[1];
    *p += 2;
    if (c == '/' || (c == 'u' && (end - *p < 4 || !is_own(*p))))
        r->plain = 0;
    switch (c) {
    case '"': case '\\': case '/': *to++ = c; return to;
    case 'b': *to++ = '\b'; return to;
    case 'f': *to++ = '\f'; return to;
    case 'n': *to++ = '\n'; return to;
    case 'r': *to++ = '\r'; return to;
    case 't': *to++ = '\t'; return to;
    }
    int32_t code = c == 'u' ? escaped_code(p, end) : -1;
    return code < 0 ? NULL : encode(to, (uint32_t)code);
}

/* Decodes the string that begins after a quote; what it becomes is never longer than what it is. */
ALWAYS_INLINE int decode_string(Reader *r, const uint8_t *end, Heap *to, int wide) {
    size_t most = (size_t)(end - r->p), rest = (size_t)(r->end - r->p) + r->later;
    if (to->room.size > LARGE && to->size + most > to->room.size && rest > most && !heap_fit(to, rest))
        return NO_MEMORY; /* reserved once, to avoid repeated copies; unused pages are never touched */
    uint8_t *start = heap_reserve(to, most), *out = start;
    if (!start)
        return NO_MEMORY;
    const uint8_t *p = r->p;
    for (;;) {
        size_t run = copy_run(p, end, out, wide);
        out += run, p += run;
        if (p == end || *p < 0x20)
            return UNLIKE;
        if (*p == '"')
            break;
        if (!(out = unescape(r, &p, end, out)))
            return UNLIKE;
    }
    if (!is_utf8(start, out, wide)) /* escapes are whole characters, so what is between them is valid if all is */
        return UNLIKE;
    r->p = p + 1;
    to->size += (size_t)(out - start);
    return FINE;
}

WIDE static int read_wide(Reader *r, const uint8_t *end, Heap *to) { return decode_string(r, end, to, 1); }
static int read_narrow(Reader *r, const uint8_t *end, Heap *to) { return decode_string(r, end, to, 0); }
static int (*read_long)(Reader *, const uint8_t *, Heap *) = read_narrow;

/* Decodes the string that begins after a quote. Short ones, as most are, are ASCII and end within 16 bytes. */
static inline int read_string(Reader *r, const uint8_t *end, Heap *to) {
#ifdef __SSE2__
    uint8_t *out = end - r->p >= 16 ? heap_reserve(to, 16) : NULL;
    if (out) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)r->p);
        unsigned odd = not_plain(bytes) | (unsigned)_mm_movemask_epi8(bytes);
        unsigned size = odd ? (unsigned)__builtin_ctz(odd) : 16;
        if (size < 16 && r->p[size] == '"') {
            _mm_storeu_si128((__m128i *)(void *)out, bytes);
            to->size += size, r->p += size + 1;
            return FINE;
        }
    }
#endif
    return read_long(r, end, to);
}

PyObject *json_wide(PyObject *Py_UNUSED(self), PyObject *wanted) {
    int on = PyObject_IsTrue(wanted), was = read_long == read_wide;
    if (on < 0)
        return NULL;
    read_long = on && can_be_wide() ? read_wide : read_narrow;
    return PyBool_FromLong(was);
}

/* -- values --------------------------------------------------------------------------------------------------- */

/* Finds the end of a value other than a string. Python checks later whether it is valid JSON. */
static int skip_value(Reader *r, const uint8_t *end) {
    int64_t depth = 0;
    const uint8_t *start = r->p;
    for (; r->p < end; r->p++) {
        uint8_t c = *r->p;
        if (c == '"') {
            for (r->p++; r->p < end && *r->p != '"' && *r->p != '\n'; r->p++)
                r->p += *r->p == '\\' && end - r->p > 1 && r->p[1] != '\n';
            if (r->p >= end || *r->p == '\n')
                return UNLIKE;
        } else if (c == '[' || c == '{') {
            depth++;
        } else if (c == ']' || c == '}') {
            if (depth-- == 0)
                break;
        } else if (c == '\n' || (depth == 0 && (c == ',' || c == ' ' || c == '\t' || c == '\r'))) {
            break;
        }
    }
    return r->p > start && depth <= 0 ? FINE : UNLIKE;
}

static int append(Heap *heap, const void *bytes, size_t size) {
    uint8_t *to = heap_reserve(heap, size);
    if (!to)
        return NO_MEMORY;
    memcpy(to, bytes, size);
    heap->size += size;
    return FINE;
}

static int add_end(Values *v) {
    if (v->bytes.size > INT32_MAX)
        return UNLIKE;
    int32_t end = (int32_t)v->bytes.size;
    return append(&v->ends, &end, sizeof end);
}

static int add_flag(Values *v, uint8_t flag, int64_t row) {
    if (!v->validity.size && flag)
        return FINE; /* no null so far */
    uint8_t *to = heap_reserve(&v->validity, (size_t)row + 1 - v->validity.size);
    if (!to)
        return NO_MEMORY;
    memset(to, 1, (size_t)row - v->validity.size);
    to[(size_t)row - v->validity.size] = flag;
    v->validity.size = (size_t)row + 1;
    return FINE;
}

static int add_null(Values *v, int64_t row) {
    v->nulls++;
    if (v->kind == OTHERS)
        return append(&v->bytes, "null,", 5);
    if (v->kind == UNKNOWN) /* a later row determines the type */
        return FINE;
    int failed = add_flag(v, 0, row);
    return failed ? failed : add_end(v);
}

/* The first value that is not null determines the type of the column. */
static int begin_kind(Values *v, int kind, int64_t row) {
    v->kind = kind;
    int64_t nulls = v->nulls;
    v->nulls = 0;
    if (kind == STRINGS && add_end(v)) /* the offsets of an Arrow column begin with 0 */
        return NO_MEMORY;
    for (int64_t i = row - nulls; i < row; i++) {
        int failed = add_null(v, i);
        if (failed)
            return failed;
    }
    return FINE;
}

static int read_value(Reader *r, const uint8_t *end, Values *v) {
    int failed;
    if (*r->p == '"') {
        if (v->kind != STRINGS && (v->kind == OTHERS || (failed = begin_kind(v, STRINGS, r->rows))))
            return v->kind == OTHERS ? UNLIKE : failed;
        r->p++;
        if ((failed = read_string(r, end, &v->bytes)) || (failed = add_flag(v, 1, r->rows)))
            return failed;
        return add_end(v);
    }
    const uint8_t *start = r->p;
    if ((failed = skip_value(r, end)))
        return failed;
    if (r->p - start == 4 && !memcmp(start, "null", 4))
        return add_null(v, r->rows);
    if (v->kind != OTHERS && (v->kind == STRINGS || (failed = begin_kind(v, OTHERS, r->rows))))
        return v->kind == STRINGS ? UNLIKE : failed;
    failed = append(&v->bytes, start, (size_t)(r->p - start));
    return failed ? failed : append(&v->bytes, ",", 1);
}

/* -- lines ---------------------------------------------------------------------------------------------------- */

/* Whether the key that begins after a quote is spelled like that of a column. */
static inline int is_spelled(const Values *v, const uint8_t *p, const uint8_t *end) {
    size_t size = v->spelling.size;
    return (size_t)(end - p) > size && p[size] == '"' && (!size || !memcmp(p, v->spelling.room.memory, size));
}

/* A column for a key that is new: all rows so far lack it. */
static int add_column(Reader *r, const uint8_t *spelling, size_t size) {
    if (r->count == MOST_COLUMNS)
        return UNLIKE;
    Values *v = &r->columns[r->count++];
    v->nulls = r->rows;
    r->alike &= !r->rows;
    int failed = append(&v->spelling, spelling, size);
    return failed ? failed : append(&v->key, r->key.room.memory, r->key.size);
}

/* Finds the column of the key that begins after a quote, usually the expected one. */
static int find_column(Reader *r, const uint8_t *end, int *index) {
    if (*index < r->count && is_spelled(&r->columns[*index], r->p, end)) {
        r->p += r->columns[*index].spelling.size + 1;
        return FINE;
    }
    const uint8_t *start = r->p;
    r->key.size = 0;
    int failed = read_string(r, end, &r->key);
    if (failed)
        return failed;
    for (int i = 0; i < r->count; i++) {
        Heap *key = &r->columns[i].key;
        if (key->size == r->key.size && (!key->size || !memcmp(key->room.memory, r->key.room.memory, key->size))) {
            *index = i;
            return FINE;
        }
    }
    *index = r->count;
    return add_column(r, start, (size_t)(r->p - 1 - start));
}

/* Reads a key and the colon. An object with a duplicate key is left to Python. */
static int read_key(Reader *r, const uint8_t *end, int *index) {
    skip_blanks(r, end);
    if (r->p == end || *r->p++ != '"')
        return UNLIKE;
    int failed = find_column(r, end, index);
    if (failed)
        return failed;
    Values *v = &r->columns[*index];
    if (v->seen == r->rows + 1)
        return UNLIKE;
    v->seen = r->rows + 1;
    skip_blanks(r, end);
    if (r->p == end || *r->p++ != ':')
        return UNLIKE;
    skip_blanks(r, end);
    return r->p == end ? UNLIKE : FINE;
}

/* Missing keys are null. */
static int end_object(Reader *r, const uint8_t *end, int keys) {
    r->p++;
    skip_blanks(r, end);
    if (r->p < end && *r->p != '\n')
        return UNLIKE;
    for (int i = 0; keys < r->count && i < r->count; i++) {
        if (r->columns[i].seen == r->rows + 1)
            continue;
        r->alike = 0;
        int failed = add_null(&r->columns[i], r->rows);
        if (failed)
            return failed;
    }
    return FINE;
}

static int read_object(Reader *r, const uint8_t *end) {
    r->p++;
    skip_blanks(r, end);
    if (r->p < end && *r->p == '}')
        return end_object(r, end, 0);
    for (int index = 0, keys = 1;; index++, keys++) {
        int failed = read_key(r, end, &index);
        r->alike &= index == keys - 1;
        if (failed || (failed = read_value(r, end, &r->columns[index])))
            return failed;
        skip_blanks(r, end);
        if (r->p == end)
            return UNLIKE;
        if (*r->p == '}')
            return end_object(r, end, keys);
        if (*r->p++ != ',')
            return UNLIKE;
    }
}

/* Where some whole lines end: not many, since each string is given room for as much as all of them. */
static const uint8_t *lines_end(const uint8_t *p, const uint8_t *end, int is_last) {
    const uint8_t *most = end - p > PIECE ? p + PIECE : end, *stop = most;
    while (stop > p && stop[-1] != '\n')
        stop--;
    if (stop > p)
        return stop;
    stop = memchr(most, '\n', (size_t)(end - most)); /* of a long line */
    return stop ? stop + 1 : is_last ? end : p;
}

/* Reads whole lines; and what is after the last of them, if nothing else is to come. Where a line ends is not looked for: no
value goes on after that. */
static int read_lines(Reader *r, int is_last) {
    const uint8_t *begin = r->p, *end = begin;
    while (r->p < end || (end = lines_end(r->p, r->end, is_last)) > r->p) {
        const uint8_t *line = r->p;
        skip_blanks(r, end);
        int blank = r->p == end || *r->p == '\n';
        r->alike &= !blank;
        if (!blank) {
            int64_t start = r->before + (line - begin);
            int failed = *r->p == '{' ? read_object(r, end) : UNLIKE;
            if (failed || (failed = append(&r->starts, &start, sizeof start)))
                return failed;
            r->rows++;
        }
        r->p += r->p < end; /* the line end */
    }
    r->before += r->p - begin;
    return FINE;
}

/* Reads the lines of `size` bytes of a file, piece by piece. Beyond them there may be more, in which case the last line may
be a part of one, unless they are `whole`. A file that ends before is read to its end, unless they are. */
static int read_pieces(Reader *r, int file, int64_t position, size_t size, int whole, Heap *piece) {
    size_t done = 0, held = 0; /* held: bytes of a line of which more is to come */
    struct stat about;
    size_t there = fstat(file, &about) || about.st_size < position ? 0 : (size_t)(about.st_size - position);
    there = size < there ? size : there;
    for (int is_last = 0; !is_last && done < size;) {
        size_t more = held > PIECE ? held : PIECE; /* a long line is not searched again for each piece of it */
        more = size - done < more ? size - done : more;
        uint8_t *to = heap_reserve(piece, more);
        if (!to)
            return NO_MEMORY;
        ssize_t found = pread(file, to, more, (off_t)(position + (int64_t)done));
        if (found < 0 || (!found && whole))
            return UNLIKE; /* Python reads it again and reports the error */
        done += (size_t)found;
        is_last = !found || (whole && done == size);
        r->p = piece->room.memory, r->end = r->p + held + found, r->later = there > done ? there - done : 0;
        int failed = read_lines(r, is_last);
        if (failed)
            return failed;
        held = (size_t)(r->end - r->p);
        memmove(piece->room.memory, r->p, held);
        piece->size = held;
    }
    return FINE;
}

/* -- results -------------------------------------------------------------------------------------------------- */

/* Memory that was filled here, as an object with the buffer protocol: columns are large, and need not be copied. */
typedef struct {
    PyObject_HEAD
    void *memory;
    Py_ssize_t size;
} Owned;

static int owned_buffer(PyObject *self, Py_buffer *view, int flags) {
    Owned *owned = (Owned *)self;
    return PyBuffer_FillInfo(view, self, owned->memory, owned->size, 1, flags);
}

static void owned_free(PyObject *self) {
    free(((Owned *)self)->memory);
    PyObject_Free(self);
}

static PyBufferProcs owned_procs = {owned_buffer, NULL};
static PyTypeObject owned_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gristmill._kernels.Memory",
    .tp_basicsize = sizeof(Owned),
    .tp_dealloc = owned_free,
    .tp_as_buffer = &owned_procs,
    .tp_flags = Py_TPFLAGS_DEFAULT,
};

/* Takes the collected bytes from the heap. */
static PyObject *as_object(Heap *heap) {
    if (PyType_Ready(&owned_type))
        return NULL;
    void *memory = realloc(heap->room.memory, heap->size + !heap->size);
    Owned *owned = memory ? PyObject_New(Owned, &owned_type) : NULL;
    if (!memory)
        return PyErr_NoMemory();
    heap->room.memory = memory; /* it may have moved */
    if (owned) {
        owned->memory = memory, owned->size = (Py_ssize_t)heap->size;
        heap->room.memory = NULL;
    }
    return (PyObject *)owned;
}

static PyObject *bitmap(const Values *v, int64_t rows) {
    if (!v->nulls)
        Py_RETURN_NONE;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(rows + 7) / 8);
    if (!bytes)
        return NULL;
    uint8_t *bits = (uint8_t *)PyBytes_AS_STRING(bytes);
    const uint8_t *flags = v->validity.room.memory;
    memset(bits, 0, (size_t)(rows + 7) / 8);
    for (int64_t i = 0; i < rows; i++)
        if ((size_t)i >= v->validity.size || flags[i])
            bits[i >> 3] |= (uint8_t)(1 << (i & 7));
    return bytes;
}

/* A column: (key, ends, strings, bitmap, nulls), or (key, JSON values with a comma after each). */
static PyObject *column_of(Values *v, int64_t rows) {
    const char *key = v->key.size ? v->key.room.memory : "";
    Py_ssize_t key_size = (Py_ssize_t)v->key.size;
    if (v->kind == STRINGS)
        return Py_BuildValue("(s#NNNL)", key, key_size, as_object(&v->ends), as_object(&v->bytes), bitmap(v, rows),
                             (long long)v->nulls);
    return Py_BuildValue("(s#N)", key, key_size, as_object(&v->bytes));
}

static PyObject *result_of(Reader *r) {
    PyObject *columns = PyList_New(r->count);
    for (int i = 0; columns && i < r->count; i++) {
        Values *v = &r->columns[i];
        PyObject *column = NULL;
        if (v->kind != UNKNOWN || !begin_kind(v, OTHERS, r->rows))
            column = column_of(v, r->rows);
        else
            PyErr_NoMemory();
        if (column)
            PyList_SET_ITEM(columns, i, column);
        else
            Py_CLEAR(columns);
    }
    return columns ? Py_BuildValue("(NNi)", columns, as_object(&r->starts), r->alike ? 1 + r->plain : 0) : NULL;
}

static void reader_free(Reader *r) {
    for (int i = 0; i < MOST_COLUMNS; i++) {
        free(r->columns[i].spelling.room.memory);
        free(r->columns[i].key.room.memory);
        free(r->columns[i].bytes.room.memory);
        free(r->columns[i].ends.room.memory);
        free(r->columns[i].validity.room.memory);
    }
    free(r->starts.room.memory);
    free(r->key.room.memory);
    free(r);
}

static Reader *reader_new(void) {
    Reader *r = calloc(1, sizeof *r);
    if (r)
        r->plain = r->alike = 1;
    else
        PyErr_NoMemory();
    return r;
}

/* The result of json_columns; releases the reader. */
static PyObject *end_reader(Reader *r, int failed) {
    PyObject *result = NULL;
    if (failed == NO_MEMORY)
        PyErr_NoMemory();
    else if (failed == FINE && r->count)
        result = result_of(r);
    else
        result = Py_NewRef(Py_None);
    reader_free(r);
    return result;
}

PyObject *json_columns(PyObject *Py_UNUSED(self), PyObject *block) {
    Py_buffer view;
    if (PyObject_GetBuffer(block, &view, PyBUF_SIMPLE))
        return NULL;
    PyObject *result = NULL;
    Reader *r = reader_new();
    if (r) {
        int failed;
        r->p = view.buf, r->end = r->p + view.len;
        Py_BEGIN_ALLOW_THREADS;
        failed = read_lines(r, 1);
        Py_END_ALLOW_THREADS;
        result = end_reader(r, failed);
    }
    PyBuffer_Release(&view);
    return result;
}

PyObject *json_columns_of(PyObject *Py_UNUSED(self), PyObject *args) {
    int file, whole;
    Py_ssize_t position, size;
    if (!PyArg_ParseTuple(args, "innp", &file, &position, &size, &whole))
        return NULL;
    Reader *r = reader_new();
    if (!r)
        return NULL;
    Heap piece = {0};
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    failed = read_pieces(r, file, position, (size_t)size, whole, &piece);
    Py_END_ALLOW_THREADS;
    free(piece.room.memory);
    long long parsed = r->before;
    PyObject *columns = end_reader(r, failed);
    return columns && columns != Py_None ? Py_BuildValue("(NL)", columns, parsed) : columns;
}
