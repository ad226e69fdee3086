#include "cuda/chain_source.h"

#include <math.h>
#include <stdio.h>

_Static_assert(GT__CHAIN_INPUTS == 10 && GT__CHAIN_OUTPUTS == 8 && GT__CHAIN_NODES == 24, "as in chain_prelude.cuh");

/* --- text ------------------------------------------------------------------------------------------------------------------------------------ */

typedef struct writer {
    const gt__chain *c;
    char *text;
    size_t length, room;
    gt_status status;
} writer;

static void put(writer *w, const char *format, ...) GT__PRINTF(2, 3);
static void put(writer *w, const char *format, ...) {
    enum { LINE = 512 };
    va_list arguments;
    if (w->status == GT_OK && w->room - w->length < LINE) {
        char *grown = gt__realloc(w->text, 2 * w->room + LINE);
        w->status = grown ? GT_OK : GT_OUT_OF_HOST_MEMORY;
        if (grown) w->text = grown;
        if (grown) w->room = 2 * w->room + LINE;
    }
    if (w->status != GT_OK) return;
    va_start(arguments, format);
    w->length += (size_t)vsnprintf(w->text + w->length, w->room - w->length, format, arguments);
    va_end(arguments);
}

static const char *const dtypes[GT_DTYPE_COUNT] = {
    [GT_DTYPE_F32] = "F32", [GT_DTYPE_F16] = "F16", [GT_DTYPE_BF16] = "BF16", [GT_DTYPE_F64] = "F64"};

static const char *const names[GT__OP_COUNT] = {
#define NAME(id, name) [GT__OP_##id] = #name,
    GT__CHAIN_BINARY_LIST(NAME) GT__CHAIN_UNARY_LIST(NAME)
#undef NAME
};

static const char *value_type(gt_dtype dtype) { return dtype == GT_DTYPE_F64 ? "double" : "float"; }

static bool is_whole(const gt__chain *c, int32_t k) { return gt__chain_input_is_whole(c, k); }

/* --- the shape of the kernel ------------------------------------------------------------------------------------------------------------------- */

gt__chain_form gt__chain_form_of(const gt__chain *c) {
    if (c->sum.data == NULL) return GT__CHAIN_PLAIN;
    if (c->sum.kept == 1) return GT__CHAIN_ALL;
    return c->sum.leading ? GT__CHAIN_COLUMNS : GT__CHAIN_ROWS;
}

int32_t gt__chain_width(const gt__chain *c) {
    bool halves = true;
    for (int32_t k = 0; k < c->n_inputs; k++) halves = halves && gt__dtype_is_half(c->inputs[k].dtype);
    for (int32_t k = 0; k < c->n_nodes; k++) halves = halves && gt__dtype_is_half(c->nodes[k].dtype);
    int32_t width = halves ? 8 : 4;
    gt__chain_form form = gt__chain_form_of(c);
    /* A row, or a row of sums, must be of whole packs. */
    if (form == GT__CHAIN_ROWS && c->sum.reduced % width != 0) return 1;
    if (form == GT__CHAIN_COLUMNS && c->sum.kept % width != 0) return 1;
    return width;
}

static const char *sum_type(const gt__chain *c) { return c->sum.data ? value_type(c->nodes[c->sum.node].dtype) : "float"; }

/* --- one element ------------------------------------------------------------------------------------------------------------------------------- */

static const char *operand(const writer *w, gt__chain_operand o, char *buffer, size_t size) {
    (void)w;
    (void)snprintf(buffer, size, "%c%d", o < 0 ? 'x' : 'v', (int)(o < 0 ? ~o : o));
    return buffer;
}

static void put_node(writer *w, int32_t k) {
    const gt__chain_node *node = &w->c->nodes[k];
    char a[16], b[16];
    const char *type = value_type(node->dtype), *dtype = dtypes[node->dtype];
    put(w, "    const %s v%d = rounded<%s>(", type, (int)k, dtype);
    (void)operand(w, node->a, a, sizeof a);
    if (gt__chain_operands(node->op) == 2)
        put(w, "op_%s(%s, %s)", names[node->op], a, operand(w, node->b, b, sizeof b));
    else if (node->op == GT__OP_DROPOUT)
        put(w, "op_dropout(%s, k%d, static_cast<%s>(a.value[%d]))", a, (int)k, type, (int)k);
    else if (gt__chain_rounds_only(node->op))
        put(w, "%s", a);
    else
        put(w, "op_%s(%s, static_cast<%s>(a.value[%d]))", names[node->op], a, type, (int)k);
    put(w, ");\n");
}

static void put_element(writer *w) {
    const gt__chain *c = w->c;
    put(w, "static __device__ __forceinline__ void gt_element(const Arguments &a");
    for (int32_t k = 0; k < c->n_inputs; k++) put(w, ", %s x%d", value_type(c->inputs[k].dtype), (int)k);
    for (int32_t k = 0; k < c->n_nodes; k++)
        if (c->nodes[k].op == GT__OP_DROPOUT) put(w, ", bool k%d", (int)k);
    for (int32_t k = 0; k < c->n_outputs; k++)
        if (c->outputs[k].data) put(w, ", %s &y%d", value_type(c->nodes[c->outputs[k].node].dtype), (int)k);
    put(w, ", %s &s) {\n    (void)a;\n    (void)s;\n", sum_type(c));
    for (int32_t k = 0; k < c->n_nodes; k++) put_node(w, k);
    for (int32_t k = 0; k < c->n_nodes; k++) put(w, "    (void)v%d;\n", (int)k);
    for (int32_t k = 0; k < c->n_outputs; k++)
        if (c->outputs[k].data) put(w, "    y%d = v%d;\n", (int)k, (int)c->outputs[k].node);
    if (c->sum.data) put(w, "    s += v%d;\n", (int)c->sum.node);
    put(w, "}\n\n");
}

static void put_neighbours(writer *w) {
    const gt__chain *c = w->c;
    put(w,
        "template <int V>\nstatic __device__ __forceinline__ void gt_neighbours(const Arguments &a, Index i, int vector, %s (&s)[V]) {\n",
        sum_type(c));
    put(w, "    (void)vector;\n");
    for (int32_t k = 0; k < c->n_inputs; k++) {
        const char *dtype = dtypes[c->inputs[k].dtype], *type = value_type(c->inputs[k].dtype);
        if (is_whole(c, k))
            put(w, "    %s x%d[V];\n    load_pack<%s, V>(a.in[%d], i, vector, x%d);\n", type, (int)k, dtype, (int)k, (int)k);
        else
            put(w, "    %s x%d[V];\n    load_repeated<%s, V>(a, %d, i, x%d);\n", type, (int)k, dtype, (int)k, (int)k);
    }
    for (int32_t k = 0; k < c->n_nodes; k++)
        if (c->nodes[k].op == GT__OP_DROPOUT) put(w, "    bool k%d[V];\n    draw<V>(a, %d, i, k%d);\n", (int)k, (int)k, (int)k);
    for (int32_t k = 0; k < c->n_outputs; k++)
        if (c->outputs[k].data) put(w, "    %s y%d[V];\n", value_type(c->nodes[c->outputs[k].node].dtype), (int)k);
    put(w, "#pragma unroll\n    for (int k = 0; k < V; k++) gt_element(a");
    for (int32_t k = 0; k < c->n_inputs; k++) put(w, ", x%d[k]", (int)k);
    for (int32_t k = 0; k < c->n_nodes; k++)
        if (c->nodes[k].op == GT__OP_DROPOUT) put(w, ", k%d[k]", (int)k);
    for (int32_t k = 0; k < c->n_outputs; k++)
        if (c->outputs[k].data) put(w, ", y%d[k]", (int)k);
    put(w, ", s[k]);\n");
    for (int32_t k = 0; k < c->n_outputs; k++)
        if (c->outputs[k].data)
            put(w, "    store_pack<%s, V>(a.out[%d], i, vector, y%d);\n", dtypes[c->nodes[c->outputs[k].node].dtype], (int)k, (int)k);
    put(w, "}\n\n} // namespace gt\n\n");
}

/* --- the kernels ------------------------------------------------------------------------------------------------------------------------------- */

static const char grid_loop[] = "    const Index step = static_cast<Index>(gridDim.x) * kBlock * V;\n"
                                "    for (Index i = (static_cast<Index>(blockIdx.x) * kBlock + thread) * V; i < a.n; i += step) {\n"
                                "        if (i + V <= a.n) {\n"
                                "            gt_neighbours<V>(a, i, a.vector, s);\n"
                                "        } else {\n"
                                "            for (Index j = i; j < a.n; j++) gt_neighbours<1>(a, j, 0, rest);\n"
                                "        }\n"
                                "    }\n";

static void put_kernel(writer *w) {
    const gt__chain *c = w->c;
    const gt__chain_form form = gt__chain_form_of(c);
    const char *sum = sum_type(c), *dtype = c->sum.data ? dtypes[c->sum.dtype] : "F32";
    put(w,
        "extern \"C\" __global__ void __launch_bounds__(%d) gt_chain(const gt::Arguments a) {\n    using namespace gt;\n    constexpr int "
        "V = %d;\n",
        GT__CHAIN_BLOCK, (int)gt__chain_width(c));
    put(w, "    %s s[V];\n#pragma unroll\n    for (int k = 0; k < V; k++) s[k] = 0;\n", sum);
    if (form != GT__CHAIN_PLAIN) put(w, "    GT_SHARED(%s, shared, kBlock);\n", sum);
    if (form == GT__CHAIN_PLAIN || form == GT__CHAIN_ALL) {
        put(w, "    %s rest[1] = {0};\n    const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);\n%s", sum,
            grid_loop);
        if (form == GT__CHAIN_ALL)
            put(w,
                "    %s value = rest[0];\n#pragma unroll\n    for (int k = 0; k < V; k++) value += s[k];\n"
                "    value = column_sum(value, shared);\n    if (threadIdx.y == 0) put_sum<%s, %s>(a, blockIdx.x, 0, value);\n",
                sum, dtype, sum);
    } else if (form == GT__CHAIN_ROWS) {
        put(w, "    const Index row = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x, begin = blockIdx.y * a.part;\n"
               "    const Index end = begin + a.part < a.reduced ? begin + a.part : a.reduced;\n"
               "    if (row < a.kept)\n"
               "        for (Index j = begin + threadIdx.y * V; j < end; j += blockDim.y * V) gt_neighbours<V>(a, row * a.reduced + j, "
               "a.vector, s);\n");
        put(w,
            "    %s value = 0;\n#pragma unroll\n    for (int k = 0; k < V; k++) value += s[k];\n    value = column_sum(value, shared);\n"
            "    if (threadIdx.y == 0 && row < a.kept) put_sum<%s, %s>(a, blockIdx.y, row, value);\n",
            sum, dtype, sum);
    } else {
        put(w, "    const Index column = (static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x) * V, begin = blockIdx.y * a.part;\n"
               "    const Index end = begin + a.part < a.reduced ? begin + a.part : a.reduced;\n"
               "    if (column < a.kept)\n"
               "        for (Index r = begin + threadIdx.y; r < end; r += blockDim.y) gt_neighbours<V>(a, r * a.kept + column, a.vector, "
               "s);\n");
        put(w,
            "#pragma unroll\n    for (int k = 0; k < V; k++) {\n        const %s value = column_sum(s[k], shared);\n"
            "        if (threadIdx.y == 0 && column < a.kept) put_sum<%s, %s>(a, blockIdx.y, column + k, value);\n    }\n",
            sum, dtype, sum);
    }
    put(w, "}\n");
    if (c->sum.data)
        put(w,
            "\nextern \"C\" __global__ void __launch_bounds__(%d) gt_chain_sum(const gt::Arguments a) { gt::sum_parts<gt::%s, %s>(a); }\n",
            GT__CHAIN_BLOCK, dtype, sum);
}

gt_status gt__chain_source(const gt__chain *chain, char **text) {
    writer w = {.c = chain};
    put(&w, "#include \"cuda/chain_prelude.cuh\"\n\nnamespace gt {\n\n");
    put_element(&w);
    put_neighbours(&w);
    put_kernel(&w);
    if (w.status == GT_OK)
        *text = w.text;
    else
        gt__free(w.text);
    return w.status;
}

/* --- a launch ---------------------------------------------------------------------------------------------------------------------------------- */

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t clamp(int64_t x, int64_t least, int64_t most) { return x < least ? least : x > most ? most : x; }

static uint32_t power_of_two(int64_t n, uint32_t most) {
    uint32_t p = 1;
    while (p < n && p < most) p *= 2;
    return p;
}

static bool aligned(const void *pointer) { return (uintptr_t)pointer % 16 == 0; }

static void fill_arguments(const gt__chain *c, gt__chain_arguments *a) {
    *a = (gt__chain_arguments){.sum = c->sum.data, .n = c->n, .kept = c->sum.kept, .reduced = c->sum.reduced, .parts = 1, .vector = 1};
    a->divisor = c->sum.mean ? (double)c->sum.reduced : 1.0;
    for (int32_t k = 0; k < c->n_inputs; k++) {
        a->in[k] = c->inputs[k].data;
        a->inner[k] = c->inputs[k].inner;
        a->size[k] = c->inputs[k].size;
        if (is_whole(c, k) && !aligned(a->in[k])) a->vector = 0;
    }
    for (int32_t k = 0; k < c->n_outputs; k++) {
        a->out[k] = c->outputs[k].data;
        if (!aligned(a->out[k])) a->vector = 0;
    }
    for (int32_t k = 0; k < c->n_nodes; k++) {
        const gt__chain_node *node = &c->nodes[k];
        a->value[k] = node->value;
        if (node->op != GT__OP_DROPOUT) continue;
        a->value[k] = node->value < 1.0 ? 1.0 / (1.0 - node->value) : 0.0;
        a->threshold[k] = (unsigned)ceil(node->value * 16777216.0);
        a->seed[k] = node->seed;
        a->offset[k] = node->offset;
        a->cells[k] = node->cells;
    }
}

void gt__chain_prepare(const gt__chain *c, int32_t multiprocessors, int64_t most, gt__chain_arguments *a, gt__chain_launch *launch,
                       gt__chain_launch *sum_launch, size_t *partial_bytes) {
    const int64_t width = gt__chain_width(c), wanted = 4 * (int64_t)multiprocessors, limit = 0x7fffffff;
    fill_arguments(c, a);
    most = clamp(most, 1, 1024);
    if (width == 1) a->vector = 0;
    switch (gt__chain_form_of(c)) {
    case GT__CHAIN_PLAIN:
        *launch = (gt__chain_launch){(uint32_t)clamp(ceil_div(c->n, GT__CHAIN_BLOCK * width), 1, limit), 1, GT__CHAIN_BLOCK, 1};
        break;
    case GT__CHAIN_ALL:
        a->parts = clamp(ceil_div(c->n, GT__CHAIN_BLOCK * width), 1, most < wanted ? most : wanted);
        *launch = (gt__chain_launch){(uint32_t)a->parts, 1, 1, GT__CHAIN_BLOCK};
        break;
    case GT__CHAIN_ROWS: {
        const uint32_t lanes = power_of_two(ceil_div(c->sum.reduced, width), GT__CHAIN_BLOCK), rows = GT__CHAIN_BLOCK / lanes;
        const int64_t blocks = ceil_div(c->sum.kept, rows), step = (int64_t)lanes * width;
        a->parts = clamp(wanted / blocks, 1, clamp(c->sum.reduced / (8 * step), 1, most));
        a->part = ceil_div(ceil_div(c->sum.reduced, a->parts), step) * step;
        a->parts = ceil_div(c->sum.reduced, a->part);
        *launch = (gt__chain_launch){(uint32_t)clamp(blocks, 1, limit), (uint32_t)a->parts, rows, lanes};
        break;
    }
    default: {
        const uint32_t columns = power_of_two(ceil_div(c->sum.kept, width), 32), lanes = GT__CHAIN_BLOCK / columns;
        const int64_t blocks = ceil_div(c->sum.kept, columns * width);
        a->parts = clamp(wanted / blocks, 1, clamp(c->sum.reduced / (8 * (int64_t)lanes), 1, most));
        a->part = ceil_div(c->sum.reduced, a->parts);
        a->parts = ceil_div(c->sum.reduced, a->part);
        *launch = (gt__chain_launch){(uint32_t)clamp(blocks, 1, limit), (uint32_t)a->parts, columns, lanes};
        break;
    }
    }
    *sum_launch =
        (gt__chain_launch){(uint32_t)clamp(a->kept == 1 ? 1 : ceil_div(a->kept, GT__CHAIN_BLOCK), 1, limit), 1, 1, GT__CHAIN_BLOCK};
    const bool wide = c->sum.data && c->nodes[c->sum.node].dtype == GT_DTYPE_F64;
    *partial_bytes = a->parts > 1 ? (size_t)(a->parts * a->kept) * (wide ? sizeof(double) : sizeof(float)) : 0;
}
