#include "io/layout.h"

static void copy_elements(char *to, const char *from, size_t to_step, size_t from_step, int64_t n, size_t size) {
    for (int64_t i = 0; i < n; ++i, to += to_step, from += from_step) {
        switch (size) { /* so that memcpy is one instruction */
        case 1:
            *to = *from;
            break;
        case 2:
            memcpy(to, from, 2);
            break;
        case 4:
            memcpy(to, from, 4);
            break;
        default:
            memcpy(to, from, 8);
            break;
        }
    }
}

static void run(const gt__meta *meta, char *logical, char *stored, bool to_logical) {
    const size_t size = gt_dtype_size(meta->dtype);
    if (meta->numel == 0) return;
    if (gt__meta_is_row_major(meta)) {
        memcpy(to_logical ? logical : stored, to_logical ? stored : logical, (size_t)meta->numel * size);
        return;
    }
    const int32_t last = meta->ndim - 1; /* not row-major, so there is one */
    const int64_t n = meta->shape[last];
    const size_t step = (size_t)meta->strides[last] * size;
    int64_t index[GT_MAX_DIMS] = {0};
    for (int64_t row = 0; row < meta->numel / n; ++row, logical += (size_t)n * size) {
        int64_t offset = 0;
        for (int32_t i = 0; i < last; ++i) offset += index[i] * meta->strides[i];
        char *at = stored + (size_t)offset * size;
        if (to_logical)
            copy_elements(logical, at, size, step, n, size);
        else
            copy_elements(at, logical, step, size, n, size);
        for (int32_t i = last - 1; i >= 0 && ++index[i] == meta->shape[i]; --i) index[i] = 0;
    }
}

void gt__layout_to_logical(const gt__meta *meta, const void *stored, void *logical) { run(meta, logical, (char *)(uintptr_t)stored, true); }

void gt__layout_to_stored(const gt__meta *meta, const void *logical, void *stored) { run(meta, (char *)(uintptr_t)logical, stored, false); }
