/* Facts for the out-of-memory report: which records are alive, what they keep, and what of it would be half as large under autocast.
 *
 * A walk goes from every handle, and from what a running backward holds, along the edges to all records behind. It marks them by number and threads its stack
 * through next_free, so that it needs no memory. */
#include "core/checkpoint.h"
#include "core/offload.h"
#include "core/oom.h"

#include <stdlib.h>
#include <unistd.h>

/* gt__node.walk_flags */
enum { CONSUMED = 1, HALF = 2 };
/* gt__storage.walk_flags */
enum { SEEN = 1, AS_HALF = 2, AS_WIDE = 4, COPIED = 8 };

typedef struct walker {
    gt_context *ctx;
    gt__report_facts *facts;
    uint32_t number; /* of the walk: marks what it has reached */
    uint32_t graph;  /* of the graph that is being counted, a larger one: takes the place of `number` in its records */
    gt__node *stack;
    int64_t nodes;
    uint64_t newest; /* sequence of the newest graph's result */
    uint64_t oldest;
    uint64_t bytes, held; /* newly counted in the graph that is being walked */
    bool met;             /* it has records in common with another */
    uint64_t batch_bytes;
} walker;

static bool is_live(const gt__node *node) {
    if (!node->freed) return true;
    for (int32_t k = 0; k < node->n_in; ++k)
        if (node->edges[k].node) return true;
    return false;
}

/* --- what a record keeps ---------------------------------------------------------------------------------------------------------------- */

typedef void (*saved_fn)(walker *w, gt__node *node, const gt__saved *saved, int32_t input, int32_t output); /* the other of the two is -1 */

static void each_saved(walker *w, gt__node *node, saved_fn fn) {
    if (node->op == GT__OP_CHECKPOINT) {
        int32_t count;
        const gt__saved *in = gt__segment_inputs(node->attr.checkpoint, &count);
        for (int32_t k = 0; k < count; ++k)
            if (in[k].tensor) fn(w, node, &in[k], k, -1);
        return;
    }
    for (int32_t k = 0; k < GT__MAX_SAVED_IN; ++k)
        if (node->saved_in[k].tensor) fn(w, node, &node->saved_in[k], k, -1);
    for (int32_t k = 0; k < GT__MAX_OUT; ++k)
        if (node->saved_out[k].tensor) fn(w, node, &node->saved_out[k], -1, k);
}

/* The storage's flags in this walk. */
static uint32_t *flags_of(const walker *w, gt__storage *storage) {
    if (storage->walk != w->number) {
        storage->walk = w->number;
        storage->walk_flags = 0;
    }
    return &storage->walk_flags;
}

static bool keeps_activation(const gt__storage *storage) {
    return storage->block && gt__block_category(storage->block) == GT_MEMORY_ACTIVATION;
}

static void count_saved(walker *w, gt__node *node, const gt__saved *saved, int32_t input, int32_t output) {
    (void)output;
    gt__storage *storage = saved->tensor->storage;
    if (storage->block == NULL) return;
    uint64_t bytes = gt__block_bytes(storage->block);
    uint32_t *flags = flags_of(w, storage);
    if ((*flags & SEEN) == 0) {
        if (storage->references == storage->saved) w->held += bytes;
        if (keeps_activation(storage)) w->bytes += bytes;
    }
    *flags |= SEEN;
    if (keeps_activation(storage)) return;
    /* Data that the caller made, which nothing is differentiated by: its first size is probably the batch. Of two as large, the one that is not flattened. */
    const gt__meta *meta = &saved->tensor->meta;
    if (input < 0 || node->edges[input].node || node->edges[input].leaf || meta->ndim < 1 || meta->shape[0] < 1) return;
    gt_memory_category category = gt__block_category(storage->block);
    if (category != GT_MEMORY_INPUT && category != GT_MEMORY_USER) return;
    if (bytes < w->batch_bytes || (bytes == w->batch_bytes && meta->shape[0] >= w->facts->batch)) return;
    w->batch_bytes = bytes;
    w->facts->batch = meta->shape[0];
}

/* --- walking ---------------------------------------------------------------------------------------------------------------------------- */

static void push(walker *w, gt__node *node) {
    node->next_free = w->stack;
    w->stack = node;
}

static gt__node *pop(walker *w) {
    gt__node *node = w->stack;
    w->stack = node->next_free;
    node->next_free = NULL;
    return node;
}

static void reach(walker *w, gt__node *node) {
    if (node == NULL || node->walk == w->number) return;
    node->walk = w->number;
    node->walk_flags = 0;
    ++w->nodes;
    push(w, node);
}

/* Marks all records, and those that another one uses. */
static void mark_all(walker *w) {
    for (gt_tensor *t = w->ctx->live.live_next; t != &w->ctx->live; t = t->live_next) reach(w, t->node);
    for (int32_t i = 0; gt__backward_waiting(w->ctx, i); ++i) reach(w, gt__backward_waiting(w->ctx, i));
    while (w->stack) {
        gt__node *node = pop(w);
        for (int32_t k = 0; k < node->n_in; ++k) {
            gt__node *from = node->edges[k].node;
            if (from == NULL) continue;
            reach(w, from);
            from->walk_flags |= CONSUMED;
        }
    }
}

static bool is_counted(const walker *w, const gt__node *node) { return node->walk != w->number; }

static void count_node(walker *w, gt__node *node) {
    if (node == NULL) return;
    if (is_counted(w, node)) {
        w->met |= node->walk != w->graph;
        return;
    }
    node->walk = w->graph;
    push(w, node);
}

/* Counts what is reached from `root` for the first time. */
static void count_from(walker *w, gt__node *root) {
    count_node(w, root);
    while (w->stack) {
        gt__node *node = pop(w);
        each_saved(w, node, count_saved);
        for (int32_t k = 0; k < node->n_in; ++k) count_node(w, node->edges[k].node);
    }
}

static void graph_begins(walker *w) {
    w->graph = ++w->ctx->oom->walks;
    w->bytes = w->held = 0;
    w->met = false;
}

/* Results that share records are one graph. */
static void graph_ends(walker *w, const gt__node *root) {
    gt__report_facts *facts = w->facts;
    facts->saved += w->bytes;
    facts->held += w->held;
    if (!w->met || facts->graphs == 0) facts->graphs++;
    if (root->sequence >= w->newest) {
        w->newest = root->sequence;
        facts->held_newest = w->held;
    } else if (w->met) { /* with a newer result of the same graph */
        facts->held_newest += w->held;
    }
    if (root->sequence > w->oldest) return;
    w->oldest = root->sequence;
    facts->root_op = gt__op_table[root->op].name;
    facts->root_module = root->module_path;
}

static void count_graphs(walker *w) {
    graph_begins(w);
    gt__node *running = NULL;
    for (int32_t i = 0; gt__backward_waiting(w->ctx, i); ++i) {
        gt__node *node = gt__backward_waiting(w->ctx, i);
        if (running == NULL || node->sequence > running->sequence) running = node;
        count_from(w, node);
    }
    if (running) graph_ends(w, running);
    for (gt_tensor *t = w->ctx->live.live_next; t != &w->ctx->live; t = t->live_next) {
        gt__node *root = t->node;
        if (root == NULL || (root->walk_flags & CONSUMED) || is_counted(w, root) || !is_live(root)) continue;
        graph_begins(w);
        count_from(w, root);
        graph_ends(w, root);
    }
}

/* --- half precision --------------------------------------------------------------------------------------------------------------------- */

static bool input_is_half(const gt__node *node, int32_t k) {
    const gt__node *from = k < node->n_in ? node->edges[k].node : NULL;
    return from && (from->walk_flags & HALF);
}

/* Would the record's result be half under autocast? Its inputs are known. */
static bool result_is_half(const gt__node *node) {
    switch (gt__op_table[node->op].cast) {
    case GT_CAST_HALF:
        return true;
    case GT_CAST_F32:
        return false;
    case GT_CAST_PROMOTE:
        for (int32_t k = 0; k < node->n_in; ++k)
            if (!input_is_half(node, k)) return false;
        return true;
    default:
        return input_is_half(node, 0);
    }
}

static void weigh_saved(walker *w, gt__node *node, const gt__saved *saved, int32_t input, int32_t output) {
    gt__storage *storage = saved->tensor->storage;
    if (storage->block == NULL || saved->tensor->meta.dtype != GT_DTYPE_F32) return;
    uint64_t half_bytes = gt__block_bytes(storage->block) / 2;
    uint32_t *flags = flags_of(w, storage);
    gt_cast_policy policy = gt__op_table[node->op].cast;
    bool half = output >= 0 ? output == 0 && (node->walk_flags & HALF)
                            : policy == GT_CAST_HALF || (policy != GT_CAST_F32 && input_is_half(node, input));
    if (!keeps_activation(storage)) { /* the caller's data stays as it is beside its copy */
        if (half && (*flags & COPIED) == 0) w->facts->half_copies += half_bytes;
        if (half) *flags |= COPIED;
        return;
    }
    if (half && (*flags & (AS_HALF | AS_WIDE)) == 0) w->facts->half_saved += half_bytes;
    if (half && (*flags & (AS_HALF | AS_WIDE)) == AS_WIDE) w->facts->half_copies += half_bytes;
    if (!half && (*flags & (AS_HALF | AS_WIDE)) == AS_HALF) { /* both are kept */
        w->facts->half_saved -= half_bytes;
        w->facts->half_copies += half_bytes;
    }
    *flags |= half ? AS_HALF : AS_WIDE;
}

static int by_age(const void *a, const void *b) {
    gt__node *const *x = a, *const *y = b;
    return ((*x)->sequence > (*y)->sequence) - ((*x)->sequence < (*y)->sequence);
}

/* All records, from the oldest to the newest; w->nodes of them. The caller frees it. NULL: none, or no host memory. */
static gt__node **sorted_nodes(walker *w) {
    int64_t capacity = w->nodes, count = 0;
    gt__node **list = capacity > 0 ? gt__calloc((size_t)capacity, sizeof *list) : NULL;
    if (list == NULL) return NULL;
    w->number = ++w->ctx->oom->walks;
    for (gt_tensor *t = w->ctx->live.live_next; t != &w->ctx->live; t = t->live_next) reach(w, t->node);
    for (int32_t i = 0; gt__backward_waiting(w->ctx, i); ++i) reach(w, gt__backward_waiting(w->ctx, i));
    while (w->stack) {
        gt__node *node = pop(w);
        if (count < capacity) list[count++] = node;
        for (int32_t k = 0; k < node->n_in; ++k) reach(w, node->edges[k].node);
    }
    qsort(list, (size_t)count, sizeof *list, by_age);
    w->nodes = count;
    return list;
}

static void weigh_halves(walker *w) {
    gt__report_facts *facts = w->facts;
    gt__node **nodes = sorted_nodes(w);
    if (nodes == NULL) return;
    for (int64_t i = 0; i < w->nodes; ++i) {
        gt__node *node = nodes[i];
        facts->autocast |= gt__dtype_is_half(node->out_dtype[0]);
        if (result_is_half(node)) node->walk_flags |= HALF;
        each_saved(w, node, weigh_saved);
        for (int32_t k = 0; k < node->n_in && gt__op_table[node->op].cast == GT_CAST_HALF; ++k) {
            gt_tensor *leaf = node->edges[k].leaf;
            if (leaf == NULL || leaf->meta.dtype != GT_DTYPE_F32 || leaf->storage->block == NULL) continue;
            uint32_t *flags = flags_of(w, leaf->storage);
            if ((*flags & COPIED) == 0) facts->half_copies += gt__block_bytes(leaf->storage->block) / 2;
            *flags |= COPIED;
        }
    }
    gt__free(nodes);
}

/* Ops that run in the dtype of what they are given are in half precision where most of the network is. */
static bool temporary_is_half(void *user, const char *op) {
    (void)user;
    return gt_autocast_policy(op) != GT_CAST_F32;
}

/* --- all of them ------------------------------------------------------------------------------------------------------------------------ */

static uint64_t missing_gradients(const gt_context *ctx) {
    uint64_t bytes = 0;
    for (const gt_tensor *t = ctx->live.live_next; t != &ctx->live; t = t->live_next) {
        if (!t->requires_grad || t->node || t->view_base || t->grad_valid) continue;
        bytes += (uint64_t)t->meta.numel * gt_dtype_size(gt__dtype_accumulate(t->meta.dtype));
    }
    return bytes;
}

static void device_facts(gt_context *ctx, gt__report_facts *facts) {
    const gt__backend *b = ctx->backend;
    int32_t previous = gt__enter(ctx);
    if (b->memory_info(ctx->device, &facts->device_free, &facts->device_total) != GT_OK) facts->device_free = facts->device_total = 0;
    int32_t found = b->memory_holders ? b->memory_holders(ctx->device, ctx->oom->holders, GT__HOLDERS_MOST) : 0;
    gt__leave(ctx, previous);
    facts->holders = ctx->oom->holders;
    facts->n_holders = GT__MIN(GT__MAX(found, 0), GT__HOLDERS_MOST);
    facts->process = (int64_t)getpid();
}

void gt__oom_facts(gt_context *ctx, gt__report_facts *facts) {
    device_facts(ctx, facts);
    facts->layers = ctx->layers;
    facts->layers_run = ctx->layers_run;
    facts->autocast = ctx->autocast != GT_DTYPE_F32;
    facts->offload = gt__offload_is_on(ctx);
    facts->workspace_limit = ctx->options.workspace_limit;
    facts->missing_gradients = missing_gradients(ctx);
    facts->half_result = temporary_is_half;
    walker w = {.ctx = ctx, .facts = facts, .number = ++ctx->oom->walks, .oldest = UINT64_MAX};
    mark_all(&w);
    count_graphs(&w);
    weigh_halves(&w);
}
