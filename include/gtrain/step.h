/* gtrain/step.h: compiled steps. A step is traced once: forward, backward, accumulation, unscaling, clipping, the optimizers and the scaler become one program,
 * whose memory is planned before it runs, and which then runs again and again without the host computing anything (on CUDA as one graph).
 *
 * @code
 * #include <gtrain/gtrain.h>
 * static gt_status loss_of(void *user, gt_tensor *const *inputs, int32_t n, gt_step_result *result) {
 *     (void)n;
 *     result->loss = gt_cross_entropy(gt_module_forward(user, inputs[0]), inputs[1], NULL);
 *     return result->loss ? GT_OK : gt_last_error()->status;
 * }
 * gt_status train(gt_module *net, gt_optimizer *optimizer, gt_loader *loader, double *loss) {
 *     gt_context *ctx = gt_module_context(net);
 *     gt_step_options options;
 *     gt_step_options_init(&options, sizeof options);
 *     options.fn = loss_of;
 *     options.user = options.module = net;
 *     options.optimizers = &optimizer;
 *     options.n_optimizers = 1;
 *     gt_step *step = NULL;
 *     gt_status status = gt_step_create(ctx, &options, &step);
 *     int64_t count = status == GT_OK;
 *     while (status == GT_OK && count > 0) {
 *         gt_scope_begin(ctx);
 *         gt_tensor *inputs[2];
 *         status = gt_loader_next(loader, &inputs[0], &inputs[1], &count);
 *         if (status == GT_OK && count > 0) status = gt_step_run(step, inputs, 2);
 *         gt_scope_end(ctx);
 *     }
 *     if (status == GT_OK) status = gt_tensor_item(gt_step_loss(step), loss); // of the last batch; waits
 *     gt_step_destroy(step);
 *     return status;
 * }
 * @endcode
 *
 * What the function does when it is traced is what every run does. It is called once for each micro-batch and each new set of input shapes, so: what varies
 * must come in as an input; numbers and tensors of its own are constants; reading a value is BAD_STATE, as there are none yet. Random numbers go on from run to
 * run, as without a step. The results are those of the same calls without a step: to the bit on the CPU.
 */
#ifndef GTRAIN_STEP_H
#define GTRAIN_STEP_H

#include <gtrain/amp.h>
#include <gtrain/nn.h>
#include <gtrain/optim.h>
#include <gtrain/window.h>

GT_EXTERN_C_BEGIN

typedef struct gt_step gt_step;

#define GT_STEP_MAX_INPUTS  8
#define GT_STEP_MAX_OUTPUTS 8

/* What a step's function returns. Complete: it will not grow. */
typedef struct gt_step_result {
    gt_tensor *loss;  /* one element: the mean over the micro-batch's items. NULL only without optimizers */
    gt_tensor *items; /* number of valid items, one f32 or f64 element (gt_cross_entropy_valid); NULL: the rows of the first input */
    gt_tensor *outputs[GT_STEP_MAX_OUTPUTS]; /* what else the caller wants to see, NULL at the end */
} gt_step_result;

/* inputs[0 .. n_inputs - 1]: those of gt_step_run, or the micro-batch's rows of them. Called inside a scope, and inside the autocast region if there is one. Any
 * other status than GT_OK fails the trace with it. */
typedef gt_status (*gt_step_fn)(void *user, gt_tensor *const *inputs, int32_t n_inputs, gt_step_result *result);

typedef struct gt_step_options {
    uint32_t struct_size;
    int32_t micro_batches;           /* K, default 1: the inputs are cut along axis 0 into K parts, accumulated */
    gt_step_fn fn;                   /* the loss; must be set */
    void *user;                      /* handed to fn */
    gt_module *module;               /* whose buffers and counters the step moves; borrowed. NULL: none */
    gt_optimizer *const *optimizers; /* n_optimizers of the context; borrowed, the array is copied. None: fn runs without gradients */
    gt_scaler *scaler;               /* NULL: no loss scaling. Borrowed */
    const gt_schedule *schedule;     /* of all optimizers, by updates done; copied. NULL: theirs, which gt_optimizer_set_learning_rate changes */
    double clip_norm;                /* as in gt_window_options */
    double clip_value;               /* as in gt_window_options */
    int32_t n_optimizers;            /* in `optimizers` */
    gt_dtype autocast;               /* GT_DTYPE_F16 or GT_DTYPE_BF16: fn runs in such a region; default GT_DTYPE_F32: in none */
} gt_step_options;
GT_API gt_status gt_step_options_init(gt_step_options *options, size_t size); /* @since 0.1 */

/* BAD_ARGUMENT naming the option. Nothing is traced yet. What is borrowed must live until the step is destroyed. @since 0.1 */
GT_API gt_status gt_step_create(gt_context *ctx, const gt_step_options *options, gt_step **step);
/* NULL is allowed. @since 0.1 */
GT_API void gt_step_destroy(gt_step *step);

/* One update. The inputs are copied, so they may be reused at once. New shapes are traced first (up to 16 sets are kept; the one that was not used for
 * longest goes). BAD_SHAPE where the inputs differ from the traced ones in number or cannot be cut into K parts, what fn returns, OUT_OF_MEMORY with the plan's bytes; after
 * a failure weights, optimizers and the module's buffers are as they were. Never waits, but for the first runs of a shape, which choose kernels. @since 0.1 */
GT_API gt_status gt_step_run(gt_step *step, gt_tensor *const *inputs, int32_t n_inputs);

/* Results of the last run, borrowed until the next run with other shapes or the step's end; they are overwritten by every run. The loss is the mean over all items, f32. Outputs of
 * several micro-batches are joined along axis 0; those without axes are added up. NULL before the first run, or where fn gave none. @since 0.1 */
GT_API gt_tensor *gt_step_loss(const gt_step *step);
GT_API gt_tensor *gt_step_output(const gt_step *step, int32_t index); /* @since 0.1 */

/* As gt_window_get_state: updates, skipped, gradient norm, learning rate. BAD_STATE without optimizers. Waits for the device. @since 0.1 */
GT_API gt_status gt_step_get_state(gt_step *step, gt_window_state *state);
/* Forgets all programs: for a module whose layers, dtype or training mode were changed. @since 0.1 */
GT_API gt_status gt_step_reset(gt_step *step);

GT_EXTERN_C_END
#endif
