/* Dynamic loss scaling (Micikevicius et al. 2018), wholly on the device: whether gradients are finite, what the next scale is and whether a step is
 * done are found out there, and the host never asks. */
#include "optim/scaler.h"

#include <math.h>
#include <stdio.h>

static const gt_scaler_options defaults = {.struct_size = sizeof(gt_scaler_options),
                                           .dynamic = 1,
                                           .scale = 65536,
                                           .growth = 2,
                                           .backoff = 0.5,
                                           .floor = 0x1p-14,
                                           .cap = 0x1p24,
                                           .growth_interval = 2000};

gt_status gt_scaler_options_init(gt_scaler_options *options, size_t size) {
    return gt__options_write(options, size, &defaults, sizeof defaults, "gt_scaler_options");
}

static gt_status check_options(const gt_scaler_options *o) {
    GT_REQUIRE(o->cap >= 0x1p-126 && o->cap <= 0x1p126, GT_BAD_ARGUMENT, "scaler: cap is %g; it must be from 2^-126 to 2^126", o->cap);
    GT_REQUIRE(o->floor >= 0x1p-126 && o->floor <= o->cap, GT_BAD_ARGUMENT, "scaler: floor is %g; it must be from 2^-126 to cap, %g",
               o->floor, o->cap);
    GT_REQUIRE(o->scale >= o->floor && o->scale <= o->cap, GT_BAD_ARGUMENT, "scaler: scale is %g; it must be from floor, %g, to cap, %g",
               o->scale, o->floor, o->cap);
    GT_REQUIRE(isfinite(o->growth) && o->growth >= 1, GT_BAD_ARGUMENT, "scaler: growth is %g; it must be at least 1", o->growth);
    GT_REQUIRE(o->backoff > 0 && o->backoff < 1, GT_BAD_ARGUMENT, "scaler: backoff is %g; it must be between 0 and 1", o->backoff);
    GT_REQUIRE(o->growth_interval >= 1, GT_BAD_ARGUMENT, "scaler: growth_interval is %d; it must be at least 1", (int)o->growth_interval);
    return GT_OK;
}

/* --- creation ---------------------------------------------------------------------------------------------------------------------------- */
static gt__scaler_cells cells_of(const gt_scaler_options *o) {
    return (gt__scaler_cells){.scale = (float)o->scale,
                              .floor = (float)o->floor,
                              .cap = (float)o->cap,
                              .growth = o->growth,
                              .backoff = o->backoff,
                              .growth_interval = o->growth_interval,
                              .dynamic = o->dynamic != 0,
                              .found_first = INT32_MAX,
                              .last_first = INT32_MAX,
                              .overflow = UINT64_MAX,
                              .last_overflow = UINT64_MAX};
}

static gt_status build(gt_scaler *scaler, gt_context *ctx) {
    gt__meta bytes, number;
    const int64_t size = (int64_t)sizeof(gt__scaler_cells);
    GT_TRY(gt__meta_make(&bytes, GT_DTYPE_U8, 1, &size, "scaler"));
    GT_TRY(gt__meta_make(&number, GT_DTYPE_F32, 0, NULL, "scaler"));
    scaler->ctx = ctx;
    scaler->cells = gt__tensor_new_for(ctx, &bytes, GT_MEMORY_OPTIMIZER, "scaler");
    if (scaler->cells == NULL) return gt_last_error()->status;
    scaler->scale = gt__tensor_view(scaler->cells, &number, 0);
    if (scaler->scale == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt__scaler_cells cells = cells_of(&scaler->options);
    GT_TRY(gt__upload(scaler->cells, &cells, sizeof cells));
    if (!scaler->options.diagnose) return GT_OK;
    GT_REQUIRE(ctx->diagnosis == NULL, GT_BAD_STATE, "scaler: another scaler of this context diagnoses already; one at a time can");
    scaler->diagnosis = gt__calloc(1, sizeof *scaler->diagnosis);
    if (scaler->diagnosis == NULL) return GT_OUT_OF_HOST_MEMORY;
    scaler->diagnosis->least = &gt__scaler_data(scaler)->overflow;
    ctx->diagnosis = scaler->diagnosis;
    return GT_OK;
}

gt_status gt_scaler_create(gt_context *ctx, const gt_scaler_options *options, gt_scaler **scaler) {
    GT_REQUIRE_HANDLE(ctx);
    GT_REQUIRE_HANDLE(scaler);
    gt_scaler_options o = defaults;
    if (options) GT_TRY(gt__options_read(&o, sizeof o, options, "gt_scaler_options"));
    GT_TRY(check_options(&o));
    gt_scaler *made = gt__calloc(1, sizeof *made);
    if (made == NULL) return GT_OUT_OF_HOST_MEMORY;
    made->options = o;
    gt_status status = build(made, ctx);
    if (status == GT_OK)
        *scaler = made;
    else
        gt_scaler_destroy(made);
    return status;
}

void gt_scaler_destroy(gt_scaler *scaler) {
    if (scaler == NULL) return;
    if (scaler->diagnosis) {
        if (scaler->cells->ctx) scaler->ctx->diagnosis = NULL;
        gt__free(scaler->diagnosis->sites);
        gt__free(scaler->diagnosis);
    }
    gt_tensor_release(scaler->scale);
    gt_tensor_release(scaler->cells);
    for (int32_t i = 0; i < scaler->n_names; ++i) gt__free(scaler->names[i]);
    gt__free(scaler->names);
    gt__free(scaler->met);
    gt__free(scaler);
}

/* --- which optimizers ---------------------------------------------------------------------------------------------------------------------- */
gt_status gt__scaler_check(const gt_scaler *scaler, const char *who, bool between) {
    GT_TRY(gt__tensor_check(scaler->cells, who));
    GT_REQUIRE(!scaler->in_window, GT_BAD_STATE, "%s: a window of the scaler is open, and its end does this", who);
    for (int32_t i = 0; i < scaler->n_met && between; ++i)
        GT_REQUIRE(!scaler->met[i].unscaled && !scaler->met[i].stepped, GT_BAD_STATE,
                   "%s: gradients were unscaled since the last gt_scaler_update; step and update first", who);
    return GT_OK;
}

static char *name_of(const gt_tensor *parameter, int32_t index) {
    char text[300], name[340];
    if (parameter->name) return gt__strdup(parameter->name);
    (void)snprintf(name, sizeof name, "parameter %d, %s", (int)index, gt__tensor_text(parameter, text, sizeof text));
    return gt__strdup(name);
}

static gt_status add_names(gt_scaler *scaler, const gt_optimizer *optimizer) {
    GT_REQUIRE(scaler->n_names <= INT32_MAX - 1 - optimizer->count, GT_BAD_ARGUMENT, "scaler: too many parameters");
    char **grown = gt__realloc(scaler->names, (size_t)(scaler->n_names + optimizer->count) * sizeof *grown);
    if (grown == NULL) return GT_OUT_OF_HOST_MEMORY;
    scaler->names = grown;
    for (int32_t i = 0; i < optimizer->count; ++i) {
        char *name = name_of(optimizer->slots[i].parameter, i);
        if (name == NULL) {
            while (i-- > 0) gt__free(grown[scaler->n_names + i]);
            return GT_OUT_OF_HOST_MEMORY;
        }
        grown[scaler->n_names + i] = name;
    }
    scaler->n_names += optimizer->count;
    return GT_OK;
}

gt_status gt__scaler_meet(gt_scaler *scaler, const gt_optimizer *optimizer, const char *who, gt__scaled **entry) {
    gt_context *ctx;
    GT_TRY(gt__optimizer_context(optimizer, who, &ctx));
    GT_REQUIRE(ctx == scaler->ctx, GT_BAD_DEVICE, "%s: the optimizer belongs to another context than the scaler", who);
    for (int32_t i = 0; i < scaler->n_met; ++i) {
        *entry = &scaler->met[i];
        if ((*entry)->id == optimizer->id) return GT_OK;
    }
    if (scaler->n_met == scaler->cap_met) {
        int32_t capacity = GT__MAX(scaler->cap_met * 2, 4);
        gt__scaled *grown = gt__realloc(scaler->met, (size_t)capacity * sizeof *grown);
        if (grown == NULL) return GT_OUT_OF_HOST_MEMORY;
        scaler->met = grown;
        scaler->cap_met = capacity;
    }
    int32_t first = scaler->n_names;
    GT_TRY(add_names(scaler, optimizer));
    *entry = &scaler->met[scaler->n_met++];
    **entry = (gt__scaled){.id = optimizer->id, .first = first};
    return GT_OK;
}

/* --- a step -------------------------------------------------------------------------------------------------------------------------------- */
gt_tensor *gt_scaler_scale(gt_scaler *scaler, gt_tensor *loss) {
    if (scaler == NULL || loss == NULL) {
        (void)gt__error_null("gt_scaler_scale", scaler ? "loss" : "scaler", __FILE__, __LINE__);
        return NULL;
    }
    GT_TRY_NULL(gt__scaler_check(scaler, "gt_scaler_scale", false));
    GT_REQUIRE_NULL(gt__dtype_is_float(loss->meta.dtype), GT_BAD_DTYPE, "gt_scaler_scale: the loss is %s, not floating-point",
                    gt_dtype_name(loss->meta.dtype));
    GT_TRY_NULL(gt__scope_begin(scaler->ctx));
    return gt_scope_return(scaler->ctx, gt_mul(gt_cast(loss, GT_DTYPE_F32), scaler->scale));
}

/* Norm, first bad gradient and the controls made of them, of the `count` gradients in optimizer->grads. */
static gt_status make_controls(gt_scaler *scaler, gt_optimizer *optimizer, int32_t count) {
    gt_context *ctx = scaler->ctx;
    const gt__step_task task = {.kind = GT__STEP_UNSCALE, .scaler = gt__scaler_data(scaler), .control = gt__optimizer_controls(optimizer)};
    int32_t previous = gt__enter(ctx);
    gt_status status = ctx->backend->grad_step_task(ctx->device, optimizer->grads, count, &task);
    gt__leave(ctx, previous);
    return status;
}

static gt_status no_grads(const gt_optimizer *optimizer, const char *who) {
    GT_FAIL(GT_NO_GRADS, "%s: none of the %d parameters has a gradient; call gt_backward before", who, (int)optimizer->count);
}

gt_status gt_scaler_unscale(gt_scaler *scaler, gt_optimizer *optimizer) {
    static const char who[] = "gt_scaler_unscale";
    GT_REQUIRE_HANDLE(scaler);
    GT_REQUIRE_HANDLE(optimizer);
    GT_TRY(gt__scaler_check(scaler, who, false));
    GT_TRY(gt__optimizer_check_free(optimizer, who));
    gt__scaled *entry;
    GT_TRY(gt__scaler_meet(scaler, optimizer, who, &entry));
    GT_REQUIRE(!entry->unscaled, GT_BAD_STATE, "%s: the gradients are unscaled already; once before each gt_scaler_update", who);
    GT_REQUIRE(!entry->stepped, GT_BAD_STATE, "%s: the optimizer has stepped already; call gt_scaler_update before the next step", who);
    int32_t count = 0, found = 0;
    gt__optimizer_list_grads(optimizer, entry->first, optimizer->grads, &count, &found);
    if (found == 0) return no_grads(optimizer, who);
    gt_context *ctx = scaler->ctx;
    GT_TRY(make_controls(scaler, optimizer, count));
    int32_t previous = gt__enter(ctx);
    gt_status status = ctx->backend->grad_scale(ctx->device, optimizer->grads, count, gt__optimizer_controls(optimizer));
    gt__leave(ctx, previous);
    GT_TRY(status);
    gt__optimizer_mark_grads(optimizer);
    entry->unscaled = true;
    return GT_OK;
}

static gt_status step(gt_scaler *scaler, gt_optimizer *optimizer, gt__scaled *entry, const char *who) {
    int32_t count = 0, n_grads = 0, found = 0;
    GT_TRY(gt__optimizer_prepare(optimizer, who, &count, &found));
    if (found == 0) return no_grads(optimizer, who);
    if (!entry->unscaled) {
        gt__optimizer_list_grads(optimizer, entry->first, optimizer->grads, &n_grads, &found);
        GT_TRY(make_controls(scaler, optimizer, n_grads));
    }
    return gt__optimizer_launch(optimizer, count, gt__optimizer_controls(optimizer) + (entry->unscaled ? 1 : 0));
}

gt_status gt_scaler_step(gt_scaler *scaler, gt_optimizer *optimizer) {
    static const char who[] = "gt_scaler_step";
    GT_REQUIRE_HANDLE(scaler);
    GT_REQUIRE_HANDLE(optimizer);
    GT_TRY(gt__scaler_check(scaler, who, false));
    GT_TRY(gt__optimizer_check_free(optimizer, who));
    gt__scaled *entry;
    GT_TRY(gt__scaler_meet(scaler, optimizer, who, &entry));
    GT_REQUIRE(!entry->stepped, GT_BAD_STATE, "%s: the optimizer has stepped since the last gt_scaler_update; call that first", who);
    gt_context *ctx = scaler->ctx;
    gt__phase phase = gt__allocator_phase(ctx->allocator);
    gt__allocator_set_phase(ctx->allocator, GT__PHASE_UPDATE);
    gt_status status = step(scaler, optimizer, entry, who);
    gt__allocator_set_phase(ctx->allocator, phase);
    GT_TRY(status);
    entry->stepped = scaler->stepped = true;
    gt__step_done(ctx);
    return GT_OK;
}

void gt__scaler_updated(gt_scaler *scaler) {
    for (int32_t i = 0; i < scaler->n_met; ++i) scaler->met[i].unscaled = scaler->met[i].stepped = false;
    scaler->stepped = false;
    gt__storage_changed(scaler->cells->storage); /* a loss that was scaled before cannot go backward any more */
    if (scaler->diagnosis) scaler->diagnosis->calls = 0;
}

gt_status gt__scaler_restart_diagnosis(gt_scaler *scaler) {
    static const uint64_t none = UINT64_MAX;
    if (scaler->diagnosis == NULL) return GT_OK;
    gt__meta meta;
    const int64_t size = (int64_t)sizeof none;
    GT_TRY(gt__meta_make(&meta, GT_DTYPE_U8, 1, &size, "scaler"));
    gt_tensor *cell = gt__tensor_view(scaler->cells, &meta, (int64_t)offsetof(gt__scaler_cells, overflow));
    if (cell == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt_status status = gt__upload(cell, &none, sizeof none);
    gt_tensor_release(cell);
    if (status == GT_OK) scaler->diagnosis->calls = 0;
    return status;
}

gt_status gt_scaler_update(gt_scaler *scaler) {
    static const char who[] = "gt_scaler_update";
    GT_REQUIRE_HANDLE(scaler);
    GT_TRY(gt__scaler_check(scaler, who, false));
    GT_REQUIRE(scaler->stepped, GT_BAD_STATE, "%s: no optimizer has stepped since the last one; call gt_scaler_step before", who);
    gt_context *ctx = scaler->ctx;
    const gt__step_task task = {.kind = GT__STEP_SCALER_UPDATE, .scaler = gt__scaler_data(scaler)};
    int32_t previous = gt__enter(ctx);
    gt_status status = ctx->backend->step_task(ctx->device, &task);
    gt__leave(ctx, previous);
    GT_TRY(status);
    gt__scaler_updated(scaler);
    return GT_OK;
}

/* --- state --------------------------------------------------------------------------------------------------------------------------------- */
static const gt_scaler_state no_state = {.struct_size = sizeof(gt_scaler_state), .scale = 65536, .parameter = "", .op = "", .module = ""};

gt_status gt_scaler_state_init(gt_scaler_state *state, size_t size) {
    return gt__options_write(state, size, &no_state, sizeof no_state, "gt_scaler_state");
}

gt_status gt_scaler_get_state(gt_scaler *scaler, gt_scaler_state *state) {
    GT_REQUIRE_HANDLE(scaler);
    GT_REQUIRE_HANDLE(state);
    gt_scaler_state s = no_state;
    GT_TRY(gt__options_read(&s, sizeof s, state, "gt_scaler_state"));
    uint32_t size = state->struct_size;
    gt__scaler_cells cells;
    GT_TRY(gt_tensor_read(scaler->cells, &cells, sizeof cells));
    s = no_state;
    s.status = cells.status;
    s.scale = (double)cells.scale;
    s.growth_count = cells.growth_count;
    s.updates = cells.updates;
    s.skipped = cells.skipped;
    s.skipped_in_row = cells.skipped_in_row;
    if (cells.last_first >= 0 && cells.last_first < scaler->n_names) s.parameter = scaler->names[cells.last_first];
    const gt__op_site *site = scaler->diagnosis ? gt__diagnosis_site(scaler->diagnosis, cells.last_overflow) : NULL;
    if (site) {
        s.op = gt__op_table[site->op].name;
        s.module = site->module ? site->module : "";
        s.op_backward = site->backward;
    }
    return gt__options_write(state, size, &s, sizeof s, "gt_scaler_state");
}

gt_status gt_scaler_set_state(gt_scaler *scaler, const gt_scaler_state *state) {
    static const char who[] = "gt_scaler_set_state";
    GT_REQUIRE_HANDLE(scaler);
    GT_REQUIRE_HANDLE(state);
    GT_TRY(gt__scaler_check(scaler, who, true));
    gt_scaler_state s = no_state;
    GT_TRY(gt__options_read(&s, sizeof s, state, "gt_scaler_state"));
    const gt_scaler_options *o = &scaler->options;
    GT_REQUIRE(s.scale >= o->floor && s.scale <= o->cap, GT_BAD_ARGUMENT, "%s: scale is %g; it must be from floor, %g, to cap, %g", who,
               s.scale, o->floor, o->cap);
    GT_REQUIRE(s.growth_count >= 0 && s.growth_count <= INT32_MAX && s.updates >= 0 && s.skipped >= 0 && s.skipped_in_row >= 0,
               GT_BAD_ARGUMENT, "%s: growth_count is %lld, updates %lld, skipped %lld, skipped_in_row %lld; none may be negative", who,
               (long long)s.growth_count, (long long)s.updates, (long long)s.skipped, (long long)s.skipped_in_row);
    gt__scaler_cells cells = cells_of(o);
    cells.scale = (float)s.scale;
    cells.growth_count = (int32_t)s.growth_count;
    cells.updates = s.updates;
    cells.skipped = s.skipped;
    cells.skipped_in_row = s.skipped_in_row;
    GT_TRY(gt__upload(scaler->cells, &cells, sizeof cells));
    gt__scaler_updated(scaler);
    return GT_OK;
}
