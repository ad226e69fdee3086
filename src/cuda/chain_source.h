/* The CUDA C++ of a chain, and the arguments of its kernels. Needs no GPU.
 *
 * The text says which ops, dtypes and operands there are, and which of four shapes the kernel has; addresses, sizes and numbers are arguments, so that a text serves all sizes. */
#ifndef GT_CUDA_CHAIN_SOURCE_H
#define GT_CUDA_CHAIN_SOURCE_H

#include "core/chain.h"

GT_EXTERN_C_BEGIN

/* As Arguments of chain_prelude.cuh. */
typedef struct gt__chain_arguments {
    const void *in[GT__CHAIN_INPUTS];
    void *out[GT__CHAIN_OUTPUTS];
    void *sum, *partial;
    long long n, kept, reduced;
    long long parts, part;
    long long inner[GT__CHAIN_INPUTS], size[GT__CHAIN_INPUTS];
    double value[GT__CHAIN_NODES];
    unsigned long long seed[GT__CHAIN_NODES], offset[GT__CHAIN_NODES];
    const uint64_t *cells[GT__CHAIN_NODES];
    unsigned threshold[GT__CHAIN_NODES];
    double divisor;
    int vector;
    int padding;
} gt__chain_arguments;

#define GT__CHAIN_BLOCK 256

/* How the kernel goes over the elements. */
typedef enum gt__chain_form {
    GT__CHAIN_PLAIN,  /* threads take packs of neighbours; no sum */
    GT__CHAIN_ALL,    /* the same, and each block sums what it has seen */
    GT__CHAIN_ROWS,   /* a sum is of neighbours: a warp makes one */
    GT__CHAIN_COLUMNS /* neighbours go to neighbouring sums: a thread goes down a column */
} gt__chain_form;
gt__chain_form gt__chain_form_of(const gt__chain *chain);
/* Neighbours that a thread takes at a time. */
int32_t gt__chain_width(const gt__chain *chain);

/* Adds the source's text, NUL-terminated: kernels `gt_chain` and, with a sum, `gt_chain_sum`. *text is the caller's to free (gt__free). */
gt_status gt__chain_source(const gt__chain *chain, char **text);

typedef struct gt__chain_launch {
    uint32_t grid_x, grid_y, block_x, block_y;
} gt__chain_launch;
/* Arguments but for `partial`, the launch of gt_chain, and, if arguments->parts > 1, of gt_chain_sum, which then takes *partial_bytes of memory between. At most `most` parts. */
void gt__chain_prepare(const gt__chain *chain, int32_t multiprocessors, int64_t most, gt__chain_arguments *arguments,
                       gt__chain_launch *launch, gt__chain_launch *sum_launch, size_t *partial_bytes);

GT_EXTERN_C_END
#endif
