/* The one way into an op: infer (shape rule), prepare (layouts the kernel needs), execute (allocate and launch), record.
 * A tracer will take the place of `execute` alone. */
#include "core/checkpoint.h"

#include <stdio.h>

const char *gt__call_text(const gt__call *call, char *buffer, size_t size) {
    const char *name = gt__op_table[call->op].name;
    const char *path = call->ctx ? call->ctx->module_path : NULL;
    (void)snprintf(buffer, size, path && path[0] ? "%s \"%s\"" : "%s", name, path);
    return buffer;
}

gt_status gt__call_fail(const gt__call *call, gt_status status, const char *file, int line, const char *hint, const char *format, ...) {
    char who[256], message[768];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return gt__error_raise(status, file, line, 0, NULL, hint, "%s: %s", gt__call_text(call, who, sizeof who), message);
}

static bool is_matrix(const gt__meta *m) {
    if (m->numel == 0) return true;
    if (m->ndim == 0) return true;
    if (m->ndim == 1) return m->strides[0] == 1 || m->shape[0] == 1;
    int32_t r = m->ndim - 2, c = m->ndim - 1;
    int64_t rows = m->shape[r], cols = m->shape[c], rs = m->strides[r], cs = m->strides[c];
    bool row_major = (cols == 1 || cs == 1) && (rows == 1 || rs >= GT__MAX(cols, 1));
    bool column_major = (rows == 1 || rs == 1) && (cols == 1 || cs >= GT__MAX(rows, 1));
    if (!row_major && !column_major) return false;
    /* leading axes must be one walk with an even step (0 where all are repeated) */
    int32_t inner = -1;
    for (int32_t i = m->ndim - 3; i >= 0; --i) {
        if (m->shape[i] == 1) continue;
        if (inner >= 0 && m->strides[i] != m->strides[inner] * m->shape[inner]) return false;
        inner = i;
    }
    return true;
}

static bool layout_fits(const gt__meta *m, gt__layout layout) {
    switch (layout) {
    case GT__LAYOUT_ROW_MAJOR:
        return gt__meta_is_row_major(m);
    case GT__LAYOUT_CHANNELS_LAST:
        return m->ndim == 4 ? gt__meta_is_channels_last(m) : gt__meta_is_row_major(m);
    case GT__LAYOUT_MATRIX:
        return is_matrix(m);
    default:
        return true;
    }
}

static gt_status run_kernel(const gt__call *call) {
    gt_context *ctx = call->ctx;
    gt__kernel kernel = ctx->backend->kernels[call->op];
    if (GT__UNLIKELY(kernel == NULL)) GT_CALL_FAIL(call, GT_NOT_SUPPORTED, "%s cannot do it", ctx->device->name);
    int32_t previous = gt__enter(ctx);
    gt_status status = kernel(ctx->device, call);
    gt__leave(ctx, previous);
    if (GT__UNLIKELY(ctx->diagnosis != NULL) && status == GT_OK && call->n_in > 0) status = gt__diagnose(call);
    return status;
}

/* A dense copy of `t` in the wanted layout; the caller's. */
static gt_status copy_to_layout(gt_tensor *t, gt__layout layout, gt_tensor **out) {
    gt__meta meta = t->meta;
    if (layout == GT__LAYOUT_CHANNELS_LAST)
        gt__meta_set_channels_last(&meta);
    else
        gt__meta_set_row_major(&meta);
    gt_tensor *copy = gt__tensor_new_for(t->ctx, &meta, GT_MEMORY_TEMPORARY, "copy");
    if (copy == NULL) return gt_last_error()->status;
    gt__call call = {.ctx = t->ctx, .in = &t, .n_in = 1, .n_out = 1, .out = {copy}, .op = GT__OP_COPY};
    gt_status status = run_kernel(&call);
    if (status != GT_OK) {
        gt_tensor_release(copy);
        return status;
    }
    *out = copy;
    return GT_OK;
}

/* The inputs of a call in the layout that its kernel wants. */
typedef struct prepared_inputs {
    gt_tensor *in[GT__MAX_SAVED_IN];
    gt_tensor *const *original;
    uint32_t copied; /* bit k: in[k] is a copy of ours */
} prepared_inputs;

/* unprepare follows, whatever comes of it. */
static gt_status prepare(gt__call *call, prepared_inputs *p) {
    const gt__op_def *def = &gt__op_table[call->op];
    p->original = call->in;
    p->copied = 0;
    if (def->layout == GT__LAYOUT_ANY) return GT_OK;
    GT_REQUIRE(call->n_in <= GT__MAX_SAVED_IN, GT_INTERNAL, "%s: %d inputs", def->name, (int)call->n_in);
    for (int32_t k = 0; k < call->n_in; ++k) {
        p->in[k] = p->original[k];
        if (p->in[k] == NULL || layout_fits(&p->in[k]->meta, def->layout)) continue;
        GT_TRY(copy_to_layout(p->original[k], def->layout, &p->in[k]));
        p->copied |= 1u << k;
    }
    call->in = p->in;
    return GT_OK;
}

static void unprepare(gt__call *call, prepared_inputs *p) {
    for (int32_t k = 0; k < call->n_in && p->copied; ++k) {
        if (p->copied >> k & 1) gt_tensor_release(p->in[k]);
    }
    call->in = p->original;
}

/* Allocates the wanted outputs, brings inputs into the kernel's layout and launches. */
static gt_status execute(gt__call *call, uint32_t want) {
    const gt__op_def *def = &gt__op_table[call->op];
    prepared_inputs prepared;
    gt_status status = GT_OK;
    GT_TRY_GOTO(status, prepare(call, &prepared), done);
    for (int32_t k = 0; k < call->n_out; ++k) {
        if ((want >> k & 1) == 0) continue;
        call->out[k] = gt__tensor_new_for(call->ctx, &call->meta[k], GT_MEMORY_TEMPORARY, def->name);
        if (call->out[k] == NULL) {
            status = gt_last_error()->status;
            goto done;
        }
    }
    status = run_kernel(call);
done:
    if (status != GT_OK) {
        for (int32_t k = 0; k < call->n_out; ++k) {
            gt_tensor_release(call->out[k]);
            call->out[k] = NULL;
        }
    }
    unprepare(call, &prepared);
    return status;
}

static gt_status make_view(gt__call *call) {
    gt_tensor *base = call->in[0];
    int64_t offset = call->view_offset;
    if (call->op == GT__OP_AS_STRIDED && base->data) { /* counted from the storage's start */
        offset -= ((char *)base->data - (char *)base->storage->data) / (int64_t)gt_dtype_size(base->meta.dtype);
    }
    gt_tensor *view = gt__tensor_view(base, &call->meta[0], offset);
    if (view == NULL) return GT_OUT_OF_HOST_MEMORY;
    if (call->ctx->no_grad == 0) view->view_base = gt_tensor_retain(base->view_base ? base->view_base : base);
    call->out[0] = view;
    return GT_OK;
}

static gt_status find_context(gt__call *call) {
    for (int32_t k = 0; k < call->n_in; ++k) {
        gt_tensor *t = call->in[k];
        if (t == NULL) continue;
        if (GT__UNLIKELY(t->ctx == NULL))
            GT_FAIL(GT_BAD_STATE, "%s: input %d belongs to a context that was destroyed", gt__op_table[call->op].name, (int)k);
        if (call->ctx == NULL) call->ctx = t->ctx;
        if (GT__UNLIKELY(call->ctx != t->ctx)) {
            GT_FAIL_HINT(GT_BAD_DEVICE, "make all tensors of a call in one context",
                         "%s: input %d belongs to another context (%s) than input 0 (%s)", gt__op_table[call->op].name, (int)k,
                         t->ctx->device->name, call->ctx->device->name);
        }
    }
    GT_REQUIRE(call->ctx != NULL, GT_INTERNAL, "%s was called without inputs", gt__op_table[call->op].name);
    return GT_OK;
}

gt_status gt__call_run(gt__call *call, uint32_t want) {
    const gt__op_def *def = &gt__op_table[call->op];
    GT_TRY(def->shape(call));
    if (def->layout == GT__LAYOUT_VIEW) {
        GT_TRY(make_view(call));
    } else {
        GT_TRY(execute(call, want));
    }
    gt_status status = call->ctx->segment ? gt__segment_saw(call) : GT_OK;
    if (GT__UNLIKELY(call->ctx->observer != NULL) && status == GT_OK) status = call->ctx->observer->call(call->ctx->observer, call);
    for (int32_t k = 0; k < call->n_in && call->ctx->no_grad == 0 && status == GT_OK; ++k) {
        if (call->in[k] == NULL || !gt__needs_grad(call->in[k])) continue;
        status = gt__record(call, call->in);
        break;
    }
    for (int32_t k = 0; k < call->n_out && status != GT_OK; ++k) {
        gt_tensor_release(call->out[k]);
        call->out[k] = NULL;
    }
    return status;
}

gt_status gt__op_multi(gt__op_id op, gt_tensor *const *in, int32_t n_in, const gt__attrs *attr, uint32_t want, gt_tensor **out) {
    gt__call call;
    call.ctx = NULL;
    call.in = in;
    call.n_in = n_in;
    call.op = op;
    call.n_out = 1;
    call.view_offset = 0;
    memset(call.out, 0, sizeof call.out);
    if (attr) {
        call.attr = *attr;
    } else {
        memset(&call.attr, 0, sizeof call.attr);
    }
    GT_TRY(find_context(&call));
    gt__dropped_release(call.ctx);
    if (GT__UNLIKELY(call.ctx->autocast != GT_DTYPE_F32) && gt__op_table[op].cast != GT_CAST_NONE) {
        GT_TRY(gt__autocast_run(&call, want));
    } else {
        GT_TRY(gt__call_run(&call, want));
    }
    gt_status status = GT_OK;
    for (int32_t k = 0; k < call.n_out; ++k) {
        if (call.out[k] == NULL) continue;
        if (status == GT_OK) {
            out[k] = gt__scope_add(call.out[k]);
            if (out[k] == NULL) status = GT_OUT_OF_HOST_MEMORY;
        } else {
            gt_tensor_release(call.out[k]);
        }
    }
    return status;
}

gt_tensor *gt__op(gt__op_id op, gt_tensor *const *in, int32_t n_in, const gt__attrs *attr) {
    gt_tensor *out[GT__MAX_OUT] = {NULL};
    return gt__op_multi(op, in, n_in, attr, 1, out) == GT_OK ? out[0] : NULL;
}

gt_tensor *gt__op1(gt__op_id op, gt_tensor *a, const gt__attrs *attr) { return gt__op(op, &a, 1, attr); }

gt_tensor *gt__op2(gt__op_id op, gt_tensor *a, gt_tensor *b, const gt__attrs *attr) {
    gt_tensor *in[2] = {a, b};
    return gt__op(op, in, 2, attr);
}

gt_status gt__op_into(gt__op_id op, gt_tensor *const *in, int32_t n_in, const gt__attrs *attr, gt_tensor *out) {
    gt__call call = {.ctx = out->ctx, .in = in, .n_in = n_in, .n_out = 1, .out = {out}, .op = op};
    if (attr) call.attr = *attr;
    prepared_inputs prepared;
    gt_status status = prepare(&call, &prepared);
    if (status == GT_OK) status = run_kernel(&call);
    unprepare(&call, &prepared);
    return status;
}
