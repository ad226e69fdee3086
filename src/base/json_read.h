/* Reads JSON (RFC 8259) strictly, token by token, without recursion and without memory of its own: what comes from a file that nobody vouches for.
 *
 *     gt__json_reader reader;
 *     gt__json_token token;
 *     gt__json_reader_init(&reader, text, length); // text[length] is NUL
 *     while (gt__json_next(&reader, &token) && token.kind != GT__JSON_END) use(&token);
 *     if (reader.problem) complain(reader.problem, reader.at);
 *
 * Tokens come in a valid order: a KEY is followed by its value, brackets match, and END comes once, when nothing but white space is left. Strings are valid UTF-8
 * with valid escapes, and numbers have JSON's form. */
#ifndef GT_BASE_JSON_READ_H
#define GT_BASE_JSON_READ_H

#include "base/host.h"

#define GT__JSON_DEPTH 16 /* brackets inside one another */

typedef enum gt__json_kind {
    GT__JSON_END,
    GT__JSON_OBJECT,
    GT__JSON_OBJECT_END,
    GT__JSON_ARRAY,
    GT__JSON_ARRAY_END,
    GT__JSON_KEY,
    GT__JSON_STRING,
    GT__JSON_NUMBER,
    GT__JSON_WORD /* true, false or null */
} gt__json_kind;

typedef struct gt__json_token {
    gt__json_kind kind;
    size_t at;     /* of the first byte in the text; of keys and strings, after the quote */
    size_t length; /* of keys and strings, without quotes and with their escapes */
} gt__json_token;

typedef struct gt__json_reader {
    const char *text;
    size_t length, at;
    const char *problem; /* NULL: none so far. Static */
    uint32_t objects;    /* bit d: the bracket at depth d is a brace */
    int32_t depth;
    uint8_t state;
} gt__json_reader;

void gt__json_reader_init(gt__json_reader *reader, const char *text, size_t length);
/* The next token; false after a problem, which `problem` tells and `at` shows. */
bool gt__json_next(gt__json_reader *reader, gt__json_token *token);
/* Writes a key or string of the reader without its escapes; `out` has room for token->length bytes and may be where the token lies. Returns how many were
 * written. */
size_t gt__json_decode(const char *text, const gt__json_token *token, char *out);
/* Whether a key or string means exactly `word`, which is ASCII and short. */
bool gt__json_is(const char *text, const gt__json_token *token, const char *word);
/* A NUMBER that is a whole one from 0 to 2^63 - 1, written in plain digits. */
bool gt__json_whole(const char *text, const gt__json_token *token, uint64_t *value);

#endif
