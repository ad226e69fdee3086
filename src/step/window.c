/* Accumulation windows: what K micro-batches and their one update need, with nothing that waits.
 *
 * A micro-batch's backward is seeded with scale * items / reference, so that gradients of sums add up in the leaves while they keep the size of a mean's; at
 * the end one thread of the device turns the norm of what has gathered into the factor (mean over all items, unscaling, clipping), the
 * learning rate, and the word whether anything is done at all (core/step_math.h), and each optimizer's update reads that. */
#include "core/core.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "optim/scaler.h"
#include "optim/schedule.h"
#include "step/window.h"

#include <math.h>

/* All on the device, in one piece of memory. */
typedef struct window_cells {
    gt__window_cells window;
    gt__step_control control;
    float seed;
    int32_t padding;
} window_cells;

typedef struct window_part {
    gt_optimizer *optimizer;
    int32_t first; /* gradient index of its first parameter */
    int32_t count; /* of updates that are prepared */
    int32_t found; /* parameters with a gradient */
} window_part;

/* What a failure goes back to, besides gradients, which are forgotten. */
typedef struct window_start {
    gt_tensor *buffers; /* u8: the module's, one after the other, each aligned for 16 bytes */
    gt__copy_item *copies;
    int64_t *counters;
    uint64_t rng_seed, rng_offset;
    int32_t n_copies, cap_copies, n_counters;
} window_start;

struct gt_window {
    gt_window_options options; /* whose pointers to arrays are not used after creation */
    gt_schedule schedule;      /* struct_size 0: none */
    gt_context *ctx;
    gt_tensor *cells; /* u8 [sizeof(window_cells)] */
    gt_tensor *seed;  /* f32 scalar in it */
    window_part *parts;
    gt__grad_list_item *grads; /* room for all parameters */
    window_start start;
    int32_t n_parts;
    int32_t done;  /* micro-batches of the open window */
    bool open;     /* the first micro-batch has begun */
    bool in_micro; /* a micro-batch has begun and not ended */
};

static window_cells *cells_of(const gt_window *window) { return (window_cells *)window->cells->data; }

static const gt_window_options defaults = {.struct_size = sizeof(gt_window_options), .micro_batches = 1};

gt_status gt_window_options_init(gt_window_options *options, size_t size) {
    return gt__options_write(options, size, &defaults, sizeof defaults, "gt_window_options");
}

static gt_status check_micro_batches(int32_t micro_batches) {
    GT_REQUIRE(micro_batches >= 1, GT_BAD_ARGUMENT, "window: micro_batches is %d; it must be at least 1", (int)micro_batches);
    return GT_OK;
}

static gt_status check_options(const gt_window_options *o) {
    GT_TRY(check_micro_batches(o->micro_batches));
    GT_REQUIRE(o->n_optimizers >= 1 && o->optimizers != NULL, GT_BAD_ARGUMENT, "window: n_optimizers is %d%s; there must be at least 1",
               (int)o->n_optimizers, o->optimizers ? "" : ", optimizers NULL");
    GT_REQUIRE(isfinite(o->clip_norm) && o->clip_norm >= 0, GT_BAD_ARGUMENT, "window: clip_norm is %g; 0 means no limit", o->clip_norm);
    GT_REQUIRE(isfinite(o->clip_value) && o->clip_value >= 0, GT_BAD_ARGUMENT, "window: clip_value is %g; 0 means no limit", o->clip_value);
    gt_context *ctx = NULL, *other;
    for (int32_t i = 0; i < o->n_optimizers; ++i) {
        GT_REQUIRE(o->optimizers[i] != NULL, GT_BAD_ARGUMENT, "window: optimizer %d is NULL", (int)i);
        GT_TRY(gt__optimizer_context(o->optimizers[i], "gt_window_create", &other));
        GT_REQUIRE(ctx == NULL || other == ctx, GT_BAD_DEVICE, "window: optimizer %d belongs to another context than the first", (int)i);
        ctx = other;
        for (int32_t k = 0; k < i; ++k)
            GT_REQUIRE(o->optimizers[k] != o->optimizers[i], GT_BAD_ARGUMENT, "window: optimizers %d and %d are the same", (int)k, (int)i);
    }
    GT_REQUIRE(o->module == NULL || gt_module_context(o->module) == ctx, GT_BAD_DEVICE,
               "window: the module belongs to another context than the optimizers");
    if (o->scaler) GT_TRY(gt__tensor_check(o->scaler->cells, "gt_window_create"));
    GT_REQUIRE(o->scaler == NULL || o->scaler->ctx == ctx, GT_BAD_DEVICE,
               "window: the scaler belongs to another context than the optimizers");
    return GT_OK;
}

/* --- what a failure goes back to -------------------------------------------------------------------------------------------------------- */
static size_t aligned_size(const gt_tensor *buffer) { return (gt_tensor_bytes(buffer) + 15) & ~(size_t)15; }

/* Room for the module's buffers and counters as they are now. It is there after creation, but a module may be converted or grow. */
static gt_status make_room(window_start *s, gt_module *m, gt_context *ctx) {
    GT_TRY(gt__module_table(m));
    size_t bytes = 0;
    for (int32_t i = 0; i < m->n_buffers; ++i) bytes += aligned_size(m->table[m->n_parameters + i].tensor);
    if (bytes > 0 && (s->buffers == NULL || gt_tensor_bytes(s->buffers) < bytes)) {
        gt__meta meta;
        const int64_t size = (int64_t)bytes;
        GT_TRY(gt__meta_make(&meta, GT_DTYPE_U8, 1, &size, "window"));
        gt_tensor *made = gt__tensor_new_for(ctx, &meta, GT_MEMORY_OPTIMIZER, "window");
        if (made == NULL) return gt_last_error()->status;
        gt_tensor_release(s->buffers);
        s->buffers = made;
    }
    if (m->n_buffers > s->cap_copies) {
        gt__copy_item *grown = gt__realloc(s->copies, (size_t)m->n_buffers * sizeof *grown);
        if (grown == NULL) return GT_OUT_OF_HOST_MEMORY;
        s->copies = grown;
        s->cap_copies = m->n_buffers;
    }
    int32_t n = gt__module_counters(m, NULL, false);
    if (n > s->n_counters) {
        int64_t *grown = gt__realloc(s->counters, (size_t)n * sizeof *grown);
        if (grown == NULL) return GT_OUT_OF_HOST_MEMORY;
        s->counters = grown;
    }
    s->n_counters = n;
    return GT_OK;
}

static gt_status run_copies(gt_context *ctx, const window_start *s) {
    if (s->n_copies == 0) return GT_OK;
    int32_t previous = gt__enter(ctx);
    gt_status status = ctx->backend->copy_many(ctx->device, s->copies, s->n_copies);
    gt__leave(ctx, previous);
    return status;
}

static gt_status remember(gt_window *w) {
    window_start *s = &w->start;
    gt_module *m = w->options.module;
    s->rng_seed = w->ctx->rng_seed;
    s->rng_offset = w->ctx->rng_offset;
    s->n_copies = 0;
    if (m == NULL) return GT_OK;
    GT_TRY(make_room(s, m, w->ctx));
    char *to = s->buffers ? s->buffers->data : NULL;
    for (int32_t i = 0; i < m->n_buffers; ++i) {
        const gt_tensor *buffer = m->table[m->n_parameters + i].tensor;
        if (buffer->meta.numel == 0) continue;
        char text[300];
        GT_REQUIRE(gt__meta_is_dense(&buffer->meta), GT_BAD_STATE, "window: the buffer %s is a view with holes",
                   gt__tensor_text(buffer, text, sizeof text));
        s->copies[s->n_copies++] = (gt__copy_item){.destination = to, .source = buffer->data, .bytes = gt_tensor_bytes(buffer)};
        to += aligned_size(buffer);
    }
    (void)gt__module_counters(m, s->counters, false);
    return run_copies(w->ctx, s);
}

/* Turns the list of copies round. It is used up then. */
static gt_status go_back(gt_window *w) {
    static const char changed[] = "window: the module was changed inside the window, so its buffers cannot go back to what they were";
    window_start *s = &w->start;
    w->ctx->rng_seed = s->rng_seed;
    w->ctx->rng_offset = s->rng_offset;
    gt_module *m = w->options.module;
    if (m == NULL || w->ctx->tracer) return GT_OK; /* nothing has happened while it is traced */
    GT_TRY(gt__module_table(m));
    int32_t k = 0;
    for (int32_t i = 0; i < m->n_buffers; ++i) {
        gt_tensor *buffer = m->table[m->n_parameters + i].tensor;
        if (buffer->meta.numel == 0) continue;
        gt__copy_item *item = &s->copies[k];
        GT_REQUIRE(k++ < s->n_copies && item->source == buffer->data && item->bytes == gt_tensor_bytes(buffer), GT_BAD_STATE, "%s",
                   changed);
        *item = (gt__copy_item){.destination = buffer->data, .source = item->destination, .bytes = item->bytes};
        gt__storage_changed(buffer->storage);
    }
    GT_REQUIRE(k == s->n_copies && gt__module_counters(m, NULL, false) == s->n_counters, GT_BAD_STATE, "%s", changed);
    (void)gt__module_counters(m, s->counters, true);
    return run_copies(w->ctx, s);
}

/* --- creation ---------------------------------------------------------------------------------------------------------------------------- */
static gt_status make_cells(gt_window *w) {
    gt__meta bytes, number;
    const int64_t size = (int64_t)sizeof(window_cells);
    GT_TRY(gt__meta_make(&bytes, GT_DTYPE_U8, 1, &size, "window"));
    GT_TRY(gt__meta_make(&number, GT_DTYPE_F32, 0, NULL, "window"));
    w->cells = gt__tensor_new_for(w->ctx, &bytes, GT_MEMORY_OPTIMIZER, "window");
    if (w->cells == NULL) return gt_last_error()->status;
    w->seed = gt__tensor_view(w->cells, &number, (int64_t)(offsetof(window_cells, seed) / sizeof(float)));
    if (w->seed == NULL) return GT_OUT_OF_HOST_MEMORY;
    const window_cells start = {.window = {.last_rate = (double)NAN}};
    return gt__upload(w->cells, &start, sizeof start);
}

static gt_status forget_gradients(gt_window *w) {
    for (int32_t i = 0; i < w->n_parts; ++i) GT_TRY(gt_optimizer_zero_grad(w->parts[i].optimizer));
    return w->options.module ? gt_module_zero_grad(w->options.module) : GT_OK;
}

static gt_status build(gt_window *w) {
    const gt_window_options *o = &w->options;
    GT_TRY(gt__optimizer_context(o->optimizers[0], "gt_window_create", &w->ctx));
    if (o->schedule) GT_TRY(gt__schedule_read(o->schedule, &w->schedule));
    w->n_parts = o->n_optimizers;
    w->parts = gt__calloc((size_t)w->n_parts, sizeof *w->parts);
    if (w->parts == NULL) return GT_OUT_OF_HOST_MEMORY;
    int64_t total = 0;
    for (int32_t i = 0; i < w->n_parts; ++i) {
        window_part *part = &w->parts[i];
        *part = (window_part){.optimizer = o->optimizers[i], .first = (int32_t)total};
        total += part->optimizer->count;
        GT_REQUIRE(total < INT32_MAX, GT_BAD_ARGUMENT, "window: the optimizers have too many parameters");
        if (o->scaler == NULL) continue;
        gt__scaled *entry;
        GT_TRY(gt__scaler_meet(o->scaler, part->optimizer, "gt_window_create", &entry));
        part->first = entry->first;
    }
    w->grads = gt__calloc((size_t)total, sizeof *w->grads);
    if (w->grads == NULL) return GT_OUT_OF_HOST_MEMORY;
    GT_TRY(make_cells(w));
    if (o->module) GT_TRY(make_room(&w->start, o->module, w->ctx));
    return forget_gradients(w);
}

gt_status gt_window_create(const gt_window_options *options, gt_window **window) {
    GT_REQUIRE(options != NULL && window != NULL, GT_BAD_ARGUMENT, "gt_window_create: %s is NULL", options ? "window" : "options");
    gt_window_options o = defaults;
    GT_TRY(gt__options_read(&o, sizeof o, options, "gt_window_options"));
    GT_TRY(check_options(&o));
    gt_window *made = gt__calloc(1, sizeof *made);
    if (made == NULL) return GT_OUT_OF_HOST_MEMORY;
    made->options = o;
    gt_status status = build(made);
    made->options.optimizers = NULL;
    made->options.schedule = NULL;
    if (status == GT_OK)
        *window = made;
    else
        gt_window_destroy(made);
    return status;
}

/* --- the ends of a window ------------------------------------------------------------------------------------------------------------------ */
static void set_open(gt_window *w, bool open) {
    w->open = open;
    w->in_micro = false;
    w->done = 0;
    w->ctx->open_windows += open ? 1 : -1;
    for (int32_t i = 0; i < w->n_parts; ++i) w->parts[i].optimizer->in_window = open;
    if (w->options.scaler) w->options.scaler->in_window = open;
}

static gt_status give_up(gt_window *w) {
    set_open(w, false);
    gt_status status = forget_gradients(w);
    gt_status back = go_back(w);
    return status == GT_OK ? back : status;
}

/* Back to the start because of `status`, which stays the error unless going back fails too. */
static gt_status failed(gt_window *w, gt_status status) {
    gt_status back = give_up(w);
    return back == GT_OK ? status : back;
}

void gt_window_destroy(gt_window *w) {
    if (w == NULL) return;
    if (w->open && w->cells->ctx) (void)give_up(w);
    gt_tensor_release(w->seed);
    gt_tensor_release(w->cells);
    gt_tensor_release(w->start.buffers);
    gt__free(w->start.copies);
    gt__free(w->start.counters);
    gt__free(w->grads);
    gt__free(w->parts);
    gt__free(w);
}

/* Norm and control of all gradients, which stay as they are. */
static gt_status make_control(gt_window *w, int32_t n_grads) {
    gt_context *ctx = w->ctx;
    window_cells *cells = cells_of(w);
    const gt_window_options *o = &w->options;
    const gt__step_task task = {.kind = GT__STEP_WINDOW_END,
                                .window = &cells->window,
                                .control = &cells->control,
                                .scaler = o->scaler ? gt__scaler_data(o->scaler) : NULL,
                                .clip_norm = o->clip_norm,
                                .clip_value = o->clip_value,
                                .learning_rate = w->parts[0].optimizer->options.learning_rate,
                                .schedule = w->schedule};
    int32_t previous = gt__enter(ctx);
    gt_status status = ctx->backend->grad_step_task(ctx->device, w->grads, n_grads, &task);
    gt__leave(ctx, previous);
    return status;
}

static gt_status update(gt_window *w) {
    int32_t n_grads = 0, total = 0, found = 0;
    for (int32_t i = 0; i < w->n_parts; ++i) {
        window_part *part = &w->parts[i];
        int32_t listed = 0;
        GT_TRY(gt__optimizer_prepare(part->optimizer, "gt_window", &part->count, &part->found));
        gt__optimizer_list_grads(part->optimizer, part->first, w->grads + n_grads, &listed, &found);
        n_grads += listed;
        total += part->found;
    }
    GT_REQUIRE(total > 0, GT_NO_GRADS, "gt_window: no parameter of the %d optimizers has a gradient; does the loss depend on them?",
               (int)w->n_parts);
    GT_TRY(make_control(w, n_grads));
    for (int32_t i = 0; i < w->n_parts; ++i) {
        window_part *part = &w->parts[i];
        if (part->found > 0) GT_TRY(gt__optimizer_launch(part->optimizer, part->count, &cells_of(w)->control));
    }
    return GT_OK;
}

static gt_status finish(gt_window *w) {
    gt_context *ctx = w->ctx;
    gt__phase phase = gt__allocator_phase(ctx->allocator);
    gt__allocator_set_phase(ctx->allocator, GT__PHASE_UPDATE);
    gt_status status = update(w);
    gt__allocator_set_phase(ctx->allocator, phase);
    if (status != GT_OK) return failed(w, status);
    set_open(w, false);
    if (w->options.scaler) gt__scaler_updated(w->options.scaler);
    gt__step_done(ctx);
    return forget_gradients(w);
}

/* --- micro-batches --------------------------------------------------------------------------------------------------------------------------- */
static gt_status check(const gt_window *w, const char *who) { return gt__tensor_check(w->cells, who); }

static gt_status begin_window(gt_window *w, const char *who) {
    for (int32_t i = 0; i < w->n_parts; ++i) GT_TRY(gt__optimizer_check_free(w->parts[i].optimizer, who));
    if (w->options.scaler) {
        GT_TRY(gt__scaler_check(w->options.scaler, who, true));
        GT_TRY(gt__scaler_restart_diagnosis(w->options.scaler));
    }
    GT_TRY(remember(w));
    GT_TRY(forget_gradients(w));
    set_open(w, true);
    return GT_OK;
}

gt_status gt_window_micro_begin(gt_window *window) {
    GT_REQUIRE_HANDLE(window);
    GT_TRY(check(window, "gt_window_micro_begin"));
    GT_REQUIRE(!window->in_micro, GT_BAD_STATE, "gt_window_micro_begin: micro-batch %d has begun and not ended (gt_window_micro_end)",
               (int)window->done + 1);
    if (!window->open) GT_TRY(begin_window(window, "gt_window_micro_begin"));
    window->in_micro = true;
    return GT_OK;
}

static gt_status check_loss(const gt_window *w, const gt_tensor *loss, double items, const gt_tensor *items_on_device) {
    static const char who[] = "gt_window_micro_end";
    char text[300];
    if (loss == NULL) return gt__error_null(who, "loss", __FILE__, __LINE__);
    GT_TRY(gt__tensor_check(loss, who));
    GT_REQUIRE(loss->ctx == w->ctx, GT_BAD_DEVICE, "%s: the loss belongs to another context than the window", who);
    GT_REQUIRE(loss->meta.numel == 1 && gt__dtype_is_float(loss->meta.dtype), GT_BAD_SHAPE,
               "%s: the loss must be one floating-point number, not %s", who, gt__tensor_text(loss, text, sizeof text));
    if (items_on_device == NULL) {
        GT_REQUIRE(isfinite(items) && items >= 0, GT_BAD_ARGUMENT, "%s: items is %g; it must be finite and not negative", who, items);
        return GT_OK;
    }
    GT_TRY(gt__tensor_check(items_on_device, who));
    GT_REQUIRE(items_on_device->ctx == w->ctx, GT_BAD_DEVICE, "%s: items_on_device belongs to another context than the window", who);
    gt_dtype dtype = items_on_device->meta.dtype;
    GT_REQUIRE(items_on_device->meta.numel == 1 && (dtype == GT_DTYPE_F32 || dtype == GT_DTYPE_F64), GT_BAD_SHAPE,
               "%s: items_on_device must be one f32 or f64 number, not %s", who, gt__tensor_text(items_on_device, text, sizeof text));
    return GT_OK;
}

static gt_status seed(gt_window *w, double items, const gt_tensor *items_on_device) {
    gt_context *ctx = w->ctx;
    window_cells *cells = cells_of(w);
    const gt__step_task task = {.kind = GT__STEP_SEED,
                                .window = &cells->window,
                                .scaler = w->options.scaler ? gt__scaler_data(w->options.scaler) : NULL,
                                .seed = &cells->seed,
                                .items = items,
                                .items_cell = items_on_device ? items_on_device->data : NULL,
                                .items_dtype = items_on_device ? items_on_device->meta.dtype : GT_DTYPE_F64,
                                .first = w->done == 0,
                                .micro_batches = w->options.micro_batches};
    int32_t previous = gt__enter(ctx);
    gt_status status = ctx->backend->step_task(ctx->device, &task);
    gt__leave(ctx, previous);
    return status;
}

static gt_status backward(gt_window *w, gt_tensor *loss) {
    gt_tensor *wide = gt_cast(loss, GT_DTYPE_F32);
    if (wide == NULL) return gt_last_error()->status;
    gt__meta meta = wide->meta;
    gt__meta_set_row_major(&meta);
    gt_tensor *shaped = gt__tensor_view(w->seed, &meta, 0); /* shares its memory, so nobody takes it over */
    if (shaped == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt_status status = gt_backward_from(&wide, &shaped, 1, 0);
    gt_tensor_release(shaped);
    return status;
}

static gt_status micro_batch(gt_window *w, gt_tensor *loss, double items, gt_tensor *items_on_device) {
    GT_TRY(check_loss(w, loss, items, items_on_device));
    GT_TRY(seed(w, items, items_on_device));
    GT_TRY(gt__scope_begin(w->ctx));
    gt_status status = backward(w, loss);
    (void)gt_scope_end(w->ctx);
    return status;
}

gt_status gt_window_micro_end(gt_window *window, gt_tensor *loss, double items, gt_tensor *items_on_device) {
    GT_REQUIRE_HANDLE(window);
    GT_TRY(check(window, "gt_window_micro_end"));
    GT_REQUIRE(window->in_micro, GT_BAD_STATE, "gt_window_micro_end: no micro-batch has begun (gt_window_micro_begin)");
    gt_status status = micro_batch(window, loss, items, items_on_device);
    if (status != GT_OK) return failed(window, status);
    window->in_micro = false;
    return ++window->done >= window->options.micro_batches ? finish(window) : GT_OK;
}

gt_status gt_window_flush(gt_window *window) {
    GT_REQUIRE_HANDLE(window);
    GT_TRY(check(window, "gt_window_flush"));
    GT_REQUIRE(!window->in_micro, GT_BAD_STATE, "gt_window_flush: micro-batch %d has begun and not ended (gt_window_micro_end)",
               (int)window->done + 1);
    return window->open ? finish(window) : GT_OK;
}

gt_status gt_window_cancel(gt_window *window) {
    GT_REQUIRE_HANDLE(window);
    GT_TRY(check(window, "gt_window_cancel"));
    return window->open ? give_up(window) : GT_OK;
}

gt_status gt_window_set_micro_batches(gt_window *window, int32_t micro_batches) {
    GT_REQUIRE_HANDLE(window);
    GT_TRY(check_micro_batches(micro_batches));
    GT_REQUIRE(!window->open, GT_BAD_STATE, "gt_window_set_micro_batches: a window of %d is open; flush or cancel it first",
               (int)window->options.micro_batches);
    window->options.micro_batches = micro_batches;
    return GT_OK;
}

/* --- for compiled steps ------------------------------------------------------------------------------------------------------------------------ */
bool gt__window_is_open(const gt_window *window) { return window->open; }
const gt_tensor *gt__window_memory(const gt_window *window) { return window->cells; }
int32_t gt__window_done(const gt_window *window) { return window->done; }
int32_t gt__window_micro_batches(const gt_window *window) { return window->options.micro_batches; }

gt_status gt__window_open(gt_window *window, const char *who) {
    GT_TRY(check(window, who));
    return begin_window(window, who);
}

gt_status gt__window_advance(gt_window *window, int32_t micro_batches, bool ended) {
    window->done += micro_batches;
    if (!ended) return GT_OK;
    set_open(window, false);
    return forget_gradients(window);
}

gt_status gt__window_remember(gt_window *window) { return remember(window); }
gt_status gt__window_go_back(gt_window *window) { return go_back(window); }

void gt__window_trace_begin(gt_window *window, gt__window_place *place) {
    *place = (gt__window_place){window->done, window->open, window->in_micro};
    if (!window->open) set_open(window, true);
}

void gt__window_trace_end(gt_window *window, const gt__window_place *place) {
    if (window->open != place->open) set_open(window, place->open);
    window->done = place->done;
    window->in_micro = place->in_micro;
}

/* --- state ----------------------------------------------------------------------------------------------------------------------------------- */
static const gt_window_state no_state = {.struct_size = sizeof(gt_window_state), .learning_rate = (double)NAN};

gt_status gt_window_state_init(gt_window_state *state, size_t size) {
    return gt__options_write(state, size, &no_state, sizeof no_state, "gt_window_state");
}

gt_status gt_window_get_state(gt_window *window, gt_window_state *state) {
    GT_REQUIRE_HANDLE(window);
    GT_REQUIRE_HANDLE(state);
    gt_window_state s = no_state;
    GT_TRY(gt__options_read(&s, sizeof s, state, "gt_window_state"));
    uint32_t size = state->struct_size;
    window_cells cells;
    GT_TRY(gt_tensor_read(window->cells, &cells, sizeof cells));
    s = no_state;
    s.status = cells.window.status;
    s.updates = cells.window.updates;
    s.skipped = cells.window.skipped;
    s.empty = cells.window.empty;
    s.items = cells.window.last_items;
    s.gradient_norm = cells.window.last_norm;
    s.learning_rate = cells.window.last_rate;
    s.micro_batches = window->done;
    return gt__options_write(state, size, &s, sizeof s, "gt_window_state");
}

gt_status gt_window_set_updates(gt_window *window, int64_t updates) {
    static const char who[] = "gt_window_set_updates";
    GT_REQUIRE_HANDLE(window);
    GT_TRY(check(window, who));
    GT_REQUIRE(updates >= 0, GT_BAD_ARGUMENT, "%s: updates is %lld; it must not be negative", who, (long long)updates);
    GT_REQUIRE(!window->open, GT_BAD_STATE, "%s: a window is open; flush or cancel it first", who);
    gt__meta meta;
    const int64_t size = (int64_t)sizeof updates;
    GT_TRY(gt__meta_make(&meta, GT_DTYPE_U8, 1, &size, who));
    gt_tensor *cell = gt__tensor_view(window->cells, &meta, (int64_t)offsetof(window_cells, window.updates));
    if (cell == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt_status status = gt__upload(cell, &updates, sizeof updates);
    gt_tensor_release(cell);
    return status;
}
