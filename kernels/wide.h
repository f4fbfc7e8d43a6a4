/* Compares 64 bytes at once on processors with AVX-512. A loop is written once with a constant parameter `wide`, and is
   compiled twice: in a function marked WIDE, and in one that every processor can run. */

#ifndef GRISTMILL_WIDE_H
#define GRISTMILL_WIDE_H

#include <stddef.h>
#include <stdint.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define WIDE __attribute__((target("avx512f,avx512bw")))
#define ALWAYS_INLINE static inline __attribute__((always_inline))

static inline int can_be_wide(void) { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"); }

WIDE static inline uint64_t wide_above(const uint8_t *p, int limit) {
    return _mm512_cmpgt_epi8_mask(_mm512_loadu_si512((const void *)p), _mm512_set1_epi8((char)limit));
}

WIDE static inline uint64_t wide_equal(const uint8_t *p, int value) {
    return _mm512_cmpeq_epi8_mask(_mm512_loadu_si512((const void *)p), _mm512_set1_epi8((char)value));
}

/* Copies 64 bytes; which of them do not stand for themselves in a JSON string. */
WIDE static inline uint64_t wide_copy(const uint8_t *p, uint8_t *to) {
    __m512i bytes = _mm512_loadu_si512((const void *)p);
    _mm512_storeu_si512((void *)to, bytes);
    return _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8('"')) | _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8('\\')) |
           _mm512_cmplt_epu8_mask(bytes, _mm512_set1_epi8(0x20));
}
#else
#define WIDE
#define ALWAYS_INLINE static inline

static inline int can_be_wide(void) { return 0; }
/* These are never called, since nothing is wide. */
static inline uint64_t wide_above(const uint8_t *p, int limit) { return (uint64_t)(p[0] > limit); }
static inline uint64_t wide_equal(const uint8_t *p, int value) { return (uint64_t)(p[0] == value); }
static inline uint64_t wide_copy(const uint8_t *p, uint8_t *to) { return (uint64_t)(*to = p[0]); }
#endif

#endif
