#include "train/loss.h"

static gt_status from_null(const char *what) {
    gt_status status = gt_last_error()->status;
    return status != GT_OK ? status : GT_RAISE(GT_CALLBACK, "trainer: %s returned NULL without an error", what);
}

/* gt_cross_entropy, but keeping its sums: an epoch's mean is over valid rows, not over batches. */
static gt_status cross_entropy(const gt_cross_entropy_options *options, gt_tensor *logits, gt_tensor *labels, gt__loss *loss) {
    gt__attrs attr = {0};
    attr.loss.ignore_label = options->ignore_label;
    attr.loss.label_smoothing = options->label_smoothing;
    attr.loss.reduction = options->reduction;
    gt_tensor *in[3] = {logits, labels, options->class_weights};
    gt_tensor *out[GT__MAX_OUT] = {0};
    GT_TRY(gt__op_multi(GT__OP_CROSS_ENTROPY, in, 3, &attr, 1u | 2u | 4u, out));
    loss->value = out[0];
    loss->sums = out[2];
    return GT_OK;
}

gt_status gt__loss_run(const gt__objective *objective, gt_tensor *output, gt_tensor *labels, int64_t count, gt__loss *loss) {
    *loss = (gt__loss){.output = output, .labels = labels, .count = count};
    if (output == NULL) return from_null("the module's forward");
    GT_REQUIRE(labels != NULL || objective->kind == GT_LOSS_CUSTOM, GT_BAD_ARGUMENT,
               "trainer: the loader's data set has no labels, but the loss needs them");
    switch (objective->kind) {
    case GT_LOSS_CROSS_ENTROPY:
        return cross_entropy(&objective->cross_entropy, output, labels, loss);
    case GT_LOSS_MSE:
        loss->value = gt_mse_loss(output, labels, GT_REDUCTION_MEAN);
        break;
    default:
        loss->value = objective->fn(objective->user, output, labels);
        break;
    }
    if (loss->value == NULL) return from_null("the loss function");
    GT_REQUIRE(gt_tensor_numel(loss->value) == 1 && gt__dtype_is_float(gt_tensor_dtype(loss->value)), GT_BAD_SHAPE,
               "trainer: the loss has %lld elements of %s, but must be one floating-point number", (long long)gt_tensor_numel(loss->value),
               gt_dtype_name(gt_tensor_dtype(loss->value)));
    return GT_OK;
}
