/* What a trainer refuses, and that a failure in the middle leaves nothing behind. */
#include "train/support.h"

#include <math.h>

TEST(unit, trainer_refuses_memory_options_by_name) {
    gt_context *ctx = test_context(t);
    gt_module *net = scale_module(ctx, 1);
    gt_trainer *trainer = NULL;
    gt_trainer_options options = trainer_options(NULL);
    options.precision = 9;
    CHECK_STATUS(gt_trainer_create(net, &options, &trainer), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("precision is 9");
    options = trainer_options(NULL);
    options.accumulation = 0;
    CHECK_STATUS(gt_trainer_create(net, &options, &trainer), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("accumulation is 0");
    options = trainer_options(NULL);
    options.checkpointing = -1;
    CHECK_STATUS(gt_trainer_create(net, &options, &trainer), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("checkpointing is -1");
    options.checkpointing = 2;
    CHECK_STATUS(gt_trainer_create(net, &options, &trainer), GT_BAD_STATE);
    CHECK_ERROR_HAS("sequential");
    options = trainer_options(NULL);
    options.compile = 1; /* what a compiled step has on the host is the budget's choice */
    options.offload = 4096;
    CHECK_STATUS(gt_trainer_create(net, &options, &trainer), GT_NOT_SUPPORTED);
    CHECK_ERROR_HAS("offload is 4096 bytes");
    CHECK_ERROR_HAS("memory_budget");
    CHECK(trainer == NULL);
    gt_module_destroy(net);
}

static gt_tensor *some_loss(void *user, gt_tensor *output, gt_tensor *y) {
    (void)user, (void)y;
    return output;
}

TEST(unit, trainer_refuses_options_out_of_range) {
    gt_context *ctx = test_context(t);
    gt_module *net = scale_module(ctx, 1);
    gt_trainer *trainer = NULL;
    gt_trainer_options options = trainer_options(NULL);
    options.loss = 3;
    CHECK_STATUS(gt_trainer_create(net, &options, &trainer), GT_BAD_ARGUMENT);
    options = trainer_options(NULL);
    options.loss_fn = some_loss; /* but the loss is cross-entropy */
    CHECK_STATUS(gt_trainer_create(net, &options, &trainer), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("loss_fn is set");
    options = trainer_options(NULL);
    options.loss = GT_LOSS_CUSTOM;
    CHECK_STATUS(gt_trainer_create(net, &options, &trainer), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("loss_fn is NULL");
    options = trainer_options(NULL);
    options.clip_norm = -1;
    CHECK_STATUS(gt_trainer_create(net, &options, &trainer), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("clip_norm is -1");
    options = trainer_options(NULL);
    options.clip_value = NAN;
    CHECK_STATUS(gt_trainer_create(net, &options, &trainer), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("clip_value");
    options = trainer_options(NULL);
    options.log_every = -1;
    CHECK_STATUS(gt_trainer_create(net, &options, &trainer), GT_BAD_ARGUMENT);
    gt_cross_entropy_options cross_entropy;
    CHECK_OK(gt_cross_entropy_options_init(&cross_entropy, sizeof cross_entropy));
    cross_entropy.reduction = GT_REDUCTION_SUM;
    options = trainer_options(NULL);
    options.cross_entropy = &cross_entropy;
    CHECK_STATUS(gt_trainer_create(net, &options, &trainer), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("reduction 1");
    gt_schedule schedule;
    CHECK_OK(gt_schedule_init(&schedule, sizeof schedule, GT_SCHEDULE_COSINE));
    options = trainer_options(NULL);
    options.schedule = &schedule; /* total_steps is 0 */
    CHECK_STATUS(gt_trainer_create(net, &options, &trainer), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("total_steps");
    options = trainer_options(NULL);
    options.struct_size = 0;
    CHECK_STATUS(gt_trainer_create(net, &options, &trainer), GT_BAD_ABI);
    gt_clear_error();
    CHECK_STATUS(gt_trainer_create(NULL, NULL, &trainer), GT_BAD_ARGUMENT);
    CHECK(trainer == NULL);
    gt_trainer_destroy(NULL);
    gt_module_destroy(net);
}

TEST(unit, trainer_refuses_loaders_that_do_not_fit) {
    gt_context *ctx = test_context(t), *other = test_context(t);
    const float x[4] = {1, 2, 3, 4};
    gt_module *net = scale_module(ctx, 1);
    gt_optimizer *optimizer = sgd(net, 0.1);
    gt_loader *mine = vectors_loader(ctx, x, 1, NULL, 4, 2), *foreign = vectors_loader(other, x, 1, NULL, 4, 2);
    gt_trainer_options options = trainer_options(optimizer);
    gt_trainer *trainer = NULL, *without = NULL;
    CHECK_OK(gt_trainer_create(net, &options, &trainer));
    CHECK_OK(gt_trainer_create(net, NULL, &without));
    CHECK_STATUS(gt_trainer_fit(trainer, NULL, NULL, 1, NULL), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("the training loader is NULL");
    CHECK_STATUS(gt_trainer_fit(trainer, foreign, NULL, 1, NULL), GT_BAD_DEVICE);
    CHECK_STATUS(gt_trainer_fit(trainer, mine, foreign, 1, NULL), GT_BAD_DEVICE);
    CHECK_ERROR_HAS("the validation loader");
    CHECK_STATUS(gt_trainer_fit(trainer, mine, mine, 1, NULL), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_trainer_fit(trainer, mine, NULL, -1, NULL), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_trainer_fit(without, mine, NULL, 1, NULL), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("without an optimizer");
    CHECK_STATUS(gt_trainer_fit(trainer, mine, NULL, 1, NULL), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("has no labels");
    CHECK_OK(gt_trainer_fit(trainer, mine, NULL, 0, NULL));
    gt_trainer_destroy(trainer);
    gt_trainer_destroy(without);
    gt_loader_destroy(mine);
    gt_loader_destroy(foreign);
    gt_optimizer_destroy(optimizer);
    gt_module_destroy(net);
}

TEST_DEVICES(unit, trainer_failure_leaves_nothing_open) {
    gt_context *ctx = test_context(t);
    const float x[6] = {1, 2, 3, 4, 5, 6};
    const int64_t labels[6] = {0, 0, 0, 0, 5, 0}; /* one class: label 5 is bad */
    gt_module *net = scale_module(ctx, 1);
    gt_optimizer *optimizer = sgd(net, 0.1);
    gt_loader *loader = vectors_loader(ctx, x, 1, labels, 6, 2);
    gt_trainer_options options = trainer_options(optimizer);
    gt_trainer *trainer = NULL;
    CHECK_OK(gt_trainer_create(net, &options, &trainer));
    gt_metrics metrics;
    CHECK_OK(gt_metrics_init(&metrics, sizeof metrics));
    for (int round = 0; round < 3; ++round) {
        CHECK_OK(gt_trainer_state_set(trainer, round, 0)); /* a GPU tells of the label when the epoch is done: begin it again */
        CHECK_STATUS(gt_trainer_fit(trainer, loader, NULL, 1, NULL), GT_BAD_LABEL);
        CHECK_STATUS(gt_trainer_evaluate(trainer, loader, &metrics), GT_BAD_LABEL);
        CHECK_ERROR_HAS("5");
        CHECK_EQ_INT(gt_grad_enabled(ctx), 1);
        CHECK_STATUS(gt_scope_end(ctx), GT_BAD_STATE); /* none is open */
        CHECK_EQ_INT(gt_module_training(net), 1);
    }
    gt_trainer_destroy(trainer);
    gt_loader_destroy(loader);
    gt_optimizer_destroy(optimizer);
    gt_module_destroy(net);
}
