/* Maps the words of a text to rows of a fastText model: the word itself, if it is known, and its character n-grams. */

#include "fasttext.h"

#define FNV 2166136261u
#define FNV_PRIME 16777619u
#define LEAST_PLACES (1u << 10)
#define MOST_PLACES (1u << 18)
#define LONGEST_WORD_KEPT 48
#define MOST_IDS_KEPT 512
#define MOST_BYTES_KEPT (32u << 20)
#define AHEAD 16 /* words whose slots are prefetched */

static const char end_of_line[] = "</s>";
static const char label_prefix[] = "__label__";
static const uint8_t is_blank[256] = {[0] = 1, ['\t'] = 1, ['\n'] = 1, ['\v'] = 1, ['\f'] = 1, ['\r'] = 1, [' '] = 1};

typedef struct {
    uint32_t fnv;
    uint16_t size, count;
} Entry; /* then the bytes of the word, up to a multiple of 4, and its rows */

typedef struct {
    const uint8_t *bytes;
    size_t size;
    uint64_t hash;
} Word;

/* Bytes are signed, as in the library. */
static inline uint32_t fnv_step(uint32_t hash, uint8_t byte) { return (hash ^ (uint32_t)(int32_t)(int8_t)byte) * FNV_PRIME; }

static uint32_t fnv(const uint8_t *p, size_t size) {
    uint32_t hash = FNV;
    for (size_t i = 0; i < size; i++)
        hash = fnv_step(hash, p[i]);
    return hash;
}

/* -- the dictionary ------------------------------------------------------------------------------------- */

/* The slot of a word: that of its entry, or a free one. */
static uint64_t place_of(const FastText *model, const uint8_t *p, size_t size, uint64_t hash) {
    uint64_t at = hash & model->mask;
    for (; model->slots[2 * at + 1]; at = (at + 1) & model->mask)
        if (model->slots[2 * at] == (uint32_t)(hash >> 32)) {
            Text known = column_text(&model->entries, model->slots[2 * at + 1] - 1);
            if ((size_t)known.size == size && !memcmp(known.bytes, p, size))
                break;
        }
    return at;
}

static inline int64_t find_entry(const FastText *model, const uint8_t *p, size_t size, uint64_t hash) {
    return (int64_t)model->slots[2 * place_of(model, p, size, hash) + 1] - 1;
}

int dictionary_open(FastText *model) {
    uint64_t size = 16, entries = (uint64_t)model->entries.array->length;
    while (size < 2 * entries)
        size *= 2;
    model->mask = size - 1;
    model->slots = calloc(size, 8);
    if (!model->slots)
        return -1;
    for (uint64_t i = 0; i < entries; i++) {
        Text word = column_text(&model->entries, (int64_t)i);
        uint64_t hash = hash_bytes(word.bytes, (size_t)word.size, word.bytes + word.size);
        uint64_t at = place_of(model, word.bytes, (size_t)word.size, hash);
        model->slots[2 * at] = (uint32_t)(hash >> 32), model->slots[2 * at + 1] = (uint32_t)i + 1;
    }
    return 0;
}

/* -- rows ----------------------------------------------------------------------------------------------- */

typedef float Four __attribute__((vector_size(16)));

static inline Four load_four(const uint8_t *p) { /* the matrix in the file may be unaligned */
    Four four;
    memcpy(&four, p, sizeof four);
    return four;
}

/* Language identification models usually have 16 numbers per row: the sums stay in registers. */
static void add_sixteens(float *sum, const uint8_t *rows, const int32_t *ids, int count) {
    Four sums[4];
    memcpy(sums, sum, sizeof sums);
    for (int i = 0; i < count; i++) {
        const uint8_t *row = rows + (size_t)ids[i] * 64;
        for (int j = 0; j < 4; j++)
            sums[j] += load_four(row + 16 * j);
    }
    memcpy(sum, sums, sizeof sums);
}

static void add_rows(float *sum, const uint8_t *rows, const int32_t *ids, int count, size_t dim) {
    for (int i = 0; i < count; i++) {
        const uint8_t *row = rows + (size_t)ids[i] * dim * 4;
        size_t j = 0;
        if (i + 4 < count)
            for (size_t k = 0; k < dim * 4; k += 64)
                __builtin_prefetch(rows + (size_t)ids[i + 4] * dim * 4 + k);
        for (; j + 4 <= dim; j += 4) {
            Four four = load_four((const uint8_t *)(sum + j)) + load_four(row + 4 * j);
            memcpy(sum + j, &four, sizeof four);
        }
        for (; j < dim; j++) {
            float one;
            memcpy(&one, row + 4 * j, 4);
            sum[j] += one;
        }
    }
}

static void keep_rows(Reading *reading) {
    int32_t *kept = room(&reading->kept, (reading->kept_count + (size_t)reading->used) * sizeof *kept);
    if (!kept) {
        reading->keeps = -1;
        return;
    }
    memcpy(kept + reading->kept_count, reading->ids, (size_t)reading->used * sizeof *kept);
    reading->kept_count += (size_t)reading->used;
}

static void flush(Reading *reading) {
    const FastText *model = reading->model;
    const uint8_t *rows = model->held[INPUT].buf;
    if (reading->keeps)
        keep_rows(reading);
    else if (model->dim == 16)
        add_sixteens(reading->sum, rows, reading->ids, reading->used);
    else
        add_rows(reading->sum, rows, reading->ids, reading->used, (size_t)model->dim);
    reading->count += reading->used;
    reading->used = 0;
    reading->flushes++;
}

static inline void push(Reading *reading, int32_t id) {
    if (reading->used == IDS)
        flush(reading);
    reading->ids[reading->used++] = id;
}

/* The row of a bucket, if it has one: a pruned model has few. */
static inline void push_bucket(Reading *reading, uint32_t bucket) {
    const FastText *model = reading->model;
    if (!model->pruned) {
        push(reading, (int32_t)(model->words + bucket));
        return;
    }
    uint64_t bits = ((const uint64_t *)model->held[BITS].buf)[bucket >> 6], one = (uint64_t)1 << (bucket & 63);
    if (bits & one) {
        uint32_t rank = ((const uint32_t *)model->held[RANKS].buf)[bucket >> 6] + (uint32_t)__builtin_popcountll(bits & (one - 1));
        push(reading, (int32_t)model->words + ((const int32_t *)model->held[PLACES].buf)[rank]);
    }
}

/* hash % buckets, by two multiplications. */
static inline uint32_t remainder_of(uint32_t hash, uint64_t inverse, uint64_t buckets) {
    return (uint32_t)((__uint128_t)(inverse * hash) * buckets >> 64);
}

static inline int inside(uint8_t byte) { return (byte & 0xC0) == 0x80; }

/* Whether a bucket has a row. A pruned model has few, so nearly all n-grams end here. */
static inline int has_row(const uint64_t *bits, uint32_t bucket) { return bits[bucket >> 6] >> (bucket & 63) & 1; }

/* Character n-grams of `least` to `most` characters. Those from one position share the start of their hash. */
static void push_runs(Reading *reading, const uint8_t *word, size_t size) {
    const FastText *model = reading->model;
    const uint64_t *bits = model->pruned ? model->held[BITS].buf : NULL, inverse = model->inverse;
    const uint64_t buckets = (uint64_t)model->bucket;
    const int64_t least = model->least, most = model->most;
    for (size_t i = 0; i < size; i++) {
        if (inside(word[i]))
            continue;
        uint32_t hash = FNV;
        size_t j = i;
        for (int64_t n = 1; j < size && n <= most; n++) {
            do
                hash = fnv_step(hash, word[j++]);
            while (j < size && inside(word[j]));
            if (n < least || (n == 1 && (i == 0 || j == size)))
                continue;
            uint32_t bucket = remainder_of(hash, inverse, buckets);
            if (!bits || has_row(bits, bucket))
                push_bucket(reading, bucket);
        }
    }
}

/* -- words ---------------------------------------------------------------------------------------------- */

static inline size_t ids_at(size_t size) { return sizeof(Entry) + ((size + 3) & ~(size_t)3); }

void memory_free(Memory *memory) {
    if (memory) {
        free(memory->slots);
        free(memory->entries.memory);
        free(memory);
    }
}

static Entry *recall(const Memory *memory, Word word) {
    uint32_t at = (uint32_t)word.hash & memory->mask;
    for (; memory->slots[2 * at + 1]; at = (at + 1) & memory->mask)
        if (memory->slots[2 * at] == (uint32_t)(word.hash >> 32)) {
            Entry *entry = (Entry *)(void *)((char *)memory->entries.memory + memory->slots[2 * at + 1]);
            if (entry->size == word.size && !memcmp(entry + 1, word.bytes, word.size))
                return entry;
        }
    return NULL;
}

Memory *memory_make(void) {
    Memory *memory = calloc(1, sizeof *memory);
    if (memory && !(memory->slots = calloc(LEAST_PLACES, 8))) {
        free(memory);
        return NULL;
    }
    if (memory)
        memory->mask = LEAST_PLACES - 1, memory->used = sizeof(Entry);
    return memory;
}

static void take_place(const Memory *memory, uint64_t hash, size_t entry) {
    uint32_t at = (uint32_t)hash & memory->mask;
    while (memory->slots[2 * at + 1])
        at = (at + 1) & memory->mask;
    memory->slots[2 * at] = (uint32_t)(hash >> 32), memory->slots[2 * at + 1] = (uint32_t)entry;
}

/* The table starts small, so that it stays in the processor's cache. */
static int grow(Memory *memory) {
    uint32_t *slots = calloc(2 * ((size_t)memory->mask + 1), 8);
    if (!slots)
        return -1;
    free(memory->slots);
    memory->slots = slots, memory->mask = 2 * memory->mask + 1;
    for (size_t at = sizeof(Entry); at < memory->used;) {
        const char *entry = (const char *)memory->entries.memory + at;
        Entry known;
        memcpy(&known, entry, sizeof known);
        const uint8_t *word = (const uint8_t *)entry + sizeof known;
        take_place(memory, hash_bytes(word, known.size, word + known.size), at);
        at += ids_at(known.size) + 4 * (size_t)known.count;
    }
    return 0;
}

/* A full cache is emptied: frequent words soon return. */
static int keep_in_mind(Memory *memory, Word word, Entry made, const int32_t *ids) {
    size_t at = ids_at(made.size), size = at + 4 * (size_t)made.count;
    if (memory->used + size > MOST_BYTES_KEPT || memory->count >= MOST_PLACES / 2) {
        memset(memory->slots, 0, 8 * ((size_t)memory->mask + 1));
        memory->used = sizeof(Entry), memory->count = 0;
    } else if (memory->count > memory->mask / 2 && grow(memory))
        return -1;
    char *entries = room(&memory->entries, memory->used + size);
    if (!entries)
        return -1;
    entries += memory->used;
    memcpy(entries, &made, sizeof made);
    memcpy(entries + sizeof made, word.bytes, made.size);
    memcpy(entries + at, ids, 4 * (size_t)made.count);
    take_place(memory, word.hash, memory->used);
    memory->used += size;
    memory->count++;
    return 0;
}

static int add_hash(Reading *reading, uint32_t hash) {
    if (reading->model->run < 2)
        return 0;
    uint32_t *hashes = room(&reading->hashes, (reading->hash_count + 1) * sizeof *hashes);
    if (!hashes)
        return -1;
    hashes[reading->hash_count++] = hash;
    return 0;
}

/* A word that is not in the cache. */
static int add_new_word(Reading *reading, Word word, int keep) {
    const FastText *model = reading->model;
    int64_t entry = find_entry(model, word.bytes, word.size, word.hash);
    size_t prefix = sizeof label_prefix - 1;
    if (entry >= model->words || (entry < 0 && word.size >= prefix && !memcmp(word.bytes, label_prefix, prefix)))
        return 0; /* labels are not words */
    if (IDS - reading->used <= MOST_IDS_KEPT)
        flush(reading);
    int start = reading->used;
    int64_t flushes = reading->flushes;
    if (entry >= 0)
        push(reading, (int32_t)entry);
    if (model->most > 0) {
        uint8_t *marked = room(&reading->word, word.size + 2);
        if (!marked)
            return -1;
        marked[0] = '<', marked[word.size + 1] = '>';
        memcpy(marked + 1, word.bytes, word.size);
        push_runs(reading, marked, word.size + 2);
    }
    Entry made = {model->run > 1 ? fnv(word.bytes, word.size) : 0, (uint16_t)word.size, (uint16_t)(reading->used - start)};
    if (keep && flushes == reading->flushes && reading->used - start <= MOST_IDS_KEPT &&
        keep_in_mind(reading->memory, word, made, reading->ids + start))
        return -1;
    return add_hash(reading, made.fnv);
}

static int add_word(Reading *reading, Word word) {
    int keep = word.size <= LONGEST_WORD_KEPT;
    const Entry *entry = keep ? recall(reading->memory, word) : NULL;
    if (!entry)
        return add_new_word(reading, word, keep);
    if (IDS - reading->used < entry->count)
        flush(reading);
    memcpy(reading->ids + reading->used, (const char *)entry + ids_at(word.size), 4 * (size_t)entry->count);
    reading->used += entry->count;
    return add_hash(reading, entry->fnv);
}

/* The end of the line is a word too, but has no character n-grams. */
static int add_end(Reading *reading) {
    const uint8_t *p = (const uint8_t *)end_of_line;
    size_t size = sizeof end_of_line - 1;
    int64_t entry = find_entry(reading->model, p, size, hash_bytes(p, size, p + size));
    if (entry >= reading->model->words)
        return 0;
    if (entry >= 0)
        push(reading, (int32_t)entry);
    return add_hash(reading, fnv(p, size));
}

/* Word n-grams from 2 words on. The library treats the hashes of words as signed numbers. */
static void push_word_runs(Reading *reading) {
    const FastText *model = reading->model;
    const int32_t *hashes = reading->hashes.memory;
    for (size_t i = 0; i < reading->hash_count; i++) {
        uint64_t hash = (uint64_t)(int64_t)hashes[i];
        for (size_t j = i + 1; j < reading->hash_count && j - i < (size_t)model->run; j++) {
            hash = hash * 116049371u + (uint64_t)(int64_t)hashes[j];
            push_bucket(reading, (uint32_t)(hash % (uint64_t)model->bucket));
        }
    }
}

/* The next words, AHEAD of them but at the end: that of the text, or what stands for the end of a line. */
static int next_words(const Memory *memory, const uint8_t **at, const uint8_t *end, Word *words) {
    const uint8_t *p = *at;
    int count = 0;
    for (; count < AHEAD; count++) {
        while (p < end && is_blank[*p])
            p++;
        const uint8_t *start = p;
        while (p < end && !is_blank[*p])
            p++;
        size_t size = (size_t)(p - start);
        if (!size || (size == sizeof end_of_line - 1 && !memcmp(start, end_of_line, size)))
            break;
        words[count] = (Word){start, size, hash_bytes(start, size, end)};
        __builtin_prefetch(memory->slots + 2 * (words[count].hash & memory->mask));
    }
    for (int i = 0; i < count; i++) {
        uint32_t entry = memory->slots[2 * (words[i].hash & memory->mask) + 1];
        if (entry)
            __builtin_prefetch((const char *)memory->entries.memory + entry);
    }
    *at = p;
    return count;
}

int add_text(Reading *reading, Text text) {
    const uint8_t *p = text.bytes, *end = p + text.size;
    Word words[AHEAD];
    int count = AHEAD;
    memset(reading->sum, 0, (size_t)reading->model->dim * sizeof(float));
    reading->count = reading->used = 0, reading->hash_count = 0;
    while (count == AHEAD) {
        count = next_words(reading->memory, &p, end, words);
        for (int i = 0; i < count; i++)
            if (add_word(reading, words[i]))
                return -1;
    }
    if (add_end(reading))
        return -1;
    if (reading->model->run > 1)
        push_word_runs(reading);
    flush(reading);
    return reading->keeps < 0 ? -1 : 0;
}
