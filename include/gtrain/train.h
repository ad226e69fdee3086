/* gtrain/train.h: fits a module from loaders. All that it does can be done with the functions it calls: see gt_loader_next,
 * gt_module_forward, gt_backward and gt_optimizer_step.
 *
 * @code
 * #include <gtrain/gtrain.h>
 * gt_status train(gt_module *net, gt_loader *training, gt_loader *test, double *accuracy) {
 *     gt_optimizer_options adam;
 *     gt_optimizer_options_init(&adam, sizeof adam, GT_OPTIMIZER_ADAM);
 *     gt_trainer_options options;
 *     gt_trainer_options_init(&options, sizeof options);
 *     gt_trainer *trainer = NULL;
 *     gt_metrics metrics;
 *     gt_metrics_init(&metrics, sizeof metrics);
 *     gt_status status = gt_optimizer_create_for(&adam, net, &options.optimizer);
 *     if (status == GT_OK) status = gt_trainer_create(net, &options, &trainer);
 *     if (status == GT_OK) status = gt_trainer_fit(trainer, training, NULL, 3, NULL);
 *     if (status == GT_OK) status = gt_trainer_evaluate(trainer, test, &metrics);
 *     if (status == GT_OK) *accuracy = metrics.accuracy;
 *     gt_trainer_destroy(trainer);
 *     gt_optimizer_destroy(options.optimizer);
 *     return status;
 * }
 * @endcode
 */
#ifndef GTRAIN_TRAIN_H
#define GTRAIN_TRAIN_H

#include <gtrain/amp.h>
#include <gtrain/data.h>
#include <gtrain/nn.h>
#include <gtrain/optim.h>

GT_EXTERN_C_BEGIN

/* What a trainer minimises. */
typedef int32_t gt_loss_kind;
enum {
    GT_LOSS_CROSS_ENTROPY = 0, /* labels are class numbers; accuracy is measured */
    GT_LOSS_MSE = 1,           /* labels have the output's shape */
    GT_LOSS_CUSTOM = 2         /* loss_fn */
};

/* What products and convolutions are computed in. */
typedef int32_t gt_precision;
enum {
    GT_PRECISION_F32 = 0, /* no autocast */
    GT_PRECISION_F16 = 1, /* autocast to f16, with loss scaling */
    GT_PRECISION_BF16 = 2 /* autocast to bf16 */
};

/* Over the samples seen: a batch counts by its samples. With cross-entropy only rows with a label other than the ignore value count, and
 * the loss is weighted by class_weights. Complete: it stands inside other structs and will not grow. */
typedef struct gt_metrics {
    uint32_t struct_size;
    uint32_t padding;
    int64_t samples; /* those that count */
    int64_t correct; /* cross-entropy: rows whose largest logit is the label's; else 0 */
    double loss;     /* mean; NaN without samples */
    double accuracy; /* correct / samples; NaN without samples or for other losses */
} gt_metrics;
GT_API gt_status gt_metrics_init(gt_metrics *metrics, size_t size); /* @since 0.1 */

/* Where a fit is, as the callbacks are told. */
typedef struct gt_train_progress {
    uint32_t struct_size;
    int32_t measured;          /* not 0: the metrics were read from the device at this step; else they are those of the last time */
    int64_t epoch, epochs;     /* epoch: from 0; epochs: where this fit ends */
    int64_t step, steps;       /* batches done in this epoch, and in all of it */
    int64_t total_steps;       /* updates since the trainer was made, those that loss scaling left out included */
    double learning_rate;      /* of the step just done */
    double samples_per_second; /* of this epoch's training, as measured last */
    double seconds;            /* since fit began */
    double seconds_left;       /* estimated, until fit ends; without validation */
    uint64_t memory_in_use;    /* bytes on the device */
    uint64_t memory_peak;      /* most of them so far */
    gt_metrics training;       /* of this epoch so far */
    gt_metrics validation;     /* on_epoch with a validation loader; else without samples */
    int64_t updates;           /* done; as measured last */
    int64_t skipped;           /* left out by loss scaling; as measured last */
    double loss_scale;         /* as measured last; 1 without loss scaling */
    int64_t micro_batch;       /* most samples that go through the module at a time */
    int64_t open_batches;      /* of the last batches, how many wait for their update; 0: gt_state_save may be called here */
} gt_train_progress;

/* Called on fit's thread. Any result but 0 makes fit stop, as a success: after the last update that was done, and the next fit goes on with the batch that follows
 * it. Batches that still waited for their update come again then. */
typedef int32_t (*gt_train_callback)(void *user, const gt_train_progress *progress);
/* The mean loss over the batch's samples, as an op: a one-element tensor, or NULL with the error kept. y is NULL without labels. */
typedef gt_tensor *(*gt_loss_fn)(void *user, gt_tensor *output, gt_tensor *y);

typedef struct gt_trainer_options {
    uint32_t struct_size;
    gt_loss_kind loss;                             /* default GT_LOSS_CROSS_ENTROPY */
    gt_optimizer *optimizer;                       /* required by fit; borrowed */
    const gt_schedule *schedule;                   /* learning rate by updates done; copied. NULL: the optimizer's own stays */
    const gt_cross_entropy_options *cross_entropy; /* copied; class_weights is retained. NULL: the defaults. Reduction mean only */
    gt_loss_fn loss_fn;                            /* for GT_LOSS_CUSTOM */
    void *loss_user;                               /* handed to loss_fn */
    gt_train_callback on_step;                     /* after each step; NULL: none */
    gt_train_callback on_epoch;                    /* after each epoch and its validation; NULL: none */
    void *callback_user;                           /* handed to on_step and on_epoch */
    double clip_norm;                              /* greatest global 2-norm of the gradients; 0 (default): no limit */
    double clip_value;                             /* greatest size of a gradient's element; 0 (default): no limit */
    int64_t
        log_every; /* steps between readings of the metrics, each of which waits for the device; 0: only at an epoch's end. Default 50 */
    gt_precision precision; /* GT_PRECISION_F32 (default); with the others, forward and loss run in an autocast region, in evaluation too */
    int32_t accumulation;   /* batches of the loader that make one update, default 1. An epoch's last update may have fewer */
    int32_t checkpointing;  /* segments that a sequential is cut into (gt_nn_sequential_set_segments); 0 (default): as the module is */
    int32_t shrink_on_oom;  /* not 0: when memory runs out, the update is done again with micro-batches half as large, down to 1 sample, and
                               evaluation goes on with parts of a batch. Keeps the batches of an update on the device until it is done */
    uint64_t memory_budget; /* bytes for weights, optimizer state and all that updates and evaluation make (gt_step_options); compiles.
                               Where nothing fits they are OUT_OF_MEMORY, or take smaller micro-batches with shrink_on_oom. 0 (default): none */
    uint64_t offload;       /* tensors of at least so many bytes that are saved for backward go to the host meanwhile; 0 (default): none.
                               With memory_budget: the budget may have any go there */
    gt_scaler *scaler;      /* loss scaling; borrowed. NULL: with GT_PRECISION_F16 the trainer makes one with the defaults, else none */
    int32_t compile;        /* not 0: updates and evaluation run as compiled steps (gtrain/step.h), metrics included; results are the same.
                               forward and loss_fn are then called when a new shape is traced, must not read values, and what they do is repeated;
                               changes of the module are seen by the next call of fit or evaluate. Without memory_budget not with `offload` */
    int32_t padding;
} gt_trainer_options;
GT_API gt_status gt_trainer_options_init(gt_trainer_options *options, size_t size); /* @since 0.1 */

/* The module and the optimizer are borrowed and must outlive the trainer; all else in the options is copied. BAD_ARGUMENT or
 * NOT_SUPPORTED naming the option. @since 0.1 */
GT_API gt_status gt_trainer_create(gt_module *module, const gt_trainer_options *options, gt_trainer **trainer);
GT_API void gt_trainer_destroy(gt_trainer *trainer); /* NULL is allowed. @since 0.1 */

typedef struct gt_fit_result {
    uint32_t struct_size;
    int32_t stopped;           /* not 0: a callback stopped it */
    int64_t epochs;            /* finished in this call */
    int64_t steps;             /* done in this call */
    double seconds;            /* of the whole call */
    double training_seconds;   /* of it, without validation and callbacks at an epoch's end */
    double samples_per_second; /* training samples by training seconds */
    gt_metrics training;       /* of the last epoch begun */
    gt_metrics validation;     /* of the last validation */
} gt_fit_result;
GT_API gt_status gt_fit_result_init(gt_fit_result *result, size_t size); /* @since 0.1 */

/* Trains until `epochs` more epochs have ended; the loader's epoch number goes on from the last call, and where that was stopped in the middle of an epoch, or failed,
 * its batch too (which needs a loader with as many batches: BAD_STATE). `validation` (may be NULL) is evaluated after each.
 * `result` (may be NULL) was initialised by gt_fit_result_init. The module is in training mode afterwards. Fails with the status of what failed, the steps
 * before being done. BAD_LABEL on a GPU is found at the next reading. Waits for the device only to read metrics. @since 0.1 */
GT_API gt_status gt_trainer_fit(gt_trainer *trainer, gt_loader *training, gt_loader *validation, int64_t epochs, gt_fit_result *result);
/* Metrics over one epoch (number 0) of the loader, in evaluation mode without gradients; the module's mode is put back. `metrics` was
 * initialised by gt_metrics_init. @since 0.1 */
GT_API gt_status gt_trainer_evaluate(gt_trainer *trainer, gt_loader *loader, gt_metrics *metrics);

/* The scaler in use, borrowed: to save its state, or to see what was skipped. NULL without loss scaling. @since 0.1 */
GT_API gt_scaler *gt_trainer_scaler(const gt_trainer *trainer);
/* The number of the next `epoch`, or of the one that was begun, and the updates done (total_steps): a new trainer's are 0. Setting them continues a schedule and the loader's epochs, from
 * that epoch's beginning; gt_state_save and gt_state_load (gtrain/io.h) keep all that a run needs. Reading waits for the device. @since 0.1 */
GT_API gt_status gt_trainer_state_get(const gt_trainer *trainer, int64_t *epoch, int64_t *total_steps);
/* begins at that epoch, with total_steps updates done. @since 0.1 */
GT_API gt_status gt_trainer_state_set(gt_trainer *trainer, int64_t epoch, int64_t total_steps);

GT_EXTERN_C_END
#endif
