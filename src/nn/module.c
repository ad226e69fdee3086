/* Making, running and destroying one module. */
#include "nn/module.h"

gt_module *gt__module_new(gt_context *ctx, const gt__module_kind *kind) {
    if (ctx == NULL) {
        (void)gt__error_null(kind->name, "ctx", __FILE__, __LINE__);
        return NULL;
    }
    gt_module *m = gt__calloc(1, sizeof *m + kind->state_size);
    if (m == NULL) return NULL;
    m->kind = kind;
    m->kind_name = kind->name;
    m->ctx = ctx;
    m->n_inputs = kind->n_inputs;
    m->training = true;
    m->tag = "";
    m->name = gt__strdup("");
    m->path = gt__strdup("");
    gt__meta nothing;
    const int64_t shape[1] = {0};
    if (m->name && m->path && gt__meta_make(&nothing, GT_DTYPE_U8, 1, shape, kind->name) == GT_OK)
        m->anchor = gt__tensor_new_for(ctx, &nothing, GT_MEMORY_PARAMETER, "module");
    if (m->anchor) return m;
    gt__free(m->name);
    gt__free(m->path);
    gt__free(m);
    return NULL;
}

static void module_free(gt_module *m) {
    for (int32_t i = 0; i < m->n_children; ++i) module_free(m->children[i]);
    if (m->kind->destroy) m->kind->destroy(m);
    for (int32_t i = 0; i < m->n_slots; ++i) {
        gt_tensor_release(m->slots[i].tensor);
        gt__free(m->slots[i].name);
    }
    if (m->anchor->storage) m->anchor->storage->version++; /* segments that would run it again see that it is gone */
    m->parent = NULL;                                      /* the tables above are their owners' business */
    gt__module_table_drop(m);
    gt__free(m->slots);
    gt__free(m->children);
    gt_tensor_release(m->anchor);
    gt__free(m->name);
    gt__free(m->path);
    gt__free(m->failed_message);
    gt__free(m);
}

void gt_module_destroy(gt_module *module) {
    if (module == NULL || module->parent != NULL) return;
    module_free(module);
}

gt_module *gt__module_finish(gt_module *m, gt_status status) {
    if (status == GT_OK) return m;
    gt_module_destroy(m);
    return NULL;
}

gt_status gt__module_slot_add(gt_module *m, const char *name, uint32_t flags, gt_tensor *tensor) {
    gt__slot *grown = gt__realloc(m->slots, ((size_t)m->n_slots + 1) * sizeof *grown);
    if (grown) m->slots = grown;
    char *copy = grown ? gt__strdup(name) : NULL;
    if (copy == NULL) {
        gt_tensor_release(tensor);
        return GT_OUT_OF_HOST_MEMORY;
    }
    m->slots[m->n_slots] = (gt__slot){
        .name = copy, .tensor = tensor, .is_buffer = (flags & GT__SLOT_BUFFER) != 0, .keep_f32 = (flags & GT__SLOT_KEEP_F32) != 0};
    m->n_slots++;
    gt_status status = gt__module_rename(m);
    if (status != GT_OK) {
        m->n_slots--;
        gt_tensor_release(tensor);
        gt__free(copy);
        return status;
    }
    gt__module_table_drop(m);
    return GT_OK;
}

gt_status gt__module_tensor_new(gt_module *m, const char *name, uint32_t flags, gt_dtype dtype, int32_t ndim, const int64_t *shape) {
    gt__meta meta;
    GT_TRY(gt__meta_make(&meta, dtype, ndim, shape, m->kind_name));
    if (flags & GT__SLOT_CHANNELS_LAST) gt__meta_set_channels_last(&meta);
    gt_tensor *tensor = gt__tensor_new_for(m->ctx, &meta, GT_MEMORY_PARAMETER, "parameter");
    if (tensor == NULL) return gt_last_error()->status;
    if (!(flags & GT__SLOT_BUFFER)) tensor->requires_grad = 1;
    return gt__module_slot_add(m, name, flags, tensor);
}

gt_status gt__module_failure(const gt_module *m) {
    GT_FAIL(m->failed, "%s \"%s\" lacks a child that could not be made: %s", m->kind_name, m->path,
            m->failed_message ? m->failed_message : gt_status_text(m->failed));
}

static int32_t layers_of(const gt_module *m) {
    if (m->n_children == 0) return 1;
    int32_t layers = 0;
    for (int32_t i = 0; i < m->n_children; ++i) layers += layers_of(m->children[i]);
    return layers;
}

static gt_status run_module(const gt__segment_code *code, gt_tensor *const *in, int32_t n_in, gt_tensor **out) {
    gt_module *m = code->user;
    out[0] = m->kind->forward(m, in, n_in);
    return out[0] ? GT_OK : gt_last_error()->status;
}

static gt_tensor *forward_segment(gt_module *m, gt_tensor *const *in, int32_t n) {
    const gt__segment_code code = {.run = run_module, .user = m, .anchor = m->anchor};
    gt_tensor *y = NULL;
    return gt__checkpoint(m->ctx, &code, in, n, &y, 1) == GT_OK ? y : NULL;
}

gt_status gt_module_set_checkpointing(gt_module *module, int32_t on) {
    GT_REQUIRE_HANDLE(module);
    module->checkpointing = on != 0;
    return GT_OK;
}

int32_t gt_module_checkpointing(const gt_module *module) { return module && module->checkpointing ? 1 : 0; }

gt_tensor *gt__module_call(gt_module *m, gt_tensor *const *in, int32_t n) {
    if (GT__UNLIKELY(m->failed != GT_OK)) {
        (void)gt__module_failure(m);
        return NULL;
    }
    gt_context *ctx = m->ctx;
    const char *outer = ctx->module_path;
    if (m->tag[0]) ctx->module_path = m->tag;
    gt__phase phase = gt__allocator_phase(ctx->allocator);
    if (ctx->module_depth++ == 0) {
        ctx->layers = layers_of(m);
        ctx->layers_run = 0;
        if (phase == GT__PHASE_OTHER) gt__allocator_set_phase(ctx->allocator, GT__PHASE_FORWARD);
    }
    gt_tensor *y = NULL;
    if (gt__module_watch(m) == GT_OK) y = m->checkpointing ? forward_segment(m, in, n) : m->kind->forward(m, in, n);
    if (y && m->n_children == 0) ctx->layers_run++;
    if (--ctx->module_depth == 0) gt__allocator_set_phase(ctx->allocator, phase);
    ctx->module_path = outer;
    return y;
}

gt_tensor *gt_module_forward_many(gt_module *module, gt_tensor *const *inputs, int32_t count) {
    if (module == NULL || inputs == NULL) {
        (void)gt__error_null("gt_module_forward", module ? "inputs" : "module", __FILE__, __LINE__);
        return NULL;
    }
    GT_REQUIRE_NULL(count >= 1 && (module->n_inputs == 0 || count == module->n_inputs), GT_BAD_ARGUMENT,
                    "%s \"%s\" takes %d inputs, it was given %d", module->kind_name, module->path, GT__MAX(module->n_inputs, 1), count);
    for (int32_t i = 0; i < count; ++i) {
        if (inputs[i] == NULL) {
            (void)gt__error_null("gt_module_forward", "x", __FILE__, __LINE__);
            return NULL;
        }
        /* A tensor of a destroyed context has none, so that the module's context is alive beyond this point. */
        GT_REQUIRE_NULL(inputs[i]->ctx == module->ctx, GT_BAD_DEVICE, "%s \"%s\": input %d belongs to another context than the module",
                        module->kind_name, module->path, i);
    }
    return gt__module_call(module, inputs, count);
}

gt_tensor *gt_module_forward(gt_module *module, gt_tensor *x) { return gt_module_forward_many(module, &x, 1); }
