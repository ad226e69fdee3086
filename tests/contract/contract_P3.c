/* Contract P3: what is saved is what a tensor means, not how it lies in memory; and one weight under two names is one weight. */
#include "io/support.h"

TEST_DEVICES(contract, P3_a_view_is_saved_in_logical_order) {
    gt_context *ctx = test_context(t);
    char *path = io_path(t, "views.safetensors");
    const float values[6] = {1, 2, 3, 4, 5, 6};
    const int64_t two_three[2] = {2, 3}, three = 3, image[4] = {2, 3, 2, 2}, wide[2] = {4, 3};
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_F32, 2, two_three, values, sizeof values));
    gt_tensor *row = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_F32, 1, &three, values, 3 * sizeof *values));
    float pixels[24];
    for (int i = 0; i < 24; ++i) pixels[i] = (float)i;
    gt_tensor *images = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_F32, 4, image, pixels, sizeof pixels));
    const int32_t axes[4] = {2, 3, 1, 0};
    const char *const names[] = {"transposed", "column", "expanded", "permuted"};
    gt_tensor *const tensors[] = {CHECK_TENSOR(gt_transpose(x, 0, 1)), CHECK_TENSOR(gt_slice(x, 1, 1, 2, 1)),
                                  CHECK_TENSOR(gt_expand(row, 2, wide)), CHECK_TENSOR(gt_permute(images, axes))};
    CHECK_OK(gt_safetensors_save(path, names, tensors, 4, NULL, 0));

    gt_safetensors *file = io_open(path);
    gt_safetensors_info info = io_info(file, "transposed");
    CHECK(info.ndim == 2 && info.shape[0] == 3 && info.shape[1] == 2);
    CHECK_EQ_STR(info.dtype_name, "F32");
    CHECK_EQ_INT(info.bytes, sizeof values);
    const float order[6] = {1, 4, 2, 5, 3, 6}, column[2] = {2, 5};
    CHECK(memcmp(info.data, order, sizeof order) == 0);
    info = io_info(file, "column");
    CHECK(info.ndim == 2 && info.shape[0] == 2 && info.shape[1] == 1 && memcmp(info.data, column, sizeof column) == 0);
    info = io_info(file, "expanded");
    CHECK_EQ_INT(info.bytes, 12 * sizeof(float));
    for (size_t i = 0; i < 4; ++i) CHECK(memcmp((const char *)info.data + i * 12, values, 12) == 0);
    info = io_info(file, "permuted");
    float back[24];
    CHECK_OK(gt_tensor_read(tensors[3], back, sizeof back));
    CHECK(memcmp(info.data, back, sizeof back) == 0);

    int64_t index;
    CHECK_OK(gt_safetensors_find(file, "transposed", &index));
    gt_tensor *again = CHECK_TENSOR(gt_safetensors_read(ctx, file, index));
    CHECK_OK(gt_tensor_read(again, back, sizeof order));
    CHECK(memcmp(back, order, sizeof order) == 0);
    CHECK_EQ_STR(gt_tensor_name(again), "transposed");
    CHECK_OK(gt_scope_end(ctx));
    gt_safetensors_close(file);
    free(path);
}

TEST_DEVICES(contract, P3_weights_stored_channels_last_are_saved_row_major) {
    gt_context *ctx = test_context(t);
    char *path = io_path(t, "conv.safetensors");
    gt_module *conv = gt_nn_conv2d(ctx, 3, 4, 3, NULL), *other = gt_nn_conv2d(ctx, 3, 4, 3, NULL);
    gt_tensor *weight = NULL;
    CHECK_OK(gt_module_find(conv, "weight", &weight));
    CHECK_EQ_INT(gt_tensor_is_contiguous(weight), 0);
    float values[108];
    for (int i = 0; i < 108; ++i) values[i] = (float)i;
    CHECK_OK(gt_tensor_write(weight, values, sizeof values));
    CHECK_OK(gt_module_save(conv, path, NULL, 0));
    gt_safetensors *file = io_open(path);
    CHECK(memcmp(io_info(file, "weight").data, values, sizeof values) == 0);
    gt_safetensors_close(file);
    CHECK_OK(gt_module_load(other, path, NULL));
    size_t size = 0;
    unsigned char *bits = io_bits(conv, &size);
    io_check_bits(other, bits, size);
    free(bits);
    gt_module_destroy(conv);
    gt_module_destroy(other);
    free(path);
}

TEST_DEVICES(contract, P3_tied_weights_are_saved_loaded_normed_and_stepped_once) {
    gt_context *ctx = test_context(t);
    char *path = io_path(t, "tied.safetensors");
    const float start[2] = {3, 4}, zero[2] = {0, 0};
    gt_module *module = io_tied(ctx, start, 2), *other = io_tied(ctx, zero, 2);
    CHECK_OK(gt_module_save(module, path, NULL, 0));
    gt_safetensors *file = io_open(path);
    CHECK_EQ_INT(gt_safetensors_count(file), 1);
    const char *first = NULL;
    CHECK_OK(gt_safetensors_metadata_find(file, "b", &first));
    CHECK_EQ_STR(first, "a");
    CHECK(io_info(file, "b").data == io_info(file, "a").data);
    gt_safetensors_close(file);

    CHECK_OK(gt_module_load(other, path, NULL));
    float values[2];
    gt_tensor *weight = NULL;
    CHECK_OK(gt_module_find(other, "b", &weight));
    CHECK_OK(gt_tensor_read(weight, values, sizeof values));
    CHECK(values[0] == 3 && values[1] == 4);

    /* Under the other name alone, and under both. */
    const char *const names[] = {"b", "a"};
    CHECK_OK(gt_scope_begin(ctx));
    const int64_t two = 2;
    gt_tensor *const same[] = {CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 1, &two, 5)),
                               CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_F32, 1, &two, 5))};
    CHECK_OK(gt_safetensors_save(path, names, same, 1, NULL, 0));
    CHECK_OK(gt_module_load(other, path, NULL));
    CHECK_OK(gt_safetensors_save(path, names, same, 2, NULL, 0));
    CHECK_OK(gt_module_load(other, path, NULL));
    CHECK_OK(gt_tensor_read(weight, values, sizeof values));
    CHECK(values[0] == 5 && values[1] == 5);
    CHECK_OK(gt_tensor_fill(same[1], 6)); /* two weights in the file, one here */
    CHECK_OK(gt_safetensors_save(path, names, same, 2, NULL, 0));
    CHECK_STATUS(gt_module_load(other, path, NULL), GT_BAD_FILE);
    CHECK_ERROR_HAS("is one weight with");
    CHECK_OK(gt_scope_end(ctx));

    /* Gradient (3,4) has the norm 5 if it counts once, and one step of it is one step. */
    CHECK_OK(gt_module_find(module, "a", &weight));
    gt_optimizer_options sgd;
    CHECK_OK(gt_optimizer_options_init(&sgd, sizeof sgd, GT_OPTIMIZER_SGD));
    sgd.learning_rate = 1;
    gt_optimizer *optimizer = NULL;
    CHECK_OK(gt_optimizer_create_for(&sgd, module, &optimizer));
    CHECK_EQ_INT(gt_optimizer_parameter_count(optimizer), 1);
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *x = CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_F32, 1, &two, start, sizeof start)), *norm = NULL;
    CHECK_OK(gt_backward(gt_sum(gt_module_forward(module, x), NULL, 0, 0)));
    CHECK_OK(gt_optimizer_clip_grad_norm(optimizer, 100, &norm));
    double length = 0;
    CHECK_OK(gt_tensor_item(norm, &length));
    CHECK_NEAR(length, 5, 1e-6);
    CHECK_OK(gt_optimizer_step(optimizer));
    CHECK_OK(gt_tensor_read(weight, values, sizeof values));
    CHECK(values[0] == 0 && values[1] == 0);
    CHECK_OK(gt_scope_end(ctx));
    gt_optimizer_destroy(optimizer);
    gt_module_destroy(module);
    gt_module_destroy(other);
    free(path);
}
