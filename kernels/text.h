/* The statistics of a document, and the memory that counting them needs. text/statistics/kernel_reference.py has the definitions. */

#ifndef GRISTMILL_TEXT_H
#define GRISTMILL_TEXT_H

#include "arrow.h"
#include <stdlib.h>
#include <string.h>

#define MAX_N 32
#define LONGEST_SHORT_LINE 255

enum {
    CHARS, PLAIN, DIGITS, WHITE, BRACKETS, LETTERS, CAPITALS, SPACES, PUNCTUATION,
    WORDS, WORD_CHARS, LONGEST_WORD, ALPHABETIC_WORDS, SYMBOL_WORDS, COMMON_WORDS,
    LINES, LINE_CHARS, BULLET_LINES, UNENDED_LINES, ELLIPSIS_LINES, DISTINCT_LINES, DISTINCT_LINE_CHARS,
    PARAGRAPHS, PARAGRAPH_CHARS, BOILERPLATE_PARAGRAPHS, LOREM_PARAGRAPHS, DISTINCT_PARAGRAPHS,
    DISTINCT_PARAGRAPH_CHARS,
    URL_CHARS, PORN_URLS,
    LEXEMES, WORD_LEXEMES, WORD_LEXEME_CHARS, LETTER_LEXEMES, COMMON_LEXEMES, UNSPACED,
    HASHES, ELLIPSES, LINE_FEEDS, SPLIT_LINES, DASH_LINES, DOTTED_LINES, FULL_LINES, MARKED_LINES,
    FEED_LINES, REPEATED_FEED_LINES, REPEATED_FEED_LINE_CHARS, REPEATED_LINE_CHARS,
    BLOCKS, REPEATED_BLOCKS, REPEATED_BLOCK_CHARS,
    TOP, /* TOP + n: characters removed with the most frequent n-gram */
    REPEATED_TOP = TOP + MAX_N + 1, /* + n: how often it occurs times its length */
    DUPLICATE = REPEATED_TOP + MAX_N + 1, /* + n: characters in repeated n-grams */
    LEXEME_TOP = DUPLICATE + MAX_N + 1, /* + n: as REPEATED_TOP, of lexemes, 0 if it occurs once */
    LEXEME_DUPLICATE = LEXEME_TOP + MAX_N + 1, /* + n: characters of lexemes in repeated n-grams that do not overlap */
    SHORT_LINES = LEXEME_DUPLICATE + MAX_N + 1, /* + n: lines of up to n characters */
    STATS = SHORT_LINES + LONGEST_SHORT_LINE + 1
};

/* -- characters ---------------------------------------------------------------------------------------- */

/* Eight counters in one number, one byte each: the classes of a character are counted by one addition. */
enum { LANE_PLAIN, LANE_DIGIT, LANE_WHITE, LANE_BRACKET, LANE_LETTER, LANE_CAPITAL, LANE_SPACE, LANE_PUNCTUATION };
#define LANE(index) ((uint64_t)1 << (8 * (index)))
#define IS_SPACE LANE(LANE_SPACE)
#define IS_ALPHABETIC ((uint8_t)1) /* class bit of characters beyond ASCII, none of which is PLAIN */

extern uint64_t byte_lanes[256]; /* bytes beyond ASCII have none */
extern uint64_t lanes_of[256]; /* by class byte of a character beyond ASCII */
void classes_build(void);
uint8_t class_of(uint32_t character);

/* The length of the character at `p`, which is beyond ASCII; 1 for a byte that begins none. */
static inline int decode(const uint8_t *p, const uint8_t *end, uint32_t *character) {
    uint8_t c = p[0];
    int64_t left = end - p;
    if (c >= 0xC2 && c < 0xE0 && left >= 2 && (p[1] & 0xC0) == 0x80) {
        *character = (uint32_t)(c & 0x1F) << 6 | (p[1] & 0x3F);
        return 2;
    }
    if (c >= 0xE0 && c < 0xF0 && left >= 3 && (p[1] & 0xC0) == 0x80 && (p[2] & 0xC0) == 0x80) {
        *character = (uint32_t)(c & 0x0F) << 12 | (uint32_t)(p[1] & 0x3F) << 6 | (p[2] & 0x3F);
        return 3;
    }
    if (c >= 0xF0 && c < 0xF5 && left >= 4 && (p[1] & 0xC0) == 0x80 && (p[2] & 0xC0) == 0x80 && (p[3] & 0xC0) == 0x80) {
        *character = (uint32_t)(c & 0x07) << 18 | (uint32_t)(p[1] & 0x3F) << 12 | (uint32_t)(p[2] & 0x3F) << 6 | (p[3] & 0x3F);
        return 4;
    }
    *character = 0xFFFFFFFF;
    return 1;
}

/* -- memory -------------------------------------------------------------------------------------------- */

/* Memory that grows and is reused for the next document. */
typedef struct {
    void *memory;
    size_t size;
} Room;

/* At least `size` bytes with the contents kept; NULL if out of memory. */
static inline void *room(Room *r, size_t size) {
    if (size > r->size || !r->memory) {
#ifdef __SANITIZE_ADDRESS__
        size_t larger = size + !size; /* exact under AddressSanitizer, so that overruns are detected */
#else
        size_t larger = size + size / 2 + 4096;
#endif
        void *memory = realloc(r->memory, larger);
        if (!memory)
            return NULL;
        r->memory = memory, r->size = larger;
    }
    return r->memory;
}

/* Hashes only find candidates; whatever is counted as equal has been compared. The seed keeps others from
   preparing documents whose hashes all collide. */
extern uint64_t hash_seed;

static inline uint64_t mix(uint64_t a, uint64_t b) {
    __uint128_t product = (__uint128_t)(a ^ hash_seed) * (b ^ 0x9E3779B97F4A7C15u);
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t load8(const uint8_t *p) {
    uint64_t value;
    memcpy(&value, p, 8);
    return value;
}

/* The last `size` < 8 bytes before `end` of a word at `p`, as a number; reads no byte outside the document. */
static inline uint64_t load_few(const uint8_t *p, size_t size, const uint8_t *document_end) {
    if (size == 0)
        return 0;
    if (document_end - p >= 8) /* as the machine orders bytes: only compared with numbers made here */
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        return load8(p) & (~(uint64_t)0 >> (64 - 8 * size));
#else
        return load8(p) >> (64 - 8 * size);
#endif
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++)
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        value |= (uint64_t)p[i] << (8 * i);
#else
        value = value << 8 | p[i];
#endif
    return value;
}

static inline uint64_t hash_bytes(const uint8_t *p, size_t size, const uint8_t *document_end) {
    uint64_t hash = size;
    while (size >= 8)
        hash = mix(hash, load8(p)), p += 8, size -= 8;
    return mix(hash ^ 0xD6E8FEB86659FD93u, load_few(p, size, document_end));
}

typedef struct {
    Room lines, paragraphs, slots, words, ids, counts, firsts, actives, needle, characters, cuts;
} Scratch;

void scratch_free(Scratch *scratch);

/* Which of the expensive statistics are requested. */
typedef struct {
    int lines, paragraphs, urls, boilerplate, scan, words, cases, lexemes, rules;
    uint64_t top, repeated_top, duplicate; /* bit n: for n-grams of n words */
    uint64_t lexeme_top, lexeme_duplicate;
    int max_n, lexeme_max_n;
} Wanted;

/* Both fill `stats` for one document. They return 0, or -1 when there is no memory. */
int scan_text(Text text, const Wanted *wanted, int64_t *stats, Scratch *scratch);
int count_ngrams(Text text, const Wanted *wanted, int64_t *stats, Scratch *scratch);
void scan_urls(Text text, int64_t *stats);
void count_cases(Text text, int64_t *stats);

PyObject *stop_table(PyObject *self, PyObject *words);
PyObject *token_sums(PyObject *self, PyObject *args);
PyObject *stop_words(PyObject *self, PyObject *args);

#endif
