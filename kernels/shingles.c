/* Turns texts into shingles. Each token (a character or a word) has a number, and a shingle is a polynomial in the numbers
   of its tokens, so each shingle is computed from the previous one with two multiplications. */

#include "shingles.h"
#include "block.h"

#define BASE 0xD1342543DE82EF95u
#define WORD_FACTOR 0xA0761D6478BD642Fu

int shingling_open(Shingling *how, const char *unit, int n, uint64_t seed) {
    how->words = !strcmp(unit, "words");
    how->n = n;
    how->key = scramble(seed + GOLDEN);
    for (uint32_t c = 0; c < 128; c++)
        how->ascii[c] = scramble(c ^ how->key);
    if (n >= 1 && (how->words || !strcmp(unit, "chars")))
        return 0;
    PyErr_SetString(PyExc_ValueError, "shingles are of 1 or more 'chars' or 'words'");
    return -1;
}

void shingle_room_free(ShingleRoom *rooms) {
    free(rooms->values.memory);
    free(rooms->shingles.memory);
}

static inline uint64_t fold(uint64_t x) {
    __uint128_t product = (__uint128_t)x * WORD_FACTOR;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t word_value(const uint8_t *p, size_t size, const uint8_t *end, uint64_t key) {
    uint64_t hash = key ^ size;
    for (; size >= 8; p += 8, size -= 8)
        hash = fold(hash ^ little8(p));
    if (!size)
        return hash;
    if (end - p >= 8)
        return fold(hash ^ (little8(p) & (~(uint64_t)0 >> (64 - 8 * size))));
    return fold(hash ^ little_few(p, size));
}

/* Scripts written without spaces: each character is a word. dedup/columns/kernel_reference.py has the same list. */
static const struct {
    uint32_t first, last;
} unspaced[] = {{0x4E00, 0x9FFF}, {0x3040, 0x30FF}, {0x0E00, 0x0EFF}, {0x1000, 0x109F},  {0x1780, 0x17FF},
                {0x31F0, 0x31FF}, {0x3400, 0x4DBF}, {0xF900, 0xFAFF}, {0x20000, 0x323AF}};

/* Whether a character that begins with this byte may be one of them, or white space. */
static inline int may_cut(uint8_t c) { return c < 0xE0 ? c == 0xC2 : c < 0xEA || c == 0xEF || c == 0xF0; }

static int is_unspaced(uint32_t character) {
    for (size_t i = 0; i < sizeof unspaced / sizeof *unspaced; i++)
        if (character >= unspaced[i].first && character <= unspaced[i].last)
            return 1;
    return 0;
}

/* The state carried to the next block: bytes of a space, and the end of a character that is a word. */
typedef struct {
    uint64_t space, cut;
} Rest;

/* Marks the spaces beyond ASCII. Returns where words are cut: before and behind each character that is one. */
static uint64_t find_cuts(const uint8_t *p, const uint8_t *end, Block *block, Rest *rest) {
    uint64_t cuts = rest->cut;
    rest->cut = 0;
    for (uint64_t left = block->high & ~block->inner; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        uint32_t character;
        if (!may_cut(p[i]))
            continue;
        int size = decode(p + i, end, &character);
        if (is_unspaced(character)) {
            cuts |= (uint64_t)1 << i;
            *(i + size < BLOCK ? &cuts : &rest->cut) |= (uint64_t)1 << ((i + size) & (BLOCK - 1));
        } else if (lanes_of[class_of(character)] & IS_SPACE)
            mark_space(block, i, size, &rest->space);
    }
    return cuts;
}

/* Fills in the number of each word. A word is at least one byte and the space before it another; or it is a character of
   three bytes or more, with perhaps a word of one byte before it. */
static int64_t word_values(Text text, const Shingling *how, uint64_t *values) {
    const uint8_t *p = text.bytes, *end = p + text.size, *word = NULL;
    uint64_t *to = values;
    Rest rest = {0, 0};
    for (; p < end; p += BLOCK) {
        Block block = load_block(p, end);
        block.space |= rest.space;
        rest.space = 0;
        uint64_t cuts = block.high | rest.cut ? find_cuts(p, end, &block, &rest) : 0;
        uint64_t left = block.space ^ (block.space << 1 | !word);
        if (cuts) {
            for (left |= cuts; left; left &= left - 1) {
                int i = __builtin_ctzll(left);
                if (word)
                    *to++ = word_value(word, (size_t)(p + i - word), end, how->key);
                word = block.space >> i & 1 ? NULL : p + i;
            }
            continue;
        }
        for (; left; left &= left - 1) {
            const uint8_t *here = p + __builtin_ctzll(left);
            if (word)
                *to++ = word_value(word, (size_t)(here - word), end, how->key), word = NULL;
            else
                word = here;
        }
    }
    if (word)
        *to++ = word_value(word, (size_t)(end - word), end, how->key);
    return to - values;
}

static int is_blank(Text text) {
    const uint8_t *p = text.bytes, *end = p + text.size;
    while (p < end) {
        uint32_t character = *p;
        int size = character < 0x80 ? 1 : decode(p, end, &character);
        if (!((character < 0x80 ? byte_lanes[character] : lanes_of[class_of(character)]) & IS_SPACE))
            return 0;
        p += size;
    }
    return 1;
}

static int64_t char_values(Text text, const Shingling *how, uint64_t *values) {
    const uint8_t *p = text.bytes, *end = p + text.size;
    uint64_t *to = values;
    while (p < end) {
        if (*p < 0x80) {
            *to++ = how->ascii[*p++];
            continue;
        }
        uint32_t character;
        p += decode(p, end, &character);
        *to++ = scramble(character ^ how->key);
    }
    return to - values;
}

static int64_t roll(const uint64_t *values, int64_t count, int64_t n, uint64_t *shingles) {
    uint64_t hash = 0, leave = 1;
    if (n > count)
        n = count;
    for (int64_t i = 0; i < n; i++)
        hash = hash * BASE + values[i], leave *= BASE;
    shingles[0] = hash;
    for (int64_t i = n; i < count; i++)
        shingles[i - n + 1] = hash = hash * BASE + (values[i] - values[i - n] * leave);
    return count - n + 1;
}

int64_t shingle_words(Text text, const Shingling *how, ShingleRoom *rooms) {
    size_t most = (size_t)text.size / 2 + 1;
    uint64_t *values = room(&rooms->values, most * 8);
    if (!values || !room(&rooms->shingles, most * 8))
        return -1;
    return word_values(text, how, values);
}

int64_t shingle_runs(ShingleRoom *rooms, int64_t words, int64_t n) {
    return n > words ? 0 : roll(rooms->values.memory, words, n, rooms->shingles.memory);
}

int64_t shingle(Text text, const Shingling *how, ShingleRoom *rooms, const uint64_t **shingles) {
    size_t most = how->words ? (size_t)text.size / 2 + 1 : (size_t)text.size;
    if (is_blank(text))
        return 0;
    uint64_t *values = room(&rooms->values, most * 8), *found = room(&rooms->shingles, most * 8);
    if (!values || !found)
        return -1;
    *shingles = found;
    int64_t count = how->words ? word_values(text, how, values) : char_values(text, how, values);
    return count ? roll(values, count, how->n, found) : 0;
}
