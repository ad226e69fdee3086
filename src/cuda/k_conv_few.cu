/* First layers: convolutions of few input channels, where little is computed for each byte and a matrix product would spend its time on making operands.
 * Forward with bias and relu, and the gradient of the weight, which may be that of relu behind it and give the bias's gradient in the same pass.
 *
 * A tile is a run of neighbouring pixels of one image's result. A block keeps what the tile reads of x in shared memory, zeros where padding is, in the type that
 * is computed in. Forward: a thread makes V channels of P pixels; the weights are in shared memory too. Backward: a thread sums V channels of 9 taps over its
 * pixels in registers; blocks join their sums as join_parts.cuh says. What the tensor cores can compute k_first_conv_mma.cu takes instead. */
#include "cuda/join_parts.cuh"

#include <type_traits>

namespace {
using namespace gt;

constexpr int kForwardBlock = 128, kGradientBlock = 128;
constexpr int kForwardChannels = 64, kGradientChannels = 32; /* output channels of a block: a tile of channels */
constexpr int kMostChannels = 4;                             /* of the input */
constexpr int kMostTaps = 36;                                /* weights of an output channel */
constexpr int kChunkTaps = 9;                                /* that a thread sums */
constexpr int kLeastPixels = 64, kMostPixels = 1024;         /* of a tile */
constexpr int kForwardResident = 3, kGradientResident = 3;   /* blocks of a multiprocessor that registers must allow */
constexpr int kPatchBytes = 24 * 1024;
template <typename C>
constexpr int kPatch = kPatchBytes / static_cast<int>(sizeof(C));

/* Sizes in elements of one image and of one patch, whose rows are `pitch` long. */
struct Few {
    int64_t images;
    int32_t height, row, x_image;      /* of x; row: a row's elements */
    int32_t out_pixels, out_channels;  /* of y */
    int32_t taps, taps_row, taps_high; /* of the kernel: all, those of one of its rows, its rows */
    int32_t stride, padding;           /* along the height */
    int32_t step, before;              /* along the width, in elements */
    int32_t pitch;
    int32_t tile_pixels, tiles, all_tiles; /* tiles: of an image */
    FastDivide by_out_width, by_pitch, by_tiles;
    int32_t out_width;
};

/* What the gradient's blocks do with their sums. */
template <typename C>
struct Sums : PartSums<C> {
    int64_t part_pixels;     /* of all images' results, that a part sums */
    uint32_t channel_groups; /* of V channels, in a tile of channels */
    void *dw, *db;           /* either may be NULL */
    gt_dtype dw_dtype, db_dtype;
    bool accumulate;
};

#ifdef __CUDACC__

/* relu, with NaN kept. */
__device__ __forceinline__ float relu_of(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    float result;
    asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(result) : "f"(x));
    return result;
#else
    return x <= 0.0f ? 0.0f : x;
#endif
}
__device__ __forceinline__ double relu_of(double x) { return x <= 0.0 ? 0.0 : x; }

struct Tile {
    int64_t image;
    int32_t begin, end;      /* pixels of the image's result */
    int32_t first_row, rows; /* of the result, that these lie in */
};

__device__ __forceinline__ Tile tile_of(const Few &f, int64_t image, int32_t begin, int32_t end) {
    Tile tile;
    tile.image = image;
    tile.begin = begin;
    tile.end = end;
    tile.first_row = static_cast<int32_t>(f.by_out_width.quotient(static_cast<uint32_t>(begin)));
    tile.rows = static_cast<int32_t>(f.by_out_width.quotient(static_cast<uint32_t>(end - 1))) - tile.first_row + 1;
    return tile;
}

/* Where the patch of a pixel begins. */
__device__ __forceinline__ int32_t patch_at(const Few &f, const Tile &tile, int32_t pixel) {
    const int32_t row = static_cast<int32_t>(f.by_out_width.quotient(static_cast<uint32_t>(pixel)));
    return (row - tile.first_row) * f.stride * f.pitch + (pixel - row * f.out_width) * f.step;
}

template <typename T, typename C>
__device__ __forceinline__ void load_patch(const T *__restrict__ x, const Few &f, const Tile &tile, C *patch, int32_t thread,
                                           int32_t threads) {
    constexpr int U = 4;
    const T *from = x + tile.image * f.x_image;
    const int32_t count = ((tile.rows - 1) * f.stride + f.taps_high) * f.pitch, top = tile.first_row * f.stride - f.padding;
    for (int32_t i = thread; i < count; i += U * threads) {
        C value[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            const int32_t k = i + u * threads, row = static_cast<int32_t>(f.by_pitch.quotient(static_cast<uint32_t>(k))), h = top + row,
                          at = k - row * f.pitch - f.before;
            const bool inside = k < count && h >= 0 && h < f.height && at >= 0 && at < f.row;
            value[u] = inside ? convert<C>(from[h * f.row + at]) : C(0);
        }
#pragma unroll
        for (int u = 0; u < U; u++)
            if (i + u * threads < count) patch[i + u * threads] = value[u];
    }
}

/* L: taps of a kernel's row, or 0 where it is known at run time only. */
template <typename T, int V, int P, int L>
__global__ void __launch_bounds__(kForwardBlock, kForwardResident)
    k_forward(const T *x, const T *w, const T *bias, T *y, Few f, bool relu, bool vector) {
    using C = compute_t<T>;
    __shared__ C patch[kPatch<C>];
    __shared__ alignas(32) C weights[(kMostTaps + 1) * kForwardChannels]; /* [tap, channel], then the bias */
    const int32_t threads = static_cast<int32_t>(blockDim.x * blockDim.y),
                  thread = static_cast<int32_t>(threadIdx.y * blockDim.x + threadIdx.x), width = static_cast<int32_t>(blockDim.x) * V,
                  slots = static_cast<int32_t>(blockDim.y);
    const int32_t channel = static_cast<int32_t>(blockIdx.y) * kForwardChannels + static_cast<int32_t>(threadIdx.x) * V;
    for (int32_t tap = static_cast<int32_t>(threadIdx.y); tap <= f.taps; tap += slots) {
        Pack<C, V> pack;
#pragma unroll
        for (int v = 0; v < V; v++) {
            pack.v[v] = C(0);
            if (channel + v < f.out_channels) {
                if (tap < f.taps)
                    pack.v[v] = convert<C>(w[static_cast<int64_t>(channel + v) * f.taps + tap]);
                else if (bias)
                    pack.v[v] = convert<C>(bias[channel + v]);
            }
        }
        store_pack(weights + tap * width + static_cast<int32_t>(threadIdx.x) * V, pack, true);
    }

    for (uint32_t number = blockIdx.x; number < static_cast<uint32_t>(f.all_tiles); number += gridDim.x) {
        const uint32_t image = f.by_tiles.quotient(number);
        const int32_t begin = static_cast<int32_t>(number - image * static_cast<uint32_t>(f.tiles)) * f.tile_pixels;
        const Tile tile = tile_of(f, image, begin, begin + f.tile_pixels < f.out_pixels ? begin + f.tile_pixels : f.out_pixels);
        __syncthreads();
        load_patch(x, f, tile, patch, thread, threads);
        __syncthreads();
        if (channel >= f.out_channels) continue;
        for (int32_t pixel = tile.begin + static_cast<int32_t>(threadIdx.y); pixel < tile.end; pixel += P * slots) {
            int32_t at[P];
            C sum[P][V];
            const C *weight = weights + threadIdx.x * V;
            const Pack<C, V> add = load_pack<C, V>(weight + f.taps * width, true);
#pragma unroll
            for (int u = 0; u < P; u++) {
                at[u] = patch_at(f, tile, pixel + u * slots < tile.end ? pixel + u * slots : pixel);
#pragma unroll
                for (int v = 0; v < V; v++) sum[u][v] = add.v[v];
            }
#pragma unroll 1
            for (int32_t i = 0; i < f.taps_high; i++) {
                const C *from = patch + i * f.pitch;
                const int32_t taps = L > 0 ? L : f.taps_row;
#pragma unroll(L > 0 ? L : 1)
                for (int32_t j = 0; j < taps; j++) {
                    const Pack<C, V> factor = load_pack<C, V>(weight, true);
                    weight += width;
#pragma unroll
                    for (int u = 0; u < P; u++) {
                        const C value = from[at[u] + j];
#pragma unroll
                        for (int v = 0; v < V; v++) sum[u][v] += value * factor.v[v];
                    }
                }
            }
            T *to = y + (tile.image * f.out_pixels + pixel) * f.out_channels + channel;
            const int64_t next = static_cast<int64_t>(slots) * f.out_channels;
#pragma unroll
            for (int u = 0; u < P; u++) {
                if (pixel + u * slots >= tile.end) break;
                Pack<T, V> pack;
#pragma unroll
                for (int v = 0; v < V; v++) pack.v[v] = convert<T>(relu ? relu_of(sum[u][v]) : sum[u][v]);
                if (vector) {
                    store_pack(to + u * next, pack, true);
                } else {
#pragma unroll
                    for (int v = 0; v < V; v++)
                        if (channel + v < f.out_channels) to[u * next + v] = pack.v[v];
                }
            }
        }
    }
}

/* V channels of a pixel's gradient. */
template <typename T, int V>
__device__ __forceinline__ Pack<T, V> load_channels(const T *p, int32_t left, bool vector) {
    if (vector) return load_pack<T, V>(p, true);
    Pack<T, V> pack;
#pragma unroll
    for (int v = 0; v < V; v++) pack.v[v] = v < left ? p[v] : convert<T>(compute_t<T>(0));
    return pack;
}

/* Value `i` of the block's tile of channels: tap or bias (the last of kValues), then thread.x and channel of it. */
template <typename C, int V>
__device__ __forceinline__ void finish(const Sums<C> &s, const Few &f, uint32_t i, C sum) {
    const uint32_t width = blockDim.x * V, t = i / width, o = i - t * width, chunk = o / V / s.channel_groups,
                   group = o / V - chunk * s.channel_groups;
    const int64_t channel = static_cast<int64_t>(blockIdx.x) * kGradientChannels + group * V + o % V;
    if (channel >= f.out_channels) return;
    const bool is_bias = t == kChunkTaps;
    const int64_t tap = chunk * kChunkTaps + t;
    if (is_bias ? chunk != 0 : tap >= f.taps) return;
    void *to = is_bias ? s.db : s.dw;
    const int64_t at = is_bias ? channel : channel * f.taps + tap;
    if (!to) return;
    if (s.accumulate) sum += static_cast<const C *>(to)[at];
    store_as(to, is_bias ? s.db_dtype : s.dw_dtype, at, sum);
}

/* L: a chunk of kChunkTaps is whole rows of the kernel, of L taps each; 0: it begins and ends anywhere. `masked`: dy is the gradient behind relu, whose
 * result is y. */
template <typename T, int V, bool masked, int L>
__global__ void __launch_bounds__(kGradientBlock, kGradientResident)
    k_weight_gradient(const T *dy, const T *y, const T *x, Few f, Sums<compute_t<T>> s, bool vector) {
    using C = compute_t<T>;
    constexpr int U = masked ? 2 : 4; /* pixels whose loads are in flight together */
    constexpr int kValues = kChunkTaps + (masked ? 1 : 0);
    __shared__ alignas(32) C patch[kPatch<C>];
    static_assert(2 * kGradientBlock * V <= kPatch<C> && kValues * kGradientBlock <= kPatch<C>, "the sums are joined where the patch was");
    const int32_t threads = static_cast<int32_t>(blockDim.x * blockDim.y),
                  thread = static_cast<int32_t>(threadIdx.y * blockDim.x + threadIdx.x), slots = static_cast<int32_t>(blockDim.y);
    const int32_t chunk = static_cast<int32_t>(threadIdx.x / s.channel_groups),
                  channel = static_cast<int32_t>(blockIdx.x) * kGradientChannels +
                            (static_cast<int32_t>(threadIdx.x) - chunk * static_cast<int32_t>(s.channel_groups)) * V;
    int32_t tap_at[kChunkTaps]; /* with L: constants beside a row's beginning */
#pragma unroll
    for (int t = 0; t < kChunkTaps; t++) {
        if (L > 0) {
            constexpr int kRow = L > 0 ? L : 1;
            tap_at[t] = (chunk * (kChunkTaps / kRow) + t / kRow) * f.pitch + t % kRow;
        } else {
            const int32_t tap = chunk * kChunkTaps + t, row = tap / f.taps_row;
            tap_at[t] = tap < f.taps ? row * f.pitch + tap - row * f.taps_row : 0; /* what is summed beyond the last tap nobody takes */
        }
    }
    C sum[kValues][V];
#pragma unroll
    for (int t = 0; t < kValues; t++)
#pragma unroll
        for (int v = 0; v < V; v++) sum[t][v] = C(0);

    const uint32_t part = blockIdx.y;
    const int64_t pixels = f.images * f.out_pixels, stop = (part + 1) * s.part_pixels < pixels ? (part + 1) * s.part_pixels : pixels;
    int64_t image = part * s.part_pixels / f.out_pixels;
    for (int64_t begin = part * s.part_pixels; begin < stop;) {
        const int64_t first = image * f.out_pixels, next_image = first + f.out_pixels;
        int64_t end = begin + f.tile_pixels < stop ? begin + f.tile_pixels : stop;
        if (end > next_image) end = next_image;
        const Tile tile = tile_of(f, image, static_cast<int32_t>(begin - first), static_cast<int32_t>(end - first));
        image += end == next_image;
        begin = end;
        __syncthreads();
        load_patch(x, f, tile, patch, thread, threads);
        __syncthreads();
        if (channel >= f.out_channels) continue;
        const int32_t left = f.out_channels - channel;
        for (int32_t pixel = tile.begin + static_cast<int32_t>(threadIdx.y); pixel < tile.end; pixel += U * slots) {
            const int64_t at = (tile.image * f.out_pixels + pixel) * f.out_channels + channel,
                          next = static_cast<int64_t>(slots) * f.out_channels;
            Pack<T, V> gradient[U], result[masked ? U : 1];
#pragma unroll
            for (int u = 0; u < U; u++) {
                if (pixel + u * slots >= tile.end) break;
                gradient[u] = load_channels<T, V>(dy + at + u * next, left, vector);
                if constexpr (masked) result[u] = load_channels<T, V>(y + at + u * next, left, vector);
            }
#pragma unroll
            for (int u = 0; u < U; u++) {
                if (pixel + u * slots >= tile.end) break;
                const C *from = patch + patch_at(f, tile, pixel + u * slots);
                C g[V];
#pragma unroll
                for (int v = 0; v < V; v++) {
                    g[v] = convert<C>(gradient[u].v[v]);
                    if constexpr (masked) {
                        const C r = convert<C>(result[u].v[v]);
                        g[v] = r > C(0) ? g[v] : (r != r ? r : C(0));
                        sum[kChunkTaps][v] += g[v];
                    }
                }
#pragma unroll
                for (int t = 0; t < kChunkTaps; t++) {
                    const C value = from[tap_at[t]];
#pragma unroll
                    for (int v = 0; v < V; v++) sum[t][v] += value * g[v];
                }
            }
        }
    }

    /* Over the block: thread (row, column) sums the column of every row'th slot; one value after the other through one half of the memory or the other. */
    const int32_t width = static_cast<int32_t>(blockDim.x) * V, rows = threads / width, row = thread / width, column = thread - row * width;
    C mine[kValues];
    __syncthreads();
#pragma unroll
    for (int t = 0; t < kValues; t++) {
        C *shared = patch + (t & 1) * kGradientBlock * V;
        Pack<C, V> pack;
#pragma unroll
        for (int v = 0; v < V; v++) pack.v[v] = sum[t][v];
        store_pack(shared + thread * V, pack, true);
        __syncthreads();
        mine[t] = C(0);
        if (row < rows)
            for (int32_t slot = row; slot < slots; slot += rows) mine[t] += shared[slot * width + column];
    }
    __syncthreads();
    if (row < rows) {
#pragma unroll
        for (int t = 0; t < kValues; t++) patch[t * kGradientBlock + thread] = mine[t];
    }
    __syncthreads();

    const uint32_t values = static_cast<uint32_t>(kValues * width);
    C *own = own_part(s, blockIdx.x, part, values);
    for (uint32_t i = static_cast<uint32_t>(thread); i < values; i += static_cast<uint32_t>(threads)) {
        const uint32_t t = i / static_cast<uint32_t>(width), o = i - t * static_cast<uint32_t>(width);
        C value = C(0);
        for (int32_t r = 0; r < rows; r++) value += patch[t * kGradientBlock + static_cast<uint32_t>(r * width) + o];
        if (s.parts == 1)
            finish<C, V>(s, f, i, value);
        else
            own[i] = value;
    }
    if (s.parts == 1) return;
    join_parts<16>(s, blockIdx.x, gridDim.x, part, values, [&](uint32_t i, C value) { finish<C, V>(s, f, i, value); });
}

/* --- more channels and fewer ------------------------------------------------------------------------------------------------------------------ */

constexpr int kPadBlock = 256;
constexpr int kPadPixels = 4; /* of a thread: `from` channels are that many 8-byte loads */

template <int from, int to>
__global__ void __launch_bounds__(kPadBlock) k_pad_channels(uint16_t *y, const uint16_t *x, int64_t pixels, bool vector) {
    const int64_t step = gridDim.x * static_cast<int64_t>(kPadBlock) * kPadPixels;
    for (int64_t pixel = (blockIdx.x * static_cast<int64_t>(kPadBlock) + threadIdx.x) * kPadPixels; pixel < pixels; pixel += step) {
        uint16_t value[from * kPadPixels];
        const int64_t left = (pixels - pixel) * from;
#pragma unroll
        for (int k = 0; k < from; k++) {
            const uint16_t *at = x + pixel * from + k * kPadPixels;
            if (pixel + kPadPixels <= pixels) {
                const Pack<uint16_t, kPadPixels> pack = load_pack<uint16_t, kPadPixels>(at, vector);
#pragma unroll
                for (int i = 0; i < kPadPixels; i++) value[k * kPadPixels + i] = pack.v[i];
            } else {
#pragma unroll
                for (int i = 0; i < kPadPixels; i++) value[k * kPadPixels + i] = k * kPadPixels + i < left ? at[i] : uint16_t(0);
            }
        }
#pragma unroll
        for (int p = 0; p < kPadPixels; p += 8 / to) {
            Pack<uint16_t, 8> pack;
#pragma unroll
            for (int i = 0; i < 8; i++) pack.v[i] = i % to < from ? value[(p + i / to) * from + i % to] : uint16_t(0);
            uint16_t *at = y + (pixel + p) * to;
            if (pixel + p + 8 / to <= pixels) {
                store_pack(at, pack, true);
            } else {
#pragma unroll
                for (int i = 0; i < 8; i++)
                    if (pixel + p + i / to < pixels) at[i] = pack.v[i];
            }
        }
    }
}

template <typename T>
__global__ void __launch_bounds__(kPadBlock)
    k_crop_channels(void *y, gt_dtype dtype, const T *x, int64_t count, int64_t from, int64_t to, bool accumulate) {
    const int64_t step = gridDim.x * static_cast<int64_t>(kPadBlock);
    for (int64_t i = blockIdx.x * static_cast<int64_t>(kPadBlock) + threadIdx.x; i < count; i += step) {
        const int64_t pixel = i / to;
        float value = convert<float>(x[pixel * from + i - pixel * to]);
        if (accumulate) value += static_cast<const float *>(y)[i];
        store_as(y, dtype, i, value);
    }
}

#endif

/* --- the cut ----------------------------------------------------------------------------------------------------------------------------- */

int32_t patch_rows(const Few &f, int64_t pixels) {
    const int64_t rows = min64((pixels + f.out_width - 2) / f.out_width + 1, f.out_pixels / f.out_width);
    return static_cast<int32_t>((rows - 1) * f.stride + f.taps_high);
}

bool patch_fits(const Few &f, int64_t pixels, size_t size) {
    return static_cast<int64_t>(patch_rows(f, pixels)) * f.pitch <= kPatchBytes / static_cast<int64_t>(size);
}

/* False if these kernels do not take it. `size`: bytes of what is computed in. Tiles are not cut yet. */
bool few_make(Few *f, const gt_tensor *x, const gt_tensor *w, const gt_tensor *y, const gt__attrs *attr, size_t size) {
    const int64_t *xs = x->meta.shape, *ws = w->meta.shape, *ys = y->meta.shape;
    const int64_t channels = xs[1];
    memset(f, 0, sizeof *f);
    if (attr->conv.groups != 1 || attr->conv.dilation[0] != 1 || attr->conv.dilation[1] != 1) return false;
    if (channels < 1 || channels > kMostChannels || ws[2] > kMostTaps || ws[3] > kMostTaps || channels * ws[2] * ws[3] > kMostTaps)
        return false;
    if (x->meta.numel == 0 || w->meta.numel == 0 || y->meta.numel == 0) return false;
    const int64_t limit = FastDivide::kLimit / 4; /* sums of two stay below 2^31 */
    if (xs[2] > limit || xs[3] > limit || ys[2] > limit || ys[3] > limit || ws[0] > kGradientChannels * 1024) return false;
    if (attr->conv.stride[0] > 256 || attr->conv.stride[1] > 256 || attr->conv.padding[0] > 256 || attr->conv.padding[1] > 256)
        return false;
    if (xs[2] * xs[3] > limit / kMostChannels || ys[2] * ys[3] > limit || xs[0] > limit) return false;
    const int64_t pitch = ((ys[3] - 1) * attr->conv.stride[1] + ws[3]) * channels;
    if (pitch > kPatchBytes) return false;
    f->images = xs[0];
    f->height = static_cast<int32_t>(xs[2]);
    f->row = static_cast<int32_t>(xs[3] * channels);
    f->x_image = static_cast<int32_t>(xs[2] * xs[3] * channels);
    f->out_pixels = static_cast<int32_t>(ys[2] * ys[3]);
    f->out_width = static_cast<int32_t>(ys[3]);
    f->out_channels = static_cast<int32_t>(ws[0]);
    f->taps_high = static_cast<int32_t>(ws[2]);
    f->taps_row = static_cast<int32_t>(ws[3] * channels);
    f->taps = f->taps_high * f->taps_row;
    f->stride = static_cast<int32_t>(attr->conv.stride[0]);
    f->padding = static_cast<int32_t>(attr->conv.padding[0]);
    f->step = static_cast<int32_t>(attr->conv.stride[1] * channels);
    f->before = static_cast<int32_t>(attr->conv.padding[1] * channels);
    f->pitch = static_cast<int32_t>(pitch);
    f->by_out_width.set(f->out_width);
    f->by_pitch.set(pitch);
    return patch_fits(*f, kLeastPixels, size) && f->images * ceil_div(f->out_pixels, kLeastPixels) <= FastDivide::kLimit;
}

/* Tiles of `pixels`, or of fewer where the patch would be too large, all of about one size. */
void cut_tiles(Few *f, int64_t pixels, size_t size) {
    pixels = max64(min64(pixels, f->out_pixels), 1);
    while (pixels > kLeastPixels && !patch_fits(*f, pixels, size)) pixels = max64(pixels / 2, kLeastPixels);
    f->tiles = static_cast<int32_t>(ceil_div(f->out_pixels, pixels));
    f->tile_pixels = static_cast<int32_t>(ceil_div(f->out_pixels, f->tiles));
    f->tiles = static_cast<int32_t>(ceil_div(f->out_pixels, f->tile_pixels));
    f->all_tiles = static_cast<int32_t>(f->images * f->tiles);
    f->by_tiles.set(f->tiles);
}

/* V channels at a time can be read or written at once. */
template <typename T, int V>
bool can_vector(const Few &f, const void *a, const void *b) {
    return f.out_channels % V == 0 && aligned(a, sizeof(T) * V) && aligned(b, sizeof(T) * V);
}

/* Groups of v channels in a tile of `most`. */
uint32_t channel_groups(const Few &f, int most, int v) { return static_cast<uint32_t>(ceil_div(min64(f.out_channels, most), v)); }

/* How the gradient's pixels are shared out. */
struct Split {
    Parts parts;
    int64_t part_pixels;
    uint32_t block_x, block_y, tiles, channel_groups, values;
    size_t scratch; /* numbers */
};

Split split_make(gt__device *device, Few *f, int v, bool masked, size_t size, bool alone) {
    Split split;
    split.tiles = static_cast<uint32_t>(ceil_div(f->out_channels, kGradientChannels));
    split.channel_groups = channel_groups(*f, kGradientChannels, v);
    split.block_x = split.channel_groups * static_cast<uint32_t>(ceil_div(f->taps, kChunkTaps));
    split.block_y = kGradientBlock / split.block_x;
    const int64_t pixels = f->images * f->out_pixels, most = kGradientResident * static_cast<int64_t>(gt__cuda_multiprocessors(device));
    const int64_t wanted = min64(max64(most / split.tiles, 1), ceil_div(pixels, 4 * static_cast<int64_t>(split.block_y)));
    cut_tiles(f, kMostPixels, size);
    split.parts = parts_make(ceil_div(pixels, ceil_div(pixels, alone ? 1 : wanted)), split.tiles);
    split.part_pixels = ceil_div(pixels, split.parts.parts);
    split.values = static_cast<uint32_t>(kChunkTaps + (masked ? 1 : 0)) * split.block_x * static_cast<uint32_t>(v);
    split.scratch = split.parts.blocks_of_sums(split.tiles) * split.values;
    return split;
}

template <typename T, int P, int L>
gt_status forward(gt__device *device, const gt__call *call, const Few &f, uint32_t x, uint32_t y, uint32_t tiles) {
    constexpr int V = kVector<T>;
    const gt_tensor *bias = call->n_in > 2 ? call->in[2] : nullptr;
    T *to = data<T>(call->out[0]);
    /* As many blocks as run at once: each loads the weights once. */
    const int64_t blocks =
        min64(f.all_tiles,
              max64((P > 4 ? kForwardResident : kForwardResident + 1) * static_cast<int64_t>(gt__cuda_multiprocessors(device)) / tiles, 1));
    return launch2(device, call, "convolution", k_forward<T, V, P, L>, static_cast<uint32_t>(blocks), tiles, x, y,
                   data<const T>(call->in[0]), data<const T>(call->in[1]), data<const T>(bias), to, f, call->op == GT__OP_CONV2D_RELU,
                   can_vector<T, V>(f, to, to));
}

template <typename T>
gt_status forward_of(gt__device *device, const gt__call *call, Few *f) {
    constexpr int kMany = sizeof(T) == 8 ? 4 : 8;
    const uint32_t x = channel_groups(*f, kForwardChannels, kVector<T>), y = kForwardBlock / x,
                   tiles = static_cast<uint32_t>(ceil_div(f->out_channels, kForwardChannels));
    const int64_t blocks = f->images * ceil_div(f->out_pixels, static_cast<int64_t>(kMany) * y) * tiles;
    const bool many = blocks >= 4 * static_cast<int64_t>(gt__cuda_multiprocessors(device));
    cut_tiles(f, static_cast<int64_t>(many ? kMany : 4) * y, sizeof(compute_t<T>));
    if constexpr (sizeof(T) < 8) {
        if (f->taps_row == 3)
            return many ? forward<T, kMany, 3>(device, call, *f, x, y, tiles) : forward<T, 4, 3>(device, call, *f, x, y, tiles);
        if (f->taps_row == 9)
            return many ? forward<T, kMany, 9>(device, call, *f, x, y, tiles) : forward<T, 4, 9>(device, call, *f, x, y, tiles);
        if (many) return forward<T, kMany, 0>(device, call, *f, x, y, tiles);
    }
    return forward<T, 4, 0>(device, call, *f, x, y, tiles);
}

template <typename T, bool masked>
gt_status gradient_of(gt__device *device, const gt__call *call, Few *f, void *scratch) {
    constexpr int V = kVector<T>;
    using C = compute_t<T>;
    const gt_tensor *dy = call->in[0], *y = masked ? call->in[1] : nullptr, *x = call->in[masked ? 2 : 1];
    gt_tensor *dw = call->out[0], *db = masked ? call->out[1] : nullptr;
    const Split split = split_make(device, f, V, masked, sizeof(C), !scratch);
    Sums<C> sums;
    memset(&sums, 0, sizeof sums);
    static_cast<Parts &>(sums) = split.parts;
    sums.partial = static_cast<C *>(scratch);
    sums.counters = gt__cuda_counters(device);
    sums.part_pixels = split.part_pixels;
    sums.channel_groups = split.channel_groups;
    sums.dw = data(dw);
    sums.db = data(db);
    sums.dw_dtype = dw->meta.dtype;
    sums.db_dtype = db ? db->meta.dtype : dw->meta.dtype;
    sums.accumulate = call->attr.conv.accumulate != 0;
    const T *from = data<const T>(dy), *result = data<const T>(y), *image = data<const T>(x);
    const bool vector = can_vector<T, V>(*f, from, masked ? result : from);
    const bool square = f->taps_row == 3 && f->taps_high == 3;
    if constexpr (sizeof(T) < 8) {
        if (square)
            return launch2(device, call, "convolution", k_weight_gradient<T, V, masked, 3>, split.tiles, split.parts.parts, split.block_x,
                           split.block_y, from, result, image, *f, sums, vector);
        if (f->taps_row == 9)
            return launch2(device, call, "convolution", k_weight_gradient<T, V, masked, 9>, split.tiles, split.parts.parts, split.block_x,
                           split.block_y, from, result, image, *f, sums, vector);
    }
    return launch2(device, call, "convolution", k_weight_gradient<T, V, masked, 0>, split.tiles, split.parts.parts, split.block_x,
                   split.block_y, from, result, image, *f, sums, vector);
}

size_t compute_bytes(gt_dtype dtype) { return dtype == GT_DTYPE_F64 ? 8 : 4; }

struct Operands {
    const gt_tensor *x, *w, *y;
};

Operands operands_of(const gt__call *call) {
    switch (call->op) {
    case GT__OP_CONV2D_BACKWARD_WEIGHT:
        return {call->in[1], call->out[0], call->in[0]};
    case GT__OP_CONV2D_RELU_BACKWARD_WEIGHT:
        return {call->in[2], call->out[0], call->in[0]};
    default:
        return {call->in[0], call->in[1], call->out[0]};
    }
}

bool few_of(const gt__call *call, Few *f) {
    const Operands o = operands_of(call);
    return o.w && few_make(f, o.x, o.w, o.y, &call->attr, compute_bytes(o.y->meta.dtype));
}

} // namespace

int32_t gt__cuda_conv2d_few_takes(const gt__call *call) {
    Few f;
    return few_of(call, &f);
}

size_t gt__cuda_conv2d_few_scratch(gt__device *device, const gt__call *call) {
    Few f;
    if (gt__cuda_first_conv_takes(device, call)) return gt__cuda_first_conv_scratch(device, call);
    const bool masked = call->op == GT__OP_CONV2D_RELU_BACKWARD_WEIGHT;
    if ((!masked && call->op != GT__OP_CONV2D_BACKWARD_WEIGHT) || !few_of(call, &f)) return 0;
    const gt_dtype dtype = call->in[0]->meta.dtype;
    const size_t size = compute_bytes(dtype);
    return split_make(device, &f, static_cast<int>(16 / element_bytes(dtype)), masked, size, false).scratch * size;
}

gt_status gt__cuda_conv2d_few(gt__device *device, const gt__call *call, void *scratch) {
    Few f;
    if (gt__cuda_first_conv_takes(device, call)) return gt__cuda_first_conv(device, call, scratch);
    GT_CALL_REQUIRE(call, few_of(call, &f), GT_INTERNAL, "not for these kernels");
    switch (call->op) {
    case GT__OP_CONV2D_BACKWARD_WEIGHT:
        GT__FOR_FLOATS(call, call->in[0]->meta.dtype, return (gradient_of<T, false>(device, call, &f, scratch)));
        break;
    case GT__OP_CONV2D_RELU_BACKWARD_WEIGHT:
        GT__FOR_FLOATS(call, call->in[0]->meta.dtype, return (gradient_of<T, true>(device, call, &f, scratch)));
        break;
    default:
        GT__FOR_FLOATS(call, call->in[0]->meta.dtype, return forward_of<T>(device, call, &f));
        break;
    }
    return GT_OK;
}

gt_status gt__cuda_pad_channels(gt__device *device, void *to, const void *from, int64_t pixels, int64_t from_channels,
                                int64_t to_channels) {
    if (pixels <= 0) return GT_OK;
    const uint32_t grid = grid_for(ceil_div(pixels, kPadPixels), kPadBlock);
    const bool vector = aligned(from, 8);
    uint16_t *y = static_cast<uint16_t *>(to);
    const uint16_t *x = static_cast<const uint16_t *>(from);
    switch (from_channels * 16 + to_channels) {
    case 1 * 16 + 4:
        return launch(device, nullptr, k_pad_channels<1, 4>, grid, kPadBlock, y, x, pixels, vector);
    case 2 * 16 + 4:
        return launch(device, nullptr, k_pad_channels<2, 4>, grid, kPadBlock, y, x, pixels, vector);
    case 3 * 16 + 4:
        return launch(device, nullptr, k_pad_channels<3, 4>, grid, kPadBlock, y, x, pixels, vector);
    case 1 * 16 + 8:
        return launch(device, nullptr, k_pad_channels<1, 8>, grid, kPadBlock, y, x, pixels, vector);
    case 2 * 16 + 8:
        return launch(device, nullptr, k_pad_channels<2, 8>, grid, kPadBlock, y, x, pixels, vector);
    case 3 * 16 + 8:
        return launch(device, nullptr, k_pad_channels<3, 8>, grid, kPadBlock, y, x, pixels, vector);
    default:
        GT_FAIL(GT_INTERNAL, "%lld channels are not padded to %lld", static_cast<long long>(from_channels),
                static_cast<long long>(to_channels));
    }
}

gt_status gt__cuda_crop_channels(gt__device *device, void *to, gt_dtype to_dtype, const void *from, gt_dtype from_dtype, int64_t pixels,
                                 int64_t from_channels, int64_t to_channels, int32_t accumulate) {
    const int64_t count = pixels * to_channels;
    if (count <= 0) return GT_OK;
    const uint32_t grid = grid_for(count, kPadBlock);
    switch (from_dtype) {
    case GT_DTYPE_F16:
        return launch(device, nullptr, k_crop_channels<__half>, grid, kPadBlock, to, to_dtype, static_cast<const __half *>(from), count,
                      from_channels, to_channels, accumulate != 0);
    case GT_DTYPE_BF16:
        return launch(device, nullptr, k_crop_channels<__nv_bfloat16>, grid, kPadBlock, to, to_dtype,
                      static_cast<const __nv_bfloat16 *>(from), count, from_channels, to_channels, accumulate != 0);
    case GT_DTYPE_F32:
        return launch(device, nullptr, k_crop_channels<float>, grid, kPadBlock, to, to_dtype, static_cast<const float *>(from), count,
                      from_channels, to_channels, accumulate != 0);
    default:
        return gt__cuda_refuse_dtype(nullptr, from_dtype);
    }
}
