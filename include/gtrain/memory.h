/* gtrain/memory.h: what a context's device memory is used for.
 *
 * @code
 * #include <gtrain/gtrain.h>
 * #include <stdio.h>
 * int main(void) {
 *     gt_context *ctx;
 *     if (gt_context_create(NULL, &ctx) != GT_OK) return 1;
 *     gt_memory_stats stats;
 *     gt_memory_stats_init(&stats, sizeof stats);
 *     if (gt_memory_get_stats(ctx, &stats) == GT_OK)
 *         printf("peak %llu bytes\n", (unsigned long long)stats.peak_in_use);
 *     gt_context_destroy(ctx);
 *     return 0;
 * }
 * @endcode
 */
#ifndef GTRAIN_MEMORY_H
#define GTRAIN_MEMORY_H

#include <gtrain/context.h>

GT_EXTERN_C_BEGIN

/* name, value, title */
#define GT_MEMORY_LIST(X)                                                                                                                  \
    X(PARAMETER, 0, "parameters")                                                                                                          \
    X(GRADIENT, 1, "gradients")                                                                                                            \
    X(OPTIMIZER, 2, "optimizer state")                                                                                                     \
    X(ACTIVATION, 3, "activations saved for backward")                                                                                     \
    X(TEMPORARY, 4, "temporaries")                                                                                                         \
    X(WORKSPACE, 5, "workspace")                                                                                                           \
    X(INPUT, 6, "input batches")                                                                                                           \
    X(USER, 7, "user tensors")

typedef int32_t gt_memory_category;
enum {
#define GT_MEMORY_ENUM(name, value, title) GT_MEMORY_##name = value,
    GT_MEMORY_LIST(GT_MEMORY_ENUM)
#undef GT_MEMORY_ENUM
        GT_MEMORY_CATEGORY_COUNT = 8
};

/* All in bytes. In use + cached = reserved. */
typedef struct gt_memory_stats {
    uint32_t struct_size;
    uint32_t padding;
    uint64_t in_use;      /* of live allocations, rounded as allocated */
    uint64_t cached;      /* reserved but free */
    uint64_t reserved;    /* taken from the device */
    uint64_t peak_in_use; /* since creation or gt_memory_reset_peak */
    uint64_t peak_reserved;
    uint64_t allocations;        /* calls so far */
    uint64_t device_allocations; /* of them, those that had to ask the device */
    uint64_t category_in_use[GT_MEMORY_CATEGORY_COUNT];
    uint64_t category_at_peak[GT_MEMORY_CATEGORY_COUNT]; /* what was in use at the moment of peak_in_use */
} gt_memory_stats;

GT_API gt_status gt_memory_stats_init(gt_memory_stats *stats, size_t size);          /* @since 0.1 */
GT_API gt_status gt_memory_get_stats(const gt_context *ctx, gt_memory_stats *stats); /* @since 0.1 */
GT_API gt_status gt_memory_reset_peak(gt_context *ctx);                              /* @since 0.1 */
/* Gives cached memory back to the device. Waits for the device. @since 0.1 */
GT_API gt_status gt_memory_trim(gt_context *ctx);
/* "parameters" …; "?" for an unknown category. Static. @since 0.1 */
GT_API const char *gt_memory_category_name(gt_memory_category category);

GT_EXTERN_C_END
#endif
