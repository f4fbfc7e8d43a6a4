/* Trains fastText models: stochastic gradient descent on the softmax of labels, one text after the other, in an order that
   a seed decides. One thread, so that the same input gives the same bytes. */

#include "fasttext.h"
#include <math.h>

enum { ENDS, ROWS, LABELS, MATRIX, LABEL_MATRIX, HELD };

typedef struct {
    Py_buffer held[HELD];
    int held_count;
    long long dim, epochs, seed;
    double rate;
    int64_t texts, labels, rows;
    float *hidden, *gradient, *chances;
    int64_t *order;
} Fit;

typedef float Four __attribute__((vector_size(16)));

static inline Four load_floats(const float *p) {
    Four four;
    memcpy(&four, p, sizeof four);
    return four;
}

/* to += factor * from */
static inline void add_scaled(float *to, const float *from, float factor, int64_t dim) {
    int64_t i = 0;
    for (; i + 4 <= dim; i += 4) {
        Four sum = load_floats(to + i) + load_floats(from + i) * factor;
        memcpy(to + i, &sum, sizeof sum);
    }
    for (; i < dim; i++)
        to[i] += from[i] * factor;
}

static inline float dot(const float *left, const float *right, int64_t dim) {
    Four sums = {0, 0, 0, 0};
    int64_t i = 0;
    for (; i + 4 <= dim; i += 4)
        sums += load_floats(left + i) * load_floats(right + i);
    float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    for (; i < dim; i++)
        sum += left[i] * right[i];
    return sum;
}

static inline uint64_t next_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static void shuffle(int64_t *order, int64_t count, uint64_t *state) {
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t j = (int64_t)(((__uint128_t)next_random(state) * (uint64_t)(i + 1)) >> 64), kept = order[i];
        order[i] = order[j], order[j] = kept;
    }
}

/* One step. Returns the loss before it. */
static double step(Fit *fit, const int32_t *rows, int64_t count, int32_t label, float rate) {
    const int64_t dim = fit->dim;
    float *matrix = fit->held[MATRIX].buf, *output = fit->held[LABEL_MATRIX].buf, most = -INFINITY, sum = 0;
    memset(fit->hidden, 0, (size_t)dim * sizeof(float));
    memset(fit->gradient, 0, (size_t)dim * sizeof(float));
    const float share = 1.0f / (float)count;
    for (int64_t i = 0; i < count; i++) {
        if (i + 8 < count)
            __builtin_prefetch(matrix + (int64_t)rows[i + 8] * dim, 1);
        add_scaled(fit->hidden, matrix + (int64_t)rows[i] * dim, share, dim);
    }
    for (int64_t j = 0; j < fit->labels; j++) {
        fit->chances[j] = dot(output + j * dim, fit->hidden, dim);
        most = fit->chances[j] > most ? fit->chances[j] : most;
    }
    for (int64_t j = 0; j < fit->labels; j++)
        fit->chances[j] = expf(fit->chances[j] - most), sum += fit->chances[j];
    for (int64_t j = 0; j < fit->labels; j++) {
        float error = rate * ((j == label ? 1.0f : 0.0f) - fit->chances[j] / sum);
        add_scaled(fit->gradient, output + j * dim, error, dim);
        add_scaled(output + j * dim, fit->hidden, error, dim);
    }
    for (int64_t i = 0; i < count; i++) {
        if (i + 8 < count)
            __builtin_prefetch(matrix + (int64_t)rows[i + 8] * dim, 1);
        add_scaled(matrix + (int64_t)rows[i] * dim, fit->gradient, share, dim);
    }
    return -log((double)(fit->chances[label] / sum) + 1e-12);
}

/* Returns the mean loss of the last epoch. */
static double run_epochs(Fit *fit) {
    const int64_t *ends = fit->held[ENDS].buf;
    const int32_t *rows = fit->held[ROWS].buf, *labels = fit->held[LABELS].buf;
    uint64_t state = (uint64_t)fit->seed;
    double loss = 0, total = (double)fit->epochs * (double)fit->texts, done = 0;
    for (int64_t i = 0; i < fit->texts; i++)
        fit->order[i] = i;
    for (int64_t epoch = 0; epoch < fit->epochs; epoch++) {
        shuffle(fit->order, fit->texts, &state);
        loss = 0;
        for (int64_t i = 0; i < fit->texts; i++, done++) {
            int64_t text = fit->order[i], start = text ? ends[text - 1] : 0;
            if (ends[text] > start)
                loss += step(fit, rows + start, ends[text] - start, labels[text], (float)(fit->rate * (1 - done / total)));
        }
    }
    return fit->texts ? loss / (double)fit->texts : 0;
}

/* What is wrong with the numbers, if anything: nothing else keeps them from reading out of bounds. */
static const char *check_fit(Fit *fit) {
    const Py_buffer *held = fit->held;
    if (fit->dim < 1 || fit->dim > 1 << 20 || fit->epochs < 0 || !(fit->rate > 0) || !isfinite(fit->rate))
        return "a number is out of range";
    int64_t bytes = 4 * fit->dim;
    fit->texts = held[ENDS].len / 8;
    fit->labels = held[LABEL_MATRIX].len / bytes, fit->rows = held[MATRIX].len / bytes;
    if (held[ENDS].len % 8 || held[LABELS].len != 4 * fit->texts || held[ROWS].len % 4)
        return "there must be an end and a label for each text";
    if (held[MATRIX].len != bytes * fit->rows || held[LABEL_MATRIX].len != bytes * fit->labels || fit->labels < 1)
        return "a matrix is not of rows of this size";
    const int64_t *ends = held[ENDS].buf;
    const int32_t *rows = held[ROWS].buf, *labels = held[LABELS].buf;
    int64_t last = 0;
    for (int64_t i = 0; i < fit->texts; last = ends[i++])
        if (ends[i] < last || labels[i] < 0 || labels[i] >= fit->labels)
            return "an end or a label is out of range";
    if (last != held[ROWS].len / 4)
        return "the ends are not those of these rows";
    for (int64_t i = 0; i < last; i++)
        if (rows[i] < 0 || rows[i] >= fit->rows)
            return "a row is out of range";
    return NULL;
}

static int fit_open(Fit *fit) {
    fit->hidden = malloc((size_t)fit->dim * sizeof(float));
    fit->gradient = malloc((size_t)fit->dim * sizeof(float));
    fit->chances = malloc((size_t)fit->labels * sizeof(float));
    fit->order = malloc(((size_t)fit->texts + 1) * sizeof(int64_t));
    return fit->hidden && fit->gradient && fit->chances && fit->order ? 0 : -1;
}

PyObject *fasttext_fit(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *objects[HELD], *result = NULL;
    Fit fit = {0};
    if (!PyArg_ParseTuple(args, "(OOO)(OO)(LLL)d", &objects[ENDS], &objects[ROWS], &objects[LABELS], &objects[MATRIX],
                          &objects[LABEL_MATRIX], &fit.dim, &fit.epochs, &fit.seed, &fit.rate))
        return NULL;
    for (; fit.held_count < HELD; fit.held_count++) {
        int flags = fit.held_count >= MATRIX ? PyBUF_WRITABLE : PyBUF_SIMPLE;
        if (PyObject_GetBuffer(objects[fit.held_count], &fit.held[fit.held_count], flags))
            goto done;
    }
    const char *wrong = check_fit(&fit);
    if (wrong) {
        PyErr_SetString(PyExc_ValueError, wrong);
        goto done;
    }
    if (fit_open(&fit)) {
        PyErr_NoMemory();
        goto done;
    }
    double loss;
    Py_BEGIN_ALLOW_THREADS;
    loss = run_epochs(&fit);
    Py_END_ALLOW_THREADS;
    result = PyFloat_FromDouble(loss);
done:
    for (int i = 0; i < fit.held_count; i++)
        PyBuffer_Release(&fit.held[i]);
    free(fit.hidden), free(fit.gradient), free(fit.chances), free(fit.order);
    return result;
}
