/* A program made by hand, with memory of its own to read and write: for tests of one pass. */
#ifndef GT_TEST_STEP_MADE_H
#define GT_TEST_STEP_MADE_H

#include "hand_made.h"

enum { N = 1000 }; /* elements, unless said otherwise: 4096 bytes of an arena */

typedef struct made {
    gt_context *ctx;
    gt__program p;
    _Alignas(64) float in[N + 8]; /* as the library's memory */
    _Alignas(64) float out[N + 8];
    _Alignas(64) float other[N + 8];
    operand x, y, z; /* over these */
} made;

static inline void make(test_case *t, made *m) {
    *m = (made){.ctx = test_context(t)};
    m->x = outside(m->in, N);
    m->y = outside(m->out, N);
    m->z = outside(m->other, N);
    for (int i = 0; i < N; ++i) m->in[i] = (float)(i % 37) - 18;
}

/* The arena in vectors of N. */
static inline size_t vectors(made *m) {
    size_t *offsets, bytes = arena_of(&m->p, &offsets);
    free(offsets);
    return bytes / 4096;
}

#define UNARY(m, op, y, x)     unary(&(m)->p, (m)->ctx, GT__OP_##op, &(y), &(x))
#define BINARY(m, op, y, a, b) binary(&(m)->p, (m)->ctx, GT__OP_##op, &(y), &(a), &(b))

#endif
