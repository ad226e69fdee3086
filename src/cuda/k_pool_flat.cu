/* Max pooling around a flatten, and its gradient with relu's: the launches of pool_flat.cuh, and what they are not for. */
#include "cuda/pool_flat.cuh"

namespace {
using namespace gt;

template <typename T>
gt_status forward(gt__device *device, const gt__call *call) {
    const gt_tensor *x = call->in[0], *y = call->out[0];
    const bool wide = y->meta.shape[2] * y->meta.shape[3] % kVector<T> == 0 && aligned(data(y), 16);
    Columns columns;
    const Slabs slabs =
        slabs_make(kFlat, gt__cuda_multiprocessors(device), x->meta.shape, y->meta.shape, kVector<T>, wide ? kVector<T> : 1, &columns);
    return columns_launch(device, call, wide ? k_pool_flat<T, kVector<T>> : k_pool_flat<T, 1>, columns, data<const T>(x), data<T>(y),
                          data<uint8_t>(call->out[1]), slabs);
}

template <typename T>
gt_status backward(gt__device *device, const gt__call *call, bool rows) {
    using C = compute_t<T>;
    constexpr int V = kVector<T>;
    const gt_tensor *dy = call->in[0], *y = call->in[2], *dx = call->out[0], *db = call->n_out > 1 ? call->out[1] : nullptr;
    const bool wide = !rows || (dy->meta.shape[2] * dy->meta.shape[3] % V == 0 && aligned(data(dy), 16) && aligned(data(y), 16));
    const auto kernel =
        !rows ? k_pool_flat_backward<T, false, V> : (wide ? k_pool_flat_backward<T, true, V> : k_pool_flat_backward<T, true, 1>);
    const int64_t processors = gt__cuda_multiprocessors(device);
    Columns columns;
    const Slabs slabs = slabs_make(kFlatBackward, processors, dx->meta.shape, dy->meta.shape, V, wide ? V : 1, &columns);
    FlatJoin join = {};
    void *partial = nullptr, *handle = nullptr;
    if (db) {
        join = flat_join_make(processors, GT__CUDA_COUNTERS, &columns);
        if (join.parts > 1 &&
            !gt__cuda_scratch_try(device, join.rows() * static_cast<size_t>(columns.channels) * sizeof(C), &partial, &handle))
            join = flat_join_make(0, GT__CUDA_COUNTERS, &columns);
    }
    gt_status status =
        columns_launch(device, call, kernel, columns, data<const T>(dy), data<const uint8_t>(call->in[1]), data<const T>(y), data<T>(dx),
                       data(db), db ? db->meta.dtype : dy->meta.dtype, static_cast<C *>(partial), gt__cuda_counters(device), slabs, join);
    gt__scratch_free(device->ctx, handle);
    return status;
}

gt__meta channels_last(gt__meta meta) {
    int64_t step = 1;
    for (int a : {1, 3, 2, 0}) {
        meta.strides[a] = step;
        step *= meta.shape[a];
    }
    return meta;
}

bool same_places(const gt__meta *a, const gt__meta *b) {
    for (int i = 0; i < 4; i++)
        if (a->shape[i] != 1 && a->strides[i] != b->strides[i]) return false;
    return true;
}

/* The tensor, or a channels-last copy of it at `memory`, described by *copy. */
gt_status as_channels_last(gt__device *device, gt_tensor **tensor, gt_tensor *copy, void *memory) {
    const gt__meta meta = channels_last((*tensor)->meta);
    if ((*tensor)->meta.numel == 0 || same_places(&(*tensor)->meta, &meta)) return GT_OK;
    *copy = **tensor;
    copy->meta = meta;
    copy->data = memory;
    GT_TRY(gt__cuda_copy_strided(device, memory, &meta, data(*tensor), &(*tensor)->meta));
    *tensor = copy;
    return GT_OK;
}

/* One op after the other. */
gt_status one_by_one(gt__device *device, const gt__call *call, void *memory, size_t bytes) {
    gt_tensor copies[2], dz = *call->in[0], *masked[2] = {call->in[0], call->in[2]};
    dz.meta = channels_last(dz.meta);
    dz.data = memory;
    for (int k = 0; k < 2; k++)
        GT_TRY(as_channels_last(device, &masked[k], &copies[k], static_cast<char *>(memory) + static_cast<size_t>(k) * bytes));
    gt_tensor *pooled[2] = {&dz, call->in[1]};
    gt__call part = *call;
    part.op = GT__OP_BIAS_RELU_BACKWARD;
    part.in = masked;
    part.n_in = part.n_out = 2;
    part.out[0] = &dz;
    part.out[1] = call->n_out > 1 ? call->out[1] : nullptr;
    GT_TRY(gt__cuda_bias_relu_backward(device, &part));
    part.op = GT__OP_MAX_POOL2D_BACKWARD;
    part.in = pooled;
    part.n_out = 1;
    part.out[0] = call->out[0];
    return gt__cuda_max_pool2d_backward(device, &part);
}

} // namespace

gt_status gt::pool_flat(gt__device *device, const gt__call *call) {
    GT__FOR_FLOATS(call, call->out[0]->meta.dtype, return forward<T>(device, call));
    return GT_OK;
}

gt_status gt__cuda_max_pool2d_relu_backward(gt__device *device, const gt__call *call) {
    const gt_tensor *dy = call->in[0], *index = call->in[1], *y = call->in[2], *dx = call->out[0];
    if (dy->meta.numel > 0) {
        const Pool pool = pool_make(call, dx, dy, index, false);
        const bool together = !pool.apart && aligned(data(y), 16), rows = pool.apart && pool_is_flat(&dy->meta);
        const bool small = dx->meta.numel / dx->meta.shape[0] <= FastDivide::kLimit; /* an image */
        if (pool.tile == 2 && small && (together || rows) && same_places(&dy->meta, &y->meta))
            GT__FOR_FLOATS(call, dy->meta.dtype, return backward<T>(device, call, rows));
    }
    const size_t bytes = (static_cast<size_t>(dy->meta.numel) * static_cast<size_t>(element_bytes(dy->meta.dtype)) + 511) / 512 * 512;
    void *memory = nullptr, *handle = nullptr;
    if (bytes) GT_TRY(gt__scratch_alloc(device->ctx, 2 * bytes, &memory, &handle));
    gt_status status = one_by_one(device, call, memory, bytes);
    gt__scratch_free(device->ctx, handle);
    return status;
}
