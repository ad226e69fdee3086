/* gtrain/status.h: status codes and the error record.
 *
 * Every call that can fail returns a gt_status, or a pointer that is NULL on failure. The details of the last failure on the
 * calling thread are in gt_last_error().
 *
 * @code
 * #include <gtrain/gtrain.h>
 * #include <stdio.h>
 * int main(void) {
 *     gt_context *ctx;
 *     if (gt_context_create(NULL, &ctx) != GT_OK) {
 *         fprintf(stderr, "%s\n", gt_last_error()->message);
 *         return 1;
 *     }
 *     gt_context_destroy(ctx);
 *     return 0;
 * }
 * @endcode
 */
#ifndef GTRAIN_STATUS_H
#define GTRAIN_STATUS_H

#include <gtrain/api.h>

GT_EXTERN_C_BEGIN

/* name, value, meaning. Values never change; new ones go to the end. */
#define GT_STATUS_LIST(X)                                                                                                                  \
    X(OK, 0, "success")                                                                                                                    \
    X(BAD_ARGUMENT, 1, "an argument is outside what the function accepts")                                                                 \
    X(BAD_SHAPE, 2, "a shape does not fit")                                                                                                \
    X(BAD_DTYPE, 3, "a data type does not fit")                                                                                            \
    X(BAD_DEVICE, 4, "objects of different contexts or devices were mixed")                                                                \
    X(BAD_STATE, 5, "the call is not allowed in the object's present state")                                                               \
    X(BAD_LABEL, 6, "a class label is outside the range of classes")                                                                       \
    X(BAD_BATCH, 7, "the batch is too small for this operation")                                                                           \
    X(BAD_FILE, 8, "a file's contents are not what they should be")                                                                        \
    X(BAD_ABI, 9, "an options struct does not belong to this version of the library")                                                      \
    X(OUT_OF_MEMORY, 10, "device memory is exhausted or its limit is reached")                                                             \
    X(OUT_OF_HOST_MEMORY, 11, "host memory is exhausted")                                                                                  \
    X(NOT_SUPPORTED, 12, "this device or build cannot do that")                                                                            \
    X(NO_DEVICE, 13, "the device or its libraries are not available")                                                                      \
    X(LIBRARY, 14, "a device library reported an error")                                                                                   \
    X(VERSION_MISMATCH, 15, "a device library is older than the one built for")                                                            \
    X(IO, 16, "the operating system reported an input or output error")                                                                    \
    X(NO_GRADS, 17, "no parameter has a gradient")                                                                                         \
    X(SAVED_MODIFIED, 18, "a tensor needed for backward was changed in place")                                                             \
    X(TIMEOUT, 19, "the operation did not finish in time")                                                                                 \
    X(WORKER, 20, "a loader's worker failed")                                                                                              \
    X(FORKED, 21, "the device was opened by the parent process of a fork")                                                                 \
    X(STOPPED, 22, "a callback asked to stop")                                                                                             \
    X(NOT_DETERMINISTIC, 23, "no deterministic way to compute this")                                                                       \
    X(CALLBACK, 24, "a user callback reported failure")                                                                                    \
    X(NOT_FOUND, 25, "nothing of that name")                                                                                               \
    X(INTERNAL, 26, "a bug in gtrain")

typedef int32_t gt_status;
enum {
#define GT_STATUS_ENUM(name, value, text) GT_##name = value,
    GT_STATUS_LIST(GT_STATUS_ENUM)
#undef GT_STATUS_ENUM
};

/* The record of a failure. Fields may be added at its end. */
typedef struct gt_error {
    gt_status status;        /* GT_OK when the thread has had no failure since gt_clear_error */
    int32_t line;            /* in `file` */
    int64_t native_code;     /* cudaError_t, cudnnStatus_t, cublasStatus_t, dnnl_status_t or errno; 0 if none */
    const char *native_name; /* "cudnnStatus_t", "errno" …, or "" */
    const char *file;        /* source file that raised it */
    const char *message;     /* names the op and module, and the numbers */
    const char *hint;        /* what to do, or "" */
} gt_error;

/* The calling thread's last failure; never NULL, valid until the next failing call on this thread. Successful calls leave it
 * as it is. An op that is handed NULL leaves it too, so that after a chain of ops it holds the first failure. @since 0.1 */
GT_API const gt_error *gt_last_error(void);

/* Sets the calling thread's record back to GT_OK. @since 0.1 */
GT_API void gt_clear_error(void);

/* "GT_BAD_SHAPE" for GT_BAD_SHAPE; "GT_UNKNOWN" for a value that is not a status. Static. @since 0.1 */
GT_API const char *gt_status_name(gt_status status);

/* One sentence that says what the status means. Static. @since 0.1 */
GT_API const char *gt_status_text(gt_status status);

GT_EXTERN_C_END
#endif
