/* MinHash signatures of one document, given its shingles. */

#ifndef GRISTMILL_MINHASH_H
#define GRISTMILL_MINHASH_H

#include "shingles.h"

typedef struct {
    Shingling how;
    uint64_t size;
    int wide; /* numbers of 64 bits, or the upper 32 of them */
} Signing;

/* Fills `bins`; `rooms` is room for twice as many. */
void sign(const uint64_t *shingles, int64_t count, uint64_t *bins, uint64_t *rooms, uint64_t size);
void store_signature(const uint64_t *bins, const Signing *signing, uint8_t *to);

#endif
