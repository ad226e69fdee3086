/* E: what gtrain promises to the program around it. E2 and parts of E8 are in tests/abi. */
#include "harness/test.h"

#include <gtrain/gtrain.h>

#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TEST(contract, E1_bad_handles_and_numbers_are_statuses) {
    gt_context *ctx = test_context(t);
    const int64_t negative[1] = {-1}, shape[2] = {2, 3};
    gt_clear_error();
    CHECK(gt_tensor_empty(ctx, GT_DTYPE_F32, 1, negative) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_SHAPE);
    CHECK(gt_tensor_empty(ctx, 99, 2, shape) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_DTYPE);
    CHECK(gt_tensor_empty(ctx, GT_DTYPE_F32, 9, shape) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_SHAPE);
    CHECK(gt_tensor_empty(ctx, GT_DTYPE_F32, 2, NULL) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_ARGUMENT);
    CHECK(gt_tensor_from_data(ctx, GT_DTYPE_F32, 2, shape, NULL, 24) == NULL);
    CHECK(gt_tensor_from_data(ctx, GT_DTYPE_F32, 2, shape, shape, 23) == NULL);
    CHECK_ERROR_HAS("takes 24 bytes, 23 were given");
    CHECK_STATUS(gt_scope_end(ctx), GT_BAD_STATE);
    CHECK_STATUS(gt_no_grad_end(ctx), GT_BAD_STATE);
    CHECK_STATUS(gt_backward(NULL), GT_BAD_STATE);
    gt_clear_error();
    CHECK_STATUS(gt_backward(NULL), GT_BAD_ARGUMENT);
    gt_tensor_release(NULL);
    gt_context_destroy(NULL);
    /* and the context still works */
    gt_tensor *x = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 2, shape, 2.0));
    double sum = 0;
    gt_tensor *s = CHECK_TENSOR(gt_sum(x, NULL, 0, 0));
    CHECK_OK(gt_tensor_item(s, &sum));
    CHECK_NEAR(sum, 12.0, 0);
    gt_tensor_release(s);
    gt_tensor_release(x);
}

TEST(contract, E1_handles_outlive_their_context) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.device = GT_DEVICE_CPU;
    gt_context *ctx;
    CHECK_OK(gt_context_create(&options, &ctx));
    const int64_t shape[1] = {4};
    gt_tensor *w = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 1, shape, 1.0));
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    gt_tensor *y = CHECK_TENSOR(gt_mul(w, w));
    gt_tensor *view = CHECK_TENSOR(gt_slice(y, 0, 0, 2, 1));
    gt_context_destroy(ctx);
    CHECK(gt_tensor_data(w) == NULL);
    gt_clear_error();
    CHECK(gt_add(y, y) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_STATE);
    float values[4];
    CHECK_STATUS(gt_tensor_read(w, values, sizeof values), GT_BAD_STATE);
    CHECK_STATUS(gt_tensor_fill(w, 1), GT_BAD_STATE);
    CHECK_STATUS(gt_backward(y), GT_BAD_STATE);
    CHECK(gt_tensor_detach(w) == NULL);
    gt_tensor_release(view);
    gt_tensor_release(y);
    gt_tensor_release(w);
}

TEST(contract, E6_options_of_other_versions) {
    gt_context_options options;
    gt_context *ctx = NULL;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.device = GT_DEVICE_CPU;
    options.seed = 7;
    options.struct_size = 12; /* a version that knew only device and device_index */
    CHECK_OK(gt_context_create(&options, &ctx));
    uint64_t seed = 1;
    CHECK_OK(gt_random_state_get(ctx, &seed, NULL));
    CHECK_EQ_INT(seed, 0);
    gt_context_destroy(ctx);
    options.struct_size = 0;
    CHECK_STATUS(gt_context_create(&options, &ctx), GT_BAD_ABI);
    CHECK_ERROR_HAS("gt_context_options_init");

    struct {
        gt_context_options known;
        uint64_t newer;
    } longer;
    memset(&longer, 0, sizeof longer);
    CHECK_OK(gt_context_options_init(&longer.known, sizeof longer));
    longer.known.device = GT_DEVICE_CPU;
    CHECK_EQ_INT(longer.known.struct_size, sizeof longer);
    CHECK_OK(gt_context_create(&longer.known, &ctx));
    gt_context_destroy(ctx);
    longer.newer = 1;
    CHECK_STATUS(gt_context_create(&longer.known, &ctx), GT_BAD_ABI);
    CHECK_STATUS(gt_context_options_init(&options, 0), GT_BAD_ABI);
    CHECK_STATUS(gt_context_options_init(NULL, sizeof options), GT_BAD_ARGUMENT);
}

/* One small training step: the ops, libraries and threads that a step uses. */
static void step(gt_context *ctx) {
    CHECK_OK(gt_scope_begin(ctx));
    const int64_t image[4] = {4, 3, 8, 8}, kernel[4] = {8, 3, 3, 3}, weight[2] = {10, 8 * 36}, labels[1] = {4};
    gt_tensor *x = CHECK_TENSOR(gt_tensor_normal(ctx, GT_DTYPE_F32, 4, image, 0, 1));
    gt_tensor *k = CHECK_TENSOR(gt_tensor_normal(ctx, GT_DTYPE_F32, 4, kernel, 0, 1));
    gt_tensor *w = CHECK_TENSOR(gt_tensor_normal(ctx, GT_DTYPE_F32, 2, weight, 0, 1));
    gt_tensor *y = CHECK_TENSOR(gt_tensor_zeros(ctx, GT_DTYPE_I64, 1, labels));
    CHECK_OK(gt_tensor_set_requires_grad(k, 1));
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    gt_tensor *h = gt_relu(gt_conv2d(x, k, NULL, NULL));
    CHECK_OK(gt_backward(gt_cross_entropy(gt_linear(gt_flatten(h, 1), w, NULL), y, NULL)));
    double value;
    CHECK_OK(gt_tensor_item(gt_sum(gt_tensor_grad(k), NULL, 0, 0), &value));
    CHECK_OK(gt_scope_end(ctx));
}

TEST_DEVICES(contract, E8_the_process_state_is_as_it_was) {
    char directory[4096], after[4096];
    CHECK(getcwd(directory, sizeof directory) != NULL);
    int rounding = fegetround();
    fenv_t environment_before, environment_after;
    CHECK(fegetenv(&environment_before) == 0);
    struct sigaction before[NSIG], now;
    for (int s = 1; s < NSIG; ++s) (void)sigaction(s, NULL, &before[s]);
    char locale[256];
    strncpy(locale, setlocale(LC_ALL, NULL), sizeof locale - 1);
    locale[sizeof locale - 1] = '\0';
    char *threads = getenv("OMP_NUM_THREADS");
    volatile float denormal = 1e-40f;
    step(test_context(t));
    CHECK(getcwd(after, sizeof after) != NULL);
    CHECK_EQ_STR(after, directory);
    CHECK_EQ_INT(fegetround(), rounding);
    CHECK(fegetenv(&environment_after) == 0);
    CHECK_EQ_INT(environment_after.__mxcsr & 0xffc0u, environment_before.__mxcsr & 0xffc0u); /* all but the sticky flags */
    CHECK(denormal * 0.5f != 0.0f);
    CHECK_EQ_STR(setlocale(LC_ALL, NULL), locale);
    CHECK(getenv("OMP_NUM_THREADS") == threads);
    for (int s = 1; s < NSIG; ++s) {
        if (sigaction(s, NULL, &now) != 0) continue;
        CHECK(now.sa_handler == before[s].sa_handler);
    }
}

static void *independent(void *argument) {
    gt_context_options options;
    gt_context *ctx;
    double *result = argument;
    if (gt_context_options_init(&options, sizeof options) != GT_OK) return NULL;
    options.device = GT_DEVICE_CPU;
    options.cpu_threads = 1;
    if (gt_context_create(&options, &ctx) != GT_OK) return NULL;
    const int64_t shape[1] = {1000};
    for (int i = 0; i < 50; ++i) {
        (void)gt_scope_begin(ctx);
        (void)gt_tensor_item(gt_sum(gt_tensor_full(ctx, GT_DTYPE_F32, 1, shape, 3.0), NULL, 0, 0), result);
        (void)gt_scope_end(ctx);
    }
    gt_context_destroy(ctx);
    return NULL;
}

TEST(contract, E3_contexts_on_several_threads_are_independent) {
    pthread_t threads[4];
    double results[4] = {0};
    for (int i = 0; i < 4; ++i) CHECK(pthread_create(&threads[i], NULL, independent, &results[i]) == 0);
    for (int i = 0; i < 4; ++i) (void)pthread_join(threads[i], NULL);
    for (int i = 0; i < 4; ++i) CHECK_NEAR(results[i], 3000.0, 0);
}
