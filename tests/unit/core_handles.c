/* Tensors over memory that is somebody else's, and handles that other threads let go of. */
#include "harness/test.h"

#include <gtrain/gtrain.h>
#include <pthread.h>

typedef struct lender {
    int returned;
    gt_tensor *memory; /* on a GPU the lent memory is another tensor's */
    float values[6];
} lender;

static void give_back(void *user) { ((lender *)user)->returned++; }

/* Six numbers 1 to 6 of the lender's on the case's device. */
static void *lend(gt_context *ctx, lender *l) {
    for (int i = 0; i < 6; ++i) l->values[i] = (float)(i + 1);
    if (gt_context_device(ctx) == GT_DEVICE_CPU) return l->values;
    const int64_t shape[1] = {6};
    l->memory = gt_tensor_from_data(ctx, GT_DTYPE_F32, 1, shape, l->values, sizeof l->values);
    return gt_tensor_data(l->memory);
}

TEST_DEVICES(unit, tensor_from_memory_reads_writes_and_is_given_back_once) {
    gt_context *ctx = test_context(t);
    lender l = {0};
    void *data = lend(ctx, &l);
    const int64_t shape[2] = {3, 2}, strides[2] = {1, 3};
    gt_tensor *x = CHECK_TENSOR(gt_tensor_from_memory(ctx, GT_DTYPE_F32, 2, shape, strides, data, give_back, &l));
    const float transposed[6] = {1, 4, 2, 5, 3, 6};
    float out[6];
    CHECK_OK(gt_tensor_read(x, out, sizeof out));
    CHECK(memcmp(out, transposed, sizeof out) == 0);
    CHECK(gt_tensor_data(x) == data);
    gt_tensor *view = CHECK_TENSOR(gt_slice(x, 0, 1, 2, 1));
    gt_tensor_release(x);
    CHECK_EQ_INT(l.returned, 0);
    CHECK_OK(gt_tensor_fill(view, 9));
    gt_tensor_release(view);
    CHECK_EQ_INT(l.returned, 1);
    gt_tensor *again = CHECK_TENSOR(gt_tensor_from_memory(ctx, GT_DTYPE_F32, 2, (const int64_t[2]){2, 3}, NULL, data, NULL, NULL));
    const float written[6] = {1, 9, 3, 4, 9, 6};
    CHECK_OK(gt_tensor_read(again, out, sizeof out));
    CHECK(memcmp(out, written, sizeof out) == 0);
    gt_tensor_release(again);
    gt_tensor_release(l.memory);
}

TEST_DEVICES(unit, tensor_from_memory_takes_part_in_gradients_and_offload) {
    gt_context *ctx = test_context(t);
    lender l = {0};
    void *data = lend(ctx, &l);
    gt_tensor *w = CHECK_TENSOR(gt_tensor_from_memory(ctx, GT_DTYPE_F32, 1, (const int64_t[1]){6}, NULL, data, give_back, &l));
    CHECK_OK(gt_tensor_set_requires_grad(w, 1));
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_offload_begin(ctx, 1));
    gt_tensor *loss = gt_sum(gt_square(w), NULL, 0, 0);
    CHECK_OK(gt_offload_end(ctx));
    CHECK_OK(gt_backward(loss));
    const float want[6] = {2, 4, 6, 8, 10, 12};
    float out[6];
    CHECK_OK(gt_tensor_read(gt_tensor_grad(w), out, sizeof out));
    CHECK(memcmp(out, want, sizeof out) == 0);
    CHECK_OK(gt_scope_end(ctx));
    gt_tensor_release(w);
    CHECK_EQ_INT(l.returned, 1);
    gt_tensor_release(l.memory);
}

TEST_DEVICES(unit, tensor_from_memory_is_given_back_with_the_context_and_by_an_empty_one) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.device = test_device(t);
    gt_context *ctx;
    CHECK_OK(gt_context_create(&options, &ctx));
    lender l = {0};
    void *data = lend(ctx, &l);
    gt_tensor *kept = CHECK_TENSOR(gt_tensor_from_memory(ctx, GT_DTYPE_F32, 1, (const int64_t[1]){6}, NULL, data, give_back, &l));
    gt_tensor *empty = CHECK_TENSOR(gt_tensor_from_memory(ctx, GT_DTYPE_F32, 2, (const int64_t[2]){0, 3}, NULL, NULL, give_back, &l));
    gt_tensor_release(empty);
    CHECK_EQ_INT(l.returned, 1);
    gt_context_destroy(ctx);
    CHECK_EQ_INT(l.returned, 2);
    gt_tensor_release(kept);
    gt_tensor_release(l.memory);
    CHECK_EQ_INT(l.returned, 2);
}

TEST(unit, tensor_from_memory_refuses_what_it_cannot_hold) {
    gt_context *ctx = test_context(t);
    lender l = {0};
    const int64_t shape[2] = {2, 3}, backwards[2] = {3, -1}, far[2] = {INT64_MAX / 2, 1};
    CHECK(gt_tensor_from_memory(ctx, GT_DTYPE_F32, 2, shape, backwards, l.values, give_back, &l) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_SHAPE);
    CHECK(gt_tensor_from_memory(ctx, GT_DTYPE_F32, 2, shape, far, l.values, give_back, &l) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_SHAPE);
    CHECK(gt_tensor_from_memory(ctx, GT_DTYPE_F32, 2, shape, NULL, NULL, give_back, &l) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_ARGUMENT);
    CHECK(gt_tensor_from_memory(ctx, GT_DTYPE_F32, 1, shape, NULL, (char *)l.values + 1, give_back, &l) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_ARGUMENT);
    CHECK(gt_tensor_from_memory(NULL, GT_DTYPE_F32, 1, shape, NULL, l.values, give_back, &l) == NULL);
    CHECK_EQ_INT(l.returned, 0);
}

static void *drop_all(void *user) {
    gt_tensor **tensors = user;
    for (int i = 0; i < 100; ++i) gt_tensor_drop(tensors[i]);
    return NULL;
}

static uint64_t in_use(gt_context *ctx) {
    gt_memory_stats stats;
    if (gt_memory_stats_init(&stats, sizeof stats) != GT_OK || gt_memory_get_stats(ctx, &stats) != GT_OK) return UINT64_MAX;
    return stats.in_use;
}

TEST_DEVICES(unit, dropped_tensors_are_released_on_the_contexts_own_thread) {
    gt_context *ctx = test_context(t);
    gt_tensor *tensors[100];
    uint64_t before = in_use(ctx);
    pthread_t thread;
    for (int round = 0; round < 5; ++round) {
        gt_tensor *one = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 0, NULL, 1));
        for (int i = 0; i < 100; ++i)
            tensors[i] = i < 50 ? gt_tensor_retain(one) : CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 0, NULL, i));
        CHECK_EQ_INT(pthread_create(&thread, NULL, drop_all, tensors), 0);
        for (int i = 0; i < 200; ++i) gt_tensor_release(gt_add(one, one)); /* works meanwhile */
        CHECK_EQ_INT(pthread_join(thread, NULL), 0);
        double value = 0;
        CHECK_OK(gt_tensor_item(one, &value));
        CHECK(value == 1);
        gt_tensor_drop(one);
    }
    CHECK(in_use(ctx) == before);
    gt_tensor_drop(NULL);
}

TEST_DEVICES(unit, tensors_may_be_dropped_while_and_after_their_context_goes) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.device = test_device(t);
    gt_context *ctx;
    CHECK_OK(gt_context_create(&options, &ctx));
    gt_tensor *tensors[100];
    for (int i = 0; i < 100; ++i) tensors[i] = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 0, NULL, i));
    gt_tensor *later = gt_tensor_retain(tensors[0]);
    pthread_t thread;
    CHECK_EQ_INT(pthread_create(&thread, NULL, drop_all, tensors), 0);
    gt_context_destroy(ctx);
    CHECK_EQ_INT(pthread_join(thread, NULL), 0);
    gt_tensor_drop(later);
}
