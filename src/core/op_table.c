#include "core/op.h"

const gt__op_def gt__op_table[GT__OP_COUNT] = {
#define ENTRY(id, name, shape, grad, layout, saves, cast)                                                                                  \
    [GT__OP_##id] = {name, gt__shape_##shape, gt__grad_##grad, GT__LAYOUT_##layout, saves, GT_CAST_##cast},
    GT__OP_LIST(ENTRY)
#undef ENTRY
};
