/* Cases that fail on purpose; selftest.cmake checks what the harness says of them. */
#include "harness/test.h"

#include <gtrain/tensor.h>

TEST(unit, passes) {
    CHECK(1);
    CHECK_EQ_INT(2, 2);
    CHECK_EQ_STR("a", "a");
    CHECK_NEAR(1.0, 1.0 + 1e-9, 1e-6);
    CHECK_STATUS(GT_BAD_SHAPE, GT_BAD_SHAPE);
}
TEST(unit, fails_on_check) { CHECK(0); }
TEST(unit, fails_on_int) { CHECK_EQ_INT(1, 2); }
TEST(unit, fails_on_string) { CHECK_EQ_STR("a", NULL); }
TEST(unit, fails_on_near) { CHECK_NEAR(1.0, 1.1, 1e-3); }
TEST(unit, fails_on_nan) {
    const double zero = 0.0;
    CHECK_NEAR(zero / zero, 1.0, 1e-3);
}
TEST(unit, fails_on_status) { CHECK_OK(GT_BAD_SHAPE); }
TEST(unit, fails_on_values) {
    const float a[2] = {1, 2}, b[2] = {1, 3};
    CHECK_ALLCLOSE_F32(a, b, 2, 1e-3, 0);
}
TEST(unit, fails_on_missing_text) { CHECK_ERROR_HAS("no such text"); }
static void helper(void) { CHECK(0); }
TEST(unit, ends_in_a_helper) {
    helper();
    FAIL("went on after a failed CHECK");
}
TEST(unit, goes_on_after_expect) {
    EXPECT(0);
    FAIL("went on");
}
TEST(unit, skips) { SKIP("a reason"); }
TEST_DEVICES(unit, leaks) {
    const int64_t shape[1] = {1000};
    static gt_tensor *kept; /* reachable, so that a leak checker leaves this leak to the harness */
    kept = gt_tensor_zeros(test_context(t), GT_DTYPE_F32, 1, shape);
    CHECK(kept);
}
TEST_DEVICES(unit, cleans_up) {
    const int64_t shape[1] = {1000};
    gt_context *ctx = test_context(t);
    gt_tensor *x = gt_tensor_zeros(ctx, GT_DTYPE_F32, 1, shape);
    CHECK(x);
    gt_tensor_release(x);
    gt_scope_begin(ctx);
    CHECK(gt_tensor_zeros(ctx, GT_DTYPE_F32, 1, shape));
}
