#include "io/protobuf_write.h"

enum { VARINT = 0, LENGTH_DELIMITED = 2, FIXED32 = 5 }; /* wire types */
#define VARINT_MOST 10

static size_t encode(uint64_t value, uint8_t *out) {
    size_t n = 0;
    for (; value >= 0x80; value >>= 7) out[n++] = (uint8_t)(value | 0x80);
    out[n++] = (uint8_t)value;
    return n;
}

static void append(gt__protobuf *p, const void *bytes, size_t count) {
    if (p->status == GT_OK && count > 0) p->status = gt__text_append(&p->bytes, bytes, count);
}

static void varint(gt__protobuf *p, uint64_t value) {
    uint8_t bytes[VARINT_MOST];
    append(p, bytes, encode(value, bytes));
}

static void key(gt__protobuf *p, uint32_t field, uint32_t wire_type) { varint(p, (uint64_t)field << 3 | wire_type); }

void gt__protobuf_int(gt__protobuf *p, uint32_t field, int64_t value) {
    key(p, field, VARINT);
    varint(p, (uint64_t)value);
}

void gt__protobuf_float(gt__protobuf *p, uint32_t field, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint8_t bytes[4] = {(uint8_t)bits, (uint8_t)(bits >> 8), (uint8_t)(bits >> 16), (uint8_t)(bits >> 24)};
    key(p, field, FIXED32);
    append(p, bytes, sizeof bytes);
}

void gt__protobuf_string(gt__protobuf *p, uint32_t field, const char *text) {
    size_t length = strlen(text);
    key(p, field, LENGTH_DELIMITED);
    varint(p, length);
    append(p, text, length);
}

/* `size` more bytes, not set. */
static char *grow(gt__protobuf *p, size_t size) {
    if (p->status == GT_OK) p->status = gt__text_reserve(&p->bytes, size);
    if (p->status != GT_OK) return NULL;
    char *at = p->bytes.data + p->bytes.length;
    p->bytes.length += size;
    return at;
}

void *gt__protobuf_space(gt__protobuf *p, uint32_t field, size_t size) {
    key(p, field, LENGTH_DELIMITED);
    varint(p, size);
    return grow(p, size);
}

void gt__protobuf_begin(gt__protobuf *p, uint32_t field) {
    key(p, field, LENGTH_DELIMITED);
    if (p->status == GT_OK && p->depth == GT__PROTOBUF_DEPTH) p->status = GT_RAISE(GT_INTERNAL, "protobuf: messages nest too deep");
    if (p->status == GT_OK) p->open[p->depth++] = p->bytes.length;
}

/* The length stands before the contents, so these move on by as many bytes as it takes. */
void gt__protobuf_end(gt__protobuf *p) {
    if (p->status == GT_OK && p->depth == 0) p->status = GT_RAISE(GT_INTERNAL, "protobuf: no message is open");
    if (p->status != GT_OK) return;
    size_t start = p->open[--p->depth], size = p->bytes.length - start;
    uint8_t length[VARINT_MOST];
    size_t n = encode(size, length);
    if (grow(p, n) == NULL) return;
    memmove(p->bytes.data + start + n, p->bytes.data + start, size);
    memcpy(p->bytes.data + start, length, n);
}

void gt__protobuf_append(gt__protobuf *p, const gt__protobuf *part) {
    if (p->status == GT_OK) p->status = part->status;
    append(p, part->bytes.data, part->bytes.length);
}

void gt__protobuf_free(gt__protobuf *p) {
    gt__text_free(&p->bytes);
    *p = (gt__protobuf){0};
}
