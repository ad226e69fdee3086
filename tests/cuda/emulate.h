/* Runs CUDA kernels on the host, a block at a time, so that what they compute can be checked without a GPU. A thread is a fiber, and barriers and warp-wide
 * instructions are where fibers take turns. What a kernel has not written to shared memory is NaN; addresses of warp-wide instructions are checked.
 * Speed, registers and races between barriers are not what this shows.
 *
 * Include it before the kernels, which see GT__EMULATED. The matrix instructions follow the PTX ISA: ldmatrix, mma.m16n8k16, cp.async. */
#ifndef GT_TESTS_EMULATE_H
#define GT_TESTS_EMULATE_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <math.h>
#include <memory>
#include <ucontext.h>
#include <vector>

#define GT__EMULATED 1
#define __CUDACC__   1 /* from here on: the toolkit's own headers are in */
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__
#undef __shared__
#define __shared__ static /* one block runs at a time. What is to be NaN at first is in gt__emulated_shared. */

namespace emulate {

constexpr size_t kStack = 64 << 10;

struct Index {
    unsigned x, y, z;
};

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    Index thread;
    bool done;
};

struct Barrier {
    size_t waiting;
    unsigned generation;
};

struct Warp {
    Barrier barrier;
    const void *rows[32];
    uint32_t a[32][4], b[32][2];
    double values[32]; /* of a shuffle */
};

struct Block {
    ucontext_t scheduler;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::vector<unsigned char> shared;
    std::function<void()> body;
    Fiber *now;
    Index index, grid, size;
    Barrier barrier;
    size_t alive;
};
inline Block block; /* the one that runs */

inline size_t number() { return block.now->thread.x + block.size.x * (block.now->thread.y + block.size.y * block.now->thread.z); }
inline Warp &warp() { return block.warps[number() / 32]; }
inline int lane() { return static_cast<int>(number() % 32); }

inline void wait(Barrier &barrier, size_t count) {
    const unsigned mine = barrier.generation;
    if (++barrier.waiting == count) {
        barrier.waiting = 0;
        barrier.generation++;
    }
    while (barrier.generation == mine) swapcontext(&block.now->context, &block.scheduler);
}

inline void enter() {
    block.body();
    block.now->done = true;
    block.alive--;
    swapcontext(&block.now->context, &block.scheduler);
}

inline void start(Fiber &fiber, size_t i) {
    const size_t x = block.size.x, y = block.size.y;
    if (!fiber.stack) fiber.stack.reset(new char[kStack]);
    fiber.done = false;
    fiber.thread = {static_cast<unsigned>(i % x), static_cast<unsigned>(i / x % y), static_cast<unsigned>(i / x / y)};
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStack;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, enter, 0);
}

inline void run_block() {
    std::memset(block.shared.data(), 0xff, block.shared.size());
    block.warps.assign(block.fibers.size() / 32, Warp());
    block.barrier = Barrier();
    block.alive = block.fibers.size();
    for (size_t i = 0; i < block.fibers.size(); i++) start(block.fibers[i], i);
    while (block.alive > 0) {
        for (Fiber &fiber : block.fibers) {
            if (fiber.done) continue;
            block.now = &fiber;
            swapcontext(&block.scheduler, &fiber.context);
        }
    }
}

/* `size` is a multiple of 32 threads; `shared` bytes of shared memory. */
template <typename Kernel, typename... P>
void launch(Kernel kernel, Index grid, Index size, size_t shared, P... parameters) {
    block.grid = grid;
    block.size = size;
    block.shared.assign(shared + 16, 0);
    block.body = [=] { kernel(parameters...); };
    block.fibers.clear();
    block.fibers.resize(static_cast<size_t>(size.x) * size.y * size.z);
    for (block.index.z = 0; block.index.z < grid.z; block.index.z++)
        for (block.index.y = 0; block.index.y < grid.y; block.index.y++)
            for (block.index.x = 0; block.index.x < grid.x; block.index.x++) run_block();
}

inline unsigned char *shared() {
    const uintptr_t at = reinterpret_cast<uintptr_t>(block.shared.data());
    return block.shared.data() + ((16 - at % 16) % 16);
}

/* 16 bytes there are in shared memory, and aligned. */
inline void check_shared(const void *pointer) {
    const unsigned char *at = static_cast<const unsigned char *>(pointer), *begin = shared(), *end = begin + block.shared.size() - 16;
    if (at >= begin && at + 16 <= end && reinterpret_cast<uintptr_t>(at) % 16 == 0) return;
    std::fprintf(stderr, "byte %ld of %zu bytes of shared memory: outside, or not aligned\n", static_cast<long>(at - begin),
                 block.shared.size() - 16);
    std::abort();
}

inline float element(uint32_t pair, int i, const __half *) {
    __half_raw raw;
    raw.x = static_cast<unsigned short>(pair >> (16 * i));
    return __half2float(__half(raw));
}
inline float element(uint32_t pair, int i, const __nv_bfloat16 *) {
    __nv_bfloat16_raw raw;
    raw.x = static_cast<unsigned short>(pair >> (16 * i));
    return __bfloat162float(__nv_bfloat16(raw));
}

} // namespace emulate

#define threadIdx           (emulate::block.now->thread)
#define blockIdx            (emulate::block.index)
#define gridDim             (emulate::block.grid)
#define blockDim            (emulate::block.size)
#define gt__emulated_shared (emulate::shared())

inline void __syncthreads() { emulate::wait(emulate::block.barrier, emulate::block.fibers.size()); }
inline void __syncwarp() { emulate::wait(emulate::warp().barrier, 32); }
inline double __longlong_as_double(long long bits) {
    double value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return static_cast<uint32_t>(static_cast<uint64_t>(a) * b >> 32); }
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
    uint32_t result = 0;
    for (int i = 0; i < 4; i++) result |= static_cast<uint32_t>(both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return result;
}
template <typename C>
C min(C a, C b) {
    return a < b ? a : b;
}
template <typename C>
C max(C a, C b) {
    return a > b ? a : b;
}
template <typename T>
T __ldg(const T *from) {
    return *from;
}
inline void __threadfence() {}
template <typename C>
C __shfl_sync(unsigned, C value, int from) {
    emulate::Warp &warp = emulate::warp();
    std::memcpy(&warp.values[emulate::lane()], &value, sizeof value);
    __syncwarp();
    std::memcpy(&value, &warp.values[from & 31], sizeof value);
    __syncwarp();
    return value;
}
template <typename C>
C __shfl_xor_sync(unsigned mask, C value, int with) {
    return __shfl_sync(mask, value, emulate::lane() ^ with);
}
template <typename C>
C __ldcg(const C *from) {
    return *from;
}
inline unsigned atomicInc(unsigned *at, unsigned most) {
    const unsigned was = *at;
    *at = was >= most ? 0 : was + 1;
    return was;
}
inline int atomicCAS(int *at, int is, int becomes) {
    const int was = *at;
    if (was == is) *at = becomes;
    return was;
}

namespace gt {

inline void load_any(uint32_t (&to)[4], const void *row, bool transposed) {
    emulate::Warp &warp = emulate::warp();
    const int lane = emulate::lane();
    emulate::check_shared(row);
    warp.rows[lane] = row;
    __syncwarp();
    for (int k = 0; k < 4; k++) {
        uint16_t pair[2];
        for (int i = 0; i < 2; i++) {
            const int r = transposed ? 2 * (lane % 4) + i : lane / 4, c = transposed ? lane / 4 : 2 * (lane % 4) + i;
            pair[i] = static_cast<const uint16_t *>(warp.rows[8 * k + r])[c];
        }
        std::memcpy(&to[k], pair, sizeof to[k]);
    }
    __syncwarp();
}
inline void load_matrices(uint32_t (&to)[4], const void *row) { load_any(to, row, false); }
inline void load_matrices_transposed(uint32_t (&to)[4], const void *row) { load_any(to, row, true); }

template <typename T>
inline void multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    emulate::Warp &warp = emulate::warp();
    const int lane = emulate::lane();
    std::memcpy(warp.a[lane], a, sizeof a);
    warp.b[lane][0] = b0;
    warp.b[lane][1] = b1;
    __syncwarp();
    for (int i = 0; i < 4; i++) {
        const int row = lane / 4 + i / 2 * 8, column = 2 * (lane % 4) + i % 2;
        for (int k = 0; k < 16; k++) {
            const uint32_t left = warp.a[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], right = warp.b[column * 4 + k % 8 / 2][k / 8];
            sum[i] += emulate::element(left, k % 2, static_cast<const T *>(nullptr)) *
                      emulate::element(right, k % 2, static_cast<const T *>(nullptr));
        }
    }
    __syncwarp();
}

inline void copy_async(void *shared, const void *from, bool valid) {
    emulate::check_shared(shared);
    if (reinterpret_cast<uintptr_t>(from) % 16 != 0) std::abort();
    if (valid)
        std::memcpy(shared, from, 16);
    else
        std::memset(shared, 0, 16);
}
inline void copies_wait() {}

} // namespace gt

#endif
