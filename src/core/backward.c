/* Backward: walks the records reachable from the losses, newest first, and adds into the leaves.
 *
 * A node waits in a heap with the gradients that have arrived for its outputs; since every consumer of its outputs is newer, they have
 * all arrived when it is the newest one left. Gradients that meet are summed in f32 (A4). A gradient that nobody else holds is taken over, not
 * copied. On failure nothing stays pending, and the leaves that were reached have no gradient. */
#include "core/node.h"

typedef struct engine {
    gt_context *ctx;
    gt__node **heap;
    int32_t n_heap, cap_heap;
    gt_tensor **leaves; /* reached so far, counted */
    int32_t n_leaves, cap_leaves;
    bool retain;
} engine;

static gt_status heap_push(engine *e, gt__node *node) {
    if (node->queued) return GT_OK;
    if (e->n_heap == e->cap_heap) {
        int32_t capacity = GT__MAX(e->cap_heap * 2, 64);
        gt__node **grown = gt__realloc(e->heap, (size_t)capacity * sizeof *grown);
        if (grown == NULL) return GT_OUT_OF_HOST_MEMORY;
        e->heap = grown;
        e->cap_heap = capacity;
    }
    int32_t at = e->n_heap++;
    while (at > 0 && e->heap[(at - 1) / 2]->sequence < node->sequence) {
        e->heap[at] = e->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    e->heap[at] = node;
    node->queued = true;
    gt__node_retain(node);
    return GT_OK;
}

/* The newest node; the reference goes to the caller. */
static gt__node *heap_pop(engine *e) {
    gt__node *top = e->heap[0], *last = e->heap[--e->n_heap];
    int32_t at = 0;
    for (;;) {
        int32_t child = 2 * at + 1;
        if (child >= e->n_heap) break;
        if (child + 1 < e->n_heap && e->heap[child + 1]->sequence > e->heap[child]->sequence) ++child;
        if (e->heap[child]->sequence <= last->sequence) break;
        e->heap[at] = e->heap[child];
        at = child;
    }
    if (e->n_heap > 0) e->heap[at] = last;
    top->queued = false;
    return top;
}

static gt_status note_leaf(engine *e, gt_tensor *leaf) {
    if (e->n_leaves == e->cap_leaves) {
        int32_t capacity = GT__MAX(e->cap_leaves * 2, 64);
        gt_tensor **grown = gt__realloc(e->leaves, (size_t)capacity * sizeof *grown);
        if (grown == NULL) return GT_OUT_OF_HOST_MEMORY;
        e->leaves = grown;
        e->cap_leaves = capacity;
    }
    e->leaves[e->n_leaves++] = gt_tensor_retain(leaf);
    return GT_OK;
}

/* Nobody else can see this memory. */
static bool is_ours(const gt_tensor *t) { return t->references == 1 && t->storage->references == 1 && gt__meta_is_dense(&t->meta); }

/* A fresh dense tensor with `meta`'s layout holding `from` converted to `dtype`; the caller's. */
static gt_status convert(const gt__meta *layout, gt_dtype dtype, gt_tensor *from, gt_tensor **out) {
    gt__meta meta = *layout;
    meta.dtype = dtype;
    if (!gt__meta_is_dense(&meta)) gt__meta_set_row_major(&meta);
    gt_tensor *t = gt__tensor_new_for(from->ctx, &meta, GT_MEMORY_TEMPORARY, "gradient");
    if (t == NULL) return gt_last_error()->status;
    gt_status status = gt__op_into(GT__OP_COPY, &from, 1, NULL, t);
    if (status != GT_OK) {
        gt_tensor_release(t);
        return status;
    }
    *out = t;
    return GT_OK;
}

/* *sum += add, where *sum is a counted handle of accumulate dtype or becomes one. */
static gt_status accumulate(gt_tensor **sum, gt_tensor *add) {
    gt_dtype dtype = gt__dtype_accumulate((*sum)->meta.dtype);
    gt_tensor *wide = NULL;
    gt_status status = GT_OK;
    if ((*sum)->meta.dtype != dtype || !is_ours(*sum)) {
        gt_tensor *own = NULL;
        GT_TRY(convert(&(*sum)->meta, dtype, *sum, &own));
        gt_tensor_release(*sum);
        *sum = own;
    }
    if (add->meta.dtype != dtype) {
        GT_TRY(convert(&(*sum)->meta, dtype, add, &wide));
        add = wide;
    }
    gt_tensor *in[2] = {*sum, add};
    status = gt__op_into(GT__OP_ADD, in, 2, NULL, *sum);
    gt_tensor_release(wide);
    return status;
}

/* Adds `gradient` (counted, taken) to a leaf. */
static gt_status arrive_at_leaf(engine *e, gt_tensor *leaf, gt_tensor *gradient) {
    gt_status status = note_leaf(e, leaf);
    gt_dtype dtype = gt__dtype_accumulate(leaf->meta.dtype);
    if (status == GT_OK && leaf->grad_valid) {
        status = accumulate(&leaf->grad, gradient);
    } else if (status == GT_OK) {
        bool fits = gradient->meta.dtype == dtype && is_ours(gradient) &&
                    (gt__meta_same_layout(&gradient->meta, &leaf->meta) || !gt__meta_is_dense(&leaf->meta));
        gt_tensor *own = NULL;
        if (fits) {
            own = gt_tensor_retain(gradient);
        } else {
            status = convert(&leaf->meta, dtype, gradient, &own);
        }
        if (status == GT_OK) {
            gt_tensor_release(leaf->grad);
            leaf->grad = own;
            leaf->grad_valid = 1;
            gt__tensor_set_category(own, GT_MEMORY_GRADIENT);
        }
    }
    gt_tensor_release(gradient);
    return status;
}

static gt_status arrive_at_node(engine *e, gt__node *node, int32_t output, gt_tensor *gradient) {
    gt_status status = GT_OK;
    if (node->pending[output] == NULL) {
        node->pending[output] = gradient;
        return heap_push(e, node);
    }
    status = accumulate(&node->pending[output], gradient);
    gt_tensor_release(gradient);
    return status;
}

static gt_status unpack(const gt__node *node, const gt__saved *saved, const char *what, int k, gt_tensor **out) {
    *out = saved->tensor;
    if (saved->tensor == NULL || saved->tensor->storage->version == saved->version) return GT_OK;
    char text[2 * GT__SHAPE_TEXT];
    GT_FAIL_HINT(GT_SAVED_MODIFIED, "change it after the backward, or work on a copy",
                 "%s%s%s%s: %s %d, %s, was changed in place (version %u, saved at %u) and its "
                 "gradient can no longer be computed",
                 gt__op_table[node->op].name, node->module_path ? " \"" : "", node->module_path ? node->module_path : "",
                 node->module_path ? "\"" : "", what, k, gt__tensor_text(saved->tensor, text, sizeof text),
                 (unsigned)saved->tensor->storage->version, (unsigned)saved->version);
}

static gt_status check_result(const gt__node *node, int32_t k, const gt_tensor *dx) {
    const gt__meta *want = &node->in_meta[k];
    char a[GT__SHAPE_TEXT], b[GT__SHAPE_TEXT];
    GT_REQUIRE(gt__meta_same_shape(&dx->meta, want), GT_INTERNAL, "the gradient of %s for input %d has shape %s, the input %s",
               gt__op_table[node->op].name, (int)k, gt__meta_text(a, sizeof a, &dx->meta), gt__meta_text(b, sizeof b, want));
    GT_REQUIRE(dx->meta.dtype == want->dtype || dx->meta.dtype == gt__dtype_accumulate(want->dtype), GT_INTERNAL,
               "the gradient of %s for input %d is %s, the input %s", gt__op_table[node->op].name, (int)k, gt_dtype_name(dx->meta.dtype),
               gt_dtype_name(want->dtype));
    return GT_OK;
}

static void let_go(gt_tensor **slot, gt_tensor **view) {
    gt_tensor *tensor = *slot;
    *slot = NULL;
    *view = NULL;
    gt_tensor_release(tensor);
}

void gt__grad_done_dy(gt__grad *grad, int k) { let_go(&grad->node->pending[k], &grad->dy[k]); }

/* If the rule fails after this, the node must not be tried again. */
static void let_go_saved(gt__grad *grad, gt__saved *saved, gt_tensor **view) {
    if (grad->retain) return;
    grad->node->freed = true;
    let_go(&saved->tensor, view);
}

void gt__grad_done_in(gt__grad *grad, int k) { let_go_saved(grad, &grad->node->saved_in[k], &grad->in[k]); }
void gt__grad_done_out(gt__grad *grad, int k) { let_go_saved(grad, &grad->node->saved_out[k], &grad->out[k]); }

/* Runs the gradient rule and counts its results. The rule's temporaries go with its scope. */
static gt_status apply_rule(gt__node *node, bool retain, gt_tensor **dx) {
    gt_context *ctx = node->ctx;
    gt__grad grad = {.ctx = ctx,
                     .attr = &node->attr,
                     .op = node->op,
                     .in_meta = node->in_meta,
                     .needs = node->needs,
                     .n_in = node->n_in,
                     .node = node,
                     .retain = retain,
                     .dx = dx};
    for (int k = 0; k < GT__MAX_SAVED_IN; ++k) GT_TRY(unpack(node, &node->saved_in[k], "input", k, &grad.in[k]));
    for (int k = 0; k < GT__MAX_OUT; ++k) GT_TRY(unpack(node, &node->saved_out[k], "output", k, &grad.out[k]));
    for (int k = 0; k < node->n_out; ++k) {
        gt_tensor *dy = node->pending[k];
        if (dy && dy->meta.dtype != node->out_dtype[k]) { /* a sum kept in f32 */
            GT_TRY(convert(&dy->meta, node->out_dtype[k], dy, &node->pending[k]));
            gt_tensor_release(dy);
        }
        grad.dy[k] = node->pending[k];
    }
    const char *path = ctx->module_path;
    GT_TRY(gt_scope_begin(ctx));
    ctx->no_grad++;
    ctx->module_path = node->module_path;
    gt_status status = gt__op_table[node->op].grad(&grad);
    for (int32_t k = 0; k < node->n_in; ++k) {
        if (status == GT_OK && dx[k] && node->needs[k]) {
            status = check_result(node, k, dx[k]);
            gt_tensor_retain(dx[k]);
        } else {
            dx[k] = NULL;
        }
    }
    ctx->module_path = path;
    ctx->no_grad--;
    (void)gt_scope_end(ctx);
    return status;
}

static gt_status run_node(engine *e, gt__node *node) {
    if (node->freed) {
        GT_FAIL_HINT(GT_BAD_STATE, "use gt_backward_from with retain_graph for all but the last backward",
                     "%s: an earlier backward freed what its gradient needs", gt__op_table[node->op].name);
    }
    gt_tensor *few[16] = {NULL};
    gt_tensor **dx = few;
    if (node->n_in > (int32_t)GT__COUNT(few)) {
        dx = gt__calloc((size_t)node->n_in, sizeof *dx);
        if (dx == NULL) return GT_OUT_OF_HOST_MEMORY;
    }
    gt_status status = apply_rule(node, e->retain, dx);
    gt__node_drop_pending(node);
    for (int32_t k = 0; k < node->n_in; ++k) {
        if (dx[k] == NULL) continue;
        gt__edge *edge = &node->edges[k];
        if (status != GT_OK) {
            gt_tensor_release(dx[k]);
        } else if (edge->node) {
            status = arrive_at_node(e, edge->node, edge->output, dx[k]);
        } else {
            status = arrive_at_leaf(e, edge->leaf, dx[k]);
        }
    }
    if (status == GT_OK && !e->retain) gt__node_strip(node);
    if (dx != few) gt__free(dx);
    return status;
}

static gt_status start(engine *e, gt_tensor *tensor, gt_tensor *gradient) {
    char text[2 * GT__SHAPE_TEXT], other[GT__SHAPE_TEXT];
    GT_REQUIRE(gt__needs_grad(tensor), GT_BAD_STATE, "gt_backward: %s requires no gradient: nothing that it was computed from does",
               gt__tensor_text(tensor, text, sizeof text));
    gt__node *node;
    GT_TRY(gt__tensor_node(tensor, &node));
    if (gradient) {
        GT_REQUIRE(gt__meta_same_shape(&tensor->meta, &gradient->meta) && tensor->meta.dtype == gradient->meta.dtype, GT_BAD_SHAPE,
                   "gt_backward: the gradient %s %s does not fit %s", gt_dtype_name(gradient->meta.dtype),
                   gt__meta_text(other, sizeof other, &gradient->meta), gt__tensor_text(tensor, text, sizeof text));
        gt_tensor_retain(gradient);
    } else {
        GT_REQUIRE(tensor->meta.numel == 1, GT_BAD_SHAPE, "gt_backward: %s has %lld elements; without a gradient for it, it must have one",
                   gt__tensor_text(tensor, text, sizeof text), (long long)tensor->meta.numel);
        gt__meta meta = tensor->meta;
        gt__meta_set_row_major(&meta);
        gradient = gt__tensor_new_for(e->ctx, &meta, GT_MEMORY_TEMPORARY, "gradient");
        if (gradient == NULL) return gt_last_error()->status;
        gt_status status = gt__fill(gradient, 1.0);
        if (status != GT_OK) {
            gt_tensor_release(gradient);
            return status;
        }
    }
    return node ? arrive_at_node(e, node, tensor->output, gradient) : arrive_at_leaf(e, tensor, gradient);
}

gt_status gt_backward_from(gt_tensor *const *tensors, gt_tensor *const *gradients, int32_t count, int32_t retain_graph) {
    GT_REQUIRE(count > 0 && tensors != NULL, GT_BAD_ARGUMENT, "gt_backward: %d tensors", (int)count);
    engine e = {.retain = retain_graph != 0};
    for (int32_t i = 0; i < count; ++i) {
        if (tensors[i] == NULL) return gt__error_null("gt_backward", "loss", __FILE__, __LINE__);
        GT_TRY(gt__tensor_check(tensors[i], "gt_backward"));
        GT_REQUIRE(e.ctx == NULL || e.ctx == tensors[i]->ctx, GT_BAD_DEVICE, "gt_backward: the tensors belong to two contexts");
        e.ctx = tensors[i]->ctx;
    }
    GT_REQUIRE(!e.ctx->in_backward, GT_BAD_STATE, "gt_backward: a backward of this context is running");
    e.ctx->in_backward = true;
    gt_status status = GT_OK;
    for (int32_t i = 0; i < count && status == GT_OK; ++i) status = start(&e, tensors[i], gradients ? gradients[i] : NULL);
    while (status == GT_OK && e.n_heap > 0) {
        gt__node *node = heap_pop(&e);
        status = run_node(&e, node);
        gt__node_drop_pending(node);
        gt__node_release(node);
    }
    while (e.n_heap > 0) { /* failed: nothing stays pending */
        gt__node *node = heap_pop(&e);
        gt__node_drop_pending(node);
        gt__node_release(node);
    }
    for (int32_t i = 0; i < e.n_leaves; ++i) {
        if (status != GT_OK) (void)gt_tensor_zero_grad(e.leaves[i]);
        gt_tensor_release(e.leaves[i]);
    }
    gt__free(e.heap);
    gt__free(e.leaves);
    e.ctx->in_backward = false;
    return status;
}

gt_status gt_backward(gt_tensor *loss) { return gt_backward_from(&loss, NULL, 1, 0); }
