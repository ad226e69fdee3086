/* A plan to be looked at: as text, one line an instruction, and as a graph for Graphviz. */
#include "memory/report.h"
#include "step/step.h"

#include <stdlib.h>

/* --- names of memory outside of the program ------------------------------------------------------------------------------------------------ */

typedef struct name {
    const char *begin;
    size_t bytes;
    gt__text text;
} name;

typedef struct names {
    name *list;
    int32_t count, capacity;
} names;

static gt_status add_name(names *n, const gt_tensor *t, const char *format, const char *a, const char *b) GT__PRINTF(3, 0);
static gt_status add_name(names *n, const gt_tensor *t, const char *format, const char *a, const char *b) {
    if (t == NULL || t->data == NULL) return GT_OK;
    if (n->count == n->capacity) {
        int32_t capacity = GT__MAX(n->capacity * 2, 64);
        name *grown = gt__realloc(n->list, (size_t)capacity * sizeof *grown);
        if (grown == NULL) return GT_OUT_OF_HOST_MEMORY;
        n->list = grown;
        n->capacity = capacity;
    }
    name *made = &n->list[n->count++];
    *made = (name){.begin = t->data, .bytes = gt_tensor_bytes(t)};
    return gt__text_add(&made->text, format, a, b);
}

static void names_free(names *n) {
    for (int32_t i = 0; i < n->count; ++i) gt__text_free(&n->list[i].text);
    gt__free(n->list);
}

static gt_status add_leaf(names *n, const gt_tensor *t, const char *called) {
    GT_TRY(add_name(n, t, "\"%s\"%s", called, ""));
    const gt_tensor *half = t->storage ? t->storage->half : NULL;
    return half ? add_name(n, half, "\"%s\" in %s", called, gt_dtype_name(half->meta.dtype)) : GT_OK;
}

static gt_status module_names(names *n, gt_module *m) {
    GT_TRY(gt__module_table(m));
    for (int32_t i = 0; i < m->n_parameters + m->n_buffers; ++i) GT_TRY(add_leaf(n, m->table[i].tensor, m->table[i].name));
    return GT_OK;
}

static gt_status optimizer_names(names *n, const gt_optimizer *o, const char *number) {
    for (int32_t i = 0; i < o->count; ++i) {
        const gt_tensor *p = o->slots[i].parameter;
        const char *called = gt_tensor_name(p);
        if (called[0] == '\0') called = "parameter";
        GT_TRY(add_leaf(n, p, called));
        for (int32_t k = 0; k < GT__OPTIMIZER_STATES; ++k) {
            const char *state;
            const gt_tensor *t = gt__optimizer_state(o, i, k, &state);
            if (t) GT_TRY(add_name(n, t, "%s of \"%s\"", state, called));
        }
    }
    return add_name(n, o->cells, "optimizer%s%s", number, " cells");
}

static int by_begin(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)((const name *)a)->begin, y = (uintptr_t)((const name *)b)->begin;
    return (x > y) - (x < y);
}

/* Where several names are for one place, any of them is right. */
static gt_status collect_names(names *n, const gt_step *step, const gt__plan *plan) {
    char number[16];
    GT_TRY(add_name(n, plan->loss, "%s%s", "loss", ""));
    for (int32_t i = 0; i < GT_STEP_MAX_OUTPUTS; ++i) {
        (void)gt__number_text(number, sizeof number, i);
        GT_TRY(add_name(n, plan->outputs[i], "%s %s", "output", number));
    }
    if (step->options.module) GT_TRY(module_names(n, step->options.module));
    for (int32_t i = 0; i < step->options.n_optimizers; ++i) {
        number[0] = '\0';
        if (step->options.n_optimizers > 1) {
            number[0] = ' ';
            (void)gt__number_text(number + 1, sizeof number - 1, i);
        }
        GT_TRY(optimizer_names(n, step->optimizers[i], number));
    }
    if (step->window) GT_TRY(add_name(n, gt__window_memory(step->window), "%s%s", "window", " cells"));
    if (step->options.scaler) GT_TRY(add_name(n, step->options.scaler->cells, "%s%s", "scaler", " cells"));
    GT_TRY(add_name(n, step->cells, "%s%s", "step", " cells"));
    for (int32_t i = 0, known = n->count; i < plan->n_watched; ++i) {
        const gt_tensor *t = plan->watched[i].handle;
        const char *called = gt_tensor_name(t);
        int32_t k = 0;
        while (k < known && n->list[k].begin != t->data) ++k;
        if (k < known) continue;
        GT_TRY(called[0] ? add_leaf(n, t, called) : add_name(n, t, "%s%s", "constant", ""));
    }
    qsort(n->list, (size_t)n->count, sizeof *n->list, by_begin);
    return GT_OK;
}

static const char *find_name(const names *n, const void *pointer) {
    int32_t low = 0, high = n->count; /* the first that begins after it */
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if ((uintptr_t)n->list[middle].begin <= (uintptr_t)pointer)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0) return NULL;
    const name *before = &n->list[low - 1];
    return (uintptr_t)pointer < (uintptr_t)before->begin + before->bytes ? before->text.data : NULL;
}

/* --- one instruction -------------------------------------------------------------------------------------------------------------------------- */

typedef struct writer {
    gt__text *text;
    const gt__program *program;
    const names *names;
} writer;

static gt_status place(const writer *w, const void *pointer) {
    int32_t b = gt__program_buffer(w->program, pointer);
    if (b < 0) {
        const char *called = find_name(w->names, pointer);
        return gt__text_add(w->text, "%s", called ? called : "cells");
    }
    size_t inside = (size_t)((uintptr_t)pointer - w->program->buffers[b].address);
    return inside ? gt__text_add(w->text, "%%%d+%zu", (int)b, inside) : gt__text_add(w->text, "%%%d", (int)b);
}

static gt_status array(const writer *w, const gt__meta *meta, const void *data) {
    char shape[GT__SHAPE_TEXT];
    if (data) GT_TRY(place(w, data));
    return gt__text_add(w->text, "%s%s%s", data ? " " : "", gt_dtype_name(meta->dtype), gt__meta_text(shape, sizeof shape, meta));
}

static gt_status arrays(const writer *w, const gt__meta *metas, void *const *data, int32_t n, bool *first) {
    for (int32_t k = 0; k < n; ++k) {
        if (data[k] == NULL) continue;
        GT_TRY(gt__text_add(w->text, "%s", *first ? "" : ", "));
        GT_TRY(array(w, &metas[k], data[k]));
        *first = false;
    }
    return GT_OK;
}

static gt_status tensors(const writer *w, gt_tensor *const *list, int32_t n, bool holes) {
    bool first = true;
    for (int32_t k = 0; k < n; ++k) {
        if (list[k] == NULL && !holes) continue;
        GT_TRY(gt__text_add(w->text, "%s", first ? "" : ", "));
        GT_TRY(list[k] ? array(w, &list[k]->meta, list[k]->data) : gt__text_add(w->text, "-"));
        first = false;
    }
    return GT_OK;
}

static gt_status custom_backward(const writer *w, const gt__custom_gradient *g) {
    bool first = true;
    GT_TRY(arrays(w, g->in_meta, g->in_grad, g->n_in, &first));
    GT_TRY(gt__text_add(w->text, " = custom_backward[%s](", gt__custom_name(g->op)));
    first = true;
    GT_TRY(arrays(w, g->out_meta, g->out_grad, g->n_out, &first));
    GT_TRY(arrays(w, g->in_meta, g->in, g->n_in, &first));
    GT_TRY(arrays(w, g->out_meta, g->out, g->n_out, &first));
    return gt__text_add(w->text, ")");
}

/* What the other kinds write, or read. */
enum { LISTED = 4 };
typedef struct listing {
    const writer *w;
    bool writes;
    int32_t count;
    gt_status status;
} listing;

static void list_access(void *user, const gt__access *access) {
    listing *l = user;
    if (!(l->writes ? access->writes : access->reads) || l->status != GT_OK) return;
    if (l->count++ >= LISTED) return;
    l->status = gt__text_add(l->w->text, "%s", l->count > 1 ? ", " : "");
    if (l->status == GT_OK) l->status = place(l->w, access->pointer);
}

static gt_status list_of(const writer *w, const gt__instruction *n, bool writes) {
    listing l = {.w = w, .writes = writes};
    gt__instruction_visit((gt__instruction *)(uintptr_t)n, list_access, &l); /* which changes nothing of itself */
    GT_TRY(l.status);
    return l.count > LISTED ? gt__text_add(w->text, ", and %d more", (int)(l.count - LISTED)) : GT_OK;
}

static gt_status other(const writer *w, const gt__instruction *n) {
    GT_TRY(list_of(w, n, true));
    GT_TRY(gt__text_add(w->text, " = %s", gt__instruction_name(n)));
    if (n->kind == GT__DO_UPDATE) GT_TRY(gt__text_add(w->text, "[%d parameters]", (int)n->update.count));
    if (n->kind == GT__DO_GRAD_STEP_TASK) GT_TRY(gt__text_add(w->text, "[%d gradients]", (int)n->task.count));
    if (n->kind == GT__DO_COPY) GT_TRY(gt__text_add(w->text, "[%zu bytes]", n->copy.bytes));
    bool transfer = n->kind == GT__DO_LEAVE || n->kind == GT__DO_FETCH || n->kind == GT__DO_AWAIT;
    if (transfer) GT_TRY(gt__text_add(w->text, "[%zu bytes, number %d]", n->transfer.bytes, (int)n->transfer.number));
    if (n->kind == GT__DO_ZERO) GT_TRY(gt__text_add(w->text, "[%zu bytes]", n->zero.bytes));
    GT_TRY(gt__text_add(w->text, "("));
    if (n->kind == GT__DO_FETCH || (n->kind == GT__DO_COPY && n->copy.kind == GT__COPY_HOST_TO_DEVICE))
        GT_TRY(gt__text_add(w->text, "host memory"));
    else
        GT_TRY(list_of(w, n, false));
    return gt__text_add(w->text, ")");
}

/* Elements of n, or of as many as are repeated. */
static gt_status chain_array(const writer *w, const void *data, gt_dtype dtype, int64_t n, bool *first) {
    char shape[GT__SHAPE_TEXT];
    if (data == NULL) return GT_OK;
    GT_TRY(gt__text_add(w->text, "%s", *first ? "" : ", "));
    *first = false;
    GT_TRY(place(w, data));
    return gt__text_add(w->text, " %s%s", gt_dtype_name(dtype), gt__shape_text(shape, sizeof shape, 1, &n));
}

static gt_status chain(const writer *w, const gt__chain *c) {
    char text[GT__CHAIN_TEXT];
    bool first = true;
    for (int32_t k = 0; k < c->n_outputs; ++k) GT_TRY(chain_array(w, c->outputs[k].data, c->nodes[c->outputs[k].node].dtype, c->n, &first));
    GT_TRY(chain_array(w, c->sum.data, c->sum.dtype, c->sum.kept, &first));
    GT_TRY(gt__text_add(w->text, " = %s(", gt__chain_text(c, text, sizeof text)));
    first = true;
    for (int32_t k = 0; k < c->n_inputs; ++k) GT_TRY(chain_array(w, c->inputs[k].data, c->inputs[k].dtype, c->inputs[k].size, &first));
    return gt__text_add(w->text, ")");
}

static gt_status instruction(const writer *w, const gt__instruction *n) {
    if (n->kind == GT__DO_CUSTOM_BACKWARD) return custom_backward(w, n->custom);
    if (n->kind == GT__DO_CHAIN) return chain(w, n->chain);
    if (n->kind != GT__DO_CALL) return other(w, n);
    const gt__call *call = &n->call->call;
    GT_TRY(tensors(w, call->out, call->n_out, false));
    GT_TRY(gt__text_add(w->text, " = %s", gt__op_table[call->op].name));
    if (call->op == GT__OP_CUSTOM) GT_TRY(gt__text_add(w->text, "[%s]", gt__custom_name(call->attr.custom.op)));
    GT_TRY(gt__text_add(w->text, "("));
    GT_TRY(tensors(w, call->in, call->n_in, true));
    return gt__text_add(w->text, ")");
}

/* --- text --------------------------------------------------------------------------------------------------------------------------------------- */

static const char *const phases[GT__PHASE_COUNT] = {"-", "forward", "backward", "update"};

static gt_status head(const writer *w, const gt__plan *plan) {
    GT_TRY(gt__text_add(w->text, "plan of"));
    for (int32_t i = 0; i < plan->n_inputs; ++i) {
        GT_TRY(gt__text_add(w->text, "%s", i ? ", " : " "));
        int32_t b = plan->input_buffers[i];
        GT_TRY(array(w, &plan->inputs[i], b >= 0 ? (const void *)(uintptr_t)plan->program.buffers[b].address : NULL));
    }
    if (plan->micro_batches > 1) GT_TRY(gt__text_add(w->text, ", in %d micro-batches", (int)plan->micro_batches));
    return gt__text_add(w->text, "%s\n   # phase    module           live       instruction\n", plan->training ? ", training" : "");
}

static gt_status foot(const writer *w, const gt__plan *plan) {
    char arena[GT__BYTES_TEXT];
    GT_TRY(gt__text_add(w->text, "%d instructions, %d buffers\narena: %s (%zu bytes); ", (int)plan->program.count,
                        (int)plan->program.n_buffers, gt__bytes_text(plan->arena_bytes, arena), plan->arena_bytes));
    GT_TRY(gt__plan_peak_text(plan, w->text));
    static const char *const known[] = {"not known before the step has run", "beside the arena", "in the arena"};
    return gt__text_add(w->text, "\nworkspace: %s\n", known[plan->measured]);
}

static gt_status lines(const writer *w, const gt__plan *plan, const uint64_t *live) {
    const gt__program *p = &plan->program;
    char bytes[GT__BYTES_TEXT];
    GT_TRY(head(w, plan));
    for (int32_t i = 0; i < p->count; ++i) {
        const gt__instruction *n = &p->list[i];
        GT_TRY(gt__text_add(w->text, "%4d %-8s %-16s %-10s ", (int)i, phases[n->phase], n->module ? n->module : "-",
                            gt__bytes_text(live[i], bytes)));
        GT_TRY(instruction(w, n));
        if (n->workspace) GT_TRY(gt__text_add(w->text, "  [workspace %s]", gt__bytes_text(n->workspace, bytes)));
        GT_TRY(gt__text_add(w->text, "\n"));
    }
    return foot(w, plan);
}

gt_status gt__plan_text(const gt_step *step, const gt__plan *plan, gt__text *text) {
    names n = {0};
    const writer w = {text, &plan->program, &n};
    uint64_t *live = gt__calloc((size_t)plan->program.count + 1, sizeof *live);
    gt_status status = live ? gt__plan_live(plan, live) : GT_OUT_OF_HOST_MEMORY;
    if (status == GT_OK) status = collect_names(&n, step, plan);
    if (status == GT_OK) status = lines(&w, plan, live);
    names_free(&n);
    gt__free(live);
    return status;
}

/* --- graph -------------------------------------------------------------------------------------------------------------------------------------- */

static const char *const colours[GT__PHASE_COUNT] = {"#eeeeee", "#cfe2f3", "#f9cb9c", "#b6d7a8"};

/* Between quotes of dot. */
static gt_status quoted(gt__text *text, const char *plain) {
    for (; *plain; ++plain) GT_TRY(gt__text_add(text, *plain == '"' || *plain == '\\' ? "\\%c" : "%c", *plain));
    return GT_OK;
}

static gt_status node(const writer *w, int32_t i) {
    const gt__instruction *n = &w->program->list[i];
    char bytes[GT__BYTES_TEXT], ops[GT__CHAIN_TEXT];
    GT_TRY(gt__text_add(w->text, "i%d [label=\"%d: ", (int)i, (int)i));
    if (n->kind == GT__DO_CUSTOM_BACKWARD || (n->kind == GT__DO_CALL && n->call->call.op == GT__OP_CUSTOM)) {
        GT_TRY(quoted(w->text, gt__custom_name(n->kind == GT__DO_CALL ? n->call->call.attr.custom.op : n->custom->op)));
        GT_TRY(gt__text_add(w->text, " "));
    }
    bool is_chain = n->kind == GT__DO_CHAIN;
    GT_TRY(gt__text_add(w->text, "%s", is_chain ? gt__chain_text(n->chain, ops, sizeof ops) : gt__instruction_name(n)));
    if (n->workspace) GT_TRY(gt__text_add(w->text, "\\nworkspace %s", gt__bytes_text(n->workspace, bytes)));
    return gt__text_add(w->text, "\", fillcolor=\"%s\"];\n", colours[n->phase]);
}

typedef struct numbered {
    const char *module;
    int32_t instruction;
} numbered;

static int by_module(const void *a, const void *b) {
    const numbered *x = a, *y = b;
    int order = strcmp(x->module, y->module);
    return order ? order : x->instruction - y->instruction;
}

static int32_t depth_of(const char *path) {
    int32_t depth = path[0] != '\0';
    for (; *path; ++path) depth += *path == '.';
    return depth;
}

/* How many of their leading names two paths share. */
static int32_t shared_depth(const char *a, const char *b) {
    int32_t depth = 0;
    while (*a && *b) {
        size_t x = strcspn(a, "."), y = strcspn(b, ".");
        if (x != y || strncmp(a, b, x) != 0) break;
        ++depth;
        a += x + (a[x] == '.');
        b += y + (b[y] == '.');
    }
    return depth;
}

/* Opens the clusters of `path` below its first `depth` names. */
static gt_status open_clusters(gt__text *text, const char *path, int32_t depth, int32_t *clusters) {
    for (int32_t level = 0; *path; ++level) {
        size_t length = strcspn(path, ".");
        if (level >= depth) {
            GT_TRY(gt__text_add(text, "subgraph cluster_%d {\nlabel=\"", (int)(*clusters)++));
            for (size_t i = 0; i < length; ++i) GT_TRY(gt__text_add(text, path[i] == '"' || path[i] == '\\' ? "\\%c" : "%c", path[i]));
            GT_TRY(gt__text_add(text, "\";\n"));
        }
        path += length + (path[length] == '.');
    }
    return GT_OK;
}

static gt_status close_clusters(gt__text *text, int32_t count) {
    while (count-- > 0) GT_TRY(gt__text_add(text, "}\n"));
    return GT_OK;
}

static gt_status nodes(const writer *w, const gt__plan *plan) {
    const gt__program *p = w->program;
    numbered *list = gt__calloc((size_t)p->count + 1, sizeof *list);
    if (list == NULL) return GT_OUT_OF_HOST_MEMORY;
    for (int32_t i = 0; i < p->count; ++i) list[i] = (numbered){p->list[i].module ? p->list[i].module : "", i};
    qsort(list, (size_t)p->count, sizeof *list, by_module);
    const char *path = "";
    int32_t clusters = 0;
    gt_status status = GT_OK;
    for (int32_t i = 0; i < p->count && status == GT_OK; ++i) {
        int32_t depth = shared_depth(path, list[i].module);
        status = close_clusters(w->text, depth_of(path) - depth);
        if (status == GT_OK) status = open_clusters(w->text, list[i].module, depth, &clusters);
        if (status == GT_OK) status = node(w, list[i].instruction);
        path = list[i].module;
    }
    if (status == GT_OK) status = close_clusters(w->text, depth_of(path));
    gt__free(list);
    for (int32_t i = 0; i < plan->n_inputs && status == GT_OK; ++i)
        status = gt__text_add(w->text, "in%d [label=\"input %d\", shape=ellipse, fillcolor=\"#ffffff\"];\n", (int)i, (int)i);
    return status;
}

/* Edges from whoever wrote a buffer last. */
typedef struct drawing {
    const writer *w;
    int32_t *from; /* of each buffer; -1: nobody yet */
    int32_t *to;   /* the last instruction that an edge was drawn to */
    int32_t now;
    bool writes;
    gt_status status;
} drawing;

static gt_status edge(const drawing *d, int32_t b, bool dashed) {
    const gt__buffer *buffer = &d->w->program->buffers[b];
    char shape[GT__SHAPE_TEXT], bytes[GT__BYTES_TEXT];
    GT_TRY(gt__text_add(d->w->text, "i%d -> i%d [label=\"%%%d ", (int)d->from[b], (int)d->now, (int)b));
    if (buffer->ndim >= 0)
        GT_TRY(gt__text_add(d->w->text, "%s%s", gt_dtype_name(buffer->dtype),
                            gt__shape_text(shape, sizeof shape, buffer->ndim, buffer->shape)));
    else
        GT_TRY(gt__text_add(d->w->text, "%s", gt__bytes_text(buffer->bytes, bytes)));
    return gt__text_add(d->w->text, "\"%s];\n", dashed ? ", style=dashed" : "");
}

static void draw(void *user, const gt__access *access) {
    drawing *d = user;
    int32_t b = gt__program_buffer(d->w->program, access->pointer);
    if (b < 0 || d->status != GT_OK) return;
    if (d->writes) { /* what was there before and is not read must still be done before */
        if (access->writes && d->from[b] >= 0 && d->from[b] != d->now && d->to[b] != d->now) d->status = edge(d, b, true);
        if (access->writes) d->from[b] = d->now;
        return;
    }
    if (!access->reads || d->from[b] < 0 || d->to[b] == d->now) return;
    d->to[b] = d->now;
    d->status = edge(d, b, false);
}

static gt_status edges(const writer *w, const gt__plan *plan) {
    const gt__program *p = w->program;
    drawing d = {.w = w};
    d.from = gt__calloc((size_t)p->n_buffers + 1, sizeof *d.from);
    d.to = gt__calloc((size_t)p->n_buffers + 1, sizeof *d.to);
    if (d.from == NULL || d.to == NULL) d.status = GT_OUT_OF_HOST_MEMORY;
    for (int32_t b = 0; b < p->n_buffers && d.status == GT_OK; ++b) d.from[b] = d.to[b] = -1;
    for (int32_t i = 0; i < plan->n_inputs && d.status == GT_OK; ++i) /* the first instruction takes them in */
        d.status = gt__text_add(w->text, "in%d -> i0;\n", (int)i);
    for (; d.now < p->count && d.status == GT_OK; ++d.now) {
        gt__instruction *n = &p->list[d.now];
        d.writes = false;
        gt__instruction_visit(n, draw, &d);
        d.writes = true;
        gt__instruction_visit(n, draw, &d);
        for (int32_t i = 0; i < d.now && n->kind == GT__DO_FETCH && d.status == GT_OK; ++i)
            if (p->list[i].kind == GT__DO_LEAVE && p->list[i].transfer.number == n->transfer.number)
                d.status = gt__text_add(w->text, "i%d -> i%d [label=\"host\", style=dotted];\n", (int)i, (int)d.now);
    }
    gt__free(d.from);
    gt__free(d.to);
    return d.status;
}

gt_status gt__plan_graph(const gt_step *step, const gt__plan *plan, gt__text *text) {
    (void)step;
    const writer w = {.text = text, .program = &plan->program};
    GT_TRY(gt__text_add(text, "digraph step {\nnewrank=true;\nnode [shape=box, style=filled, fontname=\"sans-serif\", fontsize=10];\n"
                              "edge [fontname=\"sans-serif\", fontsize=8];\n"));
    GT_TRY(nodes(&w, plan));
    GT_TRY(edges(&w, plan));
    return gt__text_add(text, "}\n");
}

/* --- public ------------------------------------------------------------------------------------------------------------------------------------- */

gt_status gt_step_describe(gt_step *step, gt_step_format format, char *buffer, size_t size, size_t *needed) {
    GT_REQUIRE_HANDLE(step);
    GT_REQUIRE(buffer != NULL || size == 0, GT_BAD_ARGUMENT, "gt_step_describe: the buffer is NULL and its size %zu", size);
    GT_REQUIRE(format == GT_STEP_TEXT || format == GT_STEP_GRAPHVIZ, GT_BAD_ARGUMENT,
               "gt_step_describe: format %d is none of gt_step_format", (int)format);
    GT_TRY(gt__tensor_check(step->cells, "gt_step_describe"));
    GT_REQUIRE(step->last != NULL, GT_BAD_STATE, "gt_step_describe: the step has not run yet, so there is no plan");
    gt__text text = {0};
    gt_status status = format == GT_STEP_TEXT ? gt__plan_text(step, step->last, &text) : gt__plan_graph(step, step->last, &text);
    if (status == GT_OK) {
        if (size > 0) {
            size_t length = GT__MIN(text.length, size - 1);
            memcpy(buffer, text.data, length);
            buffer[length] = '\0';
        }
        if (needed) *needed = text.length + 1;
    }
    gt__text_free(&text);
    return status;
}
