/* Anchors: in each window of n bytes, the position of the k bytes with the smallest hash. Equal windows have the same
   anchor, and neighbouring windows usually share one, so a few positions represent all windows. */

#include "dedup.h"

typedef struct {
    int64_t row, first, last, place; /* windows that start at `first` to `last` have their anchor at `place` */
    uint64_t hash;
} Anchor;

typedef struct {
    int64_t n, k;
    Room hashes, anchors;
    size_t count;
} Anchors;

static int add_anchor(Anchors *a, int64_t row, int64_t first, int64_t last, int64_t place, uint64_t hash) {
    Anchor *anchors = room(&a->anchors, (a->count + 1) * sizeof *anchors);
    if (!anchors)
        return -1;
    anchors[a->count++] = (Anchor){row, first, last, place, hash};
    return 0;
}

/* Of equal hashes the last wins: in a run of one character each window has the next position, and none is searched twice. */
static int find_anchors(Anchors *a, int64_t row, Text text) {
    int64_t windows = text.size - a->n + 1, span = a->n - a->k + 1, place = -1, first = 0;
    if (windows < 1)
        return 0;
    uint64_t *hashes = room(&a->hashes, (size_t)(text.size - a->k + 1) * 8);
    if (!hashes)
        return -1;
    roll_hashes(text.bytes, text.size - a->k + 1, a->k, hashes);
    for (int64_t i = 0; i < windows; i++) {
        int64_t before = place;
        if (place < i) {
            place = i;
            for (int64_t j = i + 1; j < i + span; j++)
                if (hashes[j] <= hashes[place])
                    place = j;
        } else if (hashes[i + span - 1] <= hashes[place])
            place = i + span - 1;
        if (i && place != before) {
            if (add_anchor(a, row, first, i - 1, before, hashes[before]))
                return -1;
            first = i;
        }
    }
    return add_anchor(a, row, first, windows - 1, place, hashes[place]);
}

/* anchors(texts, n, k): row, first and last window, place and hash of each, 8 bytes each. */
PyObject *anchors(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *object, *result = NULL;
    Py_ssize_t n, k;
    Column texts;
    if (!PyArg_ParseTuple(args, "Onn", &object, &n, &k) || column_open(&texts, object))
        return NULL;
    if (!column_is_text(&texts) || k < 1 || n < k)
        PyErr_SetString(PyExc_TypeError, "anchors takes a column of strings, and 1 <= k <= n");
    else {
        Anchors a = {.n = n, .k = k};
        int failed = 0;
        Py_BEGIN_ALLOW_THREADS;
        for (int64_t row = 0; row < texts.array->length && !failed; row++)
            failed = find_anchors(&a, row, column_text(&texts, row));
        Py_END_ALLOW_THREADS;
        result = failed ? PyErr_NoMemory()
                        : PyBytes_FromStringAndSize(a.anchors.memory, (Py_ssize_t)(a.count * sizeof(Anchor)));
        free(a.hashes.memory);
        free(a.anchors.memory);
    }
    column_close(&texts);
    return result;
}
