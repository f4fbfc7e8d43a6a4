/* Strings in JSON text: which bytes need no escape, and the escapes, as orjson writes them. */

#ifndef GRISTMILL_JSON_TEXT_H
#define GRISTMILL_JSON_TEXT_H

#include "json.h"
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* How many bytes need no escape. */
static inline size_t clean_run(const uint8_t *p, const uint8_t *end) {
    const uint8_t *start = p;
#ifdef __SSE2__
    for (; end - p >= 16; p += 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)p);
        __m128i quotes = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('"')), slashes = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\'));
        __m128i low = _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(0x1F)), bytes);
        int found = _mm_movemask_epi8(_mm_or_si128(_mm_or_si128(quotes, slashes), low));
        if (found)
            return (size_t)(p - start) + (size_t)__builtin_ctz((unsigned)found);
    }
#endif
    while (p < end && *p >= 0x20 && *p != '"' && *p != '\\')
        p++;
    return (size_t)(p - start);
}

/* The escape that is written for a character below 0x20, a quote or a backslash. */
static inline uint8_t *escape(uint8_t *to, uint8_t c) {
    *to++ = '\\';
    switch (c) {
    case '\b': *to++ = 'b'; return to;
    case '\f': *to++ = 'f'; return to;
    case '\n': *to++ = 'n'; return to;
    case '\r': *to++ = 'r'; return to;
    case '\t': *to++ = 't'; return to;
    case '"': case '\\': *to++ = c; return to;
    }
    memcpy(to, "u00", 3);
    to[3] = (uint8_t)('0' + (c >> 4));
    to[4] = (uint8_t)"0123456789abcdef"[c & 15];
    return to + 5;
}

static inline int hex4(const uint8_t *p, const uint8_t *end) {
    if (end - p < 4)
        return -1;
    int value = 0;
    for (int i = 0; i < 4; i++) {
        int c = p[i], lower = c | 0x20;
        if (c >= '0' && c <= '9')
            value = value << 4 | (c - '0');
        else if (lower >= 'a' && lower <= 'f')
            value = value << 4 | (lower - 'a' + 10);
        else
            return -1;
    }
    return value;
}

static inline uint8_t *encode(uint8_t *to, uint32_t c) {
    if (c < 0x80) {
        *to++ = (uint8_t)c;
    } else if (c < 0x800) {
        *to++ = (uint8_t)(0xC0 | c >> 6);
        *to++ = (uint8_t)(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        *to++ = (uint8_t)(0xE0 | c >> 12);
        *to++ = (uint8_t)(0x80 | (c >> 6 & 0x3F));
        *to++ = (uint8_t)(0x80 | (c & 0x3F));
    } else {
        *to++ = (uint8_t)(0xF0 | c >> 18);
        *to++ = (uint8_t)(0x80 | (c >> 12 & 0x3F));
        *to++ = (uint8_t)(0x80 | (c >> 6 & 0x3F));
        *to++ = (uint8_t)(0x80 | (c & 0x3F));
    }
    return to;
}

/* The character of the \u escape whose digits begin at `*p`, with its other half if it is a surrogate; or -1. */
static inline int32_t escaped_code(const uint8_t **p, const uint8_t *end) {
    int code = hex4(*p, end);
    *p += 4;
    if (code < 0 || (code >= 0xDC00 && code < 0xE000))
        return -1;
    if (code < 0xD800 || code >= 0xE000)
        return code;
    if (end - *p < 6 || (*p)[0] != '\\' || (*p)[1] != 'u')
        return -1;
    int other = hex4(*p + 2, end);
    *p += 6;
    return other < 0xDC00 || other >= 0xE000 ? -1 : 0x10000 + ((code - 0xD800) << 10) + (other - 0xDC00);
}

#endif
