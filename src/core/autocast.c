/* Autocast: which ops take their inputs in half precision, and the half copies of weights.
 *
 * The policies are in op_list.h. They follow torch.amp, but are decided by what our kernels do:
 *   HALF     products and convolutions, which tensor cores do in half with sums in f32
 *   F32      what leaves half's range or precision: squares, powers, exponentials, logarithms, softmax, sums. Those of the kernels that read halves and
 *            write f32 (sum, softmax, log_softmax) are told to, so no f32 copy of their input is made
 *   PROMOTE  ops on several tensors, so that a residual kept in f32 stays there
 *   NONE     all else. Norms, cross-entropy, gelu and mean have f32 parameters and f32 statistics or sums inside whatever their input is (torch.amp widens
 *            the input instead); the loss of gt_cross_entropy and gt_mse_loss is f32 whatever goes in
 * A call with an f64 input is left alone. Gradient rules run with autocast off: in the dtypes that the forward had.
 *
 * A weight's half copy hangs off its storage and is good for one version of it. Every use is a handle of its own with a CAST record to the leaf, which
 * saves nothing; what a product saves is the copy. So whoever overwrites the copy, or the weight, gives the copy a new version too, and a backward
 * that still wants the old contents is refused (SAVED_MODIFIED), as it would be without autocast. */
#include "core/checkpoint.h"

#define INLINE_CASTS 8

/* --- regions -------------------------------------------------------------------------------------------------------------------------- */

static gt_status enter_region(gt_context *ctx, gt_dtype dtype, const char *who) {
    GT_REQUIRE(ctx->n_autocast < GT__AUTOCAST_DEPTH, GT_BAD_STATE, "%s: %d regions are open already; is a gt_autocast_end missing?", who,
               GT__AUTOCAST_DEPTH);
    ctx->autocast_before[ctx->n_autocast++] = (uint8_t)ctx->autocast;
    ctx->autocast = dtype;
    return GT_OK;
}

gt_status gt_autocast_begin(gt_context *ctx, gt_dtype dtype) {
    GT_REQUIRE_HANDLE(ctx);
    GT_REQUIRE(gt__dtype_is_half(dtype), GT_BAD_DTYPE, "gt_autocast_begin: the dtype can be f16 or bf16, not %s", gt_dtype_name(dtype));
    return enter_region(ctx, dtype, "gt_autocast_begin");
}

gt_status gt_autocast_disable(gt_context *ctx) {
    GT_REQUIRE_HANDLE(ctx);
    return enter_region(ctx, GT_DTYPE_F32, "gt_autocast_disable");
}

gt_status gt_autocast_end(gt_context *ctx) {
    GT_REQUIRE_HANDLE(ctx);
    GT_REQUIRE(ctx->n_autocast > 0, GT_BAD_STATE, "gt_autocast_end: no region is open");
    ctx->autocast = ctx->autocast_before[--ctx->n_autocast];
    return GT_OK;
}

gt_dtype gt_autocast_dtype(const gt_context *ctx) { return ctx ? ctx->autocast : GT_DTYPE_F32; }

gt_cast_policy gt_autocast_policy(const char *op) {
    for (int32_t id = 0; op && id < GT__OP_COUNT; ++id)
        if (strcmp(gt__op_table[id].name, op) == 0) return gt__op_table[id].cast;
    return GT_CAST_NONE;
}

/* --- half copies of leaves -------------------------------------------------------------------------------------------------------------- */

static bool is_copy_of(const gt_tensor *half, const gt_tensor *leaf) {
    return half && leaf->data == leaf->storage->data && gt__meta_same_layout(&half->meta, &leaf->meta);
}

gt_tensor *gt__half_copy_of(gt_tensor *leaf) {
    gt_tensor *half = leaf->storage->half;
    return is_copy_of(half, leaf) ? half : NULL;
}

void gt__half_copy_written(gt_tensor *leaf) {
    gt__storage *storage = leaf->storage;
    if (!is_copy_of(storage->half, leaf)) return;
    storage->half->storage->version++;
    storage->half_version = storage->version;
}

void gt__half_copies_drop(gt_context *ctx) {
    for (gt_tensor *t = ctx->live.live_next; t != &ctx->live; t = t->live_next) {
        gt_tensor *half = t->storage ? t->storage->half : NULL;
        if (half == NULL) continue;
        t->storage->half = NULL;
        gt_tensor_release(half);
    }
}

/* Weights: what requires a gradient, and frozen parameters. Other leaves are a batch's inputs, used once. */
static bool is_weight(const gt_tensor *t) {
    if (t->node != NULL || t->view_base != NULL || t->meta.dtype != GT_DTYPE_F32) return false;
    if (t->meta.numel == 0 || t->data != t->storage->data || !gt__meta_is_dense(&t->meta)) return false;
    return gt__needs_grad(t) || (t->storage->block && gt__block_category(t->storage->block) == GT_MEMORY_PARAMETER);
}

/* Makes storage->half an up-to-date copy in `dtype`. */
static gt_status renew_copy(gt_tensor *leaf, gt_dtype dtype) {
    gt__storage *storage = leaf->storage;
    gt_tensor *half = storage->half;
    bool fits = is_copy_of(half, leaf) && half->meta.dtype == dtype;
    if (fits && storage->half_version == storage->version) return GT_OK;
    if (!fits) {
        gt__meta meta = leaf->meta;
        meta.dtype = dtype;
        half = gt__tensor_new_for(leaf->ctx, &meta, GT_MEMORY_PARAMETER, "autocast copy");
        if (half == NULL) return gt_last_error()->status;
    } else {
        half->storage->version++;
    }
    gt_status status = gt__op_into(GT__OP_COPY, &leaf, 1, NULL, half);
    if (status != GT_OK) {
        if (!fits) gt_tensor_release(half);
        return status;
    }
    if (!fits) {
        gt_tensor_release(storage->half);
        storage->half = half;
    }
    storage->half_version = storage->version;
    return GT_OK;
}

gt_status gt__half_copy_make(gt_tensor *leaf, gt_dtype dtype) { return renew_copy(leaf, dtype); }

/* --- casting a call's inputs ------------------------------------------------------------------------------------------------------------ */

static void cast_call(gt__call *call, gt_tensor **in, gt_dtype dtype) {
    memset(call, 0, sizeof *call);
    call->ctx = in[0]->ctx;
    call->op = GT__OP_CAST;
    call->in = in;
    call->n_in = call->n_out = 1;
    call->attr.layout.dtype = dtype;
}

static gt_status weight_as(gt_tensor *leaf, gt_dtype dtype, gt_tensor **out) {
    GT_TRY(renew_copy(leaf, dtype));
    gt_tensor *use = gt__tensor_view(leaf->storage->half, &leaf->storage->half->meta, 0);
    if (use == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt_status status = GT_OK;
    if (leaf->name && (use->name = gt__strdup(leaf->name)) == NULL) status = GT_OUT_OF_HOST_MEMORY;
    gt__call call;
    cast_call(&call, &leaf, dtype);
    call.out[0] = use;
    if (status == GT_OK && leaf->ctx->segment) status = gt__segment_saw(&call);
    if (status == GT_OK && leaf->ctx->observer) status = leaf->ctx->observer->call(leaf->ctx->observer, &call);
    if (status == GT_OK && leaf->ctx->no_grad == 0 && gt__needs_grad(leaf)) status = gt__record(&call, &leaf);
    if (status == GT_OK)
        *out = use;
    else
        gt_tensor_release(use);
    return status;
}

/* x in `dtype`, counted. */
static gt_status as_dtype(gt_tensor *x, gt_dtype dtype, gt_tensor **out) {
    if (gt__dtype_is_half(dtype) && is_weight(x)) return weight_as(x, dtype, out);
    gt__call call;
    cast_call(&call, &x, dtype);
    GT_TRY(gt__call_run(&call, 1));
    *out = call.out[0];
    return GT_OK;
}

/* The dtype that floating inputs are to have, or GT_DTYPE_COUNT where they stay as they are. */
static gt_dtype wanted_dtype(const gt__call *call) {
    gt_cast_policy policy = gt__op_table[call->op].cast;
    gt_dtype first = GT_DTYPE_COUNT;
    bool differ = false;
    for (int32_t k = 0; k < call->n_in; ++k) {
        if (call->in[k] == NULL || !gt__dtype_is_float(call->in[k]->meta.dtype)) continue;
        gt_dtype dtype = call->in[k]->meta.dtype;
        if (dtype == GT_DTYPE_F64) return GT_DTYPE_COUNT;
        if (first == GT_DTYPE_COUNT) first = dtype;
        differ |= dtype != first;
    }
    if (policy == GT_CAST_HALF) return call->ctx->autocast;
    if (policy == GT_CAST_F32) return GT_DTYPE_F32;
    return differ ? GT_DTYPE_F32 : GT_DTYPE_COUNT; /* of two different ones that are not f64, f32 holds both */
}

static bool is_cast(const gt_tensor *x, gt_dtype dtype) { return x != NULL && x->meta.dtype != dtype && gt__dtype_is_float(x->meta.dtype); }

/* Tells a kernel that can to write f32. */
static bool converts_itself(gt__call *call) {
    switch (call->op) {
    case GT__OP_SUM:
        call->attr.reduce.wide = 1;
        return true;
    case GT__OP_SOFTMAX:
    case GT__OP_LOG_SOFTMAX:
        call->attr.softmax.converts = 1;
        call->attr.softmax.dtype = GT_DTYPE_F32;
        return true;
    default:
        return false;
    }
}

gt_status gt__autocast_run(gt__call *call, uint32_t want) {
    gt_dtype dtype = wanted_dtype(call);
    bool any = false;
    for (int32_t k = 0; k < call->n_in && dtype != GT_DTYPE_COUNT; ++k) any |= is_cast(call->in[k], dtype);
    if (!any) return gt__call_run(call, want);
    if (converts_itself(call)) return gt__call_run(call, want);
    gt_tensor *few[INLINE_CASTS], **in = few, *const *original = call->in;
    if (call->n_in > INLINE_CASTS) {
        in = gt__malloc((size_t)call->n_in * sizeof *in);
        if (in == NULL) return GT_OUT_OF_HOST_MEMORY;
    }
    gt_status status = GT_OK;
    int32_t ready = 0;
    for (; ready < call->n_in && status == GT_OK; ++ready) {
        in[ready] = original[ready];
        if (is_cast(original[ready], dtype)) status = as_dtype(original[ready], dtype, &in[ready]);
    }
    if (status == GT_OK) {
        call->in = in;
        status = gt__call_run(call, want);
    }
    for (int32_t k = 0; k < ready; ++k)
        if (in[k] != original[k]) gt_tensor_release(in[k]);
    if (in != few) gt__free(in);
    call->in = original;
    return status;
}

gt_tensor *gt__autocast_input(gt__op_id op, gt_tensor *x) {
    gt_context *ctx = x->ctx;
    if (ctx->autocast == GT_DTYPE_F32) return x;
    const gt__call call = {.ctx = ctx, .op = op, .in = &x, .n_in = 1};
    gt_dtype dtype = wanted_dtype(&call);
    if (dtype == GT_DTYPE_COUNT || !is_cast(x, dtype)) return x;
    gt_tensor *cast = NULL;
    return as_dtype(x, dtype, &cast) == GT_OK ? gt__scope_add(cast) : NULL;
}
