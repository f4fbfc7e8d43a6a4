/* Differences between the pictures of a film: of their colours, and of where their blocks are. */

#include "frames.h"

/* -- colours ---------------------------------------------------------------------------------------------------- */

#define SHIFT 12 /* of the tables: a division as a multiplication */

typedef struct {
    int saturation[256], hue[256]; /* 255 / i, 30 / i */
} Divisions;

static void divisions_build(Divisions *tables) {
    tables->saturation[0] = tables->hue[0] = 0;
    for (int i = 1; i < 256; i++) {
        tables->saturation[i] = (2 * (255 << SHIFT) + i) / (2 * i);
        tables->hue[i] = (2 * (30 << SHIFT) + i) / (2 * i);
    }
}

static inline int byte(int value) { return value < 0 ? 0 : value > 255 ? 255 : value; }

/* Factors of BT.601 in 1/256: luma, V to red, U and V to green, U to blue. */
typedef struct {
    int black, luma, red, green_u, green_v, blue;
} Colours;

static const Colours limited = {16, 298, 409, -100, -208, 516}, full = {0, 256, 359, -88, -183, 454};

static inline void to_hsv(const uint8_t *yuv, const Colours *colours, const Divisions *tables, uint8_t *hsv) {
    int luma = colours->luma * (yuv[0] - colours->black) + 128, u = yuv[1] - 128, v = yuv[2] - 128;
    int red = byte((luma + colours->red * v) >> 8), blue = byte((luma + colours->blue * u) >> 8);
    int green = byte((luma + colours->green_u * u + colours->green_v * v) >> 8);
    int most = red > green ? red : green, least = red < green ? red : green;
    most = most > blue ? most : blue;
    least = least < blue ? least : blue;
    int range = most - least;
    int turn = most == red ? green - blue : most == green ? blue - red + 2 * range : red - green + 4 * range;
    int hue = (turn * tables->hue[range] + (1 << (SHIFT - 1))) >> SHIFT;
    hsv[0] = (uint8_t)(hue < 0 ? hue + 180 : hue);
    hsv[1] = (uint8_t)((range * tables->saturation[most] + (1 << (SHIFT - 1))) >> SHIFT);
    hsv[2] = (uint8_t)most;
}

static inline int distance(uint8_t a, uint8_t b) { return a > b ? a - b : b - a; }

static void add_changes(const uint8_t *frame, int64_t pixels, const Colours *colours, const Divisions *tables,
                        uint8_t *last, int64_t *sums) {
    for (int64_t i = 0; i < 3 * pixels; i += 3) {
        uint8_t hsv[3];
        to_hsv(frame + i, colours, tables, hsv);
        for (int k = 0; k < 3; k++) {
            sums[k] += distance(hsv[k], last[i + k]);
            last[i + k] = hsv[k];
        }
    }
}

/* hsv_changes(frames, pixels, full_range, last): for each frame the sums of the differences in hue, saturation and value to
   the frame before it, as the bytes of 64-bit integers; `last` has the colours of that frame, and is changed. */
PyObject *hsv_changes(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer frames, last;
    Py_ssize_t pixels;
    int full_range;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "y*npw*", &frames, &pixels, &full_range, &last))
        return NULL;
    if (pixels < 1 || last.len != 3 * pixels || frames.len % (3 * pixels))
        PyErr_SetString(PyExc_ValueError, "hsv_changes takes frames of so many pixels of three bytes, and one such frame");
    else
        result = PyBytes_FromStringAndSize(NULL, frames.len / (3 * pixels) * 24);
    if (result) {
        int64_t *sums = (int64_t *)(void *)PyBytes_AS_STRING(result);
        Py_ssize_t count = frames.len / (3 * pixels);
        memset(sums, 0, (size_t)count * 24);
        Py_BEGIN_ALLOW_THREADS;
        Divisions tables;
        divisions_build(&tables);
        for (Py_ssize_t i = 0; i < count; i++)
            add_changes((uint8_t *)frames.buf + 3 * pixels * i, pixels, full_range ? &full : &limited, &tables, last.buf,
                        sums + 3 * i);
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&frames);
    PyBuffer_Release(&last);
    return result;
}

/* -- motion ------------------------------------------------------------------------------------------------------- */

#define BLOCK 8

#ifdef __SSE2__
#include <emmintrin.h>

static inline __m128i two_rows(const uint8_t *at, int64_t width) {
    __m128i first = _mm_loadl_epi64((const __m128i *)(const void *)at);
    return _mm_unpacklo_epi64(first, _mm_loadl_epi64((const __m128i *)(const void *)(at + width)));
}

static inline int block_difference(const uint8_t *a, const uint8_t *b, int64_t width) {
    __m128i sums = _mm_setzero_si128();
    for (int y = 0; y < BLOCK; y += 2)
        sums = _mm_add_epi64(sums, _mm_sad_epu8(two_rows(a + y * width, width), two_rows(b + y * width, width)));
    return _mm_cvtsi128_si32(sums) + _mm_cvtsi128_si32(_mm_srli_si128(sums, 8));
}
#else
static inline int block_difference(const uint8_t *a, const uint8_t *b, int64_t width) {
    int sum = 0;
    for (int y = 0; y < BLOCK; y++)
        for (int x = 0; x < BLOCK; x++)
            sum += distance(a[y * width + x], b[y * width + x]);
    return sum;
}
#endif

/* Where the block at (x, y) of `frame` was in `before`, as the one with the least costs; the first of equals. */
static void find_block(const uint8_t *before, const uint8_t *frame, int64_t width, int64_t height, int64_t x, int64_t y,
                       int reach, int per_step, int8_t *found) {
    const uint8_t *block = frame + y * width + x;
    int least = block_difference(before + y * width + x, block, width);
    found[0] = found[1] = 0;
    for (int dy = -reach; dy <= reach && least; dy++)
        for (int dx = -reach; dx <= reach; dx++) {
            int64_t u = x + dx, v = y + dy;
            int costs = per_step * ((dx < 0 ? -dx : dx) + (dy < 0 ? -dy : dy));
            if (u < 0 || v < 0 || u + BLOCK > width || v + BLOCK > height || costs >= least)
                continue;
            costs += block_difference(before + v * width + u, block, width);
            if (costs < least) {
                least = costs;
                found[0] = (int8_t)dx;
                found[1] = (int8_t)dy;
            }
        }
}

/* block_motion(before, frame, width, height, reach, per_step): for each whole block of 8 x 8 pixels of a grey picture where
   it was in the one before, relative to where it is: x and y, a signed byte each. A step away costs as much as a
   difference of `per_step`. */
PyObject *block_motion(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer before, frame;
    Py_ssize_t width, height;
    int reach, per_step;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "y*y*nnii", &before, &frame, &width, &height, &reach, &per_step))
        return NULL;
    if (width < 0 || height < 0 || width > 1 << 15 || height > 1 << 15 || before.len != width * height ||
        frame.len != before.len || reach < 0 || reach > 127 || per_step < 0 || per_step > 1 << 20)
        PyErr_SetString(PyExc_ValueError, "block_motion takes two grey pictures of the same size, and a reach of up to 127");
    else
        result = PyBytes_FromStringAndSize(NULL, 2 * (width / BLOCK) * (height / BLOCK));
    if (result) {
        int8_t *found = (int8_t *)PyBytes_AS_STRING(result);
        Py_BEGIN_ALLOW_THREADS;
        for (Py_ssize_t y = 0; y + BLOCK <= height; y += BLOCK)
            for (Py_ssize_t x = 0; x + BLOCK <= width; x += BLOCK, found += 2)
                find_block(before.buf, frame.buf, width, height, x, y, reach, per_step, found);
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&before);
    PyBuffer_Release(&frame);
    return result;
}
