/* A document as a set of shingles: n-grams of characters or words, each as one number. */

#ifndef GRISTMILL_SHINGLES_H
#define GRISTMILL_SHINGLES_H

#include "hash.h"

typedef struct {
    int words; /* of words, or of characters */
    int n;
    uint64_t key;
    uint64_t ascii[128]; /* the numbers of characters */
} Shingling;

typedef struct {
    Room values, shingles;
} ShingleRoom;

/* Takes "chars" or "words", n and a seed. Returns -1 with an exception set when they cannot be. */
int shingling_open(Shingling *how, const char *unit, int n, uint64_t seed);
void shingle_room_free(ShingleRoom *rooms);

/* The shingles of a text, in order, with repetitions. Returns how many, 0 for a blank text, -1 without memory. */
int64_t shingle(Text text, const Shingling *how, ShingleRoom *rooms, const uint64_t **shingles);

/* The numbers of the words of a text, in `values`. Returns how many, -1 without memory. */
int64_t shingle_words(Text text, const Shingling *how, ShingleRoom *rooms);

/* The runs of n of those words, in `shingles`. Returns how many: none, if there are fewer words. */
int64_t shingle_runs(ShingleRoom *rooms, int64_t words, int64_t n);

#endif
