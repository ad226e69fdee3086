/* Contexts on several threads, each with all that a training step may use at once: windows, loss scaling, autocast, recomputed segments, offload. */
#include "contract/step_support.h"

#include <pthread.h>
#include <stdio.h>

enum {
    THREADS = 4,
    WINDOWS = 3,
    MICRO_BATCHES = 2,
    ROWS = 3,
    SIDE = 6,
    CHANNELS = 4,
    CLASSES = 3,
    WEIGHTS = CHANNELS * SIDE * SIDE * CLASSES
};

typedef struct trainee {
    gt_context *ctx;
    gt_module *net;
    gt_optimizer *optimizer;
    gt_scaler *scaler;
    gt_window *window;
    gt_status status;
    char message[256];
    float weights[WEIGHTS]; /* the last layer's, after training */
} trainee;

static void trainee_begin(test_case *t, trainee *a) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.seed = 5;
    options.deterministic = 1;
    options.cpu_threads = 1;
    *a = (trainee){.ctx = test_context_with(t, &options)};
    gt_nn_conv2d_options same;
    CHECK_OK(gt_nn_conv2d_options_init(&same, sizeof same));
    same.padding[0] = same.padding[1] = 1;
    gt_module *const layers[] = {gt_nn_conv2d(a->ctx, 1, CHANNELS, 3, &same),
                                 gt_nn_batch_norm(a->ctx, CHANNELS, NULL),
                                 gt_nn_relu(a->ctx),
                                 gt_nn_dropout(a->ctx, 0.25),
                                 gt_nn_flatten(a->ctx, 1),
                                 gt_nn_linear(a->ctx, CHANNELS * SIDE * SIDE, CLASSES, NULL)};
    a->net = gt_nn_sequential_from(a->ctx, layers, 6);
    CHECK(a->net != NULL);
    CHECK_OK(gt_nn_sequential_set_segments(a->net, 2));
    gt_optimizer_options o;
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, GT_OPTIMIZER_ADAMW));
    CHECK_OK(gt_optimizer_create_for(&o, a->net, &a->optimizer));
    a->scaler = step_scaler(a->ctx, 1024, 2);
    gt_window_options w = step_window_options(&a->optimizer, 1, MICRO_BATCHES);
    w.module = a->net;
    w.scaler = a->scaler;
    w.clip_norm = 1;
    a->window = step_window(&w);
}

static void trainee_end(trainee *a) {
    gt_window_destroy(a->window);
    gt_scaler_destroy(a->scaler);
    gt_optimizer_destroy(a->optimizer);
    gt_module_destroy(a->net);
}

static gt_status micro_batch(trainee *a) {
    static const int64_t images[4] = {ROWS, 1, SIDE, SIDE}, rows = ROWS, labels[ROWS] = {0, 2, 1};
    gt_tensor *x = gt_tensor_normal(a->ctx, GT_DTYPE_F32, 4, images, 0, 1);
    gt_tensor *y = gt_tensor_from_data(a->ctx, GT_DTYPE_I64, 1, &rows, labels, sizeof labels);
    gt_status status = gt_window_micro_begin(a->window);
    if (status == GT_OK) status = gt_autocast_begin(a->ctx, GT_DTYPE_F16);
    if (status == GT_OK) status = gt_offload_begin(a->ctx, 1);
    if (status != GT_OK) return status;
    gt_tensor *loss = gt_cross_entropy(gt_module_forward(a->net, x), y, NULL);
    (void)gt_offload_end(a->ctx);
    (void)gt_autocast_end(a->ctx);
    return gt_window_micro_end(a->window, loss, ROWS, NULL);
}

static void *train(void *argument) {
    trainee *a = argument;
    for (int i = 0; i < WINDOWS * MICRO_BATCHES && a->status == GT_OK; ++i) {
        a->status = gt_scope_begin(a->ctx);
        if (a->status == GT_OK) a->status = micro_batch(a);
        if (a->status != GT_OK) (void)snprintf(a->message, sizeof a->message, "%s", gt_last_error()->message);
        (void)gt_scope_end(a->ctx);
    }
    gt_tensor *last = NULL;
    if (a->status == GT_OK) a->status = gt_module_find(a->net, "5.weight", &last);
    if (a->status == GT_OK) a->status = gt_tensor_read(last, a->weights, sizeof a->weights);
    return NULL;
}

TEST_DEVICES(unit, contexts_on_four_threads_train_as_one_does_alone) {
    static trainee alone, together[THREADS];
    trainee_begin(t, &alone);
    float first[WEIGHTS];
    gt_tensor *last;
    CHECK_OK(gt_module_find(alone.net, "5.weight", &last));
    step_read(last, first, WEIGHTS);
    (void)train(&alone);
    if (alone.status != GT_OK) FAIL("%s", alone.message);
    CHECK_EQ_INT(step_window_state(alone.window).updates, WINDOWS);
    CHECK(memcmp(first, alone.weights, sizeof first) != 0);
    pthread_t ids[THREADS];
    for (int i = 0; i < THREADS; ++i) trainee_begin(t, &together[i]);
    for (int i = 0; i < THREADS; ++i) CHECK(pthread_create(&ids[i], NULL, train, &together[i]) == 0);
    for (int i = 0; i < THREADS; ++i) (void)pthread_join(ids[i], NULL);
    for (int i = 0; i < THREADS; ++i) {
        if (together[i].status != GT_OK) FAIL("thread %d: %s", i, together[i].message);
        CHECK(memcmp(together[i].weights, alone.weights, sizeof alone.weights) == 0);
        CHECK_EQ_INT(step_state(together[i].scaler).scale, step_state(alone.scaler).scale);
        trainee_end(&together[i]);
    }
    trainee_end(&alone);
}
