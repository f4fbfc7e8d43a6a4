/* Hashes that are the same on every machine. dedup/columns/kernel_reference.py defines them; dedup/columns/column_hashes.py explains
   what depends on this choice. */

#ifndef GRISTMILL_HASH_H
#define GRISTMILL_HASH_H

#include "text.h"

#define GOLDEN 0x9E3779B97F4A7C15u

typedef struct {
    uint64_t low, high;
} Hash128;

/* XXH3 with 128 bits (xxh3.c). */
Hash128 xxh3(const uint8_t *bytes, size_t size, uint64_t seed);

/* The hash of each run of n bytes, of which there are `places`, 1 or more. */
void roll_hashes(const uint8_t *p, int64_t places, int64_t n, uint64_t *hashes);

/* As little-endian machines read it. */
static inline uint64_t little8(const uint8_t *p) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return load8(p);
#else
    return __builtin_bswap64(load8(p));
#endif
}

static inline uint64_t little_few(const uint8_t *p, size_t size) {
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++)
        value |= (uint64_t)p[i] << (8 * i);
    return value;
}

static inline void store8(uint8_t *p, uint64_t value) {
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    value = __builtin_bswap64(value);
#endif
    memcpy(p, &value, 8);
}

/* A bijective mixing function. */
static inline uint64_t scramble(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

#endif
