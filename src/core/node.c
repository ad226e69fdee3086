/* Records of calls: making, connecting and freeing them. */
#include "core/checkpoint.h"

static size_t align16(size_t bytes) { return (bytes + 15) & ~(size_t)15; }

gt_status gt__node_new(gt_context *ctx, gt__op_id op, int32_t n_in, gt__node **out) {
    gt__node *node = n_in <= GT__NODE_INLINE_IN ? ctx->free_nodes : NULL;
    int32_t capacity = GT__MAX(n_in, GT__NODE_INLINE_IN);
    if (node) {
        ctx->free_nodes = node->next_free;
        gt__edge *edges = node->edges;
        gt__meta *metas = node->in_meta;
        uint8_t *needs = node->needs;
        memset(node, 0, sizeof *node);
        node->edges = edges;
        node->in_meta = metas;
        node->needs = needs;
        memset(edges, 0, (size_t)capacity * sizeof *edges);
        memset(needs, 0, (size_t)capacity);
    } else {
        size_t head = align16(sizeof *node), edge_bytes = align16((size_t)capacity * sizeof(gt__edge));
        size_t meta_bytes = align16((size_t)capacity * sizeof(gt__meta));
        char *memory = gt__calloc(1, head + edge_bytes + meta_bytes + (size_t)capacity);
        if (memory == NULL) return GT_OUT_OF_HOST_MEMORY;
        node = (gt__node *)(void *)memory;
        node->edges = (gt__edge *)(void *)(memory + head);
        node->in_meta = (gt__meta *)(void *)(memory + head + edge_bytes);
        node->needs = (uint8_t *)(memory + head + edge_bytes + meta_bytes);
    }
    node->references = 1;
    node->sequence = ++ctx->node_sequence;
    node->ctx = ctx;
    node->op = op;
    node->n_in = n_in;
    node->cap_in = capacity;
    node->n_out = 1;
    node->module_path = ctx->module_path;
    *out = node;
    return GT_OK;
}

void gt__nodes_free(gt_context *ctx) {
    while (ctx->free_nodes) {
        gt__node *node = ctx->free_nodes;
        ctx->free_nodes = node->next_free;
        gt__free(node);
    }
}

void gt__node_retain(gt__node *node) { node->references++; }

gt_status gt__node_connect(gt__node *node, int32_t k, gt_tensor *tensor) {
    node->in_meta[k] = tensor->meta;
    if (!gt__needs_grad(tensor)) return GT_OK;
    gt__node *from;
    GT_TRY(gt__tensor_node(tensor, &from));
    gt__edge *edge = &node->edges[k];
    node->needs[k] = 1;
    edge->output = tensor->output;
    if (from) {
        /* A link to the base of a view may be made just now: a consumer is newer than its sources, or backward would come to them too early. */
        if (from->sequence > node->sequence) node->sequence = ++node->ctx->node_sequence;
        edge->node = from;
        gt__node_retain(from);
    } else {
        edge->leaf = gt_tensor_retain(tensor);
    }
    return GT_OK;
}

void gt__node_drop_pending(gt__node *node) {
    for (int k = 0; k < node->n_out; ++k) {
        gt_tensor_release(node->pending[k]);
        gt_tensor_release(node->second[k]);
        node->pending[k] = node->second[k] = NULL;
    }
}

static void drop_saved(gt__node *node) {
    for (int k = 0; k < GT__MAX_SAVED_IN; ++k) {
        gt__node *recipe = node->saved_in[k].recipe;
        gt_tensor_release(node->saved_in[k].tensor);
        node->saved_in[k].tensor = NULL;
        node->saved_in[k].recipe = NULL;
        if (recipe) gt__node_release(recipe);
    }
    for (int k = 0; k < GT__MAX_OUT; ++k) {
        gt_tensor_release(node->saved_out[k].tensor);
        node->saved_out[k].tensor = NULL;
    }
    if (node->op == GT__OP_CUSTOM && node->attr.custom.op) {
        gt__custom_release(node->attr.custom.op);
        node->attr.custom.op = NULL;
    }
    if (node->op == GT__OP_CHECKPOINT && node->attr.checkpoint) {
        gt__segment_release(node->attr.checkpoint);
        node->attr.checkpoint = NULL;
    }
}

/* Puts the sources whose last reference goes with `node`'s edges on `dead`. Leaves have no record behind them. */
static void drop_edges(gt__node *node, gt__node **dead) {
    for (int32_t k = 0; k < node->n_in; ++k) {
        gt__edge *edge = &node->edges[k];
        gt_tensor *leaf = edge->leaf;
        gt__node *from = edge->node;
        edge->leaf = NULL;
        edge->node = NULL;
        gt_tensor_release(leaf);
        if (from && --from->references == 0) {
            from->next_free = *dead;
            *dead = from;
        }
    }
}

static void free_dead(gt__node *dead) {
    while (dead) {
        gt__node *node = dead;
        gt_context *ctx = node->ctx;
        dead = node->next_free;
        gt__node_drop_pending(node);
        drop_saved(node);
        drop_edges(node, &dead);
        if (node->cap_in > GT__NODE_INLINE_IN) {
            gt__free(node);
        } else {
            node->next_free = ctx->free_nodes;
            ctx->free_nodes = node;
        }
    }
}

void gt__node_release(gt__node *node) {
    if (--node->references > 0) return;
    node->next_free = NULL;
    free_dead(node);
}

void gt__node_strip(gt__node *node) {
    gt__node *dead = NULL;
    drop_saved(node);
    drop_edges(node, &dead);
    node->freed = true;
    free_dead(dead);
}
