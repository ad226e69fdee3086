/* Writes Protocol Buffers' wire format into a growing buffer: what ONNX files are made of.
 *
 *     gt__protobuf p = {0};
 *     gt__protobuf_begin(&p, 8);           // message field 8
 *     gt__protobuf_int(&p, 2, 17);
 *     gt__protobuf_end(&p);
 *     if (p.status == GT_OK) use(p.bytes.data, p.bytes.length);
 *     gt__protobuf_free(&p);
 *
 * The first failure is kept in `status`, and later calls do nothing. */
#ifndef GT_IO_PROTOBUF_WRITE_H
#define GT_IO_PROTOBUF_WRITE_H

#include "base/host.h"

#define GT__PROTOBUF_DEPTH 8 /* of messages in messages */

typedef struct gt__protobuf {
    gt__text bytes;
    gt_status status;
    int32_t depth;
    size_t open[GT__PROTOBUF_DEPTH]; /* where the contents of each open message begin */
} gt__protobuf;

void gt__protobuf_int(gt__protobuf *p, uint32_t field, int64_t value); /* int32, int64, bool and enum fields */
void gt__protobuf_float(gt__protobuf *p, uint32_t field, float value);
void gt__protobuf_string(gt__protobuf *p, uint32_t field, const char *text); /* valid UTF-8 */
/* Room for a bytes field of `size` bytes, which the caller fills before the next call. NULL on failure. */
void *gt__protobuf_space(gt__protobuf *p, uint32_t field, size_t size);
/* What is written in between is the field's message. */
void gt__protobuf_begin(gt__protobuf *p, uint32_t field);
void gt__protobuf_end(gt__protobuf *p);
/* The fields that `part` holds, as fields of the message that is open here. */
void gt__protobuf_append(gt__protobuf *p, const gt__protobuf *part);
void gt__protobuf_free(gt__protobuf *p);

#endif
