/* Convolutions of few channels on the tensor cores: the kernels of k_conv_mma.cu.
 *
 * cuDNN makes a convolution a product of a matrix that holds each pixel once for every tap. With few channels that matrix's way to the multiprocessors takes longer than the
 * product. Here a block keeps the patch of the image that a tile of the result reads in shared memory, once, and the taps are addresses into it.
 *
 * A tile is a run of pixels of all images' results; a patch has for each image the rows that are read, zeros where padding is, each pixel's channels padded by 16 bytes, so that
 * eight neighbouring pixels lie in different banks. */
#ifndef GT_CUDA_CONV_MMA_CUH
#define GT_CUDA_CONV_MMA_CUH

#include "cuda/mma.cuh"

namespace gt {

/* A correlation with stride 1: result [image, h, w, o] = sum over r, s, c of from [image, h + r - top, w + s - left, c] times weight [o, r, s, c]. */
struct Correlation {
    int32_t height, width;         /* of what is read */
    int32_t out_height, out_width; /* of the result */
    int32_t taps_high, taps_wide, top, left;
    int32_t patch_width, image_rows; /* columns of a patch; rows of a whole image in it */
    int32_t pixels;                  /* of all results: below 2^31 */
    int32_t tiles;
    int32_t out_channels; /* of the weight and the result: a multiple of 8 */
    FastDivide by_out_width, by_out_pixels, by_patch_width, by_image_rows;
};

constexpr int kTilePad = 8; /* halves after a row of shared memory */

#ifdef __CUDACC__

struct PatchTile {
    int32_t begin, end; /* pixels */
    int32_t image, row; /* of the first */
    int32_t rows;       /* of the patch */
};

__device__ __forceinline__ PatchTile patch_tile(const Correlation &c, int32_t begin, int32_t end) {
    PatchTile t;
    t.begin = begin;
    t.end = end;
    const int32_t pixels = static_cast<int32_t>(c.by_out_pixels.divisor);
    t.image = static_cast<int32_t>(c.by_out_pixels.quotient(static_cast<uint32_t>(begin)));
    t.row = static_cast<int32_t>(c.by_out_width.quotient(static_cast<uint32_t>(begin - t.image * pixels)));
    const int32_t last = static_cast<int32_t>(c.by_out_pixels.quotient(static_cast<uint32_t>(end - 1))),
                  row = static_cast<int32_t>(c.by_out_width.quotient(static_cast<uint32_t>(end - 1 - last * pixels)));
    t.rows = (last - t.image) * c.image_rows + row - t.row + c.taps_high;
    return t;
}

/* Where in the patch, in its pixels, what pixel number `pixel` reads for its first tap is. */
__device__ __forceinline__ int32_t patch_pixel(const Correlation &c, const PatchTile &t, int32_t pixel) {
    const int32_t pixels = static_cast<int32_t>(c.by_out_pixels.divisor);
    const int32_t image = static_cast<int32_t>(c.by_out_pixels.quotient(static_cast<uint32_t>(pixel))), in_image = pixel - image * pixels,
                  row = static_cast<int32_t>(c.by_out_width.quotient(static_cast<uint32_t>(in_image)));
    return ((image - t.image) * c.image_rows + row - t.row) * c.patch_width + in_image - row * c.out_width;
}

/* C: channels. Begins the copies of a patch. */
template <typename T, int C>
__device__ __forceinline__ void copy_patch(const T *__restrict__ from, const Correlation &c, const PatchTile &t, T *patch) {
    constexpr int kPieces = C / 8;
    const int32_t count = t.rows * c.patch_width * kPieces, first_rows = c.image_rows - t.row;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += static_cast<int32_t>(blockDim.x)) {
        const int32_t at = i / kPieces, piece = i - at * kPieces,
                      patch_row = static_cast<int32_t>(c.by_patch_width.quotient(static_cast<uint32_t>(at))),
                      w = at - patch_row * c.patch_width - c.left;
        int32_t image = t.image, h = t.row + patch_row;
        if (patch_row >= first_rows) {
            const int32_t rest = patch_row - first_rows,
                          further = static_cast<int32_t>(c.by_image_rows.quotient(static_cast<uint32_t>(rest)));
            image += 1 + further;
            h = rest - further * c.image_rows;
        }
        h -= c.top;
        const bool inside = h >= 0 && h < c.height && w >= 0 && w < c.width;
        const T *source = from;
        if (inside) source += ((static_cast<int64_t>(image) * c.height + h) * c.width + w) * C + piece * 8;
        copy_async(patch + at * (C + kTilePad) + piece * 8, source, inside);
    }
}

/* --- forward, and the gradient of the input ------------------------------------------------------------------------------------------------------- */

constexpr int kCorrelateWarps = 4;

/* Halves of shared memory for N channels of weights with C channels of `taps` taps. */
template <int C, int N, bool flipped>
__host__ __device__ constexpr int weight_halves(int taps) {
    return flipped ? taps * C * (N + kTilePad) : N * (taps * C + kTilePad);
}

/* flipped: the weight is [c, r, s, o] and is turned by half a turn, as the gradient of the input wants it; else [o, r, s, c]. */
template <typename T, int C, int N, bool flipped>
__device__ __forceinline__ void copy_weights(const T *__restrict__ weight, int32_t taps, int32_t first, int32_t out_channels, T *shared) {
    constexpr int kRow = flipped ? N : C, kPieces = kRow / 8;
    const int32_t rows = flipped ? taps * C : N * taps;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < rows * kPieces; i += static_cast<int32_t>(blockDim.x)) {
        const int32_t row = i / kPieces, piece = i - row * kPieces;
        if (flipped) {
            const int32_t tap = row / C, channel = row - tap * C, o = first + piece * 8;
            const bool inside = o < out_channels;
            const int64_t at = (static_cast<int64_t>(channel) * taps + taps - 1 - tap) * out_channels + o;
            copy_async(shared + row * (N + kTilePad) + piece * 8, inside ? weight + at : weight, inside);
        } else {
            const int32_t o = row / taps, tap = row - o * taps;
            const bool inside = first + o < out_channels;
            const int64_t at = (static_cast<int64_t>(first + o) * taps + tap) * C + piece * 8;
            copy_async(shared + o * (taps * C + kTilePad) + tap * C + piece * 8, inside ? weight + at : weight, inside);
        }
    }
}

/* A block's tile: kCorrelateWarps * M * 16 pixels by N channels; a warp has M * 16 pixels. */
template <typename T, int C, int M, int N, bool flipped>
__global__ void __launch_bounds__(kCorrelateWarps * 32)
    k_correlate(const T *from, const T *weight, const T *bias, T *to, const __grid_constant__ Correlation c, bool relu) {
#ifdef GT__EMULATED
    unsigned char *memory = gt__emulated_shared;
#else
    extern __shared__ __align__(16) unsigned char memory[];
#endif
    constexpr int kPitch = C + kTilePad, kPixels = kCorrelateWarps * M * 16, kOut = N + kTilePad;
    static_assert(C % 16 == 0 && N % 16 == 0, "whole matrices");
    const int32_t lane = static_cast<int32_t>(threadIdx.x) & 31, warp = static_cast<int32_t>(threadIdx.x) >> 5;
    const int32_t taps = c.taps_high * c.taps_wide, first = static_cast<int32_t>(blockIdx.y) * N;
    T *weights = reinterpret_cast<T *>(memory), *patch = weights + weight_halves<C, N, flipped>(taps);
    copy_weights<T, C, N, flipped>(weight, taps, first, c.out_channels, weights);

    for (int32_t number = static_cast<int32_t>(blockIdx.x); number < c.tiles; number += static_cast<int32_t>(gridDim.x)) {
        const int32_t begin = number * kPixels;
        const PatchTile tile = patch_tile(c, begin, c.pixels - begin < kPixels ? c.pixels : begin + kPixels);
        copy_patch<T, C>(from, c, tile, patch);
        copies_wait();
        __syncthreads();

        const T *row[M]; /* of the lane in the matrices of a */
#pragma unroll
        for (int m = 0; m < M; m++) {
            int32_t pixel = begin + (warp * M + m) * 16 + (lane & 15);
            if (pixel >= tile.end) pixel = tile.end - 1; /* whose result nobody takes */
            row[m] = patch + patch_pixel(c, tile, pixel) * kPitch + (lane >> 4) * 8;
        }
        float sum[M][N / 8][4];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) sum[m][n][i] = 0.0f;
        const T *column = flipped ? weights + (lane & 15) * (N + kTilePad) + (lane >> 4) * 8
                                  : weights + ((lane >> 4) * 8 + (lane & 7)) * (taps * C + kTilePad) + ((lane >> 3) & 1) * 8;
        for (int32_t r = 0; r < c.taps_high; r++) {
            for (int32_t s = 0; s < c.taps_wide; s++) {
                const int32_t at = (r * c.patch_width + s) * kPitch;
#pragma unroll
                for (int k = 0; k < C; k += 16) {
                    uint32_t a[M][4], b[N / 16][4];
#pragma unroll
                    for (int n = 0; n < N / 16; n++) {
                        if (flipped)
                            load_matrices_transposed(b[n], column + k * (N + kTilePad) + n * 16);
                        else
                            load_matrices(b[n], column + k + n * 16 * (taps * C + kTilePad));
                    }
#pragma unroll
                    for (int m = 0; m < M; m++) load_matrices(a[m], row[m] + at + k);
#pragma unroll
                    for (int m = 0; m < M; m++)
#pragma unroll
                        for (int n = 0; n < N / 8; n++) multiply<T>(sum[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
                }
                column += flipped ? C * (N + kTilePad) : C;
            }
        }

        /* Through shared memory, where the patch was, so that whole pixels are written. */
        __syncthreads();
        T *out = patch + warp * M * 16 * kOut;
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
            const int32_t o = n * 8 + (lane & 3) * 2;
            float add0 = 0.0f, add1 = 0.0f;
            if (bias && first + o < c.out_channels) {
                add0 = convert<float>(bias[first + o]);
                add1 = convert<float>(bias[first + o + 1]);
            }
#pragma unroll
            for (int m = 0; m < M; m++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float x = sum[m][n][half * 2] + add0, y = sum[m][n][half * 2 + 1] + add1;
                    if (relu) {
                        x = x <= 0.0f ? 0.0f : x; /* NaN stays */
                        y = y <= 0.0f ? 0.0f : y;
                    }
                    Pack<T, 2> pack;
                    pack.v[0] = convert<T>(x);
                    pack.v[1] = convert<T>(y);
                    store_pack(out + (m * 16 + half * 8 + (lane >> 2)) * kOut + o, pack, true);
                }
            }
        }
        __syncwarp();
#pragma unroll
        for (int i = lane; i < M * 16 * N / 8; i += 32) {
            const int32_t p = i / (N / 8), o = (i - p * (N / 8)) * 8, pixel = begin + warp * M * 16 + p;
            if (pixel < tile.end && first + o < c.out_channels)
                store_pack(to + static_cast<int64_t>(pixel) * c.out_channels + first + o, load_pack<T, 8>(out + p * kOut + o, true), true);
        }
        __syncthreads();
    }
}

/* --- the gradient of the weight --------------------------------------------------------------------------------------------------------------------- */

constexpr int kGradientWarps = 8;

/* partial [part, o, tap, c] = sum over the part's pixels p of dy [p, o] x [p moved by tap, c]. A block has kRows * 32 channels of the result by
 * kGradientWarps / kRows * kColumns * 8 pairs of tap and channel. */
template <typename T, int C, int kRows, int kColumns, int kPixels>
__global__ void __launch_bounds__(kGradientWarps * 32)
    k_correlate_gradient(const T *dy, const T *x, float *partial, const __grid_constant__ Correlation c) {
#ifdef GT__EMULATED
    unsigned char *memory = gt__emulated_shared;
#else
    extern __shared__ __align__(16) unsigned char memory[];
#endif
    constexpr int kPitch = C + kTilePad, kChannels = kRows * 32, kDy = kChannels + kTilePad, kPieces = kChannels / 8;
    constexpr int kMatrices = C / 8;
    const int32_t lane = static_cast<int32_t>(threadIdx.x) & 31, warp = static_cast<int32_t>(threadIdx.x) >> 5;
    const int32_t first = static_cast<int32_t>(blockIdx.z) * kChannels, warp_row = warp % kRows,
                  warp_column = (static_cast<int32_t>(blockIdx.y) * (kGradientWarps / kRows) + warp / kRows) * kColumns;
    const int32_t taps = c.taps_high * c.taps_wide, columns = taps * kMatrices;
    int32_t *places = reinterpret_cast<int32_t *>(memory); /* of the tile's pixels in the patch, in halves */
    T *gradient = reinterpret_cast<T *>(memory) + kPixels * 2, *patch = gradient + kPixels * kDy;

    int32_t moved[(kColumns + 1) / 2]; /* what the lane's rows of b are away from the pixel's place */
#pragma unroll
    for (int n = 0; n < (kColumns + 1) / 2; n++) {
        const int32_t column = warp_column + n * 2 + (lane >> 4), tap = column / kMatrices, r = tap / c.taps_wide;
        moved[n] = column < columns && n * 2 + (lane >> 4) < kColumns
                       ? (r * c.patch_width + tap - r * c.taps_wide) * kPitch + (column - tap * kMatrices) * 8
                       : 0;
    }
    float sum[2][kColumns][4];
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < kColumns; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sum[m][n][i] = 0.0f;

    for (int32_t number = static_cast<int32_t>(blockIdx.x); number < c.tiles; number += static_cast<int32_t>(gridDim.x)) {
        const int32_t begin = number * kPixels;
        const PatchTile tile = patch_tile(c, begin, c.pixels - begin < kPixels ? c.pixels : begin + kPixels);
        copy_patch<T, C>(x, c, tile, patch);
        for (int32_t i = static_cast<int32_t>(threadIdx.x); i < kPixels * kPieces; i += static_cast<int32_t>(blockDim.x)) {
            const int32_t p = i / kPieces, piece = i - p * kPieces, o = first + piece * 8;
            const bool inside = begin + p < tile.end && o < c.out_channels;
            copy_async(gradient + p * kDy + piece * 8, inside ? dy + static_cast<int64_t>(begin + p) * c.out_channels + o : dy, inside);
        }
        for (int32_t p = static_cast<int32_t>(threadIdx.x); p < kPixels; p += static_cast<int32_t>(blockDim.x))
            places[p] = patch_pixel(c, tile, begin + p < tile.end ? begin + p : tile.end - 1) * kPitch;
        copies_wait();
        __syncthreads();
        const int32_t count = tile.end - begin;
        for (int32_t k = 0; k < count; k += 16) {
            uint32_t a[2][4];
            const T *row = gradient + (k + (lane >> 4) * 8 + (lane & 7)) * kDy + warp_row * 32 + ((lane >> 3) & 1) * 8;
#pragma unroll
            for (int m = 0; m < 2; m++) load_matrices_transposed(a[m], row + m * 16);
            const T *place = patch + places[k + (lane & 15)];
#pragma unroll
            for (int n = 0; n < (kColumns + 1) / 2; n++) {
                uint32_t b[4];
                load_matrices_transposed(b, place + moved[n]);
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    multiply<T>(sum[m][n * 2], a[m], b[0], b[1]);
                    if (n * 2 + 1 < kColumns) multiply<T>(sum[m][n * 2 + 1], a[m], b[2], b[3]);
                }
            }
        }
        __syncthreads();
    }

    float *to = partial + static_cast<int64_t>(blockIdx.x) * c.out_channels * taps * C;
#pragma unroll
    for (int n = 0; n < kColumns; n++) {
        const int32_t column = warp_column + n;
        if (column >= columns) break;
#pragma unroll
        for (int m = 0; m < 2; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int32_t o = first + warp_row * 32 + m * 16 + half * 8 + (lane >> 2);
                if (o >= c.out_channels) continue;
                Pack<float, 2> pack;
                pack.v[0] = sum[m][n][half * 2];
                pack.v[1] = sum[m][n][half * 2 + 1];
                store_pack(to + static_cast<int64_t>(o) * taps * C + column * 8 + (lane & 3) * 2, pack, true);
            }
        }
    }
}

constexpr int kJoinColumns = 32, kJoinRows = 8;

/* dw [i] = the sum of partial [part, i] over the parts, in a fixed order; += where `accumulate`. `count` is a multiple of 4. */
template <typename T>
__global__ void __launch_bounds__(kJoinColumns *kJoinRows)
    k_join_parts(const float *partial, int32_t parts, int32_t count, T *dw, bool accumulate) {
#ifdef GT__EMULATED
    Pack<float, 4>(*shared)[kJoinColumns] = reinterpret_cast<Pack<float, 4>(*)[kJoinColumns]>(gt__emulated_shared);
#else
    __shared__ Pack<float, 4> shared[kJoinRows][kJoinColumns];
#endif
    const int32_t column = static_cast<int32_t>(threadIdx.x) % kJoinColumns, row = static_cast<int32_t>(threadIdx.x) / kJoinColumns,
                  at = (static_cast<int32_t>(blockIdx.x) * kJoinColumns + column) * 4;
    Pack<float, 4> sum = {};
    if (at < count) {
#pragma unroll 8
        for (int32_t part = row; part < parts; part += kJoinRows) {
            const Pack<float, 4> value = load_pack<float, 4>(partial + static_cast<int64_t>(part) * count + at, true);
#pragma unroll
            for (int i = 0; i < 4; i++) sum.v[i] += value.v[i];
        }
    }
    shared[row][column] = sum;
    __syncthreads();
    if (row > 0 || at >= count) return;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float value = 0.0f;
#pragma unroll
        for (int r = 0; r < kJoinRows; r++) value += shared[r][column].v[i];
        if (accumulate) value += convert<float>(dw[at + i]);
        dw[at + i] = convert<T>(value);
    }
}

#endif

} // namespace gt

#endif
