/* Splits a document into lexemes: words and punctuation marks, as text/statistics/lexemes.py defines them. */

#include "lexemes.h"

enum { MARK = 1, OPENING = 2, AFTER_DIGIT = 4, BEFORE_STOP = 8, QUOTE = 16, HYPHEN = 32 };
#define ANY_MARK (MARK | OPENING | BEFORE_STOP)

static uint8_t ascii_marks[128];
static const struct {
    uint16_t character;
    uint8_t marks;
} other_marks[] = {
    {0xA1, ANY_MARK}, {0xA3, OPENING | AFTER_DIGIT}, {0xA5, OPENING | AFTER_DIGIT}, {0xA6, ANY_MARK}, {0xA7, OPENING},
    {0xA9, ANY_MARK}, {0xAB, ANY_MARK | QUOTE}, {0xAE, ANY_MARK}, {0xB0, ANY_MARK}, {0xB2, BEFORE_STOP},
    {0xB4, ANY_MARK | QUOTE}, {0xB7, ANY_MARK}, {0xBB, ANY_MARK | QUOTE}, {0xBF, ANY_MARK}, {0x060C, ANY_MARK},
    {0x061B, ANY_MARK}, {0x061F, ANY_MARK}, {0x066A, ANY_MARK}, {0x06D4, ANY_MARK}, {0x0964, ANY_MARK},
    {0x0E3F, OPENING | AFTER_DIGIT}, {0x2013, ANY_MARK | HYPHEN}, {0x2014, ANY_MARK | HYPHEN},
    {0x2018, ANY_MARK | QUOTE}, {0x2019, ANY_MARK | QUOTE}, {0x201A, ANY_MARK | QUOTE}, {0x201C, ANY_MARK | QUOTE},
    {0x201D, ANY_MARK | QUOTE}, {0x201E, ANY_MARK | QUOTE}, {0x2026, ANY_MARK}, {0x20AC, OPENING | AFTER_DIGIT},
    {0x20B4, OPENING | AFTER_DIGIT}, {0x20BD, OPENING | AFTER_DIGIT}, {0x3001, ANY_MARK}, {0x3002, ANY_MARK},
    {0x3008, ANY_MARK | QUOTE}, {0x3009, ANY_MARK | QUOTE}, {0x300A, ANY_MARK | QUOTE}, {0x300B, ANY_MARK | QUOTE},
    {0x300C, ANY_MARK | QUOTE}, {0x300D, ANY_MARK | QUOTE}, {0x300E, ANY_MARK | QUOTE}, {0x300F, ANY_MARK | QUOTE},
    {0x3010, ANY_MARK | QUOTE}, {0x3011, ANY_MARK | QUOTE}, {0x3014, ANY_MARK | QUOTE}, {0x3015, ANY_MARK | QUOTE},
    {0xFF01, ANY_MARK}, {0xFF08, ANY_MARK | QUOTE}, {0xFF09, ANY_MARK | QUOTE}, {0xFF0C, ANY_MARK}, {0xFF1A, ANY_MARK},
    {0xFF1B, ANY_MARK}, {0xFF1F, ANY_MARK}, {0xFF5E, ANY_MARK}, {0xFFE5, OPENING | AFTER_DIGIT},
};

/* Abbreviations that keep their full stop, and other exceptions. */
static const char *const whole[] = {
    "Mr.", "Mrs.", "Ms.", "Dr.", "St.", "Jr.", "Inc.", "Ltd.", "Co.", "co.", "Corp.", "Prof.", "Gen.", "Rev.", "Gov.",
    "Sen.", "Rep.", "vs.", "e.g.", "i.e.", "E.g.", "I.e.", "E.G.", "I.E.", "a.m.", "p.m.", "Ph.D.", "D.C.", "Jan.",
    "Feb.", "Mar.", "Apr.", "Jun.", "Jul.", "Aug.", "Sep.", "Sept.", "Oct.", "Nov.", "Dec.", "and/or", "C++",
};
#define LONGEST_WHOLE 6
static uint64_t whole_keys[sizeof whole / sizeof *whole];

/* Up to eight bytes as a number. Few are as long as six: a loop is quicker than a call. */
static inline uint64_t key_of(const uint8_t *p, size_t size) {
    uint64_t key = 0;
    for (size_t i = 0; i < size; i++)
        key |= (uint64_t)p[i] << (8 * i);
    return key;
}

void lexemes_build(void) {
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        whole_keys[i] = key_of((const uint8_t *)whole[i], strlen(whole[i]));
    for (const char *p = "'\"`"; *p; p++)
        ascii_marks[(int)*p] |= QUOTE;
    for (const char *p = "'\"`,:;!?()[]{}<>_#*&"; *p; p++)
        ascii_marks[(int)*p] |= ANY_MARK;
    for (const char *p = "$%="; *p; p++)
        ascii_marks[(int)*p] |= OPENING;
    for (const char *p = "$+%"; *p; p++)
        ascii_marks[(int)*p] |= AFTER_DIGIT;
    for (const char *p = "%-+"; *p; p++)
        ascii_marks[(int)*p] |= BEFORE_STOP;
    for (const char *p = "-~"; *p; p++)
        ascii_marks[(int)*p] |= HYPHEN;
}

/* A character of the piece of text that is being split. */
typedef struct {
    uint32_t code;
    uint32_t at; /* its place in the document */
    uint8_t marks, letter, capital;
} Character;

typedef struct {
    Character *characters; /* one more than there are, for where the last one ends */
    size_t count;
    Lexemes *lexemes;
    int failed;
} Piece;

static int is_icon(uint32_t c) {
    if (c < 0x2300)
        return 0;
    return c <= 0x2307 || (c >= 0x230C && c <= 0x23FF) || (c >= 0x2500 && c <= 0x25F7) || (c >= 0x2600 && c <= 0x2767) ||
           (c >= 0x2794 && c <= 0x27BF) || (c >= 0x2800 && c <= 0x28FF) || (c >= 0x1F000 && c <= 0x1FAFF);
}

static uint8_t marks_of(uint32_t c) {
    if (c < 0x80)
        return ascii_marks[c];
    if (is_icon(c))
        return MARK | OPENING; /* but no full stop ends a sentence after it */
    size_t low = 0, high = sizeof other_marks / sizeof *other_marks;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (other_marks[middle].character < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low < sizeof other_marks / sizeof *other_marks && other_marks[low].character == c ? other_marks[low].marks : 0;
}

static int is_digit(const Character *c) { return c->code >= '0' && c->code <= '9'; }
static int is_small(const Character *c) { return c->letter && !c->capital; }
static int is_dot(const Character *c) { return c->code == '.'; }
static int is_apostrophe(const Character *c) { return c->code == '\'' || c->code == 0x2019; }

static void emit(Piece *piece, size_t start, size_t end) {
    Lexemes *all = piece->lexemes;
    Word *words = room(&all->scratch->words, (all->count + 2) * sizeof *words);
    if (!words) {
        piece->failed = 1;
        return;
    }
    uint32_t first = piece->characters[start].at, last = piece->characters[end].at;
    if (!all->count)
        words[0].before = 0;
    words[all->count].start = all->text.bytes + first;
    words[all->count].size = last - first;
    words[all->count + 1].before = words[all->count].before + (uint32_t)(end - start);
    all->words = words;
    all->count++;
}

static int is_whole(const Piece *piece, size_t start, size_t end) {
    const Character *c = piece->characters;
    size_t size = end - start;
    if (size == 2 && is_dot(c + start + 1))
        return c[start].code >= 'a' && c[start].code <= 'z';
    if (size < 3 || size > LONGEST_WHOLE || c[end].at - c[start].at != size)
        return 0;
    const uint8_t *bytes = piece->lexemes->text.bytes + c[start].at;
    if (bytes[size - 1] != '.' && bytes[size - 1] != '+' && bytes[size - 1] != 'r')
        return 0;
    uint64_t key = key_of(bytes, size);
    int found = 0;
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        found |= whole_keys[i] == key;
    return found;
}

static size_t dots_from(const Piece *piece, size_t start, size_t end) {
    size_t count = 0;
    while (start + count < end && is_dot(piece->characters + start + count))
        count++;
    return count;
}

/* How many characters are cut off at the beginning. */
static size_t opening(const Piece *piece, size_t start, size_t end) {
    const Character *first = piece->characters + start;
    if (is_dot(first)) {
        size_t dots = dots_from(piece, start, end);
        return dots > 1 ? dots : 0;
    }
    if (first->code == '+')
        return !(start + 1 < end && is_digit(first + 1));
    return (first->marks & OPENING) != 0;
}

/* How many characters are cut off at the end. */
static size_t closing(const Piece *piece, size_t start, size_t end) {
    if (start == end)
        return 0;
    const Character *last = piece->characters + end - 1, *before = end - start > 1 ? last - 1 : NULL;
    if (is_dot(last)) {
        size_t dots = 1;
        while (end - dots > start && is_dot(last - dots))
            dots++;
        if (dots > 1)
            return dots;
        return before && (is_digit(before) || is_small(before) || before->marks & BEFORE_STOP ||
                          (before->capital && end - start > 2 && last[-2].capital));
    }
    if ((last->code == 's' || last->code == 'S') && before && is_apostrophe(before))
        return end - start > 2 ? 2 : 0;
    if (last->code == ':' && before && before->code == ')')
        return 2;
    if (last->marks & AFTER_DIGIT)
        return before && is_digit(before);
    return (last->marks & MARK) != 0;
}

static int in_label(uint32_t c, int first) {
    return c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (!first && (c == '_' || c == '-'));
}

static int is_host(const Character *c, size_t at, size_t end) {
    for (;;) {
        if (at == end || !in_label(c[at].code, 1))
            return 0;
        while (at < end && in_label(c[at].code, 0))
            at++;
        if (at == end || !is_dot(c + at++))
            return 0;
        size_t top = at;
        while (top < end && c[top].code >= 'a' && c[top].code <= 'z')
            top++;
        if (top - at < 2)
            continue;
        if (top == end || c[top].code == '/' || c[top].code == '?' || c[top].code == '#')
            return 1;
        if (c[top].code == ':' && top + 1 < end && is_digit(c + top + 1))
            return 1;
    }
}

static int is_address(const Piece *piece, size_t start, size_t end) {
    const Character *c = piece->characters;
    size_t at = start;
    while (at < end && ((c[at].code | 32) >= 'a' && (c[at].code | 32) <= 'z') && c[at].code < 0x80)
        at++;
    if (at > start && end - at > 3 && c[at].code == ':' && c[at + 1].code == '/' && c[at + 2].code == '/')
        return 1;
    for (at = end; at > start && c[at - 1].code != '@'; at--)
        ;
    return is_host(c, at, end);
}

/* The length of what separates two lexemes at `at`, or 0. */
static size_t separator(const Piece *piece, size_t at, size_t start, size_t end) {
    const Character *c = piece->characters, *one = c + at;
    if (one->letter || is_digit(one))
        return 0;
    if (one->code == 0x2026 || is_icon(one->code))
        return 1;
    if (is_dot(one)) {
        size_t dots = dots_from(piece, at, end);
        if (dots > 1)
            return dots;
    }
    size_t size = 1;
    if (one->marks & HYPHEN)
        while (size < 3 && at + size < end && c[at + size].code == one->code)
            size++;
    if (at == start || at + size >= end)
        return 0;
    const Character *before = one - 1, *after = one + size;
    if (is_dot(one))
        return (is_small(before) || before->marks & QUOTE) && (after->capital || after->marks & QUOTE);
    if (size == 1 && is_digit(before) && (is_digit(after) || after->code == '-') &&
        (one->code == '+' || one->code == '-' || one->code == '*' || one->code == '^'))
        return 1;
    if (one->marks & HYPHEN)
        return (before->letter || is_digit(before)) && after->letter ? size : 0;
    if (one->code == ',')
        return before->letter && after->letter;
    if (one->code == ':' || one->code == '<' || one->code == '>' || one->code == '=' || one->code == '/')
        return (before->letter || is_digit(before)) && after->letter;
    return 0;
}

static int lower(const Character *c) { return c->code >= 'A' && c->code <= 'Z' ? (int)c->code + 32 : (int)c->code; }

/* Where a word is split that is two, or 0. */
static size_t contraction(const Piece *piece, size_t start, size_t end) {
    const Character *c = piece->characters + start;
    size_t size = end - start;
    const uint8_t *bytes = piece->lexemes->text.bytes + c->at;
    if (c[size].at - c->at == size) {
        if (size == 6 && (!memcmp(bytes, "cannot", 6) || !memcmp(bytes, "Cannot", 6)))
            return 3;
        if (size == 2 && (bytes[0] == 'i' || bytes[0] == 'I') && bytes[1] == 'd')
            return 1;
    }
    if (size < 3)
        return 0;
    const Character *last = c + size - 1;
    if (lower(last - 2) == 'n' && is_apostrophe(last - 1) && lower(last) == 't')
        return size - 3;
    if (size > 3 && is_apostrophe(last - 2)) {
        int first = lower(last - 1), second = lower(last);
        if ((first == 'l' && second == 'l') || (first == 'r' && second == 'e') || (first == 'v' && second == 'e'))
            return size - 3;
    }
    if (is_apostrophe(last - 1) && (lower(last) == 'd' || lower(last) == 'm'))
        return size - 2;
    return 0;
}

static void emit_word(Piece *piece, size_t start, size_t end) {
    if (start == end)
        return;
    size_t cut = contraction(piece, start, end);
    if (cut)
        emit(piece, start, start + cut);
    emit(piece, start + cut, end);
}

static void split_inside(Piece *piece, size_t start, size_t end) {
    if (is_whole(piece, start, end) || is_address(piece, start, end)) {
        emit(piece, start, end);
        return;
    }
    size_t word = start;
    for (size_t at = start; at < end;) {
        size_t size = separator(piece, at, start, end);
        if (size && at > start) {
            emit_word(piece, word, at);
            emit(piece, at, at + size);
            word = at + size;
        }
        at += size ? size : 1;
    }
    emit_word(piece, word, end);
}

static void split_piece(Piece *piece) {
    Scratch *scratch = piece->lexemes->scratch;
    size_t start = 0, end = piece->count, cuts = 0;
    while (start < end && !is_whole(piece, start, end)) {
        size_t open = opening(piece, start, end);
        if (open) {
            emit(piece, start, start + open);
            start += open;
            if (is_whole(piece, start, end))
                break;
        }
        size_t close = closing(piece, start, end);
        if (!open && !close)
            break;
        if (close) {
            uint32_t *ends = room(&scratch->cuts, (cuts + 1) * sizeof *ends);
            if (!ends) {
                piece->failed = 1;
                return;
            }
            ends[cuts++] = (uint32_t)end;
            end -= close;
        }
    }
    if (start < end)
        split_inside(piece, start, end);
    const uint32_t *ends = scratch->cuts.memory;
    for (size_t cut_start = end; cuts; cut_start = ends[cuts])
        cuts--, emit(piece, cut_start, ends[cuts]);
}

/* As word_segmentation.py has them: Chinese, Japanese, Thai, Lao, Khmer and Burmese. */
static int is_unspaced(uint32_t c) {
    if (c < 0x0E01)
        return 0;
    return c <= 0x0E3A || (c >= 0x0E40 && c <= 0x0E4E) || (c >= 0x0E81 && c <= 0x0ECE) || (c >= 0x1000 && c <= 0x109F) ||
           (c >= 0x1780 && c <= 0x17D3) || c == 0x17DC || c == 0x17DD || (c >= 0x3005 && c <= 0x3007) ||
           (c >= 0x3041 && c <= 0x309F) || (c >= 0x30A1 && c <= 0x30FF) || (c >= 0x31F0 && c <= 0x31FF) ||
           (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0xF900 && c <= 0xFAFF) ||
           (c >= 0xFF66 && c <= 0xFF9F) || (c >= 0x20000 && c <= 0x3FFFF);
}

/* Reads the characters of the piece from `p` to `end`. */
static int read_piece(Piece *piece, const uint8_t *p, const uint8_t *end) {
    Lexemes *lexemes = piece->lexemes;
    const uint8_t *begin = lexemes->text.bytes, *text_end = begin + lexemes->text.size;
    Character *c = room(&lexemes->scratch->characters, ((size_t)(end - p) + 1) * sizeof *c);
    if (!c)
        return -1;
    piece->characters = c;
    while (p < end) {
        uint32_t code = *p, at = (uint32_t)(p - begin);
        uint8_t letter, capital;
        if (code < 0x80) {
            letter = (byte_lanes[code] & LANE(LANE_LETTER)) != 0, capital = code >= 'A' && code <= 'Z';
            p++;
        } else {
            p += decode(p, text_end, &code);
            uint8_t class = class_of(code);
            letter = class >> LANE_LETTER & 1, capital = class >> LANE_CAPITAL & 1;
            lexemes->unspaced |= is_unspaced(code);
        }
        *c++ = (Character){code, at, marks_of(code), letter, capital};
    }
    *c = (Character){.at = (uint32_t)(end - begin)};
    piece->count = (size_t)(c - piece->characters);
    return 0;
}

static int add_plain(Lexemes *all, const uint8_t *start, const uint8_t *end) {
    Word *words = room(&all->scratch->words, (all->count + 2) * sizeof *words);
    if (!words)
        return -1;
    if (!all->count)
        words[0].before = 0;
    words[all->count].start = start;
    words[all->count].size = (uint32_t)(end - start);
    words[all->count + 1].before = words[all->count].before + words[all->count].size;
    all->words = words;
    all->count++;
    return 0;
}

/* A piece that is `plain` has only letters of ASCII: it is one lexeme, unless it may be one of the short exceptions. */
static int add_piece(Lexemes *all, const uint8_t *start, const uint8_t *end, int plain) {
    if (plain && end - start != 2 && end - start != 6)
        return add_plain(all, start, end);
    Piece piece = {.lexemes = all};
    if (read_piece(&piece, start, end))
        return -1;
    split_piece(&piece);
    return piece.failed ? -1 : 0;
}

int split_lexemes(Text text, Scratch *scratch, Lexemes *all) {
    *all = (Lexemes){.text = text, .scratch = scratch};
    const uint8_t *p = text.bytes, *end = p + text.size, *piece = NULL;
    uint64_t carry = 0;
    int plain = 1; /* whether the piece has only had letters so far */
    for (; p < end; p += BLOCK) {
        Block block = load_block(p, end);
        uint64_t others = ~load_letters(p, end);
        block.space |= carry;
        carry = 0;
        if (block.high)
            find_spaces(p, end, &block, &carry);
        for (uint64_t left = block.space ^ (block.space << 1 | !piece); left; left &= left - 1) {
            int i = __builtin_ctzll(left);
            if (!piece) {
                piece = p + i, plain = 1;
                others &= ~before(i);
                continue;
            }
            if (add_piece(all, piece, p + i, plain && !(others & before(i))))
                return -1;
            piece = NULL;
        }
        plain = plain && !others;
    }
    return piece ? add_piece(all, piece, end, plain) : 0;
}
