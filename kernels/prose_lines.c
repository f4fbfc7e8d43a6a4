/* The lines of documents that C4 would keep, as text/modifiers/line_cleaners.py defines them. */

#include "lexemes.h"

#define MAX_MARKS 64
#define MAX_PHRASES 64

typedef struct {
    Py_UCS4 marks[MAX_MARKS];
    Text phrases[MAX_PHRASES]; /* in lower case, of ASCII */
    int mark_count, phrase_count;
    Py_ssize_t min_words, max_word_length;
    int citations;
} Rules;

typedef struct {
    const Rules *rules;
    Scratch scratch;
    Room bare, lowered, output;
    size_t size; /* of the output */
    int odd; /* a character that only Python knows what to do with */
    int failed;
    int any_phrase;                  /* whether the document may have a phrase */
    uint8_t may_have[MAX_PHRASES];   /* and which */
} Cleaning;

/* Counts words, those beyond `enough` only to see how long they are; -1 if one is too long. */
static Py_ssize_t words_of(Text line, Py_ssize_t enough, Py_ssize_t longest) {
    const uint8_t *p = line.bytes, *end = p + line.size;
    Py_ssize_t words = 0, chars = 0;
    if (longest < 0 || line.size <= longest)
        longest = -1; /* no word can be longer */
    while (p < end) {
        uint64_t lanes;
        if (*p < 0x80) {
            lanes = byte_lanes[*p++];
        } else {
            uint32_t character;
            p += decode(p, end, &character);
            lanes = lanes_of[class_of(character)];
        }
        words += !(lanes & IS_SPACE) && !chars;
        if (longest < 0 && words >= enough)
            return words;
        chars = lanes & IS_SPACE ? 0 : chars + 1;
        if (longest >= 0 && chars > longest)
            return -1;
    }
    return words;
}

/* The length of a citation mark at a bracket, or 0. */
static size_t citation(Cleaning *c, const uint8_t *p, const uint8_t *end) {
    static const char *const others[] = {"[edit]", "[citation needed]"};
    const uint8_t *q = p + 1;
    while (q < end && *q >= '0' && *q <= '9')
        q++;
    if (q < end && *q == ']')
        return (size_t)(q + 1 - p);
    c->odd |= q < end && *q >= 0x80; /* perhaps a digit */
    for (int i = 0; i < 2; i++)
        if ((size_t)(end - p) >= strlen(others[i]) && !memcmp(p, others[i], strlen(others[i])))
            return strlen(others[i]);
    return 0;
}

/* The line without citation marks. */
static Text without_citations(Cleaning *c, Text line) {
    if (!memchr(line.bytes, '[', (size_t)line.size))
        return line;
    uint8_t *to = room(&c->bare, (size_t)line.size + 1), *begin = to;
    if (!to) {
        c->failed = 1;
        return line;
    }
    for (const uint8_t *p = line.bytes, *end = p + line.size; p < end;) {
        size_t size = *p == '[' ? citation(c, p, end) : 0;
        if (size)
            p += size;
        else
            *to++ = *p++;
    }
    return (Text){begin, to - begin};
}

static int ends_well(const Rules *rules, Text line) {
    if (!rules->mark_count)
        return 1;
    if (!line.size || (line.size >= 3 && !memcmp(line.bytes + line.size - 3, "...", 3)))
        return 0;
    uint32_t last = last_character(line.bytes, line.bytes + line.size);
    for (int i = 0; i < rules->mark_count; i++)
        if (rules->marks[i] == last)
            return 1;
    return 0;
}

/* Whether a line is kept if it contains no phrase; then `line` is without citation marks. */
static int is_prose(Cleaning *c, Text *line) {
    const Rules *rules = c->rules;
    Py_ssize_t words = words_of(*line, rules->min_words, rules->max_word_length);
    if (words < 0 || words < rules->min_words)
        return 0;
    if (rules->citations && line->size)
        *line = without_citations(c, *line);
    return ends_well(rules, *line);
}

/* The line in lower case. A Kelvin sign or a dotted capital I becomes ASCII there, which is left to Python. */
static const uint8_t *lower_case(Cleaning *c, Text line) {
    uint8_t *to = room(&c->lowered, (size_t)line.size + 1);
    if (!to) {
        c->failed = 1;
        return NULL;
    }
    uint8_t high = 0;
    for (int64_t i = 0; i < line.size; i++) {
        uint8_t one = line.bytes[i];
        high |= one;
        to[i] = one | (uint8_t)((uint8_t)(one - 'A') < 26) << 5;
    }
    if (high >= 0x80)
        c->odd |= memmem(line.bytes, (size_t)line.size, "\xE2\x84\xAA", 3) || memmem(line.bytes, (size_t)line.size, "\xC4\xB0", 2);
    return to;
}

static int contains(const uint8_t *lowered, int64_t size, Text phrase) {
    return memmem(lowered, (size_t)size, phrase.bytes, (size_t)phrase.size) != NULL;
}

/* Looks for the phrases in the whole document, since most have none, and lines are short. A phrase may also appear when a
   citation mark is removed from its midst. */
static int look_for_phrases(Cleaning *c, Text text) {
    const uint8_t *lowered = lower_case(c, text);
    if (!lowered)
        return -1;
    int marks = c->rules->citations && memchr(text.bytes, '[', (size_t)text.size) != NULL;
    c->any_phrase = 0;
    for (int i = 0; i < c->rules->phrase_count; i++)
        c->any_phrase |= c->may_have[i] = (uint8_t)(marks || contains(lowered, text.size, c->rules->phrases[i]));
    return 0;
}

/* Whether a line has one of the phrases from `first` up to `end`. */
static int has_phrase(Cleaning *c, Text line, int first, int end) {
    const uint8_t *lowered = NULL;
    for (int i = first; c->any_phrase && i < end; i++) {
        if (!c->may_have[i])
            continue;
        if (!lowered && !(lowered = lower_case(c, line)))
            return 0;
        if (contains(lowered, line.size, c->rules->phrases[i]))
            return 1;
    }
    return 0;
}

static int is_terminal_lexeme(const Word *word, int64_t chars) {
    return chars == 1 && is_terminal(last_character(word->start, word->start + word->size));
}

static int is_punctuation_lexeme(const Word *word) {
    for (const uint8_t *p = word->start, *end = p + word->size; p < end;) {
        uint32_t character = *p;
        p += character < 0x80 ? 1 : decode(p, end, &character);
        if (!is_symbol_character(character) || (character < 0x80 && character && strchr("$+<=>^`|~", (int)character)))
            return 0;
    }
    return 1;
}

typedef struct {
    int64_t count;
    int ended; /* the last lexeme that was no punctuation mark was followed by the end of a sentence */
} Sentences;

static void add_lexemes(Cleaning *c, Text text, Sentences *found) {
    Lexemes all;
    if (split_lexemes(text, &c->scratch, &all)) {
        c->failed = 1;
        return;
    }
    c->odd |= all.unspaced;
    if (!found->count)
        found->count = all.count > 0;
    for (size_t i = 0; i < all.count; i++) {
        const Word *word = all.words + i;
        if (is_terminal_lexeme(word, word[1].before - word->before))
            found->ended = 1;
        else if (found->ended && !is_punctuation_lexeme(word))
            found->count++, found->ended = 0;
    }
}

/* Lexemes never cross a space. Those of an ASCII word without full stop, question or exclamation mark are not split, since
   it ends no sentence, and its letters and digits begin one. */
static int64_t count_sentences(Cleaning *c, Text line) {
    enum { TERMINAL = 1, LETTER = 2 };
    static const uint8_t kinds[256] = {
        ['.'] = TERMINAL, ['?'] = TERMINAL, ['!'] = TERMINAL, ['0' ... '9'] = LETTER, ['A' ... 'Z'] = LETTER, ['a' ... 'z'] = LETTER,
    };
    const uint8_t *p = line.bytes, *end = p + line.size;
    Sentences found = {0, 0};
    uint8_t high = 0;
    for (const uint8_t *at = p; at < end; at++)
        high |= *at;
    if (high >= 0x80) {
        add_lexemes(c, line, &found);
        return found.count;
    }
    while (p < end) {
        if (byte_lanes[*p] & IS_SPACE) {
            p++;
            continue;
        }
        const uint8_t *start = p;
        uint8_t kind = 0;
        for (; p < end && !(byte_lanes[*p] & IS_SPACE); p++)
            kind |= kinds[*p];
        if (kind == LETTER) {
            found.count += !found.count || found.ended;
            found.ended = 0;
        } else {
            add_lexemes(c, (Text){start, p - start}, &found);
        }
    }
    return found.count;
}

/* -- documents ------------------------------------------------------------------------------------------------- */

static int append(Cleaning *c, const void *bytes, size_t size) {
    uint8_t *output = room(&c->output, c->size + size + 1);
    if (!output)
        return -1;
    memcpy(output + c->size, bytes, size);
    c->size += size;
    return 0;
}

static int next_line(const uint8_t **p, const uint8_t *end, Text *line) {
    static const uint8_t may_end[256] = {['\r'] = 1, ['\n'] = 1, ['\v'] = 1, ['\f'] = 1, [0x1C] = 1, [0x1D] = 1,
                                         [0x1E] = 1, [0xC2] = 1, [0xE2] = 1};
    const uint8_t *start = *p, *at = start;
    if (at == end)
        return 0;
    int size = 0;
    while (at < end && !(may_end[*at] && (size = line_end(at, end))))
        at++;
    *line = trimmed(start, at);
    *p = at + size;
    return 1;
}

static int clean_document(Cleaning *c, Text text) {
    const uint8_t *p = text.bytes, *end = p + text.size;
    size_t start = c->size;
    int any = 0;
    Text line;
    if (text.size && look_for_phrases(c, text))
        return -1;
    while (next_line(&p, end, &line)) {
        if (!is_prose(c, &line) || has_phrase(c, line, 0, c->rules->phrase_count))
            continue;
        if ((any && append(c, "\n", 1)) || append(c, line.bytes, (size_t)line.size))
            return -1;
        any = 1;
    }
    if (c->size > start) {
        uint8_t *output = c->output.memory;
        Text bare = trimmed(output + start, output + c->size);
        memmove(output + start, bare.bytes, (size_t)bare.size);
        c->size = start + (size_t)bare.size;
    }
    return c->failed ? -1 : 0;
}

/* The phrases are "lorem ipsum", and what is javascript; those of policies follow. */
static int measure_document(Cleaning *c, Text text, int javascript, int64_t *lorem, int64_t *curly, int64_t *sentences) {
    const uint8_t *p = text.bytes, *end = p + text.size;
    const Rules *rules = c->rules;
    Text line;
    if (text.size && look_for_phrases(c, text))
        return -1;
    while (next_line(&p, end, &line)) {
        if (!is_prose(c, &line))
            continue;
        *lorem += has_phrase(c, line, 0, 1);
        if (javascript && has_phrase(c, line, 1, 2))
            continue;
        *curly += line.size && memchr(line.bytes, '{', (size_t)line.size);
        if (!has_phrase(c, line, 2, rules->phrase_count))
            *sentences += count_sentences(c, line);
    }
    return c->failed ? -1 : 0;
}

static void cleaning_free(Cleaning *c) {
    scratch_free(&c->scratch);
    free(c->bare.memory), free(c->lowered.memory), free(c->output.memory);
}

static int read_phrases(PyObject *phrases, Rules *rules) {
    rules->phrase_count = (int)PyTuple_GET_SIZE(phrases);
    if (PyTuple_GET_SIZE(phrases) > MAX_PHRASES) {
        PyErr_SetString(PyExc_ValueError, "too many phrases");
        return -1;
    }
    for (int i = 0; i < rules->phrase_count; i++) {
        char *bytes;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyTuple_GET_ITEM(phrases, i), &bytes, &size))
            return -1;
        rules->phrases[i] = (Text){(const uint8_t *)bytes, size};
    }
    return 0;
}

/* Reads (marks, min_words, max_word_length, citations, phrases). */
static int read_rules(PyObject *given, Rules *rules) {
    PyObject *marks, *phrases;
    if (!PyArg_ParseTuple(given, "UnnpO!", &marks, &rules->min_words, &rules->max_word_length, &rules->citations,
                          &PyTuple_Type, &phrases))
        return -1;
    rules->mark_count = (int)PyUnicode_GET_LENGTH(marks);
    if (PyUnicode_GET_LENGTH(marks) > MAX_MARKS) {
        PyErr_SetString(PyExc_ValueError, "too many marks");
        return -1;
    }
    for (int i = 0; i < rules->mark_count; i++)
        rules->marks[i] = PyUnicode_READ_CHAR(marks, i);
    return read_phrases(phrases, rules);
}

static PyObject *clean_rows(const Column *texts, const Rules *rules) {
    int64_t rows = texts->array->length;
    PyObject *ends = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(rows + 1) * 8);
    PyObject *odd = ends ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)rows) : NULL;
    if (!odd) {
        Py_XDECREF(ends);
        return NULL;
    }
    int64_t *places = (int64_t *)(void *)PyBytes_AS_STRING(ends);
    char *flags = PyBytes_AS_STRING(odd);
    Cleaning c = {.rules = rules};
    int failed = 0;
    Py_BEGIN_ALLOW_THREADS;
    places[0] = 0;
    for (int64_t row = 0; row < rows && !failed; row++) {
        c.odd = 0;
        failed = clean_document(&c, column_text(texts, row));
        places[row + 1] = (int64_t)c.size;
        flags[row] = (char)(c.odd != 0);
    }
    Py_END_ALLOW_THREADS;
    PyObject *data = failed ? PyErr_NoMemory() : PyBytes_FromStringAndSize(c.output.memory, (Py_ssize_t)c.size);
    cleaning_free(&c);
    if (!data) {
        Py_DECREF(ends), Py_DECREF(odd);
        return NULL;
    }
    return Py_BuildValue("(NNN)", ends, data, odd);
}

PyObject *clean_lines(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *object, *given, *result = NULL;
    Rules rules = {0};
    Column texts;
    if (!PyArg_ParseTuple(args, "OO!", &object, &PyTuple_Type, &given) || read_rules(given, &rules) ||
        column_open(&texts, object))
        return NULL;
    if (column_is_text(&texts))
        result = clean_rows(&texts, &rules);
    else
        PyErr_SetString(PyExc_TypeError, "clean_lines takes a column of strings");
    column_close(&texts);
    return result;
}

static PyObject *measure_rows(const Column *texts, const Rules *rules, int javascript) {
    int64_t rows = texts->array->length, *columns[4];
    PyObject *result = PyTuple_New(4);
    for (int i = 0; result && i < 4; i++) {
        PyObject *column = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)rows * 8);
        if (!column) {
            Py_DECREF(result);
            return NULL;
        }
        PyTuple_SET_ITEM(result, i, column);
        columns[i] = (int64_t *)(void *)PyBytes_AS_STRING(column);
    }
    if (!result)
        return NULL;
    Cleaning c = {.rules = rules};
    int failed = 0;
    Py_BEGIN_ALLOW_THREADS;
    for (int64_t row = 0; row < rows && !failed; row++) {
        int64_t numbers[3] = {0, 0, 0};
        c.odd = 0;
        failed = measure_document(&c, column_text(texts, row), javascript, numbers, numbers + 1, numbers + 2);
        for (int i = 0; i < 3; i++)
            columns[i][row] = numbers[i];
        columns[3][row] = c.odd != 0;
    }
    Py_END_ALLOW_THREADS;
    cleaning_free(&c);
    if (failed) {
        Py_DECREF(result);
        return PyErr_NoMemory();
    }
    return result;
}

PyObject *measure_lines(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *object, *given, *result = NULL;
    int javascript;
    Rules rules = {0};
    Column texts;
    if (!PyArg_ParseTuple(args, "OO!p", &object, &PyTuple_Type, &given, &javascript) || read_rules(given, &rules))
        return NULL;
    if (rules.phrase_count < 2) {
        PyErr_SetString(PyExc_ValueError, "measure_lines takes two phrases and more");
        return NULL;
    }
    if (column_open(&texts, object))
        return NULL;
    if (column_is_text(&texts))
        result = measure_rows(&texts, &rules, javascript);
    else
        PyErr_SetString(PyExc_TypeError, "measure_lines takes a column of strings");
    column_close(&texts);
    return result;
}
