/* The test harness: cases register themselves, one executable an area, one ctest a case.
 *
 *     #include "harness/test.h"
 *
 *     TEST(unit, tensor_rejects_negative_dims) { ... }              one case, no device
 *     TEST_DEVICES(grad, conv2d_gradient) {                         two cases: conv2d_gradient.cpu and .cuda
 *         gt_context *ctx = test_context(t);
 *         CHECK_OK(gt_...(ctx));
 *     }
 *
 * The first argument is the ctest label (unit grad parity contract abi slow). Every body sees its case as `t`.
 * A failed CHECK ends the case, a failed EXPECT notes it and goes on. Both may be used in helper functions and on other
 * threads; there a failed CHECK only notes, since it cannot unwind the case's own thread.
 */
#ifndef GTRAIN_TEST_H
#define GTRAIN_TEST_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <gtrain/context.h>
#include <gtrain/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct test_case test_case;
typedef void (*test_body)(test_case *t);

enum { TEST_NO_DEVICE = -1, TEST_CPU = 0, TEST_CUDA = 1 };

struct test_case {
    const char *name; /* without the device's suffix */
    const char *label;
    const char *file;
    int line;
    int device; /* TEST_NO_DEVICE, TEST_CPU or TEST_CUDA */
    test_body body;
    test_case *next;
};

void test_register(test_case *t);

/* ---- what a body may call ---------------------------------------------------------------------------------------- */

/* A context on the case's device (the CPU where the case has none). After the case the harness ends the scopes still open in
 * it, fails the case if device memory is then in use that was not before it, and destroys it. Each call makes a further context. */
gt_context *test_context(test_case *t);

/* The same from the caller's options, whose device is replaced by the case's own. */
gt_context *test_context_with(test_case *t, const gt_context_options *options);

/* The case's device in the words of the public API: GT_DEVICE_CPU or GT_DEVICE_CUDA. */
int32_t test_device(const test_case *t);

/* "<a fresh folder of this case>/<name>", valid until the case ends; the folder and all in it are then removed. */
const char *test_temp_path(test_case *t, const char *name);

/* Ends the case as skipped, with the reason. */
#define SKIP(reason) test_skip(__FILE__, __LINE__, reason)

/* ---- checks ------------------------------------------------------------------------------------------------------ */

#define CHECK(cond)                test_true((cond) ? 1 : 0, 1, __FILE__, __LINE__, #cond)
#define CHECK_OK(expr)             test_status((expr), GT_OK, 1, __FILE__, __LINE__, #expr)
#define CHECK_STATUS(expr, want)   test_status((expr), (want), 1, __FILE__, __LINE__, #expr)
#define CHECK_EQ_INT(a, b)         test_int((long long)(a), (long long)(b), 1, __FILE__, __LINE__, #a, #b)
#define CHECK_EQ_STR(a, b)         test_str((a), (b), 1, __FILE__, __LINE__, #a)
#define CHECK_ERROR_HAS(substring) test_error_has((substring), 1, __FILE__, __LINE__)

/* |a - b| <= tol * max(1, |b|). */
#define CHECK_NEAR(a, b, tol) test_near((double)(a), (double)(b), (tol), 1, __FILE__, __LINE__, #a, #b)

/* |a[i] - b[i]| <= atol + rtol * |b[i]| for each of n values; equal infinities and two NaNs agree. */
#define CHECK_ALLCLOSE_F32(a, b, n, rtol, atol) test_allclose_f32((a), (b), (size_t)(n), (rtol), (atol), 1, __FILE__, __LINE__, #a)
#define CHECK_ALLCLOSE_F64(a, b, n, rtol, atol) test_allclose_f64((a), (b), (size_t)(n), (rtol), (atol), 1, __FILE__, __LINE__, #a)

/* An op's result, or the end of the case with the error record's message. */
#define CHECK_TENSOR(expr) test_tensor((expr), __FILE__, __LINE__, #expr)

#define EXPECT(cond)                test_true((cond) ? 1 : 0, 0, __FILE__, __LINE__, #cond)
#define EXPECT_OK(expr)             test_status((expr), GT_OK, 0, __FILE__, __LINE__, #expr)
#define EXPECT_STATUS(expr, want)   test_status((expr), (want), 0, __FILE__, __LINE__, #expr)
#define EXPECT_EQ_INT(a, b)         test_int((long long)(a), (long long)(b), 0, __FILE__, __LINE__, #a, #b)
#define EXPECT_EQ_STR(a, b)         test_str((a), (b), 0, __FILE__, __LINE__, #a)
#define EXPECT_ERROR_HAS(substring) test_error_has((substring), 0, __FILE__, __LINE__)
#define EXPECT_NEAR(a, b, tol)      test_near((double)(a), (double)(b), (tol), 0, __FILE__, __LINE__, #a, #b)

/* Ends the case as failed with a message of the caller's. */
#define FAIL(...) test_fail(1, __FILE__, __LINE__, __VA_ARGS__)

/* ---- registration ------------------------------------------------------------------------------------------------ */

#define TEST_REGISTER(label, name, suffix, dev)                                                                                            \
    __attribute__((constructor)) static void test_register_##name##suffix(void) {                                                          \
        static test_case entry = {#name, #label, __FILE__, __LINE__, dev, test_body_##name, NULL};                                         \
        test_register(&entry);                                                                                                             \
    }

#define TEST(label, name)                                                                                                                  \
    static void test_body_##name(test_case *t);                                                                                            \
    TEST_REGISTER(label, name, , TEST_NO_DEVICE)                                                                                           \
    static void test_body_##name(__attribute__((unused)) test_case *t)

#define TEST_DEVICES(label, name)                                                                                                          \
    static void test_body_##name(test_case *t);                                                                                            \
    TEST_REGISTER(label, name, _cpu, TEST_CPU)                                                                                             \
    TEST_REGISTER(label, name, _cuda, TEST_CUDA)                                                                                           \
    static void test_body_##name(__attribute__((unused)) test_case *t)

/* One case that needs the GPU. */
#define TEST_CUDA_ONLY(label, name)                                                                                                        \
    static void test_body_##name(test_case *t);                                                                                            \
    TEST_REGISTER(label, name, _cuda, TEST_CUDA)                                                                                           \
    static void test_body_##name(__attribute__((unused)) test_case *t)

/* ---- what the macros call ---------------------------------------------------------------------------------------- */

void test_true(int ok, int fatal, const char *file, int line, const char *expr);
void test_status(gt_status got, gt_status want, int fatal, const char *file, int line, const char *expr);
void test_int(long long a, long long b, int fatal, const char *file, int line, const char *ea, const char *eb);
void test_str(const char *a, const char *b, int fatal, const char *file, int line, const char *ea);
void test_near(double a, double b, double tol, int fatal, const char *file, int line, const char *ea, const char *eb);
void test_allclose_f32(const float *a, const float *b, size_t n, double rtol, double atol, int fatal, const char *file, int line,
                       const char *ea);
void test_allclose_f64(const double *a, const double *b, size_t n, double rtol, double atol, int fatal, const char *file, int line,
                       const char *ea);
void test_error_has(const char *substring, int fatal, const char *file, int line);
struct gt_tensor *test_tensor(struct gt_tensor *x, const char *file, int line, const char *expr);
void test_skip(const char *file, int line, const char *reason);
void test_fail(int fatal, const char *file, int line, const char *format, ...) __attribute__((format(printf, 4, 5)));

#ifdef __cplusplus
}
#endif

#endif /* GTRAIN_TEST_H */
