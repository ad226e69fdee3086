/* D6 across processes: the test runs itself twice more and compares what training left behind. */
#include "harness/test.h"

#include <gtrain/gtrain.h>

#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define OUTPUT "GTRAIN_TEST_D6_OUTPUT"

static gt_module *make_net(gt_context *ctx) {
    gt_module *layers[] = {
        gt_nn_conv2d(ctx, 3, 16, 3, NULL),
        gt_nn_batch_norm(ctx, 16, NULL),
        gt_nn_relu(ctx),
        gt_nn_max_pool2d(ctx, 2, NULL),
        gt_nn_dropout(ctx, 0.3),
        gt_nn_flatten(ctx, 1),
        gt_nn_linear(ctx, 16 * 49, 32, NULL),
        gt_nn_relu(ctx),
        gt_nn_linear(ctx, 32, 10, NULL),
    };
    return gt_nn_sequential_from(ctx, layers, sizeof layers / sizeof layers[0]);
}

/* Trains from seed 5 and writes every parameter and buffer to `path`. */
static void train_to(test_case *t, const char *path) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.deterministic = 1;
    options.seed = 5;
    gt_context *ctx = test_context_with(t, &options);
    gt_module *net = make_net(ctx);
    CHECK_OK(gt_module_check(net));
    gt_optimizer_options adam;
    gt_optimizer *optimizer;
    CHECK_OK(gt_optimizer_options_init(&adam, sizeof adam, GT_OPTIMIZER_ADAM));
    CHECK_OK(gt_optimizer_create_for(&adam, net, &optimizer));
    const int64_t image[4] = {32, 3, 16, 16}, rows[1] = {32};
    int64_t labels[32];
    for (int i = 0; i < 32; ++i) labels[i] = i * 7 % 10;
    for (int step = 0; step < 20; ++step) {
        CHECK_OK(gt_scope_begin(ctx));
        gt_tensor *x = gt_tensor_normal(ctx, GT_DTYPE_F32, 4, image, 0, 1);
        gt_tensor *y = gt_tensor_from_data(ctx, GT_DTYPE_I64, 1, rows, labels, sizeof labels);
        CHECK_OK(gt_optimizer_zero_grad(optimizer));
        CHECK_OK(gt_backward(gt_cross_entropy(gt_module_forward(net, x), y, NULL)));
        CHECK_OK(gt_optimizer_clip_grad_norm(optimizer, 1.0, NULL));
        CHECK_OK(gt_optimizer_step(optimizer));
        CHECK_OK(gt_scope_end(ctx));
    }
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL);
    for (int32_t i = 0; i < gt_module_parameter_count(net) + gt_module_buffer_count(net); ++i) {
        gt_tensor *tensor;
        int32_t buffer = i - gt_module_parameter_count(net);
        CHECK_OK(buffer < 0 ? gt_module_parameter(net, i, NULL, &tensor) : gt_module_buffer(net, buffer, NULL, &tensor));
        size_t bytes = gt_tensor_bytes(tensor);
        void *data = malloc(bytes);
        CHECK(data != NULL);
        CHECK_OK(gt_tensor_read(tensor, data, bytes));
        CHECK(fwrite(data, 1, bytes, file) == bytes);
        free(data);
    }
    CHECK(fclose(file) == 0);
    gt_optimizer_destroy(optimizer);
    gt_module_destroy(net);
}

static void train_in_a_process(const char *name, const char *path) {
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(length > 0);
    self[length] = '\0';
    CHECK(setenv(OUTPUT, path, 1) == 0);
    char *arguments[] = {self, (char *)(size_t)name, NULL};
    pid_t child;
    int failed = posix_spawn(&child, self, NULL, NULL, arguments, environ), status = -1;
    CHECK(unsetenv(OUTPUT) == 0);
    CHECK(failed == 0);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static size_t read_file(const char *path, unsigned char *data, size_t size) {
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL);
    size_t bytes = fread(data, 1, size, file);
    CHECK(fclose(file) == 0);
    return bytes;
}

TEST_DEVICES(contract, D6_same_seed_same_weights_across_processes) {
    const char *output = getenv(OUTPUT);
    if (output != NULL) { /* one of the two processes */
        train_to(t, output);
        return;
    }
    static unsigned char a[1 << 20], b[1 << 20];
    char name[128], first[512], second[512];
    snprintf(name, sizeof name, "%s.%s", t->name, t->device == TEST_CUDA ? "cuda" : "cpu");
    snprintf(first, sizeof first, "%s", test_temp_path(t, "first"));
    snprintf(second, sizeof second, "%s", test_temp_path(t, "second"));
    train_in_a_process(name, first);
    train_in_a_process(name, second);
    size_t bytes = read_file(first, a, sizeof a);
    CHECK(bytes > 100000 && bytes < sizeof a);
    CHECK_EQ_INT(read_file(second, b, sizeof b), bytes);
    CHECK(memcmp(a, b, bytes) == 0);
}
