/* Copies between strided tensors with conversion, and what is made of them: cast, slice_backward, concat, pad; and fill, arange. */
#include "cuda/launch.cuh"

namespace {
using namespace gt;

constexpr int kBlock = 256;
constexpr int kUnroll = 2;
constexpr int kTile = 32;
constexpr int kTileRows = 8;
constexpr int kWideTile = 64;

/* --- conversion ------------------------------------------------------------------------------------------------------------------ */

template <typename T>
struct Range {
    static constexpr bool integer = false;
};
template <>
struct Range<int32_t> {
    static constexpr bool integer = true;
    static constexpr int64_t low = INT32_MIN, high = INT32_MAX;
};
template <>
struct Range<int64_t> {
    static constexpr bool integer = true;
    static constexpr int64_t low = INT64_MIN, high = INT64_MAX;
};
template <>
struct Range<uint8_t> {
    static constexpr bool integer = true;
    static constexpr int64_t low = 0, high = UINT8_MAX;
};

/* Float to integer truncates, out of range saturates, NaN gives 0. */
template <typename To, typename From>
__host__ __device__ __forceinline__ To to_integer(From x) {
    constexpr int64_t low = Range<To>::low, high = Range<To>::high;
    if constexpr (Range<From>::integer) {
        const int64_t wide = static_cast<int64_t>(x);
        return static_cast<To>(wide < low ? low : (wide > high ? high : wide));
    } else {
        if (x != x) return 0;
        if (x <= static_cast<From>(low)) return static_cast<To>(low);
        if (x >= static_cast<From>(high)) return static_cast<To>(high);
        return static_cast<To>(x);
    }
}

template <typename To, typename From>
__device__ __forceinline__ To cast_value(From x) {
    if constexpr (Range<To>::integer) {
        return to_integer<To>(convert<compute_t<From>>(x));
    } else if constexpr (Range<From>::integer) {
        return convert<To>(static_cast<compute_t<To>>(x));
    } else if constexpr (sizeof(From) == 8) {
        return convert<To>(x);
    } else {
        return convert<To>(convert<float>(x));
    }
}

template <typename To, typename From>
__global__ void __launch_bounds__(kBlock) k_cast_dense(const From *x, To *y, int64_t n, bool vector) {
    constexpr int V = static_cast<int>(16 / (sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From)));
    constexpr int64_t kSpan = static_cast<int64_t>(kBlock) * kUnroll * V;
    for (int64_t begin = blockIdx.x * kSpan; begin < n; begin += gridDim.x * kSpan) {
        Pack<From, V> in[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; u++) {
            const int64_t at = begin + (static_cast<int64_t>(u) * kBlock + threadIdx.x) * V;
            if (at + V <= n) in[u] = load_pack<From, V>(x + at, vector);
        }
#pragma unroll
        for (int u = 0; u < kUnroll; u++) {
            const int64_t at = begin + (static_cast<int64_t>(u) * kBlock + threadIdx.x) * V;
            if (at + V <= n) {
                Pack<To, V> out;
#pragma unroll
                for (int i = 0; i < V; i++) out.v[i] = cast_value<To>(in[u].v[i]);
                store_pack(y + at, out, vector);
            } else {
                for (int64_t i = at; i < n; i++) y[i] = cast_value<To>(x[i]);
            }
        }
    }
}

template <typename To>
__global__ void __launch_bounds__(kBlock) k_cast_strided(const void *x, gt_dtype from, To *y, Walk<2> walk) {
    for (int64_t i = blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x; i < walk.numel;
         i += gridDim.x * static_cast<int64_t>(kBlock)) {
        int64_t at[2];
        walk_offsets(walk, i, at);
        To value;
        switch (from) {
        case GT_DTYPE_F32:
            value = cast_value<To>(static_cast<const float *>(x)[at[1]]);
            break;
        case GT_DTYPE_F16:
            value = cast_value<To>(static_cast<const __half *>(x)[at[1]]);
            break;
        case GT_DTYPE_BF16:
            value = cast_value<To>(static_cast<const __nv_bfloat16 *>(x)[at[1]]);
            break;
        case GT_DTYPE_F64:
            value = cast_value<To>(static_cast<const double *>(x)[at[1]]);
            break;
        case GT_DTYPE_I32:
            value = cast_value<To>(static_cast<const int32_t *>(x)[at[1]]);
            break;
        case GT_DTYPE_I64:
            value = cast_value<To>(static_cast<const int64_t *>(x)[at[1]]);
            break;
        default:
            value = cast_value<To>(static_cast<const uint8_t *>(x)[at[1]]);
            break;
        }
        y[at[0]] = value;
    }
}

template <typename To, typename From>
gt_status cast_dense(gt__device *device, const gt__call *call, const void *x, void *y, int64_t n) {
    constexpr int V = static_cast<int>(16 / (sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From)));
    const bool vector = aligned(x, V * sizeof(From)) && aligned(y, V * sizeof(To));
    return launch(device, call, k_cast_dense<To, From>, grid_for(n, kBlock * kUnroll * V), kBlock, static_cast<const From *>(x),
                  static_cast<To *>(y), n, vector);
}

gt_status convert_walk(gt__device *device, const gt__call *call, void *y, gt_dtype to, const void *x, gt_dtype from, const Walk<2> &walk) {
    if (walk.linear()) {
        const int64_t n = walk.numel;
        if (from == GT_DTYPE_F32 && to == GT_DTYPE_F16) return cast_dense<__half, float>(device, call, x, y, n);
        if (from == GT_DTYPE_F16 && to == GT_DTYPE_F32) return cast_dense<float, __half>(device, call, x, y, n);
        if (from == GT_DTYPE_F32 && to == GT_DTYPE_BF16) return cast_dense<__nv_bfloat16, float>(device, call, x, y, n);
        if (from == GT_DTYPE_BF16 && to == GT_DTYPE_F32) return cast_dense<float, __nv_bfloat16>(device, call, x, y, n);
        if (from == GT_DTYPE_U8 && to == GT_DTYPE_F32) return cast_dense<float, uint8_t>(device, call, x, y, n);
    }
    const uint32_t grid = grid_for(walk.numel, kBlock);
    GT__FOR_NUMBERS(call, to, return launch(device, call, k_cast_strided<T>, grid, kBlock, x, from, static_cast<T *>(y), walk));
    return GT_OK;
}

/* --- copies without conversion, in units of U ------------------------------------------------------------------------------------- */

template <typename U>
__global__ void __launch_bounds__(kBlock) k_copy_strided(const U *x, U *y, Walk<2> walk) {
    for (int64_t i = blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x; i < walk.numel;
         i += gridDim.x * static_cast<int64_t>(kBlock)) {
        int64_t at[2];
        walk_offsets(walk, i, at);
        y[at[0]] = x[at[1]];
    }
}

/* Transposes: `columns` is the axis along which y is contiguous, `rows` the one along which x is; `batch` walks the others. A tile is read along
 * rows and written along columns. */
template <typename U>
__global__ void __launch_bounds__(kTile *kTileRows)
    k_copy_tile(const U *x, U *y, int64_t rows, int64_t columns, int64_t x_step, int64_t y_step, FastDivide row_tiles,
                FastDivide column_tiles, Walk<2> batch, int64_t tiles) {
    __shared__ U tile[kTile][kTile + 1];
    for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
        const uint32_t tile_index = static_cast<uint32_t>(t);
        uint32_t rest = row_tiles.quotient(tile_index);
        const int64_t row = static_cast<int64_t>(tile_index - rest * row_tiles.divisor) * kTile;
        const uint32_t item = column_tiles.quotient(rest);
        const int64_t column = static_cast<int64_t>(rest - item * column_tiles.divisor) * kTile;
        int64_t at[2];
        walk_offsets(batch, item, at);
        const U *from = x + at[1];
        U *to = y + at[0];
        for (int i = threadIdx.y; i < kTile; i += kTileRows)
            if (column + i < columns && row + threadIdx.x < rows) tile[i][threadIdx.x] = from[(column + i) * x_step + row + threadIdx.x];
        __syncthreads();
        for (int i = threadIdx.y; i < kTile; i += kTileRows)
            if (row + i < rows && column + threadIdx.x < columns) to[(row + i) * y_step + column + threadIdx.x] = tile[threadIdx.x][i];
        __syncthreads();
    }
}

/* The same for 2- and 4-byte units, in tiles of up to 64 x 64 that are moved 16 bytes at a time on either side that is aligned for it. Shared memory
 * holds a tile as x has it, a column of it to a line of whole words. Lines have an odd number of words, and the second 32 begin a few words later: so
 * neighbouring threads meet in no bank, neither when they write N neighbours of one line, nor when they read one word each of N lines. */
template <typename U>
struct WideTile {
    static constexpr int kPack = 16 / sizeof(U), kPerWord = 4 / sizeof(U);
    static constexpr int kPacks = kWideTile / kPack; /* in a line */
    static constexpr int kLine = kWideTile / kPerWord + 1, kShift = 32 / kPacks;
    static constexpr int kWords = kWideTile * kLine + kShift;
    static constexpr int kBlocks = sizeof(U) == 2 ? 5 : 4; /* on a multiprocessor: 40 KB in flight and more */

    static __device__ __forceinline__ int line(int column) { return column * kLine + column / 32 * kShift; }
};

template <typename U>
__global__ void __launch_bounds__(kBlock, WideTile<U>::kBlocks)
    k_copy_tile_wide(const U *x, U *y, int64_t rows, int64_t columns, int64_t x_step, int64_t y_step, int32_t tile_rows,
                     int32_t tile_columns, FastDivide row_tiles, FastDivide column_tiles, Walk<2> batch, int64_t tiles, bool x_vector,
                     bool y_vector) {
    using W = WideTile<U>;
    constexpr int N = W::kPack, G = W::kPerWord;
    __shared__ uint32_t tile[W::kWords];
    for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
        const uint32_t tile_index = static_cast<uint32_t>(t);
        uint32_t rest = row_tiles.quotient(tile_index);
        const int64_t row = static_cast<int64_t>(tile_index - rest * row_tiles.divisor) * tile_rows;
        const uint32_t item = column_tiles.quotient(rest);
        const int64_t column = static_cast<int64_t>(rest - item * column_tiles.divisor) * tile_columns;
        int64_t at[2];
        walk_offsets(batch, item, at);
        const U *from = x + at[1] + column * x_step + row;
        U *to = y + at[0] + row * y_step + column;
        const int height = static_cast<int>(rows - row < tile_rows ? rows - row : tile_rows);
        const int width = static_cast<int>(columns - column < tile_columns ? columns - column : tile_columns);

        if (x_vector) {
            constexpr int kStep = kBlock / W::kPacks, kLoads = kWideTile / kStep;
            const int r = threadIdx.x % W::kPacks * N, first = threadIdx.x / W::kPacks;
            Pack<uint32_t, 4> words[kLoads];
#pragma unroll
            for (int u = 0; u < kLoads; u++) {
                const int c = first + u * kStep;
                if (c < width && r + N <= height) words[u] = *reinterpret_cast<const Pack<uint32_t, 4> *>(from + c * x_step + r);
            }
#pragma unroll
            for (int u = 0; u < kLoads; u++) {
                const int c = first + u * kStep;
                if (c < width && r + N <= height) {
#pragma unroll
                    for (int k = 0; k < 4; k++) tile[W::line(c) + r / G + k] = words[u].v[k];
                } else if (c < width) {
                    for (int k = r; k < height; k++) reinterpret_cast<U *>(tile + W::line(c))[k] = from[c * x_step + k];
                }
            }
        } else {
            constexpr int kStep = kBlock / kWideTile;
            const int r = threadIdx.x % kWideTile;
#pragma unroll 4
            for (int c = threadIdx.x / kWideTile; c < width; c += kStep)
                if (r < height) reinterpret_cast<U *>(tile + W::line(c))[r] = from[c * x_step + r];
        }
        __syncthreads();
        if (y_vector) {
            constexpr int kStep = kBlock / W::kPacks * G;
            const int c = threadIdx.x % W::kPacks * N;
            for (int r = threadIdx.x / W::kPacks * G; r < height; r += kStep) {
                if (c >= width) break;
                uint32_t words[N];
#pragma unroll
                for (int k = 0; k < N; k++) words[k] = tile[W::line(c) + k * W::kLine + r / G];
#pragma unroll
                for (int g = 0; g < G; g++) { /* of each word one of its G rows */
                    if (r + g >= height) break;
                    U *line = to + (r + g) * y_step + c;
                    if (c + N <= width) {
                        Pack<uint32_t, 4> pack;
#pragma unroll
                        for (int k = 0; k < 4; k++) {
                            if (G == 1)
                                pack.v[k] = words[k];
                            else
                                pack.v[k] = __byte_perm(words[2 * k % N], words[(2 * k + 1) % N], g == 0 ? 0x5410 : 0x7632);
                        }
                        *reinterpret_cast<Pack<uint32_t, 4> *>(line) = pack;
                    } else {
#pragma unroll
                        for (int k = 0; k < N; k++)
                            if (c + k < width) line[k] = static_cast<U>(words[k] >> (g * 8 * sizeof(U)));
                    }
                }
            }
        } else {
            constexpr int kStep = kBlock / kWideTile;
            const int c = threadIdx.x % kWideTile;
#pragma unroll 4
            for (int r = threadIdx.x / kWideTile; r < height; r += kStep)
                if (c < width) to[r * y_step + c] = reinterpret_cast<const U *>(tile + W::line(c))[r];
        }
        __syncthreads();
    }
}

/* Where both are contiguous along axis 0 and everything is a multiple of a larger unit, the walk is made one in that unit. */
int64_t widen(Walk<2> *walk, int64_t bytes, const void *x, const void *y) {
    if (walk->stride[0][0] != 1 || walk->stride[1][0] != 1) return bytes;
    for (int64_t unit = 16; unit > bytes; unit /= 2) {
        const int64_t k = unit / bytes;
        bool fits = aligned(x, static_cast<size_t>(unit)) && aligned(y, static_cast<size_t>(unit)) && walk->size[0] % k == 0;
        for (int32_t a = 1; a < walk->ndim && fits; a++) fits = walk->stride[0][a] % k == 0 && walk->stride[1][a] % k == 0;
        if (!fits) continue;
        walk->size[0] /= k;
        walk->numel /= k;
        for (int32_t a = 1; a < walk->ndim; a++) {
            walk->stride[0][a] /= k;
            walk->stride[1][a] /= k;
        }
        walk->wide = walk->numel > FastDivide::kLimit;
        for (int32_t a = 0; a < walk->ndim && !walk->wide; a++) walk->divide[a].set(walk->size[a]);
        return unit;
    }
    return bytes;
}

/* Tiles of equal size, up to 64 and whole packs. */
int64_t tile_size(int64_t size) { return ceil_div(ceil_div(size, ceil_div(size, kWideTile)), 8) * 8; }

template <typename U>
gt_status copy_units(gt__device *device, const gt__call *call, const void *x, void *y, const Walk<2> &walk) {
    const U *from = static_cast<const U *>(x);
    U *to = static_cast<U *>(y);
    int32_t rows = 0;
    if (walk.stride[0][0] == 1 && walk.stride[1][0] != 1 && walk.size[0] >= kTile / 2)
        for (int32_t a = 1; a < walk.ndim; a++)
            if (walk.stride[1][a] == 1 && walk.size[a] >= kTile / 2) rows = a;
    if (rows > 0 && !walk.wide) {
        constexpr bool wide_tiles = sizeof(U) == 2 || sizeof(U) == 4;
        const int64_t tile_rows = wide_tiles ? tile_size(walk.size[rows]) : kTile,
                      tile_columns = wide_tiles ? tile_size(walk.size[0]) : kTile;
        const int64_t row_tiles = ceil_div(walk.size[rows], tile_rows), column_tiles = ceil_div(walk.size[0], tile_columns);
        bool vector[2] = {aligned(to, 16), aligned(from, 16)};
        int64_t shape[GT_MAX_DIMS], to_strides[GT_MAX_DIMS], from_strides[GT_MAX_DIMS];
        int32_t n = 0;
        for (int32_t a = walk.ndim - 1; a > 0; a--) {
            if (a == rows) continue;
            shape[n] = walk.size[a];
            to_strides[n] = walk.stride[0][a];
            from_strides[n++] = walk.stride[1][a];
        }
        for (int k = 0; k < 2; k++)
            for (int32_t a = 0; a < walk.ndim; a++)
                vector[k] = vector[k] && (a == (k == 0 ? 0 : rows) || walk.stride[k][a] % static_cast<int64_t>(16 / sizeof(U)) == 0);
        Walk<2> batch;
        walk_make<2>(&batch, n, shape, {to_strides, from_strides});
        const int64_t tiles = batch.numel * row_tiles * column_tiles;
        if (tiles <= FastDivide::kLimit) {
            FastDivide by_rows, by_columns;
            by_rows.set(row_tiles);
            by_columns.set(column_tiles);
            if constexpr (wide_tiles) {
                return launch2(device, call, "copy", k_copy_tile_wide<U>, static_cast<uint32_t>(tiles), 1u, kBlock, 1u, from, to,
                               walk.size[rows], walk.size[0], walk.stride[1][0], walk.stride[0][rows], static_cast<int32_t>(tile_rows),
                               static_cast<int32_t>(tile_columns), by_rows, by_columns, batch, tiles, vector[1], vector[0]);
            } else {
                return launch2(device, call, "copy", k_copy_tile<U>, static_cast<uint32_t>(tiles), 1u, kTile, kTileRows, from, to,
                               walk.size[rows], walk.size[0], walk.stride[1][0], walk.stride[0][rows], by_rows, by_columns, batch, tiles);
            }
        }
    }
    return launch2(device, call, "copy", k_copy_strided<U>, grid_for(walk.numel, kBlock), 1u, kBlock, 1u, from, to, walk);
}

gt_status copy_any(gt__device *device, const gt__call *call, void *y, gt_dtype to, const int64_t *y_strides, const void *x, gt_dtype from,
                   const int64_t *x_strides, int32_t ndim, const int64_t *shape) {
    Walk<2> walk;
    walk_make<2>(&walk, ndim, shape, {y_strides, x_strides});
    if (walk.numel == 0) return GT_OK;
    if (to != from) return convert_walk(device, call, y, to, x, from, walk);
    const int64_t bytes = element_bytes(to);
    if (walk.linear()) return gt__cuda_copy_dense(device, call, y, x, static_cast<size_t>(walk.numel * bytes));
    switch (widen(&walk, bytes, x, y)) {
    case 1:
        return copy_units<uint8_t>(device, call, x, y, walk);
    case 2:
        return copy_units<uint16_t>(device, call, x, y, walk);
    case 4:
        return copy_units<uint32_t>(device, call, x, y, walk);
    case 8:
        return copy_units<uint2>(device, call, x, y, walk);
    default:
        return launch2(device, call, "copy", k_copy_strided<uint4>, grid_for(walk.numel, kBlock), 1u, kBlock, 1u,
                       static_cast<const uint4 *>(x), static_cast<uint4 *>(y), walk);
    }
}

/* Copies `x` to where element `offset` of `y` is the first one, with y's strides. */
gt_status copy_into(gt__device *device, const gt__call *call, const gt_tensor *y, int64_t offset, const int64_t *y_strides,
                    const gt_tensor *x) {
    if (x->meta.numel == 0) return GT_OK;
    return copy_any(device, call, data<char>(y) + offset * element_bytes(y->meta.dtype), y->meta.dtype, y_strides, data(x), x->meta.dtype,
                    x->meta.strides, x->meta.ndim, x->meta.shape);
}

/* --- fill and arange -------------------------------------------------------------------------------------------------------------- */

template <typename U>
__global__ void __launch_bounds__(kBlock) k_fill_dense(U *y, int64_t n, U value, bool vector) {
    constexpr int V = kVector<U>;
    Pack<U, V> pack;
#pragma unroll
    for (int i = 0; i < V; i++) pack.v[i] = value;
    const int64_t step = gridDim.x * static_cast<int64_t>(kBlock) * V;
    for (int64_t at = (blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x) * V; at < n; at += step) {
        if (at + V <= n) {
            store_pack(y + at, pack, vector);
        } else {
            for (int64_t i = at; i < n; i++) y[i] = value;
        }
    }
}

template <typename U>
__global__ void __launch_bounds__(kBlock) k_fill_strided(U *y, U value, Walk<1> walk) {
    for (int64_t i = blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x; i < walk.numel;
         i += gridDim.x * static_cast<int64_t>(kBlock)) {
        int64_t at[1];
        walk_offsets(walk, i, at);
        y[at[0]] = value;
    }
}

template <typename U>
gt_status fill_units(gt__device *device, const gt__call *call, void *y, uint64_t bits, const Walk<1> &walk) {
    U *to = static_cast<U *>(y);
    const U value = static_cast<U>(bits);
    if (walk.linear())
        return launch(device, call, k_fill_dense<U>, grid_for(walk.numel, kBlock * kVector<U>), kBlock, to, walk.numel, value,
                      aligned(y, 16));
    return launch(device, call, k_fill_strided<U>, grid_for(walk.numel, kBlock), kBlock, to, value, walk);
}

/* `value` in `dtype`, as the low bits of a word. */
uint64_t value_bits(gt_dtype dtype, double value) {
    uint64_t bits = 0;
    switch (dtype) {
    case GT_DTYPE_F32: {
        const float v = static_cast<float>(value);
        memcpy(&bits, &v, sizeof v);
        break;
    }
    case GT_DTYPE_F16: {
        const __half v = __float2half_rn(static_cast<float>(value));
        memcpy(&bits, &v, sizeof v);
        break;
    }
    case GT_DTYPE_BF16: {
        const __nv_bfloat16 v = __float2bfloat16_rn(static_cast<float>(value));
        memcpy(&bits, &v, sizeof v);
        break;
    }
    case GT_DTYPE_F64:
        memcpy(&bits, &value, sizeof value);
        break;
    case GT_DTYPE_I32:
        bits = static_cast<uint32_t>(to_integer<int32_t>(value));
        break;
    case GT_DTYPE_I64:
        bits = static_cast<uint64_t>(to_integer<int64_t>(value));
        break;
    default:
        bits = to_integer<uint8_t>(value);
        break;
    }
    return bits;
}

gt_status fill(gt__device *device, const gt__call *call, const gt_tensor *y, double value) {
    if (y->meta.numel == 0) return GT_OK;
    Walk<1> walk;
    walk_make<1>(&walk, y->meta.ndim, y->meta.shape, {y->meta.strides});
    const uint64_t bits = value_bits(y->meta.dtype, value);
    const int64_t bytes = element_bytes(y->meta.dtype);
    if (bits == 0 && walk.linear()) return gt__cuda_zero(device, call, data(y), static_cast<size_t>(walk.numel * bytes));
    switch (bytes) {
    case 1:
        return fill_units<uint8_t>(device, call, data(y), bits, walk);
    case 2:
        return fill_units<uint16_t>(device, call, data(y), bits, walk);
    case 4:
        return fill_units<uint32_t>(device, call, data(y), bits, walk);
    default:
        return fill_units<uint64_t>(device, call, data(y), bits, walk);
    }
}

template <typename T>
__global__ void __launch_bounds__(kBlock) k_arange(T *y, double start, double step, Walk<2> walk) {
    for (int64_t i = blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x; i < walk.numel;
         i += gridDim.x * static_cast<int64_t>(kBlock)) {
        int64_t at[2];
        walk_offsets(walk, i, at);
        y[at[0]] = cast_value<T>(__dadd_rn(start, __dmul_rn(static_cast<double>(at[1]), step)));
    }
}

} // namespace

gt_status gt__cuda_copy_strided(gt__device *device, void *destination, const gt__meta *destination_meta, const void *source,
                                const gt__meta *source_meta) {
    return copy_any(device, nullptr, destination, destination_meta->dtype, destination_meta->strides, source, source_meta->dtype,
                    source_meta->strides, source_meta->ndim, source_meta->shape);
}

gt_status gt__cuda_copy(gt__device *device, const gt__call *call) {
    const gt_tensor *x = call->in[0], *y = call->out[0];
    if (y->meta.numel == 0) return GT_OK;
    int64_t strides[GT_MAX_DIMS];
    broadcast_strides(&x->meta, y->meta.ndim, y->meta.shape, strides);
    return copy_any(device, call, data(y), y->meta.dtype, y->meta.strides, data(x), x->meta.dtype, strides, y->meta.ndim, y->meta.shape);
}

gt_status gt__cuda_cast(gt__device *device, const gt__call *call) { return gt__cuda_copy(device, call); }

gt_status gt__cuda_fill(gt__device *device, const gt__call *call) { return fill(device, call, call->out[0], call->attr.scalar.value); }

gt_status gt__cuda_arange(gt__device *device, const gt__call *call) {
    const gt_tensor *y = call->out[0];
    if (y->meta.numel == 0) return GT_OK;
    int64_t order[GT_MAX_DIMS];
    for (int64_t a = y->meta.ndim - 1, step = 1; a >= 0; a--) {
        order[a] = step;
        step *= y->meta.shape[a];
    }
    Walk<2> walk;
    walk_make<2>(&walk, y->meta.ndim, y->meta.shape, {y->meta.strides, order});
    const uint32_t grid = grid_for(walk.numel, kBlock);
    GT__FOR_NUMBERS(call, y->meta.dtype,
                    return launch(device, call, k_arange<T>, grid, kBlock, data<T>(y), call->attr.random.a, call->attr.random.b, walk));
    return GT_OK;
}

gt_status gt__cuda_slice_backward(gt__device *device, const gt__call *call) {
    const gt_tensor *dy = call->in[0], *dx = call->out[0];
    if (dy->meta.numel != dx->meta.numel) GT_TRY(fill(device, call, dx, 0.0));
    const int32_t axis = call->attr.slice.axis;
    int64_t strides[GT_MAX_DIMS];
    memcpy(strides, dx->meta.strides, sizeof strides);
    strides[axis] *= call->attr.slice.step;
    return copy_into(device, call, dx, call->attr.slice.start * dx->meta.strides[axis], strides, dy);
}

gt_status gt__cuda_concat(gt__device *device, const gt__call *call) {
    const gt_tensor *y = call->out[0];
    const int32_t axis = call->attr.slice.axis;
    int64_t at = 0;
    for (int32_t k = 0; k < call->n_in; k++) {
        const gt_tensor *x = call->in[k];
        GT_TRY(copy_into(device, call, y, at * y->meta.strides[axis], y->meta.strides, x));
        at += x->meta.shape[axis];
    }
    return GT_OK;
}

gt_status gt__cuda_pad(gt__device *device, const gt__call *call) {
    const gt_tensor *x = call->in[0], *y = call->out[0];
    if (x->meta.numel != y->meta.numel) GT_TRY(fill(device, call, y, call->attr.pad.value));
    int64_t offset = 0;
    for (int32_t a = 0; a < y->meta.ndim; a++) offset += call->attr.pad.before[a] * y->meta.strides[a];
    return copy_into(device, call, y, offset, y->meta.strides, x);
}
