#include "cuda/chain_kernels.h"

static uint64_t hash_of(const char *text) { /* FNV-1a */
    uint64_t hash = UINT64_C(14695981039346656037);
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * UINT64_C(1099511628211);
    return hash;
}

gt__chain_kernel *gt__chain_kernel_find(const gt__cuda_device *cuda, const char *source) {
    const uint64_t hash = hash_of(source);
    gt__chain_kernel *k = cuda->chains;
    while (k && (k->hash != hash || strcmp(k->source, source) != 0)) k = k->next;
    return k;
}

gt__chain_kernel *gt__chain_kernel_add(gt__cuda_device *cuda, char *source) {
    if (cuda->chain_count == GT__CHAIN_KERNELS) return NULL;
    gt__chain_kernel *k = gt__calloc(1, sizeof *k);
    if (!k) return NULL;
    k->source = source;
    k->hash = hash_of(source);
    k->next = cuda->chains;
    cuda->chains = k;
    cuda->chain_count++;
    return k;
}

void gt__chain_kernels_clear(gt__cuda_device *cuda, void (*unload)(CUmodule module)) {
    for (gt__chain_kernel *k = cuda->chains, *next; k; k = next) {
        next = k->next;
        if (k->module && unload) unload(k->module);
        gt__free(k->image.data);
        gt__free(k->source);
        gt__free(k);
    }
    cuda->chains = NULL;
    cuda->chain_count = 0;
}
