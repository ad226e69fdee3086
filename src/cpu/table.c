/* The table of kernels. Ops that only make views have none. */
#include "cpu/kernels.h"

const gt__kernel gt__cpu_kernels[GT__OP_COUNT] = {
#define ENTRY(id, name) [GT__OP_##id] = gt__cpu_##name,
    GT__CPU_KERNEL_LIST(ENTRY)
#undef ENTRY
        [GT__OP_CUSTOM] = gt__custom_run,
};
