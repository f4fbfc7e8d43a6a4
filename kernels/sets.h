/* The set of a document's shingles in about 1.5 bytes each, from which Jaccard similarity is computed. */

#ifndef GRISTMILL_SETS_H
#define GRISTMILL_SETS_H

#include "shingles.h"

typedef struct {
    Room values, ends;
} SetRoom;

void set_room_free(SetRoom *rooms);

/* Appends the code of a set to `to`, which has `*size` bytes. Returns -1 without memory. */
int set_append(const uint64_t *shingles, int64_t count, SetRoom *rooms, Room *to, size_t *size);

#endif
