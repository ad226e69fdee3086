#include "core/shape.h"

#include <stdio.h>

typedef struct dtype_entry {
    const char *name;
    size_t size;
} dtype_entry;

static const dtype_entry dtypes[GT_DTYPE_COUNT] = {
#define DTYPE_ENTRY(constant, name, value, bytes) [value] = {name, bytes},
    GT_DTYPE_LIST(DTYPE_ENTRY)
#undef DTYPE_ENTRY
};

static bool dtype_known(gt_dtype dtype) { return dtype >= 0 && dtype < GT_DTYPE_COUNT; }

size_t gt_dtype_size(gt_dtype dtype) { return dtype_known(dtype) ? dtypes[dtype].size : 0; }
const char *gt_dtype_name(gt_dtype dtype) { return dtype_known(dtype) ? dtypes[dtype].name : "?"; }

void gt__meta_set_row_major(gt__meta *meta) {
    int64_t stride = 1;
    for (int32_t i = meta->ndim - 1; i >= 0; --i) {
        meta->strides[i] = stride;
        stride *= GT__MAX(meta->shape[i], 1);
    }
}

void gt__meta_set_channels_last(gt__meta *meta) {
    if (meta->ndim != 4) {
        gt__meta_set_row_major(meta);
        return;
    }
    static const int order[4] = {1, 3, 2, 0};
    int64_t stride = 1;
    for (int i = 0; i < 4; ++i) {
        meta->strides[order[i]] = stride;
        stride *= GT__MAX(meta->shape[order[i]], 1);
    }
}

gt_status gt__meta_make(gt__meta *meta, gt_dtype dtype, int32_t ndim, const int64_t *shape, const char *who) {
    GT_REQUIRE(dtype_known(dtype), GT_BAD_DTYPE, "%s: %d is not a dtype", who, (int)dtype);
    GT_REQUIRE(ndim >= 0 && ndim <= GT_MAX_DIMS, GT_BAD_SHAPE, "%s: a tensor has 0 to %d axes, not %d", who, GT_MAX_DIMS, (int)ndim);
    GT_REQUIRE(ndim == 0 || shape != NULL, GT_BAD_ARGUMENT, "%s: shape is NULL for %d axes", who, (int)ndim);
    const int64_t most = (int64_t)1 << 62;
    int64_t elements_most = most / (int64_t)dtypes[dtype].size;
    int64_t numel = 1;
    int64_t product = 1; /* with empty axes counted as 1, since strides are products of these */
    memset(meta, 0, sizeof *meta);
    char text[GT__SHAPE_TEXT];
    for (int32_t i = 0; i < ndim; ++i) {
        GT_REQUIRE(shape[i] >= 0, GT_BAD_SHAPE, "%s: axis %d of %s is negative", who, (int)i,
                   gt__shape_text(text, sizeof text, ndim, shape));
        int64_t extent = GT__MAX(shape[i], 1);
        GT_REQUIRE(product <= elements_most / extent, GT_BAD_SHAPE, "%s: %s of %s is more than 2^62 bytes", who,
                   gt__shape_text(text, sizeof text, ndim, shape), dtypes[dtype].name);
        product *= extent;
        numel *= shape[i];
        meta->shape[i] = shape[i];
    }
    meta->ndim = ndim;
    meta->dtype = dtype;
    meta->numel = numel;
    gt__meta_set_row_major(meta);
    return GT_OK;
}

static bool strides_follow(const gt__meta *meta, const int *order) {
    int64_t expected = 1;
    if (meta->numel == 0) return true;
    for (int32_t i = 0; i < meta->ndim; ++i) {
        int axis = order[i];
        if (meta->shape[axis] == 1) continue;
        if (meta->strides[axis] != expected) return false;
        expected *= meta->shape[axis];
    }
    return true;
}

bool gt__meta_is_row_major(const gt__meta *meta) {
    int order[GT_MAX_DIMS];
    for (int32_t i = 0; i < meta->ndim; ++i) order[i] = meta->ndim - 1 - i;
    return strides_follow(meta, order);
}

bool gt__meta_is_channels_last(const gt__meta *meta) {
    static const int order[4] = {1, 3, 2, 0};
    return meta->ndim == 4 && strides_follow(meta, order);
}

bool gt__meta_is_dense(const gt__meta *meta) {
    if (meta->numel == 0) return true;
    int order[GT_MAX_DIMS];
    int32_t n = 0;
    for (int32_t axis = 0; axis < meta->ndim; ++axis) { /* insertion sort by stride, axes of size 1 left out */
        if (meta->shape[axis] == 1) continue;
        int32_t at = n++;
        while (at > 0 && meta->strides[order[at - 1]] > meta->strides[axis]) {
            order[at] = order[at - 1];
            --at;
        }
        order[at] = axis;
    }
    int64_t expected = 1;
    for (int32_t i = 0; i < n; ++i) {
        if (meta->strides[order[i]] != expected) return false;
        expected *= meta->shape[order[i]];
    }
    return true;
}

bool gt__meta_same_shape(const gt__meta *a, const gt__meta *b) {
    return a->ndim == b->ndim && memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof a->shape[0]) == 0;
}

bool gt__meta_same_layout(const gt__meta *a, const gt__meta *b) {
    if (!gt__meta_same_shape(a, b)) return false;
    if (a->numel == 0) return true;
    for (int32_t i = 0; i < a->ndim; ++i) {
        if (a->shape[i] != 1 && a->strides[i] != b->strides[i]) return false;
    }
    return true;
}

int32_t gt__axis(int32_t ndim, int32_t axis) {
    int32_t result = axis < 0 ? axis + ndim : axis;
    return result >= 0 && result < ndim ? result : -1;
}

const char *gt__meta_text(char *buffer, size_t size, const gt__meta *meta) { return gt__shape_text(buffer, size, meta->ndim, meta->shape); }

void gt__iter_make(gt__iter *iter, const gt__meta *const *metas, int32_t n) {
    const gt__meta *base = metas[0];
    int64_t shape[GT_MAX_DIMS];
    int64_t strides[GT__ITER_OPERANDS][GT_MAX_DIMS];
    int order[GT_MAX_DIMS];
    int32_t ndim = 0;
    for (int32_t axis = 0; axis < base->ndim; ++axis) {
        if (base->shape[axis] == 1) continue;
        shape[ndim] = base->shape[axis];
        for (int32_t k = 0; k < n; ++k) {
            int32_t own = axis - (base->ndim - metas[k]->ndim);
            strides[k][ndim] = own < 0 || metas[k]->shape[own] == 1 ? 0 : metas[k]->strides[own];
        }
        ++ndim;
    }
    /* Outermost first by the strides of operand 0, ties by those of the next operands: makes permuted but dense tensors linear. */
    for (int32_t axis = 0; axis < ndim; ++axis) {
        int32_t at = axis;
        while (at > 0) {
            int before = order[at - 1];
            bool swap = false;
            for (int32_t k = 0; k < n; ++k) {
                if (strides[k][before] == strides[k][axis]) continue;
                swap = strides[k][before] < strides[k][axis];
                break;
            }
            if (!swap) break;
            order[at] = before;
            --at;
        }
        order[at] = axis;
    }
    iter->n = n;
    iter->numel = base->numel;
    int32_t out = 0;
    for (int32_t i = 0; i < ndim; ++i) {
        int axis = order[i];
        bool joins = out > 0;
        for (int32_t k = 0; joins && k < n; ++k) joins = iter->strides[k][out - 1] == strides[k][axis] * shape[axis];
        if (joins) {
            iter->shape[out - 1] *= shape[axis];
        } else {
            iter->shape[out] = shape[axis];
            ++out;
        }
        for (int32_t k = 0; k < n; ++k) iter->strides[k][out - 1] = strides[k][axis];
    }
    if (out == 0) {
        iter->shape[0] = base->numel; /* 1, or 0 when empty */
        for (int32_t k = 0; k < n; ++k) iter->strides[k][0] = 1;
        out = 1;
    }
    iter->ndim = out;
}

bool gt__iter_is_linear(const gt__iter *iter) {
    if (iter->ndim != 1) return false;
    for (int32_t k = 0; k < iter->n; ++k) {
        if (iter->strides[k][0] != 1 && iter->shape[0] > 1) return false;
    }
    return true;
}
