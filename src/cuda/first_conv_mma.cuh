/* First layers on the tensor cores: the kernels of k_first_conv_mma.cu, for halves.
 *
 * Such a layer moves its result, and computes little for it, so a warp does without shared memory and barriers: it takes 16 pixels of the result at a time, and each lane loads
 * what its own registers of the matrices want. That works since the order of a sum's terms is free, and that of the result's channels:
 *
 *   gradient   dw [channel, tap] = sum over pixels of dy [pixel, channel] x [pixel, tap]: the quarter t of a group of lanes has pixels t, t + 4, t + 8 and t + 12, and group
 *              g of eight has 2 M neighbouring channels of them, M rows of 16 in all: one load a pixel. A column of ones beside the taps gives db.
 *   forward    y [pixel, channel] = sum over taps of x [pixel, tap] w [tap, channel]: a lane has 2 N neighbouring channels of pixels g and g + 8, one store a pixel. The
 *              weights stay in registers. The bias is one more tap, of ones.
 *
 * x is small and read in halves through L1, with zeros where padding is. Taps are those of all input channels: a row of the kernel is neighbours in a row of x. */
#ifndef GT_CUDA_FIRST_CONV_MMA_CUH
#define GT_CUDA_FIRST_CONV_MMA_CUH

#include "cuda/join_parts.cuh"
#include "cuda/mma.cuh"

#include <math.h>
#include <type_traits>

namespace gt {

constexpr int kFirstWarps = 8;
/* Blocks of a multiprocessor that registers must allow, and how many times 16 pixels a warp has on their way together. N, K: the blocks of 8 or 16 taps of the kernels. */
constexpr int first_gradient_resident(int n, bool masked, bool padded) { return n > 2 || (masked && padded) ? 2 : 3; }
constexpr int kFirstGradientSteps = 2;
template <int K>
constexpr int kFirstForwardResident = K > 1 ? 2 : 4;
template <int K>
constexpr int kFirstForwardSteps = K > 1 ? 1 : 2;

/* Sizes in elements. */
struct FirstConv {
    int32_t pixels;          /* of all results: below 2^29, as x's elements */
    int32_t out_channels;    /* a multiple of a tile's */
    int32_t height, row;     /* of x; row: a row's elements */
    int32_t taps;            /* of the kernel */
    int32_t stride, padding; /* along the height */
    int32_t step, before;    /* along the width */
    /* How far the element of x that a pixel reads moves beside `step` a pixel: from row to row and from image to image of the result. */
    int32_t next_row, next_image;
    int32_t out_height;
    FastDivide by_out_width, by_out_pixels, by_taps_row;
};

/* Where the gradient goes. */
struct FirstSums : PartSums<float> {
    void *dw, *db; /* db may be NULL */
    gt_dtype dw_dtype, db_dtype;
    bool accumulate;
};

#ifdef __CUDACC__

/* What a pixel reads for its first tap: the element of x; and where padding is, the row of x and where in the row. */
struct FirstPlace {
    int32_t at, row, in_row;
};

/* Beyond the last pixel: that of the last. */
__device__ __forceinline__ FirstPlace first_place(const FirstConv &f, int32_t number) {
    const int32_t pixel = number < f.pixels ? number : f.pixels - 1;
    const int32_t row = static_cast<int32_t>(f.by_out_width.quotient(static_cast<uint32_t>(pixel))),
                  image = static_cast<int32_t>(f.by_out_pixels.quotient(static_cast<uint32_t>(pixel)));
    FirstPlace place;
    place.at = pixel * f.step + row * f.next_row + image * f.next_image - f.padding * f.row - f.before;
    place.row = (row - image * f.out_height) * f.stride - f.padding;
    place.in_row = (pixel - row * static_cast<int32_t>(f.by_out_width.divisor)) * f.step - f.before;
    return place;
}
/* That which another lane has. */
template <bool padded>
__device__ __forceinline__ FirstPlace first_place_of(const FirstPlace &place, int32_t lane) {
    FirstPlace other = {__shfl_sync(0xffffffffu, place.at, lane), 0, 0};
    if constexpr (padded) {
        other.row = __shfl_sync(0xffffffffu, place.row, lane);
        other.in_row = __shfl_sync(0xffffffffu, place.in_row, lane);
    }
    return other;
}

/* How far from a pixel's place a tap reads. */
using FirstTap = FirstPlace;

/* Beyond the last tap: the first, for what nobody takes. */
__device__ __forceinline__ FirstTap first_tap(const FirstConv &f, int32_t number) {
    const int32_t tap = number < f.taps ? number : 0;
    FirstTap to;
    to.row = static_cast<int32_t>(f.by_taps_row.quotient(static_cast<uint32_t>(tap)));
    to.in_row = tap - to.row * static_cast<int32_t>(f.by_taps_row.divisor);
    to.at = to.row * f.row + to.in_row;
    return to;
}

/* The bits of what the tap reads for a pixel, in 32; 0 beside x, where there may only be something if `padded`. */
template <bool padded>
__device__ __forceinline__ uint32_t first_value(const void *x, const FirstConv &f, const FirstPlace &place, const FirstTap &tap) {
    const char *from = static_cast<const char *>(x) + static_cast<uint32_t>(place.at + tap.at) * 2;
    uint32_t value = 0;
    bool inside = true;
    if constexpr (padded)
        inside = (static_cast<uint32_t>(place.row + tap.row) < static_cast<uint32_t>(f.height)) &
                 (static_cast<uint32_t>(place.in_row + tap.in_row) < static_cast<uint32_t>(f.row)); /* no branches */
    if (inside) {
#if defined(__CUDA_ARCH__)
        asm("ld.global.nc.u16 %0, [%1];" : "=r"(value) : "l"(from));
#else
        value = *reinterpret_cast<const uint16_t *>(from);
#endif
    }
    return value;
}

template <typename T>
constexpr uint32_t kOneBits = std::is_same<T, __half>::value ? 0x3c00 : 0x3f80;

/* Of two pairs of halves: the first ones and the second ones. */
__device__ __forceinline__ uint32_t first_halves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); }
__device__ __forceinline__ uint32_t second_halves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); }

/* What becomes of a pair of values: those of a tap stay, what comes after the last tap is one, and then 0. */
struct FirstKeep {
    uint32_t keep, add;
    __device__ __forceinline__ uint32_t operator()(uint32_t pair) const { return (pair & keep) | add; }
};
__device__ __forceinline__ FirstKeep first_keep(const FirstConv &f, int32_t a, int32_t b, uint32_t one) {
    FirstKeep k;
    k.keep = (a < f.taps ? 0xffffu : 0) | (b < f.taps ? 0xffff0000u : 0);
    k.add = (a == f.taps ? one : 0) | (b == f.taps ? one << 16 : 0);
    return k;
}

/* W words that are read once: past L1, which is for x. */
template <int W>
__device__ __forceinline__ Pack<uint32_t, W> load_once(const void *from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    Pack<uint32_t, W> pack;
    if constexpr (W == 1)
        asm("ld.global.nc.L1::no_allocate.b32 %0, [%1];" : "=r"(pack.v[0]) : "l"(from));
    else
        asm("ld.global.nc.L1::no_allocate.v2.b32 {%0, %1}, [%2];" : "=r"(pack.v[0]), "=r"(pack.v[1]) : "l"(from));
    return pack;
#else
    return load_pack<uint32_t, W>(static_cast<const uint32_t *>(from), true);
#endif
}

__device__ __forceinline__ __half2 as_pair(uint32_t bits, const __half *) {
    union {
        uint32_t bits;
        __half2_raw raw;
    } u = {bits};
    return u.raw;
}
__device__ __forceinline__ __nv_bfloat162 as_pair(uint32_t bits, const __nv_bfloat16 *) {
    union {
        uint32_t bits;
        __nv_bfloat162_raw raw;
    } u = {bits};
    return u.raw;
}

/* The gradient behind relu: dy where its result y is above 0, NaN where that is NaN, else 0; two halves. */
template <typename T>
__device__ __forceinline__ uint32_t behind_relu(uint32_t dy, uint32_t y) {
    const auto result = as_pair(y, static_cast<const T *>(nullptr)), zero = as_pair(0, static_cast<const T *>(nullptr));
    return (dy & __hgt2_mask(result, zero)) | __hneu2_mask(result, result);
}

/* --- the gradient of the weight ------------------------------------------------------------------------------------------------------------------------- */

/* Value `i` of the sums of a tile of channels: [column, channel]. Columns: the taps, then the bias's. */
template <int kChannels>
__device__ __forceinline__ void finish_first(const FirstSums &s, const FirstConv &f, uint32_t i, float sum) {
    const int32_t column = static_cast<int32_t>(i) / kChannels,
                  channel = static_cast<int32_t>(blockIdx.x) * kChannels + static_cast<int32_t>(i) % kChannels;
    const bool is_bias = column == f.taps;
    void *to = is_bias ? s.db : s.dw;
    const int64_t at = is_bias ? channel : channel * f.taps + column;
    if (!to) return;
    if (s.accumulate) sum += static_cast<const float *>(to)[at];
    store_as(to, is_bias ? s.db_dtype : s.dw_dtype, at, sum);
}

/* Block (x, y) sums 16 M channels, tile x, over part y of the pixels. N: blocks of 8 columns. `masked`: dy is the gradient behind relu, whose result is y. */
template <typename T, int M, int N, bool masked, bool padded>
__global__ void __launch_bounds__(kFirstWarps * 32, first_gradient_resident(N, masked, padded))
    k_first_conv_gradient(const T *dy, const T *y, const T *x, const __grid_constant__ FirstConv f, const __grid_constant__ FirstSums s) {
    constexpr int U = kFirstGradientSteps, kChannels = M * 16, kPitch = kChannels + 4; /* rows of sums begin in different banks */
    constexpr int kWarp = N * 8 * kPitch;
#ifdef GT__EMULATED
    float *sums = reinterpret_cast<float *>(gt__emulated_shared);
#else
    __shared__ alignas(16) float sums[kFirstWarps * kWarp];
#endif
    const int32_t lane = static_cast<int32_t>(threadIdx.x) & 31, warp = static_cast<int32_t>(threadIdx.x) >> 5, group = lane >> 2,
                  quarter = lane & 3, columns = f.taps + masked;
    const int32_t channel = static_cast<int32_t>(blockIdx.x) * kChannels + group * 2 * M;

    FirstTap tap[N]; /* of the lane's columns */
    FirstKeep keep[N];
#pragma unroll
    for (int n = 0; n < N; n++) {
        tap[n] = first_tap(f, n * 8 + group);
        keep[n] = first_keep(f, n * 8 + group, n * 8 + group, masked ? kOneBits<T> : 0);
    }
    float sum[M][N][4];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sum[m][n][i] = 0.0f;

    const int32_t next = static_cast<int32_t>(gridDim.y) * kFirstWarps * U * 16;
    for (int32_t begin = (static_cast<int32_t>(blockIdx.y) * kFirstWarps + warp) * U * 16; begin < f.pixels; begin += next) {
        Pack<uint32_t, M> gradient[U][4], result[masked ? U : 1][4];
        const int32_t mine = begin + quarter;
        const int64_t at = (static_cast<int64_t>(mine) * f.out_channels + channel) * 2;
        const bool whole = begin + U * 16 <= f.pixels;
        if (whole) {
#pragma unroll
            for (int i = 0; i < U * 4; i++) {
                const uint32_t further = static_cast<uint32_t>(i * 4 * f.out_channels) * 2;
                gradient[i / 4][i % 4] = load_once<M>(reinterpret_cast<const char *>(dy) + at + further);
                if constexpr (masked) result[i / 4][i % 4] = load_once<M>(reinterpret_cast<const char *>(y) + at + further);
            }
        } else {
#pragma unroll
            for (int i = 0; i < U * 4; i++) {
                const uint32_t further = static_cast<uint32_t>(i * 4 * f.out_channels) * 2;
                const bool valid = mine + i * 4 < f.pixels;
                gradient[i / 4][i % 4] = {};
                if (valid) gradient[i / 4][i % 4] = load_once<M>(reinterpret_cast<const char *>(dy) + at + further);
                if constexpr (masked) {
                    result[i / 4][i % 4] = {};
                    if (valid) result[i / 4][i % 4] = load_once<M>(reinterpret_cast<const char *>(y) + at + further);
                }
            }
        }
        const FirstPlace place = first_place(f, begin + lane);
#pragma unroll
        for (int u = 0; u < U; u++) {
            uint32_t value[4][N];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const FirstPlace other = first_place_of<padded>(place, u * 16 + j * 4 + quarter);
#pragma unroll
                for (int n = 0; n < N; n++) value[j][n] = first_value<padded>(x, f, other, tap[n]);
            }
            if (!whole) { /* 0 times what is not finite would not be 0 */
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int n = 0; n < N; n++)
                        if (mine + u * 16 + j * 4 >= f.pixels) value[j][n] = 0;
            }
            uint32_t b[N][2];
#pragma unroll
            for (int n = 0; n < N; n++) {
                b[n][0] = keep[n](first_halves(value[0][n], value[1][n]));
                b[n][1] = keep[n](first_halves(value[2][n], value[3][n]));
            }
#pragma unroll
            for (int m = 0; m < M; m++) {
                uint32_t pair[4], a[4];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    pair[j] = gradient[u][j].v[m];
                    if constexpr (masked) pair[j] = behind_relu<T>(pair[j], result[u][j].v[m]);
                }
                a[0] = first_halves(pair[0], pair[1]);
                a[1] = second_halves(pair[0], pair[1]);
                a[2] = first_halves(pair[2], pair[3]);
                a[3] = second_halves(pair[2], pair[3]);
#pragma unroll
                for (int n = 0; n < N; n++) multiply<T>(sum[m][n], a, b[n][0], b[n][1]);
            }
        }
    }

    /* Over the block's warps. */
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            Pack<float, 2 * M> pack;
#pragma unroll
            for (int m = 0; m < M; m++) {
                pack.v[2 * m] = sum[m][n][i];
                pack.v[2 * m + 1] = sum[m][n][2 + i];
            }
            store_pack(sums + warp * kWarp + (n * 8 + quarter * 2 + i) * kPitch + group * 2 * M, pack, true);
        }
    }
    __syncthreads();
    const uint32_t part = blockIdx.y, values = static_cast<uint32_t>(columns * kChannels);
    float *own = own_part(s, blockIdx.x, part, values);
    for (uint32_t i = threadIdx.x * 4; i < values; i += kFirstWarps * 32 * 4) {
        const float *from = sums + i / kChannels * kPitch + i % kChannels;
        Pack<float, 4> total = load_pack<float, 4>(from, true);
#pragma unroll
        for (int w = 1; w < kFirstWarps; w++) {
            const Pack<float, 4> more = load_pack<float, 4>(from + w * kWarp, true);
#pragma unroll
            for (int k = 0; k < 4; k++) total.v[k] += more.v[k];
        }
        if (s.parts > 1) {
            store_pack(own + i, total, true);
        } else {
#pragma unroll
            for (uint32_t k = 0; k < 4; k++) finish_first<kChannels>(s, f, i + k, total.v[k]);
        }
    }
    if (s.parts > 1)
        join_parts<8>(s, blockIdx.x, gridDim.x, part, values, [&](uint32_t i, float value) { finish_first<kChannels>(s, f, i, value); });
}

/* --- forward --------------------------------------------------------------------------------------------------------------------------------------------------- */

/* Block x makes 8 N channels, tile y, of its share of the pixels. K: blocks of 16 taps, of which the bias is one. */
template <typename T, int N, int K, bool padded>
__global__ void __launch_bounds__(kFirstWarps * 32, kFirstForwardResident<K>)
    k_first_conv(const T *x, const T *w, const T *bias, T *y, const __grid_constant__ FirstConv f, bool relu) {
    constexpr int U = kFirstForwardSteps<K>;
    const int32_t lane = static_cast<int32_t>(threadIdx.x) & 31, warp = static_cast<int32_t>(threadIdx.x) >> 5, group = lane >> 2,
                  quarter = lane & 3, first = static_cast<int32_t>(blockIdx.x) * N * 8, channel = first + quarter * 2 * N;
    const uint16_t *weight = reinterpret_cast<const uint16_t *>(w), *add = reinterpret_cast<const uint16_t *>(bias);

    FirstTap tap[K][4]; /* of the lane's columns of the pixels' matrix, which are its rows of the weights' */
    FirstKeep keep[K][2];
    uint32_t b[K][N][2];
#pragma unroll
    for (int k = 0; k < K; k++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int32_t number = k * 16 + i * 8 + quarter * 2;
            uint32_t rows[2][N];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                tap[k][i * 2 + j] = first_tap(f, number + j);
#pragma unroll
                for (int n = 0; n < N; n++) {
                    const int32_t to = first + group / 2 * 2 * N + n * 2 + group % 2, at = number + j;
                    rows[j][n] = 0;
                    if (at < f.taps || (at == f.taps && bias)) rows[j][n] = __ldg(at < f.taps ? weight + to * f.taps + at : add + to);
                }
            }
            keep[k][i] = first_keep(f, number, number + 1, kOneBits<T>);
#pragma unroll
            for (int n = 0; n < N; n++) b[k][n][i] = first_halves(rows[0][n], rows[1][n]);
        }
    }

    const float least = relu ? 0.0f : -INFINITY;
    const int32_t next = static_cast<int32_t>(gridDim.y) * kFirstWarps * U * 16;
    for (int32_t begin = (static_cast<int32_t>(blockIdx.y) * kFirstWarps + warp) * U * 16; begin < f.pixels; begin += next) {
        const int32_t left = f.pixels - begin - group;
        const int64_t at = (static_cast<int64_t>(begin + group) * f.out_channels + channel) * 2;
        const FirstPlace place = first_place(f, begin + lane);
        uint32_t value[U][2][K][4];
#pragma unroll
        for (int u = 0; u < U; u++) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const FirstPlace other = first_place_of<padded>(place, u * 16 + j * 8 + group);
#pragma unroll
                for (int k = 0; k < K; k++)
#pragma unroll
                    for (int i = 0; i < 4; i++) value[u][j][k][i] = first_value<padded>(x, f, other, tap[k][i]);
            }
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            float sum[N][4];
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) sum[n][i] = 0.0f;
#pragma unroll
            for (int k = 0; k < K; k++) {
                uint32_t a[4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    a[i] = keep[k][i / 2](first_halves(value[u][i % 2][k][i / 2 * 2], value[u][i % 2][k][i / 2 * 2 + 1]));
#pragma unroll
                for (int n = 0; n < N; n++) multiply<T>(sum[n], a, b[k][n][0], b[k][n][1]);
            }
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int next_pixel = u * 16 + j * 8;
                Pack<T, 2 * N> pack;
#pragma unroll
                for (int n = 0; n < N; n++)
#pragma unroll
                    for (int i = 0; i < 2; i++) pack.v[n * 2 + i] = convert<T>(max_nan(sum[n][j * 2 + i], least));
                T *to = reinterpret_cast<T *>(reinterpret_cast<char *>(y) + at + static_cast<uint32_t>(next_pixel * f.out_channels) * 2);
                if (next_pixel < left) store_pack(to, pack, true);
            }
        }
    }
}

#endif

} // namespace gt

#endif
