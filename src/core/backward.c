/* Backward: walks the records reachable from the losses, newest first, and adds into the leaves.
 *
 * A node waits in a heap with the gradients that have arrived for its outputs; since every consumer of its outputs is newer, they have
 * all arrived when it is the newest one left. Gradients that meet are summed in f32 (A4). A gradient that nobody else holds is taken over, not
 * copied. On failure nothing stays pending, and the leaves that were reached have no gradient. */
#include "core/checkpoint.h"
#include "core/offload.h"

typedef struct gt__engine {
    gt_context *ctx;
    gt__node **heap;
    int32_t n_heap, cap_heap;
    gt__node *running;  /* not in the heap */
    gt_tensor **leaves; /* reached so far, counted */
    int32_t n_leaves, cap_leaves;
    bool retain;
    uint64_t newest; /* of the graph's nodes: later ones are made by segments that run again, and nobody else will want them */
} engine;

/* Whether the node may be wanted once more. The link of a view to its overwritten base (gt__tensor_node) saves nothing and stays with the view: segments that run again
 * meet it one after the other. */
static bool keeps(const engine *e, const gt__node *node) {
    return (e->retain && node->sequence <= e->newest) || node->op == GT__OP_AS_STRIDED;
}

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

/* The leaf in which an input's gradient ends, if nothing but a cast is between: then the cast's own gradient need not run. */
static gt_tensor *leaf_behind(const gt__edge *edge) {
    const gt__node *from = edge->node;
    return from == NULL ? edge->leaf : from->op == GT__OP_CAST && !from->freed ? from->edges[0].leaf : NULL;
}

gt_status gt__grad_sink(gt__grad *grad, int k, gt__sink *sink) {
    *sink = (gt__sink){0};
    gt_tensor *leaf = leaf_behind(&grad->node->edges[k]);
    if (leaf == NULL || !gt__meta_is_dense(&leaf->meta) || !gt__meta_same_shape(&leaf->meta, &grad->in_meta[k])) return GT_OK;
    GT_TRY(note_leaf(grad->engine, leaf));
    gt_dtype dtype = gt__dtype_accumulate(leaf->meta.dtype);
    if (leaf->grad_valid && !(is_ours(leaf->grad) && leaf->grad->meta.dtype == dtype)) { /* somebody keeps it: it must stay as it is */
        gt_tensor *own = NULL;
        GT_TRY(convert(&leaf->meta, dtype, leaf->grad, &own));
        gt_tensor_release(leaf->grad);
        leaf->grad = own;
    }
    sink->leaf = leaf;
    sink->accumulate = leaf->grad_valid;
    if (sink->accumulate) {
        if (!gt__meta_same_layout(&leaf->grad->meta, &leaf->meta)) return GT_OK;
        sink->into = gt_tensor_retain(leaf->grad);
        return GT_OK;
    }
    gt__meta meta = leaf->meta;
    meta.dtype = dtype;
    sink->into = gt__tensor_new_for(grad->ctx, &meta, GT_MEMORY_GRADIENT, "gradient");
    return sink->into ? GT_OK : gt_last_error()->status;
}

gt_status gt__grad_sink_done(gt__sink *sink, gt_status status) {
    gt_tensor *leaf = sink->leaf, *into = sink->into;
    if (status == GT_OK && !sink->accumulate) {
        gt_tensor_release(leaf->grad);
        leaf->grad = into;
        leaf->grad_valid = 1;
    } else {
        gt_tensor_release(into);
    }
    return status;
}

static gt_status arrive_at_node(engine *e, gt__node *node, int32_t output, gt_tensor *gradient) {
    gt_tensor **first = &node->pending[output], **second = &node->second[output];
    gt_status status = GT_OK;
    if (*first == NULL) {
        GT_TRY_GOTO(status, heap_push(e, node), done);
        *first = gradient;
        return GT_OK;
    }
    gt_dtype dtype = gradient->meta.dtype;
    if (*second == NULL && gt__dtype_is_half(dtype) && (*first)->meta.dtype == dtype) {
        *second = gradient;
        return GT_OK;
    }
    if (*second) { /* a third: from now on the sum is kept in f32 */
        status = accumulate(first, *second);
        gt_tensor_release(*second);
        *second = NULL;
    }
    if (status == GT_OK) status = accumulate(first, gradient);
done:
    gt_tensor_release(gradient);
    return status;
}

/* The sum of two halves, rounded once, in the place of one of them. */
static gt_status add_second(gt_tensor **first, gt_tensor **second) {
    gt_tensor *in[2] = {*first, *second}, *sum = is_ours(in[0]) ? in[0] : is_ours(in[1]) ? in[1] : NULL;
    if (sum) {
        gt_tensor_retain(sum);
    } else {
        gt__meta meta = in[0]->meta;
        if (!gt__meta_is_dense(&meta)) gt__meta_set_row_major(&meta);
        sum = gt__tensor_new_for(in[0]->ctx, &meta, GT_MEMORY_TEMPORARY, "gradient");
        if (sum == NULL) return gt_last_error()->status;
    }
    gt_status status = gt__op_into(GT__OP_ADD, in, 2, NULL, sum);
    gt_tensor_release(*first);
    gt_tensor_release(*second);
    *first = sum;
    *second = NULL;
    return status;
}

static gt_status unpack(const gt__node *node, const gt__saved *saved, const char *what, int k, gt_tensor **out) {
    *out = saved->tensor;
    if (saved->tensor == NULL) return GT_OK;
    if (saved->tensor->storage->version == saved->version) return saved->tensor->storage->parcel ? gt__offload_fetch(saved->tensor) : GT_OK;
    char text[2 * GT__SHAPE_TEXT];
    GT_FAIL_HINT(GT_SAVED_MODIFIED, "change it after the backward, or work on a copy",
                 "%s%s%s%s: %s %d, %s, was changed in place (version %u, saved at %u) and its "
                 "gradient can no longer be computed",
                 gt__op_table[node->op].name, node->module_path ? " \"" : "", node->module_path ? node->module_path : "",
                 node->module_path ? "\"" : "", what, k, gt__tensor_text(saved->tensor, text, sizeof text),
                 (unsigned)saved->tensor->storage->version, (unsigned)saved->version);
}

static gt_status check_not_freed(const gt__node *node) {
    if (!node->freed) return GT_OK;
    GT_FAIL_HINT(GT_BAD_STATE, "use gt_backward_from with retain_graph for all but the last backward",
                 "%s: an earlier backward freed what its gradient needs", gt__op_table[node->op].name);
}

/* Computes what a recipe stands for. *out is the caller's. */
static gt_status recompute(gt__node *node, gt_tensor **out);

/* A saved input: *view is borrowed from the record, unless it had to be computed: then *fresh is it, counted. */
static gt_status unpack_input(gt__node *node, int k, gt_tensor **view, gt_tensor **fresh) {
    gt__node *recipe = node->saved_in[k].recipe;
    if (recipe == NULL) return unpack(node, &node->saved_in[k], "input", k, view);
    GT_TRY(recompute(recipe, fresh));
    *view = *fresh;
    return GT_OK;
}

static gt_status recompute(gt__node *node, gt_tensor **out) {
    gt_context *ctx = node->ctx;
    gt_tensor *in[5] = {NULL}, *fresh = NULL, *y = NULL;
    const char *path = ctx->module_path;
    GT_TRY(check_not_freed(node));
    gt_status status = unpack_input(node, 0, &in[0], &fresh);
    for (int k = 1; k < 3 && status == GT_OK; ++k) status = unpack(node, &node->saved_in[k], "input", k, &in[k]);
    for (int k = 1; k < 3 && status == GT_OK; ++k) status = unpack(node, &node->saved_out[k], "output", k, &in[2 + k]);
    if (status == GT_OK) status = gt__scope_begin(ctx);
    if (status == GT_OK) {
        gt__attrs attr = node->attr;
        attr.norm.activation = GT_ACTIVATION_RELU;
        ctx->no_grad++;
        ctx->module_path = node->module_path;
        y = gt__op(GT__OP_BATCH_NORM_APPLY, in, 5, &attr);
        status = y ? GT_OK : gt_last_error()->status;
        gt_tensor_retain(y);
        ctx->module_path = path;
        ctx->no_grad--;
        (void)gt_scope_end(ctx);
    }
    gt_tensor_release(fresh);
    *out = y;
    return status;
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

void gt__grad_done_in(gt__grad *grad, int k) {
    if (grad->fresh[k])
        let_go(&grad->fresh[k], &grad->in[k]);
    else
        let_go_saved(grad, &grad->node->saved_in[k], &grad->in[k]);
}
void gt__grad_done_out(gt__grad *grad, int k) { let_go_saved(grad, &grad->node->saved_out[k], &grad->out[k]); }

/* Runs the gradient rule and counts its results. The rule's temporaries go with its scope. */
static gt_status apply_rule(engine *e, gt__node *node, gt_tensor **dx) {
    gt_context *ctx = node->ctx;
    gt__grad grad = {.ctx = ctx,
                     .attr = &node->attr,
                     .op = node->op,
                     .in_meta = node->in_meta,
                     .needs = node->needs,
                     .n_in = node->n_in,
                     .node = node,
                     .engine = e,
                     .retain = keeps(e, node),
                     .dx = dx};
    for (int k = 0; k < GT__MAX_OUT; ++k) GT_TRY(unpack(node, &node->saved_out[k], "output", k, &grad.out[k]));
    for (int k = 0; k < node->n_out; ++k) {
        if (node->second[k]) GT_TRY(add_second(&node->pending[k], &node->second[k]));
        gt_tensor *dy = node->pending[k];
        if (dy && dy->meta.dtype != node->out_dtype[k]) { /* a sum kept in f32 */
            GT_TRY(convert(&dy->meta, node->out_dtype[k], dy, &node->pending[k]));
            gt_tensor_release(dy);
        }
        grad.dy[k] = node->pending[k];
    }
    const char *path = ctx->module_path;
    GT_TRY(gt__scope_begin(ctx));
    ctx->no_grad++;
    ctx->module_path = node->module_path;
    gt_status status = GT_OK;
    for (int k = 0; k < GT__MAX_SAVED_IN && status == GT_OK; ++k) status = unpack_input(node, k, &grad.in[k], &grad.fresh[k]);
    if (status == GT_OK) status = gt__op_table[node->op].grad(&grad);
    for (int k = 0; k < GT__MAX_SAVED_IN; ++k) gt_tensor_release(grad.fresh[k]);
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

/* Hands a gradient that arrived for a segment's output, if any, to what computed that output again. */
static gt_status hand_over(engine *e, gt_tensor *output, gt_tensor **arrived) {
    gt_tensor *gradient = *arrived;
    gt__node *node;
    if (gradient == NULL || !gt__needs_grad(output)) return GT_OK;
    GT_TRY(gt__tensor_node(output, &node));
    *arrived = NULL;
    return node ? arrive_at_node(e, node, output->output, gradient) : arrive_at_leaf(e, output, gradient);
}

/* The records of a segment that runs again are newer than all others: they come next. */
static gt_status run_segment(engine *e, gt__node *node) {
    gt_tensor *outputs[GT__MAX_NODE_OUT] = {NULL};
    gt_status status = gt__segment_run_again(node, outputs);
    if (status == GT_OK && !keeps(e, node)) gt__node_strip(node);
    for (int32_t k = 0; k < node->n_out; ++k) {
        if (status == GT_OK) status = hand_over(e, outputs[k], &node->pending[k]);
        if (status == GT_OK) status = hand_over(e, outputs[k], &node->second[k]);
        gt_tensor_release(outputs[k]);
    }
    return status;
}

static gt_status run_node(engine *e, gt__node *node) {
    GT_TRY(check_not_freed(node));
    if (node->op == GT__OP_CHECKPOINT) return run_segment(e, node);
    gt_tensor *few[16] = {NULL};
    gt_tensor **dx = few;
    if (node->n_in > (int32_t)GT__COUNT(few)) {
        dx = gt__calloc((size_t)node->n_in, sizeof *dx);
        if (dx == NULL) return GT_OUT_OF_HOST_MEMORY;
    }
    gt_status status = apply_rule(e, node, dx);
    gt__node_drop_pending(node);
    for (int32_t k = 0; k < node->n_in; ++k) {
        if (dx[k] == NULL) continue;
        gt__edge *edge = &node->edges[k];
        if (status != GT_OK) {
            gt_tensor_release(dx[k]);
        } else if (leaf_behind(edge)) {
            status = arrive_at_leaf(e, leaf_behind(edge), dx[k]);
        } else {
            status = arrive_at_node(e, edge->node, edge->output, dx[k]);
        }
    }
    if (status == GT_OK && !keeps(e, node)) gt__node_strip(node);
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

gt__node *gt__backward_waiting(const gt_context *ctx, int32_t i) {
    const engine *e = ctx->engine;
    if (e == NULL || i < 0 || i > e->n_heap) return NULL;
    return i < e->n_heap ? e->heap[i] : e->running;
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
    e.ctx->engine = &e;
    gt__phase phase = gt__allocator_phase(e.ctx->allocator);
    gt__allocator_set_phase(e.ctx->allocator, GT__PHASE_BACKWARD);
    gt_dtype autocast = gt__autocast_set(e.ctx, GT_DTYPE_F32); /* gradients run in the dtypes of the forward */
    gt_status status = GT_OK;
    for (int32_t i = 0; i < count && status == GT_OK; ++i) status = start(&e, tensors[i], gradients ? gradients[i] : NULL);
    e.newest = e.ctx->node_sequence;
    while (status == GT_OK && e.n_heap > 0) {
        gt__node *node = heap_pop(&e);
        e.running = node;
        status = run_node(&e, node);
        e.running = NULL;
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
    e.ctx->engine = NULL;
    (void)gt__autocast_set(e.ctx, autocast);
    gt__allocator_set_phase(e.ctx->allocator, phase);
    return status;
}

gt_status gt_backward(gt_tensor *loss) { return gt_backward_from(&loss, NULL, 1, 0); }
