/* Buffers that are on the host for a while: copied out after a use (leave), their place given up when that is awaited, and copied back to another place (fetch), which is awaited before
 * the next use. Copies run on the copy stream, one after the other, beside the instructions; what of their time does not fit there is waited for.
 *
 * Any buffer of any program may go: who goes, and when, follows from the order of the instructions and what each takes. So this comes after all passes. */
#ifndef GT_STEP_TRANSFERS_H
#define GT_STEP_TRANSFERS_H

#include "step/program.h"

/* The way to the host and back. */
typedef struct gt__link {
    double out, back; /* seconds a byte */
    double each;      /* seconds a copy */
    bool beside;      /* instructions go on meanwhile; else (the CPU) copies are instructions like others */
} gt__link;

typedef struct gt__away {
    int32_t buffer;
    int32_t from, to; /* its last use before it goes, and its first after that */
    int32_t left,
        fetch;   /* instructions before which the copy out is awaited, and the copy back begins: its memory is free between the two */
    bool urgent; /* awaited at once, and fetched as late as can be */
} gt__away;

/* One more goes in each: the first `count` of list, or all that are there with the last of them urgent. */
typedef struct gt__away_step {
    int32_t item;   /* of the list */
    size_t bound;   /* the most bytes at once, after this step */
    double seconds; /* that are waited for then */
} gt__away_step;

typedef struct gt__transfers {
    gt__away *list;
    gt__away_step *steps; /* of which each frees memory where the most is in use then */
    int32_t count, n_steps;
} gt__transfers;

/* Who may go, by what pays most. `seconds` of the instructions. */
gt_status gt__transfers_find(gt__program *program, const double *seconds, const gt__link *link, gt__transfers *transfers);
void gt__transfers_free(gt__transfers *transfers);
/* Writes the first `steps` into the program: leave, fetch and await, with places of the host memory counted from 0; *host_bytes of it. */
gt_status gt__transfers_apply(gt__program *program, const double *seconds, const gt__link *link, const gt__transfers *transfers,
                              int32_t steps, size_t *host_bytes);

#endif
