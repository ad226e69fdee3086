/* Contract P4: an optimizer's state is kept by name, in its own dtype, and fits wholly or not at all. */
#include "io/support.h"

/* Named after the layers, so that its optimizer's state is. */
static gt_module *two_layers(gt_context *ctx, const char *second, int64_t middle) {
    gt_module *net = gt_nn_sequential(ctx);
    CHECK_OK(gt_nn_sequential_add_named(net, "in", gt_nn_linear(ctx, 3, middle, NULL)));
    CHECK_OK(gt_nn_sequential_add_named(net, second, gt_nn_linear(ctx, middle, 2, NULL)));
    return net;
}

static gt_optimizer *make(gt_module *net, gt_optimizer_kind kind, double rate, double momentum) {
    gt_optimizer_options o;
    gt_optimizer *optimizer = NULL;
    CHECK_OK(gt_optimizer_options_init(&o, sizeof o, kind));
    o.learning_rate = rate;
    o.momentum = momentum;
    CHECK_OK(gt_optimizer_create_for(&o, net, &optimizer));
    return optimizer;
}

static void train(gt_module *net, gt_optimizer *optimizer, int steps) {
    gt_context *ctx = gt_module_context(net);
    const int64_t shape[2] = {4, 3};
    for (int i = 0; i < steps; ++i) {
        CHECK_OK(gt_optimizer_zero_grad(optimizer));
        CHECK_OK(gt_scope_begin(ctx));
        gt_tensor *weight;
        CHECK_OK(gt_module_parameter(net, 0, NULL, &weight));
        gt_tensor *x = CHECK_TENSOR(gt_tensor_normal(ctx, gt_tensor_dtype(weight), 2, shape, 0, 1));
        CHECK_OK(gt_backward(gt_mean(gt_square(gt_module_forward(net, x)), NULL, 0, 0)));
        CHECK_OK(gt_scope_end(ctx));
        CHECK_OK(gt_optimizer_step(optimizer));
    }
}

static gt_state_parts parts_of(gt_module *net, gt_optimizer **optimizer) {
    gt_state_parts parts;
    CHECK_OK(gt_state_parts_init(&parts, sizeof parts));
    parts.module = net;
    parts.optimizers = optimizer;
    parts.n_optimizers = 1;
    return parts;
}

/* Saving it again gives the very same file: so nothing of its state has changed. */
static void check_same_file(test_case *t, const gt_state_parts *parts, const char *path) {
    char *again = io_path(t, "again.safetensors");
    size_t a = 0, b = 0;
    CHECK_OK(gt_state_save(again, parts));
    unsigned char *one = io_slurp(path, &a), *two = io_slurp(again, &b);
    CHECK(a == b && memcmp(one, two, a) == 0);
    free(one);
    free(two);
    free(again);
}

TEST_DEVICES(contract, P4_state_is_kept_by_name_in_its_own_dtype) {
    static const gt_dtype dtypes[] = {GT_DTYPE_F32, GT_DTYPE_F16, GT_DTYPE_BF16, GT_DTYPE_F64};
    for (size_t d = 0; d < 4; ++d) {
        gt_context *ctx = test_context(t);
        gt_module *net = two_layers(ctx, "out", 5), *other = two_layers(ctx, "out", 5);
        CHECK_OK(gt_module_to_dtype(net, dtypes[d]));
        CHECK_OK(gt_module_to_dtype(other, dtypes[d]));
        gt_optimizer *adam = make(net, GT_OPTIMIZER_ADAM, 1e-4, 0), *fresh = make(other, GT_OPTIMIZER_ADAM, 0.5, 0);
        train(net, adam, 3);
        char *path = io_path(t, "state.safetensors");
        gt_state_parts saved = parts_of(net, &adam), loaded = parts_of(other, &fresh);
        CHECK_OK(gt_state_save(path, &saved));

        gt_safetensors *file = io_open(path);
        int half = dtypes[d] == GT_DTYPE_F16 || dtypes[d] == GT_DTYPE_BF16;
        const char *wide = dtypes[d] == GT_DTYPE_F64 ? "F64" : "F32";
        int64_t index, steps = 0;
        CHECK_EQ_STR(io_info(file, "optimizer.0.exp_avg.out.weight").dtype_name, wide);
        CHECK_EQ_STR(io_info(file, "optimizer.0.exp_avg_sq.in.bias").dtype_name, wide);
        CHECK_EQ_INT(gt_safetensors_find(file, "optimizer.0.master.in.weight", &index), half ? GT_OK : GT_NOT_FOUND);
        if (half) CHECK_EQ_STR(io_info(file, "optimizer.0.master.in.weight").dtype_name, "F32");
        memcpy(&steps, io_info(file, "optimizer.0.step.in.weight").data, sizeof steps);
        CHECK_EQ_INT(steps, 3);
        gt_safetensors_close(file);

        uint64_t seed, offset;
        CHECK_OK(gt_random_state_get(ctx, &seed, &offset));
        CHECK_OK(gt_state_load(path, &loaded));
        check_same_file(t, &loaded, path);
        CHECK(gt_optimizer_learning_rate(fresh) == 1e-4);
        train(net, adam, 4);
        CHECK_OK(gt_random_state_set(ctx, seed, offset));
        train(other, fresh, 4); /* both go on alike, bit by bit */
        size_t size = 0;
        unsigned char *bits = io_bits(net, &size);
        io_check_bits(other, bits, size);
        free(bits);
        free(path);
        gt_optimizer_destroy(adam);
        gt_optimizer_destroy(fresh);
        gt_module_destroy(net);
        gt_module_destroy(other);
    }
}

TEST_DEVICES(contract, P4_a_mismatch_lists_every_name_and_nothing_is_loaded) {
    gt_context *ctx = test_context(t);
    gt_module *net = two_layers(ctx, "out", 5), *renamed = two_layers(ctx, "head", 5), *wider = two_layers(ctx, "out", 6);
    gt_optimizer *adam = make(net, GT_OPTIMIZER_ADAM, 1e-3, 0), *sgd = make(net, GT_OPTIMIZER_SGD, 1e-3, 0.9);
    gt_optimizer *of_renamed = make(renamed, GT_OPTIMIZER_ADAM, 1e-3, 0), *of_wider = make(wider, GT_OPTIMIZER_ADAM, 1e-3, 0);
    char *path = io_path(t, "state.safetensors"), *before = io_path(t, "before.safetensors");
    train(net, adam, 2);
    gt_state_parts saved = parts_of(net, &adam);
    CHECK_OK(gt_state_save(path, &saved));

    /* Other names: what is missing and what has no place, of parameters and of state. */
    static const char *const kinds[] = {"step", "exp_avg", "exp_avg_sq"};
    static const char *const leaves[] = {"weight", "bias"};
    gt_state_parts parts = parts_of(renamed, &of_renamed);
    io_told told = {0};
    parts.on_mismatch = io_tell;
    parts.user = &told;
    train(renamed, of_renamed, 1);
    CHECK_OK(gt_state_save(before, &parts));
    CHECK_STATUS(gt_state_load(path, &parts), GT_BAD_FILE);
    CHECK_EQ_INT(told.count, 2 * (2 + 6));
    char name[100];
    for (int l = 0; l < 2; ++l) {
        (void)snprintf(name, sizeof name, "0 module.head.%s|", leaves[l]);
        CHECK(strstr(told.names, name) != NULL);
        (void)snprintf(name, sizeof name, "1 module.out.%s|", leaves[l]);
        CHECK(strstr(told.names, name) != NULL);
        for (int k = 0; k < 3; ++k) {
            (void)snprintf(name, sizeof name, "0 optimizer.0.%s.head.%s|", kinds[k], leaves[l]);
            CHECK(strstr(told.names, name) != NULL);
            (void)snprintf(name, sizeof name, "1 optimizer.0.%s.out.%s|", kinds[k], leaves[l]);
            CHECK(strstr(told.names, name) != NULL);
        }
    }
    CHECK_ERROR_HAS("\"module.head.weight\" is not in the file");
    check_same_file(t, &parts, before);

    /* Other shapes. */
    parts = parts_of(wider, &of_wider);
    CHECK_OK(gt_state_save(before, &parts));
    CHECK_STATUS(gt_state_load(path, &parts), GT_BAD_FILE);
    CHECK_ERROR_HAS("\"module.in.weight\" is [5,3] in the file, [6,3] here");
    CHECK_ERROR_HAS("\"optimizer.0.exp_avg.in.weight\" is [5,3] in the file, [6,3] here");
    check_same_file(t, &parts, before);

    /* Another rule. */
    parts = parts_of(net, &sgd);
    CHECK_OK(gt_state_save(before, &parts));
    CHECK_STATUS(gt_state_load(path, &parts), GT_BAD_FILE);
    CHECK_ERROR_HAS("\"optimizer.0.kind\" is 1 in the file, 0 here");
    CHECK_ERROR_HAS("\"optimizer.0.momentum_buffer.in.weight\" is not in the file");
    check_same_file(t, &parts, before);

    /* Another dtype: state is never converted. */
    CHECK_OK(gt_module_to_dtype(wider, GT_DTYPE_F64));
    gt_optimizer_destroy(of_wider);
    of_wider = make(wider, GT_OPTIMIZER_ADAM, 1e-3, 0);
    parts = parts_of(wider, &of_wider);
    CHECK_OK(gt_state_save(path, &parts));
    CHECK_OK(gt_module_to_dtype(wider, GT_DTYPE_F32));
    gt_optimizer_destroy(of_wider);
    of_wider = make(wider, GT_OPTIMIZER_ADAM, 1e-3, 0);
    parts = parts_of(wider, &of_wider);
    CHECK_STATUS(gt_state_load(path, &parts), GT_BAD_FILE);
    CHECK_ERROR_HAS("\"optimizer.0.exp_avg.in.bias\" is F64 in the file, F32 here");

    gt_optimizer_destroy(adam);
    gt_optimizer_destroy(sgd);
    gt_optimizer_destroy(of_renamed);
    gt_optimizer_destroy(of_wider);
    gt_module_destroy(net);
    gt_module_destroy(renamed);
    gt_module_destroy(wider);
    free(path);
    free(before);
}
