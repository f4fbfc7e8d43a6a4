/* Word n-grams that occur more than once in a document.

   Each distinct word gets a number, then each distinct pair of words, triple and so on, from the numbers of the two shorter
   n-grams that it consists of. An n-gram can only repeat where both of these do, so longer n-grams examine few positions. */

#include "lexemes.h"

typedef struct {
    uint64_t key;
    uint32_t size, id;
} WordSlot;

typedef struct {
    uint64_t key; /* the two shorter runs, plus one; 0: free */
    uint64_t id;
} RunSlot;

#define SEEN UINT32_MAX

typedef struct {
    Text text;
    Word *words;
    uint32_t *ids;    /* of the run that starts at each word, where it is active */
    uint32_t *counts; /* by id */
    uint32_t *firsts; /* by id: the word it first starts at */
    uint32_t *active; /* words at which a repeated n-gram starts */
    size_t word_count, active_count;
    Scratch *scratch;
} Runs;

static inline void add_word(Runs *r, const uint8_t *start, const uint8_t *end, int64_t hidden) {
    Word *word = r->words + r->word_count++;
    word->start = start;
    word->size = (uint32_t)(end - start);
    word[1].before = word->before + (uint32_t)(end - start - hidden);
}

static int split_words(Runs *r) {
    const uint8_t *p = r->text.bytes, *end = p + r->text.size, *word = NULL;
    int64_t hidden = 0, word_hidden = 0;
    uint64_t carry = 0;
    for (; p < end; p += BLOCK) {
        Block block = load_block(p, end);
        block.space |= carry;
        carry = 0;
        if (block.high)
            find_spaces(p, end, &block, &carry);
        r->words = room(&r->scratch->words, (r->word_count + BLOCK / 2 + 3) * sizeof *r->words);
        if (!r->words)
            return -1;
        if (!r->word_count)
            r->words->before = 0;
        for (uint64_t left = block.space ^ (block.space << 1 | !word); left; left &= left - 1) {
            int i = __builtin_ctzll(left);
            int64_t here = hidden + (block.inner ? __builtin_popcountll(block.inner & before(i)) : 0);
            if (word)
                add_word(r, word, p + i, here - word_hidden), word = NULL;
            else
                word = p + i, word_hidden = here;
        }
        hidden += __builtin_popcountll(block.inner);
    }
    if (word)
        add_word(r, word, end, hidden - word_hidden);
    return 0;
}

static size_t table_size(size_t entries) {
    size_t size = 16;
    while (size < 2 * entries)
        size *= 2;
    return size;
}

/* Numbers the words in order of appearance. Returns the number of distinct ones, or -1 if out of memory. */
static int64_t number_words(Runs *r) {
    Scratch *scratch = r->scratch;
    size_t count = r->word_count, size = table_size(count), different = 0;
    WordSlot *slots = room(&scratch->slots, size * sizeof *slots);
    r->ids = room(&scratch->ids, count * sizeof *r->ids);
    r->counts = room(&scratch->counts, count * sizeof *r->counts);
    r->firsts = room(&scratch->firsts, count * sizeof *r->firsts);
    r->active = room(&scratch->actives, count * sizeof *r->active);
    if (!slots || !r->ids || !r->counts || !r->firsts || !r->active)
        return -1;
    memset(slots, 0, size * sizeof *slots);
    const uint8_t *end = r->text.bytes + r->text.size;
    const Word *words = r->words;
    uint32_t *ids = r->ids, *counts = r->counts, *firsts = r->firsts;
    for (size_t i = 0; i < count; i++) {
        Word word = words[i];
        uint64_t key = word.size < 8    ? load_few(word.start, word.size, end)
                       : word.size == 8 ? load8(word.start)
                                        : hash_bytes(word.start, word.size, end);
        size_t at = (size_t)mix(key, word.size) & (size - 1);
        while (slots[at].size) {
            WordSlot slot = slots[at];
            if (slot.key == key && slot.size == word.size &&
                (word.size <= 8 || !memcmp(words[firsts[slot.id]].start, word.start, word.size)))
                break;
            at = (at + 1) & (size - 1);
        }
        if (!slots[at].size) {
            slots[at] = (WordSlot){key, word.size, (uint32_t)different};
            counts[different] = 0;
            firsts[different++] = (uint32_t)i;
        }
        ids[i] = slots[at].id;
        counts[slots[at].id]++;
    }
    return (int64_t)different;
}

static void note_active(Runs *r, const uint32_t *places, size_t count) {
    size_t active = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t place = places ? places[i] : (uint32_t)i;
        r->active[active] = place; /* branchless: the branch would be mispredicted half of the time */
        active += r->counts[r->ids[place]] > 1;
    }
    r->active_count = active;
}

/* Numbers the runs of one more word, where both shorter runs are active; leaves those that come again as active.
   Returns how many different ones there were, or -1 without memory. */
static int64_t lengthen(Runs *r) {
    size_t size = table_size(r->active_count), kept = 0;
    RunSlot *slots = room(&r->scratch->slots, size * sizeof *slots);
    if (!slots)
        return -1;
    memset(slots, 0, size * sizeof *slots);
    int64_t different = 0;
    uint32_t *active = r->active, *ids = r->ids, *counts = r->counts, *firsts = r->firsts;
    size_t count = r->active_count;
    for (size_t i = 0; i + 1 < count; i++) {
        uint32_t place = active[i];
        if (active[i + 1] != place + 1)
            continue;
        uint64_t key = ((uint64_t)ids[place] << 32 | ids[place + 1]) + 1;
        size_t at = (size_t)mix(key, 0x2545F4914F6CDD1Du) & (size - 1);
        while (slots[at].key && slots[at].key != key)
            at = (at + 1) & (size - 1);
        if (!slots[at].key) {
            slots[at] = (RunSlot){key, (uint64_t)different};
            counts[different] = 0;
            firsts[different++] = place;
        }
        ids[place] = (uint32_t)slots[at].id;
        counts[slots[at].id]++;
        active[kept++] = place;
    }
    r->active_count = kept; /* places looked at; note_active leaves those that come again */
    return different;
}

/* The characters in repeated n-grams, each counted once, with the spaces between their words. */
static int64_t duplicate_chars(const Runs *r, int n) {
    int64_t sum = 0, done = 0; /* words up to `done` are counted */
    for (size_t i = 0; i < r->active_count; i++) {
        uint32_t place = r->active[i];
        if (r->firsts[r->ids[place]] == place)
            continue;
        int64_t overlap = done > place ? done - place : 0;
        sum += r->words[place + n].before - r->words[place + overlap].before;
        sum += n - overlap < n - 1 ? n - overlap : n - 1;
        done = (int64_t)place + n;
    }
    return sum;
}

/* The number of characters removed if every literal occurrence of the n-gram at a word is removed from the text. */
static int64_t literal_chars(const Runs *r, size_t place, int n) {
    size_t size = (size_t)n - 1;
    for (int i = 0; i < n; i++)
        size += r->words[place + i].size;
    uint8_t *needle = room(&r->scratch->needle, size), *to = needle;
    if (!needle)
        return -1;
    for (int i = 0; i < n; i++) {
        if (i)
            *to++ = ' ';
        memcpy(to, r->words[place + i].start, r->words[place + i].size);
        to += r->words[place + i].size;
    }
    int64_t chars = r->words[place + n].before - r->words[place].before + n - 1, found = 0;
    const uint8_t *p = r->text.bytes, *end = p + r->text.size;
    while ((p = memmem(p, (size_t)(end - p), needle, size)))
        found++, p += size;
    return found * chars;
}

static int count_top(const Runs *r, int64_t different, int n, const Wanted *wanted, int64_t *stats) {
    uint32_t most = 1;
    size_t place = 0; /* of equally frequent runs, the first in the text */
    for (int64_t id = 0; id < different; id++)
        if (r->counts[id] > most)
            most = r->counts[id], place = r->firsts[id];
    if (wanted->repeated_top >> n & 1)
        stats[REPEATED_TOP + n] = most * ((int64_t)r->words[place + n].before - r->words[place].before + n - 1);
    if (wanted->top >> n & 1) {
        int64_t chars = literal_chars(r, place, n);
        if (chars < 0)
            return -1;
        stats[TOP + n] = chars;
    }
    return 0;
}

/* The characters in repeated n-grams that do not overlap, read from left to right, without spaces between words. An
   n-gram that overlaps a repeated one before it is not seen at all. */
static int64_t apart_chars(Runs *r, int n) {
    int64_t sum = 0, done = 0;
    for (size_t i = 0; i < r->active_count; i++) {
        uint32_t place = r->active[i], *first = r->firsts + r->ids[place];
        if (place < done)
            continue;
        if (*first == SEEN) {
            sum += r->words[place + n].before - r->words[place].before;
            done = (int64_t)place + n;
        } else {
            *first = SEEN;
        }
    }
    return sum;
}

static int count_lexeme_runs(Runs *r, int64_t different, int n, const Wanted *wanted, int64_t *stats) {
    if (wanted->lexeme_top >> n & 1) {
        const Wanted top = {.repeated_top = wanted->lexeme_top};
        int64_t found[STATS];
        uint32_t most = 1;
        for (int64_t id = 0; id < different; id++)
            most = r->counts[id] > most ? r->counts[id] : most;
        if (most > 1 && !count_top(r, different, n, &top, found))
            stats[LEXEME_TOP + n] = found[REPEATED_TOP + n];
    }
    return 0;
}

static int count_run_lengths(Runs *r, const Wanted *wanted, int64_t *stats, int of_lexemes) {
    int64_t different = number_words(r);
    if (different < 0)
        return -1;
    r->active_count = r->word_count;
    int max_n = of_lexemes ? wanted->lexeme_max_n : wanted->max_n;
    for (int n = 1; n <= max_n && (size_t)n <= r->word_count; n++) {
        if (n > 1 && (different = lengthen(r)) < 0)
            return -1;
        if (of_lexemes)
            count_lexeme_runs(r, different, n, wanted, stats);
        else if (((wanted->top | wanted->repeated_top) >> n & 1) && count_top(r, different, n, wanted, stats))
            return -1;
        note_active(r, n > 1 ? r->active : NULL, r->active_count);
        if (!of_lexemes && wanted->duplicate >> n & 1)
            stats[DUPLICATE + n] = duplicate_chars(r, n);
        if (of_lexemes && wanted->lexeme_duplicate >> n & 1)
            stats[LEXEME_DUPLICATE + n] = apart_chars(r, n);
    }
    return 0;
}

int count_ngrams(Text text, const Wanted *wanted, int64_t *stats, Scratch *scratch) {
    Runs r = {.text = text, .scratch = scratch};
    if (split_words(&r))
        return -1;
    stats[WORDS] = (int64_t)r.word_count;
    return r.word_count ? count_run_lengths(&r, wanted, stats, 0) : 0;
}

int count_lexeme_ngrams(const Lexemes *lexemes, const Wanted *wanted, int64_t *stats) {
    Runs r = {.text = lexemes->text, .scratch = lexemes->scratch, .words = lexemes->words, .word_count = lexemes->count};
    return r.word_count ? count_run_lengths(&r, wanted, stats, 1) : 0;
}
