#include "train/compiled.h"

#include "step/step.h"
#include "train/trainer.h"

/* Where the sums are in the cells, and how large they are. */
enum { LOSS = 0, SUMS = 1, CORRECT = 2, CELL_BYTES = 32 };
static const int64_t places[3] = {0, 8, 24};
static const size_t room[3] = {8, 16, 8};

/* --- what is traced ---------------------------------------------------------------------------------------------------------------------- */

static void drop_pending(gt__compiled *c) {
    for (int32_t i = 0; i < c->n_pending; ++i) gt_tensor_release(c->pending[i]);
    c->n_pending = 0;
}

/* Keeps what a micro-batch adds to the metrics until the program's end: nothing may fail after it was added. */
static gt_status keep_terms(gt__compiled *c, const gt__loss *loss) {
    gt_tensor *terms[3];
    if (c->cap_pending - c->n_pending < 3) {
        int32_t capacity = GT__MAX(2 * c->cap_pending, 12);
        gt_tensor **grown = gt__realloc(c->pending, (size_t)capacity * sizeof *grown);
        if (grown == NULL) return GT_OUT_OF_HOST_MEMORY;
        c->pending = grown;
        c->cap_pending = capacity;
    }
    GT_TRY(gt__meter_terms(&c->trainer->objective, loss, terms));
    for (int i = 0; i < 3; ++i) c->pending[c->n_pending++] = gt_tensor_retain(terms[i]);
    return GT_OK;
}

static gt_status micro_batch(void *user, gt_tensor *const *inputs, int32_t n, gt_step_result *result) {
    gt__compiled *c = user;
    gt_trainer *trainer = c->trainer;
    gt__loss loss;
    GT_TRY(gt__trainer_forward(trainer, inputs[0], n > 1 ? inputs[1] : NULL, gt_tensor_size(inputs[0], 0), c->training, &loss));
    GT_TRY(gt_no_grad_begin(trainer->ctx));
    gt_status status = keep_terms(c, &loss);
    (void)gt_no_grad_end(trainer->ctx);
    if (status != GT_OK || !c->training) return status;
    result->loss = loss.value;
    return gt__trainer_items(trainer, &loss, &result->items);
}

/* The i-th sum's cell, made for the first term that it is to add. */
static gt_status find_cell(gt__compiled *c, int32_t i, const gt_tensor *term) {
    gt_tensor **cell = &c->sums[i];
    if (*cell) {
        GT_REQUIRE((*cell)->meta.dtype == term->meta.dtype, GT_BAD_DTYPE, "trainer: the loss is %s now, and was %s",
                   gt_dtype_name(term->meta.dtype), gt_dtype_name((*cell)->meta.dtype));
        return GT_OK;
    }
    GT_REQUIRE(gt_tensor_bytes(term) <= room[i], GT_INTERNAL, "trainer: a sum of the metrics takes %zu bytes", gt_tensor_bytes(term));
    gt__meta meta = term->meta;
    gt__meta_set_row_major(&meta);
    *cell = gt__tensor_view(c->cells, &meta, places[i] / (int64_t)gt_dtype_size(meta.dtype));
    return *cell ? GT_OK : GT_OUT_OF_HOST_MEMORY;
}

static gt_status add_pending(gt__compiled *c) {
    for (int32_t k = 0; k < c->n_pending; ++k) {
        gt_tensor *term = c->pending[k];
        if (term == NULL) continue;
        GT_TRY(find_cell(c, k % 3, term));
        gt_tensor *cell = c->sums[k % 3], *in[2] = {cell, term};
        GT_TRY(gt__op_into(GT__OP_ADD, in, 2, NULL, cell));
    }
    return GT_OK;
}

static gt_status copy_cells(const gt__compiled *c, gt_tensor *to, const gt_tensor *from) {
    gt_context *ctx = c->trainer->ctx;
    int32_t previous = gt__enter(ctx);
    gt_status status = ctx->backend->copy(ctx->device, GT__STREAM_COMPUTE, GT__COPY_DEVICE_TO_DEVICE, to->data, from->data, CELL_BYTES);
    gt__leave(ctx, previous);
    return status;
}

static gt_status end(void *user, bool begins) {
    gt__compiled *c = user;
    bool several = c->training && c->trainer->options.accumulation > 1; /* runs a window */
    gt_status status = begins && several ? copy_cells(c, c->kept, c->cells) : GT_OK;
    if (status == GT_OK) status = add_pending(c);
    drop_pending(c);
    return status;
}

/* --- creation ------------------------------------------------------------------------------------------------------------------------------ */

static gt_status make_cells(gt_context *ctx, gt_tensor **cells) {
    gt__meta meta;
    const int64_t bytes = CELL_BYTES;
    GT_TRY(gt__meta_make(&meta, GT_DTYPE_U8, 1, &bytes, "trainer"));
    *cells = gt__tensor_new_for(ctx, &meta, GT_MEMORY_OPTIMIZER, "trainer");
    return *cells ? gt__fill(*cells, 0) : gt_last_error()->status;
}

static gt_status build(gt__compiled *c, const gt__compiled *arena) {
    gt_trainer *trainer = c->trainer;
    GT_TRY(make_cells(trainer->ctx, &c->cells));
    GT_TRY(make_cells(trainer->ctx, &c->kept));
    gt_step_options o;
    GT_TRY(gt_step_options_init(&o, sizeof o));
    o.fn = micro_batch;
    o.user = c;
    o.module = trainer->module;
    o.memory_budget = trainer->options.memory_budget;
    o.offload = trainer->options.offload > 0;
    gt__step_extension extension = {.arena = arena ? arena->step : NULL, .end = end};
    if (c->training) {
        o.optimizers = &trainer->options.optimizer;
        o.n_optimizers = 1;
        o.scaler = trainer->scaler;
        extension.window = trainer->window;
    }
    return gt__step_create_with(trainer->ctx, &o, &extension, &c->step);
}

gt_status gt__compiled_create(gt_trainer *trainer, bool training, const gt__compiled *arena, gt__compiled **compiled) {
    gt__compiled *c = gt__calloc(1, sizeof *c);
    if (c == NULL) return GT_OUT_OF_HOST_MEMORY;
    c->trainer = trainer;
    c->training = training;
    gt_status status = build(c, arena);
    if (status == GT_OK)
        *compiled = c;
    else
        gt__compiled_destroy(c);
    return status;
}

void gt__compiled_destroy(gt__compiled *c) {
    if (c == NULL) return;
    gt_step_destroy(c->step);
    drop_pending(c);
    gt__free(c->pending);
    for (int i = 0; i < 3; ++i) gt_tensor_release(c->sums[i]);
    gt_tensor_release(c->cells);
    gt_tensor_release(c->kept);
    gt__free(c);
}

gt_status gt__compiled_reset(gt__compiled *c) { return c ? gt_step_reset(c->step) : GT_OK; }

/* --- running -------------------------------------------------------------------------------------------------------------------------------- */

/* The sums move from the meter to the cells. */
static gt_status fill_cells(gt__compiled *c, gt__meter *meter) {
    gt_tensor *from[3] = {meter->loss, meter->sums, meter->correct};
    if (!meter->in_cells) {
        GT_TRY(gt__fill(c->cells, 0));
        for (int i = 0; i < 3; ++i) {
            if (from[i] == NULL) continue;
            GT_TRY(find_cell(c, i, from[i]));
            GT_TRY(gt__op_into(GT__OP_COPY, &from[i], 1, NULL, c->sums[i]));
        }
        gt__meter_end(meter);
        meter->in_cells = true;
    }
    c->ready = true;
    return GT_OK;
}

gt_status gt__compiled_run(gt__compiled *c, gt__meter *meter, gt_tensor *x, gt_tensor *y, int64_t count, int32_t parts, bool last) {
    gt_tensor *inputs[2] = {x, y};
    GT_TRY(fill_cells(c, meter));
    gt_status status = gt__step_run(c->step, inputs, y ? 2 : 1, parts, last);
    drop_pending(c); /* of a trace that failed */
    GT_TRY(status);
    if (c->trainer->objective.kind != GT_LOSS_CROSS_ENTROPY) meter->rows += count;
    c->runs++;
    return GT_OK;
}

gt_status gt__compiled_settle(gt__compiled *c, gt__meter *meter) {
    gt_tensor **to[3] = {&meter->loss, &meter->sums, &meter->correct};
    if (c == NULL || !meter->in_cells) return GT_OK;
    gt__meter_end(meter);
    gt_status status = GT_OK;
    for (int i = 0; i < 3 && status == GT_OK; ++i) {
        gt_tensor *cell = c->sums[i];
        if (cell == NULL) continue;
        gt_tensor *made = gt__tensor_new_for(c->trainer->ctx, &cell->meta, GT_MEMORY_USER, "trainer");
        status = made ? gt__op_into(GT__OP_COPY, &cell, 1, NULL, made) : gt_last_error()->status;
        *to[i] = made;
    }
    if (status == GT_OK) return GT_OK;
    gt__meter_end(meter);
    meter->in_cells = true; /* they still are */
    return status;
}

/* --- windows -------------------------------------------------------------------------------------------------------------------------------- */

void gt__compiled_window_begins(gt__compiled *c) {
    if (c == NULL) return;
    c->runs = 0;
    c->ready = false;
}

gt_status gt__compiled_window_back(gt__compiled *c, gt__meter *meter) {
    if (c == NULL || !c->ready) return GT_OK;
    gt__meter_end(meter);
    meter->in_cells = true;
    if (c->runs == 0) return GT_OK;
    c->runs = 0;
    return copy_cells(c, c->cells, c->kept);
}
