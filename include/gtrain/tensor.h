/* gtrain/tensor.h: n-dimensional arrays on a context's device.
 *
 * @code
 * #include <gtrain/gtrain.h>
 * int main(void) {
 *     gt_context *ctx;
 *     if (gt_context_create(NULL, &ctx) != GT_OK) return 1;
 *     gt_scope_begin(ctx);
 *     const float values[6] = {1, 2, 3, 4, 5, 6};
 *     const int64_t shape[2] = {2, 3};
 *     gt_tensor *x = gt_tensor_from_data(ctx, GT_DTYPE_F32, 2, shape, values, sizeof values);
 *     float back[6];
 *     gt_status status = gt_tensor_read(gt_transpose(x, 0, 1), back, sizeof back); // 1 4 2 5 3 6
 *     gt_scope_end(ctx);
 *     gt_context_destroy(ctx);
 *     return status == GT_OK ? 0 : 1;
 * }
 * @endcode
 *
 * Shapes are logical and row-major: an image batch is [N, C, H, W] as in PyTorch. Strides say how it is stored; convolution stores
 * its images channels-last. Reading and writing always use the logical order.
 */
#ifndef GTRAIN_TENSOR_H
#define GTRAIN_TENSOR_H

#include <gtrain/context.h>

GT_EXTERN_C_BEGIN

/* constant, name, value, bytes of an element */
#define GT_DTYPE_LIST(X)                                                                                                                   \
    X(F32, "f32", 0, 4)                                                                                                                    \
    X(F16, "f16", 1, 2)                                                                                                                    \
    X(BF16, "bf16", 2, 2)                                                                                                                  \
    X(F64, "f64", 3, 8)                                                                                                                    \
    X(I32, "i32", 4, 4)                                                                                                                    \
    X(I64, "i64", 5, 8)                                                                                                                    \
    X(U8, "u8", 6, 1)

/* Types of elements, as GT_DTYPE_LIST has them. */
typedef int32_t gt_dtype;
enum {
#define GT_DTYPE_ENUM(constant, name, value, bytes) GT_DTYPE_##constant = value,
    GT_DTYPE_LIST(GT_DTYPE_ENUM)
#undef GT_DTYPE_ENUM
        GT_DTYPE_COUNT = 7 /* how many there are */
};

/* Bytes of one element, 0 for an unknown dtype. @since 0.1 */
GT_API size_t gt_dtype_size(gt_dtype dtype);
/* "f32" …; "?" for an unknown dtype. Static. @since 0.1 */
GT_API const char *gt_dtype_name(gt_dtype dtype);

/* --- making tensors ---------------------------------------------------------------------------------------------------------
 * All follow the ops' convention: a new tensor, which belongs to the innermost scope (or to the caller without one), or NULL with
 * the error kept. `shape` has `ndim` entries, 0 <= ndim <= GT_MAX_DIMS; entries may be 0; a scalar has ndim 0. BAD_SHAPE (negative
 * entries, or a size that does not fit in memory's address range), BAD_DTYPE, OUT_OF_MEMORY. None waits for the device. */
GT_API gt_tensor *gt_tensor_empty(gt_context *ctx, gt_dtype dtype, int32_t ndim, const int64_t *shape); /* contents undefined. @since 0.1 */
GT_API gt_tensor *gt_tensor_zeros(gt_context *ctx, gt_dtype dtype, int32_t ndim, const int64_t *shape); /* all elements 0. @since 0.1 */
/* all elements `value`. @since 0.1 */
GT_API gt_tensor *gt_tensor_full(gt_context *ctx, gt_dtype dtype, int32_t ndim, const int64_t *shape, double value);
/* Copies `bytes` bytes of host memory in logical order; `bytes` must be the tensor's size. The buffer may be reused when the
 * call returns. @since 0.1 */
GT_API gt_tensor *gt_tensor_from_data(gt_context *ctx, gt_dtype dtype, int32_t ndim, const int64_t *shape, const void *data, size_t bytes);
/* A tensor over device memory that is somebody else's (another library's array, on this context's device): nothing is copied. `strides` in elements,
 * none negative; NULL: row-major. `data` is aligned to its elements and must be valid, and ready for the context's stream, until release(user) is called, once, when nothing uses
 * the tensor or a view of it any more, or the context is destroyed; work that is queued may still use it on a GPU. It may be called inside any call that lets go of tensors, and
 * must not call gtrain with this context. NULL: nothing is called. On failure it is not called. @since 0.1 */
GT_API gt_tensor *gt_tensor_from_memory(gt_context *ctx, gt_dtype dtype, int32_t ndim, const int64_t *shape, const int64_t *strides,
                                        void *data, void (*release)(void *user), void *user);
/* Uniform in [low, high). Floating-point dtypes. @since 0.1 */
GT_API gt_tensor *gt_tensor_uniform(gt_context *ctx, gt_dtype dtype, int32_t ndim, const int64_t *shape, double low, double high);
/* Normal with that mean and standard deviation `std`. Floating-point dtypes. @since 0.1 */
GT_API gt_tensor *gt_tensor_normal(gt_context *ctx, gt_dtype dtype, int32_t ndim, const int64_t *shape, double mean, double std);
/* start, start + step, … : `count` values. @since 0.1 */
GT_API gt_tensor *gt_tensor_arange(gt_context *ctx, gt_dtype dtype, double start, double step, int64_t count);

/* --- ownership --------------------------------------------------------------------------------------------------------------- */
GT_API gt_tensor *gt_tensor_retain(gt_tensor *tensor); /* returns `tensor`; NULL is allowed. @since 0.1 */
GT_API void gt_tensor_release(gt_tensor *tensor);      /* NULL is allowed. @since 0.1 */
/* gt_tensor_release from any thread, for finalizers of languages that run them anywhere: the context's own thread releases it before its next op, new tensor
 * or look at the statistics. NULL is allowed. @since 0.1 */
GT_API void gt_tensor_drop(gt_tensor *tensor);

/* --- looking at tensors: never fail for a valid handle, never wait ------------------------------------------------------------ */
GT_API gt_context *gt_tensor_context(const gt_tensor *tensor);        /* borrowed. @since 0.1 */
GT_API gt_dtype gt_tensor_dtype(const gt_tensor *tensor);             /* of its elements; -1 for NULL. @since 0.1 */
GT_API int32_t gt_tensor_ndim(const gt_tensor *tensor);               /* number of axes; -1 for NULL. @since 0.1 */
GT_API const int64_t *gt_tensor_shape(const gt_tensor *tensor);       /* ndim entries, borrowed. @since 0.1 */
GT_API const int64_t *gt_tensor_strides(const gt_tensor *tensor);     /* ndim entries, in elements, borrowed. @since 0.1 */
GT_API int64_t gt_tensor_size(const gt_tensor *tensor, int32_t axis); /* negative axes count from the end; -1 if out of range. @since 0.1 */
GT_API int64_t gt_tensor_numel(const gt_tensor *tensor);              /* number of elements. @since 0.1 */
GT_API size_t gt_tensor_bytes(const gt_tensor *tensor);               /* numel times element size. @since 0.1 */
GT_API int32_t gt_tensor_is_contiguous(const gt_tensor *tensor);      /* row-major without holes: 1 or 0. @since 0.1 */
GT_API void *gt_tensor_data(gt_tensor *tensor); /* device pointer of the first element; NULL if empty, and while a step is traced (step.h). @since 0.1 */
GT_API const char *gt_tensor_name(const gt_tensor *tensor);           /* "" if it has none. @since 0.1 */
/* Copies the name; shown in error messages and memory reports. @since 0.1 */
GT_API gt_status gt_tensor_set_name(gt_tensor *tensor, const char *name);

/* --- host access ------------------------------------------------------------------------------------------------------------- */
/* Copies the tensor to host memory, in logical order. `bytes` must be gt_tensor_bytes. Waits for the device, and reports what only
 * the device knew (BAD_LABEL). @since 0.1 */
GT_API gt_status gt_tensor_read(gt_tensor *tensor, void *data, size_t bytes);
/* Overwrites the tensor from host memory, in logical order. The buffer may be reused when the call returns. Counts as a change in
 * place (see autograd.h). @since 0.1 */
GT_API gt_status gt_tensor_write(gt_tensor *tensor, const void *data, size_t bytes);
/* The value of a one-element tensor of any dtype. Waits. @since 0.1 */
GT_API gt_status gt_tensor_item(gt_tensor *tensor, double *value);

/* --- changes in place ---------------------------------------------------------------------------------------------------------
 * Each bumps the tensor's version: a later backward that needs the old contents fails with SAVED_MODIFIED. */
GT_API gt_status gt_tensor_fill(gt_tensor *tensor, double value);           /* all elements `value`. @since 0.1 */
GT_API gt_status gt_tensor_copy(gt_tensor *destination, gt_tensor *source); /* same shape; converts dtype. @since 0.1 */

GT_EXTERN_C_END
#endif
