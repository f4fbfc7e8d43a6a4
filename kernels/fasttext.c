/* Predicts the label of a text from the mean of its rows; and the two functions that Python calls. */

#include "fasttext.h"
#include <math.h>

#define DEEPEST 512
#define CAPSULE "gristmill.fasttext"

/* -- labels --------------------------------------------------------------------------------------------- */

typedef struct {
    const Reading *reading;
    float floor, score;
    int32_t label; /* -1: none yet */
} Search;

static float log_of(float x) { return (float)log(x + 1e-5); }

static float output_of(const Reading *reading, int64_t row) {
    const FastText *model = reading->model;
    const float *weights = (const float *)model->held[OUTPUT].buf + row * model->dim;
    float sum = 0;
    for (int64_t i = 0; i < model->dim; i++)
        sum += reading->sum[i] * weights[i];
    return sum * ((const float *)model->held[SCALES].buf)[row];
}

/* The probability of the right child at a node of the tree. */
static float turn(const Reading *reading, int64_t node) {
    float output = output_of(reading, node - reading->model->labels);
    return (float)(1. / (1 + expf(-output)));
}

/* Recurses at most DEEPEST levels, which tree_open ensures. */
static void search_tree(Search *search, int32_t node, float score) {
    const FastText *model = search->reading->model;
    if (score < search->floor || (search->label >= 0 && score < search->score))
        return;
    if (node < model->labels) {
        search->label = node, search->score = score;
        return;
    }
    const int32_t *children = (const int32_t *)model->held[TREE].buf + 2 * (node - model->labels);
    float right = turn(search->reading, node);
    search_tree(search, children[0], score + log_of((float)(1.0 - right)));
    search_tree(search, children[1], score + log_of(right));
}

/* The probability of one leaf: the product along the path from the root. */
static float chance_in_tree(const Reading *reading, int32_t label, float floor) {
    const FastText *model = reading->model;
    int32_t path[DEEPEST + 1];
    int depth = 0;
    float score = 0;
    for (int32_t node = label; node >= 0; node = model->parents[node])
        path[depth++] = node;
    while (--depth > 0) {
        const int32_t *children = (const int32_t *)model->held[TREE].buf + 2 * (path[depth] - model->labels);
        float right = turn(reading, path[depth]);
        score += log_of(path[depth - 1] == children[1] ? right : (float)(1.0 - right));
        if (score < floor)
            return 0;
    }
    return expf(score);
}

static float sigmoid(const FastText *model, float x) {
    if (!(x >= -8))
        return 0;
    return x > 8 ? 1 : model->sigmoids[(int64_t)((x + 8) * 512 / 8 / 2)];
}

static void softmax(float *outputs, int64_t count) {
    float most = outputs[0], sum = 0;
    for (int64_t i = 1; i < count; i++)
        most = outputs[i] > most ? outputs[i] : most;
    for (int64_t i = 0; i < count; i++)
        outputs[i] = expf(outputs[i] - most), sum += outputs[i];
    for (int64_t i = 0; i < count; i++)
        outputs[i] /= sum;
}

/* Without a tree, the probability of one label needs the scores of all, unless labels are independent. */
static float choose(Reading *reading, int32_t *label) {
    const FastText *model = reading->model;
    for (int64_t i = 0; i < model->labels; i++) {
        float output = output_of(reading, i);
        reading->outputs[i] = model->loss == LOSS_SOFTMAX ? output : sigmoid(model, output);
    }
    if (model->loss == LOSS_SOFTMAX)
        softmax(reading->outputs, model->labels);
    if (*label < 0) {
        *label = 0;
        for (int64_t i = 1; i < model->labels; i++)
            if (log_of(reading->outputs[i]) >= log_of(reading->outputs[*label])) /* the last of equal ones */
                *label = (int32_t)i;
    }
    return expf(log_of(reading->outputs[*label]));
}

/* The probability of *label; if it is below 0, that of the best label, which is stored there. */
static float judge(Reading *reading, int32_t *label) {
    const FastText *model = reading->model;
    float share = (float)(1.0 / (double)reading->count);
    for (int64_t i = 0; i < model->dim; i++)
        reading->sum[i] *= share;
    if (model->loss != LOSS_TREE)
        return choose(reading, label);
    if (*label >= 0)
        return chance_in_tree(reading, *label, log_of(0));
    Search search = {reading, log_of(0), 0, -1};
    search_tree(&search, (int32_t)(2 * model->labels - 2), 0);
    *label = search.label;
    return search.label < 0 ? 0 : expf(search.score);
}

/* -- texts ---------------------------------------------------------------------------------------------- */

static int is_space(const uint8_t *p, const uint8_t *end, int *size) {
    uint32_t character = *p;
    *size = character < 0x80 ? 1 : decode(p, end, &character);
    return ((character < 0x80 ? byte_lanes[character] : lanes_of[class_of(character)]) & IS_SPACE) != 0;
}

/* Strips white space as Python defines it. */
static Text strip(Text text) {
    const uint8_t *p = text.bytes, *end = p + text.size;
    int size;
    while (p < end && is_space(p, end, &size))
        p += size;
    while (p < end) {
        const uint8_t *last = end - 1;
        while (last > p && (*last & 0xC0) == 0x80)
            last--;
        if (!is_space(last, end, &size) || last + size != end)
            break;
        end = last;
    }
    return (Text){p, end - p};
}

/* If `wanted` is below 0, the best label of each text, and none for blank texts. */
static int judge_all(Reading *reading, const Column *texts, int32_t wanted, int32_t *labels, float *chances) {
    for (int64_t row = 0; row < texts->array->length; row++) {
        Text text = column_text(texts, row);
        labels[row] = -1, chances[row] = 0;
        if (wanted < 0 && !(text = strip(text)).size)
            continue;
        if (add_text(reading, text))
            return -1;
        if (reading->count) {
            labels[row] = wanted;
            chances[row] = judge(reading, &labels[row]);
        }
    }
    return 0;
}

static int reading_open(Reading *reading, const FastText *model) {
    reading->model = model;
    reading->sum = malloc((size_t)model->dim * sizeof(float));
    reading->outputs = malloc((size_t)model->labels * sizeof(float));
    if (!reading->memory)
        reading->memory = memory_make();
    return reading->sum && reading->outputs && reading->memory ? 0 : -1;
}

static void reading_close(Reading *reading) {
    free(reading->sum);
    free(reading->outputs);
    free(reading->word.memory);
    free(reading->hashes.memory);
    free(reading->kept.memory);
    memory_free(reading->memory);
    free(reading);
}

static PyObject *predict_column(FastText *model, const Column *texts, int32_t wanted) {
    Py_ssize_t size = (Py_ssize_t)texts->array->length * 4;
    PyObject *labels = PyBytes_FromStringAndSize(NULL, size), *chances = PyBytes_FromStringAndSize(NULL, size);
    Reading *reading = calloc(1, sizeof *reading);
    PyObject *result = NULL;
    int failed = !labels || !chances || !reading;
    if (!failed) {
        reading->memory = model->memory, model->memory = NULL; /* a second thread allocates its own */
        Py_BEGIN_ALLOW_THREADS;
        failed = reading_open(reading, model) ||
                 judge_all(reading, texts, wanted, (int32_t *)(void *)PyBytes_AS_STRING(labels),
                           (float *)(void *)PyBytes_AS_STRING(chances));
        Py_END_ALLOW_THREADS;
        if (!failed && !model->memory)
            model->memory = reading->memory, reading->memory = NULL;
    }
    if (reading)
        reading_close(reading);
    if (!failed)
        result = PyTuple_Pack(2, labels, chances);
    else if (!PyErr_Occurred())
        PyErr_NoMemory();
    Py_XDECREF(labels);
    Py_XDECREF(chances);
    return result;
}

PyObject *fasttext_predict(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *capsule, *object, *result = NULL;
    int wanted;
    Column texts;
    if (!PyArg_ParseTuple(args, "OOi", &capsule, &object, &wanted))
        return NULL;
    FastText *model = PyCapsule_GetPointer(capsule, CAPSULE);
    if (!model || column_open(&texts, object))
        return NULL;
    if (!column_is_text(&texts))
        PyErr_Format(PyExc_TypeError, "fasttext_predict takes a column of strings, not of Arrow format '%s'", texts.format);
    else if (wanted >= model->labels)
        PyErr_Format(PyExc_ValueError, "there is no label %d", wanted);
    else
        result = predict_column(model, &texts, wanted);
    column_close(&texts);
    return result;
}

/* Where the rows of each text end, among the rows of all. */
static PyObject *rows_of_column(const FastText *model, const Column *texts) {
    int64_t count = texts->array->length;
    PyObject *ends = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count * 8), *rows = NULL, *result = NULL;
    Reading *reading = calloc(1, sizeof *reading);
    int failed = !ends || !reading;
    if (!failed) {
        int64_t *end = (int64_t *)(void *)PyBytes_AS_STRING(ends);
        Py_BEGIN_ALLOW_THREADS;
        reading->keeps = 1;
        failed = reading_open(reading, model);
        for (int64_t row = 0; row < count && !failed; row++) {
            failed = add_text(reading, column_text(texts, row));
            end[row] = (int64_t)reading->kept_count;
        }
        Py_END_ALLOW_THREADS;
        if (!failed)
            rows = PyBytes_FromStringAndSize(reading->kept.memory, (Py_ssize_t)reading->kept_count * 4);
    }
    if (reading)
        reading_close(reading);
    if (rows)
        result = PyTuple_Pack(2, ends, rows);
    else if (!PyErr_Occurred())
        PyErr_NoMemory();
    Py_XDECREF(ends);
    Py_XDECREF(rows);
    return result;
}

PyObject *fasttext_rows(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *capsule, *object, *result = NULL;
    Column texts;
    if (!PyArg_ParseTuple(args, "OO", &capsule, &object))
        return NULL;
    const FastText *model = PyCapsule_GetPointer(capsule, CAPSULE);
    if (!model || column_open(&texts, object))
        return NULL;
    if (!column_is_text(&texts))
        PyErr_Format(PyExc_TypeError, "fasttext_rows takes a column of strings, not of Arrow format '%s'", texts.format);
    else
        result = rows_of_column(model, &texts);
    column_close(&texts);
    return result;
}

/* -- the model ------------------------------------------------------------------------------------------ */

static void model_free(FastText *model) {
    for (int i = 0; i < model->held_count; i++)
        PyBuffer_Release(&model->held[i]);
    column_close(&model->entries);
    free(model->slots);
    free(model->parents);
    memory_free(model->memory);
    free(model);
}

static void capsule_free(PyObject *capsule) { model_free(PyCapsule_GetPointer(capsule, CAPSULE)); }

/* Checks that each node is the child of exactly one node with a greater number, and none is deeper than DEEPEST. */
static const char *tree_open(FastText *model) {
    int64_t leaves = model->labels, nodes = 2 * leaves - 1;
    const int32_t *children = model->held[TREE].buf;
    if (model->held[TREE].len != 8 * (leaves - 1))
        return "the tree is not of the size of the labels";
    model->parents = malloc((size_t)nodes * 4);
    int32_t *depths = model->parents ? calloc((size_t)nodes, 4) : NULL;
    if (!depths)
        return "there is no memory";
    const char *wrong = NULL;
    memset(model->parents, 0xFF, (size_t)nodes * 4);
    for (int64_t i = nodes - 1; i >= leaves && !wrong; i--)
        for (int side = 0; side < 2 && !wrong; side++) {
            int32_t child = children[2 * (i - leaves) + side];
            if (child < 0 || child >= i || model->parents[child] >= 0 || depths[i] >= DEEPEST - 1)
                wrong = "the tree is none, or too deep";
            else
                model->parents[child] = (int32_t)i, depths[child] = depths[i] + 1;
        }
    free(depths);
    return wrong;
}

static const char *buckets_open(const FastText *model) {
    int64_t blocks = (model->bucket + 63) / 64, known = model->held[PLACES].len / 4;
    if (!model->pruned)
        return model->rows < model->words + model->bucket ? "there are fewer rows than words and buckets" : NULL;
    if (model->held[BITS].len != 8 * blocks || model->held[RANKS].len != 4 * blocks)
        return "the bits are not those of the buckets";
    const uint64_t *bits = model->held[BITS].buf;
    const uint32_t *ranks = model->held[RANKS].buf;
    const int32_t *places = model->held[PLACES].buf;
    for (int64_t i = 0; i < blocks; i++)
        if ((int64_t)ranks[i] + __builtin_popcountll(bits[i]) > known)
            return "the ranks are not those of the bits";
    for (int64_t i = 0; i < known; i++)
        if (places[i] < 0 || places[i] >= model->rows - model->words)
            return "a bucket has a row that is not there";
    return NULL;
}

static const char *shape_open(FastText *model) {
    const Py_buffer *held = model->held;
    if (model->dim < 1 || model->dim > 1 << 20 || model->words < 0 || model->bucket < 1 || model->bucket > INT32_MAX ||
        model->loss < LOSS_TREE || model->loss > LOSS_EACH)
        return "a number is out of range";
    model->rows = held[INPUT].len / 4 / model->dim;
    model->labels = held[SCALES].len / 4;
    int64_t entries = model->entries.array->length;
    if (!column_is_bytes(&model->entries) || entries > INT32_MAX / 4 || entries != model->words + model->labels)
        return "the dictionary is not of words and labels";
    if (model->rows < model->words || model->rows > INT32_MAX || held[INPUT].len != model->rows * model->dim * 4)
        return "the rows are not as many as they must be";
    if (model->labels < 1 || held[OUTPUT].len != model->labels * model->dim * 4)
        return "the output is not of the size of the labels";
    const char *wrong = model->most > 0 || model->run > 1 ? buckets_open(model) : NULL;
    return wrong || model->loss != LOSS_TREE ? wrong : tree_open(model);
}

static const char *model_open(FastText *model) {
    const char *wrong = shape_open(model);
    if (wrong)
        return wrong;
    model->inverse = UINT64_MAX / (uint64_t)model->bucket + 1; /* of 1: 0, and the remainder is 0 */
    for (int i = 0; i < 513; i++) {
        float x = (float)(i * 16) / 512 - 8;
        model->sigmoids[i] = (float)(1.0 / (1.0 + expf(-x)));
    }
    return dictionary_open(model) ? "there is no memory" : NULL;
}

/* Checks the numbers: nothing else keeps a damaged model from reading out of bounds. */
PyObject *fasttext_open(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *entries, *buffers;
    FastText *model = calloc(1, sizeof *model);
    if (!model)
        return PyErr_NoMemory();
    if (!PyArg_ParseTuple(args, "O(LLLLLLLL)O!", &entries, &model->dim, &model->words, &model->bucket, &model->least,
                          &model->most, &model->run, &model->loss, &model->pruned, &PyTuple_Type, &buffers) ||
        column_open(&model->entries, entries)) {
        free(model);
        return NULL;
    }
    const char *wrong = PyTuple_GET_SIZE(buffers) == BUFFERS ? NULL : "fasttext_open takes seven buffers";
    for (; !wrong && model->held_count < BUFFERS; model->held_count++)
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(buffers, model->held_count), &model->held[model->held_count], PyBUF_SIMPLE)) {
            model_free(model);
            return NULL;
        }
    wrong = wrong ? wrong : model_open(model);
    PyObject *capsule = wrong ? NULL : PyCapsule_New(model, CAPSULE, capsule_free);
    if (wrong)
        PyErr_SetString(PyExc_ValueError, wrong);
    if (!capsule)
        model_free(model);
    return capsule;
}
