/* gtrain/context.h: a context is one device with its streams, its memory and its random state.
 *
 * All state hangs off a context. A context, and everything made from it, is used by one thread at a time; two contexts on two
 * threads are independent.
 *
 * @code
 * #include <gtrain/gtrain.h>
 * int main(void) {
 *     gt_context_options options;
 *     gt_context_options_init(&options, sizeof options);
 *     options.device = GT_DEVICE_AUTO;
 *     options.memory_limit = 2ull << 30;
 *     gt_context *ctx;
 *     if (gt_context_create(&options, &ctx) != GT_OK) return 1;
 *     gt_context_destroy(ctx);
 *     return 0;
 * }
 * @endcode
 */
#ifndef GTRAIN_CONTEXT_H
#define GTRAIN_CONTEXT_H

#include <gtrain/status.h>

GT_EXTERN_C_BEGIN

typedef int32_t gt_device_kind;
enum {
    GT_DEVICE_AUTO = 0, /* CUDA where it works, else CPU */
    GT_DEVICE_CPU = 1,  /* the host */
    GT_DEVICE_CUDA = 2  /* an NVIDIA GPU */
};

typedef int32_t gt_log_level;
enum {
    GT_LOG_DEBUG = 0,   /* for work on gtrain */
    GT_LOG_INFO = 1,    /* what was chosen */
    GT_LOG_WARNING = 2, /* it works, but not as it should */
    GT_LOG_ERROR = 3    /* it does not work */
};

/* Called on the thread that uses the context, or on a worker thread of one of its loaders. `text`, of
 * that `level`, is valid during the call. */
typedef void (*gt_log_fn)(void *user, gt_log_level level, const char *text);

/* No workspace limit of the caller's own: the library chooses. */
#define GT_WORKSPACE_AUTO UINT64_MAX

typedef struct gt_context_options {
    uint32_t struct_size;     /* set by gt_context_options_init */
    gt_device_kind device;    /* default GT_DEVICE_AUTO */
    int32_t device_index;     /* which GPU, default 0; ignored on the CPU */
    int32_t cpu_threads;      /* threads for CPU kernels; 0: all cores that the process may use */
    uint64_t memory_limit;    /* bytes of device memory that may be reserved; 0: no limit but the device's */
    uint64_t workspace_limit; /* most bytes of scratch memory an op may use to be faster; GT_WORKSPACE_AUTO by default, 0: none */
    uint64_t seed;            /* of the random numbers, default 0 */
    int32_t deterministic;    /* not 0: same seed, same bits, on the same device and library versions */
    int32_t allow_tf32;       /* not 0 (default): f32 matrix products and convolutions may round their inputs to TF32 on GPUs */
    gt_log_fn log;            /* NULL: no log */
    void *log_user;           /* handed to `log` */
} gt_context_options;

/* Fills `options` with the defaults. `size` is sizeof(gt_context_options) of the caller's header. BAD_ABI if it is 0 or not
 * a size that this library knows how to fill. @since 0.1 */
GT_API gt_status gt_context_options_init(gt_context_options *options, size_t size);

/* Opens a device. `options` may be NULL for the defaults. On success *ctx is owned by the caller. With GT_DEVICE_AUTO a GPU that
 * cannot be used is logged as a warning and the CPU is used. NO_DEVICE with the library that was missing, where it was looked for
 * and what to install; VERSION_MISMATCH; OUT_OF_HOST_MEMORY. Waits for the device to start. @since 0.1 */
GT_API gt_status gt_context_create(const gt_context_options *options, gt_context **ctx);

/* Waits for the device, ends open scopes and frees the context. Handles that are still retained become inert: they can only be
 * released. NULL is allowed. @since 0.1 */
GT_API void gt_context_destroy(gt_context *ctx);

/* GT_DEVICE_CPU or GT_DEVICE_CUDA; never GT_DEVICE_AUTO. @since 0.1 */
GT_API gt_device_kind gt_context_device(const gt_context *ctx);
/* "NVIDIA H200 (cuda:0)", "CPU (16 threads, oneDNN 3.2)"; lives as long as the context. @since 0.1 */
GT_API const char *gt_context_device_name(const gt_context *ctx);

/* Waits until everything issued so far has run. Reports what only the device knew: BAD_LABEL, LIBRARY. @since 0.1 */
GT_API gt_status gt_context_synchronize(gt_context *ctx);

/* Messages kept until the program fetches them: for bindings whose callbacks run an interpreter, which should not happen in the middle of a call, and for
 * programs that show messages on another thread. Give gt_log_queue_put as a context's `log` and the queue as its `log_user`. A queue holds
 * 64 messages of up to GT_LOG_TEXT_MAX bytes; what comes when it is full is counted, and the count is the message after the last. All calls may be made on any thread. */
typedef struct gt_log_queue gt_log_queue;
#define GT_LOG_TEXT_MAX 1024 /* bytes of a message in a queue; longer ones are cut */

/* On success *queue is owned by the caller. OUT_OF_HOST_MEMORY. @since 0.1 */
GT_API gt_status gt_log_queue_create(gt_log_queue **queue);
/* Only after the contexts that write into it. NULL is allowed. @since 0.1 */
GT_API void gt_log_queue_destroy(gt_log_queue *queue);
/* A gt_log_fn: keeps `text` and its `level`. `queue` is a gt_log_queue. Cannot fail and allocates nothing. @since 0.1 */
GT_API void gt_log_queue_put(void *queue, gt_log_level level, const char *text);
/* Where the number of messages in the queue stands, to be looked at without a call; lives as long as the queue. @since 0.1 */
GT_API const int32_t *gt_log_queue_count(const gt_log_queue *queue);
/* Takes the oldest message: its level and up to `size` - 1 bytes of text. 1, or 0 if there is none. @since 0.1 */
GT_API int32_t gt_log_queue_take(gt_log_queue *queue, gt_log_level *level, char *text, size_t size);

/* The stream on which the context's ops run: a cudaStream_t, or NULL on the CPU. @since 0.1 */
GT_API void *gt_context_stream(gt_context *ctx);

/* Most bytes of scratch memory an op may use to be faster; 0 is allowed and still computes. @since 0.1 */
GT_API gt_status gt_context_set_workspace_limit(gt_context *ctx, uint64_t bytes);
/* Bytes of device memory that may be reserved, 0: no limit. At any time: a limit below what is reserved now applies to the next allocation that
 * needs more, and cached memory then goes back first. @since 0.1 */
GT_API gt_status gt_context_set_memory_limit(gt_context *ctx, uint64_t bytes);

/* Random numbers: Philox4x32-10 (Salmon et al., SC'11), counter-based: the same seed gives the same stream on every device. */
GT_API gt_status gt_random_seed(gt_context *ctx, uint64_t seed); /* begins the stream of that seed, at offset 0. @since 0.1 */
/* Where the stream is: `seed` and `offset`, of which either may be NULL. @since 0.1 */
GT_API gt_status gt_random_state_get(const gt_context *ctx, uint64_t *seed, uint64_t *offset);
/* Continues the stream of `seed` at `offset`, exactly. @since 0.1 */
GT_API gt_status gt_random_state_set(gt_context *ctx, uint64_t seed, uint64_t offset);

/* Begins a scope. Tensors made between begin and end belong to the scope and are released at its end; gt_tensor_retain keeps one beyond
 * it. Scopes nest. Without an open scope the caller owns every result and must release it. @since 0.1 */
GT_API gt_status gt_scope_begin(gt_context *ctx);
/* Ends the innermost scope and releases what belongs to it. BAD_STATE if no scope is open. @since 0.1 */
GT_API gt_status gt_scope_end(gt_context *ctx);
/* Ends the innermost scope but hands `result` to the scope around it (or to the caller, if there is none). Returns `result`;
 * NULL in, NULL out (the scope ends all the same). @since 0.1 */
GT_API gt_tensor *gt_scope_return(gt_context *ctx, gt_tensor *result);

GT_EXTERN_C_END
#endif
