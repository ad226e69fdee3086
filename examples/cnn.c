/* Trains a convolutional network on Fashion-MNIST: the network of PyTorch's MNIST example, 1.2 million parameters. */
#include "common/args.h"
#include "common/fashion.h"
#include "common/progress.h"

#include <errno.h>
#include <stdio.h>

/* [N,1,28,28] to [N,10]. NULL if any layer could not be made; the error is kept. */
static gt_module *make_net(gt_context *ctx) {
    gt_module *layers[] = {
        gt_nn_conv2d(ctx, 1, 32, 3, NULL),
        gt_nn_relu(ctx),
        gt_nn_conv2d(ctx, 32, 64, 3, NULL),
        gt_nn_relu(ctx),
        gt_nn_max_pool2d(ctx, 2, NULL),
        gt_nn_dropout(ctx, 0.25),
        gt_nn_flatten(ctx, 1),
        gt_nn_linear(ctx, 9216, 128, NULL),
        gt_nn_relu(ctx),
        gt_nn_dropout(ctx, 0.5),
        gt_nn_linear(ctx, 128, 10, NULL),
    };
    return gt_nn_sequential_from(ctx, layers, sizeof layers / sizeof layers[0]);
}

/* Of the whole run: each epoch's last one may have fewer batches. */
static int64_t updates(const args *a, const gt_loader *training) {
    int64_t window = a->accumulation > 0 ? a->accumulation : 1;
    return a->epochs * ((gt_loader_batches(training) + window - 1) / window);
}

/* The state is saved after each epoch, and when the training was stopped, wherever that was. */
typedef struct saving {
    progress shown;   /* first: the callbacks of progress.h get the same pointer */
    const char *path; /* NULL: nothing is saved */
    gt_state_parts parts;
    gt_status status; /* of the last attempt */
} saving;

static int32_t save_epoch(void *user, const gt_train_progress *now) {
    saving *s = user;
    int32_t stop = progress_epoch(user, now);
    if (s->path) s->status = gt_state_save(s->path, &s->parts);
    return stop || s->status != GT_OK;
}

/* Goes on where the file says, if there is one. *epochs: those that are left. */
static gt_status resume(const args *a, saving *s, int64_t *epochs) {
    int64_t done = 0, updates_done = 0;
    gt_status status = gt_state_load(s->path, &s->parts);
    if (status == GT_IO && gt_last_error()->native_code == ENOENT) return GT_OK; /* the run begins */
    if (status == GT_OK) status = gt_trainer_state_get(s->parts.trainer, &done, &updates_done);
    if (status != GT_OK) return status;
    printf("going on from %s in epoch %lld, after %lld updates\n", s->path, (long long)done + 1, (long long)updates_done);
    *epochs = done < a->epochs ? a->epochs - done : 0;
    return GT_OK;
}

/* Fits the network, testing it after each epoch. */
static gt_status train(const args *a, gt_module *net, gt_loader *training, gt_loader *test, gt_fit_result *result) {
    saving s = {.path = a->save, .status = GT_OK};
    progress_begin(&s.shown);
    int64_t epochs = a->epochs;
    gt_schedule schedule;
    gt_optimizer *optimizer = NULL;
    gt_trainer *trainer = NULL;
    gt_trainer_options options;
    gt_status status = gt_trainer_options_init(&options, sizeof options);
    if (status == GT_OK) status = args_optimizer(a, net, updates(a, training), &optimizer, &schedule);
    if (status == GT_OK) {
        options.optimizer = optimizer;
        options.schedule = &schedule;
        options.precision = a->precision;
        options.accumulation = (int32_t)(a->accumulation > 0 ? a->accumulation : 1);
        options.shrink_on_oom = a->memory_limit > 0 || a->memory_budget > 0;
        options.compile = a->compile;
        options.memory_budget = (uint64_t)a->memory_budget;
        options.offload = a->offload && a->memory_budget > 0;
        options.on_step = progress_step;
        options.on_epoch = save_epoch;
        options.callback_user = &s;
        status = gt_trainer_create(net, &options, &trainer);
    }
    if (status == GT_OK) status = gt_state_parts_init(&s.parts, sizeof s.parts);
    s.parts.trainer = trainer;
    s.parts.loader = training;
    if (status == GT_OK && a->resume) status = resume(a, &s, &epochs);
    if (status == GT_OK) status = gt_trainer_fit(trainer, training, test, epochs, result);
    if (status == GT_OK) status = s.status;
    if (status == GT_OK && result->stopped && a->save) {
        status = gt_state_save(a->save, &s.parts);
        if (status == GT_OK) printf("\nsaved to %s; --resume goes on from there\n", a->save);
    }
    gt_trainer_destroy(trainer);
    gt_optimizer_destroy(optimizer);
    return status;
}

static int run(const args *a, gt_context *ctx) {
    gt_loader *training, *test;
    int code = fashion_open(a, ctx, &training, &test);
    if (code != 0) return code;

    gt_module *net = make_net(ctx);
    gt_fit_result result;
    if (net == NULL || gt_fit_result_init(&result, sizeof result) != GT_OK) {
        code = args_fail(a, "making the network");
    } else {
        progress_describe(ctx, net);
        if (train(a, net, training, test, &result) != GT_OK)
            code = args_fail(a, "training");
        else if (progress_summary(a, ctx, "cnn", &result) != GT_OK)
            code = args_fail(a, "reading the memory statistics");
    }
    gt_module_destroy(net);
    gt_loader_destroy(training);
    gt_loader_destroy(test);
    return code;
}

int main(int argc, char **argv) {
    args a = {.optimizer = GT_OPTIMIZER_ADAM, .epochs = 3, .batch = 64, .seed = 1};
    int code = args_parse(argc, argv, "Trains a small convolutional network on Fashion-MNIST.", &a);
    if (code >= 0) return code;
    gt_context *ctx;
    if (args_open(&a, &ctx) != GT_OK) return args_fail(&a, "opening the device");
    code = run(&a, ctx);
    gt_context_destroy(ctx);
    return code;
}
