/* Lexemes of a document, and the statistics that are counted of them and of lines. */

#ifndef GRISTMILL_LEXEMES_H
#define GRISTMILL_LEXEMES_H

#include "block.h"

/* A word, or a lexeme. The list has one more than there are, whose `before` counts all characters. */
typedef struct {
    const uint8_t *start;
    uint32_t size;
    uint32_t before; /* characters of all words before this one */
} Word;

typedef struct {
    Text text;
    Scratch *scratch;
    Word *words; /* in the scratch memory, until the next text is split */
    size_t count;
    int unspaced; /* some of the text is in a script without spaces, whose words are not found */
} Lexemes;

void lexemes_build(void);
int split_lexemes(Text text, Scratch *scratch, Lexemes *lexemes); /* -1 without memory */
void count_lexemes(const Lexemes *lexemes, int64_t *stats);
int count_rules(Text text, int64_t *stats, Scratch *scratch); /* of lines; -1 without memory */

int count_lexeme_ngrams(const Lexemes *lexemes, const Wanted *wanted, int64_t *stats);

Text trimmed(const uint8_t *p, const uint8_t *end);
int line_end(const uint8_t *p, const uint8_t *end);
int is_terminal(uint32_t character);
int is_symbol_character(uint32_t character);
uint32_t last_character(const uint8_t *p, const uint8_t *end);

PyObject *clean_lines(PyObject *self, PyObject *args);
PyObject *measure_lines(PyObject *self, PyObject *args);

#endif
