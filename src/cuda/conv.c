/* CONV2D, CONV2D_RELU and their gradients. cuDNN computes them, by the plan that was fastest when its shape was first met (its own first choice in
 * deterministic mode); bias and relu are in the plan, or follow in a kernel of our own. What cuDNN has no engine for, within the workspace that the caller
 * allows, our direct kernels compute.
 *
 * Layers of 16 to 64 channels may go to our kernels on tensor cores (k_conv_mma.cu), which are one more candidate, and the choice in deterministic mode.
 *
 * First layers have ways of their own. Few channels and few taps go to kernels that read and write each image once (k_conv_few.cu; for halves on tensor
 * cores k_first_conv_mma.cu), which are one more candidate, and the choice in deterministic mode. Half-precision images of up to 3 channels may be copied with zeros up to 4 or 8 channels, for which cuDNN has faster engines:
 * candidates whose time includes the copy.
 *
 * The gradient of a weight may be wanted in f32 though x and dy are halves, and be added to what is there. cuDNN overwrites, and few of its engines widen: a plan's
 * result may stand beside, in scratch, for one pass over the weight to convert and add. Plans that widen themselves are tried first. */
#include "cuda/conv_plan.h"
#include "cuda/kernels.h"
#include "cuda/tune.h"

#include <limits.h>

#define FUSED_CANDIDATES  3
#define PLAIN_CANDIDATES  7
#define PADDED_CANDIDATES 2 /* for each number of channels */
#define CANDIDATES        (FUSED_CANDIDATES + PLAIN_CANDIDATES + 2 * PADDED_CANDIDATES + 3)
#define WIDE_CANDIDATES   3
#define LEAST_CANDIDATES  3
#define TUNE_SECONDS      0.08
/* Who has met this many shapes has shapes that keep changing, for which timing does not pay. */
#define TUNED_PLANS      512
#define MAX_ALIGNMENT    5 /* as a power of two, of what engines are told */
#define ENOUGH_WORKSPACE ((uint64_t)512 << 20)
#define LITTLE_WORKSPACE ((uint64_t)32 << 20)
/* Products beyond which the direct kernel cannot win: it is not even timed. */
#define DIRECT_PRODUCTS 100e6

typedef struct conv {
    gt__cuda_device *cuda;
    const gt__call *call;
    gt__conv_key key;
    gt__conv_data data;
    bool accumulate; /* the weight's gradient is added to data.w */
    bool may_stage;  /* the workspace has room for a weight's gradient beside what key.workspace says */
    bool few, mma;   /* the kernels for few channels, and those on tensor cores, take the call, which is not cut */
    size_t *lacked;  /* bytes of scratch memory that there was no room for, if any */
} conv;

/* What to do when scratch memory is short: another way of computing may round differently, which deterministic mode must not leave to how full the card is
 * (D6). GT_OK: take another way. */
static gt_status short_of_scratch(const conv *c, size_t bytes) {
    void *data, *handle;
    if (!c->cuda->base.deterministic || bytes == 0) return GT_OK;
    gt_status status = gt__scratch_alloc(c->cuda->base.ctx, bytes, &data, &handle); /* for its report */
    if (status != GT_OK) return status;
    gt__scratch_free(c->cuda->base.ctx, handle);
    GT_CALL_FAIL(c->call, GT_OUT_OF_MEMORY,
                 "%zu bytes of scratch memory were not there when deterministic mode needed them; repeat the call", bytes);
}

static void dispose(void *plan) { gt__conv_engine_free(plan); }

void gt__cuda_conv_cache_init(gt__plan_cache *cache, uint32_t capacity) {
    _Static_assert(sizeof(gt__conv_key) % 8 == 0 && sizeof(gt__conv_engine) % 8 == 0, "the plan cache keeps both aligned");
    gt__plan_cache_init(cache, sizeof(gt__conv_key), sizeof(gt__conv_engine), capacity, dispose);
}

static int64_t count(const int64_t *shape) { return shape[0] * shape[1] * shape[2] * shape[3]; }

static gt_status direct(const conv *c) {
    gt__device *device = &c->cuda->base;
    switch (c->key.kind) {
    case GT__CONV_FORWARD:
        return gt__cuda_conv2d_direct(device, c->call);
    case GT__CONV_BACKWARD_INPUT:
        return gt__cuda_conv2d_backward_input_direct(device, c->call);
    default:
        return gt__cuda_conv2d_backward_weight_direct(device, c->call);
    }
}

static gt_status bias_and_relu(const conv *c) {
    const int64_t *y = c->key.y;
    if (!c->data.bias && !c->key.relu) return GT_OK;
    return gt__cuda_bias_act(&c->cuda->base, c->data.y, c->data.bias, y[0] * y[2] * y[3], y[1], c->key.dtype, c->key.relu);
}

/* --- running a plan ------------------------------------------------------------------------------------------------------------------ */

static size_t round_up(int64_t bytes) { return ((size_t)bytes + 255) / 256 * 256; }

static bool is_direct(const gt__conv_engine *engine) { return !engine->plan && engine->own == GT__CONV_DIRECT; }

/* One of our own kernels that take whole calls. */
static bool is_own(const gt__conv_engine *engine) { return !engine->plan && engine->own != GT__CONV_DIRECT; }

static gt_status run_own(const conv *c, const gt__conv_engine *engine, void *scratch) {
    gt__device *device = &c->cuda->base;
    return engine->own == GT__CONV_FEW ? gt__cuda_conv2d_few(device, c->call, scratch) : gt__cuda_conv2d_mma(device, c->call, scratch);
}

/* The plan's result does not go to data.w at once. */
static bool is_staged(const conv *c, const gt__conv_engine *engine) {
    if (is_own(engine)) return false;
    return engine->narrow || c->accumulate || (engine->channels && c->key.kind == GT__CONV_BACKWARD_WEIGHT);
}

/* Images, or weights, with so many channels. */
static int64_t padded_count(const int64_t *shape, int64_t channels) { return shape[0] * channels * shape[2] * shape[3]; }

/* What a plan needs of scratch memory, one after the other: its workspace, x and w with more channels, or w before it is added. */
typedef struct scratch_layout {
    size_t x, w, bytes;
} scratch_layout;

static scratch_layout layout_of(const conv *c, const gt__conv_engine *engine) {
    const gt__conv_key *key = &c->key;
    scratch_layout at = {.x = round_up(engine->workspace)};
    at.w = at.x;
    if (engine->channels) at.w += round_up(padded_count(key->x, engine->channels) * (int64_t)gt_dtype_size(key->dtype));
    at.bytes = at.w;
    if (engine->channels || is_staged(c, engine))
        at.bytes += (size_t)padded_count(key->w, engine->channels ? engine->channels : key->w[1]) *
                    gt_dtype_size(engine->narrow ? key->dtype : key->w_dtype);
    return at;
}

/* Where the plan finds its operands. */
static gt__conv_data operands(const conv *c, const gt__conv_engine *engine, void *scratch) {
    gt__conv_data data = c->data;
    scratch_layout at = layout_of(c, engine);
    if (engine->channels) data.x = (char *)scratch + at.x;
    if (engine->channels || is_staged(c, engine)) data.w = (char *)scratch + at.w;
    return data;
}

static gt_status prepare(const conv *c, const gt__conv_engine *engine, void *scratch) {
    const int64_t *x = c->key.x, *w = c->key.w;
    if (!engine->channels) return GT_OK;
    gt__conv_data to = operands(c, engine, scratch);
    GT_TRY(gt__cuda_pad_channels(&c->cuda->base, to.x, c->data.x, x[0] * x[2] * x[3], x[1], engine->channels));
    if (c->key.kind == GT__CONV_BACKWARD_WEIGHT) return GT_OK;
    return gt__cuda_pad_channels(&c->cuda->base, to.w, c->data.w, w[0] * w[2] * w[3], w[1], engine->channels);
}

/* After prepare. Leaves no error record. */
static cudnnStatus_t run_engine(const conv *c, gt__conv_engine *engine, void *scratch) {
    gt__conv_data data = operands(c, engine, scratch);
    return gt__conv_engine_run(c->cuda, engine, &data, engine->workspace ? scratch : NULL);
}

static gt_status finish(const conv *c, const gt__conv_engine *engine, void *scratch) {
    gt__device *device = &c->cuda->base;
    if (!is_staged(c, engine)) return engine->fused ? GT_OK : bias_and_relu(c);
    const int64_t *w = c->key.w;
    gt__conv_data from = operands(c, engine, scratch);
    gt_dtype dtype = engine->narrow ? c->key.dtype : c->key.w_dtype;
    if (engine->channels)
        return gt__cuda_crop_channels(device, c->data.w, c->key.w_dtype, from.w, dtype, w[0] * w[2] * w[3], engine->channels, w[1],
                                      c->accumulate);
    return gt__cuda_add_into(device, c->data.w, from.w, dtype, count(w), c->accumulate);
}

/* --- choosing a plan --------------------------------------------------------------------------------------------------------------- */

typedef struct trial {
    const conv *conv;
    gt__conv_engine *engine;
    void *workspace;
} trial;

static bool run_trial(void *argument) {
    trial *t = argument;
    if (is_own(t->engine)) return run_own(t->conv, t->engine, t->workspace) == GT_OK;
    if (!t->engine->plan) return direct(t->conv) == GT_OK;
    return prepare(t->conv, t->engine, t->workspace) == GT_OK && run_engine(t->conv, t->engine, t->workspace) == CUDNN_STATUS_SUCCESS &&
           finish(t->conv, t->engine, t->workspace) == GT_OK;
}

/* A fused relu may return 0 for NaN: asks this very plan, with a bias of NaN. */
static bool relu_keeps_nan(const trial *t) {
    const conv *c = t->conv;
    if (!c->key.relu || !t->engine->fused || is_own(t->engine)) return true;
    if (!c->key.bias || !gt__cuda_may_wait(c->cuda)) return false;
    size_t element = gt_dtype_size(c->key.dtype), bytes = (size_t)c->key.y[1] * element;
    void *bias, *handle;
    if (gt__scratch_alloc_quiet(c->cuda->base.ctx, bytes, &bias, &handle) != GT_OK) return false;
    gt__conv_data data = operands(c, t->engine, t->workspace);
    data.bias = bias;
    const char *last = (const char *)data.y + (size_t)(count(c->key.y) - 1) * element;
    bool keeps = cudaMemsetAsync(bias, 0xff, bytes, c->cuda->compute) == cudaSuccess &&
                 gt__conv_engine_run(c->cuda, t->engine, &data, t->engine->workspace ? t->workspace : NULL) == CUDNN_STATUS_SUCCESS &&
                 gt__cuda_both_nan(c->cuda, data.y, last, c->key.dtype);
    (void)cudaGetLastError();
    gt__scratch_free(c->cuda->base.ctx, handle);
    return keeps;
}

/* Milliseconds of the candidate, or, where it is not timed, 0; negative if it does not work. */
static float try_engine(const conv *c, gt__conv_engine *engine, bool tune, float best) {
    trial t = {c, engine, NULL};
    void *handle = NULL;
    size_t bytes = is_direct(engine) ? 0 : layout_of(c, engine).bytes;
    if (bytes && gt__scratch_alloc_quiet(c->cuda->base.ctx, bytes, &t.workspace, &handle) != GT_OK) {
        if (c->lacked) *c->lacked = bytes;
        return -1;
    }
    float ms = tune ? gt__cuda_time(c->cuda, run_trial, &t, best) : run_trial(&t) ? 0 : -1;
    if (ms >= 0 && !relu_keeps_nan(&t)) ms = -1;
    gt__scratch_free(c->cuda->base.ctx, handle);
    return ms;
}

static double products(const gt__conv_key *key) { return (double)count(key->y) * (double)key->w[1] * (double)(key->w[2] * key->w[3]); }

static void log_choice(const conv *c, const gt__conv_engine *candidates, int total, int best, float ms) {
    static const char *const kinds[] = {"forward", "backward input", "backward weight"};
    const gt__conv_key *k = &c->key;
    const gt__conv_engine *e = best >= 0 ? &candidates[best] : NULL;
    gt__log(c->cuda->base.ctx, GT_LOG_DEBUG,
            "convolution %s %s x [%lld,%lld,%lld,%lld] w [%lld,%lld,%lld,%lld]%s%s: candidate %d of %d, %.4f ms, workspace %lld, %s",
            gt_dtype_name(k->dtype), kinds[k->kind], (long long)k->x[0], (long long)k->x[1], (long long)k->x[2], (long long)k->x[3],
            (long long)k->w[0], (long long)k->w[1], (long long)k->w[2], (long long)k->w[3], k->bias ? " bias" : "", k->relu ? " relu" : "",
            best + 1, total, (double)ms, (long long)(e ? e->workspace : 0),
            !e || is_direct(e)       ? "direct"
            : e->own == GT__CONV_FEW ? "few channels"
            : e->own == GT__CONV_MMA ? "tensor cores"
            : e->channels            ? "cuDNN, with more channels"
            : e->fused               ? "fused"
            : e->narrow              ? "cuDNN, widened after"
                                     : "cuDNN");
}

/* Plans that give the weight's gradient in halves. */
static int narrow_engines(const conv *c, gt__conv_key key, gt__conv_engine *engines, int capacity) {
    if (!c->may_stage) return 0;
    key.w_dtype = key.dtype;
    key.align_w = MAX_ALIGNMENT;
    int made = gt__conv_engines(c->cuda, &key, false, engines, capacity);
    for (int i = 0; i < made; i++) engines[i].narrow = 1;
    return made;
}

/* Plans for x and w with zeros in up to 4 or 8 channels. */
static int padded_engines(const conv *c, gt__conv_engine *engines) {
    const gt__conv_key *key = &c->key;
    int made = 0;
    if (key->kind == GT__CONV_BACKWARD_INPUT || gt_dtype_size(key->dtype) != 2 || key->x[1] > 3 || key->w[1] != key->x[1]) return 0;
    if (products(key) < DIRECT_PRODUCTS) return 0;
    for (int32_t channels = 4; channels <= 8; channels += 4) {
        gt__conv_key padded = *key;
        const gt__conv_engine sizes = {.channels = channels};
        size_t bytes = layout_of(c, &sizes).bytes;
        padded.x[1] = padded.w[1] = channels;
        if (count(padded.x) > INT_MAX || count(padded.w) > INT_MAX || bytes > key->workspace) continue;
        padded.workspace -= bytes;
        padded.align_x = padded.align_w = MAX_ALIGNMENT;
        int first = made, end = made + PADDED_CANDIDATES;
        if (key->bias || key->relu) made += gt__conv_engines(c->cuda, &padded, true, engines + made, 1);
        if (key->w_dtype != key->dtype) {
            made += gt__conv_engines(c->cuda, &padded, false, engines + made, 1);
            made += narrow_engines(c, padded, engines + made, end - made);
        } else {
            made += gt__conv_engines(c->cuda, &padded, false, engines + made, end - made);
        }
        for (int i = first; i < made; i++) engines[i].channels = channels;
    }
    return made;
}

/* Fills *engine; plan NULL means one of our own kernels. The outputs are overwritten, which the call itself will do again. */
static void choose(const conv *c, gt__conv_engine *engine) {
    const gt__conv_key *key = &c->key;
    gt__conv_engine candidates[CANDIDATES];
    int total = 0, best = -1;
    float best_ms = 0;
    bool tune = c->cuda->conv_plans.count < TUNED_PLANS && gt__cuda_may_tune(c->cuda);
    /* What may beat cuDNN's plans for the operands as they are comes first: in deterministic mode the first that works is taken. */
    if (c->few) {
        size_t bytes = gt__cuda_conv2d_few_scratch(&c->cuda->base, c->call);
        if (bytes <= key->workspace) candidates[total++] = (gt__conv_engine){.own = GT__CONV_FEW, .workspace = (int64_t)bytes};
    }
    if (c->mma && (!tune || gt__cuda_conv2d_mma_pays(&c->cuda->base, c->call))) {
        size_t bytes = gt__cuda_conv2d_mma_scratch(&c->cuda->base, c->call);
        if (bytes <= key->workspace) candidates[total++] = (gt__conv_engine){.own = GT__CONV_MMA, .workspace = (int64_t)bytes};
    }
    if (tune) total += padded_engines(c, candidates + total);
    int least = total + LEAST_CANDIDATES;
    if (key->bias || key->relu) total += gt__conv_engines(c->cuda, key, true, candidates + total, FUSED_CANDIDATES);
    if (key->w_dtype != key->dtype) {
        total += gt__conv_engines(c->cuda, key, false, candidates + total, WIDE_CANDIDATES);
        total += narrow_engines(c, *key, candidates + total, PLAIN_CANDIDATES);
    } else {
        total += gt__conv_engines(c->cuda, key, false, candidates + total, PLAIN_CANDIDATES);
    }
    if (tune && products(key) < DIRECT_PRODUCTS) candidates[total++] = (gt__conv_engine){0};
    /* Making the first plan of a process loads cuDNN's parts, which is not the candidates' fault. */
    double begin = gt__cuda_clock();
    for (int i = 0; i < total; i++) {
        float ms = try_engine(c, &candidates[i], tune, best_ms);
        /* A later candidate must win by more than the noise of the measurement. */
        if (ms >= 0 && (best < 0 || ms < 0.98f * best_ms)) best = i, best_ms = ms;
        if (best >= 0 && (!tune || (i >= least && gt__cuda_clock() - begin > TUNE_SECONDS))) break;
    }
    log_choice(c, candidates, total, best, best_ms);
    for (int i = 0; i < total; i++)
        if (i != best) gt__conv_engine_free(&candidates[i]);
    *engine = best >= 0 ? candidates[best] : (gt__conv_engine){0};
    (void)cudaGetLastError();
}

/* The same with the weight's gradient in scratch, since what is to be added to must stay as it is. */
static gt_status choose_beside(const conv *c, gt__conv_engine *engine) {
    void *room, *handle;
    size_t bytes = (size_t)count(c->key.w) * gt_dtype_size(c->key.w_dtype);
    if (gt__scratch_alloc_quiet(c->cuda->base.ctx, bytes, &room, &handle) != GT_OK) {
        if (c->lacked) *c->lacked = bytes;
        return GT_OUT_OF_MEMORY;
    }
    gt_tensor dw = *c->call->out[0];
    gt__call call = *c->call;
    conv beside = *c;
    dw.data = room;
    call.out[0] = &dw;
    call.attr.conv.accumulate = 0;
    beside.call = &call;
    beside.data.w = room;
    beside.accumulate = false;
    choose(&beside, engine);
    gt__scratch_free(c->cuda->base.ctx, handle);
    return GT_OK;
}

static gt_status open_cudnn(gt__cuda_device *cuda) {
    if (cuda->cudnn) return GT_OK;
    cudnnHandle_t handle;
    cudnnStatus_t status = cudnnCreate(&handle);
    if (status != CUDNN_STATUS_SUCCESS && gt__cuda_make_room(cuda)) status = cudnnCreate(&handle);
    if (status != CUDNN_STATUS_SUCCESS) return gt__cuda_raise_cudnn(status, "cudnnCreate", __FILE__, __LINE__);
    status = cudnnSetStream(handle, cuda->compute);
    if (status != CUDNN_STATUS_SUCCESS) {
        (void)cudnnDestroy(handle);
        return gt__cuda_raise_cudnn(status, "cudnnSetStream", __FILE__, __LINE__);
    }
    cuda->cudnn = handle;
    return GT_OK;
}

/* --- one convolution --------------------------------------------------------------------------------------------------------------- */

static gt_status run_plan(const conv *c, gt__conv_engine *engine, void *scratch) {
    GT_TRY(prepare(c, engine, scratch));
    cudnnStatus_t cudnn = run_engine(c, engine, scratch);
    if (cudnn != CUDNN_STATUS_SUCCESS) return gt__cuda_raise_cudnn(cudnn, "cudnnBackendExecute", __FILE__, __LINE__);
    return finish(c, engine, scratch);
}

/* Runs c by the plan for it; *by_direct says that the direct kernel is to do it instead. */
static gt_status run(conv *c, bool *by_direct) {
    gt__cuda_device *cuda = c->cuda;
    gt__conv_engine *engine = gt__plan_cache_find(&cuda->conv_plans, &c->key);
    *by_direct = c->accumulate && !c->may_stage;
    if (*by_direct) return GT_OK;
    if (GT__UNLIKELY(!engine)) {
        size_t free_bytes;
        gt__conv_engine made = {0};
        size_t lacked = 0;
        GT_TRY(open_cudnn(cuda));
        c->lacked = &lacked;
        if (!c->accumulate) {
            choose(c, &made);
            if (is_direct(&made) && gt__cuda_make_room(cuda)) {
                lacked = 0;
                choose(c, &made);
            }
        } else if (choose_beside(c, &made) != GT_OK) {
            c->lacked = NULL;
            *by_direct = true; /* this once */
            return short_of_scratch(c, lacked);
        }
        c->lacked = NULL;
        if (lacked && cuda->base.deterministic) {
            gt__conv_engine_free(&made);
            return short_of_scratch(c, lacked);
        }
        /* A card that is full for the moment must not decide for good. */
        if (is_direct(&made) && gt__cuda_memory_is_full(&free_bytes)) {
            *by_direct = true;
            return GT_OK;
        }
        engine = gt__plan_cache_add(&cuda->conv_plans, &c->key, &made);
        if (!engine) {
            gt__conv_engine_free(&made);
            return GT_OUT_OF_HOST_MEMORY;
        }
    }
    bool whole = !is_own(engine) || (engine->own == GT__CONV_FEW ? c->few : c->mma);
    if (is_direct(engine) || !whole) { /* part of a larger call, of which those kernels would do all */
        *by_direct = true;
        return GT_OK;
    }
    void *workspace = NULL, *handle = NULL;
    scratch_layout at = layout_of(c, engine);
    size_t bytes = at.bytes;
    if (bytes && gt__scratch_alloc_quiet(cuda->base.ctx, bytes, &workspace, &handle) != GT_OK) {
        GT_TRY(short_of_scratch(c, bytes));
        size_t needed = engine->channels ? bytes : (size_t)engine->workspace;
        *by_direct = needed == 0;
        if (*by_direct) return GT_OK;
        c->key.workspace = needed > LITTLE_WORKSPACE ? LITTLE_WORKSPACE : 0;
        return run(c, by_direct);
    }
    gt_status status = is_own(engine) ? run_own(c, engine, workspace) : run_plan(c, engine, workspace);
    gt__scratch_free(cuda->base.ctx, handle);
    return status;
}

static uint8_t alignment_of(const void *pointer) {
    int bits = 0;
    while (bits < MAX_ALIGNMENT && ((uintptr_t)pointer >> bits & 1) == 0) bits++;
    return (uint8_t)bits;
}

static void set_alignments(conv *c) {
    c->key.align_x = alignment_of(c->data.x);
    c->key.align_w = alignment_of(c->data.w);
    c->key.align_y = alignment_of(c->data.y);
    c->key.align_bias = c->data.bias ? alignment_of(c->data.bias) : 0;
}

/* How many images cuDNN, which counts in 32 bits, takes at once; 0: none. */
static int64_t images_at_once(const gt__conv_key *key) {
    int64_t largest = GT__MAX(count(key->x), count(key->y));
    if (count(key->w) > INT_MAX) return 0;
    if (largest <= INT_MAX) return key->x[0];
    /* The gradient of the weight is a sum over all images. */
    if (key->kind == GT__CONV_BACKWARD_WEIGHT) return 0;
    return INT_MAX / (largest / key->x[0]);
}

/* By the kernels for few channels without asking what else there is; *done is false where their scratch memory is more than is allowed, or not there. */
static gt_status few_channels(const conv *c, bool *done) {
    gt__device *device = &c->cuda->base;
    void *scratch = NULL, *handle = NULL;
    size_t bytes = gt__cuda_conv2d_few_scratch(device, c->call);
    *done = false;
    if (bytes > device->workspace_limit) return GT_OK;
    if (bytes && gt__scratch_alloc_quiet(device->ctx, bytes, &scratch, &handle) != GT_OK) return short_of_scratch(c, bytes);
    *done = true;
    gt_status status = gt__cuda_conv2d_few(device, c->call, scratch);
    gt__scratch_free(device->ctx, handle);
    return status;
}

static gt_status convolve(conv *c) {
    int64_t images = c->key.x[0], at_once = images_at_once(&c->key);
    c->few = c->key.kind != GT__CONV_BACKWARD_INPUT && gt__cuda_conv2d_few_takes(c->call);
    c->mma = gt__cuda_conv2d_mma_takes(&c->cuda->base, c->call);
    if (c->few && (c->key.dtype == GT_DTYPE_F64 || at_once < images)) {
        bool done;
        gt_status status = few_channels(c, &done);
        if (status != GT_OK || done) return status;
    }
    if (at_once < images) c->few = c->mma = false;
    if (c->key.dtype == GT_DTYPE_F64 || at_once == 0) return direct(c);
    size_t element = gt_dtype_size(c->key.dtype);
    size_t x_bytes = (size_t)(count(c->key.x) / images) * element, y_bytes = (size_t)(count(c->key.y) / images) * element;
    for (int64_t first = 0; first < images; first += at_once) {
        conv part = *c;
        bool by_direct;
        part.key.x[0] = part.key.y[0] = GT__MIN(at_once, images - first);
        part.data.x = (char *)c->data.x + (size_t)first * x_bytes;
        part.data.y = (char *)c->data.y + (size_t)first * y_bytes;
        set_alignments(&part);
        GT_TRY(run(&part, &by_direct));
        if (by_direct) return direct(c); /* all of it: the kernel takes the call as it is */
    }
    return GT_OK;
}

static conv describe(gt__device *device, const gt__call *call, gt__conv_kind kind, const gt_tensor *x, const gt_tensor *w,
                     const gt_tensor *y, const gt_tensor *bias, bool relu) {
    conv c;
    memset(&c, 0, sizeof c); /* the key is compared bytewise */
    c.cuda = gt__cuda(device);
    c.call = call;
    memcpy(c.key.x, x->meta.shape, sizeof c.key.x);
    memcpy(c.key.w, w->meta.shape, sizeof c.key.w);
    memcpy(c.key.y, y->meta.shape, sizeof c.key.y);
    for (int i = 0; i < 2; i++) {
        c.key.stride[i] = call->attr.conv.stride[i];
        c.key.padding[i] = call->attr.conv.padding[i];
        c.key.dilation[i] = call->attr.conv.dilation[i];
    }
    c.key.workspace = GT__MIN(device->workspace_limit, ENOUGH_WORKSPACE);
    c.key.dtype = y->meta.dtype;
    c.key.w_dtype = w->meta.dtype;
    c.key.kind = (uint8_t)kind;
    c.key.bias = bias != NULL;
    c.key.relu = relu;
    c.data = (gt__conv_data){gt__data(x), gt__data(w), gt__data(y), bias ? gt__data(bias) : NULL};
    return c;
}

/* Sums over nothing. */
static gt_status zero(gt__device *device, const gt_tensor *out) {
    size_t bytes = (size_t)out->meta.numel * gt_dtype_size(out->meta.dtype);
    return gt__cuda_memset_zero(device, GT__STREAM_COMPUTE, gt__data(out), bytes);
}

static gt_status forward(gt__device *device, const gt__call *call, bool relu) {
    const gt_tensor *x = call->in[0], *w = call->in[1], *y = call->out[0];
    conv c = describe(device, call, GT__CONV_FORWARD, x, w, y, call->n_in > 2 ? call->in[2] : NULL, relu);
    if (y->meta.numel == 0) return GT_OK;
    if (x->meta.numel == 0 || w->meta.numel == 0) {
        GT_TRY(zero(device, y));
        return bias_and_relu(&c);
    }
    return convolve(&c);
}

gt_status gt__cuda_conv2d(gt__device *device, const gt__call *call) { return forward(device, call, false); }

gt_status gt__cuda_conv2d_relu(gt__device *device, const gt__call *call) { return forward(device, call, true); }

gt_status gt__cuda_conv2d_backward_input(gt__device *device, const gt__call *call) {
    const gt_tensor *dy = call->in[0], *w = call->in[1], *dx = call->out[0];
    conv c = describe(device, call, GT__CONV_BACKWARD_INPUT, dx, w, dy, NULL, false);
    if (dx->meta.numel == 0 || dy->meta.numel == 0 || w->meta.numel == 0) return zero(device, dx);
    return convolve(&c);
}

gt_status gt__cuda_conv2d_backward_weight(gt__device *device, const gt__call *call) {
    const gt_tensor *dy = call->in[0], *x = call->in[1], *dw = call->out[0];
    conv c = describe(device, call, GT__CONV_BACKWARD_WEIGHT, x, dw, dy, NULL, false);
    c.accumulate = call->attr.conv.accumulate != 0;
    if (dw->meta.numel == 0 || dy->meta.numel == 0 || x->meta.numel == 0) return c.accumulate ? GT_OK : zero(device, dw);
    /* Room for a gradient to stand beside is set aside for all of them, so that writing and adding share a plan. */
    uint64_t beside = (uint64_t)dw->meta.numel * gt_dtype_size(dw->meta.dtype);
    c.may_stage = c.key.workspace >= beside;
    if (c.may_stage) c.key.workspace -= beside;
    return convolve(&c);
}

/* The gradient before relu in scratch memory, then that of the weight. */
static gt_status relu_then_weight(gt__device *device, const gt__call *call) {
    gt_tensor *dw = call->out[0], *db = call->n_out > 1 ? call->out[1] : NULL;
    bool add = db && call->attr.conv.accumulate;
    size_t dz_bytes = dw ? round_up(call->in[0]->meta.numel * (int64_t)gt_dtype_size(call->in[0]->meta.dtype)) : 0;
    size_t bytes = dz_bytes + (add ? (size_t)db->meta.numel * gt_dtype_size(db->meta.dtype) : 0);
    void *scratch = NULL, *handle = NULL;
    if (bytes) GT_TRY(gt__scratch_alloc(device->ctx, bytes, &scratch, &handle));
    gt_tensor dz = *call->in[0], sums = dz;
    dz.data = scratch;
    gt_tensor *masked_in[2] = {call->in[0], call->in[1]}, *weight_in[2] = {&dz, call->in[2]};
    gt__call part = {
        .ctx = call->ctx, .in = masked_in, .n_in = 2, .n_out = 2, .out = {dw ? &dz : NULL, db}, .op = GT__OP_BIAS_RELU_BACKWARD};
    if (add) {
        sums = *db;
        sums.data = (char *)scratch + dz_bytes;
        part.out[1] = &sums;
    }
    gt_status status = gt__cuda_bias_relu_backward(device, &part);
    if (status == GT_OK && add) {
        gt_tensor *both[2] = {db, &sums};
        gt__call sum = {.ctx = call->ctx, .in = both, .n_in = 2, .n_out = 1, .out = {db}, .op = GT__OP_ADD};
        status = gt__cuda_add(device, &sum);
    }
    if (status == GT_OK && dw) {
        gt__call weight = {
            .ctx = call->ctx, .in = weight_in, .n_in = 2, .n_out = 1, .out = {dw}, .attr = call->attr, .op = GT__OP_CONV2D_BACKWARD_WEIGHT};
        status = gt__cuda_conv2d_backward_weight(device, &weight);
    }
    gt__scratch_free(device->ctx, handle);
    return status;
}

gt_status gt__cuda_conv2d_relu_backward_weight(gt__device *device, const gt__call *call) {
    gt_tensor *dw = call->out[0], *db = call->n_out > 1 ? call->out[1] : NULL;
    if (call->in[0]->meta.numel == 0 || call->in[2]->meta.numel == 0) {
        if (call->attr.conv.accumulate) return GT_OK;
        if (dw) GT_TRY(zero(device, dw));
        return db ? zero(device, db) : GT_OK;
    }
    if (dw && gt__cuda_conv2d_few_takes(call)) {
        conv c;
        bool done;
        memset(&c, 0, sizeof c);
        c.cuda = gt__cuda(device);
        c.call = call;
        gt_status status = few_channels(&c, &done);
        if (status != GT_OK || done) return status;
    }
    return relu_then_weight(device, call);
}
