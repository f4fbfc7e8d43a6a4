/* Levenshtein distances between the words of two texts: how many to replace, leave out and put in. Words are what
   str.split of Python gives. The algorithm is Myers', 64 words of the one text at a time, so memory grows with the words
   and not with their product. */

#include "transcripts.h"
#include "block.h"

typedef struct {
    Text text;
    uint64_t hash;
    int32_t number; /* of the first word of the left text that is the same; -1 if there is none */
} Word;

typedef struct {
    Room left, right, slots, masks, carries;
} Rooms;

static inline uint64_t hash_of(const uint8_t *p, const uint8_t *word_end, const uint8_t *end) {
    uint64_t hash = (uint64_t)(word_end - p);
    for (; word_end - p >= 8; p += 8)
        hash = mix(hash, load8(p));
    return mix(hash, load_few(p, (size_t)(word_end - p), end));
}

/* How many words a text has, which are put into `words`; -1 if out of memory. */
static int64_t split(Text text, Room *words) {
    const uint8_t *end = text.bytes + text.size, *start = NULL;
    Word *all = room(words, (size_t)(text.size / 2 + 1) * sizeof *all);
    int64_t count = 0;
    uint64_t carry = 0, was_space = 1;
    if (!all)
        return -1;
    for (const uint8_t *p = text.bytes; p < end; p += BLOCK) {
        Block block = load_block(p, end);
        block.space |= carry, carry = 0;
        if (block.high)
            find_spaces(p, end, &block, &carry);
        for (uint64_t edges = block.space ^ (block.space << 1 | was_space); edges; edges &= edges - 1) {
            const uint8_t *edge = p + __builtin_ctzll(edges);
            if (start)
                all[count++] = (Word){{start, edge - start}, hash_of(start, edge, end), -1}, start = NULL;
            else
                start = edge;
        }
        was_space = block.space >> 63;
    }
    if (start)
        all[count++] = (Word){{start, end - start}, hash_of(start, end, end), -1};
    return count;
}

static inline int same(const Word *a, const Word *b) {
    return a->hash == b->hash && a->text.size == b->text.size && !memcmp(a->text.bytes, b->text.bytes, (size_t)a->text.size);
}

/* Numbers the words: the same number for the same word. Returns -1 if out of memory. */
static int number_words(Word *left, int64_t lefts, Word *right, int64_t rights, Rooms *rooms) {
    uint64_t size = 4;
    while (size < (uint64_t)lefts * 2)
        size *= 2;
    int32_t *slots = room(&rooms->slots, size * sizeof *slots);
    if (!slots)
        return -1;
    memset(slots, -1, size * sizeof *slots);
    for (int64_t i = 0; i < lefts + rights; i++) {
        Word *word = i < lefts ? left + i : right + (i - lefts);
        uint64_t at = word->hash & (size - 1);
        while (slots[at] >= 0 && !same(left + slots[at], word))
            at = (at + 1) & (size - 1);
        if (slots[at] < 0 && i < lefts)
            slots[at] = (int32_t)i;
        word->number = slots[at];
    }
    return 0;
}

/* The distance of words that have numbers; neither text is empty. Returns -1 if out of memory. */
static int64_t distance_of(const Word *left, int64_t lefts, const Word *right, int64_t rights, Rooms *rooms) {
    uint64_t *masks = room(&rooms->masks, (size_t)lefts * sizeof *masks);
    int8_t *carries = room(&rooms->carries, (size_t)rights);
    if (!masks || !carries)
        return -1;
    memset(masks, 0, (size_t)lefts * sizeof *masks);
    memset(carries, 1, (size_t)rights);
    int64_t distance = lefts;
    for (int64_t first = 0; first < lefts; first += 64) {
        int64_t size = lefts - first < 64 ? lefts - first : 64;
        uint64_t up = ~(uint64_t)0, down = 0, last = (uint64_t)1 << (size - 1);
        for (int64_t i = 0; i < size; i++)
            masks[left[first + i].number] |= (uint64_t)1 << i;
        for (int64_t j = 0; j < rights; j++) {
            uint64_t equal = right[j].number < 0 ? 0 : masks[right[j].number];
            uint64_t vertical = equal | down;
            equal |= carries[j] < 0;
            uint64_t across = (((equal & up) + up) ^ up) | equal;
            uint64_t more = down | ~(across | up), less = up & across;
            int8_t carry = (int8_t)((more & last ? 1 : 0) - (less & last ? 1 : 0));
            more = more << 1 | (carries[j] > 0), less = less << 1 | (carries[j] < 0);
            up = less | ~(vertical | more), down = more & vertical;
            carries[j] = carry;
        }
        for (int64_t i = 0; i < size; i++)
            masks[left[first + i].number] = 0;
    }
    for (int64_t j = 0; j < rights; j++)
        distance += carries[j];
    return distance;
}

/* The distance of two texts, and how many words each has. Returns -1 if out of memory. */
static int measure(Text one, Text other, Rooms *rooms, int64_t *found) {
    int64_t lefts = split(one, &rooms->left), rights = split(other, &rooms->right);
    if (lefts < 0 || rights < 0)
        return -1;
    found[1] = lefts, found[2] = rights;
    Word *left = rooms->left.memory, *right = rooms->right.memory;
    while (lefts && rights && same(left, right))
        left++, right++, lefts--, rights--;
    while (lefts && rights && same(left + lefts - 1, right + rights - 1))
        lefts--, rights--;
    if (!lefts || !rights) {
        found[0] = lefts + rights;
        return 0;
    }
    if (number_words(left, lefts, right, rights, rooms))
        return -1;
    found[0] = distance_of(left, lefts, right, rights, rooms);
    return found[0] < 0 ? -1 : 0;
}

static int measure_all(const Column *one, const Column *other, int64_t *found) {
    Rooms rooms = {0};
    int failed = 0;
    for (int64_t row = 0; row < one->array->length && !failed; row++)
        failed = measure(column_text(one, row), column_text(other, row), &rooms, found + 3 * row);
    Room *all = (Room *)&rooms;
    for (size_t i = 0; i < sizeof rooms / sizeof *all; i++)
        free(all[i].memory);
    return failed;
}

/* word_distances(left, right): for each row the distance, and how many words each text has, as 64-bit integers. */
PyObject *word_distances(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *left, *right, *result = NULL;
    Column one, other;
    if (!PyArg_ParseTuple(args, "OO", &left, &right) || column_open(&one, left))
        return NULL;
    if (column_open(&other, right)) {
        column_close(&one);
        return NULL;
    }
    if (!column_is_text(&one) || !column_is_text(&other) || one.array->length != other.array->length)
        PyErr_SetString(PyExc_TypeError, "word_distances takes two columns of strings, of one length");
    else if ((result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)one.array->length * 24))) {
        int failed;
        Py_BEGIN_ALLOW_THREADS;
        failed = measure_all(&one, &other, (int64_t *)(void *)PyBytes_AS_STRING(result));
        Py_END_ALLOW_THREADS;
        if (failed) {
            Py_CLEAR(result);
            PyErr_NoMemory();
        }
    }
    column_close(&other);
    column_close(&one);
    return result;
}
