/* Saving tensors and modules by name, and loading them: what is refused, what is converted, what is told. */
#include "io/file.h"
#include "io/support.h"

#include <unistd.h>

static gt_tensor *full(gt_context *ctx, gt_dtype dtype, int64_t n, double value) {
    return CHECK_TENSOR(gt_tensor_full(ctx, dtype, 1, &n, value));
}

TEST(unit, safetensors_save_refuses_names_that_no_file_can_have) {
    gt_context *ctx = test_context(t);
    char *path = io_path(t, "x.safetensors");
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *const two[] = {full(ctx, GT_DTYPE_F32, 2, 1), full(ctx, GT_DTYPE_F32, 2, 2)};
    const char *const twice[] = {"a", "a"}, *const reserved[] = {"__metadata__", "b"}, *const latin[] = {"caf\xe9", "b"};
    const char *const none[] = {"a", NULL}, *const good[] = {"a", "b"};
    CHECK_STATUS(gt_safetensors_save(path, twice, two, 2, NULL, 0), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("two tensors are named \"a\"");
    gt_tensor *const same[] = {two[0], two[0]};
    CHECK_STATUS(gt_safetensors_save(path, twice, same, 2, NULL, 0), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_safetensors_save(path, reserved, two, 2, NULL, 0), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("__metadata__");
    CHECK_STATUS(gt_safetensors_save(path, latin, two, 2, NULL, 0), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("is not UTF-8 at byte 3");
    CHECK_STATUS(gt_safetensors_save(path, none, two, 2, NULL, 0), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("the name of tensor 1 is NULL");
    gt_tensor *const missing[] = {two[0], NULL};
    gt_clear_error();
    CHECK_STATUS(gt_safetensors_save(path, good, missing, 2, NULL, 0), GT_BAD_ARGUMENT);
    const gt_text_pair texts[] = {{"k", "1"}, {"k", "2"}}, half[] = {{"k", NULL}};
    CHECK_STATUS(gt_safetensors_save(path, good, two, 2, texts, 2), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("two metadata texts are named \"k\"");
    CHECK_STATUS(gt_safetensors_save(path, good, two, 2, half, 1), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_safetensors_save(NULL, good, two, 2, NULL, 0), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_safetensors_save(path, NULL, two, 2, NULL, 0), GT_BAD_ARGUMENT);
    gt_context *other = test_context(t);
    gt_tensor *const mixed[] = {two[0], full(other, GT_DTYPE_F32, 2, 1)};
    CHECK_STATUS(gt_safetensors_save(path, good, mixed, 2, NULL, 0), GT_BAD_DEVICE);
    gt_tensor_release(mixed[1]);
    gt_safetensors *file = NULL;
    CHECK_STATUS(gt_safetensors_open(path, &file), GT_IO); /* nothing was written */
    CHECK_OK(gt_scope_end(ctx));
    free(path);
}

TEST_DEVICES(unit, safetensors_keep_every_dtype_shape_and_text) {
    gt_context *ctx = test_context(t);
    char *path = io_path(t, "all.safetensors");
    static const char *const names[] = {"f32", "f16", "bf16", "f64", "i32", "i64", "u8", "empty", "\"<\\>\" \xe2\x82\xac"};
    static const char *const types[] = {"F32", "F16", "BF16", "F64", "I32", "I64", "U8", "F32", "U8"};
    gt_tensor *tensors[9];
    CHECK_OK(gt_scope_begin(ctx));
    for (int i = 0; i < 7; ++i) tensors[i] = CHECK_TENSOR(gt_tensor_arange(ctx, (gt_dtype)i, 1, 1, 3));
    const int64_t empty[2] = {0, 3};
    tensors[7] = CHECK_TENSOR(gt_tensor_zeros(ctx, GT_DTYPE_F32, 2, empty));
    tensors[8] = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_U8, 0, NULL, 9));
    const gt_text_pair texts[] = {{"who", "me \"quoted\" \n \xf0\x9f\x98\x80"}, {"", ""}};
    CHECK_OK(gt_safetensors_save(path, names, tensors, 9, texts, 2));
    gt_safetensors *file = io_open(path);
    CHECK_EQ_INT(gt_safetensors_count(file), 9);
    for (int i = 0; i < 9; ++i) {
        gt_safetensors_info info = io_info(file, names[i]);
        CHECK_EQ_STR(info.dtype_name, types[i]);
        CHECK_EQ_INT(info.dtype, gt_tensor_dtype(tensors[i]));
        CHECK_EQ_INT(info.ndim, gt_tensor_ndim(tensors[i]));
        unsigned char expected[32];
        CHECK_EQ_INT(info.bytes, gt_tensor_bytes(tensors[i]));
        CHECK_OK(gt_tensor_read(tensors[i], expected, gt_tensor_bytes(tensors[i])));
        CHECK(memcmp(info.data, expected, (size_t)info.bytes) == 0);
        CHECK(info.dtype < 0 || (uintptr_t)info.data % gt_dtype_size(info.dtype) == 0);
    }
    for (int i = 0; i < 2; ++i) {
        const char *value = NULL;
        CHECK_OK(gt_safetensors_metadata_find(file, texts[i].key, &value));
        CHECK_EQ_STR(value, texts[i].value);
    }
    gt_text_pair pair;
    CHECK_STATUS(gt_safetensors_metadata(file, 2, &pair), GT_BAD_ARGUMENT);
    gt_safetensors_info old = {.struct_size = 8, .name = (const char *)8};
    CHECK_OK(gt_safetensors_get_info(file, 0, &old));
    CHECK(old.struct_size == 8 && old.name == (const char *)8); /* a caller whose struct ends there */
    gt_safetensors_close(file);
    gt_safetensors_close(NULL);
    CHECK_OK(gt_scope_end(ctx));
    free(path);
}

TEST_DEVICES(unit, module_load_converts_floating_point) {
    static const gt_dtype dtypes[] = {GT_DTYPE_F16, GT_DTYPE_BF16, GT_DTYPE_F64, GT_DTYPE_F32};
    gt_context *ctx = test_context(t);
    char *path = io_path(t, "net.safetensors");
    gt_module *source = io_net(ctx), *net = io_net(ctx);
    for (int i = 0; i < 4; ++i) {
        CHECK_OK(gt_module_to_dtype(source, dtypes[i]));
        CHECK_OK(gt_module_save(source, path, NULL, 0));
        CHECK_OK(gt_module_load(net, path, NULL));
        for (int32_t k = 0; k < gt_module_parameter_count(net); ++k) {
            gt_tensor *a, *b;
            double worst = 1;
            CHECK_OK(gt_module_parameter(source, k, NULL, &a));
            CHECK_OK(gt_module_parameter(net, k, NULL, &b));
            CHECK_EQ_INT(gt_tensor_dtype(b), GT_DTYPE_F32);
            CHECK_OK(gt_scope_begin(ctx));
            gt_tensor *same = gt_abs(gt_sub(gt_cast(gt_tensor_detach(a), GT_DTYPE_F32), gt_tensor_detach(b)));
            CHECK_OK(gt_tensor_item(gt_sum(same, NULL, 0, 0), &worst));
            CHECK_OK(gt_scope_end(ctx));
            CHECK(worst == 0);
        }
    }
    CHECK_OK(gt_module_to_dtype(net, GT_DTYPE_BF16)); /* and the other way */
    CHECK_OK(gt_module_load(net, path, NULL));
    gt_tensor *weight;
    CHECK_OK(gt_module_find(net, "0.weight", &weight));
    CHECK_EQ_INT(gt_tensor_dtype(weight), GT_DTYPE_BF16);
    gt_module_destroy(source);
    gt_module_destroy(net);
    free(path);
}

TEST_DEVICES(unit, module_load_counts_batches_on_from_the_file) {
    gt_context *ctx = test_context(t);
    char *path = io_path(t, "norm.safetensors");
    gt_module *norm = gt_nn_batch_norm(ctx, 2, NULL);
    const int64_t shape[2] = {4, 2};
    for (int i = 0; i < 5; ++i) {
        CHECK_OK(gt_scope_begin(ctx));
        CHECK_TENSOR(gt_module_forward(norm, gt_tensor_normal(ctx, GT_DTYPE_F32, 2, shape, 0, 1)));
        CHECK_OK(gt_scope_end(ctx));
        if (i == 1) CHECK_OK(gt_module_save(norm, path, NULL, 0));
    }
    CHECK_OK(gt_module_load(norm, path, NULL));
    gt_tensor *count;
    double value = 0;
    CHECK_OK(gt_module_find(norm, "num_batches_tracked", &count));
    CHECK_OK(gt_tensor_item(count, &value));
    CHECK_EQ_INT(value, 2);
    gt_module_destroy(norm);
    free(path);
}

TEST_DEVICES(unit, module_load_tells_every_mismatch) {
    gt_context *ctx = test_context(t);
    char *path = io_path(t, "other.safetensors");
    gt_module *net = io_net(ctx);
    CHECK_OK(gt_scope_begin(ctx));
    static const char *const names[] = {"0.bias", "7.bias", "1.num_batches_tracked", "new.weight"};
    gt_tensor *const tensors[] = {full(ctx, GT_DTYPE_F32, 3, 8), full(ctx, GT_DTYPE_F32, 9, 1), full(ctx, GT_DTYPE_F32, 1, 1),
                                  full(ctx, GT_DTYPE_F32, 1, 1)};
    CHECK_OK(gt_safetensors_save(path, names, tensors, 4, NULL, 0));
    io_told told = {0};
    gt_module_load_options options;
    CHECK_OK(gt_module_load_options_init(&options, sizeof options));
    options.on_mismatch = io_tell;
    options.user = &told;
    CHECK_STATUS(gt_module_load(net, path, &options), GT_BAD_FILE);
    CHECK_ERROR_HAS("\"7.bias\" is [9] in the file, [4] here");
    CHECK_ERROR_HAS("\"1.num_batches_tracked\" is [1] in the file, [] here");
    CHECK_ERROR_HAS("\"0.weight\" is not in the file");
    CHECK_ERROR_HAS("\"new.weight\" has no place here");
    CHECK_EQ_INT(told.count, 2 + 8 + 1);
    CHECK(strstr(told.names, "0 3.weight|") && strstr(told.names, "1 new.weight|") && strstr(told.names, "2 7.bias|"));
    options.strict = 0; /* what both have must fit all the same */
    CHECK_STATUS(gt_module_load(net, path, &options), GT_BAD_FILE);
    CHECK(strstr(gt_last_error()->message, "0.weight") == NULL);
    CHECK_OK(gt_safetensors_save(path, names, tensors, 1, NULL, 0));
    CHECK_OK(gt_module_load(net, path, &options));
    gt_tensor *bias;
    float values[3];
    CHECK_OK(gt_module_find(net, "0.bias", &bias));
    CHECK_OK(gt_tensor_read(bias, values, sizeof values));
    CHECK(values[0] == 8 && values[2] == 8);
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(net);
    free(path);
}

static void count_lines(void *user, gt_log_level level, const char *text) {
    (void)text;
    *(int *)user += level == GT_LOG_ERROR;
}

/* More names than a message has room for: the log and the callback have them all. */
TEST(unit, module_load_logs_what_a_message_cannot_hold) {
    int lines = 0;
    gt_context_options context;
    CHECK_OK(gt_context_options_init(&context, sizeof context));
    context.log = count_lines;
    context.log_user = &lines;
    gt_context *ctx = test_context_with(t, &context);
    gt_module *net = gt_nn_sequential(ctx);
    for (int i = 0; i < 60; ++i) CHECK_OK(gt_nn_sequential_add(net, gt_nn_linear(ctx, 1, 1, NULL)));
    char *path = io_path(t, "none.safetensors");
    io_write_header(path, "{}", 0, 0);
    io_told told = {0};
    gt_module_load_options options;
    CHECK_OK(gt_module_load_options_init(&options, sizeof options));
    options.on_mismatch = io_tell;
    options.user = &told;
    CHECK_STATUS(gt_module_load(net, path, &options), GT_BAD_FILE);
    CHECK_ERROR_HAS("\"0.weight\" is not in the file");
    CHECK_ERROR_HAS(" more, which the context's log has");
    CHECK_EQ_INT(told.count, 120);
    CHECK_EQ_INT(lines, 120);
    CHECK(strstr(told.names, "0 59.bias|") != NULL);
    gt_module_destroy(net);
    free(path);
}

TEST_DEVICES(unit, states_are_not_saved_or_loaded_inside_a_window) {
    gt_context *ctx = test_context(t);
    gt_module *net = gt_nn_linear(ctx, 2, 2, NULL);
    gt_optimizer_options sgd;
    gt_optimizer *optimizer = NULL;
    gt_window_options w;
    gt_window *window = NULL;
    gt_state_parts parts;
    CHECK_OK(gt_optimizer_options_init(&sgd, sizeof sgd, GT_OPTIMIZER_SGD));
    CHECK_OK(gt_optimizer_create_for(&sgd, net, &optimizer));
    CHECK_OK(gt_window_options_init(&w, sizeof w));
    w.optimizers = &optimizer;
    w.n_optimizers = 1;
    w.micro_batches = 2;
    CHECK_OK(gt_window_create(&w, &window));
    CHECK_OK(gt_state_parts_init(&parts, sizeof parts));
    char *path = io_path(t, "state.safetensors");
    CHECK_STATUS(gt_state_save(path, &parts), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("there is no module, no optimizer and no trainer");
    parts.module = net;
    parts.window = window;
    CHECK_OK(gt_state_save(path, &parts));
    CHECK_OK(gt_window_micro_begin(window));
    CHECK_STATUS(gt_state_save(path, &parts), GT_BAD_STATE);
    CHECK_ERROR_HAS("a window is open");
    CHECK_STATUS(gt_state_load(path, &parts), GT_BAD_STATE);
    CHECK_STATUS(gt_module_load(net, path, NULL), GT_BAD_STATE);
    CHECK_OK(gt_window_cancel(window));
    CHECK_OK(gt_state_load(path, &parts));
    CHECK_OK(gt_module_save(net, path, NULL, 0));
    CHECK_STATUS(gt_state_load(path, &parts), GT_BAD_FILE);
    CHECK_ERROR_HAS("was not written by gt_state_save");
    CHECK_STATUS(gt_state_load(test_temp_path(t, "nothing"), &parts), GT_IO);
    gt_window_destroy(window);
    gt_optimizer_destroy(optimizer);
    gt_module_destroy(net);
    free(path);
}

TEST(unit, state_keep_last_keeps_the_greatest_numbers) {
    char *prefix = io_path(t, "run-"), path[4096];
    static const int64_t numbers[] = {7, 12, 3, 1000000, 999999};
    size_t needed = 0;
    int64_t number = 0;
    CHECK_STATUS(gt_state_latest(prefix, path, sizeof path, NULL, &number), GT_NOT_FOUND);
    for (int i = 0; i < 5; ++i) {
        CHECK_OK(gt_state_path(prefix, numbers[i], path, sizeof path, &needed));
        CHECK_EQ_INT(needed, strlen(path) + 1);
        io_write(path, "x", 1);
    }
    CHECK_OK(gt_state_path(prefix, 120, path, sizeof path, NULL));
    CHECK(strcmp(path + strlen(prefix), "000120.safetensors") == 0);
    static const char *const others[] = {"run-.safetensors", "run-1x.safetensors", "run-5.safetensors.tmp", "run-5", "other-5.safetensors"};
    for (int i = 0; i < 5; ++i) {
        char *other = io_path(t, others[i]);
        io_write(other, "x", 1);
        free(other);
    }
    CHECK_OK(gt_state_keep_last(prefix, 2));
    CHECK_OK(gt_state_latest(prefix, path, sizeof path, &needed, &number));
    CHECK_EQ_INT(number, 1000000);
    for (int i = 0; i < 5; ++i) {
        CHECK_OK(gt_state_path(prefix, numbers[i], path, sizeof path, NULL));
        FILE *file = fopen(path, "rb");
        CHECK((file != NULL) == (i >= 3));
        if (file) (void)fclose(file);
    }
    for (int i = 0; i < 5; ++i) { /* of others nothing is touched */
        char *other = io_path(t, others[i]);
        FILE *file = fopen(other, "rb");
        CHECK(file != NULL && fclose(file) == 0);
        free(other);
    }
    CHECK_STATUS(gt_state_keep_last(prefix, 0), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_state_path(prefix, 1, path, 4, NULL), GT_BAD_ARGUMENT);
    CHECK_OK(gt_state_path(prefix, 1, NULL, 0, &needed));
    char *nowhere = io_path(t, "no/folder-");
    CHECK_STATUS(gt_state_latest(nowhere, path, sizeof path, NULL, NULL), GT_IO);
    free(nowhere);
    free(prefix);
}

/* Loading is a change in place: what was derived from the old weights is not used with the new ones. */
TEST_DEVICES(unit, module_load_counts_as_a_change_of_the_weights) {
    gt_context *ctx = test_context(t);
    char *path = io_path(t, "linear.safetensors");
    gt_nn_linear_options options;
    CHECK_OK(gt_nn_linear_options_init(&options, sizeof options));
    options.bias = 0;
    gt_module *net = gt_nn_linear(ctx, 1, 1, &options), *other = gt_nn_linear(ctx, 1, 1, &options);
    gt_tensor *weight, *theirs;
    CHECK_OK(gt_module_find(net, "weight", &weight));
    CHECK_OK(gt_module_find(other, "weight", &theirs));
    CHECK_OK(gt_tensor_fill(weight, 2));
    CHECK_OK(gt_tensor_fill(theirs, 3));
    CHECK_OK(gt_module_save(other, path, NULL, 0));
    const int64_t one[2] = {1, 1};
    double value = 0;
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 2, one, 1));
    CHECK_OK(gt_tensor_set_requires_grad(x, 1));
    CHECK_OK(gt_autocast_begin(ctx, GT_DTYPE_BF16)); /* keeps a half copy of the weight */
    gt_tensor *before = CHECK_TENSOR(gt_sum(gt_module_forward(net, x), NULL, 0, 0));
    CHECK_OK(gt_module_load(net, path, NULL));
    CHECK_OK(gt_tensor_item(gt_module_forward(net, x), &value));
    CHECK_OK(gt_autocast_end(ctx));
    CHECK(value == 3);
    CHECK_STATUS(gt_backward(before), GT_SAVED_MODIFIED);
    CHECK_OK(gt_scope_end(ctx));
    gt_module_destroy(net);
    gt_module_destroy(other);
    free(path);
}

/* A file that shrinks after it was opened is found out before its map is touched. */
TEST(unit, safetensors_that_were_shortened_are_noticed) {
    gt_context *ctx = test_context(t);
    char *path = io_path(t, "linear.safetensors");
    gt_module *net = gt_nn_linear(ctx, 4, 4, NULL);
    CHECK_OK(gt_module_save(net, path, NULL, 0));
    gt_safetensors *file = io_open(path);
    CHECK_OK(gt__safetensors_verify(file));
    CHECK(truncate(path, 50) == 0);
    CHECK_STATUS(gt__safetensors_verify(file), GT_BAD_FILE);
    CHECK_ERROR_HAS("and has 50 now");
    gt_safetensors_close(file);
    gt_module_destroy(net);
    free(path);
}
