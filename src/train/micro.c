/* From batches to micro-batches to updates, and what happens when memory runs out on the way.
 *
 * `accumulation` batches of the loader make a window. With shrink_on_oom a batch may be cut into parts: when memory runs out, the window is taken back to its start and
 * done again with twice as many parts, so that the weights end as if it had been cut so from the beginning. */
#include "train/trainer.h"

/* --- the window's batches ------------------------------------------------------------------------------------------------------------ */

static void forget_batches(gt_trainer *trainer) {
    for (int32_t i = 0; i < trainer->n_kept; ++i) {
        gt_tensor_release(trainer->kept[i].x);
        gt_tensor_release(trainer->kept[i].y);
    }
    trainer->n_kept = 0;
    gt__meter_end(&trainer->meter_kept);
}

static void keep_meter(gt_trainer *trainer) {
    gt__compiled_window_begins(trainer->compiled);
    gt__meter_end(&trainer->meter_kept);
    trainer->meter_kept = trainer->meter;
    gt__meter_retain(&trainer->meter_kept);
}

static void put_meter_back(gt_trainer *trainer) {
    gt__meter_end(&trainer->meter);
    trainer->meter = trainer->meter_kept;
    gt__meter_retain(&trainer->meter);
    (void)gt__compiled_window_back(trainer->compiled, &trainer->meter);
}

void gt__trainer_drop_window(gt_trainer *trainer) {
    (void)gt_window_cancel(trainer->window);
    forget_batches(trainer);
}

void gt__trainer_take_back_window(gt_trainer *trainer) {
    if (trainer->n_kept > 0) put_meter_back(trainer);
    gt__trainer_drop_window(trainer);
}

/* --- micro-batches ------------------------------------------------------------------------------------------------------------------- */

/* In a scope of its own. */
static gt_status run_micro_batch(gt_trainer *trainer, gt_tensor *x, gt_tensor *y, int64_t count) {
    GT_TRY(gt_window_micro_begin(trainer->window));
    gt__loss loss;
    gt_status status = gt__trainer_forward(trainer, x, y, count, true, &loss);
    if (status != GT_OK) {
        (void)gt_window_cancel(trainer->window);
        return status;
    }
    gt_tensor *items;
    status = gt__trainer_items(trainer, &loss, &items);
    if (status == GT_OK) status = gt__meter_add(&trainer->meter, &loss); /* before what may update: nothing may fail after that */
    if (status != GT_OK) {
        (void)gt_window_cancel(trainer->window);
        return status;
    }
    return gt_window_micro_end(trainer->window, loss.value, (double)count, items);
}

/* `last`: of the window. */
static gt_status run_batch(gt_trainer *trainer, gt_tensor *x, gt_tensor *y, int64_t count, bool last) {
    int64_t parts = GT__MIN((int64_t)trainer->parts, count);
    if (trainer->compiled) return gt__compiled_run(trainer->compiled, &trainer->meter, x, y, count, (int32_t)parts, last);
    for (int64_t i = 0; i < parts; ++i) {
        int64_t begin = count * i / parts, end = count * (i + 1) / parts;
        GT_TRY(gt_scope_begin(trainer->ctx));
        gt_tensor *xi = parts == 1 ? x : gt_slice(x, 0, begin, end, 1);
        gt_tensor *yi = parts == 1 || y == NULL ? y : gt_slice(y, 0, begin, end, 1);
        gt_status status = xi && (yi || y == NULL) ? run_micro_batch(trainer, xi, yi, end - begin) : gt_last_error()->status;
        (void)gt_scope_end(trainer->ctx);
        GT_TRY(status);
    }
    return GT_OK;
}

/* --- shrinking ----------------------------------------------------------------------------------------------------------------------- */

static int64_t largest_batch(const gt_trainer *trainer) {
    int64_t largest = 0;
    for (int32_t i = 0; i < trainer->n_kept; ++i) largest = GT__MAX(largest, trainer->kept[i].count);
    return largest;
}

/* Doubles the parts, or says that there is nothing left to halve. */
static gt_status shrink(gt_trainer *trainer, gt_status failure) {
    gt_context *ctx = trainer->ctx;
    int64_t largest = largest_batch(trainer), before = (largest + trainer->parts - 1) / trainer->parts;
    if (before <= 1 || trainer->parts > INT32_MAX / 2 / trainer->options.accumulation) return failure;
    trainer->parts *= 2;
    int64_t now = (largest + trainer->parts - 1) / trainer->parts;
    const char *message = gt_last_error()->message; /* `op "module": …` */
    gt__log(ctx, GT_LOG_WARNING,
            "out of memory in %.*s with micro-batches of %lld samples: the update is done again, and training goes on, with %lld at a time",
            (int)strcspn(message, ":"), message, (long long)before, (long long)now);
    gt_clear_error();
    return gt_window_set_micro_batches(trainer->window, trainer->options.accumulation * trainer->parts);
}

/* The window's batches from the first one on, with smaller parts each time that memory runs out. */
static gt_status run_window_again(gt_trainer *trainer, gt_status failure) {
    while (failure == GT_OUT_OF_MEMORY) {
        (void)gt_window_cancel(trainer->window);
        put_meter_back(trainer);
        GT_TRY(shrink(trainer, failure));
        failure = GT_OK;
        for (int32_t i = 0; i < trainer->n_kept && failure == GT_OK; ++i) {
            const gt__kept_batch *batch = &trainer->kept[i];
            failure = run_batch(trainer, batch->x, batch->y, batch->count, i + 1 == trainer->options.accumulation);
        }
    }
    return failure;
}

/* --- windows ------------------------------------------------------------------------------------------------------------------------- */

static gt_status end_window(gt_trainer *trainer) {
    gt_status status = gt_window_flush(trainer->window);
    while (status == GT_OUT_OF_MEMORY && trainer->options.shrink_on_oom) {
        GT_TRY(run_window_again(trainer, status));
        status = gt_window_flush(trainer->window);
    }
    GT_TRY(status);
    trainer->total_steps++;
    forget_batches(trainer);
    return GT_OK;
}

gt_status gt__trainer_end_window(gt_trainer *trainer) { return trainer->n_kept > 0 ? end_window(trainer) : GT_OK; }

gt_status gt__trainer_batch(gt_trainer *trainer, gt_tensor *x, gt_tensor *y, int64_t count) {
    bool shrinks = trainer->options.shrink_on_oom != 0;
    if (trainer->n_kept == 0) keep_meter(trainer);
    trainer->kept[trainer->n_kept++] =
        shrinks ? (gt__kept_batch){gt_tensor_retain(x), gt_tensor_retain(y), count} : (gt__kept_batch){NULL, NULL, count};
    gt_status status = run_batch(trainer, x, y, count, trainer->n_kept == trainer->options.accumulation);
    if (status == GT_OUT_OF_MEMORY && shrinks) status = run_window_again(trainer, status);
    if (status == GT_OK && trainer->n_kept == trainer->options.accumulation) status = end_window(trainer);
    if (status != GT_OK) gt__trainer_take_back_window(trainer);
    return status;
}
