/* The kernels of first layers (src/cuda/first_conv_mma.cuh), emulated: no GPU is needed. Numbers are small multiples of 1/4, so that every sum is exact in any order. */
#include "cuda/emulate.h"
#include "harness/test.h"

#include "cuda/first_conv_mma.cuh"

#include <cmath>

using namespace gt;

namespace {

struct Sizes {
    int n, c, h, w, k, r, s, stride[2], padding[2]; /* k: channels of the result */
    int out_h() const { return (h + 2 * padding[0] - r) / stride[0] + 1; }
    int out_w() const { return (w + 2 * padding[1] - s) / stride[1] + 1; }
    int pixels() const { return n * out_h() * out_w(); }
    int taps() const { return c * r * s; }
};

const Sizes grey = {3, 1, 28, 28, 32, 3, 3, {1, 1}, {0, 0}}; /* 2028 pixels: no multiple of 16 */
const Sizes grey_many = {8, 1, 28, 28, 32, 3, 3, {1, 1}, {0, 0}};
const Sizes grey_wide = {2, 1, 11, 9, 64, 3, 3, {1, 1}, {1, 1}};  /* two tiles of channels */
const Sizes grey_five = {2, 1, 13, 12, 48, 5, 5, {1, 1}, {2, 2}}; /* tiles of 16 channels */
const Sizes colours = {3, 3, 15, 17, 32, 3, 3, {2, 2}, {1, 1}};
const Sizes colours_inside = {2, 3, 9, 10, 16, 3, 3, {1, 2}, {0, 0}};
const Sizes flat = {5, 2, 1, 7, 32, 1, 3, {1, 3}, {0, 1}}; /* rows of 3 pixels, and fewer than a warp takes */
const Sizes tiny = {7, 1, 3, 3, 16, 3, 3, {1, 1}, {0, 0}}; /* images of one pixel */
const Sizes far = {2, 1, 2, 2, 16, 3, 3, {2, 1}, {3, 4}};  /* some pixels read nothing but padding */

template <typename T>
struct Array {
    explicit Array(size_t count) : size(count), memory(count * sizeof(T) / 16 + 2), data(reinterpret_cast<T *>(memory.data())) {}
    size_t size;
    std::vector<uint4> memory; /* aligned to 16 bytes */
    T *data;
    float operator[](size_t i) const { return convert<float>(data[i]); }
    void fill(uint32_t seed) {
        for (size_t i = 0; i < size; i++) {
            seed = seed * 1664525u + 1013904223u;
            data[i] = convert<T>(static_cast<float>(static_cast<int>((seed >> 20) % 9) - 4) / 4);
        }
    }
};

FirstConv sizes_of(const Sizes &z) {
    FirstConv f = {};
    f.pixels = z.pixels();
    f.out_channels = z.k;
    f.height = z.h;
    f.row = z.w * z.c;
    f.taps = z.taps();
    f.stride = z.stride[0];
    f.padding = z.padding[0];
    f.step = z.stride[1] * z.c;
    f.before = z.padding[1] * z.c;
    f.next_row = f.stride * f.row - z.out_w() * f.step;
    f.next_image = (f.height - z.out_h() * f.stride) * f.row;
    f.out_height = z.out_h();
    f.by_out_width.set(z.out_w());
    f.by_out_pixels.set(static_cast<int64_t>(z.out_h()) * z.out_w());
    f.by_taps_row.set(static_cast<int64_t>(z.s) * z.c);
    return f;
}

/* Calls use(pixel, tap, place in x) for all that lie in x. */
template <typename Use>
void for_taps(const Sizes &z, Use use) {
    for (int pixel = 0; pixel < z.pixels(); pixel++) {
        const int image = pixel / (z.out_h() * z.out_w()), i = pixel / z.out_w() % z.out_h(), j = pixel % z.out_w();
        for (int tap = 0; tap < z.taps(); tap++) {
            const int h = i * z.stride[0] - z.padding[0] + tap / z.c / z.s, w = j * z.stride[1] - z.padding[1] + tap / z.c % z.s;
            if (h < 0 || h >= z.h || w < 0 || w >= z.w) continue;
            use(static_cast<size_t>(pixel), static_cast<size_t>(tap), static_cast<size_t>(((image * z.h + h) * z.w + w) * z.c + tap % z.c));
        }
    }
}

void check_same(float got, float want) {
    if (std::isfinite(want))
        CHECK_NEAR(got, want, 0);
    else
        CHECK(std::isnan(want) ? std::isnan(got) : got == want);
}

enum { ADDED = 1, NO_BIAS = 2, NANS = 4, INFINITE_END = 8 };

/* M, N: as the launch chooses them. The last two arguments: blocks along the pixels, and of the above. */
template <typename T, int M, int N, bool masked, bool padded, typename W = float>
void check_gradient(const Sizes &z, unsigned parts, int what = 0) {
    const size_t taps = static_cast<size_t>(z.taps()), k = static_cast<size_t>(z.k), pixels = static_cast<size_t>(z.pixels());
    const unsigned tiles = static_cast<unsigned>(z.k / (M * 16));
    Array<T> dy(pixels * k), y(pixels * k), x(static_cast<size_t>(z.n * z.h * z.w * z.c));
    Array<W> dw(k * taps), db(k);
    dy.fill(1);
    y.fill(2);
    x.fill(3);
    dw.fill(4);
    db.fill(5);
    if (what & NANS) {
        dy.data[3] = convert<T>(NAN);
        y.data[3] = convert<T>(1.0f);
        dy.data[k + 6] = convert<T>(NAN); /* stopped by relu */
        y.data[k + 6] = convert<T>(0.0f);
        y.data[(pixels - 1) * k + 9] = convert<T>(NAN);
        dy.data[(pixels / 2) * k + 11] = convert<T>(INFINITY);
        y.data[(pixels / 2) * k + 11] = convert<T>(-1.0f);
    }
    if (what & INFINITE_END) { /* what the last pixel's last tap reads, and what a warp that has fewer pixels might multiply with 0 */
        x.data[x.size - 1] = convert<T>(INFINITY);
        for (size_t i = (pixels - 1) * k; i < pixels * k; i++) dy.data[i] = y.data[i] = convert<T>(1.0f);
    }
    std::vector<float> want(k * taps), want_db(k);
    for (size_t i = 0; i < want.size(); i++) want[i] = what & ADDED ? dw[i] : 0.0f;
    for (size_t i = 0; i < k; i++) want_db[i] = what & ADDED ? db[i] : 0.0f;
    const auto gradient = [&](size_t i) { return !masked || y[i] > 0 ? dy[i] : y[i] <= 0 ? 0.0f : NAN; };
    for (size_t i = 0; i < pixels * k; i++) want_db[i % k] += gradient(i);
    /* Beside x there are zeros, which NaN does not leave alone. */
    if (what & NANS)
        for (size_t i = 0; i < pixels * k; i++)
            for (size_t tap = 0; tap < taps && std::isnan(gradient(i)); tap++) want[i % k * taps + tap] = NAN;
    for_taps(z, [&](size_t pixel, size_t tap, size_t from) {
        for (size_t o = 0; o < k; o++) want[o * taps + tap] += x[from] * gradient(pixel * k + o);
    });

    FirstSums sums = {};
    static_cast<Parts &>(sums) = parts_make(parts, tiles);
    Array<float> partial(sums.blocks_of_sums(tiles) * (taps + 1) * M * 16 + 1);
    Array<uint32_t> counters(GT__CUDA_COUNTERS);
    sums.partial = partial.data;
    sums.counters = counters.data;
    sums.dw = dw.data;
    sums.db = masked && !(what & NO_BIAS) ? db.data : nullptr;
    sums.dw_dtype = sums.db_dtype = std::is_same<W, float>::value ? GT_DTYPE_F32 : GT_DTYPE_F16;
    sums.accumulate = what & ADDED;
    emulate::launch(k_first_conv_gradient<T, M, N, masked, padded>, {tiles, sums.parts, 1}, {kFirstWarps * 32, 1, 1},
                    sizeof(float) * kFirstWarps * N * 8 * (M * 16 + 4), static_cast<const T *>(dy.data),
                    static_cast<const T *>(masked ? y.data : nullptr), static_cast<const T *>(x.data), sizes_of(z), sums);
    for (size_t i = 0; i < want.size(); i++) check_same(dw[i], convert<float>(convert<W>(want[i])));
    Array<W> before(k);
    before.fill(5);
    for (size_t i = 0; i < k; i++) check_same(db[i], sums.db ? convert<float>(convert<W>(want_db[i])) : before[i]);
    for (size_t i = 0; i < counters.size; i++) CHECK(counters.data[i] == 0);
}

template <typename T, int N, int K, bool padded>
void check_forward(const Sizes &z, bool with_bias, bool relu, bool nans = false) {
    const size_t taps = static_cast<size_t>(z.taps()), k = static_cast<size_t>(z.k), pixels = static_cast<size_t>(z.pixels());
    Array<T> x(static_cast<size_t>(z.n * z.h * z.w * z.c)), w(k * taps), b(k), y(pixels * k + k);
    x.fill(1);
    w.fill(2);
    b.fill(3);
    y.fill(4);
    if (nans) x.data[x.size - 1] = convert<T>(NAN);
    std::vector<float> want(pixels * k);
    for (size_t i = 0; i < want.size(); i++) want[i] = with_bias ? b[i % k] : 0.0f;
    for_taps(z, [&](size_t pixel, size_t tap, size_t from) {
        for (size_t o = 0; o < k; o++) want[pixel * k + o] += x[from] * w[o * taps + tap];
    });
    emulate::launch(k_first_conv<T, N, K, padded>, {static_cast<unsigned>(z.k / (N * 8)), 2, 1}, {kFirstWarps * 32, 1, 1}, 0,
                    static_cast<const T *>(x.data), static_cast<const T *>(w.data), static_cast<const T *>(with_bias ? b.data : nullptr),
                    y.data, sizes_of(z), relu);
    for (size_t i = 0; i < want.size(); i++) check_same(y[i], convert<float>(convert<T>(relu && want[i] <= 0 ? 0.0f : want[i])));
    Array<T> before(y.size);
    before.fill(4);
    for (size_t i = want.size(); i < y.size; i++) CHECK_NEAR(y[i], before[i], 0); /* nothing behind the end */
}

} // namespace

TEST(unit, first_conv_mma_backward_weight) {
    check_gradient<__half, 2, 2, true, false>(grey, 3);
    check_gradient<__nv_bfloat16, 2, 2, true, true>(grey_wide, 1);
    check_gradient<__half, 2, 2, false, true>(grey_wide, 2, ADDED);
    check_gradient<__half, 1, 4, true, true>(grey_five, 2, ADDED);
    check_gradient<__nv_bfloat16, 1, 4, false, true>(grey_five, 1);
    check_gradient<__half, 2, 4, true, true>(colours, 2);
    check_gradient<__nv_bfloat16, 2, 4, false, true>(colours, 1, ADDED);
    check_gradient<__half, 1, 4, true, false>(colours_inside, 1);
}

TEST(unit, first_conv_mma_backward_weight_of_odd_shapes) {
    check_gradient<__half, 2, 2, true, true>(flat, 1);
    check_gradient<__half, 1, 2, true, false>(tiny, 1, ADDED);
    check_gradient<__nv_bfloat16, 1, 2, true, true>(far, 1);
    check_gradient<__half, 1, 2, false, true>(far, 1);
}

/* Groups of blocks, of which the last is not full. */
TEST(unit, first_conv_mma_joins_many_parts) {
    check_gradient<__half, 2, 2, true, false>(grey, 7);
    check_gradient<__half, 2, 2, true, false, __half>(grey, 7);
    check_gradient<__nv_bfloat16, 2, 2, true, true>(grey_wide, 19, ADDED | NO_BIAS);
    check_gradient<__half, 2, 2, false, true>(grey_many, 300); /* more than 16 groups of more than 16, the first of which have pixels */
}

TEST(unit, first_conv_mma_backward_weight_keeps_nan) {
    check_gradient<__half, 2, 2, true, false>(grey, 2, NANS);
    check_gradient<__nv_bfloat16, 2, 4, true, true>(colours, 1, NANS | ADDED);
    check_gradient<__nv_bfloat16, 1, 2, false, true>(tiny, 1, NANS);
    check_gradient<__half, 2, 2, true, false>(grey, 2, INFINITE_END);
    check_gradient<__half, 2, 2, false, true>(grey, 1, INFINITE_END);
}

TEST(unit, first_conv_mma_forward) {
    check_forward<__half, 4, 1, false>(grey, true, true);
    check_forward<__nv_bfloat16, 4, 1, true>(grey_wide, false, false);
    check_forward<__half, 2, 2, true>(grey_five, true, false);
    check_forward<__half, 4, 2, true>(colours, true, true);
    check_forward<__nv_bfloat16, 2, 2, false>(colours_inside, true, true);
    check_forward<__half, 4, 1, true>(flat, true, true);
    check_forward<__half, 2, 1, false>(tiny, true, false);
    check_forward<__half, 2, 1, true>(far, true, true);
    check_forward<__half, 4, 1, false>(grey, true, true, true);
    check_forward<__half, 4, 1, false>(grey, false, false, true);
}
