/* Reads documents in blocks of 64 bytes, with bit masks of spaces, line ends and non-ASCII characters. */

#ifndef GRISTMILL_BLOCK_H
#define GRISTMILL_BLOCK_H

#include "text.h"
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define BLOCK 64

typedef struct {
    uint64_t space, newline, high, inner; /* bit i: byte i. high: beyond ASCII. inner: does not begin a character */
} Block;

#ifdef __SSE2__
static inline uint64_t quarter(__m128i mask, int index) {
    return (uint64_t)(uint32_t)_mm_movemask_epi8(mask) << (16 * index);
}

static inline __m128i between(__m128i bytes, int low, int count) {
    __m128i above = _mm_sub_epi8(bytes, _mm_set1_epi8((char)low));
    return _mm_cmpeq_epi8(_mm_min_epu8(above, _mm_set1_epi8((char)(count - 1))), above);
}

static inline Block look_at(const uint8_t *p) {
    Block block = {0, 0, 0, 0};
    for (int i = 0; i < 4; i++) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(p + 16 * i));
        block.space |= quarter(_mm_or_si128(between(bytes, 0x09, 5), between(bytes, 0x1C, 5)), i);
        block.newline |= quarter(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('\n')), i);
        block.high |= quarter(bytes, i);
        block.inner |= quarter(_mm_cmplt_epi8(bytes, _mm_set1_epi8(-64)), i);
    }
    return block;
}

/* Bit i: byte i is a letter of ASCII. */
static inline uint64_t letters_at(const uint8_t *p) {
    uint64_t letters = 0;
    for (int i = 0; i < 4; i++) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(p + 16 * i));
        letters |= quarter(between(_mm_or_si128(bytes, _mm_set1_epi8(0x20)), 'a', 26), i);
    }
    return letters;
}
#else
static inline Block look_at(const uint8_t *p) {
    Block block = {0, 0, 0, 0};
    for (int i = 0; i < BLOCK; i++) {
        uint64_t bit = (uint64_t)1 << i;
        uint8_t c = p[i];
        if ((c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20))
            block.space |= bit;
        if (c == '\n')
            block.newline |= bit;
        if (c >= 0x80)
            block.high |= bit;
        if ((c & 0xC0) == 0x80)
            block.inner |= bit;
    }
    return block;
}

static inline uint64_t letters_at(const uint8_t *p) {
    uint64_t letters = 0;
    for (int i = 0; i < BLOCK; i++)
        letters |= (uint64_t)((uint8_t)((p[i] | 0x20) - 'a') < 26) << i;
    return letters;
}
#endif

/* The block at `p`; bytes beyond the end of the document count as space. */
static inline Block load_block(const uint8_t *p, const uint8_t *end) {
    if (end - p >= BLOCK)
        return look_at(p);
    uint8_t rest[BLOCK];
    memset(rest, ' ', BLOCK);
    memcpy(rest, p, (size_t)(end - p));
    return look_at(rest);
}

/* The letters of ASCII in the block at `p`; there are none beyond the end of the document. */
static inline uint64_t load_letters(const uint8_t *p, const uint8_t *end) {
    if (end - p >= BLOCK)
        return letters_at(p);
    uint8_t rest[BLOCK] = {0};
    memcpy(rest, p, (size_t)(end - p));
    return letters_at(rest);
}

/* The bits of the bytes before byte i. */
static inline uint64_t before(int i) { return ((uint64_t)1 << i) - 1; }

/* Marks the bytes of a non-ASCII space; those beyond this block are carried to the next one. */
static inline void mark_space(Block *block, int i, int size, uint64_t *carry) {
    block->space |= before(size) << i;
    if (i + size > BLOCK)
        *carry = before(i + size - BLOCK);
}

/* Whether a character that begins with this byte may be white space. */
static inline int may_be_space(uint8_t c) { return c == 0xC2 || (c >= 0xE1 && c <= 0xE3); }

/* Marks the spaces beyond ASCII of a block that has characters beyond ASCII. */
static inline void find_spaces(const uint8_t *p, const uint8_t *end, Block *block, uint64_t *carry) {
    for (uint64_t left = block->high & ~block->inner; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        uint32_t character;
        if (may_be_space(p[i])) {
            int size = decode(p + i, end, &character);
            if (lanes_of[class_of(character)] & IS_SPACE)
                mark_space(block, i, size, carry);
        }
    }
}

#endif
