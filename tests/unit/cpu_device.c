/* The CPU device below the public API: threads, random numbers, memory, multi-tensor updates. */
#include "harness/test.h"

#include "backend/backend.h"
#include "base/parallel.h"
#include "core/philox.h"

#include <float.h>
#include <gtrain/gtrain.h>
#include <math.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- parallel loops ------------------------------------------------------------------------------------------------------------------ */

typedef struct cover {
    unsigned char *hits;
    int64_t shortest;
} cover;

static void count_range(void *argument, int64_t begin, int64_t end) {
    cover *c = argument;
    for (int64_t i = begin; i < end; i++) c->hits[i]++;
    int64_t shortest = __atomic_load_n(&c->shortest, __ATOMIC_RELAXED);
    while (end - begin < shortest &&
           !__atomic_compare_exchange_n(&c->shortest, &shortest, end - begin, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        continue;
}

TEST(unit, parallel_for_covers_each_index_once) {
    static unsigned char hits[10007];
    for (int threads = 1; threads <= 5; threads++) {
        gt__pool *pool;
        CHECK_OK(gt__pool_create(threads, &pool));
        CHECK(gt__pool_threads(pool) <= threads && gt__pool_threads(pool) >= 1);
        const int64_t sizes[] = {0, 1, 2, 3, 7, 64, 1000, 10007}, grains[] = {1, 3, 100, 100000};
        for (int s = 0; s < 8; s++) {
            for (int g = 0; g < 4; g++) {
                memset(hits, 0, sizeof hits);
                cover c = {hits, INT64_MAX};
                gt__parallel_for(pool, sizes[s], grains[g], count_range, &c);
                for (int64_t i = 0; i < (int64_t)sizeof hits; i++) EXPECT_EQ_INT(hits[i], i < sizes[s]);
                if (sizes[s] >= grains[g]) EXPECT(c.shortest >= grains[g]);
            }
        }
        for (int i = 0; i < 2000; i++) {
            cover c = {hits, INT64_MAX};
            gt__parallel_for(pool, 8, 1, count_range, &c);
        }
        gt__pool_destroy(pool);
    }
}

TEST(unit, pool_refuses_a_negative_number_of_threads) {
    gt__pool *pool = NULL;
    CHECK_STATUS(gt__pool_create(-1, &pool), GT_BAD_ARGUMENT);
    CHECK(pool == NULL);
}

/* --- random numbers -------------------------------------------------------------------------------------------------------------------- */

TEST(unit, philox_gives_the_published_numbers) {
    /* Random123's known answers for a counter and key of zeros. */
    gt__philox_block zero = gt__philox(0, 0);
    CHECK(zero.word[0] == 0x6627e8d5u && zero.word[1] == 0xe169c58du && zero.word[2] == 0xbc57ac4cu && zero.word[3] == 0x9b00dbd8u);
    CHECK(gt__philox_uniform_f32(0xffffffffu) < 1.0f && gt__philox_uniform_f32(0xffu) == 0.0f);
    gt__philox_block a = gt__philox(1, 0), b = gt__philox(0, 1), c = gt__philox(0, (uint64_t)1 << 32);
    CHECK(a.word[0] != zero.word[0] && b.word[0] != zero.word[0] && c.word[0] != b.word[0] && c.word[0] != zero.word[0]);
}

/* --- memory ------------------------------------------------------------------------------------------------------------------------------- */

TEST(unit, cpu_memory_is_aligned_and_an_impossible_size_is_refused) {
    const gt__backend *cpu = gt__backend_cpu();
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    gt__device *device;
    CHECK_OK(cpu->open(NULL, &options, &device));
    void *memory = NULL;
    for (size_t bytes = 1; bytes < (size_t)8 << 20; bytes = bytes * 3 + 1) {
        CHECK_OK(cpu->memory_alloc(device, bytes, &memory));
        EXPECT((uintptr_t)memory % 64 == 0);
        memset(memory, 1, bytes);
        cpu->memory_free(device, memory);
    }
    memory = NULL;
    CHECK_STATUS(cpu->memory_alloc(device, SIZE_MAX / 2, &memory), GT_OUT_OF_MEMORY);
    CHECK_STATUS(cpu->memory_alloc(device, SIZE_MAX, &memory), GT_OUT_OF_MEMORY);
    CHECK(memory == NULL);
    uint64_t unused = 0, total = 0;
    CHECK_OK(cpu->memory_info(device, &unused, &total));
    CHECK(unused > 0 && unused <= total);
    cpu->close(device);
}

/* --- updates ---------------------------------------------------------------------------------------------------------------------------- */

static void controlled_update(const gt__update_rule *rule, gt__update *u, const gt__step_control *control) {
    const gt__backend *cpu = gt__backend_cpu();
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    gt__device *device;
    CHECK_OK(cpu->open(NULL, &options, &device));
    EXPECT_OK(cpu->update(device, rule, u, 1, control));
    cpu->close(device);
}

static void one_update(test_case *t, const gt__update_rule *rule, gt__update *u) {
    (void)t;
    controlled_update(rule, u, NULL);
}

TEST(unit, sgd_follows_its_formula) {
    /* momentum .9, dampening .5, decay .1: g = 1 + .1 * 2 = 1.2; first step: b = g; second: b = .9 * 1.2 + .5 * g */
    gt__update_rule rule = {.kind = GT_OPTIMIZER_SGD, .learning_rate = 0.1, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.1};
    _Alignas(8) int32_t steps[2] = {0};
    double w = 2, g = 1, m = 77; /* whatever the buffer held before the first step is not used */
    gt__update u = {
        .param = &w, .grad = &g, .state0 = &m, .count = 1, .param_dtype = GT_DTYPE_F64, .grad_dtype = GT_DTYPE_F64, .step = steps};
    one_update(t, &rule, &u);
    CHECK_NEAR(m, 1.2, 1e-12);
    CHECK_NEAR(w, 1.88, 1e-12);
    u.step = &steps[1];
    one_update(t, &rule, &u);
    CHECK_NEAR(m, 0.9 * 1.2 + 0.5 * 1.188, 1e-12);
    CHECK_NEAR(w, 1.88 - 0.1 * (0.9 * 1.2 + 0.5 * 1.188), 1e-12);
    rule = (gt__update_rule){.kind = GT_OPTIMIZER_SGD, .learning_rate = 0.1, .momentum = 0.9, .nesterov = 1};
    w = 2, g = 1, steps[0] = 0, u.step = steps;
    one_update(t, &rule, &u);
    CHECK_NEAR(w, 2 - 0.1 * 1.9, 1e-12);
}

TEST(unit, adam_and_adamw_follow_their_formulas) {
    gt__update_rule rule = {
        .kind = GT_OPTIMIZER_ADAM, .learning_rate = 0.1, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.5};
    _Alignas(8) int32_t steps[2] = {0};
    double w = 2, g = 1, m = 0, v = 0;
    gt__update u = {.param = &w,
                    .grad = &g,
                    .state0 = &m,
                    .state1 = &v,
                    .count = 1,
                    .param_dtype = GT_DTYPE_F64,
                    .grad_dtype = GT_DTYPE_F64,
                    .step = steps};
    one_update(t, &rule, &u); /* g = 1 + .5 * 2 = 2; the first step is lr * sign(g) */
    CHECK_NEAR(m, 0.2, 1e-12);
    CHECK_NEAR(v, 0.004, 1e-12);
    CHECK_NEAR(w, 1.9, 1e-8);
    rule.kind = GT_OPTIMIZER_ADAMW;
    w = 2, m = 0, v = 0;
    one_update(t, &rule, &u); /* 2 (1 - .1 * .5) - .1 */
    CHECK_NEAR(w, 1.8, 1e-8);
    u.step = &steps[1];
    g = -3;
    one_update(t, &rule, &u);
    double m2 = 0.09 - 0.3, v2 = 0.999 * 0.001 + 0.001 * 9;
    CHECK_NEAR(m, m2, 1e-12);
    CHECK_NEAR(v, v2, 1e-12);
    CHECK_NEAR(w, 1.8 * 0.95 - 0.1 * (m2 / 0.19) / (sqrt(v2 / (1 - 0.999 * 0.999)) + 1e-8), 1e-9);
}

TEST(unit, half_parameters_keep_small_updates_in_their_master) {
    enum { N = 1000 };
    static uint16_t half[N];
    static float master[N], grad[N];
    _Alignas(8) int32_t steps[2] = {0};
    for (int i = 0; i < N; i++) half[i] = 0x3c00, master[i] = 1, grad[i] = 1; /* 1.0 in f16, whose next smaller value is 1 - 2^-11 */
    gt__update_rule rule = {.kind = GT_OPTIMIZER_SGD, .learning_rate = 0x1p-13};
    gt__update u = {
        .param = half, .master = master, .grad = grad, .count = N, .param_dtype = GT_DTYPE_F16, .grad_dtype = GT_DTYPE_F32, .step = steps};
    one_update(t, &rule, &u);
    for (int i = 0; i < N; i++) CHECK(half[i] == 0x3c00 && master[i] == 1 - 0x1p-13f);
    for (int k = 0; k < 3; k++) one_update(t, &rule, &u);
    for (int i = 0; i < N; i++) CHECK(half[i] == 0x3bff && master[i] == 1 - 0x1p-11f);
}

TEST(unit, updates_obey_their_control) {
    enum { N = 1000 };
    static float w[N], grad[N], m[N];
    static uint16_t half[N];
    for (int i = 0; i < N; i++) w[i] = 1, grad[i] = i % 2 ? 2048 : -4096, m[i] = 3;
    _Alignas(8) int32_t steps[2] = {7, -1};
    const gt__update_rule rule = {.kind = GT_OPTIMIZER_SGD, .learning_rate = 100, .momentum = 0.5};
    gt__update u = {.param = w,
                    .grad = grad,
                    .state0 = m,
                    .count = N,
                    .param_dtype = GT_DTYPE_F32,
                    .grad_dtype = GT_DTYPE_F32,
                    .step = steps,
                    .half = half,
                    .half_dtype = GT_DTYPE_F16};
    gt__step_control control = {.factor = 0x1p-10, .learning_rate = NAN, .skip = 1};
    controlled_update(&rule, &u, &control);
    for (int i = 0; i < N; i++) CHECK(w[i] == 1 && m[i] == 3 && grad[i] == (i % 2 ? 2048 : -4096) && half[i] == 0x3c00);
    CHECK(steps[0] == 7 && steps[1] == 7); /* the count is carried over */
    control = (gt__step_control){.factor = 0x1p-10, .limit = 3, .learning_rate = 0.5};
    controlled_update(&rule, &u, &control); /* true gradients 2 and -4, which is cut to -3 */
    for (int i = 0; i < N; i++) {
        float buffer = 1.5f + (i % 2 ? 2 : -3);
        CHECK(m[i] == buffer && w[i] == 1 - 0.5f * buffer);
        CHECK(half[i] == (i % 2 ? 0xba00 : 0x3f00)); /* -.75, 1.75 */
    }
    CHECK(steps[0] == 7 && steps[1] == 8);
}

TEST(unit, lists_of_gradients_and_copies) {
    const gt__backend *cpu = gt__backend_cpu();
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    gt__device *device;
    CHECK_OK(cpu->open(NULL, &options, &device));
    float a[3] = {1, 2, 3}, b[2] = {1, NAN};
    double c[2] = {1, INFINITY}, norm;
    gt__grad_list_item list[3] = {{a, 3, GT_DTYPE_F32, 10}, {b, 2, GT_DTYPE_F32, 30}, {c, 2, GT_DTYPE_F64, 20}};
    int32_t bad = -1;
    CHECK_OK(cpu->grad_norm(device, list, 3, &norm, &bad));
    CHECK_EQ_INT(bad, 20);
    CHECK_OK(cpu->grad_norm(device, list, 2, &norm, &bad));
    CHECK_EQ_INT(bad, 30);
    CHECK_OK(cpu->grad_norm(device, list, 1, &norm, &bad));
    CHECK_EQ_INT(bad, INT32_MAX);
    c[0] = 1e200, c[1] = 1e200; /* finite, though the squares are not */
    CHECK_OK(cpu->grad_norm(device, list + 2, 1, &norm, &bad));
    CHECK_EQ_INT(bad, INT32_MAX);
    const gt__step_control control = {.factor = 0.5};
    CHECK_OK(cpu->grad_scale(device, list, 1, &control));
    CHECK(a[0] == 0.5f && a[1] == 1 && a[2] == 1.5f);
    uint64_t least = 50;
    CHECK_OK(cpu->mark_not_finite(device, a, GT_DTYPE_F32, 3, 40, &least));
    CHECK(least == 50);
    CHECK_OK(cpu->mark_not_finite(device, b, GT_DTYPE_F32, 2, 60, &least));
    CHECK(least == 50);
    const uint16_t halves[3] = {0x3c00, 0x7c00, 0}; /* f16: 1, infinity; bf16: finite */
    CHECK_OK(cpu->mark_not_finite(device, halves, GT_DTYPE_BF16, 3, 7, &least));
    CHECK(least == 50);
    CHECK_OK(cpu->mark_not_finite(device, halves, GT_DTYPE_F16, 3, 7, &least));
    CHECK(least == 7);
    float to[3] = {0};
    const gt__copy_item copies[3] = {{to, a, 4}, {NULL, NULL, 0}, {to + 2, a + 1, 4}};
    CHECK_OK(cpu->copy_many(device, copies, 3));
    CHECK(to[0] == 0.5f && to[1] == 0 && to[2] == 1);
    cpu->close(device);
}

TEST(unit, cpu_events_are_always_done) {
    const gt__backend *cpu = gt__backend_cpu();
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    gt__device *device;
    gt__event *event;
    int32_t done = 0;
    CHECK_OK(cpu->open(NULL, &options, &device));
    CHECK_OK(cpu->event_create(device, &event));
    CHECK_OK(cpu->event_record(device, event, GT__STREAM_COPY));
    CHECK_OK(cpu->event_query(device, event, &done));
    CHECK_EQ_INT(done, 1);
    cpu->event_destroy(device, event);
    CHECK(cpu->map_grain == NULL && cpu->memory_holders == NULL);
    cpu->close(device);
}

TEST(contract, S5_gradient_norm_neither_overflows_nor_underflows) {
    const gt__backend *cpu = gt__backend_cpu();
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    gt__device *device;
    CHECK_OK(cpu->open(NULL, &options, &device));
    float a[2] = {3e30f, 4e30f}, b[2] = {3e-40f, 4e-40f}, c[3] = {1, NAN, 2}, d[2] = {FLT_MAX, FLT_MAX};
    double norm = 0;
    gt__grad_list_item item = {.grad = a, .count = 2, .dtype = GT_DTYPE_F32};
    CHECK_OK(cpu->grad_norm(device, &item, 1, &norm, NULL));
    CHECK_NEAR(norm / 5e30, 1, 1e-6);
    CHECK_OK(cpu->grad_clip_norm(device, &item, 1, &norm, 1.0));
    CHECK_NEAR(a[0], 0.6, 1e-6);
    CHECK_NEAR(a[1], 0.8, 1e-6);
    item.grad = b;
    CHECK_OK(cpu->grad_norm(device, &item, 1, &norm, NULL));
    CHECK_NEAR(norm / 5e-40, 1, 1e-4);
    CHECK_OK(cpu->grad_clip_norm(device, &item, 1, &norm, 1.0));
    CHECK(b[0] == 3e-40f); /* short enough: as it was */
    item = (gt__grad_list_item){.grad = c, .count = 3, .dtype = GT_DTYPE_F32};
    CHECK_OK(cpu->grad_norm(device, &item, 1, &norm, NULL));
    CHECK(isnan(norm));
    CHECK_OK(cpu->grad_clip_norm(device, &item, 1, &norm, 1.0));
    CHECK(c[0] == 1 && isnan(c[1]) && c[2] == 2);
    CHECK_OK(cpu->grad_clip_value(device, &item, 1, 1.5));
    CHECK(c[0] == 1 && isnan(c[1]) && c[2] == 1.5f);
    item = (gt__grad_list_item){.grad = d, .count = 2, .dtype = GT_DTYPE_F32};
    CHECK_OK(cpu->grad_norm(device, &item, 1, &norm, NULL));
    CHECK_NEAR(norm / (double)FLT_MAX, sqrt(2.0), 1e-6);
    CHECK_OK(cpu->grad_clip_norm(device, &item, 1, &norm, 1.0));
    CHECK_NEAR(d[0], sqrt(0.5), 1e-6);
    cpu->close(device);
}

/* --- fork ------------------------------------------------------------------------------------------------------------------------------- */

static double conv_sum(gt_context *ctx) {
    const int64_t x_shape[4] = {4, 3, 16, 16}, w_shape[4] = {8, 3, 3, 3};
    double sum = -1;
    if (gt_scope_begin(ctx) != GT_OK) return -1;
    gt_tensor *y =
        gt_conv2d(gt_tensor_full(ctx, GT_DTYPE_F32, 4, x_shape, 1), gt_tensor_full(ctx, GT_DTYPE_F32, 4, w_shape, 1), NULL, NULL);
    if (gt_tensor_item(gt_sum(gt_add(y, y), NULL, 0, 0), &sum) != GT_OK) sum = -1;
    (void)gt_scope_end(ctx);
    return sum;
}

TEST(contract, E4_cpu_calls_work_in_the_child_of_a_fork) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.cpu_threads = 3;
    gt_context *ctx = test_context_with(t, &options);
    const double want = 2.0 * 4 * 8 * 14 * 14 * 27;
    CHECK_NEAR(conv_sum(ctx), want, 1e-9);
    pid_t child = fork();
    if (child == 0) {
        alarm(30);
        _exit(conv_sum(ctx) == want ? 0 : 1);
    }
    CHECK(child > 0);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_NEAR(conv_sum(ctx), want, 1e-9);
}
