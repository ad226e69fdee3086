#include "base/json_write.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void raw(gt__json *json, const char *bytes, size_t length) {
    if (json->status == GT_OK) json->status = gt__text_append(&json->text, bytes, length);
}

size_t gt__utf8_character(const char *text) {
    const unsigned char *s = (const unsigned char *)text;
    static const struct {
        unsigned char mask, lead;
        uint32_t least;
    } forms[] = {{0x80, 0x00, 0}, {0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};
    for (size_t form = 0; form < GT__COUNT(forms); ++form) {
        if ((s[0] & forms[form].mask) != forms[form].lead) continue;
        uint32_t code = s[0] & (unsigned char)~forms[form].mask;
        for (size_t i = 1; i <= form; ++i) {
            if ((s[i] & 0xc0) != 0x80) return 0; /* the terminating NUL too */
            code = code << 6 | (s[i] & 0x3f);
        }
        bool valid = code >= forms[form].least && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
        return valid ? form + 1 : 0;
    }
    return 0;
}

/* Escapes beyond what JSON asks for: '<' ends no script, U+2028 and U+2029 end no line of JavaScript. */
static void quoted(gt__json *json, const char *text) {
    raw(json, "\"", 1);
    const char *plain = text; /* what need not be escaped and is not written yet */
    const char *s = text;
    while (*s) {
        size_t length = gt__utf8_character(s);
        bool separator = length == 3 && memcmp(s, "\xe2\x80", 2) == 0 && ((unsigned char)s[2] | 1) == 0xa9;
        if (length > 0 && !separator && (unsigned char)*s >= 0x20 && *s != '"' && *s != '\\' && *s != '<' && *s != 0x7f) {
            s += length;
            continue;
        }
        raw(json, plain, (size_t)(s - plain));
        char escape[8];
        unsigned code = length == 0 ? 0xfffd : separator ? 0x2000u + (unsigned char)s[2] - 0x80 : (unsigned char)*s;
        int n = snprintf(escape, sizeof escape, *s == '"' || *s == '\\' ? "\\%c" : "\\u%04x", code);
        raw(json, escape, (size_t)n);
        s += length ? length : 1;
        plain = s;
    }
    raw(json, plain, (size_t)(s - plain));
    raw(json, "\"", 1);
}

static void value_begins(gt__json *json, const char *key) {
    if (json->comma) raw(json, ",", 1);
    if (json->newline) raw(json, "\n", 1);
    json->comma = true;
    json->newline = false;
    if (key == NULL) return;
    quoted(json, key);
    raw(json, ":", 1);
}

void gt__json_begin(gt__json *json, const char *key, char bracket) {
    value_begins(json, key);
    raw(json, &bracket, 1);
    json->comma = false;
}

void gt__json_end(gt__json *json, char bracket) {
    raw(json, &bracket, 1);
    json->comma = true;
}

void gt__json_string(gt__json *json, const char *key, const char *text) {
    value_begins(json, key);
    if (text)
        quoted(json, text);
    else
        raw(json, "null", 4);
}

void gt__json_unsigned(gt__json *json, const char *key, uint64_t value) {
    char digits[24];
    char *first = digits + sizeof digits;
    do {
        *--first = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    value_begins(json, key);
    raw(json, first, (size_t)(digits + sizeof digits - first));
}

void gt__json_integer(gt__json *json, const char *key, int64_t value) {
    if (value >= 0) {
        gt__json_unsigned(json, key, (uint64_t)value);
        return;
    }
    value_begins(json, key);
    raw(json, "-", 1);
    json->comma = false; /* the digits go on with this value */
    gt__json_unsigned(json, NULL, 0 - (uint64_t)value);
}

void gt__json_number(gt__json *json, const char *key, double value) {
    value_begins(json, key);
    if (!isfinite(value)) {
        raw(json, "null", 4);
        return;
    }
    char text[48], plain[48];
    for (int digits = 15; digits <= 17; ++digits) {
        (void)snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    size_t length = 0;
    for (const char *s = text; *s; ++s) { /* the locale's decimal point, which may be several bytes, becomes one '.' */
        bool number = (*s >= '0' && *s <= '9') || *s == '-' || *s == '+' || *s == 'e';
        if (number)
            plain[length++] = *s;
        else if (length > 0 && plain[length - 1] != '.')
            plain[length++] = '.';
    }
    raw(json, plain, length);
}

void gt__json_bool(gt__json *json, const char *key, bool value) {
    value_begins(json, key);
    raw(json, value ? "true" : "false", value ? 4 : 5);
}

void gt__json_newline(gt__json *json) { json->newline = true; }

void gt__json_free(gt__json *json) {
    gt__text_free(&json->text);
    *json = (gt__json){0};
}
