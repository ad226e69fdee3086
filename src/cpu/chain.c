/* Chains, block by block: a block's values are in registers of a few KiB that stay in the cache, or where they lie in memory as they are computed in. Functions, roundings and the
 * order of sums are those of the kernels, so that results are theirs to the bit. */
#include "cpu/chain.h"

#include "cpu/copy.h"
#include "cpu/map.h"
#include "cpu/reduce.h"

enum { REGISTER_BYTES = 4096, REGISTERS = 12, VALUES = GT__CHAIN_INPUTS + GT__CHAIN_NODES, NOWHERE = -1 };

/* A value is an input, or (the number of inputs) + a node. It is f64, or f32 for all other dtypes. */
typedef struct recipe {
    const gt__chain *chain;
    int64_t block;         /* elements: as many as fit into a register; a multiple of GT__CHUNK */
    int64_t cost;          /* simple operations an element, about */
    int32_t steps[VALUES]; /* the values in the order in which they are made: nodes, and inputs that must be converted or repeated */
    int32_t n_steps;
    int32_t same[VALUES];   /* the value that this one is, to the bit; most are themselves */
    int32_t reg[VALUES];    /* NOWHERE: in the input's or output's memory */
    int32_t last[VALUES];   /* the step that reads it last; n_steps: it is needed when all are done */
    int32_t direct[VALUES]; /* the output into which it is made; NOWHERE: it is stored at the end, if it is an output at all */
    const gt__map_functions *functions[GT__CHAIN_NODES];
} recipe;

static int32_t value_of(const gt__chain *c, gt__chain_operand o) { return o < 0 ? ~o : c->n_inputs + o; }
static int32_t value_of_output(const gt__chain *c, int32_t k) { return c->n_inputs + c->outputs[k].node; }
static bool is_input(const gt__chain *c, int32_t value) { return value < c->n_inputs; }
static const gt__chain_node *node_of(const gt__chain *c, int32_t value) { return &c->nodes[value - c->n_inputs]; }

static gt_dtype dtype_of(const gt__chain *c, int32_t value) {
    return is_input(c, value) ? c->inputs[value].dtype : node_of(c, value)->dtype;
}

/* --- the recipe ---------------------------------------------------------------------------------------------------------------------------- */

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    return (uintptr_t)a < (uintptr_t)b + b_bytes && (uintptr_t)b < (uintptr_t)a + a_bytes;
}

static bool overwrites_input(const gt__chain *c, const gt__chain_output *o) {
    size_t bytes = (size_t)c->n * gt_dtype_size(c->nodes[o->node].dtype);
    for (int32_t k = 0; k < c->n_inputs; k++)
        if (overlap(o->data, bytes, c->inputs[k].data, gt__chain_input_bytes(&c->inputs[k]))) return true;
    return false;
}

static bool reads_in_place(const gt__chain *c, int32_t k) {
    return gt__chain_input_is_whole(c, k) && !gt__dtype_is_half(c->inputs[k].dtype);
}

/* Rounds nothing, so that the operand may stand for the result. */
static bool keeps_value(const gt__chain *c, const gt__chain_node *node) {
    gt_dtype from = gt__chain_dtype(c, node->a);
    return gt__chain_rounds_only(node->op) && (node->dtype == from || (node->dtype == GT_DTYPE_F32 && gt__dtype_is_half(from)));
}

static void add_step(recipe *r, int32_t value) { r->steps[r->n_steps++] = value; }

/* *value: the operand's, which is made before if that takes a step. */
static void use_operand(recipe *r, gt__chain_operand o, bool *loaded) {
    int32_t value = value_of(r->chain, o);
    if (!is_input(r->chain, value) || loaded[value]) return;
    loaded[value] = true;
    bool once = r->chain->inputs[value].size == 1; /* is there from the beginning */
    if (!once && !reads_in_place(r->chain, value)) {
        add_step(r, value);
        r->cost += 2;
    }
}

static int64_t cost_of(const recipe *r, int32_t k) {
    const gt__chain_node *node = &r->chain->nodes[k];
    int64_t rounding = gt__dtype_is_half(node->dtype) ? 3 : 0;
    return rounding + (r->functions[k] ? r->functions[k]->cost : node->op == GT__OP_DROPOUT ? 12 : 1);
}

/* `placed`: data lies where it will lie when the chain runs. */
static void find_steps(recipe *r, bool placed) {
    const gt__chain *c = r->chain;
    bool loaded[GT__CHAIN_INPUTS] = {false}, free_outputs = placed;
    for (int32_t v = 0; v < c->n_inputs + c->n_nodes; v++) {
        r->same[v] = v;
        r->reg[v] = r->direct[v] = NOWHERE;
        r->last[v] = -1;
    }
    for (int32_t k = 0; k < c->n_outputs; k++) {
        if (c->outputs[k].data == NULL) continue;
        bool direct = placed && !overwrites_input(c, &c->outputs[k]);
        free_outputs = free_outputs && direct;
        if (direct) r->direct[value_of_output(c, k)] = k;
    }
    for (int32_t k = 0; k < c->n_nodes; k++) {
        const gt__chain_node *node = &c->nodes[k];
        int32_t value = c->n_inputs + k;
        r->functions[k] = gt__cpu_map_functions(node->op);
        use_operand(r, node->a, loaded);
        if (gt__chain_operands(node->op) == 2) use_operand(r, node->b, loaded);
        if (free_outputs && keeps_value(c, node)) {
            r->same[value] = r->same[value_of(c, node->a)];
            r->direct[value] = NOWHERE;
        } else {
            add_step(r, value);
            r->cost += cost_of(r, k);
        }
    }
}

static void find_last(recipe *r) {
    const gt__chain *c = r->chain;
    for (int32_t s = 0; s < r->n_steps; s++) {
        int32_t value = r->steps[s];
        if (is_input(c, value)) continue;
        const gt__chain_node *node = node_of(c, value);
        r->last[r->same[value_of(c, node->a)]] = s;
        if (gt__chain_operands(node->op) == 2) r->last[r->same[value_of(c, node->b)]] = s;
    }
    for (int32_t k = 0; k < c->n_outputs; k++) {
        int32_t value = value_of_output(c, k);
        if (c->outputs[k].data && r->direct[value] == NOWHERE) r->last[r->same[value]] = r->n_steps;
    }
    if (c->sum.data) r->last[r->same[c->n_inputs + c->sum.node]] = r->n_steps;
}

static bool take_register(uint32_t *taken, int32_t *reg) {
    for (int32_t k = 0; k < REGISTERS; k++) {
        if (*taken >> k & 1) continue;
        *taken |= 1u << k;
        *reg = k;
        return true;
    }
    return false;
}

static void give_register(const recipe *r, uint32_t *taken, int32_t value, int32_t step) {
    if (r->reg[value] != NOWHERE && r->last[value] <= step) *taken &= ~(1u << r->reg[value]);
}

static void give_operands(const recipe *r, uint32_t *taken, const gt__chain_node *node, int32_t step) {
    const gt__chain *c = r->chain;
    give_register(r, taken, r->same[value_of(c, node->a)], step);
    if (gt__chain_operands(node->op) == 2) give_register(r, taken, r->same[value_of(c, node->b)], step);
}

/* False: there are not enough. */
static bool find_registers(recipe *r) {
    const gt__chain *c = r->chain;
    uint32_t taken = 0;
    for (int32_t k = 0; k < c->n_inputs; k++) {
        if (c->inputs[k].size != 1 || reads_in_place(c, k)) continue;
        if (!take_register(&taken, &r->reg[k])) return false;
        r->last[k] = r->n_steps;
    }
    for (int32_t s = 0; s < r->n_steps; s++) {
        int32_t value = r->steps[s];
        const gt__chain_node *node = is_input(c, value) ? NULL : node_of(c, value);
        bool in_output = r->direct[value] != NOWHERE && !gt__dtype_is_half(dtype_of(c, value));
        bool over = node && !gt__chain_rounds_only(node->op); /* a result may take an operand's place, but not in another type */
        if (over) give_operands(r, &taken, node, s);
        if (!in_output && !take_register(&taken, &r->reg[value])) return false;
        if (node && !over) give_operands(r, &taken, node, s);
        give_register(r, &taken, value, s); /* where nobody reads it */
    }
    return true;
}

static bool make_recipe(recipe *r, const gt__chain *chain, bool placed) {
    bool wide = false;
    r->chain = chain;
    r->cost = r->n_steps = 0;
    for (int32_t k = 0; k < chain->n_inputs; k++) wide |= chain->inputs[k].dtype == GT_DTYPE_F64;
    for (int32_t k = 0; k < chain->n_nodes; k++) wide |= chain->nodes[k].dtype == GT_DTYPE_F64;
    r->block = REGISTER_BYTES / (wide ? (int64_t)sizeof(double) : (int64_t)sizeof(float));
    find_steps(r, placed);
    find_last(r);
    return find_registers(r);
}

/* --- a block ------------------------------------------------------------------------------------------------------------------------------- */

typedef struct worker {
    const recipe *r;
    void *at[VALUES]; /* of a block's values */
    _Alignas(64) unsigned char registers[REGISTERS][REGISTER_BYTES];
    uint16_t halves[REGISTER_BYTES / sizeof(float)];
} worker;

/* to[i] = from[(begin + i) / inner % size], as f32 or f64. */
static void load_repeated(void *to, const gt__chain_input *in, int64_t begin, int64_t n) {
    bool wide = in->dtype == GT_DTYPE_F64;
    int64_t size = wide ? (int64_t)sizeof(double) : (int64_t)sizeof(float);
    for (int64_t i = 0; i < n;) {
        int64_t at = begin + i, element = at / in->inner % in->size, m;
        char *target = (char *)to + i * size;
        const void *from = gt__cpu_at(in->data, in->dtype, element);
        if (in->inner == 1) {
            m = GT__MIN(n - i, in->size - element);
            if (wide)
                gt__cpu_load_f64((double *)(void *)target, from, in->dtype, 1, m);
            else
                gt__cpu_load_f32((float *)(void *)target, from, in->dtype, 1, m);
        } else {
            m = GT__MIN(n - i, in->inner - at % in->inner);
            double value = wide ? *(const double *)from : 0;
            float narrow = 0;
            if (!wide) gt__cpu_load_f32(&narrow, from, in->dtype, 1, 1);
            for (int64_t k = 0; k < m; k++) {
                if (wide)
                    ((double *)(void *)target)[k] = value;
                else
                    ((float *)(void *)target)[k] = narrow;
            }
        }
        i += m;
    }
}

static void worker_begin(worker *w, const recipe *r) {
    const gt__chain *c = r->chain;
    w->r = r;
    for (int32_t v = 0; v < c->n_inputs + c->n_nodes; v++) w->at[v] = r->reg[v] == NOWHERE ? NULL : (void *)w->registers[r->reg[v]];
    for (int32_t k = 0; k < c->n_inputs; k++) {
        gt__chain_input once = c->inputs[k];
        once.inner = r->block;
        if (once.size == 1 && r->reg[k] != NOWHERE) load_repeated(w->at[k], &once, 0, r->block);
    }
}

/* A node's f32 to a half and, if anybody reads it, back. */
static void round_half(worker *w, int32_t value, const float *from, int64_t begin, int64_t n) {
    const recipe *r = w->r;
    gt_dtype dtype = dtype_of(r->chain, value);
    int32_t output = r->direct[value];
    void *halves = output == NOWHERE ? w->halves : gt__cpu_at_mut(r->chain->outputs[output].data, dtype, begin);
    gt__cpu_store_f32(halves, dtype, 1, from, n);
    if (r->last[value] >= 0) gt__cpu_load_f32(w->at[value], halves, dtype, 1, n);
}

/* A cast or copy. */
static void round_only(worker *w, int32_t value, const void *a, gt_dtype from, int64_t begin, int64_t n) {
    const recipe *r = w->r;
    gt_dtype to = dtype_of(r->chain, value);
    if (to == GT_DTYPE_F64) {
        gt__cpu_load_f64(w->at[value], a, from == GT_DTYPE_F64 ? from : GT_DTYPE_F32, 1, n);
    } else if (!gt__dtype_is_half(to)) {
        gt__cpu_convert(w->at[value], GT_DTYPE_F32, 1, a, from == GT_DTYPE_F64 ? from : GT_DTYPE_F32, 1, n);
    } else if (from != GT_DTYPE_F64) {
        round_half(w, value, a, begin, n);
    } else {
        int32_t output = r->direct[value];
        void *halves = output == NOWHERE ? w->halves : gt__cpu_at_mut(r->chain->outputs[output].data, to, begin);
        gt__cpu_store_f64(halves, to, 1, a, n);
        if (r->last[value] >= 0) gt__cpu_load_f32(w->at[value], halves, to, 1, n);
    }
}

static void do_node(worker *w, int32_t value, int64_t begin, int64_t n) {
    const recipe *r = w->r;
    const gt__chain *c = r->chain;
    const gt__chain_node *node = node_of(c, value);
    const gt__map_functions *f = r->functions[value - c->n_inputs];
    const void *a = w->at[r->same[value_of(c, node->a)]];
    const void *b = gt__chain_operands(node->op) == 2 ? w->at[r->same[value_of(c, node->b)]] : NULL;
    void *y = w->at[value];
    if (f == NULL && node->op != GT__OP_DROPOUT) {
        round_only(w, value, a, gt__chain_dtype(c, node->a), begin, n);
        return;
    }
    if (f == NULL)
        gt__cpu_dropout_run(node, begin, n, y, a);
    else if (node->dtype == GT_DTYPE_F64)
        f->f64(n, y, a, b, &node->value);
    else
        f->f32(n, y, a, b, &node->value);
    if (gt__dtype_is_half(node->dtype)) round_half(w, value, y, begin, n);
}

/* What lies over an input, or is the same as another value. */
static void store_rest(worker *w, int64_t begin, int64_t n) {
    const recipe *r = w->r;
    const gt__chain *c = r->chain;
    for (int32_t k = 0; k < c->n_outputs; k++) {
        int32_t value = value_of_output(c, k);
        gt_dtype dtype = dtype_of(c, value);
        if (c->outputs[k].data == NULL || r->direct[value] != NOWHERE) continue;
        void *to = gt__cpu_at_mut(c->outputs[k].data, dtype, begin);
        const void *from = w->at[r->same[value]];
        if (gt__dtype_is_half(dtype))
            gt__cpu_store_f32(to, dtype, 1, from, n);
        else
            memcpy(to, from, (size_t)(n * gt__cpu_size(dtype)));
    }
}

/* Elements [begin, begin + n), at most a block. Returns the values that are summed. */
static const void *make_block(worker *w, int64_t begin, int64_t n) {
    const recipe *r = w->r;
    const gt__chain *c = r->chain;
    for (int32_t k = 0; k < c->n_inputs; k++)
        if (r->reg[k] == NOWHERE) {
            const void *from = gt__cpu_at(c->inputs[k].data, c->inputs[k].dtype, reads_in_place(c, k) ? begin : 0);
            memcpy(&w->at[k], &from, sizeof from);
        }
    for (int32_t k = 0; k < c->n_outputs; k++) {
        int32_t value = value_of_output(c, k);
        if (r->direct[value] == k && r->reg[value] == NOWHERE) w->at[value] = gt__cpu_at_mut(c->outputs[k].data, dtype_of(c, value), begin);
    }
    for (int32_t s = 0; s < r->n_steps; s++) {
        int32_t value = r->steps[s];
        if (is_input(c, value))
            load_repeated(w->at[value], &c->inputs[value], begin, n);
        else
            do_node(w, value, begin, n);
    }
    store_rest(w, begin, n);
    return c->sum.data ? w->at[r->same[c->n_inputs + c->sum.node]] : NULL;
}

static void blocks_range(void *argument, int64_t begin, int64_t end) {
    const recipe *r = argument;
    worker w;
    worker_begin(&w, r);
    for (int64_t b = begin; b < end; b++) (void)make_block(&w, b * r->block, GT__MIN(r->block, r->chain->n - b * r->block));
}

/* --- the sum -------------------------------------------------------------------------------------------------------------------------------- */

typedef struct sum_job {
    recipe r;
    double *results; /* chain->sum.kept of them, a part */
    int64_t part_length;
} sum_job;

/* A run of elements, a block or less at a time. */
typedef struct running {
    double lanes[GT__SUM_LANES], sum;
} running;

static void run_on(running *run, gt_dtype dtype, const void *values, int64_t n, bool last) {
    if (dtype == GT_DTYPE_F32) {
        int64_t whole = n / GT__SUM_LANES * GT__SUM_LANES;
        gt__cpu_sum_lanes_f32(run->lanes, values, whole);
        if (last) run->sum += gt__cpu_sum_end_f32(run->lanes, (const float *)values + whole, n - whole);
        return;
    }
    for (int64_t i = 0; i < n; i += GT__CHUNK) {
        int64_t m = GT__MIN(n - i, GT__CHUNK);
        double buffer[GT__CHUNK];
        const double *chunk = buffer;
        if (dtype == GT_DTYPE_F64)
            chunk = (const double *)values + i;
        else
            gt__cpu_load_f64(buffer, (const float *)values + i, GT_DTYPE_F32, 1, m);
        run->sum += gt__cpu_sum_f64(chunk, m);
    }
}

/* Sums [k0, k1), each of neighbours, of which elements [r0, r1) count. */
static void sum_rows(worker *w, int64_t k0, int64_t k1, int64_t r0, int64_t r1, double *to) {
    const gt__chain_sum *sum = &w->r->chain->sum;
    gt_dtype dtype = w->r->chain->nodes[sum->node].dtype;
    int64_t length = sum->reduced, block = w->r->block;
    int64_t size = dtype == GT_DTYPE_F64 ? (int64_t)sizeof(double) : (int64_t)sizeof(float);
    bool many = r0 == 0 && r1 == length && length <= block;
    for (int64_t k = k0; k < k1;) {
        if (many) {
            int64_t rows = GT__MIN(block / length, k1 - k);
            const char *values = make_block(w, k * length, rows * length);
            for (int64_t i = 0; i < rows; i++) {
                running run = {{0}, 0};
                run_on(&run, dtype, values + i * length * size, length, true);
                to[k - k0 + i] = run.sum;
            }
            k += rows;
            continue;
        }
        running run = {{0}, 0};
        for (int64_t r = r0; r < r1; r += block) {
            int64_t n = GT__MIN(block, r1 - r);
            run_on(&run, dtype, make_block(w, k * length + r, n), n, r + n == r1);
        }
        to[k++ - k0] = run.sum;
    }
}

static void add_values(double *to, gt_dtype dtype, const void *values, int64_t first, int64_t n) {
    if (dtype == GT_DTYPE_F64)
        for (int64_t i = 0; i < n; i++) to[i] += ((const double *)values)[first + i];
    else
        gt__cpu_sum_row_f32(to, (const float *)values + first, n);
}

/* Sums [k0, k1), neighbours of which have their elements side by side, over rows [r0, r1). */
static void sum_columns(worker *w, int64_t k0, int64_t k1, int64_t r0, int64_t r1, double *to) {
    const gt__chain_sum *sum = &w->r->chain->sum;
    gt_dtype dtype = w->r->chain->nodes[sum->node].dtype;
    int64_t width = sum->kept, block = w->r->block;
    for (int64_t k = k0; k < k1; k++) to[k - k0] = 0;
    if (k0 == 0 && k1 == width && 2 * width <= block) {
        for (int64_t r = r0, rows; r < r1; r += rows) {
            rows = GT__MIN(block / width, r1 - r);
            const void *values = make_block(w, r * width, rows * width);
            for (int64_t i = 0; i < rows; i++) add_values(to, dtype, values, i * width, width);
        }
        return;
    }
    for (int64_t k = k0, n; k < k1; k += n) {
        n = GT__MIN(block, k1 - k);
        for (int64_t r = r0; r < r1; r++) add_values(to + (k - k0), dtype, make_block(w, r * width + k, n), 0, n);
    }
}

static void sum_part(worker *w, int64_t k0, int64_t k1, int64_t r0, int64_t r1, double *to) {
    const gt__chain_sum *sum = &w->r->chain->sum;
    (sum->leading && sum->kept > 1 && sum->reduced > 1 ? sum_columns : sum_rows)(w, k0, k1, r0, r1, to);
}

static void kept_range(void *argument, int64_t begin, int64_t end) {
    const sum_job *job = argument;
    worker w;
    worker_begin(&w, &job->r);
    sum_part(&w, begin, end, 0, job->r.chain->sum.reduced, job->results + begin);
}

static void parts_range(void *argument, int64_t begin, int64_t end) {
    const sum_job *job = argument;
    const gt__chain_sum *sum = &job->r.chain->sum;
    worker w;
    worker_begin(&w, &job->r);
    for (int64_t part = begin; part < end; part++) {
        int64_t r0 = part * job->part_length, r1 = GT__MIN(r0 + job->part_length, sum->reduced);
        sum_part(&w, 0, sum->kept, r0, GT__MAX(r0, r1), job->results + part * sum->kept);
    }
}

static int64_t kept_grain(const recipe *r) { return gt__cpu_grain(r->chain->sum.reduced * (r->cost + 1)); }

static gt_status run_sum(gt__device *device, sum_job *job) {
    const gt__chain_sum *sum = &job->r.chain->sum;
    int64_t kept = sum->kept, parts = gt__cpu_sum_parts(device, kept, sum->reduced);
    double few[64];
    job->part_length = (sum->reduced + parts - 1) / parts;
    job->results = few;
    if (kept * parts > (int64_t)GT__COUNT(few)) {
        job->results = gt__calloc((size_t)(kept * parts), sizeof *job->results);
        if (job->results == NULL) return GT_OUT_OF_HOST_MEMORY;
    }
    if (parts > 1) {
        gt__cpu_for(device, parts, 1, parts_range, job);
        for (int64_t part = 1; part < parts; part++)
            for (int64_t k = 0; k < kept; k++) job->results[k] += job->results[part * kept + k];
    } else {
        gt__cpu_for(device, kept, kept_grain(&job->r), kept_range, job);
    }
    double scale = sum->mean ? 1.0 / (double)sum->reduced : 1.0;
    for (int64_t k = 0; k < kept; k++) gt__cpu_put_f64(sum->data, sum->dtype, k, job->results[k] * scale);
    if (job->results != few) gt__free(job->results);
    return GT_OK;
}

/* --- the backend's functions ----------------------------------------------------------------------------------------------------------------- */

/* The sum's order gives its elements to few threads, and the ops before it are work for more. */
static bool sum_slows(gt__device *device, const recipe *r) {
    const gt__chain_sum *sum = &r->chain->sum;
    int64_t threads = gt__cpu(device)->threads, parts = gt__cpu_sum_parts(device, sum->kept, sum->reduced);
    int64_t with = parts > 1 ? parts : GT__MIN(threads, (sum->kept + kept_grain(r) - 1) / kept_grain(r));
    int64_t without = GT__MIN(threads, r->chain->n * r->cost / gt__cpu_grain(1));
    return without > 2 * with;
}

/* Two calls that round nothing between them are as fast one by one, or up to a tenth faster, as long as what they make stays in the cache; and two on few elements in any case
 * (bench/chain_time). */
static bool is_worth_it(const gt__chain *c) {
    const int64_t few = 4096, beyond_cache = (int64_t)4 << 20;
    bool halves = false;
    for (int32_t k = 0; k < c->n_inputs; k++) halves |= gt__dtype_is_half(c->inputs[k].dtype);
    for (int32_t k = 0; k < c->n_nodes; k++) halves |= gt__dtype_is_half(c->nodes[k].dtype);
    return c->n_nodes > 2 || c->n >= (halves ? few : beyond_cache);
}

bool gt__cpu_can_chain(gt__device *device, const gt__chain *chain, bool prepare) {
    recipe r;
    return (!prepare || is_worth_it(chain)) && make_recipe(&r, chain, false) && (chain->sum.data == NULL || !sum_slows(device, &r));
}

gt_status gt__cpu_run_chain(gt__device *device, const gt__chain *chain) {
    sum_job job = {.results = NULL};
    char text[GT__CHAIN_TEXT];
    GT_REQUIRE(make_recipe(&job.r, chain, true), GT_INTERNAL, "%s \"%s\": more than %d values at once",
               gt__chain_text(chain, text, sizeof text), chain->module ? chain->module : "", (int)REGISTERS);
    if (chain->sum.data) return run_sum(device, &job);
    int64_t blocks = (chain->n + job.r.block - 1) / job.r.block;
    gt__cpu_for(device, blocks, gt__cpu_grain(job.r.block * job.r.cost), blocks_range, &job.r);
    return GT_OK;
}
