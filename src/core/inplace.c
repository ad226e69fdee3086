/* Changes in place, and what they do to the record.
 *
 * Overwriting a tensor gives it the history of what was written. If it is a view, its base gets a COPY_INTO record: the gradient of the
 * base's old contents is zero inside the view, and the source gets what lies there. Other views of the base notice by the storage's version
 * that their history is out of date, and are linked to the base again when it is asked for (gt__tensor_node). */
#include "core/checkpoint.h"

gt_status gt__check_writable(gt_tensor *tensor, const char *who) {
    char text[2 * GT__SHAPE_TEXT];
    for (int32_t i = 0; i < tensor->meta.ndim; ++i) {
        GT_REQUIRE(tensor->meta.strides[i] != 0 || tensor->meta.shape[i] <= 1, GT_BAD_STATE,
                   "%s: %s is expanded: several of its elements are one place in memory", who, gt__tensor_text(tensor, text, sizeof text));
    }
    gt__observer *observer = tensor->ctx->observer;
    if (observer) GT_TRY(observer->overwrite(observer, tensor, NULL, who));
    return tensor->ctx->segment ? gt__segment_overwrites(tensor, NULL) : GT_OK;
}

static void attrs_of_view(gt__attrs *attr, const gt_tensor *view) {
    memset(attr, 0, sizeof *attr);
    memcpy(attr->view.shape, view->meta.shape, sizeof attr->view.shape);
    memcpy(attr->view.strides, view->meta.strides, sizeof attr->view.strides);
    attr->view.ndim = view->meta.ndim;
    if (view->data) attr->view.offset = ((char *)view->data - (char *)view->storage->data) / (int64_t)gt_dtype_size(view->meta.dtype);
}

static void set_history(gt_tensor *tensor, gt__node *node) {
    gt__node *old = tensor->node;
    tensor->node = node;
    tensor->output = 0;
    tensor->requires_grad = node != NULL;
    if (old) gt__node_release(old);
}

gt_status gt__tensor_node(gt_tensor *t, gt__node **node) {
    gt_tensor *base = t->view_base;
    if (base && t->view_version != t->storage->version) {
        if (base->node == NULL) { /* a leaf's memory was overwritten: the view's own history still holds */
            t->view_version = t->storage->version;
        } else {
            gt__node *link;
            GT_TRY(gt__node_new(t->ctx, GT__OP_AS_STRIDED, 1, &link));
            attrs_of_view(&link->attr, t);
            link->out_dtype[0] = t->meta.dtype;
            gt_status status = gt__node_connect(link, 0, base);
            if (status != GT_OK) {
                gt__node_release(link);
                return status;
            }
            set_history(t, link);
            t->view_version = t->storage->version;
        }
    }
    *node = t->node;
    return GT_OK;
}

/* The record of what was written, or NULL where the base has no history from now on. */
static gt_status record_overwrite(gt_tensor *tensor, gt_tensor *base, gt_tensor *source, bool flows, gt__node **out) {
    gt__node *node;
    bool whole = base == tensor;
    *out = NULL;
    if (whole && !flows) return GT_OK;
    GT_TRY(gt__node_new(tensor->ctx, whole ? GT__OP_COPY : GT__OP_COPY_INTO, whole ? 1 : 2, &node));
    node->out_dtype[0] = base->meta.dtype;
    gt_status status = GT_OK;
    if (!whole) {
        attrs_of_view(&node->attr, tensor);
        status = gt__node_connect(node, 0, base);
    }
    if (status == GT_OK && flows) status = gt__node_connect(node, whole ? 0 : 1, source);
    if (status == GT_OK)
        *out = node;
    else
        gt__node_release(node);
    return status;
}

gt_status gt__overwritten(gt_tensor *tensor, gt_tensor *source) {
    gt_context *ctx = tensor->ctx;
    bool flows = ctx->no_grad == 0 && source && gt__needs_grad(source);
    gt_tensor *base = tensor->view_base ? tensor->view_base : tensor;
    bool has_history = base->node != NULL;
    gt__node *node = NULL;
    gt_status status = GT_OK;
    bool recorded = ctx->no_grad == 0 && (flows || has_history);
    if (recorded) status = record_overwrite(tensor, base, source, flows, &node);
    gt__storage_changed(tensor->storage); /* the contents are new, whether they could be recorded or not */
    if (status != GT_OK || !recorded) return status;
    set_history(base, node);
    if (base != tensor) tensor->requires_grad = 1;
    return GT_OK;
}

gt_status gt_tensor_fill(gt_tensor *tensor, double value) {
    GT_REQUIRE_HANDLE(tensor);
    GT_TRY(gt__tensor_check(tensor, "gt_tensor_fill"));
    GT_TRY(gt__check_writable(tensor, "gt_tensor_fill"));
    GT_TRY(gt__fill(tensor, value));
    return gt__overwritten(tensor, NULL);
}

gt_status gt_tensor_copy(gt_tensor *destination, gt_tensor *source) {
    GT_REQUIRE_HANDLE(destination);
    GT_REQUIRE_HANDLE(source);
    GT_TRY(gt__tensor_check(destination, "gt_tensor_copy"));
    GT_TRY(gt__tensor_check(source, "gt_tensor_copy"));
    GT_TRY(gt__check_writable(destination, "gt_tensor_copy"));
    gt_context *ctx = destination->ctx;
    char a[2 * GT__SHAPE_TEXT], b[2 * GT__SHAPE_TEXT];
    GT_REQUIRE(source->ctx == ctx, GT_BAD_DEVICE, "gt_tensor_copy: the tensors belong to two contexts");
    GT_REQUIRE(gt__meta_same_shape(&destination->meta, &source->meta), GT_BAD_SHAPE, "gt_tensor_copy: destination is %s, source is %s",
               gt__tensor_text(destination, a, sizeof a), gt__tensor_text(source, b, sizeof b));
    gt_tensor *base = destination->view_base ? destination->view_base : destination;
    bool flows = ctx->no_grad == 0 && gt__needs_grad(source);
    GT_REQUIRE(!(flows && base->node == NULL && gt__needs_grad(base)), GT_BAD_STATE,
               "gt_tensor_copy: %s is a leaf that requires a gradient; a tensor with a history can only be copied into it between "
               "gt_no_grad_begin and "
               "gt_no_grad_end",
               gt__tensor_text(base, a, sizeof a));
    if (ctx->observer) GT_TRY(ctx->observer->overwrite(ctx->observer, destination, source, "gt_tensor_copy"));
    if (ctx->segment) GT_TRY(gt__segment_overwrites(destination, source));
    GT_TRY(gt__op_into(GT__OP_COPY, &source, 1, NULL, destination));
    return gt__overwritten(destination, source);
}

/* (base, source) -> base with the view overwritten. dx0 = dy with zeros in the view; dx1 = dy seen through the view. */
gt_status gt__grad_copy_into(gt__grad *grad) {
    gt_context *ctx = grad->ctx;
    gt__meta meta = grad->in_meta[0];
    if (!gt__meta_is_dense(&meta))
        GT_FAIL(GT_BAD_STATE, "copy_into: the base of a view changed in place is not dense; its gradient is not defined");
    gt_tensor *whole = gt__tensor_new(ctx, &meta, GT_MEMORY_TEMPORARY);
    if (whole == NULL) return gt_last_error()->status;
    GT_TRY(gt__op_into(GT__OP_COPY, &grad->dy[0], 1, NULL, whole));
    gt_tensor *part = gt__op1(GT__OP_AS_STRIDED, whole, grad->attr);
    if (part == NULL) return gt_last_error()->status;
    if (grad->needs[1]) {
        grad->dx[1] = gt_cast(gt_contiguous(part), grad->in_meta[1].dtype);
        if (grad->dx[1] == NULL) return gt_last_error()->status;
        if (grad->dx[1]->storage == whole->storage) { /* the cast and the copy may both be views */
            gt_tensor *own = gt__tensor_new(ctx, &grad->dx[1]->meta, GT_MEMORY_TEMPORARY);
            if (own == NULL) return gt_last_error()->status;
            GT_TRY(gt__op_into(GT__OP_COPY, &grad->dx[1], 1, NULL, own));
            grad->dx[1] = own;
        }
    }
    if (grad->needs[0]) {
        GT_TRY(gt__fill(part, 0.0));
        grad->dx[0] = whole;
    }
    return GT_OK;
}
