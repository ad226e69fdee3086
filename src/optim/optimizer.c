/* SGD, Adam and AdamW: which parameters step, and one call of the backend for all of them. */
#include "optim/optimizer.h"

#include <gtrain/nn.h>

#include <math.h>
#include <stdlib.h>

static gt_optimizer_options defaults_of(gt_optimizer_kind kind) {
    return (gt_optimizer_options){.struct_size = sizeof(gt_optimizer_options),
                                  .kind = kind,
                                  .learning_rate = kind == GT_OPTIMIZER_SGD ? 1e-2 : 1e-3,
                                  .beta1 = 0.9,
                                  .beta2 = 0.999,
                                  .epsilon = 1e-8,
                                  .weight_decay = kind == GT_OPTIMIZER_ADAMW ? 1e-2 : 0};
}

static gt_status check_kind(gt_optimizer_kind kind) {
    GT_REQUIRE(kind >= GT_OPTIMIZER_SGD && kind <= GT_OPTIMIZER_ADAMW, GT_BAD_ARGUMENT, "optimizer: kind %d is none of gt_optimizer_kind",
               kind);
    return GT_OK;
}

gt_status gt_optimizer_options_init(gt_optimizer_options *options, size_t size, gt_optimizer_kind kind) {
    GT_TRY(check_kind(kind));
    gt_optimizer_options defaults = defaults_of(kind);
    return gt__options_write(options, size, &defaults, sizeof defaults, "gt_optimizer_options");
}

static gt_status check_rate(double learning_rate) {
    GT_REQUIRE(isfinite(learning_rate) && learning_rate >= 0, GT_BAD_ARGUMENT,
               "optimizer: learning_rate is %g; it must be finite and not negative", learning_rate);
    return GT_OK;
}

static gt_status check_options(const gt_optimizer_options *o) {
    GT_TRY(check_kind(o->kind));
    GT_TRY(check_rate(o->learning_rate));
    GT_REQUIRE(isfinite(o->weight_decay) && o->weight_decay >= 0, GT_BAD_ARGUMENT,
               "optimizer: weight_decay is %g; it must be finite and not negative", o->weight_decay);
    if (o->kind == GT_OPTIMIZER_SGD) {
        GT_REQUIRE(isfinite(o->momentum) && o->momentum >= 0, GT_BAD_ARGUMENT,
                   "optimizer: momentum is %g; it must be finite and not negative", o->momentum);
        GT_REQUIRE(isfinite(o->dampening), GT_BAD_ARGUMENT, "optimizer: dampening is %g", o->dampening);
        GT_REQUIRE(!o->nesterov || (o->momentum > 0 && o->dampening == 0), GT_BAD_ARGUMENT,
                   "optimizer: nesterov needs momentum (it is %g) and no dampening (it is %g)", o->momentum, o->dampening);
        return GT_OK;
    }
    GT_REQUIRE(o->beta1 >= 0 && o->beta1 < 1, GT_BAD_ARGUMENT, "optimizer: beta1 is %g; it must be in [0, 1)", o->beta1);
    GT_REQUIRE(o->beta2 >= 0 && o->beta2 < 1, GT_BAD_ARGUMENT, "optimizer: beta2 is %g; it must be in [0, 1)", o->beta2);
    GT_REQUIRE(isfinite(o->epsilon) && o->epsilon >= 0, GT_BAD_ARGUMENT, "optimizer: epsilon is %g; it must be finite and not negative",
               o->epsilon);
    return GT_OK;
}

/* The caller's kind decides which defaults stand in for fields that its struct does not have. */
static gt_status read_options(const gt_optimizer_options *theirs, gt_optimizer_options *ours) {
    GT_REQUIRE(theirs != NULL, GT_BAD_ARGUMENT, "gt_optimizer_create: options is NULL; fill them with gt_optimizer_options_init");
    uint32_t size = 0;
    gt_optimizer_kind kind = GT_OPTIMIZER_SGD;
    memcpy(&size, theirs, sizeof size);
    if (size >= offsetof(gt_optimizer_options, kind) + sizeof kind) memcpy(&kind, &theirs->kind, sizeof kind);
    GT_TRY(check_kind(kind));
    *ours = defaults_of(kind);
    GT_TRY(gt__options_read(ours, sizeof *ours, theirs, "gt_optimizer_options"));
    return check_options(ours);
}

static gt_status check_parameter(gt_tensor *const *parameters, int32_t index) {
    const gt_tensor *p = parameters[index];
    if (p == NULL) {
        gt_status status = gt__error_null("gt_optimizer_create", "a parameter", __FILE__, __LINE__);
        return status;
    }
    char text[300];
    GT_TRY(gt__tensor_check(p, "gt_optimizer_create"));
    GT_REQUIRE(p->ctx == parameters[0]->ctx, GT_BAD_DEVICE, "optimizer: parameter %d, %s, belongs to another context than the first", index,
               gt__tensor_text(p, text, sizeof text));
    GT_REQUIRE(p->node == NULL && p->view_base == NULL, GT_BAD_STATE, "optimizer: parameter %d, %s, is not a leaf", index,
               gt__tensor_text(p, text, sizeof text));
    GT_REQUIRE(p->requires_grad, GT_BAD_STATE, "optimizer: parameter %d, %s, does not require a gradient (gt_tensor_set_requires_grad)",
               index, gt__tensor_text(p, text, sizeof text));
    GT_REQUIRE(gt__meta_is_dense(&p->meta), GT_BAD_SHAPE, "optimizer: parameter %d, %s, is a view with holes", index,
               gt__tensor_text(p, text, sizeof text));
    return GT_OK;
}

/* --- duplicates ---------------------------------------------------------------------------------------------------------------------- */
typedef struct listed {
    gt_tensor *tensor;
    int32_t index;
} listed;

static int by_handle(const void *a, const void *b) {
    const listed *x = a, *y = b;
    if (x->tensor != y->tensor) return (uintptr_t)x->tensor < (uintptr_t)y->tensor ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

static int by_memory(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)((const listed *)a)->tensor->data, y = (uintptr_t)((const listed *)b)->tensor->data;
    return (x > y) - (x < y);
}

static int by_index(const void *a, const void *b) {
    const listed *x = a, *y = b;
    return (x->index > y->index) - (x->index < y->index);
}

/* Leaves each handle once, in the caller's order. Two handles on overlapping memory would be stepped twice at the same time: refused. */
static gt_status make_unique(listed *list, int32_t *count) {
    int32_t n = 0;
    qsort(list, (size_t)*count, sizeof *list, by_handle);
    for (int32_t i = 0; i < *count; ++i)
        if (i == 0 || list[i].tensor != list[i - 1].tensor) list[n++] = list[i];
    qsort(list, (size_t)n, sizeof *list, by_memory);
    for (int32_t i = 1; i < n; ++i) {
        const gt_tensor *a = list[i - 1].tensor, *b = list[i].tensor;
        char one[300], two[300];
        GT_REQUIRE(a->data == NULL || (uintptr_t)a->data + gt_tensor_bytes(a) <= (uintptr_t)b->data, GT_BAD_ARGUMENT,
                   "optimizer: parameters %d, %s, and %d, %s, share memory; list one of them", list[i - 1].index,
                   gt__tensor_text(a, one, sizeof one), list[i].index, gt__tensor_text(b, two, sizeof two));
    }
    qsort(list, (size_t)n, sizeof *list, by_index);
    *count = n;
    return GT_OK;
}

/* --- creation ------------------------------------------------------------------------------------------------------------------------ */
static gt_status state_new(const gt_tensor *parameter, bool zero, gt_tensor **made) {
    gt__meta meta = parameter->meta;
    meta.dtype = gt__dtype_accumulate(meta.dtype);
    gt_context *ctx = parameter->ctx;
    const char *path = ctx->module_path;
    if (parameter->name) { /* so that pictures and reports say whose state it is */
        ctx->module_path = gt__context_string(ctx, parameter->name);
        if (ctx->module_path == NULL) ctx->module_path = path;
    }
    gt_tensor *t = gt__tensor_new_for(ctx, &meta, GT_MEMORY_OPTIMIZER, "optimizer");
    ctx->module_path = path;
    if (t == NULL) return gt_last_error()->status;
    gt_status status = zero ? gt_tensor_fill(t, 0) : GT_OK;
    if (status == GT_OK)
        *made = t;
    else
        gt_tensor_release(t);
    return status;
}

static gt_status slot_init(gt__slot_state *slot, const gt_optimizer_options *o, gt_tensor *parameter) {
    bool adam = o->kind != GT_OPTIMIZER_SGD;
    slot->parameter = gt_tensor_retain(parameter);
    slot->dtype = parameter->meta.dtype;
    if (gt__dtype_is_half(slot->dtype)) {
        GT_TRY(state_new(parameter, false, &slot->master));
        slot->master_version = parameter->storage->version - 1; /* filled before the first step */
    }
    if (adam || o->momentum != 0) GT_TRY(state_new(parameter, true, &slot->state0));
    if (adam) GT_TRY(state_new(parameter, true, &slot->state1));
    return GT_OK;
}

void gt_optimizer_destroy(gt_optimizer *optimizer) {
    if (optimizer == NULL) return;
    for (int32_t i = 0; optimizer->slots && i < optimizer->count; ++i) {
        gt_tensor_release(optimizer->slots[i].parameter);
        gt_tensor_release(optimizer->slots[i].master);
        gt_tensor_release(optimizer->slots[i].state0);
        gt_tensor_release(optimizer->slots[i].state1);
    }
    gt_tensor_release(optimizer->cells);
    gt__free(optimizer->slots);
    gt__free(optimizer->updates);
    gt__free(optimizer->grads);
    gt__free(optimizer);
}

static gt_status make_cells(gt_optimizer *optimizer, gt_context *ctx) {
    gt__meta meta;
    const int64_t bytes = (int64_t)gt__step_cells_bytes(optimizer->count);
    GT_TRY(gt__meta_make(&meta, GT_DTYPE_U8, 1, &bytes, "optimizer"));
    optimizer->cells = gt__tensor_new_for(ctx, &meta, GT_MEMORY_OPTIMIZER, "optimizer");
    return optimizer->cells ? gt__fill(optimizer->cells, 0) : gt_last_error()->status;
}

static gt_status build(gt_optimizer *optimizer, const listed *list) {
    size_t n = (size_t)optimizer->count;
    optimizer->slots = gt__calloc(n, sizeof *optimizer->slots);
    optimizer->updates = gt__calloc(n, sizeof *optimizer->updates);
    optimizer->grads = gt__calloc(n, sizeof *optimizer->grads);
    if (!optimizer->slots || !optimizer->updates || !optimizer->grads) return GT_OUT_OF_HOST_MEMORY;
    for (size_t i = 0; i < n; ++i) GT_TRY(slot_init(&optimizer->slots[i], &optimizer->options, list[i].tensor));
    gt_context *ctx = list[0].tensor->ctx;
    optimizer->id = ++ctx->node_sequence;
    return make_cells(optimizer, ctx);
}

gt_status gt_optimizer_create(const gt_optimizer_options *options, gt_tensor *const *parameters, int32_t count, gt_optimizer **optimizer) {
    GT_REQUIRE(optimizer != NULL, GT_BAD_ARGUMENT, "gt_optimizer_create: optimizer is NULL");
    gt_optimizer_options o;
    GT_TRY(read_options(options, &o));
    GT_REQUIRE(count > 0 && parameters != NULL, GT_BAD_ARGUMENT, "gt_optimizer_create: %d parameters%s; there must be at least 1", count,
               parameters ? "" : " at NULL");
    for (int32_t i = 0; i < count; ++i) GT_TRY(check_parameter(parameters, i));
    listed *list = gt__calloc((size_t)count, sizeof *list);
    gt_optimizer *made = list ? gt__calloc(1, sizeof *made) : NULL;
    gt_status status = GT_OUT_OF_HOST_MEMORY;
    if (made) {
        for (int32_t i = 0; i < count; ++i) list[i] = (listed){parameters[i], i};
        made->options = o;
        made->count = count;
        status = make_unique(list, &made->count);
        if (status == GT_OK) status = build(made, list);
    }
    gt__free(list);
    if (status == GT_OK)
        *optimizer = made;
    else
        gt_optimizer_destroy(made);
    return status;
}

gt_status gt_optimizer_create_for(const gt_optimizer_options *options, gt_module *module, gt_optimizer **optimizer) {
    GT_REQUIRE_HANDLE(module);
    GT_TRY(gt_module_check(module));
    int32_t total = gt_module_parameter_count(module), count = 0;
    gt_tensor **list = gt__calloc((size_t)total, sizeof *list);
    if (list == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt_status status = GT_OK;
    for (int32_t i = 0; i < total && status == GT_OK; ++i) {
        status = gt_module_parameter(module, i, NULL, &list[count]);
        if (status == GT_OK && list[count]->requires_grad) ++count;
    }
    if (status == GT_OK && count == 0)
        status = GT_RAISE(GT_BAD_STATE, "gt_optimizer_create_for: none of the module's %d parameters requires a gradient", total);
    if (status == GT_OK) status = gt_optimizer_create(options, list, count, optimizer);
    gt__free(list);
    return status;
}

/* --- stepping ------------------------------------------------------------------------------------------------------------------------ */
gt_status gt__optimizer_context(const gt_optimizer *optimizer, const char *who, gt_context **ctx) {
    GT_TRY(gt__tensor_check(optimizer->slots[0].parameter, who));
    *ctx = optimizer->slots[0].parameter->ctx;
    return GT_OK;
}

gt_status gt__optimizer_check_free(const gt_optimizer *optimizer, const char *who) {
    GT_REQUIRE(!optimizer->in_window, GT_BAD_STATE,
               "%s: a window of the optimizer is open; its last micro-batch or gt_window_flush updates", who);
    return GT_OK;
}

void gt__optimizer_list_grads(const gt_optimizer *optimizer, int32_t first_index, gt__grad_list_item *list, int32_t *count,
                              int32_t *found) {
    *count = *found = 0;
    for (int32_t i = 0; i < optimizer->count; ++i) {
        const gt_tensor *grad = gt__valid_grad(optimizer->slots[i].parameter);
        if (grad == NULL) continue;
        ++*found;
        if (grad->meta.numel == 0) continue;
        list[(*count)++] =
            (gt__grad_list_item){.grad = grad->data, .count = grad->meta.numel, .dtype = grad->meta.dtype, .index = first_index + i};
    }
}

void gt__optimizer_mark_grads(gt_optimizer *optimizer) {
    for (int32_t i = 0; i < optimizer->count; ++i) {
        gt_tensor *grad = gt__valid_grad(optimizer->slots[i].parameter);
        if (grad) grad->storage->version++;
    }
}

/* The master follows the parameter when something else than a step has written it: initialisation, loading, averaging. */
static gt_status refresh_master(gt__slot_state *slot) {
    gt_tensor *p = slot->parameter;
    if (slot->master == NULL || slot->master_version == p->storage->version || p->meta.numel == 0) return GT_OK;
    GT_TRY(gt__op_into(GT__OP_COPY, &p, 1, NULL, slot->master));
    slot->master_version = p->storage->version;
    return GT_OK;
}

gt_status gt__optimizer_refresh_masters(gt_optimizer *optimizer) {
    for (int32_t i = 0; i < optimizer->count; ++i) GT_TRY(refresh_master(&optimizer->slots[i]));
    return GT_OK;
}

static int32_t *step_cell(const gt_optimizer *optimizer, int32_t i) {
    return (int32_t *)(void *)((char *)optimizer->cells->data + gt__optimizer_step_at(optimizer, i));
}

gt_status gt__optimizer_prepare(gt_optimizer *optimizer, const char *who, int32_t *count, int32_t *found) {
    *count = *found = 0;
    for (int32_t i = 0; i < optimizer->count; ++i) {
        gt__slot_state *slot = &optimizer->slots[i];
        gt_tensor *p = slot->parameter, *grad = gt__valid_grad(p);
        if (grad == NULL) continue;
        char text[300];
        GT_REQUIRE(p->meta.dtype == slot->dtype, GT_BAD_STATE,
                   "%s: %s was %s when the optimizer was created; create the optimizer after changing dtypes", who,
                   gt__tensor_text(p, text, sizeof text), gt_dtype_name(slot->dtype));
        ++*found;
        if (p->meta.numel == 0) continue;
        GT_REQUIRE(gt__meta_same_layout(&p->meta, &grad->meta), GT_INTERNAL, "%s: the gradient of %s lies in memory in another order", who,
                   gt__tensor_text(p, text, sizeof text));
        GT_TRY(refresh_master(slot));
        gt_tensor *half = gt__half_copy_of(p);
        optimizer->updates[(*count)++] = (gt__update){.param = p->data,
                                                      .master = slot->master ? slot->master->data : NULL,
                                                      .grad = grad->data,
                                                      .state0 = slot->state0 ? slot->state0->data : NULL,
                                                      .state1 = slot->state1 ? slot->state1->data : NULL,
                                                      .count = p->meta.numel,
                                                      .param_dtype = p->meta.dtype,
                                                      .grad_dtype = grad->meta.dtype,
                                                      .step = step_cell(optimizer, i),
                                                      .half = half ? half->data : NULL,
                                                      .half_dtype = half ? half->meta.dtype : GT_DTYPE_F32};
    }
    return GT_OK;
}

static gt__update_rule rule_of(const gt_optimizer *optimizer) {
    const gt_optimizer_options *o = &optimizer->options;
    return (gt__update_rule){.kind = o->kind,
                             .nesterov = o->nesterov != 0,
                             .learning_rate = o->learning_rate,
                             .momentum = o->momentum,
                             .dampening = o->dampening,
                             .beta1 = o->beta1,
                             .beta2 = o->beta2,
                             .epsilon = o->epsilon,
                             .weight_decay = o->weight_decay,
                             .rate_cell = optimizer->rate_cell};
}

/* Whether the device skips the step or not. `half`: the half copy, if there is one, was written too. */
static void slot_updated(gt__slot_state *slot, bool half) {
    gt_tensor *p = slot->parameter;
    if (slot->state0) slot->state0->storage->version++; /* a program may hold it: gt_optimizer_state_get */
    if (slot->state1) slot->state1->storage->version++;
    if (slot->master) slot->master->storage->version++;
    slot->master_version = ++p->storage->version;
    if (half && p->meta.numel > 0) gt__half_copy_written(p);
}

gt_status gt__optimizer_launch(gt_optimizer *optimizer, int32_t count, const gt__step_control *control) {
    gt_context *ctx = optimizer->cells->ctx;
    gt__update_rule rule = rule_of(optimizer);
    if (count > 0) {
        int32_t previous = gt__enter(ctx);
        gt_status status = ctx->backend->update(ctx->device, &rule, optimizer->updates, count, control);
        gt__leave(ctx, previous);
        GT_TRY(status);
    }
    /* Whether the device skips the step or not: it counts in the other cell from now on. */
    for (int32_t i = 0; i < optimizer->count; ++i) {
        gt__slot_state *slot = &optimizer->slots[i];
        if (gt__valid_grad(slot->parameter) == NULL) continue;
        if (slot->parameter->meta.numel > 0) slot->step_cell ^= 1;
        slot_updated(slot, true);
    }
    return GT_OK;
}

void gt__optimizer_updated(gt_optimizer *optimizer, const uint8_t *updated) {
    for (int32_t i = 0; i < optimizer->count; ++i)
        if (updated[i]) slot_updated(&optimizer->slots[i], updated[i] == 2);
}

gt_status gt_optimizer_step(gt_optimizer *optimizer) {
    GT_REQUIRE_HANDLE(optimizer);
    gt_context *ctx;
    GT_TRY(gt__optimizer_context(optimizer, "gt_optimizer_step", &ctx));
    GT_TRY(gt__optimizer_check_free(optimizer, "gt_optimizer_step"));
    int32_t count = 0, with_grad = 0;
    gt__phase phase = gt__allocator_phase(ctx->allocator);
    gt__allocator_set_phase(ctx->allocator, GT__PHASE_UPDATE);
    gt_status status = gt__optimizer_prepare(optimizer, "gt_optimizer_step", &count, &with_grad);
    if (status == GT_OK && with_grad == 0)
        status =
            GT_RAISE(GT_NO_GRADS, "gt_optimizer_step: none of the %d parameters has a gradient; call gt_backward before", optimizer->count);
    if (status == GT_OK) status = gt__optimizer_launch(optimizer, count, NULL);
    gt__allocator_set_phase(ctx->allocator, phase);
    GT_TRY(status);
    gt__step_done(ctx);
    return GT_OK;
}

gt_status gt_optimizer_zero_grad(gt_optimizer *optimizer) {
    GT_REQUIRE_HANDLE(optimizer);
    for (int32_t i = 0; i < optimizer->count; ++i) GT_TRY(gt_tensor_zero_grad(optimizer->slots[i].parameter));
    return GT_OK;
}

gt_status gt_optimizer_set_learning_rate(gt_optimizer *optimizer, double learning_rate) {
    GT_REQUIRE_HANDLE(optimizer);
    GT_TRY(check_rate(learning_rate));
    optimizer->options.learning_rate = learning_rate;
    return GT_OK;
}

double gt_optimizer_learning_rate(const gt_optimizer *optimizer) { return optimizer ? optimizer->options.learning_rate : 0; }
int32_t gt_optimizer_parameter_count(const gt_optimizer *optimizer) { return optimizer ? optimizer->count : 0; }
