/* Each op's gradient against central finite differences in f64. */
#include "cases/cases.h"

static void check(test_case *t, const char *op) {
    gt_context *ctx = test_context(t);
    int count = 0;
    for (const op_case *c = case_next(op, NULL); c; c = case_next(op, c)) {
        if (c->large || c->no_gradient) continue;
        case_check_gradient(ctx, c);
        count++;
    }
    CHECK(count > 0);
}

#define GRADIENT(name)                                                                                                                     \
    TEST_DEVICES(grad, name##_gradient) { check(t, #name); }
OPS_WITH_GRADIENT(GRADIENT)
