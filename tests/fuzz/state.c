/* Loads any bytes as the state of a small run: it fails and leaves the run as it was, or succeeds and can be saved again. */
#include "fuzz/fuzz.h"

typedef struct run {
    gt_context *ctx;
    gt_module *net;
    gt_optimizer *optimizer;
    gt_scaler *scaler;
    gt_trainer *trainer;
    gt_state_parts parts;
    unsigned char *saved; /* the file of the run as it stands */
    size_t size;
    char path[64];
} run;

static unsigned char *slurp(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    DEMAND(file != NULL);
    unsigned char *bytes = malloc(1 << 16);
    DEMAND(bytes != NULL);
    *size = fread(bytes, 1, 1 << 16, file);
    DEMAND(fclose(file) == 0 && *size < 1 << 16);
    return bytes;
}

static gt_tensor *one(void *user, gt_tensor *output, gt_tensor *y) {
    (void)user, (void)y;
    return output;
}

/* f16 parameters, so that there are master copies. */
static run *start(void) {
    static run r;
    gt_optimizer_options adam;
    gt_trainer_options options;
    r.ctx = fuzz_context();
    gt_module *layers[] = {gt_nn_linear(r.ctx, 2, 1, NULL), gt_nn_batch_norm(r.ctx, 1, NULL)};
    r.net = gt_nn_sequential_from(r.ctx, layers, 2);
    DEMAND(r.net != NULL && gt_module_to_dtype(r.net, GT_DTYPE_F16) == GT_OK);
    DEMAND(gt_optimizer_options_init(&adam, sizeof adam, GT_OPTIMIZER_ADAM) == GT_OK);
    DEMAND(gt_optimizer_create_for(&adam, r.net, &r.optimizer) == GT_OK);
    DEMAND(gt_scaler_create(r.ctx, NULL, &r.scaler) == GT_OK);
    DEMAND(gt_trainer_options_init(&options, sizeof options) == GT_OK);
    options.optimizer = r.optimizer;
    options.scaler = r.scaler;
    options.loss = GT_LOSS_CUSTOM;
    options.loss_fn = one;
    DEMAND(gt_trainer_create(r.net, &options, &r.trainer) == GT_OK);
    DEMAND(gt_state_parts_init(&r.parts, sizeof r.parts) == GT_OK);
    r.parts.trainer = r.trainer;
    (void)snprintf(r.path, sizeof r.path, "/tmp/gtrain-fuzz-%ld.safetensors", (long)getpid());
    DEMAND(gt_state_save(r.path, &r.parts) == GT_OK);
    r.saved = slurp(r.path, &r.size);
    const char *seed = getenv("GTRAIN_FUZZ_SEED"); /* where to leave it as a first input */
    if (seed) DEMAND(gt_state_save(seed, &r.parts) == GT_OK);
    (void)unlink(r.path);
    return &r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static run *r;
    static unsigned count;
    if (r == NULL) r = start();
    char path[64];
    int fd = fuzz_file(data, size, path, sizeof path);
    gt_status status = gt_state_load(path, &r->parts);
    DEMAND(status == GT_OK || status == GT_BAD_FILE || status == GT_NOT_SUPPORTED);
    /* Saving flushes a file, which takes long; so only now and then where nothing should have changed. */
    if (status == GT_OK || ++count % 64 == 0) {
        DEMAND(gt_state_save(r->path, &r->parts) == GT_OK);
        size_t now;
        unsigned char *bytes = slurp(r->path, &now);
        if (status != GT_OK) DEMAND(now == r->size && memcmp(bytes, r->saved, now) == 0);
        free(r->saved);
        r->saved = bytes;
        r->size = now;
        (void)unlink(r->path);
    }
    (void)close(fd);
    return 0;
}
