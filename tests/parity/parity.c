/* Each op in every dtype against f64 on the CPU: what both devices agree with agrees. */
#include "cases/cases.h"

static void check(test_case *t, const char *op) {
    gt_context_options options;
    gt_context *reference;
    int count = 0;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.allow_tf32 = 0;
    gt_context *ctx = test_context_with(t, &options);
    options.device = GT_DEVICE_CPU;
    CHECK_OK(gt_context_create(&options, &reference));
    for (const op_case *c = case_next(op, NULL); c; c = case_next(op, c), count++) case_check_parity(ctx, reference, c);
    gt_context_destroy(reference);
    CHECK(count > 0);
}

#define PARITY(name)                                                                                                                       \
    TEST_DEVICES(parity, name##_agrees) { check(t, #name); }
OPS_WITH_GRADIENT(PARITY)
OPS_WITHOUT_GRADIENT(PARITY)

/* ---- all ops under other settings; large cases not where they take long ------------------------------------------------------------ */

static const char *const all_ops[] = {
#define NAME(name) #name,
    OPS_WITH_GRADIENT(NAME) OPS_WITHOUT_GRADIENT(NAME)
#undef NAME
};

static int same_bits(const case_array *a, const case_array *b) {
    return a->count == b->count && !a->data == !b->data && (!a->data || memcmp(a->data, b->data, (size_t)a->count * sizeof *a->data) == 0);
}

static void check_bits(gt_context *ctx, const op_case *c) {
    const gt_dtype dtypes[] = {GT_DTYPE_F32, GT_DTYPE_F16};
    char text[512];
    for (int d = 0; d < 2; d++) {
        case_result first, second;
        case_run(ctx, c, dtypes[d], &first);
        case_run(ctx, c, dtypes[d], &second);
        if (!same_bits(&first.out, &second.out))
            FAIL("%s in %s: other output bits the second time", case_text(c, text, sizeof text), gt_dtype_name(dtypes[d]));
        for (int k = 0; k < CASE_INPUTS; k++)
            if (!same_bits(&first.grad[k], &second.grad[k]))
                FAIL("%s in %s: other bits in gradient %d the second time", case_text(c, text, sizeof text), gt_dtype_name(dtypes[d]), k);
        case_free(&first);
        case_free(&second);
    }
}

TEST_DEVICES(contract, D6_deterministic_ops_give_the_same_bits_twice) {
    gt_context_options options;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.deterministic = 1;
    gt_context *ctx = test_context_with(t, &options);
    for (size_t i = 0; i < sizeof all_ops / sizeof *all_ops; i++)
        for (const op_case *c = case_next(all_ops[i], NULL); c; c = case_next(all_ops[i], c))
            if (!c->large || test_device(t) != GT_DEVICE_CPU) check_bits(ctx, c);
}

TEST_DEVICES(contract, D2_every_op_agrees_without_workspace) {
    gt_context_options options;
    gt_context *reference;
    CHECK_OK(gt_context_options_init(&options, sizeof options));
    options.allow_tf32 = 0;
    options.workspace_limit = 0;
    gt_context *ctx = test_context_with(t, &options);
    options.device = GT_DEVICE_CPU;
    CHECK_OK(gt_context_create(&options, &reference));
    for (size_t i = 0; i < sizeof all_ops / sizeof *all_ops; i++)
        for (const op_case *c = case_next(all_ops[i], NULL); c; c = case_next(all_ops[i], c))
            if (!c->large) case_check_parity(ctx, reference, c);
    gt_context_destroy(reference);
}
