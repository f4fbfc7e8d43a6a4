/* Exact Jaccard similarity: of given pairs of texts, and of all pairs of a sample. */

#include "dedup.h"
#include "shingles.h"

static size_t slots_for(size_t entries) {
    size_t size = 16;
    while (size < 2 * entries)
        size *= 2;
    return size;
}

/* -- given pairs --------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t shingle;
    uint64_t in; /* 0: free, 1: in the first text, 2: in the second alone, 3: in both */
} Member;

typedef struct {
    ShingleRoom rooms;
    Room members;
} PairRoom;

static inline Member *find(Member *members, size_t size, uint64_t shingle) {
    size_t at = (size_t)scramble(shingle) & (size - 1);
    while (members[at].in && members[at].shingle != shingle)
        at = (at + 1) & (size - 1);
    return members + at;
}

/* Returns -1 without memory. The table is made for both texts when the first is put in. */
static double jaccard_of(Text left, Text right, const Shingling *how, PairRoom *room_of) {
    const uint64_t *shingles;
    int64_t count = shingle(left, how, &room_of->rooms, &shingles);
    if (count <= 0)
        return (double)count;
    size_t most = how->words ? (size_t)right.size / 2 + 1 : (size_t)right.size;
    size_t size = slots_for((size_t)count + most), first = 0, second = 0, both = 0;
    Member *members = room(&room_of->members, size * sizeof *members);
    if (!members)
        return -1;
    memset(members, 0, size * sizeof *members);
    for (int64_t i = 0; i < count; i++) {
        Member *member = find(members, size, shingles[i]);
        first += !member->in;
        *member = (Member){shingles[i], 1};
    }
    if ((count = shingle(right, how, &room_of->rooms, &shingles)) <= 0)
        return (double)count;
    for (int64_t i = 0; i < count; i++) {
        Member *member = find(members, size, shingles[i]);
        second += !member->in;
        both += member->in == 1;
        *member = (Member){shingles[i], member->in == 0 ? 2 : member->in == 1 ? 3 : member->in};
    }
    return (double)both / (double)(first + second);
}

static int jaccard_all(const Column *left, const Column *right, const Shingling *how, double *found) {
    PairRoom rooms = {0};
    int failed = 0;
    for (int64_t row = 0; row < left->array->length && !failed; row++) {
        found[row] = jaccard_of(column_text(left, row), column_text(right, row), how, &rooms);
        failed = found[row] < 0;
    }
    free(rooms.members.memory);
    shingle_room_free(&rooms.rooms);
    return failed;
}

/* jaccard(left, right, unit, n, seed): a 64-bit float for each row. */
PyObject *jaccard(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *left_object, *right_object, *result = NULL;
    const char *unit;
    int n, failed = 0;
    unsigned long long seed;
    Shingling how;
    Column left, right;
    if (!PyArg_ParseTuple(args, "OOsiK", &left_object, &right_object, &unit, &n, &seed) ||
        shingling_open(&how, unit, n, seed) || column_open(&left, left_object))
        return NULL;
    if (column_open(&right, right_object)) {
        column_close(&left);
        return NULL;
    }
    if (!column_is_text(&left) || !column_is_text(&right) || left.array->length != right.array->length)
        PyErr_SetString(PyExc_TypeError, "jaccard takes two columns of strings, of one length");
    else
        result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)left.array->length * 8);
    if (result) {
        Py_BEGIN_ALLOW_THREADS;
        failed = jaccard_all(&left, &right, &how, (double *)(void *)PyBytes_AS_STRING(result));
        Py_END_ALLOW_THREADS;
    }
    if (failed) {
        Py_CLEAR(result);
        PyErr_NoMemory();
    }
    column_close(&left);
    column_close(&right);
    return result;
}

/* -- all pairs ----------------------------------------------------------------------------------------- */

/* The documents that contain a shingle, as a list, the last one first. */
typedef struct {
    uint32_t row, next; /* index of the next, plus one; 0: none */
} Place;

typedef struct {
    uint64_t shingle;
    uint64_t last; /* index of its last place, plus one; 0: free */
} Entry;

typedef struct {
    uint64_t left, right;
    double jaccard;
} Pair;

typedef struct {
    ShingleRoom rooms;
    Room entries, places, sizes, common, seen, pairs;
    size_t entry_slots, entry_count, place_count, pair_count;
} Index;

static void index_free(Index *index) {
    Room *rooms[] = {&index->entries, &index->places, &index->sizes, &index->common, &index->seen, &index->pairs};
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++)
        free(rooms[i]->memory);
    shingle_room_free(&index->rooms);
}

static Entry *entry_of(Entry *entries, size_t slots, uint64_t shingle) {
    size_t at = (size_t)scramble(shingle) & (slots - 1);
    while (entries[at].last && entries[at].shingle != shingle)
        at = (at + 1) & (slots - 1);
    return entries + at;
}

/* Room for `more` shingles. Returns -1 without memory. */
static int index_grow(Index *index, size_t more) {
    size_t slots = slots_for(index->entry_count + more);
    if (slots > index->entry_slots) {
        Room larger = {0};
        Entry *old = index->entries.memory, *entries = room(&larger, slots * sizeof *entries);
        if (!entries)
            return -1;
        memset(entries, 0, slots * sizeof *entries);
        for (size_t i = 0; i < index->entry_slots; i++)
            if (old[i].last)
                *entry_of(entries, slots, old[i].shingle) = old[i];
        free(old);
        index->entries = larger;
        index->entry_slots = slots;
    }
    return index->place_count + more < UINT32_MAX && room(&index->places, (index->place_count + more) * sizeof(Place)) ? 0 : -1;
}

/* Adds a document's shingles, and counts for each earlier document how many they share. Returns how many documents were
   seen, of which `seen` has the numbers. */
static size_t index_add(Index *index, uint32_t row, const uint64_t *shingles, int64_t count) {
    Entry *entries = index->entries.memory;
    Place *places = index->places.memory;
    uint32_t *sizes = index->sizes.memory, *common = index->common.memory, *seen = index->seen.memory;
    size_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        Entry *entry = entry_of(entries, index->entry_slots, shingles[i]);
        if (entry->last && places[entry->last - 1].row == row)
            continue;
        for (uint64_t at = entry->last; at; at = places[at - 1].next) {
            uint32_t other = places[at - 1].row;
            seen[found] = other;
            found += !common[other]++;
        }
        index->entry_count += !entry->last;
        places[index->place_count] = (Place){row, (uint32_t)entry->last};
        *entry = (Entry){shingles[i], ++index->place_count};
        sizes[row]++;
    }
    return found;
}

static int note_pairs(Index *index, uint32_t row, size_t found, double least) {
    Pair *pairs = room(&index->pairs, (index->pair_count + found) * sizeof *pairs);
    uint32_t *sizes = index->sizes.memory, *common = index->common.memory, *seen = index->seen.memory;
    for (size_t i = 0; pairs && i < found; i++) {
        uint32_t other = seen[i];
        double similarity = (double)common[other] / ((double)sizes[row] + sizes[other] - common[other]);
        pairs[index->pair_count] = (Pair){other, row, similarity};
        index->pair_count += similarity >= least;
        common[other] = 0;
    }
    return pairs ? 0 : -1;
}

static int find_pairs(const Column *texts, const Shingling *how, double least, Index *index) {
    size_t rows = (size_t)texts->array->length;
    if (!room(&index->sizes, (rows + 1) * 4) || !room(&index->common, (rows + 1) * 4) || !room(&index->seen, (rows + 1) * 4))
        return -1;
    memset(index->sizes.memory, 0, rows * 4);
    memset(index->common.memory, 0, rows * 4);
    for (size_t row = 0; row < rows; row++) {
        const uint64_t *shingles;
        int64_t count = shingle(column_text(texts, (int64_t)row), how, &index->rooms, &shingles);
        if (count < 0 || (count > 0 && index_grow(index, (size_t)count)))
            return -1;
        size_t found = count > 0 ? index_add(index, (uint32_t)row, shingles, count) : 0;
        if (found && note_pairs(index, (uint32_t)row, found, least))
            return -1;
    }
    return 0;
}

/* similar_pairs(texts, unit, n, seed, least): left, right and similarity of each pair, 8 bytes each. */
PyObject *similar_pairs(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *object, *result = NULL;
    const char *unit;
    int n, failed;
    unsigned long long seed;
    double least;
    Shingling how;
    Column texts;
    if (!PyArg_ParseTuple(args, "OsiKd", &object, &unit, &n, &seed, &least) || shingling_open(&how, unit, n, seed) ||
        column_open(&texts, object))
        return NULL;
    if (!column_is_text(&texts) || texts.array->length > INT32_MAX)
        PyErr_SetString(PyExc_TypeError, "similar_pairs takes a column of strings");
    else {
        Index index = {0};
        Py_BEGIN_ALLOW_THREADS;
        failed = find_pairs(&texts, &how, least, &index);
        Py_END_ALLOW_THREADS;
        result = failed ? PyErr_NoMemory()
                        : PyBytes_FromStringAndSize(index.pairs.memory, (Py_ssize_t)(index.pair_count * sizeof(Pair)));
        index_free(&index);
    }
    column_close(&texts);
    return result;
}
