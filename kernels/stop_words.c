/* Counts the words of a text that are in a set of stop words, as defined by `download/web/stop_lists.py`.

   An ASCII word of up to 16 bytes is its own key: in lower case, padded with zeros. Other words, and those with a zero byte,
   are looked up by Python, so that case and white space are handled as Python does it. */

#include "text.h"

#define KEY 16

typedef struct {
    uint64_t low, high;
} Key;

static size_t place_of(Key key, size_t slots) {
    uint64_t mixed = (key.low ^ key.high * 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u;
    return (size_t)(mixed >> 32) & (slots - 1);
}

static Key slot_at(const char *table, size_t place) {
    Key key;
    memcpy(&key, table + place * KEY, KEY);
    return key;
}

/* The slot of a key, or the free slot where it would be. `stop_table` always leaves one free. */
static size_t find(const char *table, size_t slots, Key key) {
    size_t place = place_of(key, slots);
    for (size_t tries = 0; tries < slots; tries++, place = (place + 1) & (slots - 1)) {
        Key there = slot_at(table, place);
        if ((there.low == key.low && there.high == key.high) || !(there.low | there.high))
            break;
    }
    return place;
}

static void push(Key *key, size_t at, Py_UCS4 c) {
    uint64_t byte = c >= 'A' && c <= 'Z' ? c | 32 : c;
    if (at < 8)
        key->low |= byte << 8 * at;
    else if (at < KEY)
        key->high |= byte << 8 * (at - 8);
}

/* Whether a word can be a key, which then is in `key`. What has a capital is no word in lower case, and never found. */
static int key_of(PyObject *word, Key *key) {
    Py_ssize_t size = PyUnicode_GET_LENGTH(word);
    *key = (Key){0, 0};
    if (!size || size > KEY || !PyUnicode_IS_ASCII(word))
        return 0;
    for (Py_ssize_t i = 0; i < size; i++) {
        Py_UCS4 c = PyUnicode_READ_CHAR(word, i);
        if (!c || (c >= 'A' && c <= 'Z'))
            return 0;
        push(key, (size_t)i, c);
    }
    return 1;
}

/* Fills the table. Returns -1 with an exception set if an item is not text. */
static int fill(PyObject *words, char *table, size_t slots) {
    PyObject *steps = PyObject_GetIter(words), *word;
    if (!steps)
        return -1;
    while ((word = PyIter_Next(steps))) {
        Key key;
        if (!PyUnicode_Check(word))
            PyErr_SetString(PyExc_TypeError, "stop words are str");
        else if (key_of(word, &key))
            memcpy(table + find(table, slots, key) * KEY, &key, KEY);
        Py_DECREF(word);
        if (PyErr_Occurred())
            break;
    }
    Py_DECREF(steps);
    return PyErr_Occurred() ? -1 : 0;
}

PyObject *stop_table(PyObject *Py_UNUSED(self), PyObject *words) {
    if (!PyFrozenSet_CheckExact(words)) {
        PyErr_SetString(PyExc_TypeError, "stop_table takes a frozenset");
        return NULL;
    }
    size_t slots = 4;
    while (slots < 4 * (size_t)PySet_GET_SIZE(words))
        slots *= 2;
    PyObject *table = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(slots * KEY));
    if (!table)
        return NULL;
    memset(PyBytes_AS_STRING(table), 0, slots * KEY);
    if (fill(words, PyBytes_AS_STRING(table), slots))
        Py_CLEAR(table);
    return table;
}

/* Whether a word that is not a key is in the set; -1 with an exception set. */
static int ask_python(PyObject *words, PyObject *text, Py_ssize_t start, Py_ssize_t end) {
    PyObject *word = PyUnicode_Substring(text, start, end);
    PyObject *lowered = word ? PyObject_CallMethod(word, "lower", NULL) : NULL;
    int found = lowered ? PySet_Contains(words, lowered) : -1;
    Py_XDECREF(lowered);
    Py_XDECREF(word);
    return found;
}

typedef struct {
    PyObject *words, *text;
    const char *table;
    size_t slots;
    Py_ssize_t stops, count;
} Counting;

static int add_word(Counting *counting, Key key, int odd, Py_ssize_t start, Py_ssize_t end) {
    counting->count++;
    if (odd || end - start > KEY) {
        int found = ask_python(counting->words, counting->text, start, end);
        counting->stops += found > 0;
        return found < 0 ? -1 : 0;
    }
    Key there = slot_at(counting->table, find(counting->table, counting->slots, key));
    counting->stops += there.low == key.low && there.high == key.high;
    return 0;
}

static inline int count_words(Counting *counting, int kind, const void *data, Py_ssize_t size) {
    for (Py_ssize_t i = 0; i < size;) {
        Py_UCS4 c = PyUnicode_READ(kind, data, i);
        if (Py_UNICODE_ISSPACE(c)) {
            i++;
            continue;
        }
        Key key = {0, 0};
        Py_ssize_t start = i;
        int odd = 0;
        do {
            odd |= c >= 128 || !c;
            push(&key, (size_t)(i - start), c);
            if (++i == size)
                break;
            c = PyUnicode_READ(kind, data, i);
        } while (!Py_UNICODE_ISSPACE(c));
        if (add_word(counting, key, odd, start, i))
            return -1;
    }
    return 0;
}

PyObject *stop_words(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *table;
    Counting counting = {0};
    if (!PyArg_ParseTuple(args, "O!O!U", &PyBytes_Type, &table, &PyFrozenSet_Type, &counting.words, &counting.text))
        return NULL;
    counting.table = PyBytes_AS_STRING(table);
    counting.slots = (size_t)PyBytes_GET_SIZE(table) / KEY;
    if (!counting.slots || counting.slots & (counting.slots - 1)) {
        PyErr_SetString(PyExc_ValueError, "stop_words takes a table that stop_table made");
        return NULL;
    }
    Py_ssize_t size = PyUnicode_GET_LENGTH(counting.text);
    const void *data = PyUnicode_DATA(counting.text);
    int failed; /* a loop for each width of characters */
    if (PyUnicode_KIND(counting.text) == PyUnicode_1BYTE_KIND)
        failed = count_words(&counting, PyUnicode_1BYTE_KIND, data, size);
    else if (PyUnicode_KIND(counting.text) == PyUnicode_2BYTE_KIND)
        failed = count_words(&counting, PyUnicode_2BYTE_KIND, data, size);
    else
        failed = count_words(&counting, PyUnicode_4BYTE_KIND, data, size);
    return failed ? NULL : Py_BuildValue("(nn)", counting.stops, counting.count);
}
