/* Modules whose forward is a callback. */
#include "nn/module.h"

typedef struct custom_state {
    gt_nn_custom_options options;
    char *kind;
} custom_state;

gt_status gt_nn_custom_options_init(gt_nn_custom_options *options, size_t size) {
    gt_nn_custom_options defaults = {.struct_size = sizeof defaults, .n_inputs = 1, .kind = "Custom"};
    return gt__options_write(options, size, &defaults, sizeof defaults, "gt_nn_custom_options");
}

/* Scopes and regions that the callback left open are closed, so that the caller finds its own as they were. */
static gt_tensor *custom_forward(gt_module *m, gt_tensor *const *in, int32_t n) {
    const custom_state *s = gt__module_state(m);
    gt_context *ctx = m->ctx;
    gt__open_regions open;
    GT_TRY_NULL(gt__regions_enter(ctx, &open));
    gt_tensor *y = s->options.forward(s->options.user, m, in, n);
    bool balanced = gt__regions_hold(ctx, &open);
    if (balanced) gt_tensor_retain(y);
    gt__regions_leave(ctx, &open);
    if (y == NULL) {
        if (gt_last_error()->status == GT_OK)
            (void)GT_RAISE(GT_CALLBACK, "%s \"%s\": its forward callback returned NULL without an error", m->kind_name, m->path);
        return NULL;
    }
    if (!balanced) {
        (void)GT_RAISE(GT_CALLBACK,
                       "%s \"%s\": its forward callback ended a scope or a no-grad, autocast or offload region that it had not begun",
                       m->kind_name, m->path);
        return NULL;
    }
    if (y->ctx != ctx) {
        (void)GT_RAISE(GT_CALLBACK, "%s \"%s\": its forward callback returned a tensor of another context", m->kind_name, m->path);
        gt_tensor_release(y);
        return NULL;
    }
    return gt__scope_add(y);
}

static void custom_destroy(gt_module *m) {
    custom_state *s = gt__module_state(m);
    if (s->options.destroy) s->options.destroy(s->options.user);
    gt__free(s->kind);
}

const gt__module_kind gt__custom_kind = {
    .name = "Custom", .n_inputs = 1, .state_size = sizeof(custom_state), .forward = custom_forward, .destroy = custom_destroy};

gt_module *gt_nn_custom(gt_context *ctx, const gt_nn_custom_options *options) {
    gt_nn_custom_options o;
    GT_TRY_NULL(gt_nn_custom_options_init(&o, sizeof o));
    if (options) GT_TRY_NULL(gt__options_read(&o, sizeof o, options, "gt_nn_custom_options"));
    GT_REQUIRE_NULL(o.forward != NULL, GT_BAD_ARGUMENT, "gt_nn_custom: the options have no forward callback");
    GT_REQUIRE_NULL(o.n_inputs >= 0, GT_BAD_ARGUMENT, "gt_nn_custom: n_inputs is %d", o.n_inputs);
    char *kind = gt__strdup(o.kind ? o.kind : "Custom");
    if (kind == NULL) return NULL;
    gt_module *m = gt__module_new(ctx, &gt__custom_kind);
    if (m == NULL) {
        gt__free(kind);
        return NULL;
    }
    custom_state *s = gt__module_state(m);
    s->options = o;
    s->kind = kind;
    m->kind_name = kind;
    m->n_inputs = o.n_inputs;
    return m;
}

static gt_status check_tensor(const gt_module *m, const char *name, const gt_tensor *t) {
    GT_REQUIRE(m->kind == &gt__custom_kind, GT_BAD_STATE, "%s \"%s\" takes no tensors of the caller's; only modules from gt_nn_custom do",
               m->kind_name, m->path);
    GT_TRY(gt__module_check_name(m, name));
    GT_REQUIRE(t->ctx == m->ctx, GT_BAD_DEVICE, "%s \"%s\": tensor \"%s\" belongs to another context than the module", m->kind_name,
               m->path, name);
    GT_REQUIRE(t->node == NULL && t->view_base == NULL, GT_BAD_STATE,
               "%s \"%s\": tensor \"%s\" is the result of a recorded op or a view of one; register a leaf (gt_tensor_detach makes one)",
               m->kind_name, m->path, name);
    GT_REQUIRE(gt__meta_is_dense(&t->meta), GT_BAD_SHAPE, "%s \"%s\": tensor \"%s\" is a view with holes; register a copy (gt_contiguous)",
               m->kind_name, m->path, name);
    return GT_OK;
}

gt_status gt_module_add_parameter(gt_module *module, const char *name, gt_tensor *tensor, int32_t keep_f32) {
    GT_REQUIRE_HANDLE(module);
    GT_REQUIRE_HANDLE(tensor);
    GT_TRY(check_tensor(module, name, tensor));
    GT_REQUIRE(gt__dtype_is_float(tensor->meta.dtype), GT_BAD_DTYPE, "%s \"%s\": parameter \"%s\" is %s; it must be floating-point",
               module->kind_name, module->path, name, gt_dtype_name(tensor->meta.dtype));
    GT_TRY(gt__module_slot_add(module, name, keep_f32 ? GT__SLOT_KEEP_F32 : 0, gt_tensor_retain(tensor)));
    tensor->requires_grad = 1;
    gt__tensor_set_category(tensor, GT_MEMORY_PARAMETER);
    return GT_OK;
}

gt_status gt_module_add_buffer(gt_module *module, const char *name, gt_tensor *tensor, int32_t keep_f32) {
    GT_REQUIRE_HANDLE(module);
    GT_REQUIRE_HANDLE(tensor);
    GT_TRY(check_tensor(module, name, tensor));
    GT_REQUIRE(!tensor->requires_grad, GT_BAD_STATE, "%s \"%s\": buffer \"%s\" requires a gradient; register it as a parameter",
               module->kind_name, module->path, name);
    GT_TRY(gt__module_slot_add(module, name, GT__SLOT_BUFFER | (keep_f32 ? GT__SLOT_KEEP_F32 : 0), gt_tensor_retain(tensor)));
    gt__tensor_set_category(tensor, GT_MEMORY_PARAMETER);
    return GT_OK;
}
