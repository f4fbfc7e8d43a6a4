/* Sets of shingles as sorted numbers, of which the gaps are written in Rice's code. Numbers are the upper bits of
   shingles, as many as are needed to tell those of two documents apart (dedup/reference.py).

       8 bytes    the least shingle, whole: documents with the same one are compared in samples
       4 bytes    how many different shingles there are, which says how many bits of each are kept
       4 bytes    how many numbers follow: a few less, since some shingles have the same upper bits
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

/* Shingles are spread evenly, so that sharing them out by their upper bits all but sorts them. Returns how many
   different ones there are, or -1 without memory. */
static int64_t sorted(const uint64_t *shingles, int64_t count, SetRoom *rooms) {
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
    int64_t found = 1;
    for (int64_t i = 1; i < count; i++) {
        values[found] = values[i];
        found += values[i] != values[found - 1];
    }
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
    int64_t different = count < UINT32_MAX ? sorted(shingles, count, rooms) : -1;
    if (different < 0)
        return -1;
    uint64_t *values = rooms->values.memory, least = values[0];
    int bits = bits_for((uint64_t)different), shift = 64 - bits;
    uint32_t kept = 0;
    for (int64_t i = 0; i < different; i++) {
        values[kept] = values[i] >> shift;
        kept += !kept || values[kept - 1] != values[kept];
    }
    int low = bits - log2_up(kept);
    size_t most = HEAD + ((size_t)kept * (size_t)(low + 3) + 64) / 8 + 16;
    uint8_t *start = room(to, *size + most);
    if (!start)
        return -1;
    start += *size;
    store8(start, least);
    store8(start + 8, (uint64_t)different | (uint64_t)kept << 32);
    BitWriter writer = {start + HEAD, 0, 0};
    for (uint64_t i = 0, before = 0; i < kept; before = values[i++])
        put_gap(&writer, values[i] - before, low);
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

/* A set that has been read, and what it was read from: the first of a pair is as a rule that of the pair before it. */
typedef struct {
    Room room;
    Text code;
    uint32_t count;
    int bits;
} Numbers;

static int is_same(Text one, Text other) {
    return one.size == other.size && (one.bytes == other.bytes || !memcmp(one.bytes, other.bytes, (size_t)one.size));
}

/* Reads a whole set. Returns -1 if it cannot be read, -2 without memory. */
static int read_set(Text code, Numbers *numbers) {
    if (numbers->code.size && is_same(code, numbers->code))
        return 0;
    numbers->code.size = 0;
    SetReader reader = set_open(code);
    if (reader.damaged || reader.left > reader.end) /* each number takes a bit at least */
        return -1;
    uint64_t *values = room(&numbers->room, (size_t)reader.left * 8);
    if (!values)
        return -2;
    uint32_t count = 0;
    while (set_next(&reader))
        values[count++] = reader.value;
    if (reader.damaged)
        return -1;
    numbers->code = code, numbers->count = count, numbers->bits = reader.bits;
    return 0;
}

/* Leaves `shift` bits of each number out, and what is the same then. Returns how many are left. */
static uint32_t shorten(uint64_t *values, uint32_t count, int shift) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        values[kept] = values[i] >> shift;
        kept += !kept || values[kept] != values[kept - 1];
    }
    return kept;
}

/* Returns -1 for codes that cannot be read, -2 without memory. */
static double set_similarity(Text left, Text right, Numbers *one, Numbers *other) {
    if (!left.size || !right.size)
        return 0;
    if (left.size > HEAD + 8 && is_same(left, right))
        return 1; /* as most pairs of many corpora are */
    int failed = read_set(left, one);
    if (failed || (failed = read_set(right, other)))
        return failed;
    Numbers *longer = one->bits > other->bits ? one : other;
    int shift = longer->bits - (one->bits < other->bits ? one->bits : other->bits);
    if (shift) {
        longer->count = shorten(longer->room.memory, longer->count, shift);
        longer->code.size = 0; /* it is no longer what it was read from */
    }
    const uint64_t *a = one->room.memory, *b = other->room.memory;
    uint32_t i = 0, j = 0, both = 0;
    while (i < one->count && j < other->count) { /* without a branch, which would be guessed wrongly too often */
        uint64_t x = a[i], y = b[j];
        both += x == y;
        i += x <= y;
        j += y <= x;
    }
    return (double)both / ((double)one->count + (double)other->count - (double)both);
}

/* Whether each of some numbers is that of a row. */
static int are_rows(const Py_buffer *rows, int64_t count, int64_t most) {
    const int64_t *row = rows->buf;
    int fine = rows->len == count * 8;
    for (int64_t i = 0; fine && i < count; i++)
        fine = row[i] >= 0 && row[i] < most;
    return fine;
}

/* set_jaccard(left, right, rows): the Jaccard similarity of each set and that of a row of the others, as 64-bit floats. */
PyObject *set_jaccard(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *left_object, *right_object, *result = NULL;
    Column left, right;
    Py_buffer rows;
    if (!PyArg_ParseTuple(args, "OOy*", &left_object, &right_object, &rows))
        return NULL;
    if (column_open(&left, left_object)) {
        PyBuffer_Release(&rows);
        return NULL;
    }
    if (column_open(&right, right_object)) {
        column_close(&left);
        PyBuffer_Release(&rows);
        return NULL;
    }
    if (!column_is_bytes(&left) || !column_is_bytes(&right) || !are_rows(&rows, left.array->length, right.array->length))
        PyErr_SetString(PyExc_TypeError, "set_jaccard takes two columns of bytes, and for each row of one a row of the other");
    else
        result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)left.array->length * 8);
    if (result) {
        double *found = (double *)(void *)PyBytes_AS_STRING(result), least = 0;
        Numbers one = {0}, other = {0};
        Py_BEGIN_ALLOW_THREADS;
        for (int64_t row = 0; row < left.array->length; row++) {
            Text mine = column_text(&left, row), theirs = column_text(&right, ((const int64_t *)rows.buf)[row]);
            found[row] = set_similarity(mine, theirs, &one, &other);
            least = found[row] < least ? found[row] : least;
        }
        Py_END_ALLOW_THREADS;
        free(one.room.memory);
        free(other.room.memory);
        if (least < 0) {
            Py_CLEAR(result);
            if (least < -1)
                PyErr_NoMemory();
            else
                PyErr_SetString(PyExc_ValueError, "a set of shingles cannot be read: it is damaged");
        }
    }
    column_close(&left);
    column_close(&right);
    PyBuffer_Release(&rows);
    return result;
}
