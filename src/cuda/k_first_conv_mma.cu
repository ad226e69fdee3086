/* First layers on the tensor cores (first_conv_mma.cuh): which calls they take, how the work is cut, and the launches. */
#include "cuda/first_conv_mma.cuh"

#include <string.h>

namespace {
using namespace gt;

constexpr int64_t kMostColumns = 32; /* taps, and what stands beside them */
constexpr int64_t kMostOutChannels = 128;

/* What a call asks for. */
struct Call {
    const gt_tensor *x, *w, *bias, *y; /* bias may be NULL; y: dy, for the gradient */
    const gt_tensor *mask;             /* relu's result, behind which the gradient is */
    gt_tensor *dw, *db;                /* NULL: forward */
};

bool describe(const gt__call *call, Call *c) {
    memset(c, 0, sizeof *c);
    switch (call->op) {
    case GT__OP_CONV2D:
    case GT__OP_CONV2D_RELU:
        *c = {call->in[0], call->in[1], call->n_in > 2 ? call->in[2] : nullptr, call->out[0], nullptr, nullptr, nullptr};
        return true;
    case GT__OP_CONV2D_BACKWARD_WEIGHT:
        *c = {call->in[1], call->out[0], nullptr, call->in[0], nullptr, call->out[0], nullptr};
        return true;
    case GT__OP_CONV2D_RELU_BACKWARD_WEIGHT:
        *c = {call->in[2], call->out[0], nullptr, call->in[0], call->in[1], call->out[0], call->n_out > 1 ? call->out[1] : nullptr};
        return c->dw != nullptr;
    default:
        return false;
    }
}

int64_t taps_of(const Call &c) { return c.x->meta.shape[1] * c.w->meta.shape[2] * c.w->meta.shape[3]; }

int64_t columns_of(const Call &c) { return taps_of(c) + (c.mask || c.bias ? 1 : 0); }

bool takes(gt__device *device, const gt__call *call, Call *c) {
    if (gt__cuda_capability(device) < kMmaCapability || !describe(call, c)) return false;
    const auto &a = call->attr.conv;
    const gt_dtype dtype = c->x->meta.dtype;
    const int64_t *x = c->x->meta.shape, *w = c->w->meta.shape, *y = c->y->meta.shape;
    if ((dtype != GT_DTYPE_F16 && dtype != GT_DTYPE_BF16) || c->y->meta.dtype != dtype || (c->mask && c->mask->meta.dtype != dtype))
        return false;
    if (!c->dw && (c->w->meta.dtype != dtype || (c->bias && c->bias->meta.dtype != dtype))) return false;
    if (a.groups != 1 || a.dilation[0] != 1 || a.dilation[1] != 1) return false;
    for (int i = 0; i < 2; i++)
        if (a.stride[i] > 256 || a.padding[i] > 256 || w[2 + i] > kMostColumns) return false;
    if (x[1] < 1 || x[1] > kMostColumns || columns_of(*c) > kMostColumns || w[0] % 16 != 0 || w[0] > kMostOutChannels) return false;
    /* All numbers that first_place makes stay below 2^31. */
    const int64_t limit = FastDivide::kLimit / 4, pixels = y[0] * y[2] * y[3], row = x[1] * x[3], rows = y[0] * y[2],
                  row_moves = a.stride[1] * x[1] * y[3], next_row = a.stride[0] * row - row_moves,
                  next_image = (x[2] - y[2] * a.stride[0]) * row;
    if (pixels <= 0 || pixels > limit || c->x->meta.numel <= 0 || c->x->meta.numel > limit || row > limit / 1024) return false;
    return rows * row_moves <= limit && rows <= limit / max64(max64(next_row, -next_row), 1) &&
           y[0] <= limit / max64(max64(next_image, -next_image), 1) && aligned(gt__data(c->y), 16) &&
           (!c->mask || aligned(gt__data(c->mask), 16));
}

FirstConv sizes(const gt__call *call, const Call &c) {
    FirstConv f;
    memset(&f, 0, sizeof f);
    const auto &a = call->attr.conv;
    const int64_t *x = c.x->meta.shape, *w = c.w->meta.shape, *y = c.y->meta.shape, channels = x[1];
    f.pixels = static_cast<int32_t>(y[0] * y[2] * y[3]);
    f.out_channels = static_cast<int32_t>(w[0]);
    f.height = static_cast<int32_t>(x[2]);
    f.row = static_cast<int32_t>(x[3] * channels);
    f.taps = static_cast<int32_t>(taps_of(c));
    f.stride = static_cast<int32_t>(a.stride[0]);
    f.padding = static_cast<int32_t>(a.padding[0]);
    f.step = static_cast<int32_t>(a.stride[1] * channels);
    f.before = static_cast<int32_t>(a.padding[1] * channels);
    f.next_row = static_cast<int32_t>(a.stride[0]) * f.row - static_cast<int32_t>(y[3]) * f.step;
    f.next_image = (f.height - static_cast<int32_t>(y[2] * a.stride[0])) * f.row;
    f.out_height = static_cast<int32_t>(y[2]);
    f.by_out_width.set(y[3]);
    f.by_out_pixels.set(y[2] * y[3]);
    f.by_taps_row.set(w[3] * channels);
    return f;
}

bool is_padded(const gt__call *call) { return call->attr.conv.padding[0] > 0 || call->attr.conv.padding[1] > 0; }

/* Rows of 16 channels of the result that a block has: 1 or 2. */
int rows_of(const Call &c) { return c.w->meta.shape[0] % 32 == 0 ? 2 : 1; }

/* Tiles of so many channels. */
uint32_t tiles_of(const Call &c) { return static_cast<uint32_t>(c.w->meta.shape[0] / (rows_of(c) * 16)); }

/* Blocks along the pixels: as many as run at once, each warp of which has `steps` times 16 pixels at least. */
int64_t blocks_of(gt__device *device, const FirstConv &f, uint32_t tiles, int steps, int resident) {
    const int64_t most = max64(resident * static_cast<int64_t>(gt__cuda_multiprocessors(device)) / tiles, 1);
    return min64(most, ceil_div(f.pixels, static_cast<int64_t>(kFirstWarps) * steps * 16));
}

/* Blocks of columns that the gradient's kernel has. */
int column_blocks(const Call &c) { return columns_of(c) > 16 ? 4 : 2; }

/* Layers without padding have kernels of their own only behind relu. */
bool takes_padding(const gt__call *call, const Call &c) { return !c.mask || is_padded(call); }

Parts gradient_parts(gt__device *device, const gt__call *call, const Call &c, bool alone) {
    const uint32_t tiles = tiles_of(c);
    const int resident = first_gradient_resident(column_blocks(c), c.mask != nullptr, takes_padding(call, c));
    return parts_make(alone ? 1 : blocks_of(device, sizes(call, c), tiles, kFirstGradientSteps, resident), tiles);
}

template <typename T, int M, int N, bool masked, bool padded>
gt_status gradient(gt__device *device, const gt__call *call, const Call &c, void *scratch) {
    FirstSums sums;
    memset(&sums, 0, sizeof sums);
    static_cast<Parts &>(sums) = gradient_parts(device, call, c, !scratch);
    sums.partial = static_cast<float *>(scratch);
    sums.counters = gt__cuda_counters(device);
    sums.dw = data(c.dw);
    sums.db = data(c.db);
    sums.dw_dtype = c.dw->meta.dtype;
    sums.db_dtype = c.db ? c.db->meta.dtype : c.dw->meta.dtype;
    sums.accumulate = call->attr.conv.accumulate != 0;
    return launch2(device, call, "convolution", k_first_conv_gradient<T, M, N, masked, padded>, tiles_of(c), sums.parts, kFirstWarps * 32,
                   1u, data<const T>(c.y), data<const T>(c.mask), data<const T>(c.x), sizes(call, c), sums);
}

template <typename T, int M, int N>
gt_status gradient_any(gt__device *device, const gt__call *call, const Call &c, void *scratch) {
    if (!c.mask) return gradient<T, M, N, false, true>(device, call, c, scratch);
    return takes_padding(call, c) ? gradient<T, M, N, true, true>(device, call, c, scratch)
                                  : gradient<T, M, N, true, false>(device, call, c, scratch);
}

template <typename T, int N, int K, bool padded>
gt_status forward(gt__device *device, const gt__call *call, const Call &c) {
    const FirstConv f = sizes(call, c);
    const uint32_t tiles = tiles_of(c);
    const int64_t blocks = blocks_of(device, f, tiles, kFirstForwardSteps<K>, kFirstForwardResident<K>);
    return launch2(device, call, "convolution", k_first_conv<T, N, K, padded>, tiles, static_cast<uint32_t>(blocks), kFirstWarps * 32, 1u,
                   data<const T>(c.x), data<const T>(c.w), data<const T>(c.bias), data<T>(c.y), f, call->op == GT__OP_CONV2D_RELU);
}

template <typename T, int N, int K>
gt_status forward_any(gt__device *device, const gt__call *call, const Call &c) {
    return is_padded(call) ? forward<T, N, K, true>(device, call, c) : forward<T, N, K, false>(device, call, c);
}

template <typename T>
gt_status run(gt__device *device, const gt__call *call, const Call &c, void *scratch) {
    const bool two = rows_of(c) == 2, many = column_blocks(c) > 2;
    if (c.dw) {
        if (many) return two ? gradient_any<T, 2, 4>(device, call, c, scratch) : gradient_any<T, 1, 4>(device, call, c, scratch);
        return two ? gradient_any<T, 2, 2>(device, call, c, scratch) : gradient_any<T, 1, 2>(device, call, c, scratch);
    }
    if (many) return two ? forward_any<T, 4, 2>(device, call, c) : forward_any<T, 2, 2>(device, call, c);
    return two ? forward_any<T, 4, 1>(device, call, c) : forward_any<T, 2, 1>(device, call, c);
}

} // namespace

int32_t gt__cuda_first_conv_takes(gt__device *device, const gt__call *call) {
    Call c;
    return takes(device, call, &c);
}

size_t gt__cuda_first_conv_scratch(gt__device *device, const gt__call *call) {
    Call c;
    if (!takes(device, call, &c) || !c.dw) return 0;
    const int64_t values = (taps_of(c) + (c.mask ? 1 : 0)) * rows_of(c) * 16;
    return gradient_parts(device, call, c, false).blocks_of_sums(tiles_of(c)) * static_cast<size_t>(values) * sizeof(float);
}

gt_status gt__cuda_first_conv(gt__device *device, const gt__call *call, void *scratch) {
    Call c;
    GT_CALL_REQUIRE(call, takes(device, call, &c), GT_INTERNAL, "not for these kernels");
    if (c.x->meta.dtype == GT_DTYPE_F16) return run<__half>(device, call, c, scratch);
    return run<__nv_bfloat16>(device, call, c, scratch);
}
