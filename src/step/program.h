/* A program: what a step asks of the device, written down as a list of backend calls (step/trace.h makes it), with memory that has addresses but is not there.
 *
 * Instructions hold the very arguments of backend.h's functions. Pointers into the trace's range of addresses mean a buffer of the program; all others are memory
 * outside of it (weights, optimizer state), which is there. gt__instruction_visit shows every pointer of an instruction with the bytes that are read
 * and written through it, and is all that passes need to know of the many kinds. */
#ifndef GT_STEP_PROGRAM_H
#define GT_STEP_PROGRAM_H

#include "core/chain.h"
#include "core/core.h"

/* Memory that the step makes: an output of a call, a gradient, an input. */
typedef struct gt__buffer {
    uint64_t address; /* of the trace; rising with the buffer's number */
    size_t bytes;
    const char *op, *module; /* who made it */
    int64_t shape[GT_MAX_DIMS];
    int32_t ndim;
    gt_dtype dtype;
    gt_memory_category category;
    int32_t first, last; /* instructions that use it first and last; -1: none does (gt__program_lives) */
    bool input;          /* filled by the caller of the step, before its first instruction */
} gt__buffer;

typedef int32_t gt__instruction_kind;
enum {
    GT__DO_CALL,  /* a kernel */
    GT__DO_CHAIN, /* elementwise ops in one pass over memory */
    GT__DO_MOVES, /* the inputs come in */
    GT__DO_COPY,
    GT__DO_ZERO,
    GT__DO_COPY_MANY,
    GT__DO_UPDATE,
    GT__DO_GRAD_NORM,
    GT__DO_GRAD_CLIP_NORM,
    GT__DO_GRAD_CLIP_VALUE,
    GT__DO_GRAD_SCALE,
    GT__DO_STEP_TASK,
    GT__DO_GRAD_STEP_TASK,
    GT__DO_MARK_NOT_FINITE,
    GT__DO_CUSTOM_BACKWARD, /* a custom op's own gradient */
    GT__DO_LEAVE,           /* a copy to the host begins, beside what follows (transfers.h) */
    GT__DO_FETCH,           /* and one back */
    GT__DO_AWAIT,           /* one of the two is over */
    GT__DO_COUNT
};

/* A call and what it points to, in one piece of host memory. Its tensors are bare: meta and data alone. */
typedef struct gt__traced_call {
    gt__call call;
    gt_tensor **in; /* n_in, NULL where there is none */
    gt_tensor *tensors;
} gt__traced_call;

typedef struct gt__instruction {
    gt__instruction_kind kind;
    gt__phase phase;
    const char *module; /* the context's string, or NULL */
    size_t workspace;   /* most scratch bytes that it was seen to take at once */
    void *memory;       /* host memory that belongs to it */
    union {
        gt__traced_call *call;
        gt__chain *chain;
        struct {
            gt__copy_kind kind;
            void *destination;
            const void *source; /* host to device: the program's own host memory */
            size_t bytes;
        } copy;
        struct {
            void *data;
            size_t bytes;
        } zero;
        struct {
            gt__move *list; /* one an input; sources are NULL but in a bound program */
            int32_t count;
        } moves;
        struct {
            gt__copy_item *list;
            int32_t count;
        } copies;
        struct {
            gt__update_rule rule;
            gt__update *list;
            const gt__step_control *control;
            int32_t count;
        } update;
        struct {
            gt__grad_list_item *list;
            double *norm;
            int32_t *first_bad;
            const gt__step_control *control;
            double most; /* max_norm, max_value */
            int32_t count;
        } grads;
        struct {
            gt__grad_list_item *list;
            int32_t count;
            gt__step_task task;
        } task;
        struct {
            const void *data;
            uint64_t *least;
            int64_t count;
            uint64_t mark;
            gt_dtype dtype;
        } mark;
        struct {
            void *data;
            size_t bytes;
            size_t place;                /* of the program's host memory */
            void *host;                  /* that place; NULL before there is any, and in a plan that never runs */
            gt__event *begins, *is_over; /* the first is all transfers' */
            int32_t number;              /* of the buffer that goes and comes back */
            bool back;
        } transfer;
        gt__custom_gradient *custom; /* its op is counted */
    };
} gt__instruction;

typedef struct gt__program {
    gt__instruction *list;
    gt__buffer *buffers;
    int32_t count, capacity;
    int32_t n_buffers, cap_buffers;
} gt__program;

/* Where the trace's addresses begin and end: no machine has memory there. */
#define GT__TRACE_BEGIN      (UINT64_C(1) << 60)
#define GT__TRACE_END        (UINT64_C(1) << 61)
#define GT__BUFFER_ALIGNMENT 512 /* of buffers' addresses, of the trace and in the arena */
static inline bool gt__is_traced(const void *pointer) {
    return (uintptr_t)pointer >= GT__TRACE_BEGIN && (uintptr_t)pointer < GT__TRACE_END;
}

void gt__program_free(gt__program *program);
/* A new instruction at the end, zeroed but for `memory` (`bytes` of it, zeroed; 0: none). NULL: no host memory. */
gt__instruction *gt__program_add(gt__program *program, gt__instruction_kind kind, size_t memory_bytes);
/* Frees the instructions that are marked, and closes the gaps. */
void gt__program_remove(gt__program *program, const bool *marked);
/* Instruction i becomes what instruction order[i] was: all of them, once each. */
gt_status gt__program_reorder(gt__program *program, const int32_t *order);
/* The buffer in which a traced address lies; -1 for memory outside. */
int32_t gt__program_buffer(const gt__program *program, const void *pointer);

/* A pointer of an instruction. */
typedef struct gt__access {
    void *place;         /* where the instruction holds it: to be changed by gt__access_set */
    const void *pointer; /* not NULL */
    size_t bytes;        /* from there on, at most: of a strided tensor, the holes too */
    bool reads, writes;
} gt__access;
static inline void gt__access_set(const gt__access *access, const void *pointer) { memcpy(access->place, &pointer, sizeof pointer); }
typedef void (*gt__access_visitor)(void *user, const gt__access *access);
void gt__instruction_visit(gt__instruction *instruction, gt__access_visitor visit, void *user);
/* Kernels that change their input k: batch norm's running statistics. */
bool gt__call_changes_input(const gt__call *call, int32_t k);
/* "conv2d", "update": what it does. */
const char *gt__instruction_name(const gt__instruction *instruction);

/* Fills first and last of every buffer. */
void gt__program_lives(gt__program *program);

/* Copies the instruction, with its own host memory; every pointer is a copy's own afterwards. */
gt_status gt__instruction_copy(const gt__instruction *from, gt__instruction *to);
void gt__instruction_free(gt__instruction *instruction);
/* All of it. After a failure *to is to be freed too. */
gt_status gt__program_copy(const gt__program *from, gt__program *to);
/* Runs an instruction whose pointers are memory that is there. */
gt_status gt__instruction_run(const gt__instruction *instruction, gt__device *device);

#endif
