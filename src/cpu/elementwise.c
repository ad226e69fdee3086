/* One function a type for each elementwise op. <tgmath.h> picks expf for a float and exp for a double. */
#include "core/chain.h"
#include "cpu/kernels.h"
#include "cpu/map.h"
#include "cpu/target.h"
#include "cpu/vector_math.h"

#include <math.h>
#include <tgmath.h>

#define SQRT_HALF        0.70710678118654752440
#define SQRT_2_OVER_PI   0.79788456080286535588
#define INVERSE_SQRT_2PI 0.39894228040143267794

#define LOOP_UNARY(suffix, type, name, ...)                                                                                                \
    GT__CPU_CLONES static void name##_##suffix(int64_t n, type *y, const type *a, const type *b, const void *parameter) {                  \
        (void)b;                                                                                                                           \
        (void)parameter;                                                                                                                   \
        typedef type T;                                                                                                                    \
        for (int64_t i = 0; i < n; i++) {                                                                                                  \
            T x = a[i];                                                                                                                    \
            y[i] = (T)(__VA_ARGS__);                                                                                                       \
        }                                                                                                                                  \
    }

#define LOOP_BINARY(suffix, type, name, ...)                                                                                               \
    GT__CPU_CLONES static void name##_##suffix(int64_t n, type *z, const type *a, const type *b, const void *parameter) {                  \
        (void)parameter;                                                                                                                   \
        typedef type T;                                                                                                                    \
        for (int64_t i = 0; i < n; i++) {                                                                                                  \
            T x = a[i], y = b[i];                                                                                                          \
            z[i] = (T)(__VA_ARGS__);                                                                                                       \
        }                                                                                                                                  \
    }

#define LOOP_SCALAR(suffix, type, name, ...)                                                                                               \
    GT__CPU_CLONES static void name##_##suffix(int64_t n, type *y, const type *a, const type *b, const void *parameter) {                  \
        (void)b;                                                                                                                           \
        typedef type T;                                                                                                                    \
        T s = (T) * (const double *)parameter;                                                                                             \
        for (int64_t i = 0; i < n; i++) {                                                                                                  \
            T x = a[i];                                                                                                                    \
            y[i] = (T)(__VA_ARGS__);                                                                                                       \
        }                                                                                                                                  \
    }

#define KERNEL(name, integer, cost_, parameter)                                                                                            \
    static const gt__map_functions name##_functions = {.f32 = name##_f32, .f64 = name##_f64, .i64 = integer, .cost = cost_};               \
    GT__CPU_KERNEL(name) { return gt__cpu_map(device, call, &name##_functions, parameter); }

#define FLOATS(kind, name, cost, ...)                                                                                                      \
    kind(f32, float, name, __VA_ARGS__) kind(f64, double, name, __VA_ARGS__) KERNEL(name, NULL, cost, NULL)

/* `wraps`: the same for integers, in unsigned arithmetic. */
#define ALL(kind, name, wraps, ...)                                                                                                        \
    kind(f32, float, name, __VA_ARGS__) kind(f64, double, name, __VA_ARGS__) kind(i64, int64_t, name, wraps)                               \
        KERNEL(name, name##_i64, 1, NULL)

#define SCALAR(name, cost, ...)                                                                                                            \
    LOOP_SCALAR(f32, float, name, __VA_ARGS__)                                                                                             \
    LOOP_SCALAR(f64, double, name, __VA_ARGS__)                                                                                            \
    KERNEL(name, NULL, cost, &call->attr.scalar.value)

/* --- two tensors ------------------------------------------------------------------------------------------------------------------- */

ALL(LOOP_BINARY, add, (uint64_t)x + (uint64_t)y, x + y)
ALL(LOOP_BINARY, sub, (uint64_t)x - (uint64_t)y, x - y)
ALL(LOOP_BINARY, mul, (uint64_t)x *(uint64_t)y, x *y)
FLOATS(LOOP_BINARY, div, 2, x / y)
ALL(LOOP_BINARY, maximum, x > y ? x : y, (x > y || x != x) ? x : y)
ALL(LOOP_BINARY, minimum, x < y ? x : y, (x < y || x != x) ? x : y)
ALL(LOOP_BINARY, equal, x == y, x == y)
ALL(LOOP_BINARY, greater, x > y, x > y)

/* --- one tensor -------------------------------------------------------------------------------------------------------------------- */

ALL(LOOP_UNARY, neg, 0 - (uint64_t)x, -x)
ALL(LOOP_UNARY, abs, x < 0 ? 0 - (uint64_t)x : (uint64_t)x, fabs(x))
ALL(LOOP_UNARY, sign, (x > 0) - (x < 0), x != x ? x : (T)((x > 0) - (x < 0)))
ALL(LOOP_UNARY, square, (uint64_t)x *(uint64_t)x, x *x)
FLOATS(LOOP_UNARY, sqrt, 2, sqrt(x))
FLOATS(LOOP_UNARY, log, 16, log(x))
FLOATS(LOOP_UNARY, relu, 1, x <= 0 ? (T)0 : x)

LOOP_UNARY(f32, float, exp, gt__exp_f32(x))
LOOP_UNARY(f64, double, exp, exp(x))
KERNEL(exp, NULL, 8, NULL)

LOOP_UNARY(f32, float, sigmoid, gt__sigmoid_f32(x))
LOOP_UNARY(f64, double, sigmoid, 1 / (1 + exp(-x)))
KERNEL(sigmoid, NULL, 8, NULL)

LOOP_UNARY(f32, float, tanh, gt__tanh_f32(x))
LOOP_UNARY(f64, double, tanh, tanh(x))
KERNEL(tanh, NULL, 8, NULL)

/* erfc keeps the lower tail, where 1 + erf cancels. */
FLOATS(LOOP_UNARY, gelu, 24, (T)0.5 * x * erfc(-x * (T)SQRT_HALF))

LOOP_UNARY(f32, float, gelu_tanh, 0.5f * x * (1.0f + gt__tanh_f32((float)SQRT_2_OVER_PI * (x + 0.044715f * x * x * x))))
LOOP_UNARY(f64, double, gelu_tanh, 0.5 * x * (1 + tanh(SQRT_2_OVER_PI * (x + 0.044715 * x * x * x))))
KERNEL(gelu_tanh, NULL, 12, NULL)

LOOP_UNARY(f32, float, silu, x *gt__sigmoid_f32(x))
LOOP_UNARY(f64, double, silu, x / (1 + exp(-x)))
KERNEL(silu, NULL, 8, NULL)

SCALAR(add_scalar, 1, x + s)
SCALAR(mul_scalar, 1, x *s)
SCALAR(pow_scalar, 32, pow(x, s))

typedef struct relu_job {
    float *y;
} relu_job;

static void relu_range(void *argument, int64_t begin, int64_t end) {
    float *y = ((relu_job *)argument)->y + begin;
    relu_f32(end - begin, y, y, NULL, NULL);
}

void gt__cpu_relu_in_place(gt__device *device, float *y, int64_t n) {
    relu_job job = {y};
    gt__cpu_for(device, n, gt__cpu_grain(1), relu_range, &job);
}

/* --- gradients: x is dy; y is the forward's result or input --------------------------------------------------------------------------- */

FLOATS(LOOP_BINARY, tanh_backward, 2, x *((T)1 - y * y))
FLOATS(LOOP_BINARY, sigmoid_backward, 2, x *y *((T)1 - y))
FLOATS(LOOP_BINARY, relu_backward, 1, y > 0 ? x : (y != y ? y : (T)0))

FLOATS(LOOP_BINARY, gelu_backward, 40, x *((T)0.5 * erfc(-y * (T)SQRT_HALF) + y * (T)INVERSE_SQRT_2PI * exp((T)-0.5 * y * y)))

static inline float gelu_tanh_slope_f32(float y) {
    float t = gt__tanh_f32((float)SQRT_2_OVER_PI * (y + 0.044715f * y * y * y));
    return 0.5f * (1.0f + t) + 0.5f * y * (1.0f - t * t) * (float)SQRT_2_OVER_PI * (1.0f + 3.0f * 0.044715f * y * y);
}

static inline double gelu_tanh_slope_f64(double y) {
    double t = tanh(SQRT_2_OVER_PI * (y + 0.044715 * y * y * y));
    return 0.5 * (1 + t) + 0.5 * y * (1 - t * t) * SQRT_2_OVER_PI * (1 + 3 * 0.044715 * y * y);
}

LOOP_BINARY(f32, float, gelu_tanh_backward, x *gelu_tanh_slope_f32(y))
LOOP_BINARY(f64, double, gelu_tanh_backward, x *gelu_tanh_slope_f64(y))
KERNEL(gelu_tanh_backward, NULL, 16, NULL)

static inline float silu_slope_f32(float y) {
    float s = gt__sigmoid_f32(y);
    return s * (1.0f + y * (1.0f - s));
}

static inline double silu_slope_f64(double y) {
    double s = 1 / (1 + exp(-y));
    return s * (1 + y * (1 - s));
}

LOOP_BINARY(f32, float, silu_backward, x *silu_slope_f32(y))
LOOP_BINARY(f64, double, silu_backward, x *silu_slope_f64(y))
KERNEL(silu_backward, NULL, 10, NULL)

/* --- for chains ------------------------------------------------------------------------------------------------------------------------- */

const gt__map_functions *gt__cpu_map_functions(gt__op_id op) {
    static const gt__map_functions *const table[GT__OP_COUNT] = {
#define ENTRY(id, name) [GT__OP_##id] = &name##_functions,
        GT__CHAIN_BINARY_LIST(ENTRY) GT__CHAIN_UNARY_LIST(ENTRY)
#undef ENTRY
    };
    return table[op];
}
