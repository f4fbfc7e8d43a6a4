/* XXH3 with 128 bits, as specified: short data takes a few multiplications; long data is read 64 bytes at a time into eight
   independent accumulators. */

#include "hash.h"
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define P32_1 0x9E3779B1u
#define P32_2 0x85EBCA77u
#define P32_3 0xC2B2AE3Du
#define P64_1 0x9E3779B185EBCA87u
#define P64_2 0xC2B2AE3D27D4EB4Fu
#define P64_3 0x165667B19E3779F9u
#define P64_4 0x85EBCA77C2B2AE63u
#define P64_5 0x27D4EB2F165667C5u

enum { STRIPE = 64, LANES = 8, SECRET = 192, STRIPES = (SECRET - STRIPE) / 8, SHORT = 240 };

static const uint8_t secret_of_all[SECRET] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

/* The XOR of two words of the secret. */
static inline uint64_t secret_pair(int at) { return little8(secret_of_all + at) ^ little8(secret_of_all + at + 8); }

static inline Hash128 multiply(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (Hash128){(uint64_t)product, (uint64_t)(product >> 64)};
}

static inline uint64_t fold(uint64_t a, uint64_t b) {
    Hash128 product = multiply(a, b);
    return product.low ^ product.high;
}

static inline uint64_t spread(uint64_t x) {
    x = (x ^ x >> 37) * 0x165667919E3779F9u;
    return x ^ x >> 32;
}

static inline uint64_t spread_few(uint64_t x) {
    x = (x ^ x >> 33) * P64_2;
    x = (x ^ x >> 29) * P64_3;
    return x ^ x >> 32;
}

/* -- short data ----------------------------------------------------------------------------------------------- */

static Hash128 upto_3(const uint8_t *p, size_t size, uint64_t seed) {
    uint32_t low = (uint32_t)p[0] << 16 | (uint32_t)p[size >> 1] << 24 | p[size - 1] | (uint32_t)size << 8;
    uint32_t turned = __builtin_bswap32(low), high = turned << 13 | turned >> 19;
    uint64_t first = little_few(secret_of_all, 4) ^ little_few(secret_of_all + 4, 4);
    uint64_t second = little_few(secret_of_all + 8, 4) ^ little_few(secret_of_all + 12, 4);
    return (Hash128){spread_few(low ^ (first + seed)), spread_few(high ^ (second - seed))};
}

static Hash128 upto_8(const uint8_t *p, size_t size, uint64_t seed) {
    seed ^= (uint64_t)__builtin_bswap32((uint32_t)seed) << 32;
    uint64_t both = little_few(p, 4) | little_few(p + size - 4, 4) << 32;
    Hash128 h = multiply(both ^ (secret_pair(16) + seed), P64_1 + ((uint64_t)size << 2));
    h.high += h.low << 1;
    h.low ^= h.high >> 3;
    h.low = (h.low ^ h.low >> 35) * 0x9FB21C651E98DF25u;
    return (Hash128){h.low ^ h.low >> 28, spread(h.high)};
}

static Hash128 upto_16(const uint8_t *p, size_t size, uint64_t seed) {
    uint64_t low = little8(p), high = little8(p + size - 8);
    Hash128 h = multiply(low ^ high ^ (secret_pair(32) - seed), P64_1);
    h.low += (uint64_t)(size - 1) << 54;
    high ^= secret_pair(48) + seed;
    h.high += high + (high & UINT32_MAX) * (P32_2 - 1);
    h.low ^= __builtin_bswap64(h.high);
    Hash128 last = multiply(h.low, P64_2);
    return (Hash128){spread(last.low), spread(last.high + h.high * P64_2)};
}

static inline uint64_t mix16(const uint8_t *p, const uint8_t *secret, uint64_t seed) {
    return fold(little8(p) ^ (little8(secret) + seed), little8(p + 8) ^ (little8(secret + 8) - seed));
}

static inline Hash128 mix32(Hash128 h, const uint8_t *p, const uint8_t *q, int secret, uint64_t seed) {
    const uint8_t *its = secret_of_all + secret;
    h.low = (h.low + mix16(p, its, seed)) ^ (little8(q) + little8(q + 8));
    h.high = (h.high + mix16(q, its + 16, seed)) ^ (little8(p) + little8(p + 8));
    return h;
}

static inline Hash128 end_mix(Hash128 h, size_t size, uint64_t seed) {
    uint64_t high = h.low * P64_1 + h.high * P64_4 + (size - seed) * P64_2;
    return (Hash128){spread(h.low + h.high), 0 - spread(high)};
}

static Hash128 upto_128(const uint8_t *p, size_t size, uint64_t seed) {
    Hash128 h = {size * P64_1, 0};
    for (int i = (int)(size - 1) / 32; i >= 0; i--) /* from the middle to both ends */
        h = mix32(h, p + 16 * i, p + size - 16 * (i + 1), 32 * i, seed);
    return end_mix(h, size, seed);
}

static Hash128 upto_240(const uint8_t *p, size_t size, uint64_t seed) {
    Hash128 h = {size * P64_1, 0};
    int rounds = (int)size / 32;
    for (int i = 0; i < rounds; i++) {
        if (i == 4)
            h = (Hash128){spread(h.low), spread(h.high)};
        h = mix32(h, p + 32 * i, p + 32 * i + 16, i < 4 ? 32 * i : 32 * (i - 4) + 3, seed);
    }
    if (rounds == 4)
        h = (Hash128){spread(h.low), spread(h.high)};
    return end_mix(mix32(h, p + size - 16, p + size - 32, 103, 0 - seed), size, seed);
}

/* -- long data ------------------------------------------------------------------------------------------------ */

#ifdef __SSE2__

typedef struct {
    __m128i pairs[LANES / 2];
} Sums;

static inline __m128i pair_at(const void *p) { return _mm_loadu_si128((const __m128i *)p); }

static inline __m128i upper(__m128i pair) { return _mm_shuffle_epi32(pair, _MM_SHUFFLE(3, 3, 1, 1)); }

static inline void add_stripe(Sums *sums, const uint8_t *p, const uint8_t *secret) {
    for (int i = 0; i < LANES / 2; i++) {
        __m128i data = pair_at(p + 16 * i), keyed = _mm_xor_si128(data, pair_at(secret + 16 * i));
        __m128i swapped = _mm_shuffle_epi32(data, _MM_SHUFFLE(1, 0, 3, 2));
        sums->pairs[i] = _mm_add_epi64(sums->pairs[i], _mm_add_epi64(swapped, _mm_mul_epu32(keyed, upper(keyed))));
    }
}

static inline void scramble_sums(Sums *sums, const uint8_t *secret) {
    const __m128i prime = _mm_set1_epi32((int)P32_1);
    for (int i = 0; i < LANES / 2; i++) {
        __m128i sum = _mm_xor_si128(sums->pairs[i], _mm_srli_epi64(sums->pairs[i], 47));
        sum = _mm_xor_si128(sum, pair_at(secret + 16 * i));
        __m128i high = _mm_slli_epi64(_mm_mul_epu32(upper(sum), prime), 32);
        sums->pairs[i] = _mm_add_epi64(_mm_mul_epu32(sum, prime), high);
    }
}

#else

typedef struct {
    uint64_t lanes[LANES];
} Sums;

static inline void add_stripe(Sums *sums, const uint8_t *p, const uint8_t *secret) {
    for (int i = 0; i < LANES; i++) {
        uint64_t data = little8(p + 8 * i), keyed = data ^ little8(secret + 8 * i);
        sums->lanes[i ^ 1] += data;
        sums->lanes[i] += (keyed & UINT32_MAX) * (keyed >> 32);
    }
}

static inline void scramble_sums(Sums *sums, const uint8_t *secret) {
    for (int i = 0; i < LANES; i++)
        sums->lanes[i] = (sums->lanes[i] ^ sums->lanes[i] >> 47 ^ little8(secret + 8 * i)) * P32_1;
}

#endif

static uint64_t merge(const uint64_t *lanes, const uint8_t *secret, uint64_t sum) {
    for (int i = 0; i < LANES; i += 2)
        sum += fold(lanes[i] ^ little8(secret + 8 * i), lanes[i + 1] ^ little8(secret + 8 * i + 8));
    return spread(sum);
}

static Hash128 any_size(const uint8_t *p, size_t size, uint64_t seed) {
    uint8_t seeded[SECRET];
    const uint8_t *secret = seed ? seeded : secret_of_all, *last = p + size - STRIPE;
    for (int i = 0; seed && i < SECRET; i += 16) {
        store8(seeded + i, little8(secret_of_all + i) + seed);
        store8(seeded + i + 8, little8(secret_of_all + i + 8) - seed);
    }
    uint64_t lanes[LANES] = {P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1};
    Sums sums;
    memcpy(&sums, lanes, sizeof sums);
    size_t stripes = (size - 1) / STRIPE;
    for (; stripes >= STRIPES; stripes -= STRIPES) {
        for (int i = 0; i < STRIPES; i++, p += STRIPE)
            add_stripe(&sums, p, secret + 8 * i);
        scramble_sums(&sums, secret + SECRET - STRIPE);
    }
    for (size_t i = 0; i < stripes; i++, p += STRIPE)
        add_stripe(&sums, p, secret + 8 * i);
    add_stripe(&sums, last, secret + SECRET - STRIPE - 7);
    memcpy(lanes, &sums, sizeof sums);
    return (Hash128){merge(lanes, secret + 11, size * P64_1), merge(lanes, secret + SECRET - STRIPE - 11, ~(size * P64_2))};
}

Hash128 xxh3(const uint8_t *p, size_t size, uint64_t seed) {
    if (size > SHORT)
        return any_size(p, size, seed);
    if (size > 128)
        return upto_240(p, size, seed);
    if (size > 16)
        return upto_128(p, size, seed);
    if (size > 8)
        return upto_16(p, size, seed);
    if (size > 3)
        return upto_8(p, size, seed);
    if (size)
        return upto_3(p, size, seed);
    return (Hash128){spread_few(seed ^ secret_pair(64)), spread_few(seed ^ secret_pair(80))};
}
