/* Chains: elementwise calls and a sum as one instruction do what the calls do one by one, to the bit on the CPU. */
#include "chain_programs.h"
#include "core/op_cost.h"
#include "step/step.h"
#include "support.h"

#include <math.h>

/* --- programs made by hand ----------------------------------------------------------------------------------------------------------------- */

static bool is_nan(const void *element, gt_dtype dtype) {
    if (dtype == GT_DTYPE_F64) return isnan(*(const double *)element);
    if (dtype == GT_DTYPE_F32) return isnan(*(const float *)element);
    uint16_t bits = (uint16_t)(*(const uint16_t *)element & 0x7fff);
    return bits > (dtype == GT_DTYPE_F16 ? 0x7c00 : 0x7f80);
}

/* Bits; any NaN for any other: which of two operands' NaN a sum takes over is the compiler's choice, and another one at the end of a loop. */
static void same_results(const random_program *a, const random_program *b, const gt_dtype *dtypes, uint64_t seed) {
    CHECK_EQ_INT(a->n_results, b->n_results);
    for (int32_t k = 0; k < a->n_results; ++k) {
        if (memcmp(a->results[k], b->results[k], a->result_bytes[k]) == 0) continue;
        size_t size = gt_dtype_size(dtypes[k]);
        for (size_t i = 0; i < a->result_bytes[k] / size; ++i) {
            const void *x = (const char *)a->results[k] + i * size, *y = (const char *)b->results[k] + i * size;
            if (memcmp(x, y, size) == 0 || (is_nan(x, dtypes[k]) && is_nan(y, dtypes[k]))) continue;
            uint64_t left = 0, right = 0;
            memcpy(&left, x, size);
            memcpy(&right, y, size);
            FAIL("seed %d, %dx%d: result %d of %d, in %s, element %d: bits %llx, in a chain %llx", (int)seed, (int)a->rows, (int)a->columns,
                 (int)k, (int)a->n_results, gt_dtype_name(dtypes[k]), (int)i, (unsigned long long)left, (unsigned long long)right);
        }
    }
}

static void find_dtypes(const random_program *r, gt_dtype *dtypes) {
    for (int32_t i = 0; i < r->program.count; ++i) {
        if (r->program.list[i].kind != GT__DO_CALL) continue;
        const gt_tensor *y = r->program.list[i].call->call.out[0];
        for (int32_t k = 0; k < r->n_results; ++k)
            if (y->data == r->results[k]) dtypes[k] = y->meta.dtype;
    }
}

typedef struct totals {
    int32_t chains, with_sum, calls_before, calls_after;
} totals;

static void compare_programs(gt_context *ctx, uint64_t seed, int64_t rows, int64_t columns, gt_dtype dtype, bool odd, totals *sum) {
    random_program plain = random_program_make(ctx, seed, rows, columns, dtype, odd),
                   fused = random_program_make(ctx, seed, rows, columns, dtype, odd);
    gt_dtype dtypes[PROGRAM_RESULTS] = {0};
    find_dtypes(&plain, dtypes);
    CHECK_OK(gt__pass_chains(&fused.program, device_that_chains(ctx)));
    CHECK_OK(gt__pass_inplace(&fused.program));
    CHECK_OK(gt__pass_order(&fused.program));
    CHECK_OK(gt__pass_inplace(&fused.program));
    run_by_hand(ctx, &plain.program, NULL);
    run_by_hand(ctx, &fused.program, NULL);
    same_results(&plain, &fused, dtypes, seed);
    sum->calls_before += plain.program.count;
    sum->calls_after += fused.program.count;
    for (int32_t i = 0; i < fused.program.count; ++i) {
        if (fused.program.list[i].kind != GT__DO_CHAIN) continue;
        sum->chains++;
        sum->with_sum += fused.program.list[i].chain->sum.data != NULL;
    }
    random_program_free(&plain);
    random_program_free(&fused);
}

static gt_context *context_of(test_case *t, int32_t threads) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.cpu_threads = threads;
    return test_context_with(t, &options);
}

static void compare_many(test_case *t, gt_dtype dtype, bool odd) {
    static const struct {
        int64_t rows, columns;
        int seeds;
    } sizes[] = {{1, 1, 40}, {3, 7, 150}, {1, 300, 40}, {300, 1, 40}, {40, 60, 150}, {5, 3000, 60}, {1100, 3, 60}, {300, 700, 12}};
    totals sum = {0};
    for (int32_t threads = 1; threads <= 4; threads += 3) {
        gt_context *ctx = context_of(t, threads);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; ++s)
            for (int seed = 0; seed < sizes[s].seeds; ++seed)
                compare_programs(ctx, (uint64_t)seed * 1000 + s, sizes[s].rows, sizes[s].columns, dtype, odd, &sum);
    }
    CHECK(sum.chains > 1000);
    CHECK(sum.with_sum > 200);
    CHECK(sum.calls_after < sum.calls_before * 2 / 3);
}

TEST(unit, chains_of_random_programs_keep_their_bits_in_f32) { compare_many(t, GT_DTYPE_F32, false); }
TEST(unit, chains_of_random_programs_keep_their_bits_in_f16) { compare_many(t, GT_DTYPE_F16, false); }
TEST(unit, chains_of_random_programs_keep_their_bits_in_bf16) { compare_many(t, GT_DTYPE_BF16, false); }
TEST(unit, chains_of_random_programs_keep_their_bits_in_f64) { compare_many(t, GT_DTYPE_F64, false); }
TEST(unit, chains_keep_nan_infinities_and_signed_zeros) {
    compare_many(t, GT_DTYPE_F32, true);
    compare_many(t, GT_DTYPE_F16, true);
}

/* Sums whose rounding depends on their order: large numbers that cancel out, and small ones between them. */
static void compare_sums(gt_context *ctx, gt_dtype dtype, int64_t rows, int64_t columns) {
    const int64_t n = rows * columns, shape[2] = {rows, columns};
    const size_t size = gt_dtype_size(dtype);
    void *x = malloc((size_t)n * size), *results[2];
    for (int64_t i = 0; i < n; ++i) {
        const int64_t kind = (i / columns + i % columns) % 4;
        double value = kind == 0 ? 1e30 : kind == 2 ? -1e30 : (double)(i % 1000) / 7;
        if (dtype == GT_DTYPE_F64)
            ((double *)x)[i] = value;
        else
            ((float *)x)[i] = (float)value;
    }
    for (uint32_t mask = 1; mask <= 3; ++mask) {
        const int64_t kept[2] = {mask & 1 ? 1 : rows, mask & 2 ? 1 : columns};
        for (int fused = 0; fused < 2; ++fused) {
            random_program r = {.ctx = ctx, .rows = rows, .columns = columns, .dtype = dtype};
            operand in = operand_of(x, dtype, 2, shape), a = new_value(&r, dtype), b = new_value(&r, dtype),
                    y = new_result(&r, dtype, 2, kept);
            (void)value_call(&r, GT__OP_NEG, &a, &in, NULL);
            (void)value_call(&r, GT__OP_NEG, &b, &a, NULL);
            value_call(&r, GT__OP_SUM, &y, &b, NULL)->attr.reduce.mask = mask;
            if (fused) CHECK_OK(gt__pass_chains(&r.program, device_that_chains(ctx)));
            if (fused) CHECK_EQ_INT(r.program.count, 1);
            run_by_hand(ctx, &r.program, NULL);
            results[fused] = r.results[0];
            gt__program_free(&r.program);
        }
        if (memcmp(results[0], results[1], (size_t)(kept[0] * kept[1]) * size) != 0)
            FAIL("%s[%d,%d] over %d: other bits in a chain", gt_dtype_name(dtype), (int)rows, (int)columns, (int)mask);
        free(results[0]);
        free(results[1]);
    }
    free(x);
}

TEST(unit, chains_sum_in_the_kernels_order) {
    static const int64_t sizes[][2] = {{4, 100}, {32, 52}, {4, 4100}, {4100, 4}, {300, 700}, {4, 100000}, {100000, 4}};
    for (int32_t threads = 1; threads <= 4; threads += 3) {
        gt_context *ctx = context_of(t, threads);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; ++s) {
            compare_sums(ctx, GT_DTYPE_F32, sizes[s][0], sizes[s][1]);
            compare_sums(ctx, GT_DTYPE_F64, sizes[s][0], sizes[s][1]);
        }
    }
}

/* One fixture for the short ones: x, y, z are memory outside. */
typedef struct made {
    gt_context *ctx;
    gt__program p;
    float numbers[3][4096];
    operand x, y, z;
} made;

enum { COUNT = 4096 };

static void make(test_case *t, made *m) {
    memset(m, 0, sizeof *m);
    m->ctx = test_context(t);
    for (int i = 0; i < COUNT; ++i) m->numbers[0][i] = (float)(i % 37 - 18) / 8;
    m->x = outside(m->numbers[0], COUNT);
    m->y = outside(m->numbers[1], COUNT);
    m->z = outside(m->numbers[2], COUNT);
}

static void chains_leave(made *m, int32_t chains, int32_t instructions) {
    CHECK_OK(gt__pass_chains(&m->p, device_that_chains(m->ctx)));
    CHECK_EQ_INT(count_chains(&m->p), chains);
    CHECK_EQ_INT(m->p.count, instructions);
    run_by_hand(m->ctx, &m->p, NULL);
    gt__program_free(&m->p);
}

TEST(unit, chains_keep_what_nobody_else_reads_out_of_memory) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, COUNT), b = buffer(&m.p, COUNT), c = buffer(&m.p, COUNT);
    unary(&m.p, m.ctx, GT__OP_NEG, &a, &m.x);
    unary(&m.p, m.ctx, GT__OP_ABS, &b, &a);
    binary(&m.p, m.ctx, GT__OP_ADD, &c, &a, &b);
    device_copy(&m.p, &m.y, &c);
    CHECK_OK(gt__pass_chains(&m.p, device_that_chains(m.ctx)));
    CHECK_EQ_INT(m.p.count, 2);
    const gt__chain *chain = m.p.list[0].chain;
    CHECK_EQ_INT(chain->n_outputs, 1);
    CHECK(chain->outputs[0].data == c.data);
    size_t *offsets;
    CHECK_EQ_INT(arena_of(&m.p, &offsets), 16384); /* one of three */
    free(offsets);
    char text[GT__CHAIN_TEXT], little[12];
    CHECK_EQ_STR(gt__chain_text(chain, text, sizeof text), "chain(neg, abs, add)");
    CHECK_EQ_STR(gt__chain_text(chain, little, sizeof little), "chain(neg, ");
    gt__cost cost;
    gt__chain_cost(chain, &cost);
    CHECK_EQ_INT(cost.bytes, 2 * COUNT * sizeof(float));
    CHECK_EQ_INT(cost.flops, 3 * COUNT);
    run_by_hand(m.ctx, &m.p, NULL);
    for (int i = 0; i < COUNT; ++i) CHECK(m.numbers[1][i] == fabsf(m.numbers[0][i]) - m.numbers[0][i]);
    gt__program_free(&m.p);
}

TEST(unit, chains_do_not_close_a_circle) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, COUNT), b = buffer(&m.p, COUNT);
    unary(&m.p, m.ctx, GT__OP_NEG, &a, &m.x);
    device_copy(&m.p, &b, &a); /* reads what the first makes, and makes what the last reads */
    binary(&m.p, m.ctx, GT__OP_ADD, &m.y, &a, &b);
    chains_leave(&m, 0, 3);
    CHECK(m.numbers[1][1] == -2 * m.numbers[0][1]);
}

TEST(unit, chains_do_not_carry_a_call_over_a_change_of_what_it_reads) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, COUNT);
    unary(&m.p, m.ctx, GT__OP_NEG, &a, &m.x);
    device_copy(&m.p, &m.x, &m.z); /* zeros */
    binary(&m.p, m.ctx, GT__OP_ADD, &m.y, &a, &m.x);
    float before = m.numbers[0][1];
    chains_leave(&m, 0, 3);
    CHECK(m.numbers[1][1] == -before);
}

TEST(unit, chains_read_and_write_in_place_in_order) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, COUNT), b = buffer(&m.p, COUNT);
    float x = m.numbers[0][1];
    unary(&m.p, m.ctx, GT__OP_SQUARE, &a, &m.x);
    unary(&m.p, m.ctx, GT__OP_NEG, &m.x, &m.x);
    binary(&m.p, m.ctx, GT__OP_ADD, &b, &a, &m.x);
    unary(&m.p, m.ctx, GT__OP_NEG, &b, &b);
    unary(&m.p, m.ctx, GT__OP_COPY, &m.y, &b);
    chains_leave(&m, 1, 1);
    CHECK(m.numbers[0][1] == -x);
    CHECK(m.numbers[1][1] == -(x * x - x));
}

TEST(unit, chains_leave_calls_that_read_a_shifted_part) {
    static made m;
    make(t, &m);
    const int64_t n = COUNT - 1;
    operand x = part(&m.x, 0, n), from_0 = part(&m.z, 0, n), from_1 = part(&m.z, 1, n), y = part(&m.y, 0, n);
    unary(&m.p, m.ctx, GT__OP_NEG, &from_0, &x);
    binary(&m.p, m.ctx, GT__OP_ADD, &y, &from_0, &from_1);
    unary(&m.p, m.ctx, GT__OP_NEG, &y, &y);
    unary(&m.p, m.ctx, GT__OP_NEG, &y, &y);
    chains_leave(&m, 1, 2);
    for (int i = 0; i + 1 < n; ++i) CHECK(m.numbers[1][i] == -m.numbers[0][i] - m.numbers[0][i + 1]);
}

TEST(unit, chains_write_over_an_input_that_is_not_needed_any_more) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, COUNT), b = buffer(&m.p, COUNT), c = buffer(&m.p, COUNT), d = buffer(&m.p, COUNT);
    device_copy(&m.p, &a, &m.x);
    device_copy(&m.p, &d, &m.x);
    binary(&m.p, m.ctx, GT__OP_ADD, &b, &a, &d);
    unary(&m.p, m.ctx, GT__OP_NEG, &c, &b);
    device_copy(&m.p, &m.y, &b);
    device_copy(&m.p, &m.z, &c);
    CHECK_OK(gt__pass_chains(&m.p, device_that_chains(m.ctx)));
    CHECK_OK(gt__pass_inplace(&m.p));
    CHECK_EQ_INT(count_chains(&m.p), 1);
    size_t *offsets;
    CHECK_EQ_INT(arena_of(&m.p, &offsets), 2 * 16384);
    free(offsets);
    run_by_hand(m.ctx, &m.p, NULL);
    CHECK(m.numbers[1][5] == 2 * m.numbers[0][5] && m.numbers[2][5] == -2 * m.numbers[0][5]);
    gt__program_free(&m.p);
}

/* What is only passed on is read before anything is written over it. */
TEST(unit, chains_swap_two_tensors) {
    gt_context *ctx = test_context(t);
    static float a[5000], b[5000];
    for (int i = 0; i < 5000; ++i) a[i] = (float)i, b[i] = -(float)i;
    gt__chain c = {.n = 5000, .n_inputs = 2, .n_nodes = 2, .n_outputs = 2};
    c.inputs[0] = (gt__chain_input){.data = a, .inner = 1, .size = 5000, .dtype = GT_DTYPE_F32};
    c.inputs[1] = (gt__chain_input){.data = b, .inner = 1, .size = 5000, .dtype = GT_DTYPE_F32};
    c.nodes[0] = (gt__chain_node){.op = GT__OP_COPY, .dtype = GT_DTYPE_F32, .a = ~0};
    c.nodes[1] = (gt__chain_node){.op = GT__OP_COPY, .dtype = GT_DTYPE_F32, .a = ~1};
    c.outputs[0] = (gt__chain_output){.data = b, .node = 0};
    c.outputs[1] = (gt__chain_output){.data = a, .node = 1};
    CHECK(ctx->backend->can_chain(ctx->device, &c, false));
    CHECK_OK(ctx->backend->run_chain(ctx->device, &c));
    for (int i = 0; i < 5000; ++i) CHECK(a[i] == -(float)i && b[i] == (float)i);
}

TEST(unit, chains_do_not_keep_much_alive_for_the_sake_of_a_pass) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, COUNT), b = buffer(&m.p, COUNT), c = buffer(&m.p, COUNT), d = buffer(&m.p, COUNT), e = buffer(&m.p, COUNT);
    device_copy(&m.p, &a, &m.x);
    device_copy(&m.p, &b, &m.x);
    binary(&m.p, m.ctx, GT__OP_ADD, &c, &a, &b); /* two go, one comes */
    device_copy(&m.p, &d, &m.x);
    binary(&m.p, m.ctx, GT__OP_ADD, &e, &c, &d);
    device_copy(&m.p, &m.y, &e);
    chains_leave(&m, 0, 6);
    CHECK(m.numbers[1][5] == 3 * m.numbers[0][5]);
}

/* On the CPU as it is. */
static void worth_it(made *m, gt_dtype dtype, int64_t n, int calls, bool yes) {
    static float x[5000];
    const void *before = x;
    for (int k = 0; k < calls; ++k) {
        int32_t b = add_buffer(&m->p, (size_t)n * gt_dtype_size(dtype));
        operand from = operand_of((void *)(uintptr_t)before, dtype, 1, &n),
                to = operand_of((void *)(uintptr_t)m->p.buffers[b].address, dtype, 1, &n);
        unary(&m->p, m->ctx, GT__OP_NEG, &to, &from);
        before = to.data;
    }
    CHECK_OK(gt__pass_chains(&m->p, m->ctx->device));
    if (count_chains(&m->p) != yes) FAIL("%d calls on %d elements of %s", calls, (int)n, gt_dtype_name(dtype));
    gt__program_free(&m->p);
}

TEST(unit, chains_on_the_cpu_leave_two_calls_alone_where_they_are_as_fast) {
    static made m;
    make(t, &m);
    worth_it(&m, GT_DTYPE_F32, 100, 2, false);
    worth_it(&m, GT_DTYPE_F32, 1000000, 2, false);
    worth_it(&m, GT_DTYPE_F32, 5000000, 2, true);
    worth_it(&m, GT_DTYPE_F16, 100, 2, false);
    worth_it(&m, GT_DTYPE_F16, 5000, 2, true);
    worth_it(&m, GT_DTYPE_F32, 100, 3, true);
}

TEST(unit, chains_leave_empty_tensors_alone) {
    static made m;
    make(t, &m);
    const int64_t none[2] = {0, 3}, three[2] = {1, 3};
    operand a = operand_of(NULL, GT_DTYPE_F32, 2, none), b = a;
    operand sum = operand_of(m.numbers[1], GT_DTYPE_F32, 2, three);
    m.numbers[1][0] = 5;
    unary(&m.p, m.ctx, GT__OP_NEG, &a, &b);
    unary(&m.p, m.ctx, GT__OP_ABS, &b, &a);
    const operand *in = &b, *out = &sum;
    gt__call *call = add_call(&m.p, m.ctx, GT__OP_SUM, &out, 1, &in, 1);
    call->attr.reduce.mask = 1;
    call->attr.reduce.keep_dims = 1;
    chains_leave(&m, 0, 3);
    CHECK(m.numbers[1][0] == 0);
}

TEST(unit, chains_are_computed_again_without_what_was_kept) {
    static made m;
    make(t, &m);
    operand a = buffer(&m.p, COUNT), b = buffer(&m.p, COUNT), c = buffer(&m.p, COUNT);
    unary(&m.p, m.ctx, GT__OP_NEG, &a, &m.x);
    unary(&m.p, m.ctx, GT__OP_SQUARE, &b, &a);
    device_copy(&m.p, &c, &b);
    device_copy(&m.p, &m.y, &c);
    device_copy(&m.p, &m.z, &a);
    for (int32_t i = 0; i < m.p.count; ++i) m.p.list[i].phase = i < 3 ? GT__PHASE_FORWARD : GT__PHASE_BACKWARD;
    CHECK_OK(gt__pass_chains(&m.p, device_that_chains(m.ctx)));
    CHECK_EQ_INT(m.p.list[0].chain->n_outputs, 2);
    bool keep[3] = {false, true, true};
    CHECK_OK(gt__pass_recompute(&m.p, keep));
    CHECK_EQ_INT(count_chains(&m.p), 2);
    int32_t again = m.p.count - 1;
    while (m.p.list[again].kind != GT__DO_CHAIN) --again;
    const gt__chain *second = m.p.list[again].chain;
    CHECK(m.p.list[again].phase == GT__PHASE_BACKWARD);
    CHECK_EQ_INT((second->outputs[0].data != NULL) + (second->outputs[1].data != NULL), 1);
    run_by_hand(m.ctx, &m.p, NULL);
    CHECK(m.numbers[2][1] == -m.numbers[0][1]);
    CHECK(m.numbers[1][1] == m.numbers[0][1] * m.numbers[0][1]);
    gt__program_free(&m.p);
}

/* --- the device's own kernels --------------------------------------------------------------------------------------------------------------- */

static gt_tensor *numbers_on(gt_context *ctx, gt_dtype dtype, int64_t n, int shift) {
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; ++i)
        x[i] = i % 97 == 96 ? NAN : i % 89 == 88 ? INFINITY : (float)((i * 7 + shift * 13 + i / 11) % 101 - 50) / 16;
    gt_tensor *t = CHECK_TENSOR(gt_cast(CHECK_TENSOR(gt_tensor_from_data(ctx, GT_DTYPE_F32, 1, &n, x, (size_t)n * sizeof *x)), dtype));
    free(x);
    return t;
}

/* To the bit on the CPU; elsewhere a compiler may contract an op's own products and sums in another way. */
static void same_numbers(test_case *t, gt_tensor *got, gt_tensor *want, const char *what) {
    const gt_dtype dtype = gt_tensor_dtype(got);
    const int64_t n = gt_tensor_numel(got);
    const double close = dtype == GT_DTYPE_F64 ? 1e-14 : dtype == GT_DTYPE_F32 ? 1e-6 : dtype == GT_DTYPE_F16 ? 1e-3 : 8e-3;
    double *a = malloc((size_t)n * sizeof *a), *b = malloc((size_t)n * sizeof *b);
    CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_cast(got, GT_DTYPE_F64)), a, (size_t)n * sizeof *a));
    CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_cast(want, GT_DTYPE_F64)), b, (size_t)n * sizeof *b));
    for (int64_t i = 0; i < n; ++i) {
        bool near = test_device(t) != GT_DEVICE_CPU && fabs(a[i] - b[i]) <= close * (1 + fabs(b[i]));
        if (!(a[i] == b[i] || (isnan(a[i]) && isnan(b[i])) || near))
            FAIL("%s in %s, element %d: %.17g, the kernel %.17g", what, gt_dtype_name(dtype), (int)i, a[i], b[i]);
    }
    free(a);
    free(b);
}

static gt_tensor *one_op(gt__op_id op, gt_tensor *a, gt_tensor *b) {
    const gt__attrs attr = {.scalar = {1.75}};
    gt_tensor *const in[2] = {a, b};
    return CHECK_TENSOR(gt__op(op, in, gt__chain_operands(op), &attr));
}

/* Each op after a sum of its operands, which stays inside, and the mean of its results. */
static void compare_op(test_case *t, gt_context *ctx, gt_dtype dtype, gt__op_id op, int64_t n) {
    CHECK_OK(gt_scope_begin(ctx));
    gt_tensor *a = numbers_on(ctx, dtype, n, 1), *b = numbers_on(ctx, dtype, n, 2), *sum = one_op(GT__OP_MUL, a, b);
    gt_tensor *want = one_op(op, sum, b), *got = CHECK_TENSOR(gt_neg(want)), *mean = CHECK_TENSOR(gt_mean(want, NULL, 0, 0)),
              *got_mean = CHECK_TENSOR(gt_neg(mean));
    gt__chain c = {.n = n, .n_inputs = 2, .n_nodes = 2, .n_outputs = 1};
    c.inputs[0] = (gt__chain_input){.data = a->data, .inner = 1, .size = n, .dtype = dtype};
    c.inputs[1] = (gt__chain_input){.data = b->data, .inner = 1, .size = n, .dtype = dtype};
    c.nodes[0] = (gt__chain_node){.op = GT__OP_MUL, .dtype = dtype, .a = ~0, .b = ~1};
    c.nodes[1] = (gt__chain_node){.op = op, .dtype = dtype, .a = 0, .b = ~1, .value = 1.75};
    c.outputs[0] = (gt__chain_output){.data = got->data, .node = 1};
    c.sum = (gt__chain_sum){.data = got_mean->data, .kept = 1, .reduced = n, .dtype = dtype, .node = 1, .mean = 1};
    const gt__backend *backend = ctx->backend;
    int32_t previous = gt__enter(ctx);
    if (!backend->can_chain(ctx->device, &c, true)) SKIP("the device makes no chains: is there a libnvrtc?");
    CHECK_OK(backend->run_chain(ctx->device, &c));
    gt__leave(ctx, previous);
    same_numbers(t, got, want, gt__op_table[op].name);
    same_numbers(t, got_mean, mean, "the mean");
    CHECK_OK(gt_scope_end(ctx));
}

static void compare_ops(test_case *t, gt_dtype dtype) {
    gt_context *ctx = test_context(t);
    for (size_t k = 0; k < sizeof random_binary / sizeof *random_binary; ++k) compare_op(t, ctx, dtype, random_binary[k], 5003);
    for (size_t k = 0; k < sizeof random_unary / sizeof *random_unary; ++k) compare_op(t, ctx, dtype, random_unary[k], 5003);
    compare_op(t, ctx, dtype, GT__OP_ADD, 3);
}

TEST_DEVICES(parity, chains_compute_what_kernels_do_in_f32) { compare_ops(t, GT_DTYPE_F32); }
TEST_DEVICES(parity, chains_compute_what_kernels_do_in_f16) { compare_ops(t, GT_DTYPE_F16); }
TEST_DEVICES(parity, chains_compute_what_kernels_do_in_bf16) { compare_ops(t, GT_DTYPE_BF16); }
TEST_DEVICES(parity, chains_compute_what_kernels_do_in_f64) { compare_ops(t, GT_DTYPE_F64); }

/* --- steps --------------------------------------------------------------------------------------------------------------------------------- */

enum { ROWS = 48, WIDTH = 64, FEATURES = 20, STEPS = 5 };

typedef struct world {
    gt_context *ctx;
    gt_module *net, *first, *second, *dropout;
    gt_optimizer *optimizer;
    gt_scaler *scaler;
    gt_step *step;
    gt_window *window;
    gt_tensor *inputs[2];
    gt_dtype autocast;
    int32_t micro_batches;
} world;

/* A swish by hand, dropout and a sum with what was before, a loss by hand: none has an op of its own. */
static gt_status loss_of(void *user, gt_tensor *const *inputs, int32_t n, gt_step_result *r) {
    const world *w = user;
    (void)n;
    gt_tensor *h = gt_module_forward(w->first, inputs[0]);
    gt_tensor *a = gt_mul(h, gt_sigmoid(h));
    a = gt_add(gt_module_forward(w->dropout, gt_mul_scalar(a, 1.5)), h);
    gt_tensor *y = gt_module_forward(w->second, a);
    gt_tensor *d = gt_sub(gt_cast(y, GT_DTYPE_F32), inputs[1]);
    r->loss = gt_mean(gt_mul(d, d), NULL, 0, 0);
    r->outputs[0] = y;
    return r->loss ? GT_OK : gt_last_error()->status;
}

static void begin(test_case *t, world *w, gt_dtype autocast, int32_t micro_batches, bool compiled, int32_t fuse, uint64_t budget) {
    gt_context_options options;
    *w = (world){.autocast = autocast, .micro_batches = micro_batches};
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.seed = 11;
    options.deterministic = 1;
    options.allow_tf32 = 0;
    w->ctx = test_context_with(t, &options);
    gt_module *layers[] = {w->first = gt_nn_linear(w->ctx, FEATURES, WIDTH, NULL), w->dropout = gt_nn_dropout(w->ctx, 0.25),
                           w->second = gt_nn_linear(w->ctx, WIDTH, 4, NULL)};
    w->net = gt_nn_sequential_from(w->ctx, layers, 3);
    CHECK(w->net != NULL);
    w->optimizer = net_adam(w->net);
    if (autocast == GT_DTYPE_F16) CHECK_OK(gt_scaler_create(w->ctx, NULL, &w->scaler));
    float x[ROWS * FEATURES], y[ROWS * 4];
    for (int i = 0; i < ROWS * FEATURES; ++i) x[i] = (float)((i * 7 + i / 13) % 31 - 15) / 8;
    for (int i = 0; i < ROWS * 4; ++i) y[i] = (float)(i % 5) / 4;
    w->inputs[0] = CHECK_TENSOR(gt_tensor_from_data(w->ctx, GT_DTYPE_F32, 2, (const int64_t[]){ROWS, FEATURES}, x, sizeof x));
    w->inputs[1] = CHECK_TENSOR(gt_tensor_from_data(w->ctx, GT_DTYPE_F32, 2, (const int64_t[]){ROWS, 4}, y, sizeof y));
    if (compiled) {
        gt_step_options so;
        CHECK_OK(gt_step_options_init(&so, sizeof so));
        so.fn = loss_of;
        so.user = w;
        so.module = w->net;
        so.optimizers = &w->optimizer;
        so.n_optimizers = 1;
        so.scaler = w->scaler;
        so.autocast = autocast;
        so.micro_batches = micro_batches;
        so.fuse_elementwise = fuse;
        so.memory_budget = budget;
        CHECK_OK(gt_step_create(w->ctx, &so, &w->step));
    } else {
        gt_window_options wo;
        CHECK_OK(gt_window_options_init(&wo, sizeof wo));
        wo.micro_batches = micro_batches;
        wo.module = w->net;
        wo.optimizers = &w->optimizer;
        wo.n_optimizers = 1;
        wo.scaler = w->scaler;
        CHECK_OK(gt_window_create(&wo, &w->window));
    }
}

static void end(world *w) {
    gt_step_destroy(w->step);
    gt_window_destroy(w->window);
    gt_scaler_destroy(w->scaler);
    gt_optimizer_destroy(w->optimizer);
    gt_module_destroy(w->net);
    gt_tensor_release(w->inputs[0]);
    gt_tensor_release(w->inputs[1]);
}

static void update(world *w) {
    if (w->step) {
        CHECK_OK(gt_step_run(w->step, w->inputs, 2));
        return;
    }
    CHECK_OK(gt_scope_begin(w->ctx));
    for (int m = 0; m < w->micro_batches; ++m) {
        int first = ROWS * m / w->micro_batches, last = ROWS * (m + 1) / w->micro_batches;
        gt_tensor *const part[2] = {gt_slice(w->inputs[0], 0, first, last, 1), gt_slice(w->inputs[1], 0, first, last, 1)};
        gt_step_result r = {0};
        CHECK_OK(gt_window_micro_begin(w->window));
        if (w->autocast != GT_DTYPE_F32) CHECK_OK(gt_autocast_begin(w->ctx, w->autocast));
        CHECK_OK(loss_of(w, part, 2, &r));
        if (w->autocast != GT_DTYPE_F32) CHECK_OK(gt_autocast_end(w->ctx));
        CHECK_OK(gt_window_micro_end(w->window, r.loss, last - first, NULL));
    }
    CHECK_OK(gt_scope_end(w->ctx));
}

static void compare_steps(test_case *t, gt_dtype autocast, int32_t micro_batches, uint64_t budget) {
    world eager, plain, fused;
    begin(t, &eager, autocast, micro_batches, false, 0, 0);
    begin(t, &plain, autocast, micro_batches, true, -1, 0);
    begin(t, &fused, autocast, micro_batches, true, 1, budget);
    bool exact = test_device(t) == GT_DEVICE_CPU; /* sums are taken in another order on a GPU */
    for (int i = 0; i < STEPS; ++i) {
        update(&eager);
        update(&plain);
        update(&fused);
        if (exact) {
            net_same(eager.net, plain.net);
            net_same(plain.net, fused.net);
        }
    }
    double a, b;
    CHECK_OK(gt_tensor_item(gt_step_loss(plain.step), &a));
    CHECK_OK(gt_tensor_item(gt_step_loss(fused.step), &b));
    if (exact)
        CHECK(a == b);
    else
        CHECK_NEAR(b, a, autocast == GT_DTYPE_F32 ? 1e-3 : 2e-2);
    end(&eager);
    end(&plain);
    end(&fused);
}

TEST_DEVICES(unit, chains_in_a_step_change_nothing) { compare_steps(t, GT_DTYPE_F32, 1, 0); }
TEST_DEVICES(unit, chains_in_a_step_of_micro_batches_change_nothing) { compare_steps(t, GT_DTYPE_F32, 3, 0); }
TEST_DEVICES(unit, chains_in_a_step_with_loss_scaling_change_nothing) { compare_steps(t, GT_DTYPE_F16, 1, 0); }
TEST_DEVICES(unit, chains_in_a_step_in_bf16_change_nothing) { compare_steps(t, GT_DTYPE_BF16, 2, 0); }

static char *described(gt_step *step) {
    size_t needed;
    CHECK_OK(gt_step_describe(step, GT_STEP_TEXT, NULL, 0, &needed));
    char *text = malloc(needed);
    CHECK_OK(gt_step_describe(step, GT_STEP_TEXT, text, needed, NULL));
    return text;
}

TEST(unit, chains_are_seen_in_a_steps_text_and_memory) {
    world plain, fused, standard;
    begin(t, &plain, GT_DTYPE_F32, 1, true, -1, 0);
    begin(t, &fused, GT_DTYPE_F32, 1, true, 1, 0);
    begin(t, &standard, GT_DTYPE_F32, 1, true, 0, 0);
    gt_step_memory with = net_step_memory(), without = net_step_memory();
    update(&plain);
    update(&fused);
    update(&standard);
    char *before = described(plain.step), *after = described(fused.step), *normal = described(standard.step);
    CHECK(strstr(before, "chain(") == NULL);
    CHECK(strstr(before, " = sigmoid(") != NULL);
    CHECK(strstr(after, "mul_scalar, dropout, add)(") != NULL);
    CHECK(strstr(after, "; mean)(") != NULL);
    CHECK(strstr(after, " = sigmoid(") == NULL);
    CHECK(strstr(normal, "chain(") != NULL); /* the CPU's default */
    CHECK_OK(gt_step_get_memory(plain.step, &without));
    CHECK_OK(gt_step_get_memory(fused.step, &with));
    CHECK(with.arena < without.arena);
    CHECK(with.instructions < without.instructions);
    free(before);
    free(after);
    free(normal);
    end(&plain);
    end(&fused);
    end(&standard);
}

TEST(unit, chains_keep_to_a_budget) {
    world whole;
    begin(t, &whole, GT_DTYPE_F32, 1, true, 1, UINT64_C(1) << 30);
    update(&whole);
    uint64_t roomy = whole.step->last->arena_bytes + whole.step->last->fixed;
    end(&whole);
    world tight;
    begin(t, &tight, GT_DTYPE_F32, 1, true, 1, 1);
    CHECK_STATUS(gt_step_run(tight.step, tight.inputs, 2), GT_OUT_OF_MEMORY);
    uint64_t least = tight.step->budget_least;
    end(&tight);
    CHECK(least < roomy);
    compare_steps(t, GT_DTYPE_F32, 1, least);
}
