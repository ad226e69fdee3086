#include "core/checkpoint.h"
#include "core/offload.h"

#include <stdio.h>

typedef struct flag_state {
    bool *flag;
    gt_tensor *anchor; /* counted */
    uint32_t version;  /* of the anchor's storage; another one: the flag is gone */
    bool value, now;
} flag_state;

typedef struct gt__segment {
    int64_t references;
    gt_context *ctx;
    gt__segment_code code;
    uint32_t anchor_version;
    int32_t n_in, n_out;
    gt__saved *in;
    gt__saved *used; /* tensors from outside, but for the inputs */
    int32_t n_used, cap_used;
    flag_state *flags;
    int32_t n_flags, cap_flags;
    /* While it runs forward. */
    uint64_t birth; /* storages with a larger number were made inside */
    int32_t level;  /* of no-grad, that of the segment itself */
    /* As the forward found it. */
    uint64_t rng_seed, rng_offset;
    gt_dtype autocast;
    const char *module_path;
} segment;

/* --- making ---------------------------------------------------------------------------------------------------------------------------- */

static void saved_free(gt__saved *list, int32_t count) {
    for (int32_t i = 0; i < count; ++i) gt_tensor_release(list[i].tensor);
    gt__free(list);
}

void gt__segment_release(segment *s) {
    if (s == NULL || --s->references > 0) return;
    saved_free(s->in, s->n_in);
    saved_free(s->used, s->n_used);
    for (int32_t i = 0; i < s->n_flags; ++i) gt_tensor_release(s->flags[i].anchor);
    gt__free(s->flags);
    gt_tensor_release(s->code.anchor);
    gt__free(s);
}

const gt__saved *gt__segment_inputs(const segment *s, int32_t *count) {
    *count = s ? s->n_in : 0;
    return s ? s->in : NULL;
}

/* Room for one more element. */
static gt_status reserve(void *list, int32_t count, int32_t *capacity, size_t size) {
    if (count < *capacity) return GT_OK;
    int32_t grown = GT__MAX(*capacity * 2, 16);
    void *memory;
    memcpy(&memory, list, sizeof memory);
    memory = gt__realloc(memory, (size_t)grown * size);
    if (memory == NULL) return GT_OUT_OF_HOST_MEMORY;
    memcpy(list, &memory, sizeof memory);
    *capacity = grown;
    return GT_OK;
}

static gt_status segment_new(gt_context *ctx, const gt__segment_code *code, gt_tensor *const *in, int32_t n_in, int32_t n_out,
                             segment **out) {
    segment *s = gt__calloc(1, sizeof *s);
    if (s == NULL) return GT_OUT_OF_HOST_MEMORY;
    if (n_in > 0 && (s->in = gt__calloc((size_t)n_in, sizeof *s->in)) == NULL) {
        gt__free(s);
        return GT_OUT_OF_HOST_MEMORY;
    }
    s->references = 1;
    s->ctx = ctx;
    s->code = *code;
    gt_tensor_retain(code->anchor);
    if (code->anchor) s->anchor_version = code->anchor->storage->version;
    s->n_in = n_in;
    s->n_out = n_out;
    s->birth = ++ctx->storages_made;
    s->rng_seed = ctx->rng_seed;
    s->rng_offset = ctx->rng_offset;
    s->autocast = ctx->autocast;
    s->module_path = ctx->module_path;
    for (int32_t k = 0; k < n_in; ++k) {
        s->in[k].version = in[k]->storage->version; /* what the forward is about to see */
        in[k]->storage->seen = s->birth;
    }
    *out = s;
    return GT_OK;
}

/* --- watching the forward ------------------------------------------------------------------------------------------------------------ */

/* A storage's `seen` and `flows` hold the birth number of the segment that set them. Segments and storages are numbered together. */
static gt_status note_use(segment *s, gt_tensor *t) {
    gt__storage *storage = t->storage;
    if (storage->birth > s->birth || storage->seen == s->birth) return GT_OK;
    GT_TRY(reserve(&s->used, s->n_used, &s->cap_used, sizeof *s->used));
    /* A leaf may be given other memory (gt_module_to_dtype): its handle shows it, an alias would not. */
    gt_tensor *same = t->node == NULL && t->view_base == NULL ? gt_tensor_retain(t) : gt__tensor_alias(t);
    if (same == NULL) return GT_OUT_OF_HOST_MEMORY;
    s->used[s->n_used++] = (gt__saved){.tensor = same, .version = storage->version};
    storage->seen = s->birth;
    return GT_OK;
}

static bool flows_from(const segment *s, const gt_tensor *t) { return gt__needs_grad(t) || t->storage->flows == s->birth; }

gt_status gt__segment_saw(const gt__call *call) {
    segment *s = call->ctx->segment;
    bool flows = false;
    /* In training batch norm moves its statistics and does not read them. */
    bool moves = gt__op_table[call->op].shape == gt__shape_batch_norm && call->attr.norm.training;
    for (int32_t k = 0; k < call->n_in; ++k) {
        if (call->in[k] == NULL || (moves && (k == 3 || k == 4))) continue;
        GT_TRY(note_use(s, call->in[k]));
        flows |= flows_from(s, call->in[k]);
    }
    /* In a no-grad region of the caller's own nothing flows. */
    if (!flows || s->ctx->no_grad != s->level || gt__op_table[call->op].grad == gt__grad_none) return GT_OK;
    for (int32_t k = 0; k < call->n_out; ++k) {
        gt_tensor *out = call->out[k];
        if (out && gt__dtype_is_float(out->meta.dtype)) out->storage->flows = s->birth;
    }
    return GT_OK;
}

gt_status gt__segment_overwrites(gt_tensor *tensor, gt_tensor *source) {
    segment *s = tensor->ctx->segment;
    GT_TRY(note_use(s, tensor));
    if (source == NULL) return GT_OK;
    GT_TRY(note_use(s, source));
    if (s->ctx->no_grad != s->level || !flows_from(s, source)) return GT_OK;
    char text[2 * GT__SHAPE_TEXT];
    GT_REQUIRE(
        tensor->storage->birth > s->birth, GT_BAD_STATE,
        "checkpoint: %s was made outside the segment and would be overwritten with something that requires a gradient; return that as "
        "an output of the segment instead",
        gt__tensor_text(tensor, text, sizeof text));
    tensor->storage->flows = s->birth;
    return GT_OK;
}

gt_status gt__segment_flag(gt_context *ctx, bool *flag, gt_tensor *anchor) {
    segment *s = ctx->segment;
    GT_TRY(reserve(&s->flags, s->n_flags, &s->cap_flags, sizeof *s->flags));
    s->flags[s->n_flags++] =
        (flag_state){.flag = flag, .anchor = gt_tensor_retain(anchor), .version = anchor->storage->version, .value = *flag};
    return GT_OK;
}

/* --- running the caller's function ---------------------------------------------------------------------------------------------------- */

static void release_all(gt_tensor **list, int32_t count) {
    for (int32_t k = 0; k < count; ++k) {
        gt_tensor_release(list[k]);
        list[k] = NULL;
    }
}

/* Runs the code in a scope; out[] are counted. Whatever it leaves open is closed. */
static gt_status run_code(gt_context *ctx, const gt__segment_code *code, gt_tensor *const *in, int32_t n_in, gt_tensor **out,
                          int32_t n_out) {
    gt__open_regions open;
    gt_tensor *made[GT_CHECKPOINT_MAX_OUTPUTS] = {NULL};
    GT_TRY(gt__regions_enter(ctx, &open));
    gt_status status = code->run(code, in, n_in, made);
    if (status != GT_OK && gt_last_error()->status != status)
        status = GT_RAISE(status, "checkpoint: the segment returned %s (%d)", gt_status_name(status), (int)status);
    if (status == GT_OK && !gt__regions_hold(ctx, &open))
        status =
            GT_RAISE(GT_CALLBACK, "checkpoint: the segment ended a scope or a no-grad, autocast or offload region that it had not begun");
    for (int32_t k = 0; k < n_out; ++k) out[k] = status == GT_OK ? gt_tensor_retain(made[k]) : NULL;
    gt__regions_leave(ctx, &open);
    for (int32_t k = 0; k < n_out && status == GT_OK; ++k) {
        if (out[k] && out[k]->ctx != ctx)
            status = GT_RAISE(GT_CALLBACK, "checkpoint: output %d of the segment belongs to another context", (int)k);
    }
    if (status != GT_OK) release_all(out, n_out);
    return status;
}

/* Hands counted results to the innermost scope: all or none. */
static gt_status give(gt_tensor **made, gt_tensor **out, int32_t n_out) {
    for (int32_t k = 0; k < n_out; ++k) {
        if (made[k] == NULL) continue;
        out[k] = gt__scope_add(made[k]);
        made[k] = NULL;
        if (out[k]) continue;
        if (gt_last_error()->status == GT_OK) (void)GT_RAISE(GT_OUT_OF_HOST_MEMORY, "checkpoint: no host memory");
        release_all(made, n_out);
        memset(out, 0, (size_t)n_out * sizeof *out);
        return GT_OUT_OF_HOST_MEMORY;
    }
    return GT_OK;
}

/* --- forward ---------------------------------------------------------------------------------------------------------------------------- */

/* An output over memory that others can see too (a view of an input, of a weight or of another output): a copy, since the record knows it as a result
 * of its own. A handle that was there before keeps its own history and needs none. */
static gt_status own_memory(const segment *s, gt_tensor *const *in, gt_tensor **made, int32_t k) {
    gt_tensor *t = made[k];
    bool shared = t->storage->birth <= s->birth;
    for (int32_t i = 0; i < s->n_in; ++i)
        if (in[i] == t) return GT_OK;
    if (gt__needs_grad(t)) return GT_OK;
    for (int32_t i = 0; i < k; ++i) shared |= made[i] && made[i]->storage == t->storage;
    if (!shared) return GT_OK;
    gt__meta meta = t->meta;
    if (!gt__meta_is_dense(&meta)) gt__meta_set_row_major(&meta);
    gt_tensor *own = gt__tensor_new_for(s->ctx, &meta, GT_MEMORY_TEMPORARY, "checkpoint");
    if (own == NULL) return gt_last_error()->status;
    gt_status status = gt__op_into(GT__OP_COPY, &t, 1, NULL, own);
    if (status != GT_OK) {
        gt_tensor_release(own);
        return status;
    }
    if (t->storage->flows == s->birth) own->storage->flows = s->birth;
    gt_tensor_release(t);
    made[k] = own;
    return GT_OK;
}

/* Outputs that carry a gradient of the segment's. Others are leaves, or have a history of their own. */
static bool is_result(const segment *s, const gt_tensor *t) {
    return t && t->storage->flows == s->birth && !gt__needs_grad(t) && gt__dtype_is_float(t->meta.dtype);
}

static gt_status record(segment *s, gt_tensor *const *in, gt_tensor **made) {
    gt__node *node;
    GT_TRY(gt__node_new(s->ctx, GT__OP_CHECKPOINT, s->n_in, &node));
    gt_status status = GT_OK;
    node->attr.checkpoint = s;
    s->references++;
    node->n_out = s->n_out;
    for (int32_t k = 0; k < s->n_in; ++k) {
        uint32_t version = s->in[k].version;
        GT_TRY_GOTO(status, gt__node_connect(node, k, in[k]), done);
        GT_TRY_GOTO(status, gt__save(&s->in[k], in[k], GT_MEMORY_TEMPORARY), done);
        s->in[k].version = version;
    }
    for (int32_t k = 0; k < s->n_out; ++k) {
        if (!is_result(s, made[k])) continue;
        node->out_dtype[k] = made[k]->meta.dtype;
        gt__node_retain(node);
        made[k]->node = node;
        made[k]->output = (uint8_t)k;
        made[k]->requires_grad = 1;
    }
done:
    gt__node_release(node);
    return status;
}

static gt_status run_forward(segment *s, gt_tensor *const *in, gt_tensor **made) {
    gt_context *ctx = s->ctx;
    s->level = ++ctx->no_grad;
    ctx->segment = s;
    gt_status status = run_code(ctx, &s->code, in, s->n_in, made, s->n_out);
    ctx->segment = NULL;
    ctx->no_grad--;
    bool any = false;
    for (int32_t k = 0; k < s->n_out && status == GT_OK; ++k) {
        if (made[k] == NULL) continue;
        status = own_memory(s, in, made, k);
        any |= status == GT_OK && is_result(s, made[k]);
    }
    if (status == GT_OK && any) status = record(s, in, made);
    return status;
}

gt_status gt__checkpoint(gt_context *ctx, const gt__segment_code *code, gt_tensor *const *in, int32_t n_in, gt_tensor **out,
                         int32_t n_out) {
    gt_tensor *made[GT_CHECKPOINT_MAX_OUTPUTS] = {NULL};
    memset(out, 0, (size_t)n_out * sizeof *out);
    uint64_t seed = ctx->rng_seed, offset = ctx->rng_offset;
    gt_status status;
    if (ctx->no_grad != 0) { /* nothing is recorded here; in a segment, the outer one watches */
        status = run_code(ctx, code, in, n_in, made, n_out);
    } else {
        segment *s;
        GT_TRY(segment_new(ctx, code, in, n_in, n_out, &s));
        status = run_forward(s, in, made);
        gt__segment_release(s);
    }
    if (status == GT_OK) status = give(made, out, n_out);
    if (status != GT_OK) {
        release_all(made, n_out);
        ctx->rng_seed = seed;
        ctx->rng_offset = offset;
    }
    return status;
}

/* --- again, in backward ---------------------------------------------------------------------------------------------------------------- */

static gt_status changed(const segment *s, const gt__saved *saved, const char *what) {
    char text[2 * GT__SHAPE_TEXT];
    const char *path = s->module_path;
    GT_FAIL_HINT(
        GT_SAVED_MODIFIED, "change it after the backward, or work on a copy",
        "checkpoint%s%s%s: %s, %s, was changed in place (version %u, the forward used %u), so that the segment cannot be computed again",
        path ? " \"" : "", path ? path : "", path ? "\"" : "", what, gt__tensor_text(saved->tensor, text, sizeof text),
        (unsigned)saved->tensor->storage->version, (unsigned)saved->version);
}

static gt_status check_unchanged(const segment *s) {
    GT_REQUIRE(s->code.anchor == NULL || s->code.anchor->storage->version == s->anchor_version, GT_BAD_STATE,
               "checkpoint \"%s\": the module was destroyed before the backward that needs it", s->module_path ? s->module_path : "");
    for (int32_t k = 0; k < s->n_in; ++k) {
        char what[32];
        if (s->in[k].tensor->storage->version == s->in[k].version) continue;
        (void)snprintf(what, sizeof what, "input %d", (int)k);
        return changed(s, &s->in[k], what);
    }
    for (int32_t k = 0; k < s->n_used; ++k)
        if (s->used[k].tensor->storage->version != s->used[k].version) return changed(s, &s->used[k], "a tensor used in it");
    return GT_OK;
}

/* The inputs as the forward was given them: leaves themselves, others as handles with the same history. Counted. */
static gt_status inputs_again(const gt__node *node, const segment *s, gt_tensor **in) {
    for (int32_t k = 0; k < s->n_in; ++k) {
        const gt__edge *edge = &node->edges[k];
        if (edge->leaf) {
            if (edge->leaf->storage != s->in[k].tensor->storage) return changed(s, &s->in[k], "an input");
            in[k] = gt_tensor_retain(edge->leaf);
            continue;
        }
        if (s->in[k].tensor->storage->parcel) GT_TRY(gt__offload_fetch(s->in[k].tensor));
        in[k] = gt__tensor_alias(s->in[k].tensor);
        if (in[k] == NULL) return GT_OUT_OF_HOST_MEMORY;
        if (edge->node == NULL) continue;
        gt__node_retain(edge->node);
        in[k]->node = edge->node;
        in[k]->output = (uint8_t)edge->output;
        in[k]->requires_grad = 1;
    }
    return GT_OK;
}

/* Flags whose owner is gone belonged to something that the segment itself made. */
static bool flag_lives(const flag_state *f) { return f->anchor->storage && f->anchor->storage->version == f->version; }

static void flags_set(segment *s) {
    for (int32_t i = 0; i < s->n_flags; ++i)
        if (flag_lives(&s->flags[i])) s->flags[i].now = *s->flags[i].flag;
    for (int32_t i = s->n_flags - 1; i >= 0; --i) /* of several values, the first is the one to begin with */
        if (flag_lives(&s->flags[i])) *s->flags[i].flag = s->flags[i].value;
}

static void flags_put_back(segment *s) {
    for (int32_t i = 0; i < s->n_flags; ++i)
        if (flag_lives(&s->flags[i])) *s->flags[i].flag = s->flags[i].now;
}

static gt_status run_as_before(segment *s, gt_tensor *const *in, gt_tensor **out) {
    gt_context *ctx = s->ctx;
    const struct {
        segment *watching;
        const char *path;
        uint64_t seed, offset;
        int32_t no_grad, depth, layers, run;
        gt_dtype autocast;
        bool recomputing;
    } now = {ctx->segment,      ctx->module_path, ctx->rng_seed,   ctx->rng_offset, ctx->no_grad,
             ctx->module_depth, ctx->layers,      ctx->layers_run, ctx->autocast,   ctx->recomputing};
    ctx->segment = NULL;
    ctx->module_path = s->module_path;
    ctx->rng_seed = s->rng_seed;
    ctx->rng_offset = s->rng_offset;
    ctx->no_grad = 0;
    ctx->module_depth++; /* how far the forward has come is not told by what runs again */
    ctx->autocast = s->autocast;
    ctx->recomputing = true;
    flags_set(s);
    gt_status status = run_code(ctx, &s->code, in, s->n_in, out, s->n_out);
    flags_put_back(s);
    ctx->segment = now.watching;
    ctx->module_path = now.path;
    ctx->rng_seed = now.seed;
    ctx->rng_offset = now.offset;
    ctx->no_grad = now.no_grad;
    ctx->module_depth = now.depth;
    ctx->layers = now.layers;
    ctx->layers_run = now.run;
    ctx->autocast = now.autocast;
    ctx->recomputing = now.recomputing;
    return status;
}

static gt_status check_same(const gt__node *node, gt_tensor *const *out) {
    char a[GT__SHAPE_TEXT], b[GT__SHAPE_TEXT];
    for (int32_t k = 0; k < node->n_out; ++k) {
        const gt_tensor *dy = node->pending[k];
        if (dy == NULL || (out[k] && gt__meta_same_shape(&dy->meta, &out[k]->meta) && out[k]->meta.dtype == node->out_dtype[k])) continue;
        GT_FAIL_HINT(GT_BAD_STATE, "a segment must do the same each time it is called",
                     "checkpoint: output %d of the segment was %s %s in the forward and %s %s when it was computed again", (int)k,
                     gt_dtype_name(node->out_dtype[k]), gt__meta_text(a, sizeof a, &dy->meta),
                     out[k] ? gt_dtype_name(out[k]->meta.dtype) : "NULL", out[k] ? gt__meta_text(b, sizeof b, &out[k]->meta) : "");
    }
    return GT_OK;
}

gt_status gt__segment_run_again(gt__node *node, gt_tensor **out) {
    segment *s = node->attr.checkpoint;
    GT_TRY(check_unchanged(s));
    gt_tensor *few[8] = {NULL}, **in = few;
    if (s->n_in > (int32_t)GT__COUNT(few)) {
        in = gt__calloc((size_t)s->n_in, sizeof *in);
        if (in == NULL) return GT_OUT_OF_HOST_MEMORY;
    }
    gt_status status = inputs_again(node, s, in);
    if (status == GT_OK) status = run_as_before(s, in, out);
    release_all(in, s->n_in);
    if (in != few) gt__free(in);
    if (status == GT_OK) status = check_same(node, out);
    if (status != GT_OK) release_all(out, s->n_out);
    return status;
}

/* --- the public call -------------------------------------------------------------------------------------------------------------------- */

static gt_status run_callback(const gt__segment_code *code, gt_tensor *const *in, int32_t n_in, gt_tensor **out) {
    (void)n_in;
    return code->fn(code->user, in, out);
}

gt_status gt_checkpoint(gt_context *ctx, gt_checkpoint_fn fn, void *user, gt_tensor *const *inputs, int32_t n_inputs, gt_tensor **outputs,
                        int32_t n_outputs) {
    GT_REQUIRE_HANDLE(ctx);
    GT_REQUIRE(fn != NULL && outputs != NULL, GT_BAD_ARGUMENT, "gt_checkpoint: %s is NULL", fn ? "outputs" : "fn");
    GT_REQUIRE(n_inputs >= 0 && (n_inputs == 0 || inputs != NULL), GT_BAD_ARGUMENT, "gt_checkpoint: %d inputs%s", (int)n_inputs,
               inputs ? "" : " at NULL");
    GT_REQUIRE(n_outputs >= 1 && n_outputs <= GT_CHECKPOINT_MAX_OUTPUTS, GT_BAD_ARGUMENT,
               "gt_checkpoint: %d outputs, but a segment has from 1 to %d", (int)n_outputs, GT_CHECKPOINT_MAX_OUTPUTS);
    for (int32_t k = 0; k < n_inputs; ++k) {
        if (inputs[k] == NULL) return gt__error_null("gt_checkpoint", "an input", __FILE__, __LINE__);
        GT_TRY(gt__tensor_check(inputs[k], "gt_checkpoint"));
        GT_REQUIRE(inputs[k]->ctx == ctx, GT_BAD_DEVICE, "gt_checkpoint: input %d belongs to another context", (int)k);
    }
    const gt__segment_code code = {.run = run_callback, .fn = fn, .user = user};
    return gt__checkpoint(ctx, &code, inputs, n_inputs, outputs, n_outputs);
}
