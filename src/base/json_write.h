/* Writes JSON into a growing string. Numbers do not depend on the locale, text is valid UTF-8 whatever came in, and '<' is escaped, so that the result
 * may stand inside a <script> of an HTML page.
 *
 *     gt__json json = {0};
 *     gt__json_begin(&json, NULL, '{');
 *     gt__json_unsigned(&json, "bytes", 12);
 *     gt__json_end(&json, '}');
 *     if (json.status == GT_OK) use(json.text.data, json.text.length);
 *     gt__json_free(&json);
 *
 * A key of NULL is for elements of arrays and for the whole. The first failure is kept in `status`, and later calls do nothing. */
#ifndef GT_BASE_JSON_WRITE_H
#define GT_BASE_JSON_WRITE_H

#include "base/host.h"

typedef struct gt__json {
    gt__text text;
    gt_status status;
    bool comma;   /* a value stands before, in the same bracket */
    bool newline; /* the next value begins a line */
} gt__json;

void gt__json_begin(gt__json *json, const char *key, char bracket);      /* '{' or '[' */
void gt__json_end(gt__json *json, char bracket);                         /* '}' or ']' */
void gt__json_string(gt__json *json, const char *key, const char *text); /* NULL is null */
void gt__json_integer(gt__json *json, const char *key, int64_t value);
void gt__json_unsigned(gt__json *json, const char *key, uint64_t value);
void gt__json_number(gt__json *json, const char *key,
                     double value); /* the shortest text that reads back as `value`; null if it is not finite */
void gt__json_bool(gt__json *json, const char *key, bool value);
void gt__json_newline(gt__json *json); /* the next value begins a line, for readers */
void gt__json_free(gt__json *json);

/* Bytes of the UTF-8 character at `text`, 1 to 4, or 0 if there is none: an invalid, overlong, surrogate or cut sequence. `text` is NUL-terminated. */
size_t gt__utf8_character(const char *text);

#endif
