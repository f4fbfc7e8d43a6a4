/* Validates UTF-8, 64 bytes at a time, with bit masks of what each byte is and whether it must continue a character. */

#ifndef GRISTMILL_UTF8_H
#define GRISTMILL_UTF8_H

#include "text.h"
#include "wide.h"

/* The first byte beyond ASCII, or `end`. */
static inline const uint8_t *skip_ascii(const uint8_t *p, const uint8_t *end) {
    while (end - p >= 8 && !(load8(p) & 0x8080808080808080u))
        p += 8;
    while (p < end && *p < 0x80)
        p++;
    return p;
}

#ifdef __SSE2__

/* Which of 64 bytes are greater than a limit, both taken as signed: 0x80 is the smallest. */
ALWAYS_INLINE uint64_t above(const uint8_t *p, int limit, int wide) {
    if (wide)
        return wide_above(p, limit);
    uint64_t bits = 0;
    for (int i = 0; i < 4; i++) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(p + 16 * i));
        bits |= (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_cmpgt_epi8(bytes, _mm_set1_epi8((char)limit))) << (16 * i);
    }
    return bits;
}

ALWAYS_INLINE uint64_t equal(const uint8_t *p, int value, int wide) {
    if (wide)
        return wide_equal(p, value);
    uint64_t bits = 0;
    for (int i = 0; i < 4; i++) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(p + 16 * i));
        bits |= (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8((char)value))) << (16 * i);
    }
    return bits;
}

/* What the bytes before say of the next ones. */
typedef struct {
    uint64_t follow;                              /* must be the second, third or fourth byte of a character */
    uint64_t after_e0, after_ed, after_f0, after_f4; /* comes after such a byte, which allows only some */
} Before;

/* What comes after the bytes of `bits` in these 64; whether that is the first of the next 64 goes into `*carry`. */
static inline uint64_t next(uint64_t bits, uint64_t *carry) {
    uint64_t after = bits << 1 | *carry;
    *carry = bits >> 63;
    return after;
}

/* Whether the second bytes of long characters are right: none is longer than it must be, a surrogate, or too large. */
ALWAYS_INLINE int seconds_are_right(const uint8_t *p, uint64_t high, uint64_t four, Before *before, int wide) {
    uint64_t from_a0 = above(p, (int8_t)0x9F, wide), from_90 = above(p, (int8_t)0x8F, wide);
    uint64_t wrong = next(equal(p, 0xE0, wide), &before->after_e0) & ~from_a0;
    wrong |= next(equal(p, 0xED, wide), &before->after_ed) & from_a0;
    uint64_t f0 = four ? equal(p, 0xF0, wide) : 0, f4 = four ? equal(p, 0xF4, wide) : 0;
    wrong |= next(f0, &before->after_f0) & ~from_90;
    wrong |= next(f4, &before->after_f4) & from_90;
    return !(wrong & high) && !(above(p, (int8_t)0xF4, wide) & four);
}

ALWAYS_INLINE int block_is_right(const uint8_t *p, Before *before, int wide) {
    uint64_t high = ~above(p, -1, wide);
    if (!high)
        return !before->follow;
    uint64_t lead = above(p, (int8_t)0xBF, wide) & high;
    uint64_t three = above(p, (int8_t)0xDF, wide) & high, four = above(p, (int8_t)0xEF, wide) & high;
    uint64_t follow = before->follow | lead << 1 | three << 2 | four << 3;
    before->follow = lead >> 63 | three >> 62 | four >> 61;
    if (follow != (high & ~lead) || (lead & ~above(p, (int8_t)0xC1, wide)))
        return 0;
    uint64_t open = three | before->after_e0 | before->after_ed | before->after_f0 | before->after_f4;
    return !open || seconds_are_right(p, high, four, before, wide);
}

ALWAYS_INLINE int is_utf8(const uint8_t *p, const uint8_t *end, int wide) {
    Before before = {0};
    for (; end - p >= 64; p += 64)
        if (!block_is_right(p, &before, wide))
            return 0;
    if (!before.follow && skip_ascii(p, end) == end)
        return 1;
    uint8_t rest[64] = {0}; /* zeros follow nothing */
    memcpy(rest, p, (size_t)(end - p));
    return block_is_right(rest, &before, wide);
}

#else

/* The length of a valid character beyond ASCII, or 0. */
static inline int valid_character(const uint8_t *p, const uint8_t *end) {
    uint32_t c;
    int size = decode(p, end, &c);
    if (size == 1 || (size == 3 && (c < 0x800 || (c >= 0xD800 && c < 0xE000))) || (size == 4 && (c < 0x10000 || c > 0x10FFFF)))
        return 0;
    return size;
}

static inline int is_utf8(const uint8_t *p, const uint8_t *end, int wide) {
    (void)wide;
    while ((p = skip_ascii(p, end)) < end) {
        int size = valid_character(p, end);
        if (!size)
            return 0;
        p += size;
    }
    return 1;
}

#endif

#endif
