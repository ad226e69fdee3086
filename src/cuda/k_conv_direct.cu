/* Convolution straight from its definition: any shape, strides and float dtype, no workspace, the same bits every time. A fallback, not a fast path. */
#include "cuda/launch.cuh"

namespace {
using namespace gt;

constexpr int kBlock = 256;

/* A rank-4 tensor: [n, channels, height, width], or a weight's [out, in of a group, height, width]. */
struct View {
    int64_t shape[4], strides[4];
    __device__ __forceinline__ int64_t at(int64_t a, int64_t b, int64_t c, int64_t d) const {
        return a * strides[0] + b * strides[1] + c * strides[2] + d * strides[3];
    }
};

struct Conv {
    View x, w, y;
    int64_t stride[2], padding[2], dilation[2];
    int64_t group_in, group_out; /* channels of a group */
};

/* A flat index over [n, height, width, channels]. */
struct Index {
    int64_t n, c, h, w;
};
__device__ __forceinline__ Index index_of(const View &view, int64_t i) {
    Index at;
    at.c = i % view.shape[1];
    i /= view.shape[1];
    at.w = i % view.shape[3];
    i /= view.shape[3];
    at.h = i % view.shape[2];
    at.n = i / view.shape[2];
    return at;
}

template <typename T>
__global__ void __launch_bounds__(kBlock) k_conv_forward(const T *x, const T *w, const T *bias, T *y, Conv conv, int64_t count, bool relu) {
    using C = compute_t<T>;
    for (int64_t i = blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x; i < count; i += gridDim.x * static_cast<int64_t>(kBlock)) {
        const Index at = index_of(conv.y, i);
        const int64_t first = at.c / conv.group_out * conv.group_in;
        C sum = C(0);
        for (int64_t kh = 0; kh < conv.w.shape[2]; kh++) {
            const int64_t h = at.h * conv.stride[0] - conv.padding[0] + kh * conv.dilation[0];
            if (h < 0 || h >= conv.x.shape[2]) continue;
            for (int64_t kw = 0; kw < conv.w.shape[3]; kw++) {
                const int64_t v = at.w * conv.stride[1] - conv.padding[1] + kw * conv.dilation[1];
                if (v < 0 || v >= conv.x.shape[3]) continue;
                const T *from = x + conv.x.at(at.n, first, h, v), *weight = w + conv.w.at(at.c, 0, kh, kw);
                for (int64_t c = 0; c < conv.group_in; c++)
                    sum += convert<C>(from[c * conv.x.strides[1]]) * convert<C>(weight[c * conv.w.strides[1]]);
            }
        }
        if (bias) sum += convert<C>(bias[at.c]);
        y[conv.y.at(at.n, at.c, at.h, at.w)] = convert<T>(relu && sum <= C(0) ? C(0) : sum);
    }
}

template <typename T>
__global__ void __launch_bounds__(kBlock)
    k_conv_input_gradient(const T *dy, const T *w, void *dx, gt_dtype dtype, Conv conv, int64_t count) {
    using C = compute_t<T>;
    for (int64_t i = blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x; i < count; i += gridDim.x * static_cast<int64_t>(kBlock)) {
        const Index at = index_of(conv.x, i);
        const int64_t group = at.c / conv.group_in, in = at.c - group * conv.group_in, first = group * conv.group_out;
        C sum = C(0);
        for (int64_t kh = 0; kh < conv.w.shape[2]; kh++) {
            const int64_t h = at.h + conv.padding[0] - kh * conv.dilation[0];
            if (h < 0 || h % conv.stride[0] != 0 || h / conv.stride[0] >= conv.y.shape[2]) continue;
            for (int64_t kw = 0; kw < conv.w.shape[3]; kw++) {
                const int64_t v = at.w + conv.padding[1] - kw * conv.dilation[1];
                if (v < 0 || v % conv.stride[1] != 0 || v / conv.stride[1] >= conv.y.shape[3]) continue;
                const T *from = dy + conv.y.at(at.n, first, h / conv.stride[0], v / conv.stride[1]),
                        *weight = w + conv.w.at(first, in, kh, kw);
                for (int64_t o = 0; o < conv.group_out; o++)
                    sum += convert<C>(from[o * conv.y.strides[1]]) * convert<C>(weight[o * conv.w.strides[0]]);
            }
        }
        store_as(dx, dtype, conv.x.at(at.n, at.c, at.h, at.w), sum);
    }
}

/* A block makes one weight's gradient. What is added to is of the type that is computed in. */
template <typename T>
__global__ void __launch_bounds__(kBlock)
    k_conv_weight_gradient(const T *dy, const T *x, void *dw, gt_dtype dtype, Conv conv, int64_t count, bool accumulate) {
    using C = compute_t<T>;
    __shared__ C shared[32];
    const int64_t pixels = conv.y.shape[0] * conv.y.shape[2] * conv.y.shape[3];
    for (int64_t i = blockIdx.x; i < count; i += gridDim.x) {
        const Index at = index_of(conv.w, i); /* n: the output channel, c: the input channel in its group */
        const int64_t channel = at.n / conv.group_out * conv.group_in + at.c;
        C sum = C(0);
        for (int64_t p = threadIdx.x; p < pixels; p += kBlock) {
            const int64_t line = p / conv.y.shape[3], column = p - line * conv.y.shape[3], n = line / conv.y.shape[2],
                          row = line - n * conv.y.shape[2];
            const int64_t h = row * conv.stride[0] - conv.padding[0] + at.h * conv.dilation[0];
            const int64_t v = column * conv.stride[1] - conv.padding[1] + at.w * conv.dilation[1];
            if (h < 0 || h >= conv.x.shape[2] || v < 0 || v >= conv.x.shape[3]) continue;
            sum += convert<C>(dy[conv.y.at(n, at.n, row, column)]) * convert<C>(x[conv.x.at(n, channel, h, v)]);
        }
        sum = block_sum(sum, shared);
        if (threadIdx.x != 0) continue;
        const int64_t place = conv.w.at(at.n, at.c, at.h, at.w);
        if (accumulate) sum += static_cast<const C *>(dw)[place];
        store_as(dw, dtype, place, sum);
    }
}

View view_of(const gt_tensor *tensor) {
    View view;
    memcpy(view.shape, tensor->meta.shape, sizeof view.shape);
    memcpy(view.strides, tensor->meta.strides, sizeof view.strides);
    return view;
}

Conv conv_of(const gt__call *call, const gt_tensor *x, const gt_tensor *w, const gt_tensor *y) {
    Conv conv;
    conv.x = view_of(x);
    conv.w = view_of(w);
    conv.y = view_of(y);
    memcpy(conv.stride, call->attr.conv.stride, sizeof conv.stride);
    memcpy(conv.padding, call->attr.conv.padding, sizeof conv.padding);
    memcpy(conv.dilation, call->attr.conv.dilation, sizeof conv.dilation);
    conv.group_in = w->meta.shape[1];
    conv.group_out = max64(w->meta.shape[0] / max64(call->attr.conv.groups, 1), 1);
    return conv;
}

} // namespace

gt_status gt__cuda_conv2d_direct(gt__device *device, const gt__call *call) {
    const gt_tensor *x = call->in[0], *w = call->in[1], *bias = call->n_in > 2 ? call->in[2] : nullptr, *y = call->out[0];
    if (y->meta.numel == 0) return GT_OK;
    const bool relu = call->op == GT__OP_CONV2D_RELU;
    GT__FOR_FLOATS(call, x->meta.dtype,
                   return launch(device, call, k_conv_forward<T>, grid_for(y->meta.numel, kBlock), kBlock, data<const T>(x),
                                 data<const T>(w), data<const T>(bias), data<T>(y), conv_of(call, x, w, y), y->meta.numel, relu));
    return GT_OK;
}

gt_status gt__cuda_conv2d_backward_input_direct(gt__device *device, const gt__call *call) {
    const gt_tensor *dy = call->in[0], *w = call->in[1], *dx = call->out[0];
    if (dx->meta.numel == 0) return GT_OK;
    GT__FOR_FLOATS(call, dy->meta.dtype,
                   return launch(device, call, k_conv_input_gradient<T>, grid_for(dx->meta.numel, kBlock), kBlock, data<const T>(dy),
                                 data<const T>(w), data(dx), dx->meta.dtype, conv_of(call, dx, w, dy), dx->meta.numel));
    return GT_OK;
}

gt_status gt__cuda_conv2d_backward_weight_direct(gt__device *device, const gt__call *call) {
    const gt_tensor *dy = call->in[0], *x = call->in[1], *dw = call->out[0];
    if (dw->meta.numel == 0) return GT_OK;
    GT__FOR_FLOATS(call, dy->meta.dtype,
                   return launch(device, call, k_conv_weight_gradient<T>, grid_for(dw->meta.numel, 1), kBlock, data<const T>(dy),
                                 data<const T>(x), data(dw), dw->meta.dtype, conv_of(call, x, dw, dy), dw->meta.numel,
                                 call->attr.conv.accumulate != 0));
    return GT_OK;
}
