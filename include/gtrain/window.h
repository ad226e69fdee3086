/* gtrain/window.h: gradient accumulation. K micro-batches make one window, and one window makes one update.
 *
 * @code
 * #include <gtrain/gtrain.h>
 * gt_status epoch(gt_module *net, gt_optimizer *optimizer, gt_loader *loader) {
 *     gt_context *ctx = gt_module_context(net);
 *     gt_window_options options;
 *     gt_window_options_init(&options, sizeof options);
 *     options.micro_batches = 8;
 *     options.module = net;
 *     options.optimizers = &optimizer;
 *     options.n_optimizers = 1;
 *     gt_window *window = NULL;
 *     gt_status status = gt_window_create(&options, &window);
 *     int64_t count = status == GT_OK;
 *     while (status == GT_OK && count > 0) {
 *         gt_scope_begin(ctx);
 *         gt_tensor *x, *y;
 *         status = gt_loader_next(loader, &x, &y, &count);
 *         if (status == GT_OK && count > 0) status = gt_window_micro_begin(window);
 *         if (status == GT_OK && count > 0)
 *             status = gt_window_micro_end(window, gt_cross_entropy(gt_module_forward(net, x), y, NULL), (double)count, NULL);
 *         gt_scope_end(ctx);
 *     }
 *     if (status == GT_OK) status = gt_window_flush(window); // the last, short window counts too
 *     gt_window_destroy(window);
 *     return status;
 * }
 * @endcode
 *
 * The gradient of a window is the mean over its valid items (samples, tokens), not a mean of means. Gradients are summed in f32 in the leaves' own
 * storage. A micro-batch that fails takes the window back to its start: weights, optimizer state, random state, scaler and the module's
 * buffers are as they were, the gradients are empty, and the window can be repeated with smaller micro-batches.
 */
#ifndef GTRAIN_WINDOW_H
#define GTRAIN_WINDOW_H

#include <gtrain/amp.h>
#include <gtrain/nn.h>
#include <gtrain/optim.h>

GT_EXTERN_C_BEGIN

typedef struct gt_window_options {
    uint32_t struct_size;
    int32_t micro_batches;           /* K, from 1; default 1 */
    gt_optimizer *const *optimizers; /* n_optimizers of one context; borrowed, the array is copied */
    gt_module *module;               /* whose buffers (batch-norm statistics) go back too when the window fails; borrowed. NULL: none */
    gt_scaler *scaler;               /* NULL: no loss scaling. Borrowed */
    const gt_schedule *schedule;     /* learning rate by the number of updates done, of all optimizers; copied. NULL: theirs stay */
    double clip_norm;                /* greatest global 2-norm of the true gradients, over all optimizers; 0 (default): no limit */
    double clip_value;               /* greatest size of a true gradient's element, after clip_norm; 0 (default): no limit */
    int32_t n_optimizers;            /* in `optimizers` */
    int32_t padding;
} gt_window_options;
GT_API gt_status gt_window_options_init(gt_window_options *options, size_t size); /* @since 0.1 */

/* BAD_ARGUMENT naming the option (micro_batches 0). The optimizers' gradients are forgotten. While a window is open, stepping or clipping its optimizers, and
 * its scaler's steps and updates, are BAD_STATE. What is borrowed must live until the window is destroyed. @since 0.1 */
GT_API gt_status gt_window_create(const gt_window_options *options, gt_window **window);
GT_API void gt_window_destroy(gt_window *window); /* an open window is given up: nothing is updated. NULL is allowed. @since 0.1 */

/* Before a micro-batch's forward. The first of a window remembers what a failure goes back to. @since 0.1 */
GT_API gt_status gt_window_micro_begin(gt_window *window);
/* Backward of a micro-batch: `loss` (one element, any floating dtype) is the mean over `items` valid items. Instead of `items`, `items_on_device` may give
 * their number as a one-element f32 or f64 tensor, for a loss that knows how many labels it ignored (gt_cross_entropy_valid); NULL otherwise. The K-th
 * micro-batch updates. On failure (a loss of NULL too) the window goes back to its start, and the error is that of the failing call. Never waits.
 * BAD_STATE without a begin, BAD_ARGUMENT for items that are negative or not finite. @since 0.1 */
GT_API gt_status gt_window_micro_end(gt_window *window, gt_tensor *loss, double items, gt_tensor *items_on_device);
/* Updates with what the open window has, if it has a micro-batch: at an epoch's end. @since 0.1 */
GT_API gt_status gt_window_flush(gt_window *window);
/* Back to the window's start, as after a failure. Nothing to do without an open window. @since 0.1 */
GT_API gt_status gt_window_cancel(gt_window *window);
/* Sets K, micro_batches a window from now on; BAD_STATE inside a window. @since 0.1 */
GT_API gt_status gt_window_set_micro_batches(gt_window *window, int32_t micro_batches);

typedef int32_t gt_window_status;
enum {
    GT_WINDOW_NONE = 0,    /* no window has ended yet */
    GT_WINDOW_UPDATED = 1, /* the last window updated the weights */
    GT_WINDOW_SKIPPED = 2, /* a gradient was not finite: nothing changed but the scale */
    GT_WINDOW_EMPTY = 3    /* it had no valid item: nothing changed */
};
typedef struct gt_window_state {
    uint32_t struct_size;
    gt_window_status status; /* of the last window that ended */
    int64_t updates;         /* windows that updated: where the schedule stands */
    int64_t skipped;         /* windows that changed nothing but the scale */
    int64_t empty;           /* windows without a valid item */
    double items;            /* valid items of the last window */
    double gradient_norm;    /* of its true gradient before clipping; may not be finite */
    double learning_rate;    /* of the last update that was done; NaN before it */
    int32_t micro_batches;   /* done in the open window */
    int32_t padding;
} gt_window_state;
GT_API gt_status gt_window_state_init(gt_window_state *state, size_t size); /* @since 0.1 */
/* Waits for the device. @since 0.1 */
GT_API gt_status gt_window_get_state(gt_window *window, gt_window_state *state);
/* Continues a schedule: `updates` as saved. BAD_STATE inside a window. @since 0.1 */
GT_API gt_status gt_window_set_updates(gt_window *window, int64_t updates);

GT_EXTERN_C_END
#endif
