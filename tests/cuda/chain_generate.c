/* Writes the source of every sample chain into one file, each under names of its own. */
#include "cuda/chain_samples.h"

#include "cuda/chain_source.h"

#include <stdio.h>

int main(int argc, char **argv) {
    FILE *file = argc == 2 ? fopen(argv[1], "w") : NULL;
    static const char *const names[] = {"gt_element", "gt_neighbours", "gt_chain", "gt_chain_sum"};
    chain_memory m;
    gt__chain c;
    if (file == NULL) return 1;
    for (int k = 0; k < GT__CHAIN_INPUTS; k++) m.in[k] = (void *)(uintptr_t)(0x10000 * (k + 1));
    for (int k = 0; k < GT__CHAIN_OUTPUTS; k++) m.out[k] = (void *)(uintptr_t)(0x1000000 * (k + 1));
    m.sum = (void *)(uintptr_t)0x20000000;
    m.cells = NULL;
    int count = 0;
    for (; sample_chain(count, &c, &m); count++) {
        char *text = NULL;
        if (gt__chain_source(&c, &text) != GT_OK) return 1;
        for (int n = 0; n < 4; n++) fprintf(file, "#undef %s\n#define %s %s_%d\n", names[n], names[n], names[n], count);
        fprintf(file, "%s\n", text);
        if (c.sum.data == NULL) fprintf(file, "extern \"C\" inline void gt_chain_sum(const gt::Arguments) {}\n");
        gt__free(text);
    }
    fprintf(file, "#undef gt_chain\n#undef gt_chain_sum\ntypedef void (*Kernel)(gt::Arguments);\nstatic const Kernel kernels[][2] = {\n");
    for (int k = 0; k < count; k++) fprintf(file, "    {gt_chain_%d, gt_chain_sum_%d},\n", k, k);
    fprintf(file, "};\n");
    return fclose(file) != 0;
}
