/* Children one after the other. */
#include "nn/module.h"

#include <stdio.h>

/* A layer and the activation behind it that run as one op, or NULL. */
typedef gt_tensor *(*fused_fn)(gt_module *m, gt_tensor *x, gt_activation activation);
static fused_fn fused_with_relu(const gt_module *layer, const gt_module *next) {
    if (next == NULL || next->kind != &gt__relu_kind) return NULL;
    if (layer->kind == &gt__linear_kind) return gt__linear_run;
    if (layer->kind == &gt__conv2d_kind) return gt__conv2d_run;
    return NULL;
}

static gt_tensor *run_fused(fused_fn run, gt_module *layer, gt_tensor *x) {
    const char *outer = layer->ctx->module_path;
    if (layer->tag[0]) layer->ctx->module_path = layer->tag;
    gt_tensor *y = run(layer, x, GT_ACTIVATION_RELU);
    layer->ctx->module_path = outer;
    return y;
}

/* Each layer runs in a scope of its own, and its input is let go as soon as it has run: what backward needs is kept by the record. */
static gt_tensor *sequential_forward(gt_module *m, gt_tensor *const *in, int32_t n) {
    (void)n;
    gt_context *ctx = m->ctx;
    gt_tensor *x = gt_tensor_retain(in[0]);
    for (int32_t i = 0; i < m->n_children && x; ++i) {
        gt_module *layer = m->children[i];
        gt_tensor *y = NULL;
        fused_fn run = fused_with_relu(layer, i + 1 < m->n_children ? m->children[i + 1] : NULL);
        if (gt_scope_begin(ctx) == GT_OK) {
            if (run) {
                y = run_fused(run, layer, x);
                ++i;
            } else if (layer->n_inputs > 1) {
                (void)GT_RAISE(GT_BAD_ARGUMENT, "%s \"%s\" takes %d inputs; a sequential gives it 1", layer->kind_name, layer->path,
                               layer->n_inputs);
            } else {
                y = gt__module_call(layer, &x, 1);
            }
            gt_tensor_retain(y);
            (void)gt_scope_end(ctx);
        }
        gt_tensor_release(x);
        x = y;
    }
    return gt__scope_add(x);
}

static const gt__module_kind sequential_kind = {.name = "Sequential", .n_inputs = 1, .forward = sequential_forward};

gt_module *gt_nn_sequential(gt_context *ctx) { return gt__module_new(ctx, &sequential_kind); }

static gt_status add(gt_module *sequential, const char *name, gt_module *child) {
    if (sequential && sequential->failed != GT_OK) { /* the first failure is the one that counts */
        gt_module_destroy(child);
        return sequential->failed;
    }
    return gt__module_attach(sequential, name, child);
}

/* Not a sequential, or a bad name: the child is destroyed as after any failure. */
static gt_status refuse(gt_module *child, gt_status status) {
    gt_module_destroy(child);
    return status;
}

gt_status gt_nn_sequential_add(gt_module *sequential, gt_module *child) {
    if (sequential && sequential->kind != &sequential_kind)
        return refuse(child, GT_RAISE(GT_BAD_STATE, "%s \"%s\" is not a sequential", sequential->kind_name, sequential->path));
    char name[16];
    (void)snprintf(name, sizeof name, "%d", sequential ? sequential->n_children : 0);
    return add(sequential, name, child);
}

gt_status gt_nn_sequential_add_named(gt_module *sequential, const char *name, gt_module *child) {
    if (sequential && sequential->kind != &sequential_kind)
        return refuse(child, GT_RAISE(GT_BAD_STATE, "%s \"%s\" is not a sequential", sequential->kind_name, sequential->path));
    if (sequential && child && sequential->failed == GT_OK) {
        gt_status status = gt__module_check_name(sequential, name);
        if (status != GT_OK) return gt__module_mark_failed(sequential, refuse(child, status));
    }
    return add(sequential, name, child);
}

gt_module *gt_nn_sequential_from(gt_context *ctx, gt_module *const *children, int32_t count) {
    gt_module *m = NULL;
    gt_status status = GT_OK;
    if (count < 0 || (count > 0 && children == NULL)) {
        (void)GT_RAISE(GT_BAD_ARGUMENT, "gt_nn_sequential_from: %d children%s", count, children ? "" : " at NULL");
        return NULL;
    }
    for (int32_t i = 0; i < count && status == GT_OK; ++i)
        if (children[i] == NULL) status = gt__error_null("gt_nn_sequential_from", "a child", __FILE__, __LINE__);
    if (status == GT_OK) {
        m = gt_nn_sequential(ctx);
        if (m == NULL) status = gt_last_error()->status;
    }
    for (int32_t i = 0; i < count; ++i) {
        if (status == GT_OK) {
            status = gt_nn_sequential_add(m, children[i]);
        } else {
            bool twice = false; /* a child that is listed again was destroyed already, or belongs to m */
            for (int32_t k = 0; k < i; ++k) twice |= children[k] == children[i];
            if (!twice) gt_module_destroy(children[i]);
        }
    }
    return m ? gt__module_finish(m, status) : NULL;
}
