/* Character classes, from the Unicode tables of the running Python, so that they agree with its str methods. */

#include "text.h"

#define TABLE 0x40000 /* no letters, digits or spaces are assigned beyond it so far; Python decides */

uint64_t byte_lanes[256];
uint64_t lanes_of[256];
uint64_t hash_seed;
static uint8_t table[TABLE];

/* Alphabetic but not letters: letter-like numbers, and enclosed letters. */
static const uint32_t letter_like[][2] = {
    {0x16EE, 0x16F0},   {0x2160, 0x2182},   {0x2185, 0x2188},   {0x24B6, 0x24E9},   {0x3007, 0x3007},
    {0x3021, 0x3029},   {0x3038, 0x303A},   {0xA6E6, 0xA6EF},   {0x10140, 0x10174}, {0x10341, 0x10341},
    {0x1034A, 0x1034A}, {0x103D1, 0x103D5}, {0x12400, 0x1246E}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169},
    {0x1F170, 0x1F189},
};

static uint8_t ask_python(uint32_t c) {
    uint8_t class = 0;
    if (c >= '0' && c <= '9')
        class |= 1 << LANE_DIGIT;
    if (c == 0x27E8 || c == 0x27E9)
        class |= 1 << LANE_BRACKET;
    if (Py_UNICODE_ISALPHA(c))
        class |= 1 << LANE_LETTER | IS_ALPHABETIC;
    if (Py_UNICODE_ISUPPER(c))
        class |= 1 << LANE_CAPITAL;
    if (Py_UNICODE_ISSPACE(c))
        class |= 1 << LANE_SPACE;
    return class;
}

uint8_t class_of(uint32_t character) {
    return character < TABLE ? table[character] : character <= 0x10FFFF ? ask_python(character) : 0;
}

static uint64_t lanes(uint8_t class) {
    uint64_t sum = 0;
    for (int lane = 0; lane < 8; lane++)
        if (class >> lane & 1)
            sum |= LANE(lane);
    return sum;
}

static int is_plain(int c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || strchr("\n?!,.", c) != NULL;
}

static int is_punctuation(int c) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

void classes_build(void) {
    for (int c = 0; c < 128; c++) {
        uint64_t sum = lanes(ask_python((uint32_t)c) & (uint8_t)~IS_ALPHABETIC);
        if (c && is_plain(c))
            sum |= LANE(LANE_PLAIN);
        if (c && strchr("\t\n\r\b ", c))
            sum |= LANE(LANE_WHITE);
        if (c && strchr("{}[]()", c))
            sum |= LANE(LANE_BRACKET);
        if (is_punctuation(c))
            sum |= LANE(LANE_PUNCTUATION);
        byte_lanes[c] = sum;
    }
    for (uint32_t c = 0x80; c < TABLE; c++)
        table[c] = ask_python(c);
    for (size_t i = 0; i < sizeof letter_like / sizeof *letter_like; i++)
        for (uint32_t c = letter_like[i][0]; c <= letter_like[i][1]; c++)
            table[c] |= IS_ALPHABETIC;
    for (int class = 0; class < 256; class++)
        lanes_of[class] = lanes((uint8_t)class & (uint8_t)~IS_ALPHABETIC);
}
