/* The module gristmill._kernels: loops over Arrow columns that would be slow in Python. text/statistics/kernel_reference.py
   defines the results. */

#include "dedup.h"
#include "fasttext.h"
#include "frames.h"
#include "json.h"
#include "lexemes.h"
#include "transcripts.h"
#include <time.h>

void scratch_free(Scratch *scratch) {
    Room *rooms = (Room *)scratch;
    for (size_t i = 0; i < sizeof *scratch / sizeof *rooms; i++)
        free(rooms[i].memory);
}

static const char *names[TOP] = {
    "chars", "plain", "digits", "white", "brackets", "letters", "capitals", "spaces", "punctuation",
    "words", "word_chars", "longest_word", "alphabetic_words", "symbol_words", "common_words",
    "lines", "line_chars", "bullet_lines", "unended_lines", "ellipsis_lines", "distinct_lines", "distinct_line_chars",
    "paragraphs", "paragraph_chars", "boilerplate_paragraphs", "lorem_paragraphs", "distinct_paragraphs",
    "distinct_paragraph_chars",
    "url_chars", "porn_urls",
    "lexemes", "word_lexemes", "word_lexeme_chars", "letter_lexemes", "common_lexemes", "unspaced",
    "hashes", "ellipses", "line_feeds", "split_lines", "dash_lines", "dotted_lines", "full_lines", "marked_lines",
    "feed_lines", "repeated_feed_lines", "repeated_feed_line_chars", "repeated_line_chars",
    "blocks", "repeated_blocks", "repeated_block_chars",
};

static int family_number(const char *name, const char *family, int first, int least, int most) {
    size_t size = strlen(family);
    char *end;
    if (strncmp(name, family, size))
        return -1;
    long n = strtol(name + size, &end, 10);
    return end == name + size || *end || n < least || n > most ? -1 : first + (int)n;
}

/* The index of a statistic, or -1. */
static int number_of(const char *name) {
    for (int i = 0; i < TOP; i++)
        if (!strcmp(name, names[i]))
            return i;
    static const struct {
        const char *name;
        int first, least, most;
    } families[] = {
        {"top_ngram_", TOP, 1, MAX_N},
        {"repeated_top_ngram_", REPEATED_TOP, 1, MAX_N},
        {"duplicate_ngram_", DUPLICATE, 1, MAX_N},
        {"top_lexeme_ngram_", LEXEME_TOP, 1, MAX_N},
        {"duplicate_lexeme_ngram_", LEXEME_DUPLICATE, 1, MAX_N},
        {"short_lines_", SHORT_LINES, 0, LONGEST_SHORT_LINE},
    };
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        int found = family_number(name, families[i].name, families[i].first, families[i].least, families[i].most);
        if (found >= 0)
            return found;
    }
    return -1;
}

static void want_lexeme_ngram(Wanted *wanted, int n, uint64_t *numbers) {
    *numbers |= (uint64_t)1 << n;
    wanted->lexemes = 1;
    if (n > wanted->lexeme_max_n)
        wanted->lexeme_max_n = n;
}

static void want(Wanted *wanted, int number) {
    int n = 0;
    if (number >= SHORT_LINES)
        wanted->rules = 1;
    else if (number >= LEXEME_DUPLICATE)
        want_lexeme_ngram(wanted, number - LEXEME_DUPLICATE, &wanted->lexeme_duplicate);
    else if (number >= LEXEME_TOP)
        want_lexeme_ngram(wanted, number - LEXEME_TOP, &wanted->lexeme_top);
    else if (number >= DUPLICATE)
        n = number - DUPLICATE, wanted->duplicate |= (uint64_t)1 << n;
    else if (number >= REPEATED_TOP)
        n = number - REPEATED_TOP, wanted->repeated_top |= (uint64_t)1 << n;
    else if (number >= TOP)
        n = number - TOP, wanted->top |= (uint64_t)1 << n;
    else if (number == URL_CHARS || number == PORN_URLS)
        wanted->urls = 1;
    else if (number >= HASHES && number < TOP)
        wanted->rules = 1;
    else if (number >= LEXEMES && number < TOP)
        wanted->lexemes = 1;
    else if (number == WORDS)
        wanted->words = 1;
    else if (number == LETTERS || number == CAPITALS)
        wanted->cases = 1;
    else if (number != CHARS)
        wanted->scan = 1;
    if (n > wanted->max_n)
        wanted->max_n = n;
    wanted->lines |= number == DISTINCT_LINES || number == DISTINCT_LINE_CHARS;
    wanted->paragraphs |= number == DISTINCT_PARAGRAPHS || number == DISTINCT_PARAGRAPH_CHARS;
    wanted->boilerplate |= number == BOILERPLATE_PARAGRAPHS || number == LOREM_PARAGRAPHS;
}

static int64_t count_chars(Text text) {
    int64_t chars = 0;
    for (int64_t i = 0; i < text.size; i++)
        chars += (text.bytes[i] & 0xC0) != 0x80;
    return chars;
}

/* Returns -1 if out of memory, -2 for a document that is too long to count. */
static int count_document(Text text, const Wanted *wanted, int64_t *stats, Scratch *scratch) {
    memset(stats, 0, STATS * sizeof *stats);
    if (text.size > (int64_t)UINT32_MAX - 16)
        return -2;
    if (wanted->urls)
        scan_urls(text, stats);
    if (wanted->max_n && count_ngrams(text, wanted, stats, scratch))
        return -1;
    if (wanted->lexemes) {
        Lexemes lexemes;
        if (split_lexemes(text, scratch, &lexemes))
            return -1;
        count_lexemes(&lexemes, stats);
        if (wanted->lexeme_max_n && count_lexeme_ngrams(&lexemes, wanted, stats))
            return -1;
    }
    if (wanted->rules && count_rules(text, stats, scratch))
        return -1;
    if (wanted->scan || (wanted->words && !wanted->max_n)) { /* n-grams count the words too */
        stats[WORDS] = 0;
        return scan_text(text, wanted, stats, scratch);
    }
    if (wanted->cases)
        count_cases(text, stats);
    stats[CHARS] = count_chars(text);
    return 0;
}

static int count_all(const Column *texts, const Column *mask, const Wanted *wanted, const int *numbers, int64_t **columns,
                     Py_ssize_t count) {
    Scratch scratch = {0};
    int64_t stats[STATS];
    int failed = 0;
    for (int64_t row = 0; row < texts->array->length && !failed; row++) {
        if (mask && !column_flag(mask, row)) {
            for (Py_ssize_t i = 0; i < count; i++)
                columns[i][row] = 0;
            continue;
        }
        failed = count_document(column_text(texts, row), wanted, stats, &scratch);
        for (Py_ssize_t i = 0; i < count; i++)
            columns[i][row] = stats[numbers[i]];
    }
    scratch_free(&scratch);
    return failed;
}

/* Reads the names, and creates a bytes object for each. */
static PyObject *plan_columns(PyObject *wanted_names, int64_t rows, Wanted *wanted, int *numbers, int64_t **columns) {
    Py_ssize_t count = PyTuple_GET_SIZE(wanted_names);
    PyObject *result = PyTuple_New(count);
    for (Py_ssize_t i = 0; result && i < count; i++) {
        const char *name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(wanted_names, i));
        PyObject *bytes = name ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)rows * 8) : NULL;
        if (!bytes) {
            Py_CLEAR(result);
            break;
        }
        PyTuple_SET_ITEM(result, i, bytes);
        numbers[i] = number_of(name);
        columns[i] = (int64_t *)(void *)PyBytes_AS_STRING(bytes);
        if (numbers[i] < 0) {
            PyErr_Format(PyExc_KeyError, "there is no statistic %s", name);
            Py_CLEAR(result);
            break;
        }
        want(wanted, numbers[i]);
    }
    return result;
}

static PyObject *count_columns(const Column *texts, const Column *mask, PyObject *wanted_names) {
    Wanted wanted = {0};
    int numbers[STATS];
    int64_t *columns[STATS];
    if (PyTuple_GET_SIZE(wanted_names) > STATS) {
        PyErr_SetString(PyExc_ValueError, "a statistic is asked for more than once");
        return NULL;
    }
    PyObject *result = plan_columns(wanted_names, texts->array->length, &wanted, numbers, columns);
    if (!result)
        return NULL;
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    failed = count_all(texts, mask, &wanted, numbers, columns, PyTuple_GET_SIZE(wanted_names));
    Py_END_ALLOW_THREADS;
    if (failed) {
        Py_DECREF(result);
        if (failed == -2)
            PyErr_SetString(PyExc_OverflowError, "a document of 4 GiB or more cannot be counted");
        else
            PyErr_NoMemory();
        return NULL;
    }
    return result;
}

static PyObject *text_stats(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *text_object, *mask_object, *wanted_names, *result = NULL;
    if (!PyArg_ParseTuple(args, "OOO!", &text_object, &mask_object, &PyTuple_Type, &wanted_names))
        return NULL;
    Column texts, mask;
    if (column_open(&texts, text_object))
        return NULL;
    int masked = mask_object != Py_None;
    if (masked && column_open(&mask, mask_object)) {
        column_close(&texts);
        return NULL;
    }
    if (!column_is_text(&texts))
        PyErr_Format(PyExc_TypeError, "text_stats takes a column of strings, not of Arrow format '%s'", texts.format);
    else if (masked && (strcmp(mask.format, "b") || mask.array->length != texts.array->length))
        PyErr_SetString(PyExc_TypeError, "text_stats takes a mask of one boolean per row");
    else
        result = count_columns(&texts, masked ? &mask : NULL, wanted_names);
    if (masked)
        column_close(&mask);
    column_close(&texts);
    return result;
}

static PyMethodDef methods[] = {
    {"text_stats", text_stats, METH_VARARGS,
     "text_stats(texts, mask, names): for each name the counts of all rows, as the bytes of 64-bit integers.\n\n"
     "Rows where the mask (None, or one boolean per row) is false are not looked at and have 0."},
    {"clean_lines", clean_lines, METH_VARARGS,
     "clean_lines(texts, (marks, min_words, max_word_length, citations, phrases)): the texts without the lines that "
     "`LineCleaner` drops: where each ends, as the bytes of 64-bit integers from 0 on, the bytes of all, and a byte for each "
     "that is 1 if only Python can clean it. A length of -1 is no limit; phrases are bytes in lower case."},
    {"measure_lines", measure_lines, METH_VARARGS,
     "measure_lines(texts, rules, javascript): how many lines have the first phrase of the rules, how many a curly bracket, how "
     "many sentences are in lines without the other phrases, and 1 if only Python can count that, as the bytes of 64-bit "
     "integers. With `javascript`, lines with the second phrase do not count."},
    {"json_columns", json_columns, METH_O,
     "json_columns(block): the columns of JSON lines, where each line starts, and 2 if all lines are as they would be "
     "written, but for values that are no strings, 1 if they will be so after tidy_json, else 0; None for lines that only "
     "Python can read.\n\n"
     "A column of strings is (key, ends, bytes, bitmap, nulls) with 32-bit ends, any other (key, values) with the text of "
     "its values, a comma after each."},
    {"json_wide", json_wide, METH_O,
     "json_wide(on): whether strings are read 64 bytes at a time, if the processor can; what it was before."},
    {"json_columns_of", json_columns_of, METH_VARARGS,
     "json_columns_of(file, position, size, whole): json_columns of so many bytes of an open file, and how many of them are its "
     "lines: the last may be cut off, unless they are `whole`."},
    {"json_lines", json_lines, METH_O,
     "json_lines(columns): rows as JSON lines. A column is (what stands before its value, strings, whether these are JSON)."},
    {"keep_lines", keep_lines, METH_VARARGS,
     "keep_lines(block, bits, rows, first): moves the lines of a block whose bit is 1 to its beginning; the first of its lines "
     "is that of bit `first`. Without bits all are kept. Returns how many bytes they are, or -1 if there are more lines than "
     "bits, and the number of the bit of the next line."},
    {"tidy_json", tidy_json, METH_O,
     "tidy_json(block): rewrites JSON as it would be written: without blanks, and with as few escapes as can be. Returns how "
     "many bytes it is then; -1 for a string that is none."},
    {"hash128", hash128, METH_VARARGS, "hash128(column, seed): 16 bytes for each row; zeros for null."},
    {"hash_pieces", hash_pieces, METH_VARARGS,
     "hash_pieces(data, size, per_row, first, width): hashes of pieces of `size` bytes; the number of a piece in its row, "
     "counted from `first`, is its seed."},
    {"hash_partitions", hash_partitions, METH_VARARGS,
     "hash_partitions(hashes, width, count): a number below `count` for each hash of `width` bytes, as the bytes of 64-bit "
     "integers."},
    {"by_number", by_number, METH_VARARGS,
     "by_number(numbers): the rows in the order of their 64-bit numbers, as the bytes of 64-bit integers, and each number that "
     "there is, with where it ends in that order. None if there are numbers of more than 20 bits."},
    {"repeated", repeated, METH_VARARGS,
     "repeated(keys, width): a bitmap of the keys of `width` bytes whose first eight bytes another one has."},
    {"normalise", normalise, METH_VARARGS,
     "normalise(texts, table, space, beyond): 64-bit offsets, bytes, and for each row a byte that is 1 where it was left "
     "out, since it has a character that the table leaves to Python."},
    {"minhash", minhash, METH_VARARGS,
     "minhash(texts, unit, n, seed, size, wide): signatures of `size` numbers, of 64 bits where `wide` and else of 32, and a "
     "bitmap of the rows that have one. The unit of shingles is 'chars' or 'words'."},
    {"sketch", sketch, METH_VARARGS,
     "sketch(texts, nodes, unit, n, seed, bands, rows, wide, buckets, body): a bitmap of the rows that have shingles; the keys "
     "of their bands, each 8 bytes and then its node, by bucket, and where each bucket ends; where the bodies of these rows "
     "end, and the bodies: nothing (0), sets of shingles (1), or a byte of each number of the signature (2); and the least shingle of "
     "each."},
    {"entry_pairs", entry_pairs, METH_VARARGS,
     "entry_pairs(entries, all_up_to): pairs of the nodes that have a key in common, 16 bytes each."},
    {"distinct_pairs", distinct_pairs, METH_VARARGS, "distinct_pairs(pairs): pairs of 64-bit numbers in order, each once."},
    {"set_jaccard", set_jaccard, METH_VARARGS,
     "set_jaccard(left, left_rows, right, right_rows): the Jaccard similarity of each pair of sets, of which one is a row of a "
     "column and the other one of another, as the bytes of 64-bit floats."},
    {"jaccard", jaccard, METH_VARARGS,
     "jaccard(left, right, unit, n, seed): the Jaccard similarity of the texts of each row, as the bytes of 64-bit floats."},
    {"similar_pairs", similar_pairs, METH_VARARGS,
     "similar_pairs(texts, unit, n, seed, least): all pairs of rows that are at least so similar, 24 bytes each: two 64-bit "
     "integers and a float."},
    {"components", components, METH_VARARGS,
     "components(u, v): the nodes of a graph whose edges are two buffers of 64-bit integers, and for each the least node of "
     "its component, as bytes."},
    {"forest", forest, METH_VARARGS,
     "forest(u, v): a byte for each edge of a graph, which is 1 where it joins what the edges before it have not."},
    {"simhash", simhash, METH_VARARGS,
     "simhash(texts, unit, n, seed): a 64-bit hash for each row, and a bitmap of the rows that have one."},
    {"bloom", bloom, METH_VARARGS,
     "bloom(bits, hashes, probes, add): a byte for each hash of 16 bytes that says whether it was there; with `add` it is "
     "from then on."},
    {"repeated_spans", repeated_spans, METH_VARARGS,
     "repeated_spans(texts, n): spans of at least n bytes that were there before, 24 bytes each: row, start and end."},
    {"anchors", anchors, METH_VARARGS,
     "anchors(texts, n, k): the places of k bytes by which windows of n bytes are known, 40 bytes each: row, first and last "
     "window, place, and hash."},
    {"ngram_table", ngram_table, METH_VARARGS, "ngram_table(keys): a table in which `ngram_hits` looks up 64-bit keys."},
    {"ngram_hits", ngram_hits, METH_VARARGS,
     "ngram_hits(texts, lengths, table, seed): the runs of so many words that are in a table, or all if it is empty, 24 bytes "
     "each: row, number of the first word, and key."},
    {"fasttext_open", fasttext_open, METH_VARARGS,
     "fasttext_open(entries, (dim, words, bucket, least, most, run, loss, pruned), buffers): a model for `fasttext_predict`.\n\n"
     "The entries of the dictionary are words, and then labels. The buffers: rows of floats for words and buckets; for a pruned "
     "model the bits of the buckets that are left, how many were before each 64 of them, and the row of each, counted from "
     "the last word; rows for labels, and what to multiply the output of each by; the children of the nodes of the tree."},
    {"fasttext_predict", fasttext_predict, METH_VARARGS,
     "fasttext_predict(model, texts, label): the number of the best label of each text, without the white space around it, and "
     "its chance, as the bytes of 32-bit integers and floats; -1 and 0 for a blank text. With a label of 0 or more its "
     "chance, in the text as it is."},
    {"fasttext_rows", fasttext_rows, METH_VARARGS,
     "fasttext_rows(model, texts): the rows of the input matrix that each text is the mean of: where those of a text end, as "
     "the bytes of 64-bit integers, and the rows of all, of 32-bit ones."},
    {"fasttext_fit", fasttext_fit, METH_VARARGS,
     "fasttext_fit((ends, rows, labels), (input, output), (dim, epochs, seed), rate): trains both matrices in place on what "
     "`fasttext_rows` gave, with a label for each text, by gradient descent on the softmax."},
    {"token_sums", token_sums, METH_VARARGS,
     "token_sums(matrix, (tokens, starts), (words, ends), dim): the sum of the rows of all tokens of each text, as the bytes of "
     "32-bit floats, and how many those are. `starts` says where the tokens of each word begin, `ends` where the words of each "
     "text end."},
    {"stop_table", stop_table, METH_O, "stop_table(words): a table of a frozenset, for `stop_words`."},
    {"stop_words", stop_words, METH_VARARGS,
     "stop_words(table, words, text): how many words of a text are in the frozenset that the table is of, and how many words "
     "it has."},
    {"hsv_changes", hsv_changes, METH_VARARGS,
     "hsv_changes(frames, pixels, full_range, last): for each frame the sums of the differences in hue, saturation and value to "
     "the frame before it, as the bytes of 64-bit integers; `last` has the colours of that frame, and is changed."},
    {"block_motion", block_motion, METH_VARARGS,
     "block_motion(before, frame, width, height, reach, per_step): for each whole block of 8 x 8 pixels of a grey picture where "
     "it was in the one before, relative to where it is: x and y, a signed byte each. A step away costs as much as a "
     "difference of `per_step`."},
    {"word_distances", word_distances, METH_VARARGS,
     "word_distances(left, right): how many words to replace, leave out and put in to make one text of the other, and how many "
     "words each has, 24 bytes for each row: three 64-bit integers."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "gristmill._kernels", "Loops over Arrow columns, in C.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernels(void) {
    hash_seed = (uint64_t)time(NULL) * 0x9E3779B97F4A7C15u ^ (uint64_t)(uintptr_t)&definition;
    classes_build();
    lexemes_build();
    Py_XDECREF(json_wide(NULL, Py_True));
    return PyModule_Create(&definition);
}
