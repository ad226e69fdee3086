/* 2-d pooling with windows of 2 x 2, and of 3 x 3 with a border of 1, at stride 2.
 *
 * Window (r, c) begins at input (2r, 2c), or, of 3 x 3, one before it in each direction, and there it shares a row or column with its neighbour. A
 * thread makes V neighbouring channels. It walks down a few windows, or 2 x 2 tiles of inputs, one below the other, and keeps what the next one shares
 * with it. */
#include "cuda/pool_units.cuh"

namespace {
using namespace gt;

constexpr int kBlock = 256;

struct Tiles {
    int64_t count; /* of walks */
    int64_t channels;
    int32_t in_rows, in_columns, out_rows, out_columns;
    int32_t rows, run; /* of windows or tiles: in the image, and in a walk */
    FastDivide by_low, by_width, by_walks, by_high;
    bool include_padding;
    Layout layout;
};

struct Walker {
    int64_t image, channel; /* channel: the first of V */
    int32_t begin, end;     /* rows of windows or tiles */
    int32_t column;
};

/* Neighbouring threads have neighbouring packs of a pixel; or, where the smaller image has its channels apart, two packs each of neighbouring pixels,
 * so that either image is moved by whole sectors of 32 bytes. */
template <int V>
__device__ __forceinline__ Walker walker_of(const Tiles &tiles, uint32_t i) {
    Walker at;
    const uint32_t pixel = tiles.by_low.quotient(i), line = tiles.by_width.quotient(pixel), plane = tiles.by_walks.quotient(line),
                   image = tiles.by_high.quotient(plane);
    const uint32_t low = i - pixel * tiles.by_low.divisor, high = plane - image * tiles.by_high.divisor;
    at.image = image;
    at.channel = static_cast<int64_t>(high * tiles.by_low.divisor + low) * V;
    at.column = static_cast<int32_t>(pixel - line * tiles.by_width.divisor);
    at.begin = static_cast<int32_t>(line - plane * tiles.by_walks.divisor) * tiles.run;
    at.end = min(at.begin + tiles.run, tiles.rows);
    return at;
}

/* What a window's share of a sum is divided by. */
template <typename C, int K>
__device__ __forceinline__ C tile_divisor(const Tiles &tiles, int32_t row, int32_t column) {
    if (K == 2 || tiles.include_padding) return C(K * K);
    return C((3 - (row == 0) - (2 * row + 1 >= tiles.in_rows)) * (3 - (column == 0) - (2 * column + 1 >= tiles.in_columns)));
}

/* K neighbours in a row. Outside of the image stands a copy of the middle one: it never is a maximum before that, and is left out of sums. */
template <bool kMax, typename T, int V, int K>
__device__ __forceinline__ Part<kMax, T, V> part_of(const Pack<T, V> (&pixels)[K], bool first, bool last) {
    Part<kMax, T, V> part;
    part.begin(pixels[0], first ? 0 : 1);
    if (kMax || first)
        part.add(pixels[1], 1);
    else
        part.begin(pixels[1], 1);
    if (K > 2 && (kMax || last)) part.add(pixels[K - 1], 2);
    return part;
}

template <typename T, int K, bool kMax, bool kApart>
__global__ void __launch_bounds__(kBlock) k_pool_tiles(const T *x, T *y, uint8_t *index, Tiles tiles) {
    using C = compute_t<T>;
    constexpr int V = kVector<T>;
    const int64_t i = blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x;
    if (i >= tiles.count) return;
    const Walker at = walker_of<V>(tiles, static_cast<uint32_t>(i));
    const int64_t line = tiles.in_columns * tiles.channels, out_line = tiles.out_columns * tiles.channels;
    const int32_t last_row = tiles.in_rows - 1, last_column = tiles.in_columns - 1;
    const bool first = K == 2 || at.column > 0, last = K == 2 || 2 * at.column < last_column;
    const T *image = x + at.image * tiles.in_rows * line + at.channel;
    const T *columns[K];
#pragma unroll
    for (int j = 0; j < K; j++) columns[j] = image + min(max(2 * at.column + j - K / 3, 0), last_column) * tiles.channels;
    /* Of the index, and of a channels-last y. */
    const int64_t start = at.image * tiles.out_rows * out_line + at.column * tiles.channels + at.channel;
    T *to = y + (kApart ? at.image * tiles.layout.image + at.column * tiles.layout.column + at.channel * tiles.layout.channel : start);

    Part<kMax, T, V> above; /* 3 x 3: the row that window `o` shares with the one before */
    if (K == 3) {
        Pack<T, V> pixels[K];
#pragma unroll
        for (int j = 0; j < K; j++) pixels[j] = load_pack<T, V>(columns[j] + max(2 * at.begin - 1, 0) * line, true);
        above = part_of<kMax>(pixels, first, last);
        if (at.begin == 0) above.shift_places(K); /* outside: a copy of the middle row */
    }
    for (int32_t o = at.begin; o < at.end; o++) {
        Pack<T, V> pixels[2][K];
#pragma unroll
        for (int r = 0; r < 2; r++) {
#pragma unroll
            for (int j = 0; j < K; j++) pixels[r][j] = load_pack<T, V>(columns[j] + min(2 * o + r, last_row) * line, true);
        }
        Part<kMax, T, V> best = part_of<kMax>(pixels[0], first, last);
        if (K == 3 && (kMax || o > 0)) {
            const Part<kMax, T, V> middle = best;
            best = above;
            best.add(middle, K);
        }
        const Part<kMax, T, V> below = part_of<kMax>(pixels[1], first, last);
        if (kMax || K == 2 || 2 * o < last_row) best.add(below, (K - 1) * K);
        above = below;
        store_channels(to + o * (kApart ? tiles.layout.row : out_line), best.result(kMax ? C(1) : tile_divisor<C, K>(tiles, o, at.column)),
                       kApart ? tiles.layout.channel : 1);
        if (kMax && index) store_pack(index + start + o * out_line, best.places(), true);
    }
}

template <typename T, int K, bool kMax, bool kApart>
__global__ void __launch_bounds__(kBlock, kApart ? 3 : 4) k_pool_tiles_backward(const T *dy, const uint8_t *index, T *dx, Tiles tiles) {
    using C = compute_t<T>;
    constexpr int V = kVector<T>;
    using G = Gift<kMax, T, V>;
    const int64_t i = blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x;
    if (i >= tiles.count) return;
    const Walker at = walker_of<V>(tiles, static_cast<uint32_t>(i));
    const int64_t line = tiles.in_columns * tiles.channels, out_line = tiles.out_columns * tiles.channels;
    const int64_t start = at.image * tiles.out_rows * out_line + at.channel;
    const T *gradients = dy + at.image * tiles.layout.image + at.channel * tiles.layout.channel;
    T *image = dx + at.image * tiles.in_rows * line + 2 * at.column * tiles.channels + at.channel;

    const auto fetch = [&](int32_t row, int32_t column) {
        G gift;
        if (row < tiles.out_rows && column < tiles.out_columns) {
            const int64_t from = start + row * out_line + column * tiles.channels; /* of the index, and of a channels-last dy */
            if (kApart)
                gift.gradient =
                    load_channels<T, V>(gradients + row * tiles.layout.row + column * tiles.layout.column, tiles.layout.channel);
            else
                gift.gradient = load_pack<T, V>(dy + from, true);
            if (kMax) gift.place = load_pack<uint8_t, V>(index + from, true);
            gift.share = C(1) / tile_divisor<C, K>(tiles, row, column);
        } else {
#pragma unroll
            for (int k = 0; k < V; k++) {
                gift.gradient.v[k] = convert<T>(C(0));
                gift.place.v[k] = UINT8_MAX;
            }
            gift.share = C(0);
        }
        return gift;
    };
    const auto put = [&](int32_t row, int32_t column, const Pack<T, V> &value) {
        if (row < tiles.in_rows && 2 * at.column + column < tiles.in_columns)
            store_pack(image + row * line + column * tiles.channels, value, true);
    };

    Pack<T, V> pixel;
    if (K == 2) {
        for (int32_t t = at.begin; t < at.end; t++) {
            const G only = fetch(t, at.column);
#pragma unroll
            for (int p = 0; p < 4; p++) {
#pragma unroll
                for (int k = 0; k < G::kUnits; k++) G::set(pixel, k, only.at(k, p));
                put(2 * t + p / 2, p % 2, pixel);
            }
        }
        return;
    }
    G left = fetch(at.begin, at.column), right = fetch(at.begin, at.column + 1);
    for (int32_t t = at.begin; t < at.end; t++) {
        const G next_left = fetch(t + 1, at.column), next_right = fetch(t + 1, at.column + 1);
#pragma unroll
        for (int k = 0; k < G::kUnits; k++) G::set(pixel, k, left.at(k, 4));
        put(2 * t, 0, pixel);
#pragma unroll
        for (int k = 0; k < G::kUnits; k++) G::set(pixel, k, left.at(k, 5) + right.at(k, 3));
        put(2 * t, 1, pixel);
#pragma unroll
        for (int k = 0; k < G::kUnits; k++) G::set(pixel, k, left.at(k, 7) + next_left.at(k, 1));
        put(2 * t + 1, 0, pixel);
#pragma unroll
        for (int k = 0; k < G::kUnits; k++) G::set(pixel, k, left.at(k, 8) + right.at(k, 6) + next_left.at(k, 2) + next_right.at(k, 0));
        put(2 * t + 1, 1, pixel);
        left = next_left;
        right = next_right;
    }
}

/* More than this many threads need not have shorter walks. */
constexpr int64_t kManyWalks = 1 << 17;
constexpr int64_t kLongWalk = 4;

/* height, width: how many windows, or tiles of inputs. */
Tiles tiles_make(const Pool &pool, const gt__meta *meta, int64_t height, int64_t width, bool include_padding) {
    const int64_t images = meta->shape[0], packs = meta->shape[1] * element_bytes(meta->dtype) / 16,
                  low = pool.layout.channel == 1 ? packs : (packs % 2 == 0 ? 2 : 1);
    int64_t run = pool.tile == 2 ? 1 : kLongWalk;
    while (run > 1 && images * packs * width * ceil_div(height, run) < kManyWalks) run /= 2;
    const int64_t walks = ceil_div(height, run);
    Tiles tiles;
    tiles.count = images * packs * width * walks;
    tiles.channels = meta->shape[1];
    tiles.in_rows = static_cast<int32_t>(pool.rows.in);
    tiles.in_columns = static_cast<int32_t>(pool.columns.in);
    tiles.out_rows = static_cast<int32_t>(pool.rows.out);
    tiles.out_columns = static_cast<int32_t>(pool.columns.out);
    tiles.rows = static_cast<int32_t>(height);
    tiles.run = static_cast<int32_t>(run);
    tiles.by_low.set(low);
    tiles.by_width.set(width);
    tiles.by_walks.set(walks);
    tiles.by_high.set(packs / low);
    tiles.include_padding = include_padding;
    tiles.layout = pool.layout;
    return tiles;
}

template <typename T>
gt_status forward(gt__device *device, const gt__call *call, const Pool &pool, bool max, const Tiles &tiles) {
    const auto kernel = !max             ? (pool.tile == 2 ? k_pool_tiles<T, 2, false, false> : k_pool_tiles<T, 3, false, false>)
                        : pool.tile == 2 ? (pool.apart ? k_pool_tiles<T, 2, true, true> : k_pool_tiles<T, 2, true, false>)
                                         : (pool.apart ? k_pool_tiles<T, 3, true, true> : k_pool_tiles<T, 3, true, false>);
    return launch(device, call, kernel, grid_for(tiles.count, kBlock), kBlock, data<const T>(call->in[0]), data<T>(call->out[0]),
                  max ? data<uint8_t>(call->out[1]) : nullptr, tiles);
}

template <typename T>
gt_status backward(gt__device *device, const gt__call *call, const Pool &pool, bool max, const Tiles &tiles) {
    const auto kernel = !max ? (pool.tile == 2 ? k_pool_tiles_backward<T, 2, false, false> : k_pool_tiles_backward<T, 3, false, false>)
                        : pool.tile == 2
                            ? (pool.apart ? k_pool_tiles_backward<T, 2, true, true> : k_pool_tiles_backward<T, 2, true, false>)
                            : (pool.apart ? k_pool_tiles_backward<T, 3, true, true> : k_pool_tiles_backward<T, 3, true, false>);
    return launch(device, call, kernel, grid_for(tiles.count, kBlock), kBlock, data<const T>(call->in[0]),
                  max ? data<const uint8_t>(call->in[1]) : nullptr, data<T>(call->out[0]), tiles);
}

} // namespace

gt_status gt::pool_tiles(gt__device *device, const gt__call *call, const Pool &pool, bool max, bool include_padding) {
    const gt__meta *y = &call->out[0]->meta;
    if (max && pool.tile == 2 && pool.apart && pool_is_flat(y)) return pool_flat(device, call);
    const Tiles tiles = tiles_make(pool, y, y->shape[2], y->shape[3], include_padding);
    GT__FOR_FLOATS(call, y->dtype, return forward<T>(device, call, pool, max, tiles));
    return GT_OK;
}

gt_status gt::pool_tiles_backward(gt__device *device, const gt__call *call, const Pool &pool, bool max, bool include_padding) {
    const gt__meta *dx = &call->out[0]->meta;
    const Tiles tiles = tiles_make(pool, dx, ceil_div(dx->shape[2], 2), ceil_div(dx->shape[3], 2), include_padding);
    GT__FOR_FLOATS(call, dx->dtype, return backward<T>(device, call, pool, max, tiles));
    return GT_OK;
}
