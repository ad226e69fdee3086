/* gtrain/step.h: compiled steps. A step is traced once: forward, backward, accumulation, unscaling, clipping, the optimizers and the scaler become one program,
 * whose memory is planned before it runs, and which then runs again and again without the host computing anything (on CUDA as one graph).
 *
 * @code
 * #include <gtrain/gtrain.h>
 * static gt_status loss_of(void *user, gt_tensor *const *inputs, int32_t n, gt_step_result *result) {
 *     (void)n;
 *     result->loss = gt_cross_entropy(gt_module_forward(user, inputs[0]), inputs[1], NULL);
 *     return result->loss ? GT_OK : gt_last_error()->status;
 * }
 * gt_status train(gt_module *net, gt_optimizer *optimizer, gt_loader *loader, double *loss) {
 *     gt_context *ctx = gt_module_context(net);
 *     gt_step_options options;
 *     gt_step_options_init(&options, sizeof options);
 *     options.fn = loss_of;
 *     options.user = options.module = net;
 *     options.optimizers = &optimizer;
 *     options.n_optimizers = 1;
 *     gt_step *step = NULL;
 *     gt_status status = gt_step_create(ctx, &options, &step);
 *     int64_t count = status == GT_OK;
 *     while (status == GT_OK && count > 0) {
 *         gt_scope_begin(ctx);
 *         gt_tensor *inputs[2];
 *         status = gt_loader_next(loader, &inputs[0], &inputs[1], &count);
 *         if (status == GT_OK && count > 0) status = gt_step_run(step, inputs, 2);
 *         gt_scope_end(ctx);
 *     }
 *     if (status == GT_OK) status = gt_tensor_item(gt_step_loss(step), loss); // of the last batch; waits
 *     gt_step_destroy(step);
 *     return status;
 * }
 * @endcode
 *
 * What the function does when it is traced is what every run does. It is called once for each micro-batch and each new set of input shapes, so: what varies
 * must come in as an input; numbers and tensors of its own are constants; reading a value is BAD_STATE, as there are none yet, and gt_tensor_data is
 * NULL. Random numbers go on from run to run, as without a step. The results are those of the same calls without a step: to the bit on the CPU and in
 * deterministic contexts; else a GPU may take sums in another order.
 *
 * Custom ops (gt_custom_op_call): while the step is traced only `shape` is called. On the CPU every run calls `forward` and `backward`. On CUDA the first three
 * runs of a shape do (with a memory budget a few more), the last of them to write down what they queue on the call's stream: from then on that is repeated and they are not
 * called any more. There they must not wait for the device nor allocate its memory.
 *
 * Between runs all of these are right: loading weights, an optimizer's own steps, gt_memory_trim, other steps over the same module. Other memory for a tensor
 * that the step uses (gt_module_to_dtype) is BAD_STATE at the next run.
 */
#ifndef GTRAIN_STEP_H
#define GTRAIN_STEP_H

#include <gtrain/amp.h>
#include <gtrain/memory.h>
#include <gtrain/nn.h>
#include <gtrain/optim.h>
#include <gtrain/window.h>

GT_EXTERN_C_BEGIN

/* A compiled step: its options, the programs that were traced for the shapes seen so far, and their memory. */
typedef struct gt_step gt_step;

#define GT_STEP_MAX_INPUTS  8 /* inputs that a run may have, at most */
#define GT_STEP_MAX_OUTPUTS 8 /* outputs that fn may give, at most */

/* What a step's function returns. Complete: it will not grow. */
typedef struct gt_step_result {
    gt_tensor *loss;  /* one element: the mean over the micro-batch's items. NULL only without optimizers */
    gt_tensor *items; /* number of valid items, one f32 or f64 element (gt_cross_entropy_valid); NULL: the rows of the first input */
    gt_tensor *outputs[GT_STEP_MAX_OUTPUTS]; /* what else the caller wants to see, NULL at the end */
} gt_step_result;

/* inputs[0 .. n_inputs - 1]: those of gt_step_run, or the micro-batch's rows of them. Called inside a scope, and inside the autocast region if there is one.
 * Any other status than GT_OK fails the trace with it. */
typedef gt_status (*gt_step_fn)(void *user, gt_tensor *const *inputs, int32_t n_inputs, gt_step_result *result);

typedef struct gt_step_options {
    uint32_t struct_size;
    int32_t
        micro_batches; /* K, default 1: the inputs are cut along axis 0 into K parts, accumulated. 0: as memory_budget chooses, for each set of shapes */
    gt_step_fn fn;                   /* the loss; must be set */
    void *user;                      /* handed to fn */
    gt_module *module;               /* whose buffers and counters the step moves; borrowed. NULL: none */
    gt_optimizer *const *optimizers; /* n_optimizers of the context; borrowed, the array is copied. None: fn runs without gradients */
    gt_scaler *scaler;               /* NULL: no loss scaling. Borrowed */
    const gt_schedule
        *schedule;          /* of all optimizers, by updates done; copied. NULL: theirs, which gt_optimizer_set_learning_rate changes */
    double clip_norm;       /* as in gt_window_options */
    double clip_value;      /* as in gt_window_options */
    int32_t n_optimizers;   /* in `optimizers` */
    gt_dtype autocast;      /* GT_DTYPE_F16 or GT_DTYPE_BF16: fn runs in such a region; default GT_DTYPE_F32: in none */
    uint64_t memory_budget; /* bytes, 0 (default): as many as the fastest plan takes. See gt_step_budget_text */
    int32_t offload;        /* more than 0: memory_budget may also have buffers wait in pinned host memory. 0 (default): not */
    /* Elementwise ops that follow each other, and a sum or mean at their end, in one pass over memory: what lies between them is never there. 0 (default): on the CPU yes, with the same
     * results to the bit; on CUDA yes but in deterministic contexts. There their kernels are compiled by NVRTC when a shape is traced first (without it, or where it fails, ops run one
     * by one), and sums are taken in another order, always the same. Above 0: in deterministic contexts too. Below 0: no. */
    int32_t fuse_elementwise;
} gt_step_options;
GT_API gt_status gt_step_options_init(gt_step_options *options, size_t size); /* @since 0.1 */

/* BAD_ARGUMENT naming the option. Nothing is traced yet. What is borrowed must live until the step is destroyed. @since 0.1 */
GT_API gt_status gt_step_create(gt_context *ctx, const gt_step_options *options, gt_step **step);
/* NULL is allowed. @since 0.1 */
GT_API void gt_step_destroy(gt_step *step);

/* One update. The inputs are copied, so they may be reused at once. New shapes are traced first (up to 16 sets are kept; the one that was not used for
 * longest goes). BAD_SHAPE where the inputs cannot be cut into K parts; what fn returns; BAD_STATE where memory that the step uses has been replaced;
 * OUT_OF_MEMORY with the plan's bytes. After a failure weights, optimizers and, with optimizers, the module's buffers are as they were. Never waits, but for
 * the first runs of a shape, which choose kernels. @since 0.1 */
GT_API gt_status gt_step_run(gt_step *step, gt_tensor *const *inputs, int32_t n_inputs);

/* Results of the last run, borrowed until the next run with other shapes or the step's end; they are overwritten by every run. The loss is the mean over all
 * items, f32. Outputs of several micro-batches are joined along axis 0; those without axes are added up. NULL before the first run, or where fn gave
 * none. @since 0.1 */
GT_API gt_tensor *gt_step_loss(const gt_step *step);
/* The last run's result->outputs[index], as gt_step_loss. NULL where there is none of that number. @since 0.1 */
GT_API gt_tensor *gt_step_output(const gt_step *step, int32_t index);

/* As gt_window_get_state: updates, skipped, gradient norm, learning rate. BAD_STATE without optimizers. Waits for the device. @since 0.1 */
GT_API gt_status gt_step_get_state(gt_step *step, gt_window_state *state);

/* Forgets all programs: for a module whose layers, dtype or training mode were changed. @since 0.1 */
GT_API gt_status gt_step_reset(gt_step *step);

/* --- memory -------------------------------------------------------------------------------------------------------------------------- */

/* An input as gt_step_run will be given it. Complete: it will not grow. */
typedef struct gt_step_input {
    int64_t shape[GT_MAX_DIMS]; /* ndim sizes */
    int32_t ndim;               /* from 0 to GT_MAX_DIMS */
    gt_dtype dtype;             /* of the elements */
    int32_t channels_last;      /* not 0: of rank 4, and lies in memory as gt_channels_last makes it */
    int32_t padding;
} gt_step_input;

/* All in bytes, as the allocator rounds them. peak = fixed + inputs + arena + workspace: what gt_memory_stats.in_use reaches in a run. */
typedef struct gt_step_memory {
    uint32_t struct_size;
    int32_t workspace_known; /* 0: kernels' scratch memory is not known before they have run, and not in any of these numbers */
    uint64_t peak;           /* all of it together */
    uint64_t fixed;          /* all else that the context holds: weights, optimizer state; in a prediction also what a run makes for good */
    uint64_t inputs;         /* the caller's tensors */
    uint64_t arena;          /* one piece of memory, in which all that the step makes has its place */
    uint64_t workspace;      /* scratch memory beside the arena: the most that a kernel takes. 0 once it has places in the arena (CUDA) */
    uint64_t live;           /* the most that is in use at once of arena and scratch memory; no plan is smaller */
    uint64_t micro_batch;    /* of `live`: activations, temporaries and workspace, which shrink with the micro-batches */
    uint64_t fixed_category[GT_MEMORY_CATEGORY_COUNT]; /* `fixed` by category */
    uint64_t live_category[GT_MEMORY_CATEGORY_COUNT];  /* `live` by category */
    int32_t micro_batches;                             /* K of this plan */
    int32_t instructions;                              /* of its program */
    int32_t instruction;                               /* at which `live` is reached (gt_step_describe numbers them) */
    int32_t padding;
    const char *op;     /* of that instruction; never NULL, valid as long as the context */
    const char *module; /* "" outside modules */
    const char *phase;  /* "forward", "backward", "update" or "" */
} gt_step_memory;
GT_API gt_status gt_step_memory_init(gt_step_memory *memory, size_t size); /* @since 0.1 */

/* What a run with such inputs will take, cut into `micro_batches` (0: as many as the step's option says). fn is called as by a first run; no device memory is
 * allocated and no kernel runs, but that half copies which are behind their weights are brought up to date; and the context is as before: weights, gradients,
 * random numbers. What is in use now counts as `fixed`, whether it will be freed before the run or not; the inputs come on top. Half copies of weights and
 * results, which a run makes for good, are in `fixed`. With a memory budget, on CUDA, scratch memory of kernels that have run is in the arena. No GPU is needed: a context on the CPU predicts nearly the same; a GPU may prefer other layouts, fuse
 * more, and run branches side by side.
 * BAD_STATE while a window of the step's optimizers is open; else as gt_step_run. @since 0.1 */
GT_API gt_status gt_step_plan(gt_step *step, const gt_step_input *inputs, int32_t n_inputs, int32_t micro_batches, gt_step_memory *memory);
/* The most rows with which that peak is at most `budget` bytes (0: the context's memory limit, or without one all memory of the device). *rows, a multiple of
 * the micro-batches, takes the place of the first input's shape[0], and of shape[0] of all inputs that have the same. Found by bisection: some 20 traces.
 * OUT_OF_MEMORY where the fewest rows that fn takes (it may refuse few with BAD_BATCH or BAD_SHAPE) are too many: the message says what they take and what
 * dominates. *memory (NULL is allowed): of the batch that was found. @since 0.1 */
GT_API gt_status gt_step_largest_batch(gt_step *step, const gt_step_input *inputs, int32_t n_inputs, int32_t micro_batches, uint64_t budget,
                                       int64_t *rows, gt_step_memory *memory);
/* The same of the plan that ran last, with what was in use then. Scratch memory is known after its first run on the CPU, its second on CUDA, where the third
 * run gives it places in the arena. BAD_STATE before the first run. @since 0.1 */
GT_API gt_status gt_step_get_memory(gt_step *step, gt_step_memory *memory);

/* What was chosen for the plan that ran last so that it keeps to the option memory_budget, and what each choice has bought: bytes, and milliseconds as the device was seen to take
 * for it; those marked "(modelled)" were not all measured. Parameters and cutting as gt_step_describe: `buffer` of `size` bytes, `needed`. BAD_STATE without a budget, or before
 * the first run. @since 0.1
 *
 * Before anything has run times are modelled: bytes over bandwidth or operations over their rate, whichever takes longer, by the device's ceilings if gt_profile_get_ceilings
 * has measured them. The second run of a shape times every instruction, and if something had to be given up the third run plans once more by these times, on CUDA with the kernels'
 * scratch memory too; the results stay the same to the bit. With micro_batches 0 that may also change their number, and with it where results lie. What one shape has shown counts
 * for others: an op that was not seen with these sizes is modelled, times what it was seen to take of its model with others.
 *
 * The budget is for weights, optimizer state and results that the step uses, and its arena; inputs and scratch memory beside the arena are not in it. On CUDA scratch memory has its place
 * in the arena from the third run on, and may then need a smaller plan; where there is none that run is OUT_OF_MEMORY, and nothing is lost. If keeping all that forward
 * makes for backward would not fit, some is computed again in backward, with the same results, and with micro_batches 0 there may be more
 * micro-batches (a power of two, at most 16), which batch norm sees. With offload, buffers that are not used for long may be
 * copied to pinned host memory meanwhile, beside the computation (but on the CPU): it costs what of the copies cannot be hidden, at the speed that was measured (assumed before the second run), and that much
 * host memory, which the text tells. Without such memory the plan is one without offload. Where nothing fits gt_step_run is OUT_OF_MEMORY, naming the smallest budget that would do and what takes the most. */
GT_API gt_status gt_step_budget_text(gt_step *step, char *buffer, size_t size, size_t *needed);

/* --- looking at it ---------------------------------------------------------------------------------------------------------------------- */
typedef int32_t gt_step_format;
enum {
    GT_STEP_TEXT = 0,    /* one line an instruction, then the arena */
    GT_STEP_GRAPHVIZ = 1 /* dot: instructions in their modules, coloured by phase; edges are the memory that one writes and another reads */
};

/* Writes the plan that ran last in `format`, cut to `size` bytes and NUL-terminated if size > 0. *needed (may be NULL) gets the bytes of the whole with its NUL.
 * `buffer` may be NULL if `size` is 0. BAD_STATE before the first run. @since 0.1 */
GT_API gt_status gt_step_describe(gt_step *step, gt_step_format format, char *buffer, size_t size, size_t *needed);

GT_EXTERN_C_END
#endif
