/* Max pooling between a relu and a flatten, on programs made by hand: what becomes one call, what is laid out row-major, and what must stay. */
#include "hand_made.h"

#include <gtrain/gtrain.h>

enum { IMAGES = 2, CHANNELS = 4, HIGH = 5, WIDE = 6, ROWS = HIGH / 2, COLUMNS = WIDE / 2 };
enum { LARGE = IMAGES * CHANNELS * HIGH * WIDE, SMALL = IMAGES * CHANNELS * ROWS * COLUMNS };

/* What else the program does. */
typedef enum hazard {
    NONE,
    RESULT_IS_READ,          /* the channels-last one, by somebody else */
    ROWS_ARE_WRITTEN,        /* before backward reads them */
    ROWS_ARE_USED_BEFORE,    /* between pooling and the copy */
    ROWS_ARE_WRITTEN_BEFORE, /* before pooling, and read after it */
    GRADIENT_IS_WRITTEN,     /* the row-major one, after its copy */
    COPIED_GRADIENT_IS_READ, /* by somebody else */
    INDEX_IS_WRITTEN,        /* between the two gradients */
    LARGE_IS_READ,           /* where pooling's gradient writes, between the two gradients */
    MASKED_IS_READ,          /* by somebody else */
    COPIED_TWICE,
    OVERLAPPING,  /* windows */
    FEW_CHANNELS, /* no pack of 16 bytes */
    NO_SUM        /* relu without a bias */
} hazard;

typedef struct results {
    float rows[SMALL], dx[LARGE], db[CHANNELS], more[2];
} results;

static int64_t channels_of(hazard h) { return h == FEW_CHANNELS ? CHANNELS - 1 : CHANNELS; }

static operand image(void *data, hazard h, gt_dtype dtype, int64_t high, int64_t wide, bool last) {
    operand o = operand_of(data, dtype, 4, (const int64_t[]){IMAGES, channels_of(h), high, wide});
    if (last) gt__meta_set_channels_last(&o.meta);
    return o;
}

static operand image_buffer(gt__program *p, hazard h, gt_dtype dtype, int64_t high, int64_t wide, bool last, bool input) {
    int64_t n = IMAGES * channels_of(h) * high * wide;
    operand o = buffer(p, n);
    p->buffers[p->n_buffers - 1].input = input;
    return image(o.data, h, dtype, high, wide, last);
}

static void zero(gt__program *p, const operand *o) {
    gt__instruction *i = gt__program_add(p, GT__DO_ZERO, 0);
    i->zero.data = o->data;
    i->zero.bytes = (size_t)o->meta.numel * gt_dtype_size(o->meta.dtype);
}

/* The sum of what stands there. */
static void show(gt__program *p, gt_context *ctx, const operand *from, float *to) {
    int64_t n = from->meta.numel;
    operand flat = operand_of(from->data, GT_DTYPE_F32, 1, &n), one = outside(to, 1);
    sum_of(p, ctx, &one, &flat);
}

static void set_window(gt__call *call, hazard h) {
    for (int a = 0; a < 2; ++a) {
        call->attr.pool.kernel[a] = h == OVERLAPPING ? 3 : 2;
        call->attr.pool.stride[a] = 2;
        call->attr.pool.padding[a] = h == OVERLAPPING && a == 1;
        call->attr.pool.shape[2 + a] = a ? WIDE : HIGH;
    }
    call->attr.pool.shape[0] = IMAGES;
    call->attr.pool.shape[1] = channels_of(h);
}

static void write_program(gt__program *p, gt_context *ctx, hazard h, results *r) {
    *p = (gt__program){0};
    operand x = image_buffer(p, h, GT_DTYPE_F32, HIGH, WIDE, true, true), dy = image_buffer(p, h, GT_DTYPE_F32, ROWS, COLUMNS, false, true);
    operand index = image_buffer(p, h, GT_DTYPE_U8, ROWS, COLUMNS, true, false),
            y = image_buffer(p, h, GT_DTYPE_F32, ROWS, COLUMNS, true, false),
            rows = image_buffer(p, h, GT_DTYPE_F32, ROWS, COLUMNS, false, false),
            last = image_buffer(p, h, GT_DTYPE_F32, ROWS, COLUMNS, true, false),
            masked = image_buffer(p, h, GT_DTYPE_F32, ROWS, COLUMNS, true, false),
            second = image_buffer(p, h, GT_DTYPE_F32, ROWS, COLUMNS, false, false);
    operand kept = image(r->rows, h, GT_DTYPE_F32, ROWS, COLUMNS, false), dx = image(r->dx, h, GT_DTYPE_F32, HIGH, WIDE, true),
            db = outside(r->db, channels_of(h));
    const operand *xs[] = {&x}, *pooled[] = {&y, &index}, *pair[] = {&last, &y}, *sums[] = {&masked, &db}, *back[] = {&masked, &index},
                  *large[] = {&dx};
    memset(r, 0, sizeof *r);
    if (h == ROWS_ARE_WRITTEN_BEFORE) zero(p, &rows);
    set_window(add_call(p, ctx, GT__OP_MAX_POOL2D, pooled, 2, xs, 1), h);
    if (h == ROWS_ARE_USED_BEFORE) zero(p, &rows);
    if (h == ROWS_ARE_WRITTEN_BEFORE || h == ROWS_ARE_USED_BEFORE) show(p, ctx, &rows, &r->more[0]);
    unary(p, ctx, GT__OP_COPY, &rows, &y);
    if (h == COPIED_TWICE) {
        unary(p, ctx, GT__OP_COPY, &second, &y);
        show(p, ctx, &second, &r->more[0]);
    }
    unary(p, ctx, GT__OP_NEG, &kept, &rows);
    if (h == ROWS_ARE_WRITTEN) zero(p, &rows);
    if (h == RESULT_IS_READ) show(p, ctx, &y, &r->more[0]);
    unary(p, ctx, GT__OP_COPY, &last, &dy);
    if (h == GRADIENT_IS_WRITTEN) zero(p, &dy);
    if (h == COPIED_GRADIENT_IS_READ) show(p, ctx, &last, &r->more[0]);
    if (h == NO_SUM)
        binary(p, ctx, GT__OP_RELU_BACKWARD, &masked, &last, &y);
    else
        add_call(p, ctx, GT__OP_BIAS_RELU_BACKWARD, sums, 2, pair, 2);
    if (h == INDEX_IS_WRITTEN) zero(p, &index);
    if (h == LARGE_IS_READ) show(p, ctx, &dx, &r->more[0]);
    if (h == MASKED_IS_READ) show(p, ctx, &masked, &r->more[0]);
    set_window(add_call(p, ctx, GT__OP_MAX_POOL2D_BACKWARD, large, 1, back, 2), h);
}

static void check_hazard(test_case *t, hazard h, int copies, int joined) {
    gt_context *ctx = test_context(t);
    float input[LARGE];
    for (int i = 0; i < LARGE; ++i) input[i] = (float)((i * 7 + i / 5) % 23 - 11) / 4;
    results before, after;
    gt__program p;
    write_program(&p, ctx, h, &before);
    CHECK_EQ_INT(count_op(&p, GT__OP_COPY), 2 + (h == COPIED_TWICE));
    run_by_hand(ctx, &p, input);
    gt__program_free(&p);
    write_program(&p, ctx, h, &after);
    CHECK_OK(gt__pass_pool(&p));
    CHECK_EQ_INT(count_op(&p, GT__OP_COPY), copies);
    CHECK_EQ_INT(count_op(&p, GT__OP_MAX_POOL2D_RELU_BACKWARD), joined);
    CHECK_EQ_INT(count_op(&p, GT__OP_MAX_POOL2D_BACKWARD), 1 - joined);
    run_by_hand(ctx, &p, input);
    gt__program_free(&p);
    CHECK(memcmp(&before, &after, sizeof before) == 0);
}

/* Hazard; copies and joined gradients that are left. */
#define HAZARD(name, h, copies, joined)                                                                                                    \
    TEST(unit, pooling_##name) { check_hazard(t, h, copies, joined); }

HAZARD(around_a_flatten_needs_no_copies, NONE, 0, 1)
HAZARD(around_a_flatten_without_bias_needs_no_copies, NO_SUM, 0, 1)
HAZARD(leaves_rows_that_are_read_before_the_copy, ROWS_ARE_WRITTEN_BEFORE, 2, 1)
HAZARD(leaves_rows_that_are_used_before_the_copy, ROWS_ARE_USED_BEFORE, 2, 1)
HAZARD(leaves_rows_that_are_written_before_backward, ROWS_ARE_WRITTEN, 2, 1)
HAZARD(leaves_a_result_that_others_read, RESULT_IS_READ, 2, 1)
HAZARD(leaves_a_result_that_is_copied_twice, COPIED_TWICE, 3, 1)
HAZARD(leaves_a_gradient_that_is_written, GRADIENT_IS_WRITTEN, 2, 1)
HAZARD(leaves_a_copied_gradient_that_others_read, COPIED_GRADIENT_IS_READ, 2, 1)
HAZARD(is_not_joined_where_the_index_is_written, INDEX_IS_WRITTEN, 2, 0)
HAZARD(is_not_joined_where_its_gradient_is_in_use, LARGE_IS_READ, 2, 0)
HAZARD(is_not_joined_where_others_read_the_masked_gradient, MASKED_IS_READ, 2, 0)
HAZARD(with_windows_that_overlap_is_not_joined, OVERLAPPING, 2, 0)
HAZARD(of_few_channels_is_not_joined, FEW_CHANNELS, 2, 0)
