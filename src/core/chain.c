#include "core/chain.h"

#include <stdio.h>

typedef struct kind {
    const char *name;
    int32_t operands;
} kind;

static const kind kinds[GT__OP_COUNT] = {
#define BINARY(id, name) [GT__OP_##id] = {#name, 2},
#define UNARY(id, name)  [GT__OP_##id] = {#name, 1},
    GT__CHAIN_BINARY_LIST(BINARY) GT__CHAIN_UNARY_LIST(UNARY) GT__CHAIN_OTHER_LIST(UNARY)
#undef BINARY
#undef UNARY
};

int32_t gt__chain_operands(gt__op_id op) { return kinds[op].operands; }

const char *gt__chain_text(const gt__chain *chain, char *buffer, size_t size) {
    enum { NAMED = 6 };
    size_t at = 0;
    const char *end = chain->sum.data == NULL ? ")" : chain->sum.mean ? "; mean)" : "; sum)";
    for (int32_t k = 0; k < chain->n_nodes && k < NAMED && at < size; ++k)
        at += (size_t)snprintf(buffer + at, size - at, "%s%s", k ? ", " : "chain(", kinds[chain->nodes[k].op].name);
    if (chain->n_nodes > NAMED && at < size) at += (size_t)snprintf(buffer + at, size - at, ", and %d more", (int)(chain->n_nodes - NAMED));
    if (at < size) (void)snprintf(buffer + at, size - at, "%s", end);
    return buffer;
}
