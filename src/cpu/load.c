#include "cpu/load.h"

#include "cpu/half.h"
#include "cpu/target.h"

#define LOAD_AS(type, expression)                                                                                                          \
    do {                                                                                                                                   \
        const type *source = from;                                                                                                         \
        if (stride == 1)                                                                                                                   \
            for (int64_t i = 0; i < n; i++) {                                                                                              \
                type v = source[i];                                                                                                        \
                to[i] = (expression);                                                                                                      \
            }                                                                                                                              \
        else                                                                                                                               \
            for (int64_t i = 0; i < n; i++) {                                                                                              \
                type v = source[i * stride];                                                                                               \
                to[i] = (expression);                                                                                                      \
            }                                                                                                                              \
    } while (0)

#define STORE_AS(type, expression)                                                                                                         \
    do {                                                                                                                                   \
        type *target = to;                                                                                                                 \
        if (stride == 1)                                                                                                                   \
            for (int64_t i = 0; i < n; i++) target[i] = (expression);                                                                      \
        else                                                                                                                               \
            for (int64_t i = 0; i < n; i++) target[i * stride] = (expression);                                                             \
    } while (0)

void gt__cpu_load_f32(float *to, const void *from, gt_dtype dtype, int64_t stride, int64_t n) {
    switch (dtype) {
    case GT_DTYPE_F32:
        if (stride == 1)
            memcpy(to, from, (size_t)n * sizeof *to);
        else
            LOAD_AS(float, v);
        break;
    case GT_DTYPE_F16:
        if (stride == 1)
            gt__f16_to_f32_array(to, from, n);
        else
            LOAD_AS(uint16_t, gt__f16_to_f32(v));
        break;
    case GT_DTYPE_BF16:
        if (stride == 1)
            gt__bf16_to_f32_array(to, from, n);
        else
            LOAD_AS(uint16_t, gt__bf16_to_f32(v));
        break;
    case GT_DTYPE_F64:
        LOAD_AS(double, (float)v);
        break;
    default:
        break;
    }
}

void gt__cpu_load_f64(double *to, const void *from, gt_dtype dtype, int64_t stride, int64_t n) {
    switch (dtype) {
    case GT_DTYPE_F32:
        LOAD_AS(float, (double)v);
        break;
    case GT_DTYPE_F16:
        LOAD_AS(uint16_t, (double)gt__f16_to_f32(v));
        break;
    case GT_DTYPE_BF16:
        LOAD_AS(uint16_t, (double)gt__bf16_to_f32(v));
        break;
    case GT_DTYPE_F64:
        LOAD_AS(double, v);
        break;
    default:
        break;
    }
}

void gt__cpu_load_i64(int64_t *to, const void *from, gt_dtype dtype, int64_t stride, int64_t n) {
    switch (dtype) {
    case GT_DTYPE_I32:
        LOAD_AS(int32_t, v);
        break;
    case GT_DTYPE_I64:
        LOAD_AS(int64_t, v);
        break;
    case GT_DTYPE_U8:
        LOAD_AS(uint8_t, v);
        break;
    default:
        break;
    }
}

void gt__cpu_store_f32(void *to, gt_dtype dtype, int64_t stride, const float *from, int64_t n) {
    switch (dtype) {
    case GT_DTYPE_F32:
        STORE_AS(float, from[i]);
        break;
    case GT_DTYPE_F16:
        if (stride == 1)
            gt__f32_to_f16_array(to, from, n);
        else
            STORE_AS(uint16_t, gt__f32_to_f16(from[i]));
        break;
    case GT_DTYPE_BF16:
        if (stride == 1)
            gt__f32_to_bf16_array(to, from, n);
        else
            STORE_AS(uint16_t, gt__f32_to_bf16(from[i]));
        break;
    case GT_DTYPE_F64:
        STORE_AS(double, (double)from[i]);
        break;
    default:
        break;
    }
}

void gt__cpu_store_f64(void *to, gt_dtype dtype, int64_t stride, const double *from, int64_t n) {
    switch (dtype) {
    case GT_DTYPE_F32:
        STORE_AS(float, (float)from[i]);
        break;
    case GT_DTYPE_F16:
        STORE_AS(uint16_t, gt__f32_to_f16(gt__f64_to_f32_odd(from[i])));
        break;
    case GT_DTYPE_BF16:
        STORE_AS(uint16_t, gt__f32_to_bf16(gt__f64_to_f32_odd(from[i])));
        break;
    case GT_DTYPE_F64:
        STORE_AS(double, from[i]);
        break;
    default:
        break;
    }
}

void gt__cpu_store_i64(void *to, gt_dtype dtype, int64_t stride, const int64_t *from, int64_t n) {
    switch (dtype) {
    case GT_DTYPE_I32:
        STORE_AS(int32_t, (int32_t)(uint32_t)(uint64_t)from[i]);
        break;
    case GT_DTYPE_I64:
        STORE_AS(int64_t, from[i]);
        break;
    case GT_DTYPE_U8:
        STORE_AS(uint8_t, (uint8_t)(uint64_t)from[i]);
        break;
    default:
        break;
    }
}
