/* Loads and closes the library many times in a program that is not linked with it, has functions of its own under names that a numerical
 * library may use inside, and trains a little each time. argv: the library's path, how often. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gtrain/gtrain.h>

static int calls_of_ours;

/* Exported from the program, so that an unguarded call in the library would end up here. */
#define OURS(name)                                                                                                                         \
    __attribute__((visibility("default"))) void name(void);                                                                                \
    void name(void) { calls_of_ours++; }
OURS(cblas_sgemm)
OURS(sgemm_)
OURS(alloc)
OURS(log_error)
OURS(gt__error_raise)
OURS(gt__malloc)
OURS(gt__log)

static void *library;

static void *symbol(const char *name) {
    void *address = dlsym(library, name);
    if (!address) {
        fprintf(stderr, "%s is not exported\n", name);
        exit(1);
    }
    return address;
}

/* A function pointer from dlsym, through memory as ISO C wants it. */
#define LOAD(function)                                                                                                                     \
    __typeof__(&function) p_##function;                                                                                                    \
    do {                                                                                                                                   \
        void *address = symbol(#function);                                                                                                 \
        memcpy(&p_##function, &address, sizeof address);                                                                                   \
    } while (0)

static int train_once(void) {
    LOAD(gt_context_options_init);
    LOAD(gt_context_create);
    LOAD(gt_context_destroy);
    LOAD(gt_last_error);
    LOAD(gt_scope_begin);
    LOAD(gt_scope_end);
    LOAD(gt_tensor_full);
    LOAD(gt_tensor_item);
    LOAD(gt_tensor_grad);
    LOAD(gt_tensor_set_requires_grad);
    LOAD(gt_matmul);
    LOAD(gt_sum);
    LOAD(gt_backward);

    gt_context_options options;
    gt_context *ctx = NULL;
    if (p_gt_context_options_init(&options, sizeof options) != GT_OK) return 1;
    options.device = GT_DEVICE_CPU;
    options.cpu_threads = 2;
    if (p_gt_context_create(&options, &ctx) != GT_OK) {
        fprintf(stderr, "%s\n", p_gt_last_error()->message);
        return 1;
    }
    const int64_t shape[2] = {128, 128};
    double total = 0, slope = 0;
    p_gt_scope_begin(ctx);
    gt_tensor *a = p_gt_tensor_full(ctx, GT_DTYPE_F32, 2, shape, 1.0);
    gt_tensor *b = p_gt_tensor_full(ctx, GT_DTYPE_F32, 2, shape, 0.5);
    gt_status status = p_gt_tensor_set_requires_grad(a, 1);
    gt_tensor *sum = p_gt_sum(p_gt_matmul(a, b), NULL, 0, 0);
    if (status == GT_OK) status = p_gt_tensor_item(sum, &total);
    if (status == GT_OK) status = p_gt_backward(sum);
    if (status == GT_OK) status = p_gt_tensor_item(p_gt_sum(p_gt_tensor_grad(a), NULL, 0, 0), &slope);
    if (status != GT_OK) fprintf(stderr, "%s\n", p_gt_last_error()->message);
    p_gt_scope_end(ctx);
    p_gt_context_destroy(ctx);
    /* Each of 128 x 128 entries sums 128 products of 1 and 0.5; each gradient entry sums 128 times 0.5. */
    if (status == GT_OK && (total != 128.0 * 128 * 64 || slope != 128.0 * 128 * 64)) {
        fprintf(stderr, "wrong: %g, %g\n", total, slope);
        return 1;
    }
    return status == GT_OK ? 0 : 1;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    int times = atoi(argv[2]);
    for (int i = 0; i < times; i++) {
        library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        if (train_once() != 0) return 1;
        if (dlclose(library) != 0) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
    }
    if (calls_of_ours > 0) {
        fprintf(stderr, "the library called %d function(s) of the program\n", calls_of_ours);
        return 1;
    }
    return 0;
}
