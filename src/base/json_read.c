#include "base/json_read.h"

#include "base/json_write.h" /* gt__utf8_character */

/* What may come next. */
enum { VALUE, VALUE_OR_END, KEY, KEY_OR_END, COMMA_OR_END, NOTHING };

void gt__json_reader_init(gt__json_reader *reader, const char *text, size_t length) {
    *reader = (gt__json_reader){.text = text, .length = length, .state = VALUE};
}

static bool fail(gt__json_reader *r, const char *problem) {
    r->problem = problem;
    return false;
}

static void skip_space(gt__json_reader *r) {
    while (r->at < r->length && (r->text[r->at] == ' ' || r->text[r->at] == '\t' || r->text[r->at] == '\n' || r->text[r->at] == '\r'))
        r->at++;
}

/* The four digits of \uXXXX, or -1. Stops at the NUL after the text. */
static int32_t four_digits(const char *s) {
    int32_t value = 0;
    for (int i = 0; i < 4; ++i) {
        char c = s[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* The character of \uXXXX, or of a pair of them, whose first digit is at s[0]; *used: bytes from there. -1: there is none. */
static int32_t escaped_character(const char *s, size_t *used) {
    int32_t high = four_digits(s);
    *used = 4;
    if (high < 0xd800 || high > 0xdfff) return high;
    if (high > 0xdbff || s[4] != '\\' || s[5] != 'u') return -1;
    int32_t low = four_digits(s + 6);
    if (low < 0xdc00 || low > 0xdfff) return -1;
    *used = 10;
    return 0x10000 + (high - 0xd800) * 0x400 + (low - 0xdc00);
}

/* From the opening quote to behind the closing one. */
static bool read_string(gt__json_reader *r, gt__json_token *token) {
    static const char escapes[] = "\"\\/bfnrt";
    token->at = ++r->at;
    while (r->at < r->length) {
        const char *s = r->text + r->at;
        if (*s == '"') {
            token->length = r->at++ - token->at;
            return true;
        }
        if ((unsigned char)*s < 0x20) return fail(r, "a control character in a string");
        size_t used = 0;
        if (*s != '\\') {
            used = gt__utf8_character(s);
            if (used == 0) return fail(r, "a string that is not UTF-8");
        } else if (s[1] == 'u') {
            if (escaped_character(s + 2, &used) < 0) return fail(r, "an escape that is no character");
            used += 2;
        } else {
            if (s[1] == '\0' || strchr(escapes, s[1]) == NULL) return fail(r, "an unknown escape");
            used = 2;
        }
        r->at += used;
    }
    return fail(r, "a string that does not end");
}

static bool digits(gt__json_reader *r) {
    size_t before = r->at;
    while (r->at < r->length && r->text[r->at] >= '0' && r->text[r->at] <= '9') r->at++;
    return r->at > before;
}

static bool read_number(gt__json_reader *r, gt__json_token *token) {
    token->at = r->at;
    if (r->text[r->at] == '-') r->at++;
    size_t first = r->at;
    if (!digits(r)) return fail(r, "a number without digits");
    if (r->text[first] == '0' && r->at - first > 1) return fail(r, "a number that begins with 0");
    if (r->text[r->at] == '.') {
        r->at++;
        if (!digits(r)) return fail(r, "a number without digits after the point");
    }
    if (r->text[r->at] == 'e' || r->text[r->at] == 'E') {
        r->at++;
        if (r->text[r->at] == '+' || r->text[r->at] == '-') r->at++;
        if (!digits(r)) return fail(r, "a number without an exponent after e");
    }
    token->length = r->at - token->at;
    return true;
}

static bool read_word(gt__json_reader *r, gt__json_token *token) {
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < GT__COUNT(words); ++i) {
        size_t length = strlen(words[i]);
        if (r->length - r->at < length || memcmp(r->text + r->at, words[i], length) != 0) continue;
        *token = (gt__json_token){.kind = GT__JSON_WORD, .at = r->at, .length = length};
        r->at += length;
        return true;
    }
    return fail(r, "something that is no value");
}

static bool open_bracket(gt__json_reader *r, gt__json_token *token, bool object) {
    if (r->depth == GT__JSON_DEPTH) return fail(r, "brackets nested too deep");
    r->objects = (r->objects & ~(1u << r->depth)) | (uint32_t)object << r->depth;
    r->depth++;
    *token = (gt__json_token){.kind = object ? GT__JSON_OBJECT : GT__JSON_ARRAY, .at = r->at++, .length = 1};
    r->state = object ? KEY_OR_END : VALUE_OR_END;
    return true;
}

static bool close_bracket(gt__json_reader *r, gt__json_token *token, bool object) {
    r->depth--;
    *token = (gt__json_token){.kind = object ? GT__JSON_OBJECT_END : GT__JSON_ARRAY_END, .at = r->at++, .length = 1};
    r->state = r->depth > 0 ? COMMA_OR_END : NOTHING;
    return true;
}

static bool read_value(gt__json_reader *r, gt__json_token *token) {
    char c = r->text[r->at];
    if (c == '{' || c == '[') return open_bracket(r, token, c == '{');
    bool ok;
    if (c == '"') {
        token->kind = GT__JSON_STRING;
        ok = read_string(r, token);
    } else if (c == '-' || (c >= '0' && c <= '9')) {
        token->kind = GT__JSON_NUMBER;
        ok = read_number(r, token);
    } else {
        ok = read_word(r, token);
    }
    r->state = r->depth > 0 ? COMMA_OR_END : NOTHING;
    return ok;
}

static bool read_key(gt__json_reader *r, gt__json_token *token) {
    if (r->text[r->at] != '"') return fail(r, "something else than a key in quotes");
    token->kind = GT__JSON_KEY;
    if (!read_string(r, token)) return false;
    skip_space(r);
    if (r->text[r->at] != ':') return fail(r, "a key without a colon");
    r->at++;
    r->state = VALUE;
    return true;
}

bool gt__json_next(gt__json_reader *r, gt__json_token *token) {
    if (r->problem) return false;
    skip_space(r);
    if (r->at == r->length) {
        if (r->state != NOTHING) return fail(r, "the end before all brackets are closed");
        *token = (gt__json_token){.kind = GT__JSON_END, .at = r->at};
        return true;
    }
    if (r->state == NOTHING) return fail(r, "something after the end");
    bool object = r->depth > 0 && (r->objects >> (r->depth - 1) & 1) != 0;
    char c = r->text[r->at];
    if (r->state != VALUE && r->state != KEY && c == (object ? '}' : ']')) return close_bracket(r, token, object);
    if (r->state == COMMA_OR_END) {
        if (c != ',') return fail(r, "a value without a comma or closing bracket after it");
        r->at++;
        skip_space(r);
        r->state = object ? KEY : VALUE;
    }
    return r->state == KEY || r->state == KEY_OR_END ? read_key(r, token) : read_value(r, token);
}

static size_t encode(int32_t character, char *out) {
    if (character < 0x80) {
        out[0] = (char)character;
        return 1;
    }
    size_t more = character < 0x800 ? 1 : character < 0x10000 ? 2 : 3;
    static const int32_t leads[] = {0, 0xc0, 0xe0, 0xf0};
    out[0] = (char)(leads[more] | character >> (6 * more));
    for (size_t i = 1; i <= more; ++i) out[i] = (char)(0x80 | (character >> (6 * (more - i)) & 0x3f));
    return more + 1;
}

size_t gt__json_decode(const char *text, const gt__json_token *token, char *out) {
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    const char *s = text + token->at, *end = s + token->length;
    size_t n = 0;
    while (s < end) {
        if (*s != '\\') {
            out[n++] = *s++;
        } else if (s[1] == 'u') { /* at most as long as its escape */
            size_t used;
            int32_t character = escaped_character(s + 2, &used);
            s += 2 + used;
            n += encode(character, out + n);
        } else {
            const char *special = strchr(from, s[1]);
            out[n++] = special ? to[special - from] : s[1];
            s += 2;
        }
    }
    return n;
}

bool gt__json_is(const char *text, const gt__json_token *token, const char *word) {
    char decoded[128];
    size_t length = strlen(word);
    if (token->length > sizeof decoded || token->length < length) return false;
    return gt__json_decode(text, token, decoded) == length && memcmp(decoded, word, length) == 0;
}

bool gt__json_whole(const char *text, const gt__json_token *token, uint64_t *value) {
    uint64_t result = 0;
    for (size_t i = 0; i < token->length; ++i) {
        char c = text[token->at + i];
        if (c < '0' || c > '9') return false;
        uint64_t digit = (uint64_t)(c - '0');
        if (result > ((uint64_t)INT64_MAX - digit) / 10) return false;
        result = result * 10 + digit;
    }
    *value = result;
    return token->kind == GT__JSON_NUMBER && token->length > 0;
}
