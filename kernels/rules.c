/* What the rules of Gopher and FineWeb are about: lexemes, and lines as each rule splits them. */

#include "lexemes.h"

/* Ends of sentences beyond ASCII, of the property Sentence_Terminal of Unicode. */
static const uint16_t terminals[] = {
    0x0589, 0x061D, 0x061E, 0x061F, 0x06D4, 0x0700, 0x0701, 0x0702, 0x07F9, 0x0964, 0x0965, 0x104A, 0x104B, 0x1362,
    0x1367, 0x1368, 0x166E, 0x17D4, 0x17D5, 0x1803, 0x1809, 0x203C, 0x203D, 0x2047, 0x2048, 0x2049, 0x3002, 0xFE52,
    0xFE56, 0xFE57, 0xFF01, 0xFF0E, 0xFF1F, 0xFF61,
};

/* Punctuation beyond ASCII that is no word, besides the ends of sentences. */
static const uint16_t symbols[] = {
    0x00AB, 0x00B4, 0x00BB, 0x2013, 0x2014, 0x2019, 0x201C, 0x201D, 0x201E, 0x2026, 0x2236, 0x2501, 0x25BA, 0x3001,
    0x3008, 0x3009, 0x300A, 0x300B, 0x300C, 0x300D, 0x3010, 0x3011, 0xFF05, 0xFF08, 0xFF09, 0xFF0C, 0xFF1A, 0xFF1B,
    0xFF5E,
};
#define COUNT(array) (sizeof(array) / sizeof *(array))

static int is_among(uint32_t c, const uint16_t *sorted, size_t count) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (sorted[middle] < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && sorted[low] == c;
}

int is_terminal(uint32_t c) {
    return c == '.' || c == '?' || c == '!' || (c >= 0x80 && is_among(c, terminals, COUNT(terminals)));
}

int is_symbol_character(uint32_t c) {
    if (c < 0xA0)
        return c < ' ' ? c != '\n' : c >= 0x7F || (byte_lanes[c] & LANE(LANE_PUNCTUATION)) != 0;
    return is_among(c, symbols, COUNT(symbols)) || is_terminal(c);
}

/* -- lexemes ------------------------------------------------------------------------------------------------- */

#define WORD_KEY(a, b, c, d) ((uint32_t)(a) | (uint32_t)(b) << 8 | (uint32_t)(c) << 16 | (uint32_t)(d) << 24)

static int common_bit(const uint8_t *p, size_t size) {
    if (size < 2 || size > 4)
        return 0;
    switch (WORD_KEY(p[0], p[1], size > 2 ? p[2] : 0, size > 3 ? p[3] : 0)) {
    case WORD_KEY('b', 'e', 0, 0): return 1;
    case WORD_KEY('t', 'o', 0, 0): return 2;
    case WORD_KEY('o', 'f', 0, 0): return 4;
    case WORD_KEY('t', 'h', 'e', 0): return 8;
    case WORD_KEY('a', 'n', 'd', 0): return 16;
    case WORD_KEY('t', 'h', 'a', 't'): return 32;
    case WORD_KEY('h', 'a', 'v', 'e'): return 64;
    case WORD_KEY('w', 'i', 't', 'h'): return 128;
    }
    return 0;
}

static void count_lexeme(const uint8_t *p, const uint8_t *end, int64_t chars, int64_t *stats) {
    int is_word = 0, has_letter = 0;
    while (p < end && !has_letter) {
        uint32_t c = *p;
        if (c < 0x80)
            p++;
        else
            p += decode(p, end, &c);
        if (c < 0x80 ? (byte_lanes[c] & LANE(LANE_LETTER)) != 0 : class_of(c) >> LANE_LETTER & 1)
            has_letter = is_word = 1;
        else
            is_word |= !is_symbol_character(c);
    }
    stats[LETTER_LEXEMES] += has_letter;
    stats[WORD_LEXEMES] += is_word;
    stats[WORD_LEXEME_CHARS] += is_word ? chars : 0;
}

void count_lexemes(const Lexemes *lexemes, int64_t *stats) {
    int common = 0;
    for (size_t i = 0; i < lexemes->count; i++) {
        const Word *word = lexemes->words + i;
        int64_t chars = word[1].before - word->before;
        if (*word->start < 0x80 && byte_lanes[*word->start] & LANE(LANE_LETTER)) {
            stats[LETTER_LEXEMES]++, stats[WORD_LEXEMES]++, stats[WORD_LEXEME_CHARS] += chars;
            common |= common_bit(word->start, word->size);
        } else {
            count_lexeme(word->start, word->start + word->size, chars, stats);
        }
    }
    stats[LEXEMES] = (int64_t)lexemes->count;
    stats[COMMON_LEXEMES] = __builtin_popcount((unsigned)common);
    stats[UNSPACED] = lexemes->unspaced;
}

/* -- lines --------------------------------------------------------------------------------------------------- */

static int64_t chars_in(const uint8_t *p, const uint8_t *end) {
    int64_t chars = 0;
    for (; p < end; p++)
        chars += (*p & 0xC0) != 0x80;
    return chars;
}

Text trimmed(const uint8_t *p, const uint8_t *end) {
    uint32_t character;
    while (p < end) {
        int size = 1;
        if (*p >= 0x80) {
            size = decode(p, end, &character);
            if (!(lanes_of[class_of(character)] & IS_SPACE))
                break;
        } else if (!(byte_lanes[*p] & IS_SPACE)) {
            break;
        }
        p += size;
    }
    while (p < end) {
        const uint8_t *last = end - 1;
        if (*last < 0x80) {
            if (!(byte_lanes[*last] & IS_SPACE))
                break;
        } else {
            while (last > p && end - last < 4 && (*last & 0xC0) == 0x80)
                last--;
            if (decode(last, end, &character) != end - last || !(lanes_of[class_of(character)] & IS_SPACE))
                break;
        }
        end = last;
    }
    return (Text){p, end - p};
}

static void count_split_line(const uint8_t *p, const uint8_t *end, int64_t *stats) {
    Text line = trimmed(p, end);
    stats[SPLIT_LINES]++;
    if (!line.size)
        return;
    stats[DASH_LINES] += line.bytes[0] == '-' || (line.size >= 3 && !memcmp(line.bytes, "\xE2\x80\xA2", 3));
    if (line.size >= 3) {
        const uint8_t *last = line.bytes + line.size - 3;
        stats[DOTTED_LINES] += !memcmp(last, "...", 3) || !memcmp(last, "\xE2\x80\xA6", 3);
    }
}

/* The length of the line end at `p`, as str.splitlines sees it, or 0. */
int line_end(const uint8_t *p, const uint8_t *end) {
    switch (*p) {
    case '\r':
        return end - p > 1 && p[1] == '\n' ? 2 : 1;
    case '\n': case '\v': case '\f': case 0x1C: case 0x1D: case 0x1E:
        return 1;
    case 0xC2:
        return end - p > 1 && p[1] == 0x85 ? 2 : 0;
    case 0xE2:
        return end - p > 2 && p[1] == 0x80 && (p[2] == 0xA8 || p[2] == 0xA9) ? 3 : 0;
    }
    return 0;
}

static void count_split_lines(Text text, int64_t *stats) {
    static const uint8_t special[256] = {['#'] = 1, ['.'] = 1, ['\r'] = 1, ['\n'] = 1, ['\v'] = 1, ['\f'] = 1, [0x1C] = 1,
                                         [0x1D] = 1, [0x1E] = 1, [0xC2] = 1, [0xE2] = 1};
    const uint8_t *p = text.bytes, *end = p + text.size, *line = p;
    while (p < end) {
        if (!special[*p]) {
            p++;
            continue;
        }
        int size = line_end(p, end);
        if (size) {
            stats[LINE_FEEDS] += p[size - 1] == '\n';
            count_split_line(line, p, stats);
            line = p + size;
        } else if (*p == '#') {
            stats[HASHES]++;
        } else if (end - p >= 3 && (!memcmp(p, "...", 3) || !memcmp(p, "\xE2\x80\xA6", 3))) {
            stats[ELLIPSES]++;
            size = 3;
        }
        p += size ? size : 1;
    }
    if (line < end)
        count_split_line(line, end, stats);
}

uint32_t last_character(const uint8_t *p, const uint8_t *end) {
    const uint8_t *last = end - 1;
    uint32_t character;
    while (last > p && end - last < 4 && (*last & 0xC0) == 0x80)
        last--;
    if (*last < 0x80)
        return *last;
    return decode(last, end, &character) == end - last ? character : 0;
}

/* Spans that are compared with each other: lines, or blocks of lines. */
typedef struct {
    uint64_t hash;
    const uint8_t *start;
    size_t size;
    int64_t chars; /* negative for a blank one: -1 and the number */
} Piece;

typedef struct {
    Text text;
    Scratch *scratch;
    int64_t count;
    int failed;
} Pieces;

static void add_piece(Pieces *list, const uint8_t *start, const uint8_t *end, int64_t chars, int blank) {
    Piece *pieces = room(&list->scratch->lines, (size_t)(list->count + 1) * sizeof *pieces);
    if (!pieces) {
        list->failed = 1;
        return;
    }
    size_t size = (size_t)(end - start);
    uint64_t hash = hash_bytes(start, size, list->text.bytes + list->text.size);
    pieces[list->count++] = (Piece){hash, start, size, blank ? -1 - chars : chars};
}

/* Adds the number of repeated pieces, their characters, and those of the ones that are not blank. */
static int count_repeated(const Pieces *list, int64_t *number, int64_t *chars, int64_t *not_blank) {
    if (list->failed)
        return -1;
    size_t size = 4;
    while (size < 2 * (size_t)list->count)
        size *= 2;
    uint32_t *slots = room(&list->scratch->slots, size * sizeof *slots);
    if (!slots)
        return -1;
    memset(slots, 0, size * sizeof *slots);
    const Piece *pieces = list->scratch->lines.memory;
    for (int64_t i = 0; i < list->count; i++) {
        const Piece *one = pieces + i;
        size_t at = (size_t)one->hash & (size - 1);
        for (; slots[at]; at = (at + 1) & (size - 1)) {
            const Piece *other = pieces + slots[at] - 1;
            if (other->hash == one->hash && other->size == one->size && !memcmp(other->start, one->start, one->size))
                break;
        }
        if (!slots[at]) {
            slots[at] = (uint32_t)(i + 1);
            continue;
        }
        ++*number;
        *chars += one->chars < 0 ? -1 - one->chars : one->chars;
        *not_blank += one->chars < 0 ? 0 : one->chars;
    }
    return 0;
}

static int count_feed_lines(Text text, int64_t *stats, Scratch *scratch) {
    Pieces list = {.text = text, .scratch = scratch};
    const uint8_t *p = text.bytes, *end = p + text.size;
    for (;;) {
        const uint8_t *stop = p < end ? memchr(p, '\n', (size_t)(end - p)) : NULL;
        const uint8_t *line_stop = stop ? stop : end;
        int64_t chars = chars_in(p, line_stop);
        int blank = !trimmed(p, line_stop).size;
        add_piece(&list, p, line_stop, chars, blank);
        if (!blank) {
            stats[FULL_LINES]++;
            stats[MARKED_LINES] += is_terminal(last_character(p, line_stop));
            if (chars <= LONGEST_SHORT_LINE)
                stats[SHORT_LINES + chars]++;
        }
        if (!stop)
            break;
        for (p = stop; p < end && *p == '\n'; p++)
            ;
    }
    stats[FEED_LINES] = list.count;
    return count_repeated(&list, &stats[REPEATED_FEED_LINES], &stats[REPEATED_FEED_LINE_CHARS], &stats[REPEATED_LINE_CHARS]);
}

static int count_blocks(Text text, int64_t *stats, Scratch *scratch) {
    Pieces list = {.text = text, .scratch = scratch};
    text = trimmed(text.bytes, text.bytes + text.size);
    const uint8_t *p = text.bytes, *end = p + text.size, *block = p;
    int64_t ignored = 0;
    while (p < end && (p = memchr(p, '\n', (size_t)(end - p)))) {
        const uint8_t *stop = p;
        while (p < end && *p == '\n')
            p++;
        if (p - stop > 1) {
            add_piece(&list, block, stop, chars_in(block, stop), 0);
            block = p;
        }
    }
    add_piece(&list, block, end, chars_in(block, end), 0);
    stats[BLOCKS] = list.count;
    return count_repeated(&list, &stats[REPEATED_BLOCKS], &stats[REPEATED_BLOCK_CHARS], &ignored);
}

int count_rules(Text text, int64_t *stats, Scratch *scratch) {
    count_split_lines(text, stats);
    if (count_feed_lines(text, stats, scratch) || count_blocks(text, stats, scratch))
        return -1;
    for (int length = 1; length <= LONGEST_SHORT_LINE; length++)
        stats[SHORT_LINES + length] += stats[SHORT_LINES + length - 1];
    return 0;
}
