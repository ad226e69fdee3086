/* Convolutions of few channels on the tensor cores (conv_mma.cuh): which calls they take, how the work is cut, and the launches. */
#include "cuda/conv_mma.cuh"
#include "cuda/launch.cuh"

namespace {
using namespace gt;

constexpr int64_t kMostTaps = 25;
constexpr int kGradientPixels = 256, kLessGradientPixels = 128;
constexpr size_t kMostShared = 100 * 1024; /* of a block: two on a multiprocessor with 227 KiB, one where there are less */

/* What a call asks for, as a correlation: `from` is read in patches. */
struct Call {
    const gt_tensor *from, *weight, *result;
    gt_tensor *dw;
    const int64_t *kernel; /* high, wide */
    int64_t top, left;
    bool turned; /* the weight */
};

bool describe(const gt__call *call, Call *c) {
    memset(c, 0, sizeof *c);
    switch (call->op) {
    case GT__OP_CONV2D:
    case GT__OP_CONV2D_RELU:
        c->from = call->in[0];
        c->weight = call->in[1];
        c->result = call->out[0];
        break;
    case GT__OP_CONV2D_BACKWARD_INPUT:
        c->from = call->in[0];
        c->weight = call->in[1];
        c->result = call->out[0];
        c->turned = true;
        break;
    case GT__OP_CONV2D_BACKWARD_WEIGHT:
        c->from = call->in[1];
        c->result = call->in[0];
        c->weight = c->dw = call->out[0];
        break;
    default:
        return false;
    }
    c->kernel = c->weight->meta.shape + 2;
    c->top = call->attr.conv.padding[0];
    c->left = call->attr.conv.padding[1];
    if (c->turned) {
        c->top = c->kernel[0] - 1 - c->top;
        c->left = c->kernel[1] - 1 - c->left;
    }
    return true;
}

bool takes(const gt__call *call, Call *c) {
    if (!describe(call, c)) return false;
    const auto &a = call->attr.conv;
    const gt_dtype dtype = c->from->meta.dtype;
    const int64_t *from = c->from->meta.shape, *to = c->result->meta.shape, channels = from[1];
    if ((dtype != GT_DTYPE_F16 && dtype != GT_DTYPE_BF16) || c->result->meta.dtype != dtype) return false;
    if (!c->dw && c->weight->meta.dtype != dtype) return false;
    if (a.groups != 1 || a.stride[0] != 1 || a.stride[1] != 1 || a.dilation[0] != 1 || a.dilation[1] != 1) return false;
    if ((channels != 16 && channels != 32 && channels != 64) || to[1] % 8 != 0 || to[1] > 256) return false;
    if (c->kernel[0] * c->kernel[1] > kMostTaps || c->top < -kMostTaps || c->left < -kMostTaps || c->top > kMostTaps || c->left > kMostTaps)
        return false;
    if (c->from->meta.numel == 0 || c->result->meta.numel == 0 || c->weight->meta.numel == 0) return false;
    const int64_t limit = FastDivide::kLimit - 65536;
    return to[0] * to[2] * to[3] <= limit && from[2] <= limit && from[3] <= 4096 && to[3] <= 4096 && to[2] <= limit / 2 &&
           aligned(gt__data(c->from), 16) && aligned(gt__data(c->result), 16) && aligned(gt__data(c->weight), 16);
}

Correlation correlation(const Call &c, int32_t tile) {
    Correlation k;
    memset(&k, 0, sizeof k);
    const int64_t *from = c.from->meta.shape, *to = c.result->meta.shape;
    k.height = static_cast<int32_t>(from[2]);
    k.width = static_cast<int32_t>(from[3]);
    k.out_height = static_cast<int32_t>(to[2]);
    k.out_width = static_cast<int32_t>(to[3]);
    k.taps_high = static_cast<int32_t>(c.kernel[0]);
    k.taps_wide = static_cast<int32_t>(c.kernel[1]);
    k.top = static_cast<int32_t>(c.top);
    k.left = static_cast<int32_t>(c.left);
    k.patch_width = k.out_width + k.taps_wide - 1;
    k.image_rows = k.out_height + k.taps_high - 1;
    k.pixels = static_cast<int32_t>(to[0] * to[2] * to[3]);
    k.tiles = static_cast<int32_t>(ceil_div(k.pixels, tile));
    k.out_channels = static_cast<int32_t>(to[1]);
    k.by_out_width.set(k.out_width);
    k.by_out_pixels.set(static_cast<int64_t>(k.out_height) * k.out_width);
    k.by_patch_width.set(k.patch_width);
    k.by_image_rows.set(k.image_rows);
    return k;
}

/* Rows of a patch, at most. A run of `tile` pixels begins in the last pixel of a row at worst, and each image that it reaches into adds the kernel's rows less one. */
int64_t patch_rows(const Correlation &k, int64_t tile) {
    const int64_t rows = min64((tile + k.out_width - 2) / k.out_width + 1, k.pixels / k.out_width),
                  images = min64((tile + k.by_out_pixels.divisor - 2) / k.by_out_pixels.divisor + 1, k.pixels / k.by_out_pixels.divisor);
    return rows + images * (k.taps_high - 1);
}

int64_t patch_halves(const Correlation &k, int64_t tile, int64_t channels) {
    return patch_rows(k, tile) * k.patch_width * (channels + kTilePad);
}

/* Blocks of a kernel that run at once on the device. */
gt_status resident(gt__device *device, const gt__call *call, const void *kernel, int threads, size_t shared, int64_t *blocks) {
    int of_one = 0;
    GT_TRY(gt__cuda_allow_shared(device, call, kernel, shared));
    if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_one, kernel, threads, shared) != cudaSuccess) {
        (void)cudaGetLastError();
        of_one = 1;
    }
    *blocks = max64(of_one, 1) * gt__cuda_multiprocessors(device);
    return GT_OK;
}

/* --- forward, and the gradient of the input ----------------------------------------------------------------------------------------------------------- */

size_t correlate_shared(const Correlation &k, int64_t tile, int64_t channels, int64_t n, bool turned) {
    const int64_t taps = k.taps_high * k.taps_wide, weights = turned ? taps * channels * (n + kTilePad) : n * (taps * channels + kTilePad);
    return static_cast<size_t>(weights + max64(patch_halves(k, tile, channels), tile * (n + kTilePad))) * 2;
}

/* As few blocks as take no longer than all that run at once would. */
int64_t even(int64_t tiles, int64_t blocks) { return ceil_div(tiles, ceil_div(tiles, blocks)); }

template <typename T, int C, int M, int N, bool turned>
gt_status correlate(gt__device *device, const gt__call *call, const Call &c) {
    constexpr int kTile = kCorrelateWarps * M * 16;
    const Correlation k = correlation(c, kTile);
    const size_t shared = correlate_shared(k, kTile, C, N, turned);
    const void *kernel = reinterpret_cast<const void *>(k_correlate<T, C, M, N, turned>);
    const int64_t columns = ceil_div(k.out_channels, N);
    int64_t blocks;
    GT_TRY(resident(device, call, kernel, kCorrelateWarps * 32, shared, &blocks));
    blocks = even(k.tiles, max64(blocks / columns, 1));
    const gt_tensor *bias = !turned && call->n_in > 2 ? call->in[2] : nullptr;
    const T *from = data<const T>(c.from), *weight = data<const T>(c.weight), *add = data<const T>(bias);
    T *to = data<T>(c.result);
    bool relu = call->op == GT__OP_CONV2D_RELU;
    void *arguments[] = {&from, &weight, &add, &to, const_cast<Correlation *>(&k), &relu};
    return gt__cuda_launch_shared(device, call, kernel, {static_cast<uint32_t>(blocks), static_cast<uint32_t>(columns), 1},
                                  kCorrelateWarps * 32, shared, arguments);
}

/* Pixels of a warp: 32 where 64 would leave multiprocessors without work, or would not fit. */
template <typename T, int C, int N, bool turned>
gt_status correlate_sized(gt__device *device, const gt__call *call, const Call &c) {
    constexpr int kTile = kCorrelateWarps * 4 * 16;
    const Correlation k = correlation(c, kTile);
    const bool large = k.tiles >= 2 * gt__cuda_multiprocessors(device) && correlate_shared(k, kTile, C, N, turned) <= kMostShared;
    return large ? correlate<T, C, 4, N, turned>(device, call, c) : correlate<T, C, 2, N, turned>(device, call, c);
}

template <typename T, int C, bool turned>
gt_status correlate_wide(gt__device *device, const gt__call *call, const Call &c) {
    return c.result->meta.shape[1] > 32 ? correlate_sized<T, C, 64, turned>(device, call, c)
                                        : correlate_sized<T, C, 32, turned>(device, call, c);
}

template <typename T, int C>
gt_status correlate_any(gt__device *device, const gt__call *call, const Call &c) {
    return c.turned ? correlate_wide<T, C, true>(device, call, c) : correlate_wide<T, C, false>(device, call, c);
}

bool correlate_fits(const Call &c) {
    constexpr int kTile = kCorrelateWarps * 2 * 16;
    return correlate_shared(correlation(c, kTile), kTile, c.from->meta.shape[1], c.result->meta.shape[1] > 32 ? 64 : 32, c.turned) <=
           kMostShared;
}

/* --- the gradient of the weight ------------------------------------------------------------------------------------------------------------------------- */

size_t gradient_shared(const Correlation &k, int64_t pixels, int64_t channels, int64_t rows) {
    return static_cast<size_t>(pixels * 4 + (pixels * (rows * 32 + kTilePad) + patch_halves(k, pixels, channels)) * 2);
}

/* Blocks of 32 channels of the result that a block has. */
int gradient_rows(const Call &c) { return c.result->meta.shape[1] > 32 ? 2 : 1; }

int64_t gradient_pixels(const Call &c) {
    const int64_t channels = c.from->meta.shape[1], rows = gradient_rows(c);
    if (gradient_shared(correlation(c, kGradientPixels), kGradientPixels, channels, rows) <= kMostShared) return kGradientPixels;
    return gradient_shared(correlation(c, kLessGradientPixels), kLessGradientPixels, channels, rows) <= kMostShared ? kLessGradientPixels
                                                                                                                    : 0;
}

/* Columns of a warp, 8 wide: those of a 3x3 kernel are whole blocks. */
template <int C, int rows>
constexpr int kColumns = rows == 2 ? (C == 16 ? 5 : 9)
                                   : (C == 16   ? 3
                                      : C == 32 ? 5
                                                : 9);

int64_t gradient_count(const Call &c) { return c.result->meta.shape[1] * c.kernel[0] * c.kernel[1] * c.from->meta.shape[1]; }

/* Parts of the sum: blocks along the pixels. The same whatever the workspace. */
int64_t gradient_parts(gt__device *device, const Call &c, int64_t pixels) {
    const int rows = gradient_rows(c);
    const int64_t channels = c.from->meta.shape[1], columns = ceil_div(c.kernel[0] * c.kernel[1] * channels / 8, kGradientWarps / rows * 9),
                  blocks =
                      2 * static_cast<int64_t>(gt__cuda_multiprocessors(device)) / (columns * ceil_div(c.result->meta.shape[1], rows * 32));
    return even(correlation(c, static_cast<int32_t>(pixels)).tiles, max64(blocks, 1));
}

template <typename T, int C, int rows, int pixels>
gt_status gradient(gt__device *device, const gt__call *call, const Call &c, float *partial) {
    constexpr int kWarpColumns = kColumns<C, rows>;
    const Correlation k = correlation(c, pixels);
    const size_t shared = gradient_shared(k, pixels, C, rows);
    const int64_t parts = gradient_parts(device, c, pixels), count = gradient_count(c),
                  columns = ceil_div(static_cast<int64_t>(k.taps_high) * k.taps_wide * C / 8, kGradientWarps / rows * kWarpColumns);
    const void *kernel = reinterpret_cast<const void *>(k_correlate_gradient<T, C, rows, kWarpColumns, pixels>);
    GT_TRY(gt__cuda_allow_shared(device, call, kernel, shared));
    const T *dy = data<const T>(c.result), *x = data<const T>(c.from);
    void *arguments[] = {&dy, &x, &partial, const_cast<Correlation *>(&k)};
    GT_TRY(gt__cuda_launch_shared(
        device, call, kernel,
        {static_cast<uint32_t>(parts), static_cast<uint32_t>(columns), static_cast<uint32_t>(ceil_div(k.out_channels, rows * 32))},
        kGradientWarps * 32, shared, arguments));
    const uint32_t grid = static_cast<uint32_t>(ceil_div(count, kJoinColumns * 4));
    const bool accumulate = call->attr.conv.accumulate != 0;
    const int32_t n = static_cast<int32_t>(count), of = static_cast<int32_t>(parts);
    if (c.dw->meta.dtype == GT_DTYPE_F32)
        return launch(device, call, k_join_parts<float>, grid, kJoinColumns * kJoinRows, partial, of, n, data<float>(c.dw), accumulate);
    return launch(device, call, k_join_parts<T>, grid, kJoinColumns * kJoinRows, partial, of, n, data<T>(c.dw), accumulate);
}

template <typename T, int C>
gt_status gradient_any(gt__device *device, const gt__call *call, const Call &c, float *partial) {
    const bool many = gradient_pixels(c) == kGradientPixels;
    if (gradient_rows(c) == 2)
        return many ? gradient<T, C, 2, kGradientPixels>(device, call, c, partial)
                    : gradient<T, C, 2, kLessGradientPixels>(device, call, c, partial);
    return many ? gradient<T, C, 1, kGradientPixels>(device, call, c, partial)
                : gradient<T, C, 1, kLessGradientPixels>(device, call, c, partial);
}

template <typename T>
gt_status run(gt__device *device, const gt__call *call, const Call &c, float *partial) {
    switch (c.from->meta.shape[1]) {
    case 16:
        return c.dw ? gradient_any<T, 16>(device, call, c, partial) : correlate_any<T, 16>(device, call, c);
    case 32:
        return c.dw ? gradient_any<T, 32>(device, call, c, partial) : correlate_any<T, 32>(device, call, c);
    default:
        return c.dw ? gradient_any<T, 64>(device, call, c, partial) : correlate_any<T, 64>(device, call, c);
    }
}

} // namespace

int32_t gt__cuda_conv2d_mma_takes(gt__device *device, const gt__call *call) {
    Call c;
    if (gt__cuda_capability(device) < kMmaCapability || !takes(call, &c)) return 0;
    if (!c.dw) return correlate_fits(c);
    return gradient_pixels(c) > 0 && gradient_count(c) <= FastDivide::kLimit &&
           (c.dw->meta.dtype == GT_DTYPE_F32 || c.dw->meta.dtype == c.from->meta.dtype);
}

int32_t gt__cuda_conv2d_mma_pays(gt__device *device, const gt__call *call) {
    Call c;
    if (!takes(call, &c)) return 0;
    return !c.dw || correlation(c, static_cast<int32_t>(gradient_pixels(c))).tiles >= 2 * gt__cuda_multiprocessors(device);
}

size_t gt__cuda_conv2d_mma_scratch(gt__device *device, const gt__call *call) {
    Call c;
    if (!takes(call, &c) || !c.dw) return 0;
    return static_cast<size_t>(gradient_parts(device, c, gradient_pixels(c)) * gradient_count(c)) * sizeof(float);
}

gt_status gt__cuda_conv2d_mma(gt__device *device, const gt__call *call, void *scratch) {
    Call c;
    GT_CALL_REQUIRE(call, takes(call, &c), GT_INTERNAL, "not for these kernels");
    if (c.from->meta.dtype == GT_DTYPE_F16) return run<__half>(device, call, c, static_cast<float *>(scratch));
    return run<__nv_bfloat16>(device, call, c, static_cast<float *>(scratch));
}
