/* The kernels that chain_source.c writes, emulated on the host: no GPU is needed. What they compute is what the CPU computes, within the rounding of functions that the two have of
 * their own. */
#include <math.h> /* before emulate.h, which makes the compiler look like nvcc */

#include "cuda/emulate.h"

#include "cuda/chain_prelude.cuh"
#include "cuda/chain_samples.h"
#include "cuda/chain_source.h"
#include "harness/test.h"

#include <cstddef>

#include "generated_chains.inc"

extern "C" gt_status chain_reference(const gt__chain *chain);

namespace {

#define SAME(field) static_assert(offsetof(gt::Arguments, field) == offsetof(gt__chain_arguments, field), #field)
SAME(in);
SAME(out);
SAME(sum);
SAME(partial);
SAME(n);
SAME(parts);
SAME(inner);
SAME(size);
SAME(value);
SAME(seed);
SAME(cells);
SAME(threshold);
SAME(divisor);
SAME(vector);
static_assert(sizeof(gt::Arguments) == sizeof(gt__chain_arguments), "one struct for both");

constexpr size_t kElements = 4096 + 64;

size_t bytes_of(gt_dtype dtype) { return dtype == GT_DTYPE_F64 ? 8 : dtype == GT_DTYPE_F32 ? 4 : 2; }

double value_of(const void *data, gt_dtype dtype, size_t i) {
    if (dtype == GT_DTYPE_F64) return static_cast<const double *>(data)[i];
    if (dtype == GT_DTYPE_F32) return static_cast<double>(static_cast<const float *>(data)[i]);
    const unsigned short bits = static_cast<const unsigned short *>(data)[i];
    return static_cast<double>(dtype == GT_DTYPE_F16 ? gt::from_f16(bits) : gt::from_bf16(bits));
}

void set_value(void *data, gt_dtype dtype, size_t i, double x) {
    if (dtype == GT_DTYPE_F64) static_cast<double *>(data)[i] = x;
    if (dtype == GT_DTYPE_F32) static_cast<float *>(data)[i] = static_cast<float>(x);
    if (dtype == GT_DTYPE_F16) static_cast<unsigned short *>(data)[i] = gt::to_f16(static_cast<float>(x));
    if (dtype == GT_DTYPE_BF16) static_cast<unsigned short *>(data)[i] = gt::to_bf16(static_cast<float>(x));
}

/* Everything aligned to 16 bytes, or `shift` elements behind it. */
struct Memory {
    std::vector<uint4> in[GT__CHAIN_INPUTS], out[GT__CHAIN_OUTPUTS], sum;
    chain_memory pointers;
    uint64_t cells[2] = {41, 5};

    Memory(gt_dtype dtype, size_t shift) {
        const size_t count = kElements / 2, bytes = shift * bytes_of(dtype);
        for (int k = 0; k < GT__CHAIN_INPUTS; k++) {
            in[k].resize(count);
            pointers.in[k] = reinterpret_cast<char *>(in[k].data()) + bytes;
        }
        for (int k = 0; k < GT__CHAIN_OUTPUTS; k++) {
            out[k].resize(count);
            pointers.out[k] = reinterpret_cast<char *>(out[k].data()) + bytes;
        }
        sum.resize(count);
        pointers.sum = sum.data();
        pointers.cells = cells;
    }
    void fill(const gt__chain &c, bool odd) {
        const double special[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0};
        uint32_t seed = 12345;
        for (int k = 0; k < c.n_inputs; k++)
            for (int64_t i = 0; i < c.inputs[k].size; i++) {
                seed = seed * 1664525u + 1013904223u;
                const double x = (static_cast<int>(seed >> 16 & 1023) - 512) / 200.0;
                set_value(pointers.in[k], c.inputs[k].dtype, static_cast<size_t>(i), odd && seed >> 28 == 0 ? special[(seed >> 8) % 5] : x);
            }
    }
    void clear() {
        for (auto &o : out) std::memset(o.data(), 0xff, o.size() * sizeof o[0]);
        std::memset(sum.data(), 0xff, sum.size() * sizeof sum[0]);
    }
};

void run_emulated(const gt__chain &c, const Kernel *kernel, int64_t most) {
    gt__chain_arguments arguments;
    gt__chain_launch first, second;
    size_t bytes = 0;
    gt__chain_prepare(&c, 2, most, &arguments, &first, &second, &bytes);
    std::vector<double> partial(bytes / sizeof(double) + 1, NAN);
    arguments.partial = partial.data();
    gt::Arguments a;
    std::memcpy(&a, &arguments, sizeof a);
    const size_t shared = gt::kBlock * sizeof(double);
    emulate::launch(kernel[0], {first.grid_x, first.grid_y, 1}, {first.block_x, first.block_y, 1}, shared, a);
    if (arguments.parts > 1) emulate::launch(kernel[1], {second.grid_x, 1, 1}, {second.block_x, second.block_y, 1}, shared, a);
}

void compare(int number, const gt__chain &c, const void *got, const std::vector<char> &want, gt_dtype dtype, int64_t count, bool sum,
             const char *what) {
    const double relative = dtype == GT_DTYPE_F64   ? 1e-12
                            : dtype == GT_DTYPE_F32 ? (sum ? 1e-5 : 3e-6)
                            : dtype == GT_DTYPE_F16 ? 2e-3
                                                    : 1.6e-2;
    char text[GT__CHAIN_TEXT];
    for (int64_t i = 0; i < count; i++) {
        const double x = value_of(got, dtype, static_cast<size_t>(i)), y = value_of(want.data(), dtype, static_cast<size_t>(i));
        if (x == y || (isnan(x) && isnan(y)) || fabs(x - y) <= relative * (1 + fabs(y))) continue;
        FAIL("sample %d, %s in %s: %s, element %d is %.9g, on the CPU %.9g", number, gt__chain_text(&c, text, sizeof text),
             gt_dtype_name(dtype), what, static_cast<int>(i), x, y);
    }
}

std::vector<char> taken(const void *data, size_t bytes) {
    const char *at = static_cast<const char *>(data);
    return std::vector<char>(at, at + bytes);
}

void check_samples(bool odd, size_t shift, int64_t most) {
    int number = 0;
    for (;; number++) {
        const gt_dtype dtype = sample_dtypes[number / 12 % 4];
        Memory memory(dtype, shift);
        gt__chain c;
        if (!sample_chain(number, &c, &memory.pointers)) break;
        memory.fill(c, odd);
        memory.clear();
        CHECK_OK(chain_reference(&c));
        std::vector<char> want[GT__CHAIN_OUTPUTS], sum;
        for (int k = 0; k < c.n_outputs; k++)
            want[k] = taken(c.outputs[k].data, static_cast<size_t>(c.n) * bytes_of(c.nodes[c.outputs[k].node].dtype));
        if (c.sum.data) sum = taken(c.sum.data, static_cast<size_t>(c.sum.kept) * bytes_of(c.sum.dtype));
        memory.clear();
        run_emulated(c, kernels[number], most);
        for (int k = 0; k < c.n_outputs; k++) {
            const int node = c.outputs[k].node;
            compare(number, c, c.outputs[k].data, want[k], c.nodes[node].dtype, c.n, false, "an output");
            const unsigned char *end =
                static_cast<const unsigned char *>(c.outputs[k].data) + static_cast<size_t>(c.n) * bytes_of(c.nodes[node].dtype);
            CHECK(end[0] == 0xff && end[1] == 0xff); /* nothing behind it */
        }
        if (c.sum.data) compare(number, c, c.sum.data, sum, c.sum.dtype, c.sum.kept, true, "the sum");
    }
    CHECK_EQ_INT(number, static_cast<int>(sizeof kernels / sizeof *kernels));
}

} // namespace

TEST(unit, chain_kernels_compute_what_the_cpu_does) { check_samples(false, 0, 1024); }
TEST(unit, chain_kernels_at_odd_addresses_compute_what_the_cpu_does) { check_samples(false, 1, 1024); }
TEST(unit, chain_kernels_keep_nan_and_infinities) { check_samples(true, 0, 1024); }
TEST(unit, chain_kernels_sum_in_one_part_too) { check_samples(false, 0, 1); }
