/* Sets of shingles as sorted numbers, whose gaps are Rice-coded. A number is the upper bits of a shingle, as many as are
   needed to tell the shingles of two documents apart (dedup/columns/kernel_reference.py).

       8 bytes    the smallest shingle in full: documents that share it are compared in samples
       4 bytes    the number of distinct shingles, which determines how many bits of each are kept
       4 bytes    the number of numbers that follow: slightly fewer, since some shingles share their upper bits
       gaps       each as a run of zero bits and a one, then the lower bits; 8 bytes of zeros at the end */

#include "dedup.h"
#include "sets.h"

#define HEAD 16
#define LEAST_BITS 22
#define MORE_BITS 10

void set_room_free(SetRoom *rooms) {
    free(rooms->values.memory);
    free(rooms->ends.memory);
}

static int log2_up(uint64_t x) { return x > 1 ? 64 - __builtin_clzll(x - 1) : 0; }

static int bits_for(uint64_t count) {
    int bits = log2_up(count) + MORE_BITS;
    return bits > LEAST_BITS ? bits : LEAST_BITS;
}

/* -- writing ------------------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* For numbers that are nearly in order. */
static void insert_all(uint64_t *values, size_t count) {
    for (size_t i = 1; i < count; i++) {
        uint64_t value = values[i];
        size_t at = i;
        for (; at && values[at - 1] > value; at--)
            values[at] = values[at - 1];
        values[at] = value;
    }
}

/* Shingles are spread evenly, so that sharing them out by their upper bits all but sorts them. Returns -1 without
   memory. */
static int sorted(const uint64_t *shingles, int64_t count, SetRoom *rooms) {
    int shift = 64 - log2_up((uint64_t)count + 1); /* one bit at least, so that a shift is always possible */
    size_t slots = (size_t)1 << (64 - shift);
    uint64_t *values = room(&rooms->values, (size_t)count * 8);
    uint32_t *ends = room(&rooms->ends, slots * 4);
    if (!values || !ends)
        return -1;
    memset(ends, 0, slots * 4);
    for (int64_t i = 0; i < count; i++)
        ends[shingles[i] >> shift]++;
    uint32_t most = 0, sum = 0;
    for (size_t slot = 0; slot < slots; slot++) {
        uint32_t mine = ends[slot];
        ends[slot] = sum;
        sum += mine;
        most = mine > most ? mine : most;
    }
    for (int64_t i = 0; i < count; i++)
        values[ends[shingles[i] >> shift]++] = shingles[i];
    if (most > 32)
        qsort(values, (size_t)count, sizeof *values, compare);
    else
        insert_all(values, (size_t)count);
    return 0;
}

/* How many different numbers there are, of some that are in order, without their lower bits. */
static uint32_t different(const uint64_t *values, int64_t count, int shift) {
    uint32_t found = 1;
    for (int64_t i = 1; i < count; i++)
        found += values[i] >> shift != values[i - 1] >> shift;
    return found;
}

typedef struct {
    uint8_t *to;
    uint64_t bits;
    int used;
} BitWriter;

/* At most 56 bits. */
static inline void put(BitWriter *writer, uint64_t value, int bits) {
    writer->bits |= value << writer->used;
    writer->used += bits;
    store8(writer->to, writer->bits);
    writer->to += writer->used >> 3;
    writer->bits = writer->used > 63 ? 0 : writer->bits >> (writer->used & ~7);
    writer->used &= 7;
}

static inline void put_gap(BitWriter *writer, uint64_t gap, int low) {
    uint64_t zeros = gap >> low;
    for (; zeros > 15; zeros -= 15)
        put(writer, 0, 15);
    put(writer, (gap & (((uint64_t)1 << low) - 1)) << (zeros + 1) | (uint64_t)1 << zeros, (int)zeros + 1 + low);
}

int set_append(const uint64_t *shingles, int64_t count, SetRoom *rooms, Room *to, size_t *size) {
    if (count >= UINT32_MAX || sorted(shingles, count, rooms))
        return -1;
    const uint64_t *values = rooms->values.memory;
    uint32_t all = different(values, count, 0);
    int bits = bits_for(all), shift = 64 - bits;
    uint32_t kept = different(values, count, shift);
    int low = bits - log2_up(kept);
    size_t most = HEAD + ((size_t)kept * (size_t)(low + 3) + 64) / 8 + 16;
    uint8_t *start = room(to, *size + most);
    if (!start)
        return -1;
    start += *size;
    store8(start, values[0]);
    store8(start + 8, (uint64_t)all | (uint64_t)kept << 32);
    BitWriter writer = {start + HEAD, 0, 0};
    uint64_t before = values[0] >> shift;
    put_gap(&writer, before, low);
    for (int64_t i = 1; i < count; i++) {
        uint64_t value = values[i] >> shift;
        if (value != before) /* as a rule */
            put_gap(&writer, value - before, low);
        before = value;
    }
    put(&writer, 0, 7); /* the last bits are out */
    memset(writer.to, 0, 8);
    *size += (size_t)(writer.to + 8 - start);
    return 0;
}

/* -- reading ------------------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *bytes;
    uint64_t at, end; /* in bits; a number can be loaded from before `end` */
    uint64_t value;
    uint32_t left;
    int low, bits, damaged;
} SetReader;

static SetReader set_open(Text code) {
    SetReader reader = {code.bytes + HEAD, 0, 0, 0, 0, 0, LEAST_BITS, 1};
    if (code.size < HEAD + 8)
        return reader;
    uint64_t counts = little8(code.bytes + 8);
    reader.end = (uint64_t)(code.size - HEAD - 8) * 8 + 1;
    reader.left = (uint32_t)(counts >> 32);
    reader.bits = bits_for(counts & UINT32_MAX);
    reader.low = reader.bits - log2_up(reader.left);
    reader.damaged = !reader.left || reader.left > (counts & UINT32_MAX);
    return reader;
}

/* The next number. Returns 0 when there is none. */
static inline int set_next(SetReader *reader) {
    uint64_t zeros = 0, lower;
    if (!reader->left || reader->damaged)
        return 0;
    for (;;) {
        if (reader->at >= reader->end) {
            reader->damaged = 1;
            return 0;
        }
        int used = (int)(reader->at & 7);
        uint64_t window = little8(reader->bytes + (reader->at >> 3)) >> used;
        if (window) {
            int more = __builtin_ctzll(window);
            zeros += (uint64_t)more;
            reader->at += (uint64_t)more + 1;
            if (more + 1 + reader->low <= 63 - used) { /* all of it is here, as a rule */
                lower = window >> (more + 1);
                goto found;
            }
            break;
        }
        zeros += (uint64_t)(64 - used);
        reader->at += (uint64_t)(64 - used);
    }
    if (reader->at >= reader->end) {
        reader->damaged = 1;
        return 0;
    }
    lower = little8(reader->bytes + (reader->at >> 3)) >> (reader->at & 7);
found:
    reader->at += (uint64_t)reader->low;
    reader->value += zeros << reader->low | (lower & (((uint64_t)1 << reader->low) - 1));
    reader->left--;
    return 1;
}

/* Reads all numbers, as a rule several of each 8 bytes that are loaded. */
static void read_all(SetReader *reader, uint64_t *to) {
    uint64_t mask = ((uint64_t)1 << reader->low) - 1;
    while (reader->left && !reader->damaged) {
        uint64_t value = reader->value, at = reader->at;
        uint32_t left = reader->left;
        int used = (int)(at & 7), bits = 64 - used;
        uint64_t window = at < reader->end ? little8(reader->bytes + (at >> 3)) >> used : 0;
        for (; window && left && at < reader->end; left--) {
            int zeros = __builtin_ctzll(window), size = zeros + 1 + reader->low;
            if (size > bits)
                break;
            window >>= zeros + 1;
            value += (uint64_t)zeros << reader->low | (window & mask);
            window >>= reader->low;
            bits -= size, at += (uint64_t)size;
            *to++ = value;
        }
        int none = left == reader->left;
        reader->value = value, reader->at = at, reader->left = left;
        if (none && set_next(reader)) /* a gap that is longer than what is loaded */
            *to++ = reader->value;
    }
}

/* Decoded sets of a column are cached as far as memory allows: most are compared several times. */
typedef struct {
    size_t start;
    uint32_t count, generation;
    int bits;
} Known;

typedef struct {
    const Column *column;
    const int64_t *rows; /* which are compared */
    Room known;
} Side;

#define MOST_NUMBERS ((size_t)1 << 21)

typedef struct {
    Side left, right;
    Room numbers, shorter;
    size_t used;
    uint32_t generation; /* what was read before it is forgotten */
} Reading;

static int is_same(Text one, Text other) {
    return one.size == other.size && (one.bytes == other.bytes || !memcmp(one.bytes, other.bytes, (size_t)one.size));
}

enum { DAMAGED = -1, NO_MEMORY = -2 };

/* Reads a set, unless that has been done. */
static int read_set(Side *side, int64_t row, Reading *reading) {
    Known *known = (Known *)side->known.memory + row;
    if (known->generation == reading->generation)
        return 0;
    SetReader reader = set_open(column_text(side->column, row));
    if (reader.damaged || reader.left > reader.end) /* each number takes a bit at least */
        return DAMAGED;
    uint64_t *numbers = room(&reading->numbers, (reading->used + reader.left) * 8);
    if (!numbers)
        return NO_MEMORY;
    *known = (Known){reading->used, reader.left, reading->generation, reader.bits};
    read_all(&reader, numbers + reading->used);
    reading->used += known->count;
    return reader.damaged ? DAMAGED : 0;
}

/* Leaves `shift` bits of each number out, and what is the same then. Returns how many are left. */
static uint32_t shorten(const uint64_t *values, uint32_t count, int shift, uint64_t *to) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        to[kept] = values[i] >> shift;
        kept += !kept || to[kept] != to[kept - 1];
    }
    return kept;
}

/* A branchless step of merging two sorted sets: a branch would be mispredicted too often. */
#define STEP(i, j) do { uint64_t x = a[i], y = b[j]; both += x == y, i += x <= y, j += y <= x; } while (0)

/* How many numbers two sets have in common. Both halves are gone through at a time: a step has to wait for the one
   before it, but not for one of the other half. */
static uint32_t in_common(const uint64_t *a, uint32_t size, const uint64_t *b, uint32_t other_size) {
    uint32_t both = 0, half = size / 2, low = 0, high = other_size;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (b[middle] < a[half])
            low = middle + 1;
        else
            high = middle;
    }
    uint32_t i = 0, j = 0, k = half, l = low;
    while (i < half && j < low && k < size && l < other_size) {
        STEP(i, j);
        STEP(k, l);
    }
    while (i < half && j < low)
        STEP(i, j);
    while (k < size && l < other_size)
        STEP(k, l);
    return both;
}

static double jaccard_of(const uint64_t *a, uint32_t size, const uint64_t *b, uint32_t other_size) {
    uint32_t both = in_common(a, size, b, other_size);
    return (double)both / ((double)size + (double)other_size - (double)both);
}

static double set_similarity(Reading *reading, int64_t left_row, int64_t right_row) {
    Text left = column_text(reading->left.column, left_row), right = column_text(reading->right.column, right_row);
    if (!left.size || !right.size)
        return 0;
    if (left.size > HEAD + 8 && is_same(left, right))
        return 1; /* true of most pairs in many corpora */
    if (reading->used > MOST_NUMBERS)
        reading->used = 0, reading->generation++;
    int failed = read_set(&reading->left, left_row, reading);
    if (failed || (failed = read_set(&reading->right, right_row, reading)))
        return failed;
    Known one = ((Known *)reading->left.known.memory)[left_row], other = ((Known *)reading->right.known.memory)[right_row];
    Known *longer = one.bits > other.bits ? &one : &other;
    int shift = longer->bits - (one.bits < other.bits ? one.bits : other.bits);
    const uint64_t *numbers = reading->numbers.memory, *a = numbers + one.start, *b = numbers + other.start;
    if (shift) {
        uint64_t *shorter = room(&reading->shorter, (size_t)longer->count * 8);
        if (!shorter)
            return NO_MEMORY;
        longer->count = shorten(numbers + longer->start, longer->count, shift, shorter);
        *(longer == &one ? &a : &b) = shorter;
    }
    return jaccard_of(a, one.count, b, other.count);
}

/* Whether each of some numbers is that of a row. */
static int are_rows(const Py_buffer *rows, int64_t most) {
    const int64_t *row = rows->buf;
    int fine = rows->len % 8 == 0;
    for (Py_ssize_t i = 0; fine && i < rows->len / 8; i++)
        fine = row[i] >= 0 && row[i] < most;
    return fine;
}

static int side_open(Side *side, const Column *column, const Py_buffer *rows) {
    size_t size = ((size_t)column->array->length + 1) * sizeof(Known);
    *side = (Side){column, rows->buf, {0}};
    if (!room(&side->known, size))
        return -1;
    memset(side->known.memory, 0, size);
    return 0;
}

/* Returns 0, DAMAGED or NO_MEMORY. */
static int compare_all(const Column *columns, const Py_buffer *rows, int64_t count, double *found) {
    Reading reading = {.generation = 1};
    int failed = side_open(&reading.left, columns, rows) || side_open(&reading.right, columns + 1, rows + 1) ? NO_MEMORY : 0;
    for (int64_t i = 0; i < count && !failed; i++) {
        found[i] = set_similarity(&reading, reading.left.rows[i], reading.right.rows[i]);
        failed = found[i] < 0 ? (int)found[i] : 0;
    }
    free(reading.left.known.memory);
    free(reading.right.known.memory);
    free(reading.numbers.memory);
    free(reading.shorter.memory);
    return failed;
}

static PyObject *compare_columns(const Column *columns, const Py_buffer *rows) {
    int fine = column_is_bytes(columns) && column_is_bytes(columns + 1) && rows[0].len == rows[1].len &&
               are_rows(rows, columns[0].array->length) && are_rows(rows + 1, columns[1].array->length);
    if (!fine)
        return PyErr_Format(PyExc_TypeError, "set_jaccard takes two columns of bytes, each with the rows that are compared");
    PyObject *result = PyBytes_FromStringAndSize(NULL, rows->len);
    if (!result)
        return NULL;
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    failed = compare_all(columns, rows, rows->len / 8, (double *)(void *)PyBytes_AS_STRING(result));
    Py_END_ALLOW_THREADS;
    if (!failed)
        return result;
    Py_DECREF(result);
    if (failed == NO_MEMORY)
        return PyErr_NoMemory();
    return PyErr_Format(PyExc_ValueError, "a set of shingles cannot be read: it is damaged");
}

/* set_jaccard(left, left_rows, right, right_rows): the Jaccard similarity of each pair of sets, as 64-bit floats. */
PyObject *set_jaccard(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *objects[2], *result = NULL;
    Column columns[2];
    Py_buffer rows[2];
    if (!PyArg_ParseTuple(args, "Oy*Oy*", objects, rows, objects + 1, rows + 1))
        return NULL;
    if (!column_open(columns, objects[0])) {
        if (!column_open(columns + 1, objects[1])) {
            result = compare_columns(columns, rows);
            column_close(columns + 1);
        }
        column_close(columns);
    }
    PyBuffer_Release(rows);
    PyBuffer_Release(rows + 1);
    return result;
}
