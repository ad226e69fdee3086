/* Elementwise calls become chains. An item is what is done at one place of the program: an instruction, or calls that are to be one chain. Two items are joined at the place of the
 * earlier or the later one, if what stands between lets the other go there, nothing is kept in memory for longer than it is worth, and the device can run the two as one. */
#include "step/flow.h"
#include "step/passes.h"

enum { MEMBERS = GT__CHAIN_NODES + 1 };

typedef struct work {
    gt__program *program;
    gt__device *device;
    gt__flow flow;
    int32_t *place; /* of the instructions: where it is done */
    int32_t *first; /* of the places: the first instruction that is done there; -1: none */
    int32_t *next;  /* of the instructions: the one after it at its place; -1: none */
    int32_t *run;   /* of the instructions: one is a forward and the backward after it */
    bool *can;      /* of the instructions: may be in a chain */
} work;

static const gt__call *call_of(const work *w, int32_t i) { return &w->program->list[i].call->call; }

/* --- what may be in a chain ----------------------------------------------------------------------------------------------------------------- */

/* Which element of `from` belongs to which of `to`'s, counted as they lie in memory; `to` is dense. */
static bool find_spread(const gt__meta *from, const gt__meta *to, int64_t *inner, int64_t *size) {
    int32_t order[GT_MAX_DIMS], n = 0, missing = to->ndim - from->ndim;
    if (missing < 0) return false;
    for (int32_t axis = 0; axis < to->ndim; ++axis) { /* the innermost first */
        if (to->shape[axis] == 1) continue;
        int32_t at = n++;
        for (; at > 0 && to->strides[order[at - 1]] > to->strides[axis]; --at) order[at] = order[at - 1];
        order[at] = axis;
    }
    *inner = *size = 1;
    bool ended = false;
    for (int32_t k = 0; k < n; ++k) {
        int32_t axis = order[k] - missing;
        int64_t extent = axis < 0 ? 1 : from->shape[axis], stride = axis < 0 ? 0 : from->strides[axis];
        if (extent != 1 && extent != to->shape[order[k]]) return false;
        if (extent == 1 || stride == 0) {
            ended |= *size > 1;
            if (!ended) *inner *= to->shape[order[k]];
        } else {
            if (ended || stride != *size) return false;
            *size *= extent;
        }
    }
    if (*size == 1) *inner = 1;
    return true;
}

static bool is_sum(const gt__call *c) { return c->op == GT__OP_SUM || c->op == GT__OP_MEAN; }

/* Of a sum: the reduced axes are the innermost ones in memory, or the outermost. */
static bool find_axes(const gt__call *c, gt__chain_sum *sum) {
    const gt__meta *x = &c->in[0]->meta;
    int64_t kept_least = INT64_MAX, kept_most = 0, reduced_least = INT64_MAX, reduced_most = 0, kept_before = 0;
    sum->kept = sum->reduced = 1;
    for (int32_t axis = 0; axis < x->ndim; ++axis) {
        if (x->shape[axis] == 1) continue;
        if (c->attr.reduce.mask >> axis & 1) {
            sum->reduced *= x->shape[axis];
            reduced_least = GT__MIN(reduced_least, x->strides[axis]);
            reduced_most = GT__MAX(reduced_most, x->strides[axis]);
        } else {
            if (sum->kept > 1 && x->strides[axis] > kept_before) return false; /* results are row-major */
            kept_before = x->strides[axis];
            sum->kept *= x->shape[axis];
            kept_least = GT__MIN(kept_least, x->strides[axis]);
            kept_most = GT__MAX(kept_most, x->strides[axis]);
        }
    }
    sum->leading = sum->kept > 1 && reduced_least > kept_most;
    return sum->reduced > 1 && (sum->kept == 1 || sum->leading || kept_least > reduced_most);
}

static bool can_sum(const gt__call *c) {
    gt__chain_sum sum;
    const gt_tensor *x = c->in[0], *y = c->out[0];
    return c->n_in == 1 && x->meta.numel > 0 && gt__dtype_is_float(x->meta.dtype) && gt__dtype_is_float(y->meta.dtype) &&
           gt__meta_is_dense(&x->meta) && gt__meta_is_row_major(&y->meta) && find_axes(c, &sum);
}

static bool can_be_in(const gt__instruction *n) {
    if (n->kind != GT__DO_CALL || n->phase == GT__PHASE_UPDATE) return false;
    const gt__call *c = &n->call->call;
    if (c->n_in < 1 || c->in[0] == NULL || c->n_out != 1 || c->out[0] == NULL) return false;
    if (is_sum(c)) return can_sum(c);
    const gt__meta *y = &c->out[0]->meta;
    if (c->n_in != gt__chain_operands(c->op) || y->numel == 0 || !gt__dtype_is_float(y->dtype) || !gt__meta_is_dense(y)) return false;
    for (int32_t k = 0; k < c->n_in; ++k) {
        int64_t inner, size;
        if (c->in[k] == NULL) return false;
        const gt__meta *x = &c->in[k]->meta;
        bool dtype = gt__chain_rounds_only(c->op) ? gt__dtype_is_float(x->dtype) : x->dtype == y->dtype;
        if (!dtype || !find_spread(x, y, &inner, &size)) return false;
    }
    /* Its numbers go by the logical order. */
    return c->op != GT__OP_DROPOUT || (gt__meta_is_row_major(y) && gt__meta_is_row_major(&c->in[0]->meta));
}

/* --- building a chain ------------------------------------------------------------------------------------------------------------------------ */

typedef struct building {
    const work *w;
    gt__chain *c;
    const void *made[GT__CHAIN_NODES]; /* where the nodes' results are; NULL: written over by a later one */
} building;

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    return (uintptr_t)a < (uintptr_t)b + b_bytes && (uintptr_t)b < (uintptr_t)a + a_bytes;
}

static size_t node_bytes(const gt__chain *c, int32_t k) { return (size_t)c->n * gt_dtype_size(c->nodes[k].dtype); }

static bool in_sum(const gt__chain *c, const void *data, size_t bytes) {
    return c->sum.data && overlap(data, bytes, c->sum.data, (size_t)c->sum.kept * gt_dtype_size(c->sum.dtype));
}

/* What an operand is: a result of the chain's, or an input of it. */
static bool find_operand(building *b, const gt_tensor *t, const gt__meta *to, gt__chain_operand *operand) {
    gt__chain *c = b->c;
    gt__chain_input in = {.data = t->data, .dtype = t->meta.dtype};
    if (!find_spread(&t->meta, to, &in.inner, &in.size)) return false;
    size_t bytes = gt__chain_input_bytes(&in);
    bool whole = in.inner == 1 && in.size == c->n;
    if (in_sum(c, in.data, bytes)) return false;
    for (int32_t k = c->n_nodes - 1; k >= 0; --k) {
        if (b->made[k] == NULL || !overlap(b->made[k], node_bytes(c, k), in.data, bytes)) continue;
        *operand = k;
        return whole && b->made[k] == in.data && c->nodes[k].dtype == in.dtype;
    }
    for (int32_t k = 0; k < c->n_inputs; ++k) {
        const gt__chain_input *other = &c->inputs[k];
        if (other->data != in.data || other->dtype != in.dtype || other->inner != in.inner || other->size != in.size) continue;
        *operand = ~k;
        return true;
    }
    if (c->n_inputs == GT__CHAIN_INPUTS) return false;
    *operand = ~c->n_inputs;
    c->inputs[c->n_inputs++] = in;
    return true;
}

/* Room for a new result in memory: where it lies over inputs it lies exactly over one, and over an earlier result likewise. */
static bool place_result(building *b, const void *data, gt_dtype dtype) {
    gt__chain *c = b->c;
    size_t bytes = (size_t)c->n * gt_dtype_size(dtype);
    if (in_sum(c, data, bytes)) return false;
    for (int32_t k = 0; k < c->n_inputs; ++k) {
        if (!overlap(data, bytes, c->inputs[k].data, gt__chain_input_bytes(&c->inputs[k]))) continue;
        if (data != c->inputs[k].data || dtype != c->inputs[k].dtype || !gt__chain_input_is_whole(c, k)) return false;
    }
    for (int32_t k = 0; k < c->n_nodes; ++k) {
        if (b->made[k] == NULL || !overlap(data, bytes, b->made[k], node_bytes(c, k))) continue;
        if (data != b->made[k] || dtype != c->nodes[k].dtype) return false;
        b->made[k] = NULL;
    }
    return true;
}

static bool add_sum(building *b, const gt__call *call) {
    gt__chain *c = b->c;
    gt__chain_sum sum = {.data = call->out[0]->data, .dtype = call->out[0]->meta.dtype, .mean = call->op == GT__OP_MEAN};
    size_t bytes = (size_t)call->out[0]->meta.numel * gt_dtype_size(sum.dtype);
    if (c->sum.data || c->n_nodes == 0 || call->in[0]->meta.numel != c->n) return false;
    int32_t inputs = c->n_inputs;
    if (!find_operand(b, call->in[0], &call->in[0]->meta, &sum.node) || c->n_inputs > inputs || sum.node < 0) return false;
    for (int32_t k = 0; k < c->n_inputs; ++k)
        if (overlap(sum.data, bytes, c->inputs[k].data, gt__chain_input_bytes(&c->inputs[k]))) return false;
    for (int32_t k = 0; k < c->n_nodes; ++k)
        if (b->made[k] && overlap(sum.data, bytes, b->made[k], node_bytes(c, k))) return false;
    (void)find_axes(call, &sum);
    c->sum = sum;
    return true;
}

static bool add_node(building *b, const gt__call *call) {
    gt__chain *c = b->c;
    const gt_tensor *y = call->out[0];
    if (c->n_nodes == 0) c->n = y->meta.numel;
    if (y->meta.numel != c->n || c->n_nodes == GT__CHAIN_NODES) return false;
    gt__chain_node node = {.op = call->op, .dtype = y->meta.dtype};
    if (!find_operand(b, call->in[0], &y->meta, &node.a)) return false;
    if (call->n_in == 2 && !find_operand(b, call->in[1], &y->meta, &node.b)) return false;
    if (call->op == GT__OP_DROPOUT) {
        node.value = call->attr.random.a;
        node.seed = call->attr.random.seed;
        node.offset = call->attr.random.offset;
        node.cells = call->attr.random.cells;
    } else if (call->op == GT__OP_ADD_SCALAR || call->op == GT__OP_MUL_SCALAR || call->op == GT__OP_POW_SCALAR) {
        node.value = call->attr.scalar.value;
    }
    if (!place_result(b, y->data, node.dtype)) return false;
    b->made[c->n_nodes] = y->data;
    c->nodes[c->n_nodes++] = node;
    return true;
}

/* Somebody beside these members touches the memory. */
static bool seen_outside(const work *w, const void *data, const int32_t *members, int32_t n) {
    int32_t buffer = gt__program_buffer(w->program, data);
    if (buffer < 0 || w->program->buffers[buffer].input) return true;
    for (int32_t k = 0; k < gt__flow_count(&w->flow, buffer); ++k) {
        int32_t i = gt__flow_touch(&w->flow, buffer, k)->instruction, m = 0;
        while (m < n && members[m] != i) ++m;
        if (m == n) return true;
    }
    return false;
}

static bool build_chain(const work *w, const int32_t *members, int32_t n, gt__chain *c) {
    building b = {.w = w, .c = c};
    *c = (gt__chain){0};
    for (int32_t m = 0; m < n; ++m) {
        const gt__call *call = call_of(w, members[m]);
        if (!(is_sum(call) ? add_sum(&b, call) : add_node(&b, call))) return false;
    }
    for (int32_t k = 0; k < c->n_nodes; ++k) {
        if (b.made[k] == NULL || !seen_outside(w, b.made[k], members, n)) continue;
        if (c->n_outputs == GT__CHAIN_OUTPUTS) return false;
        c->outputs[c->n_outputs].data = (void *)(uintptr_t)b.made[k];
        c->outputs[c->n_outputs++].node = k;
    }
    return true;
}

/* --- joining two items ------------------------------------------------------------------------------------------------------------------------- */

static int32_t members_of(const work *w, int32_t place, int32_t *members, int32_t n) {
    for (int32_t i = w->first[place]; i >= 0; i = w->next[i]) {
        if (n < MEMBERS) members[n] = i;
        ++n;
    }
    return n;
}

/* What a step that fails must not have changed is changed here. */
static bool commits(const gt__instruction *n) {
    bool task = n->kind == GT__DO_STEP_TASK || n->kind == GT__DO_GRAD_STEP_TASK;
    return n->kind == GT__DO_UPDATE || (task && n->task.task.kind != GT__STEP_SEED);
}

/* *alone: there is nothing between the two places. */
static bool may_pass(const work *w, int32_t a, int32_t b, bool *alone) {
    *alone = true;
    for (int32_t p = a + 1; p < b; ++p) {
        if (w->first[p] < 0) continue;
        *alone = false;
        if (commits(&w->program->list[w->first[p]])) return false;
    }
    return true;
}

/* Nobody who is done between the two places must be done before or after the members. */
static bool free_between(const work *w, const int32_t *members, int32_t n, int32_t a, int32_t b) {
    for (int32_t m = 0; m < n; ++m) {
        for (int32_t t = w->flow.first[members[m]]; t < w->flow.first[members[m] + 1]; ++t) {
            const gt__touch *mine = &w->flow.touches[t];
            for (int32_t k = 0; k < gt__flow_count(&w->flow, mine->area); ++k) {
                const gt__touch *other = gt__flow_touch(&w->flow, mine->area, k);
                int32_t place = w->place[other->instruction];
                if (place <= a || place >= b || (!mine->access.writes && !other->access.writes)) continue;
                if (gt__touch_begin(mine) < gt__touch_end(other) && gt__touch_begin(other) < gt__touch_end(mine)) return false;
            }
        }
    }
    return true;
}

static bool touched_by(const work *w, int32_t area, int32_t from_place, int32_t to_place) {
    for (int32_t k = 0; k < gt__flow_count(&w->flow, area); ++k) {
        int32_t place = w->place[gt__flow_touch(&w->flow, area, k)->instruction];
        if (place >= from_place && place <= to_place) return true;
    }
    return false;
}

/* Bytes that live longer, less those that live shorter, while what is between the places is done. */
static int64_t longer(const work *w, const int32_t *members, int32_t n, int32_t a, int32_t b, bool later) {
    int64_t bytes = 0;
    for (int32_t m = 0; m < n; ++m) {
        for (int32_t t = w->flow.first[members[m]]; t < w->flow.first[members[m] + 1]; ++t) {
            const gt__touch *touch = &w->flow.touches[t];
            int32_t area = touch->area;
            if (area >= w->program->n_buffers || w->program->buffers[area].input) continue;
            bool seen = false; /* by another touch of the members */
            for (int32_t k = 0; k < m && !seen; ++k)
                for (int32_t u = w->flow.first[members[k]]; u < w->flow.first[members[k] + 1]; ++u) seen |= w->flow.touches[u].area == area;
            for (int32_t u = w->flow.first[members[m]]; u < t; ++u) seen |= w->flow.touches[u].area == area;
            if (seen) continue;
            bool needed_before = touched_by(w, area, 0, later ? a - 1 : a),
                 needed_after = touched_by(w, area, later ? b : b + 1, INT32_MAX);
            if (needed_before && needed_after) continue; /* it lives there in any case */
            int64_t size = (int64_t)w->program->buffers[area].bytes;
            if (later)
                bytes += needed_before ? size : needed_after ? -size : 0;
            else
                bytes += needed_after ? size : needed_before ? -size : 0;
        }
    }
    return bytes;
}

static void put_at(work *w, const int32_t *members, int32_t n, int32_t place, int32_t other) {
    w->first[other] = -1;
    w->first[place] = members[0];
    for (int32_t m = 0; m < n; ++m) {
        w->place[members[m]] = place;
        w->next[members[m]] = m + 1 < n ? members[m + 1] : -1;
    }
}

static void try_join(work *w, int32_t a, int32_t b) {
    int32_t members[MEMBERS];
    bool alone;
    int32_t early = members_of(w, a, members, 0), n = members_of(w, b, members, early);
    if (a == b || n > MEMBERS || w->run[a] != w->run[b] || !may_pass(w, a, b, &alone)) return;
    bool later = free_between(w, members, early, a, b) && (alone || longer(w, members, early, a, b, true) <= 0);
    bool sooner =
        !later && free_between(w, members + early, n - early, a, b) && (alone || longer(w, members + early, n - early, a, b, false) <= 0);
    gt__chain c;
    if ((!later && !sooner) || !build_chain(w, members, n, &c) || !w->device->backend->can_chain(w->device, &c, false)) return;
    put_at(w, members, n, later ? b : a, later ? a : b);
}

/* Whoever makes what the operand is. */
static int32_t maker_of(const work *w, int32_t i, const gt_tensor *t) {
    int32_t found = -1, area = -1;
    for (int32_t k = w->flow.first[i]; k < w->flow.first[i + 1]; ++k)
        if (w->flow.touches[k].access.place == (const void *)&t->data) area = w->flow.touches[k].area;
    for (int32_t k = 0; area >= 0 && k < gt__flow_count(&w->flow, area); ++k) {
        const gt__touch *touch = gt__flow_touch(&w->flow, area, k);
        int32_t place = w->place[touch->instruction];
        if (touch->access.writes && touch->access.pointer == t->data && place < w->place[i] && (found < 0 || place > w->place[found]))
            found = touch->instruction;
    }
    return found;
}

static void join_makers(work *w) {
    for (int32_t i = 0; i < w->program->count; ++i) {
        if (!w->can[i]) continue;
        const gt__call *c = call_of(w, i);
        for (int32_t k = 0; k < c->n_in; ++k) {
            int32_t maker = maker_of(w, i, c->in[k]);
            if (maker >= 0 && w->can[maker] && !is_sum(call_of(w, maker))) try_join(w, w->place[maker], w->place[i]);
        }
    }
}

/* Those that read the same are joined to have it read once. */
static void join_readers(work *w) {
    for (int32_t area = 0; area < w->flow.n_areas; ++area) {
        int32_t before = -1;
        for (int32_t k = 0; k < gt__flow_count(&w->flow, area); ++k) {
            const gt__touch *t = gt__flow_touch(&w->flow, area, k);
            int32_t i = t->instruction;
            if (!w->can[i] || !t->access.reads || t->access.bytes < 4096) continue;
            if (before >= 0) try_join(w, GT__MIN(w->place[before], w->place[i]), GT__MAX(w->place[before], w->place[i]));
            before = i;
        }
    }
}

/* --- the program anew --------------------------------------------------------------------------------------------------------------------------- */

static gt_status add_item(const work *w, int32_t place, gt__instruction *list, int32_t *count, bool *joined) {
    int32_t members[MEMBERS], n = members_of(w, place, members, 0);
    gt__chain c;
    char text[GT__CHAIN_TEXT];
    const gt__instruction *at = &w->program->list[place];
    if (n > 1 && build_chain(w, members, n, &c)) {
        c.module = at->module;
        if (w->device->backend->can_chain(w->device, &c, true)) {
            gt__chain *made = gt__malloc(sizeof *made);
            if (made == NULL) return GT_OUT_OF_HOST_MEMORY;
            *made = c;
            made->name = gt__context_string(w->device->ctx, gt__chain_text(&c, text, sizeof text));
            if (made->name == NULL) {
                gt__free(made);
                return GT_OUT_OF_HOST_MEMORY;
            }
            list[(*count)++] =
                (gt__instruction){.kind = GT__DO_CHAIN, .phase = at->phase, .module = at->module, .memory = made, .chain = made};
            for (int32_t m = 0; m < n; ++m) joined[members[m]] = true;
            return GT_OK;
        }
    }
    for (int32_t m = 0; m < n; ++m) {
        gt__instruction *one = &list[(*count)++];
        *one = w->program->list[members[m]];
        one->phase = at->phase;
    }
    return GT_OK;
}

static gt_status write_list(work *w) {
    gt__program *p = w->program;
    gt__instruction *list = gt__calloc((size_t)p->count + 1, sizeof *list);
    bool *joined = gt__calloc((size_t)p->count + 1, sizeof *joined);
    int32_t count = 0;
    gt_status status = list && joined ? GT_OK : GT_OUT_OF_HOST_MEMORY;
    for (int32_t place = 0; place < p->count && status == GT_OK; ++place)
        if (w->first[place] >= 0) status = add_item(w, place, list, &count, joined);
    if (status == GT_OK) {
        for (int32_t i = 0; i < p->count; ++i)
            if (joined[i]) gt__instruction_free(&p->list[i]);
        gt__free(p->list);
        p->list = list;
        p->count = count;
        p->capacity = count + 1;
    } else {
        for (int32_t k = 0; list && k < count; ++k)
            if (list[k].kind == GT__DO_CHAIN) gt__instruction_free(&list[k]);
        gt__free(list);
    }
    gt__free(joined);
    return status;
}

static gt_status make_work(work *w) {
    const gt__program *p = w->program;
    size_t n = (size_t)p->count + 1;
    w->place = gt__malloc(4 * n * sizeof *w->place);
    w->can = gt__calloc(n, sizeof *w->can);
    if (w->place == NULL || w->can == NULL) return GT_OUT_OF_HOST_MEMORY;
    w->first = w->place + n;
    w->next = w->first + n;
    w->run = w->next + n;
    bool before = false;
    for (int32_t i = 0, run = 0; i < p->count; ++i) {
        bool backward = p->list[i].phase == GT__PHASE_BACKWARD;
        run += before && !backward;
        before = backward;
        w->place[i] = w->first[i] = i;
        w->next[i] = -1;
        w->run[i] = run;
        w->can[i] = can_be_in(&p->list[i]);
    }
    return gt__flow_make(w->program, &w->flow);
}

gt_status gt__pass_chains(gt__program *program, gt__device *device) {
    work w = {.program = program, .device = device};
    if (device->backend->can_chain == NULL || program->count == 0) return GT_OK;
    gt_status status = make_work(&w);
    if (status == GT_OK) {
        join_makers(&w);
        join_readers(&w);
        status = write_list(&w);
    }
    gt__flow_free(&w.flow);
    gt__free(w.place);
    gt__free(w.can);
    return status;
}
