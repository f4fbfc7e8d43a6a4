/* Scans a document in one pass: counts its characters by class, its words, lines and paragraphs. */

#include "block.h"

typedef struct {
    uint64_t hash;
    const uint8_t *start;
    size_t size;
    int64_t chars;
} Span;

typedef struct {
    Text text;
    const Wanted *wanted;
    int64_t *stats;
    Scratch *scratch;
    int64_t hidden; /* bytes so far that begin no character */
    const uint8_t *line, *first_word, *last_word_end, *paragraph, *newline;
    int64_t line_hidden, paragraph_hidden;
    int boilerplate, lorem, failed;
} Scan;

/* -- words ----------------------------------------------------------------------------------------------- */

/* Phrases of legal notices in lower case, split at a space into the parts before and after it. */
static const struct {
    const char *before, *after;
} phrases[] = {
    {"lorem ", "ipsum"}, /* the first one is counted apart */
    {"terms ", "of use"},
    {"privacy ", "policy"},
    {"cookie ", "policy"},
    {"uses ", "cookies"},
    {"privacy ", "overview"},
    {"use ", "of cookies"},
    {"use ", "cookies"},
    {"privacy ", "& cookies policy"},
    {"privacy ", "and cookies policy"},
    {"necessary ", "cookies are absolutely essential for the website to function properly. this category only includes "
                   "cookies that ensures basic functionalities and security features of the website. these cookies do "
                   "not store any personal information."},
    {"any ", "cookies that may not be particularly necessary for the website to function and is used specifically to "
             "collect user personal data via analytics, ads, other embedded contents are termed as non-necessary "
             "cookies. it is mandatory to procure user consent prior to running these cookies on your website."},
    {"if ", "you continue to browse this site without changing your cookie settings, you agree to this use. "
            "acceptread more"},
};
#define PHRASES (sizeof phrases / sizeof *phrases)

static inline int lower(uint8_t c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; }

/* The Kelvin sign is the only non-ASCII character that str.lower turns into an ASCII letter: k. */
static inline int is_kelvin(const uint8_t *p) { return p[0] == 0xE2 && p[1] == 0x84 && p[2] == 0xAA; }

static int begins_with(const uint8_t *p, const uint8_t *end, const char *phrase) {
    for (; *phrase; phrase++) {
        if (p == end)
            return 0;
        if (lower(*p) == *phrase)
            p++;
        else if (*phrase == 'k' && end - p >= 3 && is_kelvin(p))
            p += 3;
        else
            return 0;
    }
    return 1;
}

static int ends_with(const uint8_t *begin, const uint8_t *p, const char *phrase) {
    for (size_t left = strlen(phrase); left; left--) {
        if (p == begin)
            return 0;
        if (lower(p[-1]) == phrase[left - 1])
            p--;
        else if (phrase[left - 1] == 'k' && p - begin >= 3 && is_kelvin(p - 3))
            p -= 3;
        else
            return 0;
    }
    return 1;
}

static void look_for_phrases(Scan *s, const uint8_t *word) {
    const uint8_t *begin = s->text.bytes, *end = begin + s->text.size;
    int first = lower(word[0]), second = end - word > 1 ? lower(word[1]) : 0;
    for (size_t i = 0; i < PHRASES; i++) {
        const char *after = phrases[i].after;
        if (after[0] == first && after[1] == second && ends_with(begin, word, phrases[i].before) &&
            begins_with(word, end, after)) {
            *(i ? &s->boilerplate : &s->lorem) = 1;
        }
    }
}

static int is_alphabetic(const uint8_t *p, const uint8_t *end) {
    while (p < end) {
        if (*p < 0x80) {
            if (byte_lanes[*p] & LANE(LANE_LETTER))
                return 1;
            p++;
        } else {
            uint32_t character;
            p += decode(p, end, &character);
            if (class_of(character) & IS_ALPHABETIC)
                return 1;
        }
    }
    return 0;
}

static inline int same(const uint8_t *p, size_t size, const char *text) {
    return size == strlen(text) && !memcmp(p, text, size);
}

/* Whether a word is an ellipsis, or has more runs of # than half its characters. */
static int is_symbol(const uint8_t *p, size_t size, int64_t chars) {
    switch (*p) {
    case '#': {
        int64_t runs = 0;
        for (size_t i = 0; i < size; i++)
            runs += p[i] == '#' && (i == 0 || p[i - 1] != '#');
        return runs * 2 > chars;
    }
    case '.':
        return same(p, size, "...");
    case '(':
        return same(p, size, "(...)");
    case '[':
        return same(p, size, "[...]") || same(p, size, "[\xE2\x80\xA6]");
    case '-':
        return same(p, size, "-\xC2\xBB");
    case 0xE2:
        return same(p, size, "\xE2\x80\xA6");
    }
    return 0;
}

static inline int is_common(const uint8_t *p, size_t size) {
    switch (size) {
    case 2:
        return !memcmp(p, "be", 2) || !memcmp(p, "to", 2) || !memcmp(p, "of", 2);
    case 3:
        return !memcmp(p, "the", 3) || !memcmp(p, "and", 3);
    case 4:
        return !memcmp(p, "that", 4) || !memcmp(p, "have", 4) || !memcmp(p, "with", 4);
    }
    return 0;
}

/* A quick check of the first letter of a word and the last one before it: hardly any pair occurs in a phrase. */
static inline int may_be_in_phrase(const uint8_t *word, const uint8_t *begin) {
    static const uint8_t last[128] = {
        ['i'] = 1 << 0, ['o'] = 1 << 1 | 1 << 2 | 1 << 3, ['p'] = 1 << 2 | 1 << 3, ['c'] = 1 << 1 | 1 << 2 | 1 << 3,
        ['&'] = 1 << 3, ['a'] = 1 << 3, ['y'] = 1 << 4,
    };
    static const uint8_t ends[128] = {['m'] = 1 << 0, ['s'] = 1 << 1, ['e'] = 1 << 2, ['y'] = 1 << 3, ['f'] = 1 << 4};
    if (word - begin < 2 || word[-1] != ' ')
        return 0;
    return last[lower(word[0]) & 0x7F] & ends[lower(word[-2]) & 0x7F];
}

static inline void end_word(Scan *s, const uint8_t *start, const uint8_t *end, int64_t hidden) {
    int64_t *stats = s->stats, chars = end - start - hidden;
    stats[WORDS]++;
    stats[WORD_CHARS] += chars;
    if (chars > stats[LONGEST_WORD])
        stats[LONGEST_WORD] = chars;
    if (*start < 0x80 && byte_lanes[*start] & LANE(LANE_LETTER)) {
        stats[ALPHABETIC_WORDS]++;
        stats[COMMON_WORDS] += is_common(start, (size_t)(end - start));
    } else {
        stats[ALPHABETIC_WORDS] += is_alphabetic(start, end);
        stats[SYMBOL_WORDS] += is_symbol(start, (size_t)(end - start), chars);
    }
    if (s->wanted->boilerplate && may_be_in_phrase(start, s->text.bytes))
        look_for_phrases(s, start);
    if (!s->first_word)
        s->first_word = start;
    s->last_word_end = end;
}

/* -- lines and paragraphs ---------------------------------------------------------------------------------- */

static int is_bullet(const uint8_t *p, const uint8_t *end) {
    static const char *bullets[] = {
        "\xE2\x80\xA2", "\xE2\x80\xA3", "\xE2\x81\x83", "\xE2\x81\x8C", "\xE2\x81\x8D", "\xE2\x88\x99",
        "\xE2\x97\x8B", "\xE2\x97\x8F", "\xE2\x97\x98", "\xE2\x97\xA6", "\xE2\xA6\xBE", "\xE2\xA6\xBF",
    };
    if (*p != 0xE2 || end - p < 3)
        return 0;
    for (size_t i = 0; i < sizeof bullets / sizeof *bullets; i++)
        if (!memcmp(p, bullets[i], 3))
            return 1;
    return 0;
}

static int is_ellipsis(const uint8_t *begin, const uint8_t *end) {
    switch (end[-1]) {
    case '.':
        return ends_with(begin, end, "...") || ends_with(begin, end, "read more..");
    case ']':
        return ends_with(begin, end, "[...]") || (end - begin >= 5 && !memcmp(end - 5, "[\xE2\x80\xA6]", 5));
    case ')':
        return ends_with(begin, end, "(...)");
    case 'e':
    case 'E':
        return ends_with(begin, end, "read more");
    case 0xA6:
        return end - begin >= 3 && !memcmp(end - 3, "\xE2\x80\xA6", 3);
    case 0xBB:
        return end - begin >= 3 && !memcmp(end - 3, "-\xC2\xBB", 3);
    }
    return 0;
}

static void remember(Scan *s, Room *list, int64_t count, const uint8_t *start, const uint8_t *end, int64_t chars) {
    Span *spans = room(list, (size_t)(count + 1) * sizeof(Span));
    if (!spans) {
        s->failed = 1;
        return;
    }
    size_t size = (size_t)(end - start);
    spans[count] = (Span){hash_bytes(start, size, s->text.bytes + s->text.size), start, size, chars};
}

static void end_line(Scan *s, const uint8_t *end) {
    if (s->first_word) {
        int64_t *stats = s->stats, chars = end - s->line - (s->hidden - s->line_hidden);
        if (s->wanted->lines)
            remember(s, &s->scratch->lines, stats[LINES], s->line, end, chars);
        stats[LINES]++;
        stats[LINE_CHARS] += chars;
        stats[BULLET_LINES] += is_bullet(s->first_word, s->last_word_end);
        uint8_t last = s->last_word_end[-1];
        stats[UNENDED_LINES] += !(last == '.' || last == '?' || last == '!' || last == '"' || last == '\'');
        stats[ELLIPSIS_LINES] += is_ellipsis(s->first_word, s->last_word_end);
    }
    s->line = end + 1;
    s->line_hidden = s->hidden;
    s->first_word = NULL;
}

static void end_paragraph(Scan *s, const uint8_t *end) {
    int64_t *stats = s->stats, chars = end - s->paragraph - (s->hidden - s->paragraph_hidden);
    if (s->wanted->paragraphs)
        remember(s, &s->scratch->paragraphs, stats[PARAGRAPHS], s->paragraph, end, chars);
    stats[PARAGRAPHS]++;
    stats[PARAGRAPH_CHARS] += chars;
    stats[BOILERPLATE_PARAGRAPHS] += s->boilerplate;
    stats[LOREM_PARAGRAPHS] += s->lorem;
    s->boilerplate = s->lorem = 0;
    s->paragraph = end + 2;
    s->paragraph_hidden = s->hidden;
}

static void on_newline(Scan *s, const uint8_t *p) {
    end_line(s, p);
    if (s->newline && s->newline + 1 == p) {
        end_paragraph(s, p - 1);
        s->newline = NULL;
    } else {
        s->newline = p;
    }
}

static int count_distinct(const Room *list, int64_t count, Room *slot_room, int64_t *distinct, int64_t *chars) {
    const Span *spans = list->memory;
    if (count < 2) {
        *distinct = count;
        *chars = count ? spans->chars : 0;
        return 0;
    }
    size_t size = 4;
    while (size < 2 * (size_t)count)
        size *= 2;
    uint32_t *slots = room(slot_room, size * sizeof *slots);
    if (!slots)
        return -1;
    memset(slots, 0, size * sizeof *slots);
    for (int64_t i = 0; i < count; i++) {
        const Span *span = spans + i, *other;
        size_t at = (size_t)span->hash & (size - 1);
        for (; slots[at]; at = (at + 1) & (size - 1)) {
            other = spans + slots[at] - 1;
            if (other->hash == span->hash && other->size == span->size && !memcmp(other->start, span->start, span->size))
                break;
        }
        if (!slots[at]) {
            slots[at] = (uint32_t)(i + 1);
            ++*distinct;
            *chars += span->chars;
        }
    }
    return 0;
}

/* -- the pass ------------------------------------------------------------------------------------------------ */

static void add_lanes(int64_t *stats, uint64_t sum) {
    for (int lane = 0; lane < 8; lane++)
        stats[PLAIN + lane] += sum >> (8 * lane) & 0xFF;
}

/* The classes of the characters that begin in a block. Those beyond ASCII that are spaces are marked as such. */
static uint64_t count_classes(const uint8_t *p, const uint8_t *end, Block *block, uint64_t *carry) {
    uint64_t even = 0, odd = 0;
    int size = end - p < BLOCK ? (int)(end - p) : BLOCK, i = 0;
    for (; i + 1 < size; i += 2) {
        even += byte_lanes[p[i]];
        odd += byte_lanes[p[i + 1]];
    }
    if (i < size)
        even += byte_lanes[p[i]];
    for (uint64_t left = block->high & ~block->inner; left; left &= left - 1) {
        uint32_t character;
        i = __builtin_ctzll(left);
        int width = decode(p + i, end, &character);
        uint64_t lanes = lanes_of[class_of(character)];
        even += lanes;
        if (lanes & IS_SPACE)
            mark_space(block, i, width, carry);
    }
    return even + odd;
}

/* Ends and begins words, and ends lines, in the order of their positions in the block. */
static const uint8_t *end_words(Scan *s, const uint8_t *p, Block block, const uint8_t *word, int64_t *word_hidden) {
    int64_t hidden = s->hidden;
    uint64_t changes = block.space ^ (block.space << 1 | !word);
    for (uint64_t left = changes | block.newline; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        s->hidden = hidden + (block.inner ? __builtin_popcountll(block.inner & before(i)) : 0);
        if (block.space >> i & 1) {
            if (word)
                end_word(s, word, p + i, s->hidden - *word_hidden), word = NULL;
            if (block.newline >> i & 1)
                on_newline(s, p + i);
        } else {
            word = p + i, *word_hidden = s->hidden;
        }
    }
    s->hidden = hidden + __builtin_popcountll(block.inner);
    return word;
}

static void scan_characters(Scan *s) {
    const uint8_t *p = s->text.bytes, *end = p + s->text.size, *word = NULL;
    int64_t word_hidden = 0;
    uint64_t carry = 0;
    for (; p < end; p += BLOCK) {
        Block block = load_block(p, end);
        block.space |= carry;
        carry = 0;
        add_lanes(s->stats, count_classes(p, end, &block, &carry)); /* a lane counts to 255, a block has 64 bytes */
        word = end_words(s, p, block, word, &word_hidden);
    }
    if (word)
        end_word(s, word, end, s->hidden - word_hidden);
}

int scan_text(Text text, const Wanted *wanted, int64_t *stats, Scratch *scratch) {
    Scan s = {.text = text, .wanted = wanted, .stats = stats, .scratch = scratch, .line = text.bytes, .paragraph = text.bytes};
    scan_characters(&s);
    const uint8_t *end = text.bytes + text.size;
    end_line(&s, end);
    end_paragraph(&s, end);
    stats[CHARS] = text.size - s.hidden;
    if (s.failed)
        return -1;
    if (wanted->lines && count_distinct(&scratch->lines, stats[LINES], &scratch->slots, &stats[DISTINCT_LINES],
                                        &stats[DISTINCT_LINE_CHARS]))
        return -1;
    if (wanted->paragraphs && count_distinct(&scratch->paragraphs, stats[PARAGRAPHS], &scratch->slots,
                                             &stats[DISTINCT_PARAGRAPHS], &stats[DISTINCT_PARAGRAPH_CHARS]))
        return -1;
    return 0;
}

/* -- URLs ---------------------------------------------------------------------------------------------------- */

static int in_url(uint8_t c) {
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'))
        return 1;
    return c && c < 0x80 && strchr("$-_@.&+/:=?#~!*(),", c) != NULL;
}

static int is_hex(uint8_t c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

void scan_urls(Text text, int64_t *stats) {
    const uint8_t *begin = text.bytes, *end = begin + text.size, *p = begin;
    while ((p = memchr(p, ':', (size_t)(end - p)))) {
        const uint8_t *start = p++;
        if (end - p < 3 || p[0] != '/' || p[1] != '/')
            continue;
        if (start - begin >= 5 && !memcmp(start - 5, "https", 5))
            start -= 5;
        else if (start - begin >= 4 && !memcmp(start - 4, "http", 4))
            start -= 4;
        else
            continue;
        const uint8_t *inside = p + 2;
        for (p = inside; p < end;) {
            if (in_url(*p))
                p++;
            else if (*p == '%' && end - p >= 3 && is_hex(p[1]) && is_hex(p[2]))
                p += 3;
            else
                break;
        }
        if (p > inside) {
            stats[URL_CHARS] += p - start;
            stats[PORN_URLS] += memmem(start, (size_t)(p - start), "porn", 4) != NULL;
        }
    }
}

/* -- letters and capitals alone --------------------------------------------------------------------------- */

void count_cases(Text text, int64_t *stats) {
    const uint8_t *p = text.bytes, *end = p + text.size;
    while (p < end) {
        const uint8_t *stop = end - p < BLOCK ? end : p + BLOCK;
        uint8_t high = 0, letters = 0, capitals = 0;
        if (stop - p == BLOCK)
            for (int i = 0; i < BLOCK; i++) { /* without a branch, so that compilers look at many bytes at once */
                high |= p[i];
                letters += (uint8_t)((p[i] | 0x20) - 'a') < 26;
                capitals += (uint8_t)(p[i] - 'A') < 26;
            }
        if (stop - p == BLOCK && high < 0x80) {
            stats[LETTERS] += letters, stats[CAPITALS] += capitals;
            p = stop;
            continue;
        }
        while (p < stop) {
            uint32_t character = *p;
            uint64_t lanes = byte_lanes[character];
            int size = 1;
            if (character >= 0x80) {
                size = decode(p, end, &character);
                lanes = lanes_of[class_of(character)];
            }
            stats[LETTERS] += (lanes & LANE(LANE_LETTER)) != 0, stats[CAPITALS] += (lanes & LANE(LANE_CAPITAL)) != 0;
            p += size;
        }
    }
}
