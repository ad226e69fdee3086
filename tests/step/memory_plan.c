/* Plans of memory: nothing that lives at once overlaps, and the arena is hardly larger than it must be. */
#include "step/memory_plan.h"

#include "harness/test.h"
#include "step/step.h"

#include <gtrain/gtrain.h>
#include <stdlib.h>
#include <time.h>

/* The arena's bytes; *bound may be NULL. */
static size_t planned(const gt__life *lives, int32_t n, size_t *offsets, size_t *bound) {
    size_t bytes, least;
    CHECK_OK(gt__memory_plan(lives, n, offsets, &bytes, &least));
    CHECK(bytes >= least);
    for (int32_t i = 0; i < n; ++i) {
        if (lives[i].bytes == 0) continue;
        CHECK(offsets[i] % GT__ARENA_GRAIN == 0 && offsets[i] + lives[i].bytes <= bytes);
        for (int32_t k = 0; k < i; ++k) {
            bool at_once = lives[k].bytes > 0 && lives[i].first <= lives[k].last && lives[k].first <= lives[i].last;
            if (at_once && offsets[i] < offsets[k] + lives[k].bytes && offsets[k] < offsets[i] + lives[i].bytes)
                FAIL("%d and %d overlap", (int)i, (int)k);
        }
    }
    if (bound) *bound = least;
    return bytes;
}

TEST(unit, memory_plan_of_nothing_is_empty) {
    const gt__life none = {0, 3, 5};
    size_t offset = 1, bytes, bound;
    CHECK_OK(gt__memory_plan(NULL, 0, NULL, &bytes, &bound));
    CHECK(bytes == 0 && bound == 0);
    CHECK_OK(gt__memory_plan(&none, 1, &offset, &bytes, &bound));
    CHECK(bytes == 0 && bound == 0 && offset == 0);
}

TEST(unit, memory_plan_shares_places_after_the_last_use) {
    const gt__life follow[] = {{1000, 0, 1}, {1000, 2, 3}}, meet[] = {{1000, 0, 2}, {1000, 2, 3}};
    size_t offsets[2];
    CHECK_EQ_INT(planned(follow, 2, offsets, NULL), 1024);
    CHECK_EQ_INT(planned(meet, 2, offsets, NULL), 2048); /* both are there at 2 */
}

TEST(unit, memory_plan_counts_whole_grains) {
    const gt__life lives[] = {{1, 0, 4}, {GT__ARENA_GRAIN + 1, 1, 1}, {GT__ARENA_GRAIN, 3, 4}};
    size_t offsets[3], bound;
    CHECK_EQ_INT(planned(lives, 3, offsets, &bound), 3 * GT__ARENA_GRAIN);
    CHECK_EQ_INT(bound, 3 * GT__ARENA_GRAIN);
}

TEST(unit, memory_plan_does_better_than_an_allocator) {
    /* As they are made, 1 and 2 leave a hole of 1024 that the last does not fit in. */
    const gt__life lives[] = {{1024, 0, 1}, {1024, 0, 3}, {2048, 2, 3}};
    size_t offsets[3];
    CHECK_EQ_INT(planned(lives, 3, offsets, NULL), 3072);
}

static uint64_t state;
static uint32_t below(uint32_t n) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)((state >> 16) % n);
}

static void begin_random(uint64_t seed) {
    state = UINT64_C(0x1234567) * (seed + 1) + 99;
    for (int i = 0; i < 10; ++i) (void)below(2);
}

enum { MOST = 302 };

/* Lives that begin and end anywhere, in four distributions of sizes. */
static int32_t anything(uint64_t seed, gt__life *lives) {
    begin_random(seed);
    uint32_t n = 2 + below(seed % 4 == 0   ? 20
                           : seed % 4 == 1 ? 100
                                           : 300),
             steps = 2 + below(400), kind = below(4), span = 1 + below(steps);
    for (uint32_t i = 0; i < n; ++i) {
        size_t bytes = kind == 0 ? 1 + below(1000000) : 512 * (1 + below(8));
        if (kind == 1) bytes = (size_t)512 << below(14);
        if (kind == 2) bytes = 1 + (below(4) ? below(4096) : below(50000000));
        uint32_t first = below(steps), last = first + below(span);
        lives[i] = (gt__life){bytes, (int32_t)first, (int32_t)(last < steps ? last : steps - 1)};
    }
    return (int32_t)n;
}

/* Lives as training has them: activations that forward makes and backward frees in the opposite order, gradients between two layers, weights' gradients to the
 * end, and scratch memory. */
static int32_t training(uint64_t seed, gt__life *lives) {
    begin_random(seed + 5000);
    int32_t layers = 2 + (int32_t)below(48), end = 2 * layers + 1, n = 0;
    size_t width = 1000 + below(1000000);
    for (int32_t k = 0; k < layers; ++k) {
        int32_t back = 2 * layers - 1 - k;
        if (below(3) == 0) width = width / 2 + 1 + below(2) * width; /* a stage */
        lives[n++] = (gt__life){width * (1 + below(3)), k, below(5) ? back : k + 1};
        lives[n++] = (gt__life){width * (1 + below(3)), back, back + 1};
        lives[n++] = (gt__life){1 + below(300000), back, end};
        if (below(2)) lives[n++] = (gt__life){1 + below(2000000), k, k};
        if (below(2)) lives[n++] = (gt__life){1 + below(2000000), back, back};
        if (below(4) == 0) lives[n++] = (gt__life){width, k, k + 1 + (int32_t)below((uint32_t)(layers - k))};
    }
    return n;
}

TEST(unit, memory_plan_of_random_training_is_within_3_percent) {
    gt__life lives[MOST];
    size_t offsets[MOST], bound;
    for (uint64_t seed = 0; seed < 1000; ++seed) {
        int32_t n = training(seed, lives);
        size_t bytes = planned(lives, n, offsets, &bound);
        if ((double)bytes > 1.03 * (double)bound) FAIL("seed %d: %zu bytes, at least %zu", (int)seed, bytes, bound);
    }
}

/* For a few such sets in a thousand none is found within 3 %. */
TEST(unit, memory_plan_of_anything_is_within_3_percent_as_a_rule) {
    gt__life lives[MOST];
    size_t offsets[MOST], bound;
    int above = 0;
    double sum = 0;
    for (uint64_t seed = 0; seed < 1000; ++seed) {
        int32_t n = anything(seed, lives);
        double share = (double)planned(lives, n, offsets, &bound) / (double)bound;
        sum += share;
        above += share > 1.03;
        if (share > 1.1) FAIL("seed %d: %.4f times the bound", (int)seed, share);
    }
    CHECK(above <= 10);
    CHECK(sum / 1000 < 1.0015);
}

TEST(unit, memory_plan_is_the_same_each_time) {
    gt__life lives[MOST];
    size_t a[MOST], b[MOST];
    for (uint64_t seed = 100; seed < 120; ++seed) {
        int32_t n = anything(seed, lives);
        (void)planned(lives, n, a, NULL);
        (void)planned(lives, n, b, NULL);
        CHECK(memcmp(a, b, (size_t)n * sizeof *a) == 0);
    }
}

/* --- programs -------------------------------------------------------------------------------------------------------------------------------------- */

static gt_status classify(void *user, gt_tensor *const *inputs, int32_t n, gt_step_result *r) {
    (void)n;
    r->loss = gt_cross_entropy(gt_module_forward(user, inputs[0]), inputs[1], NULL);
    return r->loss ? GT_OK : gt_last_error()->status;
}

static void check_plan(gt__plan *plan, const char *what) {
    gt__program *p = &plan->program;
    int32_t n = p->n_buffers + p->count;
    gt__life *lives = calloc((size_t)n, sizeof *lives);
    size_t *offsets = calloc((size_t)n, sizeof *offsets), bound;
    gt__program_lives(p);
    for (int32_t b = 0; b < p->n_buffers; ++b)
        if (p->buffers[b].first >= 0) lives[b] = (gt__life){p->buffers[b].bytes, p->buffers[b].first, p->buffers[b].last};
    size_t bytes = planned(lives, n, offsets, &bound);
    if ((double)bytes > 1.03 * (double)bound) FAIL("%s: %zu bytes, at least %zu", what, bytes, bound);
    CHECK(p->count > 10 && bound > 0 && (double)plan->arena_bytes <= 1.03 * (double)plan->bound);
    free(lives);
    free(offsets);
}

/* Plans a step, with nothing run; in f16 with loss scaling. `check` may be NULL. */
static void plan_of(gt_module *net, gt_step_fn fn, const gt__meta *inputs, int32_t micro_batches,
                    void (*check)(gt__plan *plan, const char *what), const char *what) {
    gt_context *ctx = gt_module_context(net);
    gt_optimizer_options o;
    gt_step_options so;
    gt_optimizer *optimizer = NULL;
    gt_scaler *scaler = NULL;
    gt_step *step = NULL;
    gt__plan *plan = NULL;
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, GT_OPTIMIZER_SGD));
    o.learning_rate = 0.1;
    o.momentum = 0.9;
    CHECK_OK(gt_optimizer_create_for(&o, net, &optimizer));
    CHECK_OK(gt_scaler_create(ctx, NULL, &scaler));
    CHECK_OK(gt_step_options_init(&so, sizeof so));
    so.fn = fn;
    so.user = so.module = net;
    so.optimizers = &optimizer;
    so.n_optimizers = 1;
    so.scaler = scaler;
    so.autocast = GT_DTYPE_F16;
    so.micro_batches = micro_batches;
    CHECK_OK(gt_step_create(ctx, &so, &step));
    CHECK_OK(gt__plan_create(step, inputs, 2, micro_batches, true, true, &plan));
    check_plan(plan, what);
    if (check) check(plan, what);
    gt__plan_destroy(step, plan);
    gt_step_destroy(step);
    gt_scaler_destroy(scaler);
    gt_optimizer_destroy(optimizer);
}

static void images(gt__meta *inputs, int64_t batch, int64_t channels, int64_t side) {
    const int64_t shape[4] = {batch, channels, side, side};
    CHECK_OK(gt__meta_make(&inputs[0], GT_DTYPE_F32, 4, shape, "test"));
    gt__meta_set_channels_last(&inputs[0]);
    CHECK_OK(gt__meta_make(&inputs[1], GT_DTYPE_I64, 1, &batch, "test"));
}

TEST(unit, memory_plan_of_an_mlp_is_within_3_percent) {
    gt_context *ctx = test_context(t);
    gt_module *layers[] = {gt_nn_linear(ctx, 784, 512, NULL), gt_nn_relu(ctx), gt_nn_linear(ctx, 512, 512, NULL), gt_nn_relu(ctx),
                           gt_nn_linear(ctx, 512, 10, NULL)};
    gt_module *net = gt_nn_sequential_from(ctx, layers, 5);
    for (int64_t batch = 1; batch <= 4096; batch *= 4) {
        const int64_t shape[2] = {batch, 784};
        gt__meta inputs[2];
        CHECK_OK(gt__meta_make(&inputs[0], GT_DTYPE_F32, 2, shape, "test"));
        CHECK_OK(gt__meta_make(&inputs[1], GT_DTYPE_I64, 1, shape, "test"));
        plan_of(net, classify, inputs, batch >= 4 ? 3 : 1, NULL, "mlp");
        plan_of(net, classify, inputs, 1, NULL, "mlp");
    }
    gt_module_destroy(net);
}

TEST(unit, memory_plan_of_a_cnn_is_within_3_percent) {
    gt_context *ctx = test_context(t);
    gt_module *layers[] = {gt_nn_conv2d(ctx, 1, 32, 3, NULL), gt_nn_relu(ctx),       gt_nn_conv2d(ctx, 32, 64, 3, NULL), gt_nn_relu(ctx),
                           gt_nn_max_pool2d(ctx, 2, NULL),    gt_nn_flatten(ctx, 1), gt_nn_linear(ctx, 9216, 128, NULL), gt_nn_relu(ctx),
                           gt_nn_linear(ctx, 128, 10, NULL)};
    gt_module *net = gt_nn_sequential_from(ctx, layers, 9);
    static const int64_t batches[] = {1, 7, 64, 256, 1000};
    for (size_t i = 0; i < GT__COUNT(batches); ++i) {
        gt__meta inputs[2];
        images(inputs, batches[i], 1, 28);
        plan_of(net, classify, inputs, 1, NULL, "cnn");
        if (batches[i] >= 4) plan_of(net, classify, inputs, 4, NULL, "cnn in micro-batches");
    }
    gt_module_destroy(net);
}

static void in_time(gt__plan *plan, const char *what) {
    double best = 1e9;
    for (int i = 0; i < 5; ++i) {
        clock_t begin = clock();
        CHECK_OK(gt__plan_place(plan));
        double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
        if (seconds < best) best = seconds;
    }
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    if (best > 0.05) FAIL("%s takes %.1f ms to place", what, best * 1e3);
#else
    (void)what;
#endif
}

TEST(unit, memory_plan_of_resnet50_is_within_3_percent_and_50_ms) {
    gt_context *ctx = test_context(t);
    static const char *const stages[] = {"layer1", "layer2", "layer3", "layer4"};
    gt_module *net = gt_nn_resnet50(ctx, 1000);
    gt__meta inputs[2];
    images(inputs, 256, 3, 224);
    plan_of(net, classify, inputs, 1, in_time, "resnet50");
    plan_of(net, classify, inputs, 4, in_time, "resnet50 in micro-batches");
    for (int i = 0; i < 4; ++i) {
        gt_module *stage, *block;
        CHECK_OK(gt_module_find_module(net, stages[i], &stage));
        for (int32_t k = 0; k < gt_module_child_count(stage); ++k) {
            CHECK_OK(gt_module_child(stage, k, NULL, &block));
            CHECK_OK(gt_module_set_checkpointing(block, 1));
        }
    }
    plan_of(net, classify, inputs, 1, in_time, "resnet50 with a segment a block");
    gt_module_destroy(net);
}

enum { LAYERS = 6, WIDTH = 64, HEADS = 4, WORDS = 500, EACH = 8 /* modules of a layer */ };

static gt_tensor *run_child(gt_module *net, int32_t k, gt_tensor *x) {
    gt_module *child;
    if (x == NULL || gt_module_child(net, k, NULL, &child) != GT_OK) return NULL;
    return gt_module_forward(child, x);
}

/* [batch * time, width] to [batch, heads, time, width / heads] */
static gt_tensor *heads_of(gt_tensor *x, int64_t batch, int64_t time) {
    const int64_t shape[4] = {batch, time, HEADS, WIDTH / HEADS};
    return gt_permute(gt_reshape(x, 4, shape), (const int32_t[]){0, 2, 1, 3});
}

/* Words in, the same words out. */
static gt_status language(void *user, gt_tensor *const *inputs, int32_t n, gt_step_result *r) {
    gt_module *net = user;
    (void)n;
    const int64_t batch = gt_tensor_size(inputs[0], 0), time = gt_tensor_size(inputs[0], 1), flat[2] = {batch * time, WIDTH},
                  all = batch * time;
    gt_tensor *x = gt_reshape(run_child(net, 0, inputs[0]), 2, flat);
    for (int32_t l = 0; l < LAYERS; ++l) {
        int32_t k = 1 + l * EACH;
        gt_tensor *h = run_child(net, k, x);
        gt_tensor *q = heads_of(run_child(net, k + 1, h), batch, time), *key = heads_of(run_child(net, k + 2, h), batch, time),
                  *value = heads_of(run_child(net, k + 3, h), batch, time);
        gt_tensor *weights = gt_softmax(gt_mul_scalar(gt_matmul(q, gt_transpose(key, 2, 3)), 0.25), 3);
        gt_tensor *mixed = gt_reshape(gt_permute(gt_matmul(weights, value), (const int32_t[]){0, 2, 1, 3}), 2, flat);
        x = gt_add(x, gt_dropout(run_child(net, k + 4, mixed), 0.1, 1));
        h = run_child(net, k + 5, x);
        x = gt_add(x, run_child(net, k + 7, gt_gelu(run_child(net, k + 6, h))));
    }
    r->loss = gt_cross_entropy(run_child(net, 1 + LAYERS * EACH, x), gt_reshape(inputs[1], 1, &all), NULL);
    return r->loss ? GT_OK : gt_last_error()->status;
}

TEST(unit, memory_plan_of_a_transformer_is_within_3_percent) {
    gt_context *ctx = test_context(t);
    gt_module *modules[2 + LAYERS * EACH];
    int32_t n = 0;
    const int64_t width = WIDTH;
    modules[n++] = gt_nn_embedding(ctx, WORDS, WIDTH);
    for (int l = 0; l < LAYERS; ++l) {
        modules[n++] = gt_nn_layer_norm(ctx, 1, &width, NULL);
        for (int k = 0; k < 4; ++k) modules[n++] = gt_nn_linear(ctx, WIDTH, WIDTH, NULL);
        modules[n++] = gt_nn_layer_norm(ctx, 1, &width, NULL);
        modules[n++] = gt_nn_linear(ctx, WIDTH, 4 * WIDTH, NULL);
        modules[n++] = gt_nn_linear(ctx, 4 * WIDTH, WIDTH, NULL);
    }
    modules[n++] = gt_nn_linear(ctx, WIDTH, WORDS, NULL);
    gt_module *net = gt_nn_sequential_from(ctx, modules, n);
    static const int64_t shapes[][2] = {{2, 16}, {8, 64}, {16, 128}, {4, 512}};
    for (size_t i = 0; i < GT__COUNT(shapes); ++i) {
        gt__meta inputs[2];
        for (int k = 0; k < 2; ++k) CHECK_OK(gt__meta_make(&inputs[k], GT_DTYPE_I64, 2, shapes[i], "test"));
        plan_of(net, language, inputs, 1, NULL, "transformer");
        plan_of(net, language, inputs, 2, NULL, "transformer in micro-batches");
    }
    gt_module_destroy(net);
}
