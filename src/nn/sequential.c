/* Children one after the other. */
#include "nn/module.h"

#include <stdio.h>

/* A layer and the activation behind it that run as one op, or NULL. */
typedef gt_tensor *(*fused_fn)(gt_module *m, gt_tensor *x, gt_activation activation);
static fused_fn fused_with_relu(const gt_module *layer, const gt_module *next) {
    if (next == NULL || next->kind != &gt__relu_kind) return NULL;
    if (layer->kind == &gt__linear_kind) return gt__linear_run;
    if (layer->kind == &gt__conv2d_kind) return gt__conv2d_run;
    if (layer->kind == &gt__batch_norm_kind) return gt__batch_norm_run;
    return NULL;
}

static gt_tensor *run_fused(fused_fn run, gt_module *layer, gt_tensor *x) {
    const char *outer = layer->ctx->module_path;
    if (layer->tag[0]) layer->ctx->module_path = layer->tag;
    gt_tensor *y = gt__module_watch(layer) == GT_OK ? run(layer, x, GT_ACTIVATION_RELU) : NULL;
    if (y) layer->ctx->layers_run += 2;
    layer->ctx->module_path = outer;
    return y;
}

static gt_status run_pair(const gt__segment_code *code, gt_tensor *const *in, int32_t n_in, gt_tensor **out) {
    (void)n_in;
    gt_module *m = code->user, *layer = m->children[code->first];
    out[0] = run_fused(fused_with_relu(layer, m->children[code->first + 1]), layer, in[0]);
    return out[0] ? GT_OK : gt_last_error()->status;
}

/* Children i and i + 1 as one op, and as one segment if either is to be one: whether it is changes no number. */
static gt_tensor *run_fused_children(fused_fn run, gt_module *m, int32_t i, gt_tensor *x) {
    if (!m->children[i]->checkpointing && !m->children[i + 1]->checkpointing) return run_fused(run, m->children[i], x);
    const gt__segment_code code = {.run = run_pair, .user = m, .first = i, .last = i + 2, .anchor = m->anchor};
    gt_tensor *y = NULL;
    return gt__checkpoint(m->ctx, &code, &x, 1, &y, 1) == GT_OK ? y : NULL;
}

typedef struct sequential_state {
    int32_t segments; /* asked for; 0: none */
} sequential_state;

/* The children from `first` up to `last`. Each layer runs in a scope of its own, and its input is let go as soon as it has run: what backward needs is kept
 * by the record. */
static gt_tensor *run_children(gt_module *m, gt_tensor *input, int32_t first, int32_t last) {
    gt_context *ctx = m->ctx;
    gt_tensor *x = gt_tensor_retain(input);
    for (int32_t i = first; i < last && x; ++i) {
        gt_module *layer = m->children[i];
        gt_tensor *y = NULL;
        fused_fn run = fused_with_relu(layer, i + 1 < last ? m->children[i + 1] : NULL);
        if (gt__scope_begin(ctx) == GT_OK) {
            if (run) {
                y = run_fused_children(run, m, i, x);
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

static gt_status run_segment(const gt__segment_code *code, gt_tensor *const *in, int32_t n_in, gt_tensor **out) {
    (void)n_in;
    out[0] = run_children(code->user, in[0], code->first, code->last);
    return out[0] ? GT_OK : gt_last_error()->status;
}

/* Segments of equal numbers of children, but that a layer and the activation that runs with it stay together. */
static gt_tensor *run_segments(gt_module *m, gt_tensor *input, int32_t segments, int32_t n) {
    gt_context *ctx = m->ctx;
    gt_tensor *x = gt_tensor_retain(input);
    int32_t first = 0;
    for (int32_t i = 1; i <= segments && x; ++i) {
        int32_t last = (int32_t)((int64_t)i * n / segments);
        if (last > 0 && last < n && fused_with_relu(m->children[last - 1], m->children[last])) ++last;
        if (last <= first) continue;
        const gt__segment_code code = {.run = run_segment, .user = m, .first = first, .last = last, .anchor = m->anchor};
        gt_tensor *y = NULL;
        if (gt__scope_begin(ctx) == GT_OK) {
            if (gt__checkpoint(ctx, &code, &x, 1, &y, 1) != GT_OK) y = NULL;
            gt_tensor_retain(y);
            (void)gt_scope_end(ctx);
        }
        gt_tensor_release(x);
        x = y;
        first = last;
    }
    return gt__scope_add(x);
}

/* The first `n` children. */
static gt_tensor *run_first(gt_module *m, gt_tensor *x, int32_t n) {
    const sequential_state *s = gt__module_state(m);
    int32_t segments = GT__MIN(s->segments, n);
    return segments > 0 ? run_segments(m, x, segments, n) : run_children(m, x, 0, n);
}

static gt_tensor *sequential_forward(gt_module *m, gt_tensor *const *in, int32_t n) {
    (void)n;
    return run_first(m, in[0], m->n_children);
}

static const gt__module_kind sequential_kind = {
    .name = "Sequential", .n_inputs = 1, .state_size = sizeof(sequential_state), .forward = sequential_forward};

bool gt__module_is_sequential(const gt_module *m) { return m->kind == &sequential_kind; }

gt_module *gt__sequential_last(const gt_module *m) {
    return m->kind == &sequential_kind && m->failed == GT_OK && m->n_children > 0 ? m->children[m->n_children - 1] : NULL;
}

static gt_status run_before_last(const gt__segment_code *code, gt_tensor *const *in, int32_t n_in, gt_tensor **out) {
    (void)n_in;
    out[0] = run_first(code->user, in[0], code->last);
    return out[0] ? GT_OK : gt_last_error()->status;
}

gt_tensor *gt__sequential_run_before_last(gt_module *m, gt_tensor *x) {
    const char *outer = m->ctx->module_path;
    if (m->tag[0]) m->ctx->module_path = m->tag;
    int32_t n = m->n_children - 1;
    gt_tensor *y = NULL;
    if (gt__module_watch(m) == GT_OK) {
        const gt__segment_code code = {.run = run_before_last, .user = m, .last = n, .anchor = m->anchor};
        if (!m->checkpointing || n == 0)
            y = run_first(m, x, n);
        else if (gt__checkpoint(m->ctx, &code, &x, 1, &y, 1) != GT_OK)
            y = NULL;
    }
    m->ctx->module_path = outer;
    return y;
}

gt_status gt_nn_sequential_set_segments(gt_module *sequential, int32_t segments) {
    GT_REQUIRE_HANDLE(sequential);
    GT_REQUIRE(sequential->kind == &sequential_kind, GT_BAD_STATE, "%s \"%s\" is not a sequential", sequential->kind_name,
               sequential->path);
    GT_REQUIRE(segments >= 0 && segments <= sequential->n_children, GT_BAD_ARGUMENT,
               "Sequential \"%s\" has %d children; they cannot be %d segments", sequential->path, sequential->n_children, segments);
    ((sequential_state *)gt__module_state(sequential))->segments = segments;
    return GT_OK;
}

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
