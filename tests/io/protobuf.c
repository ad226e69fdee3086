/* The writer of Protocol Buffers, against bytes worked out by hand. */
#include "harness/test.h"
#include "io/protobuf_write.h"

#define BYTES(...) (const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__})

static void check_bytes(const gt__protobuf *p, const uint8_t *bytes, size_t size) {
    CHECK_OK(p->status);
    CHECK_EQ_INT(p->bytes.length, size);
    for (size_t i = 0; i < size; ++i) CHECK_EQ_INT((uint8_t)p->bytes.data[i], bytes[i]);
}

TEST(unit, protobuf_numbers_and_text) {
    gt__protobuf p = {0};
    gt__protobuf_int(&p, 1, 0);
    gt__protobuf_int(&p, 1, 150);
    gt__protobuf_int(&p, 16, -1); /* ten bytes, a key of two */
    gt__protobuf_float(&p, 2, 1.0f);
    gt__protobuf_string(&p, 3, "ab");
    gt__protobuf_string(&p, 3, "");
    check_bytes(&p, BYTES(0x08, 0, 0x08, 0x96, 0x01, 0x80, 0x01, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0x15, 0, 0,
                          0x80, 0x3f, 0x1a, 2, 'a', 'b', 0x1a, 0));
    gt__protobuf_free(&p);
}

TEST(unit, protobuf_messages_have_their_length_in_front) {
    gt__protobuf p = {0}, part = {0};
    gt__protobuf_begin(&p, 1);
    gt__protobuf_begin(&p, 2);
    gt__protobuf_end(&p);
    gt__protobuf_int(&p, 3, 5);
    gt__protobuf_end(&p);
    gt__protobuf_append(&p, &part);
    check_bytes(&p, BYTES(0x0a, 4, 0x12, 0, 0x18, 5));
    gt__protobuf_free(&p);

    gt__protobuf_begin(&part, 1); /* 300 bytes: the length takes two, so that what is inside moves */
    char *space = gt__protobuf_space(&part, 2, 297);
    CHECK(space != NULL);
    memset(space, 'x', 297);
    gt__protobuf_end(&part);
    gt__protobuf_append(&p, &part);
    CHECK_OK(p.status);
    CHECK_EQ_INT(p.bytes.length, 303);
    const uint8_t head[7] = {0x0a, 0xac, 0x02, 0x12, 0xa9, 0x02, 'x'};
    CHECK(memcmp(p.bytes.data, head, sizeof head) == 0);
    CHECK_EQ_INT(p.bytes.data[302], 'x');
    gt__protobuf_free(&part);
    gt__protobuf_free(&p);
}

TEST(unit, protobuf_keeps_the_first_failure) {
    gt__protobuf p = {0};
    gt__protobuf_end(&p);
    CHECK_STATUS(p.status, GT_INTERNAL);
    gt__protobuf_int(&p, 1, 1);
    gt__protobuf_begin(&p, 1);
    CHECK(gt__protobuf_space(&p, 1, 4) == NULL);
    CHECK_EQ_INT(p.bytes.length, 0);
    gt__protobuf_free(&p);
    for (int i = 0; i <= GT__PROTOBUF_DEPTH; ++i) gt__protobuf_begin(&p, 1);
    CHECK_STATUS(p.status, GT_INTERNAL);
    gt__protobuf_free(&p);
}
