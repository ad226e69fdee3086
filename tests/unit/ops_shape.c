#include "unit/ops_util.h"

TEST_DEVICES(unit, cast_converts_between_all_dtypes) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    for (gt_dtype from = 0; from < GT_DTYPE_COUNT; from++)
        for (gt_dtype to = 0; to < GT_DTYPE_COUNT; to++) {
            gt_tensor *x = MAKE(ctx, from, SHAPE(4), 0, 1, 7, 120), *y = CHECK_TENSOR(gt_cast(x, to));
            CHECK_EQ_INT(gt_tensor_dtype(y), to);
            CHECK_VALUES(y, 0, 1, 7, 120);
        }
    CHECK_REFUSED(gt_cast(F32(ctx, SHAPE(1), 1), 7), GT_BAD_DTYPE, "7 is not a dtype");
    CHECK_REFUSED(gt_cast(F32(ctx, SHAPE(1), 1), -1), GT_BAD_DTYPE, "is not a dtype");
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, cast_to_integers_truncates_and_saturates) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    const gt_dtype from[] = {GT_DTYPE_F32, GT_DTYPE_F64};
    for (int i = 0; i < 2; i++) {
        gt_tensor *x =
            gt_tensor_from_data(ctx, GT_DTYPE_F64, SHAPE(8), (const double[]){1.9, -1.9, 300, -5, 1e30, -1e30, NAN, INFINITY}, 64);
        x = CHECK_TENSOR(gt_cast(x, from[i]));
        CHECK_VALUES(gt_cast(x, GT_DTYPE_U8), 1, 0, 255, 0, 255, 0, 0, 255);
        CHECK_VALUES(gt_cast(x, GT_DTYPE_I32), 1, -1, 300, -5, 2147483647, -2147483648.0, 0, 2147483647);
        int64_t wide[8];
        CHECK_OK(gt_tensor_read(gt_cast(x, GT_DTYPE_I64), wide, sizeof wide));
        CHECK(wide[0] == 1 && wide[1] == -1 && wide[2] == 300 && wide[4] == INT64_MAX && wide[5] == INT64_MIN && wide[6] == 0 &&
              wide[7] == INT64_MAX);
    }
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, cast_to_half_rounds_to_nearest_even) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    /* 1 + 2^-11 is halfway between two f16: the even one; 65520 is the first that rounds to infinity */
    CHECK_VALUES(gt_cast(F32(ctx, SHAPE(6), 1.00048828125, 1.0014648438, 65519, 65520, 5.9604645e-8, 1e-9), GT_DTYPE_F16), 1, 1.001953125,
                 65504, INFINITY, 5.9604644775390625e-8, 0);
    CHECK_VALUES(gt_cast(F32(ctx, SHAPE(3), 1.00390625, 1.01171875, NAN), GT_DTYPE_BF16), 1, 1.015625, NAN);
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, cast_gradient_is_cast_back) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = F32(ctx, SHAPE(2), 1.5, 2);
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    gt_tensor *h = gt_cast(x, GT_DTYPE_F16);
    CHECK_OK(gt_backward(gt_sum(gt_mul(h, MAKE(ctx, GT_DTYPE_F16, SHAPE(2), 3, 0.1)), NULL, 0, 0)));
    CHECK_EQ_INT(gt_tensor_dtype(gt_tensor_grad(x)), GT_DTYPE_F32);
    CHECK_VALUES(gt_tensor_grad(x), 3, 0.0999755859375);
    CHECK_EQ_INT(gt_tensor_requires_grad(gt_cast(x, GT_DTYPE_I32)), 0);
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, views_share_memory) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = F32(ctx, SHAPE(2, 3), 1, 2, 3, 4, 5, 6);
    gt_tensor *flat = gt_reshape(x, SHAPE(-1)), *swapped = gt_transpose(x, 0, 1), *column = gt_slice(x, 1, 1, 2, 1),
              *wide = gt_expand(column, SHAPE(2, 2, 4));
    CHECK(gt_tensor_data(flat) == gt_tensor_data(x));
    CHECK(gt_tensor_data(swapped) == gt_tensor_data(x));
    CHECK_OK(gt_tensor_fill(column, 9));
    CHECK_VALUES(flat, 1, 9, 3, 4, 9, 6);
    CHECK_VALUES(swapped, 1, 4, 9, 9, 3, 6);
    CHECK_VALUES(gt_slice(gt_reshape(wide, SHAPE(16)), 0, 0, 3, 1), 9, 9, 9);
    CHECK_EQ_INT(gt_tensor_strides(wide)[0], 0);
    CHECK_EQ_INT(gt_tensor_strides(wide)[2], 0);
    CHECK(gt_tensor_data(gt_reshape(swapped, SHAPE(6))) != gt_tensor_data(x)); /* needs a copy */
    CHECK_VALUES(gt_reshape(swapped, SHAPE(6)), 1, 4, 9, 9, 3, 6);
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, reshape_views_wherever_strides_allow) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = gt_tensor_arange(ctx, GT_DTYPE_F32, 0, 1, 24);
    gt_tensor *cube = gt_reshape(x, SHAPE(2, 3, 4)), *perm = gt_permute(cube, (const int32_t[]){1, 0, 2}); /* [3,2,4] */
    gt_tensor *split = CHECK_TENSOR(gt_reshape(perm, SHAPE(3, 2, 2, 1, 2)));
    CHECK(gt_tensor_data(split) == gt_tensor_data(x));
    CHECK_EQ_INT(gt_tensor_strides(split)[0], 4);
    CHECK_EQ_INT(gt_tensor_strides(split)[1], 12);
    CHECK_EQ_INT(gt_tensor_strides(split)[2], 2);
    gt_tensor *joined = CHECK_TENSOR(gt_reshape(gt_slice(cube, 0, 0, 2, 1), SHAPE(6, 4)));
    CHECK(gt_tensor_data(joined) == gt_tensor_data(x));
    CHECK(gt_tensor_data(gt_reshape(perm, SHAPE(6, 4))) != gt_tensor_data(x));
    CHECK_VALUES(gt_reshape(gt_slice(cube, 2, 0, 4, 3), SHAPE(2, 6)), 0, 3, 4, 7, 8, 11, 12, 15, 16, 19, 20, 23);
    CHECK(gt_tensor_data(gt_reshape(gt_slice(cube, 2, 0, 4, 3), SHAPE(2, 6))) != gt_tensor_data(x));
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, reshape_refuses_what_does_not_fit) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(2, 3)), *empty = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(0, 3));
    CHECK_REFUSED(gt_reshape(x, SHAPE(4, 2)), GT_BAD_SHAPE, "[2,3] has 6 elements, [4,2] has 8");
    CHECK_REFUSED(gt_reshape(x, SHAPE(4, -1)), GT_BAD_SHAPE, "the -1 in [4,-1]");
    CHECK_REFUSED(gt_reshape(x, SHAPE(-1, -1)), GT_BAD_SHAPE, "more than one -1");
    CHECK_REFUSED(gt_reshape(x, SHAPE(-2, -3)), GT_BAD_SHAPE, "not a shape");
    CHECK_REFUSED(gt_reshape(x, SHAPE(1ll << 62, 4)), GT_BAD_SHAPE, "not a shape");
    CHECK_REFUSED(gt_reshape(empty, SHAPE(0, -1)), GT_BAD_SHAPE, "-1");
    CHECK_REFUSED(gt_reshape(x, 9, gt_tensor_shape(x)), GT_BAD_SHAPE, "9 dimensions");
    CHECK_REFUSED(gt_reshape(x, 2, NULL), GT_BAD_ARGUMENT, "NULL");
    CHECK_SHAPE(gt_reshape(empty, SHAPE(5, 0, 2)), 5, 0, 2);
    CHECK_REFUSED(gt_flatten(x, 2), GT_BAD_ARGUMENT, "axis 2");
    CHECK_SHAPE(gt_flatten(gt_tensor_zeros(ctx, GT_DTYPE_F32, 0, NULL), 0), 1);
    CHECK_SHAPE(gt_flatten(gt_tensor_zeros(ctx, GT_DTYPE_U8, SHAPE(2, 3, 4)), -2), 2, 12);
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, permute_transpose_expand_refuse_bad_axes) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(2, 3));
    CHECK_REFUSED(gt_permute(x, (const int32_t[]){0, 0}), GT_BAD_ARGUMENT, "once");
    CHECK_REFUSED(gt_permute(x, (const int32_t[]){0, 2}), GT_BAD_ARGUMENT, "once");
    CHECK_REFUSED(gt_permute(x, NULL), GT_BAD_ARGUMENT, "NULL");
    CHECK_REFUSED(gt_transpose(x, 0, 2), GT_BAD_ARGUMENT, "[2,3] has 2 axes");
    CHECK_REFUSED(gt_expand(x, SHAPE(4, 3)), GT_BAD_SHAPE, "[2,3] does not expand to [4,3]");
    CHECK_REFUSED(gt_expand(x, SHAPE(3)), GT_BAD_SHAPE, "does not expand");
    CHECK_REFUSED(gt_expand(x, SHAPE(-1, 2, 3)), GT_BAD_SHAPE, "-1");
    CHECK_SHAPE(gt_permute(x, (const int32_t[]){-1, 0}), 3, 2);
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, slice_follows_python) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = gt_tensor_arange(ctx, GT_DTYPE_I64, 0, 1, 6);
    CHECK_VALUES(gt_slice(x, 0, 1, 4, 1), 1, 2, 3);
    CHECK_VALUES(gt_slice(x, 0, 0, 6, 4), 0, 4);
    CHECK_VALUES(gt_slice(x, -1, -2, INT64_MAX, 1), 4, 5);
    CHECK_VALUES(gt_slice(x, 0, INT64_MIN, -4, 1), 0, 1);
    CHECK_VALUES(gt_slice(x, 0, 5, 6, INT64_MAX), 5);
    CHECK_SHAPE(gt_slice(x, 0, 4, 2, 1), 0);
    CHECK_SHAPE(gt_slice(x, 0, 100, 200, 1), 0);
    CHECK_REFUSED(gt_slice(x, 1, 0, 1, 1), GT_BAD_ARGUMENT, "axis 1");
    CHECK_REFUSED(gt_slice(x, 0, 0, 1, 0), GT_BAD_ARGUMENT, "step is 0");
    CHECK_REFUSED(gt_slice(x, 0, 0, 1, -1), GT_BAD_ARGUMENT, "step is -1");
    CHECK_REFUSED(gt_slice(gt_tensor_zeros(ctx, GT_DTYPE_F32, 0, NULL), 0, 0, 1, 1), GT_BAD_ARGUMENT, "0 axes");
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, concat_joins_any_dtype_and_many_tensors) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    for (gt_dtype d = 0; d < GT_DTYPE_COUNT; d++) {
        gt_tensor *a = MAKE(ctx, d, SHAPE(2, 1), 1, 2), *b = MAKE(ctx, d, SHAPE(2, 2), 3, 4, 5, 6),
                  *none = gt_tensor_zeros(ctx, d, SHAPE(2, 0));
        gt_tensor *y = gt_concat((gt_tensor *const[]){a, none, b}, 3, -1);
        CHECK_SHAPE(y, 2, 3);
        CHECK_VALUES(y, 1, 3, 4, 2, 5, 6);
    }
    gt_tensor *many[40], *base = gt_tensor_full(ctx, GT_DTYPE_F32, SHAPE(2), 1);
    CHECK_OK(gt_tensor_set_requires_grad(base, 1));
    for (int i = 0; i < 40; i++) many[i] = CHECK_TENSOR(gt_mul_scalar(base, i));
    gt_tensor *y = CHECK_TENSOR(gt_concat(many, 40, 0));
    CHECK_SHAPE(y, 80);
    CHECK_OK(gt_backward(gt_sum(y, NULL, 0, 0)));
    CHECK_VALUES(gt_tensor_grad(base), 780, 780);
    gt_tensor *a = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(2, 3));
    CHECK_REFUSED(gt_concat((gt_tensor *const[]){a, gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(3, 3))}, 2, 1), GT_BAD_SHAPE,
                  "tensor 1 is [3,3], tensor 0 is [2,3]");
    CHECK_REFUSED(gt_concat((gt_tensor *const[]){a, gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(2))}, 2, 1), GT_BAD_SHAPE, "tensor 1 is [2]");
    CHECK_REFUSED(gt_concat((gt_tensor *const[]){a, gt_tensor_zeros(ctx, GT_DTYPE_F16, SHAPE(2, 3))}, 2, 1), GT_BAD_DTYPE,
                  "tensor 1 is f16");
    CHECK_REFUSED(gt_concat(&a, 1, 2), GT_BAD_ARGUMENT, "axis 2");
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, pad_fills_around) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = F32(ctx, SHAPE(2, 2), 1, 2, 3, 4);
    gt_tensor *y = gt_pad(x, (const int64_t[]){1, 0}, (const int64_t[]){0, 1}, -5);
    CHECK_SHAPE(y, 3, 3);
    CHECK_VALUES(y, -5, -5, -5, 1, 2, -5, 3, 4, -5);
    CHECK_REFUSED(gt_pad(x, (const int64_t[]){-1, 0}, (const int64_t[]){0, 1}, 0), GT_BAD_ARGUMENT, "axis 0: -1 before");
    CHECK_REFUSED(gt_pad(x, (const int64_t[]){INT64_MAX, 0}, (const int64_t[]){0, 1}, 0), GT_BAD_SHAPE, "axis 0");
    CHECK_REFUSED(gt_pad(x, (const int64_t[]){1ll << 61, 0}, (const int64_t[]){0, 1}, 0), GT_BAD_SHAPE, "pad");
    CHECK_REFUSED(gt_pad(x, NULL, NULL, 0), GT_BAD_ARGUMENT, "NULL");
    CHECK_REFUSED(gt_pad(gt_tensor_zeros(ctx, GT_DTYPE_I32, SHAPE(2)), (const int64_t[]){1}, (const int64_t[]){1}, 0), GT_BAD_DTYPE, "i32");
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, channels_last_keeps_the_logical_order) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = F32(ctx, SHAPE(1, 2, 2, 2), 1, 2, 3, 4, 5, 6, 7, 8), *y = gt_channels_last(x);
    CHECK_EQ_INT(gt_tensor_strides(y)[1], 1);
    CHECK_VALUES(y, 1, 2, 3, 4, 5, 6, 7, 8);
    CHECK(gt_channels_last(y) == y);
    CHECK(gt_contiguous(x) == x);
    CHECK_EQ_INT(gt_tensor_is_contiguous(gt_contiguous(y)), 1);
    CHECK_REFUSED(gt_channels_last(gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(2, 3))), GT_BAD_SHAPE, "[2,3]");
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, reductions_of_every_dtype) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    const int32_t first = 0, last = -1;
    EACH_FLOAT(d) {
        gt_tensor *x = MAKE(ctx, *d, SHAPE(2, 3), 1, 2, 3, 4, -5, 9);
        CHECK_VALUES(gt_sum(x, NULL, 0, 0), 14);
        CHECK_VALUES(gt_sum(x, &first, 1, 0), 5, -3, 12);
        CHECK_VALUES_TOL(gt_mean(x, &last, 1, 1), tolerance_of(*d), 2, 8.0 / 3);
        CHECK_SHAPE(gt_mean(x, &last, 1, 1), 2, 1);
        CHECK_VALUES(gt_max(x, &first, 1, 0), 4, 2, 9);
        CHECK_VALUES(gt_argmax(x, 1, 0), 2, 2);
        CHECK_EQ_INT(gt_tensor_dtype(gt_argmax(x, 1, 0)), GT_DTYPE_I64);
    }
    const gt_dtype ints[] = {GT_DTYPE_I32, GT_DTYPE_I64};
    for (int i = 0; i < 2; i++) {
        gt_tensor *x = MAKE(ctx, ints[i], SHAPE(2, 2), 1, 2, 3, 4);
        CHECK_VALUES(gt_sum(x, &first, 1, 0), 4, 6);
        CHECK_EQ_INT(gt_tensor_dtype(gt_sum(x, NULL, 0, 0)), ints[i]);
        CHECK_REFUSED(gt_mean(x, NULL, 0, 0), GT_BAD_DTYPE, "mean: the input is i");
    }
    CHECK_REFUSED(gt_sum(MAKE(ctx, GT_DTYPE_U8, SHAPE(1), 1), NULL, 0, 0), GT_BAD_DTYPE, "u8");
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, reductions_over_nothing) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(2, 0));
    const int32_t last = 1, first = 0;
    CHECK_VALUES(gt_sum(x, &last, 1, 0), 0, 0);
    CHECK_VALUES(gt_mean(x, &last, 1, 0), NAN, NAN);
    CHECK_VALUES(gt_mean(x, NULL, 0, 0), NAN);
    CHECK_SHAPE(gt_sum(x, &first, 1, 0), 0);
    CHECK_REFUSED(gt_max(x, &last, 1, 0), GT_BAD_SHAPE, "no maximum of nothing");
    CHECK_REFUSED(gt_argmax(x, 1, 0), GT_BAD_SHAPE, "no maximum of nothing");
    CHECK_SHAPE(gt_max(x, &first, 1, 0), 0);
    CHECK_VALUES(gt_sum(gt_tensor_full(ctx, GT_DTYPE_F32, 0, NULL, 4), NULL, 0, 0), 4);
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, max_and_argmax_treat_nan_as_the_maximum) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = F32(ctx, SHAPE(3, 3), 1, NAN, 3, 4, 4, 2, -INFINITY, -INFINITY, -INFINITY);
    const int32_t last = 1;
    CHECK_VALUES(gt_max(x, &last, 1, 0), NAN, 4, -INFINITY);
    CHECK_VALUES(gt_argmax(x, 1, 0), 1, 0, 0);
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, max_gradient_is_shared_equally) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    EACH_FLOAT(d) {
        gt_tensor *x = MAKE(ctx, *d, SHAPE(2, 4), 1, 3, 3, 2, 5, 5, 5, 5);
        const int32_t last = 1;
        CHECK_OK(gt_tensor_set_requires_grad(x, 1));
        CHECK_OK(gt_backward(gt_sum(gt_max(x, &last, 1, 0), NULL, 0, 0)));
        CHECK_VALUES(gt_tensor_grad(x), 0, 0.5, 0.5, 0, 0.25, 0.25, 0.25, 0.25);
    }
    gt_scope_end(ctx);
}

/* More equal maxima than f16 can count. */
TEST_DEVICES(unit, max_gradient_counts_ties_in_f32) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = gt_tensor_full(ctx, GT_DTYPE_F16, SHAPE(80000), 2);
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    CHECK_OK(gt_backward(gt_max(x, NULL, 0, 0)));
    CHECK_VALUES_TOL(gt_mul_scalar(gt_slice(gt_tensor_grad(x), 0, 79999, 80000, 1), 80000), 0.01, 1);
    gt_scope_end(ctx);
}

TEST_DEVICES(unit, reductions_refuse_bad_axes) {
    gt_context *ctx = test_context(t);
    gt_scope_begin(ctx);
    gt_tensor *x = gt_tensor_zeros(ctx, GT_DTYPE_F32, SHAPE(2, 3));
    CHECK_REFUSED(gt_sum(x, (const int32_t[]){2}, 1, 0), GT_BAD_ARGUMENT, "axis 2 does not exist: the input is [2,3]");
    CHECK_REFUSED(gt_mean(x, (const int32_t[]){0, -2}, 2, 0), GT_BAD_ARGUMENT, "axis -2 is given twice");
    CHECK_REFUSED(gt_max(x, NULL, 1, 0), GT_BAD_ARGUMENT, "axes is NULL");
    CHECK_REFUSED(gt_max(x, NULL, -1, 0), GT_BAD_ARGUMENT, "number -1");
    CHECK_REFUSED(gt_argmax(x, 2, 0), GT_BAD_ARGUMENT, "axis 2");
    gt_scope_end(ctx);
}
