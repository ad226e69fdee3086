/* Recording calls, and what the record says of a tensor. */
#include "core/node.h"
#include "core/offload.h"

bool gt__needs_grad(const gt_tensor *t) { return t->requires_grad != 0; }

int32_t gt_tensor_requires_grad(const gt_tensor *t) { return t ? t->requires_grad : 0; }

gt_status gt_tensor_set_requires_grad(gt_tensor *tensor, int32_t requires_grad) {
    GT_REQUIRE_HANDLE(tensor);
    GT_TRY(gt__tensor_check(tensor, "gt_tensor_set_requires_grad"));
    char text[2 * GT__SHAPE_TEXT];
    GT_REQUIRE(tensor->node == NULL, GT_BAD_STATE, "gt_tensor_set_requires_grad: %s is not a leaf; detach it first",
               gt__tensor_text(tensor, text, sizeof text));
    GT_REQUIRE(!requires_grad || gt__dtype_is_float(tensor->meta.dtype), GT_BAD_DTYPE,
               "gt_tensor_set_requires_grad: %s is of an integer dtype, which has no gradient", gt__tensor_text(tensor, text, sizeof text));
    tensor->requires_grad = requires_grad != 0;
    return GT_OK;
}

gt_tensor *gt_tensor_grad(gt_tensor *tensor) { return tensor && tensor->grad_valid ? tensor->grad : NULL; }

gt_status gt_tensor_zero_grad(gt_tensor *tensor) {
    GT_REQUIRE_HANDLE(tensor);
    gt_tensor *grad = tensor->grad;
    tensor->grad = NULL;
    tensor->grad_valid = 0;
    gt_tensor_release(grad);
    return GT_OK;
}

gt_status gt_no_grad_begin(gt_context *ctx) {
    GT_REQUIRE_HANDLE(ctx);
    ctx->no_grad++;
    return GT_OK;
}

gt_status gt_no_grad_end(gt_context *ctx) {
    GT_REQUIRE_HANDLE(ctx);
    GT_REQUIRE(ctx->no_grad > 0, GT_BAD_STATE, "gt_no_grad_end: no region is open");
    ctx->no_grad--;
    return GT_OK;
}

int32_t gt_grad_enabled(const gt_context *ctx) { return ctx ? ctx->no_grad == 0 : 0; }

gt_status gt__save(gt__saved *slot, gt_tensor *tensor, gt_memory_category from) {
    slot->tensor = gt__tensor_alias(tensor);
    if (slot->tensor == NULL) return GT_OUT_OF_HOST_MEMORY;
    slot->version = tensor->storage->version;
    if (gt__storage_category(tensor->storage) == from) gt__storage_set_category(tensor->storage, GT_MEMORY_ACTIVATION);
    gt__offload_saved(slot->tensor);
    return GT_OK;
}

gt__node *gt__recipe_of(const gt_tensor *tensor) {
    const int64_t worth = 1 << 20; /* bytes: below, a launch costs more than the memory is worth */
    gt__node *node = tensor->node;
    if (node == NULL || node->op != GT__OP_BATCH_NORM_RELU || node->freed || tensor->output != 0 || tensor->view_base) return NULL;
    if (tensor->storage->version != 0 || (int64_t)gt_tensor_bytes(tensor) < worth) return NULL;
    bool keeps_input = node->saved_in[0].tensor || node->saved_in[0].recipe;
    return keeps_input && node->saved_out[1].tensor && node->saved_out[2].tensor ? node : NULL;
}

static gt_status save_input(gt__saved *slot, gt_tensor *tensor) {
    slot->recipe = gt__recipe_of(tensor);
    if (slot->recipe == NULL) return gt__save(slot, tensor, GT_MEMORY_TEMPORARY);
    gt__node_retain(slot->recipe);
    return GT_OK;
}

static uint32_t saves_of(const gt__call *call, const gt__node *node) {
    if (call->op == GT__OP_CUSTOM) return gt__custom_saves(call->attr.custom.op, call->n_in);
    uint64_t declared = gt__op_table[call->op].saves;
    uint32_t mask = 0;
    for (int32_t k = 0; k < call->n_in; ++k) {
        if (node->needs[k]) mask |= (uint32_t)(declared >> (16 * GT__MIN(k, 3))) & 0xffffu;
    }
    return mask;
}

gt_status gt__record(const gt__call *call, gt_tensor *const *in) {
    if (gt__op_table[call->op].grad == gt__grad_none) return GT_OK;
    gt__node *node;
    GT_TRY(gt__node_new(call->ctx, call->op, call->n_in, &node));
    gt_status status = GT_OK;
    node->attr = call->attr;
    node->n_out = call->n_out;
    bool any = false;
    for (int32_t k = 0; k < call->n_in; ++k) {
        if (in[k] == NULL) continue;
        GT_TRY_GOTO(status, gt__node_connect(node, k, in[k]), failed);
        any |= node->needs[k] != 0;
    }
    uint32_t mask = any ? saves_of(call, node) : 0;
    for (int32_t k = 0; k < GT__MAX_SAVED_IN && k < call->n_in; ++k) {
        if ((mask & GT__IN(k)) && in[k]) GT_TRY_GOTO(status, save_input(&node->saved_in[k], in[k]), failed);
    }
    for (int32_t k = 0; k < call->n_out; ++k) {
        if (call->out[k] == NULL) continue;
        node->out_dtype[k] = call->out[k]->meta.dtype;
        if (mask & GT__OUT(k)) GT_TRY_GOTO(status, gt__save(&node->saved_out[k], call->out[k], GT_MEMORY_TEMPORARY), failed);
    }
    if (call->op == GT__OP_CUSTOM) gt__custom_retain(call->attr.custom.op);
    /* Only the first output carries a gradient, the others are by-products; a custom op's all do. */
    int32_t differentiable = call->op == GT__OP_CUSTOM ? call->n_out : 1;
    for (int32_t k = 0; k < differentiable; ++k) {
        gt_tensor *out = call->out[k];
        if (out == NULL || !gt__dtype_is_float(out->meta.dtype)) continue;
        gt__node_retain(node);
        out->node = node;
        out->output = (uint8_t)k;
        out->requires_grad = 1;
    }
    gt__node_release(node);
    return GT_OK;
failed:
    if (call->op == GT__OP_CUSTOM) node->attr.custom.op = NULL; /* not counted yet */
    gt__node_release(node);
    return status;
}
