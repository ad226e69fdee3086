/* Where features meet. A random network is trained for a few steps, once plainly and once with everything that may cost time but no bit: checkpoints, offload, too
 * little memory and the step done again, trimming, history, files, evaluation in between. Both must end in the same bits, with the same random state, no memory
 * lost, and no error left behind. Where a batch may be cut, an accumulated one is compared with the whole one.
 *
 * GTRAIN_COMBINATIONS_ROUNDS and GTRAIN_COMBINATIONS_SEED make it run longer, or just one round again: its seed is in each message. */
#include "combinations_net.h"

#define STEPS  4
#define MICROS 4

typedef struct plan {
    net_plan net;
    gt_dtype autocast, parameters;
    int32_t windowed, micro_batches, n_optimizers, cross_entropy, items_on_device, twice, input_grad, frozen, overflow_at, scaled, clips,
        scheduled;
    int64_t rows[STEPS][MICROS]; /* 0: the step ends there */
    gt_optimizer_options optimizers[2];
    gt_scaler_options scaler;
    uint64_t growth[STEPS]; /* bytes that a plain step needs on top, as the plain run found */
} plan;

typedef struct run {
    test_case *t;
    uint64_t seed;
    plan *p;
    gt_context *ctx;
    int varied, whole; /* whole: micro-batches joined to one */
    dice d;
    gt_module *net;
    gt_optimizer *optimizers[2];
    gt_scaler *scaler;
    gt_window *window;
    const char *file;
    char *trace;
    size_t used, room, first; /* first: where the net begins that the first step left */
    gt_status status;         /* why forward() made no loss */
    int failures;
} run;

#define OK(expr)                                                                                                                           \
    do {                                                                                                                                   \
        if ((expr) != GT_OK) FAIL("seed %llu: %s: %s", (unsigned long long)r->seed, #expr, gt_last_error()->message);                      \
    } while (0)
#define HOLDS(cond)                                                                                                                        \
    do {                                                                                                                                   \
        if (!(cond)) FAIL("seed %llu: %s", (unsigned long long)r->seed, #cond);                                                            \
    } while (0)

/* --- what a run leaves, byte for byte ------------------------------------------------------------------------------------------------------- */

typedef struct traced {
    char label[80];
    int64_t bytes;
    int32_t is_f32, step;
} traced;

static void note(run *r, int step, int is_f32, const char *label, const void *data, size_t bytes) {
    size_t size = sizeof(traced) + ((bytes + 7) & ~(size_t)7);
    if (r->used + size > r->room) {
        r->room = (r->used + size) * 2;
        r->trace = realloc(r->trace, r->room);
    }
    traced e = {.bytes = (int64_t)bytes, .is_f32 = is_f32, .step = step};
    snprintf(e.label, sizeof e.label, "%s", label);
    memset(r->trace + r->used, 0, size);
    memcpy(r->trace + r->used, &e, sizeof e);
    memcpy(r->trace + r->used + sizeof e, data, bytes);
    r->used += size;
}

static void note_tensor(run *r, int step, const char *label, gt_tensor *tensor) {
    size_t bytes = gt_tensor_bytes(tensor);
    void *data = malloc(bytes + 1);
    gt_status status = gt_tensor_read(tensor, data, bytes);
    if (status == GT_OK) note(r, step, gt_tensor_dtype(tensor) == GT_DTYPE_F32, label, data, bytes);
    free(data);
    OK(status);
}

static void note_net(run *r, int step) {
    const char *name;
    gt_tensor *tensor;
    char label[80];
    for (int32_t i = 0; i < gt_module_parameter_count(r->net); i++) {
        OK(gt_module_parameter(r->net, i, &name, &tensor));
        note_tensor(r, step, name, tensor);
        if (!gt_tensor_grad(tensor) || step == r->p->overflow_at) continue;
        snprintf(label, sizeof label, "gradient of %s", name);
        note_tensor(r, step, label, gt_tensor_grad(tensor));
    }
    for (int32_t i = 0; i < gt_module_buffer_count(r->net); i++) {
        OK(gt_module_buffer(r->net, i, &name, &tensor));
        note_tensor(r, step, name, tensor);
    }
    uint64_t random[2];
    OK(gt_random_state_get(r->ctx, &random[0], &random[1]));
    note(r, step, 0, "random state", random, sizeof random);
    if (r->scaler) {
        gt_scaler_state s;
        OK(gt_scaler_state_init(&s, sizeof s));
        OK(gt_scaler_get_state(r->scaler, &s));
        const double numbers[] = {s.scale, (double)s.growth_count, (double)s.updates, (double)s.skipped, s.status};
        note(r, step, 0, "scaler", numbers, sizeof numbers);
        note(r, step, 0, s.parameter, "", 0);
    }
    if (r->window) {
        gt_window_state s;
        OK(gt_window_state_init(&s, sizeof s));
        OK(gt_window_get_state(r->window, &s));
        const double numbers[] = {s.status, (double)s.updates, (double)s.skipped, s.items, s.gradient_norm, s.learning_rate};
        note(r, step, 0, "window", numbers, sizeof numbers - (step == r->p->overflow_at ? 16 : 0));
    }
}

/* Bit for bit; or, with a tolerance, the weights after one step: what is rounded otherwise grows from step to step. */
static void compare(const run *r, const run *plain, double tolerance) {
    const char *ours = r->trace + (tolerance > 0 ? r->first : 0), *theirs = plain->trace + (tolerance > 0 ? plain->first : 0);
    size_t n_ours = (size_t)(r->trace + r->used - ours), n_theirs = (size_t)(plain->trace + plain->used - theirs);
    for (size_t at = 0; at < n_ours && at < n_theirs;) {
        traced a, b;
        memcpy(&a, theirs + at, sizeof a);
        memcpy(&b, ours + at, sizeof b);
        if (tolerance > 0 && a.step > 0) return;
        if (strcmp(a.label, b.label) != 0 || a.bytes != b.bytes)
            FAIL("seed %llu, step %d: \"%s\" (%lld bytes) became \"%s\" (%lld)", (unsigned long long)r->seed, a.step, a.label,
                 (long long)a.bytes, b.label, (long long)b.bytes);
        const char *x = theirs + at + sizeof a, *y = ours + at + sizeof a;
        at += sizeof a + (((size_t)a.bytes + 7) & ~(size_t)7);
        if (tolerance > 0 && !a.is_f32) continue;
        int64_t differ = 0;
        double most = 0;
        for (int64_t i = 0; i < a.bytes / 4; i++) {
            float u, v;
            memcpy(&u, x + 4 * i, 4);
            memcpy(&v, y + 4 * i, 4);
            double off = fabs((double)u - (double)v);
            if (tolerance > 0 ? !(off <= tolerance * fmax(1, fabs((double)u))) : memcmp(x + 4 * i, y + 4 * i, 4) != 0) differ++;
            if (a.is_f32 && !(off <= most)) most = off;
        }
        if (tolerance == 0 && differ == 0 && memcmp(x, y, (size_t)a.bytes) != 0) differ++;
        if (differ > 0)
            FAIL("seed %llu, step %d: %s differs in %lld of %lld words, by up to %g", (unsigned long long)r->seed, a.step, a.label,
                 (long long)differ, (long long)(a.bytes / 4), most);
    }
    HOLDS(n_ours == n_theirs);
}

/* --- memory ------------------------------------------------------------------------------------------------------------------------------------ */

static uint64_t in_use(run *r) {
    gt_memory_stats s;
    OK(gt_memory_stats_init(&s, sizeof s));
    OK(gt_memory_get_stats(r->ctx, &s));
    uint64_t sum = 0;
    for (int i = 0; i < GT_MEMORY_CATEGORY_COUNT; i++) sum += s.category_in_use[i];
    HOLDS(s.in_use + s.cached == s.reserved);
    HOLDS(sum == s.in_use);
    HOLDS(s.allocations >= s.frees);
    HOLDS(s.largest_free <= s.cached && s.peak_in_use >= s.in_use);
    return s.in_use;
}

/* Without half copies of weights and without gradients. */
static uint64_t at_rest(run *r) {
    OK(gt_module_zero_grad(r->net));
    OK(gt_memory_trim(r->ctx));
    return in_use(r);
}

static void disturb(run *r) {
    if (!r->varied) return;
    switch (below(&r->d, 24)) {
    case 0:
    case 1:
    case 2:
        OK(gt_memory_trim(r->ctx));
        break;
    case 3:
        OK(gt_memory_set_history(r->ctx, below(&r->d, 3) * 100));
        break;
    case 4:
        OK(gt_memory_snapshot(r->ctx, r->file));
        break;
    case 5:
        OK(gt_memory_timeline(r->ctx, r->file));
        break;
    case 6:
        OK(gt_memory_viz(r->ctx, r->file));
        break;
    case 7: {
        static gt_oom_report report;
        OK(gt_oom_report_init(&report, sizeof report));
        OK(gt_memory_report(r->ctx, &report));
        break;
    }
    default:
        (void)in_use(r);
    }
}

/* --- one step ---------------------------------------------------------------------------------------------------------------------------------- */

static uint64_t data_seed(const run *r, int step, int micro) { return r->seed * 1000003u + (uint64_t)(step * 100 + micro + 1); }

static gt_tensor *inputs_of(run *r, int step, int micro) {
    dice d = {data_seed(r, step, micro)};
    gt_tensor *x = random_input(r->ctx, &r->p->net, &d, r->p->rows[step][micro]);
    return x && r->p->net.kind != NET_TOKENS && r->p->parameters != GT_DTYPE_F32 ? gt_cast(x, r->p->parameters) : x;
}

static gt_tensor *targets_of(run *r, int step, int micro) {
    dice d = {data_seed(r, step, micro) ^ 0x55555555u};
    int64_t rows = r->p->rows[step][micro], n = r->p->cross_entropy ? rows : rows * r->p->net.classes;
    const int64_t shape[2] = {rows, r->p->net.classes};
    int32_t *labels = malloc((size_t)n * 4);
    float *values = (float *)(void *)labels;
    for (int64_t i = 0; i < n; i++) {
        if (r->p->cross_entropy)
            labels[i] = i > 0 && r->p->items_on_device && chance(&d, 30) ? -100 : (int32_t)below(&d, r->p->net.classes);
        else
            values[i] = (float)(below(&d, 201) - 100) / 50.0f;
    }
    gt_tensor *y = gt_tensor_from_data(r->ctx, r->p->cross_entropy ? GT_DTYPE_I32 : GT_DTYPE_F32, r->p->cross_entropy ? 1 : 2, shape,
                                       labels, (size_t)n * 4);
    free(labels);
    return y;
}

typedef gt_tensor *(*maker)(run *r, int step, int micro);
static gt_tensor *batch_of(run *r, int step, int micro, maker make) {
    gt_tensor *parts[MICROS];
    int32_t n = 0;
    if (!r->whole) return make(r, step, micro);
    for (; n < MICROS && r->p->rows[step][n] > 0; n++)
        if ((parts[n] = make(r, step, n)) == NULL) return NULL;
    return gt_concat(parts, n, 0);
}

/* The loss of a micro-batch, or NULL. Regions that it opens are closed either way. */
static gt_tensor *forward(run *r, int step, int micro, gt_tensor **x) {
    gt_context *ctx = r->ctx;
    static const uint64_t sizes[] = {0, 64, 1024, 65536};
    int offloads = r->varied && chance(&r->d, 50);
    *x = batch_of(r, step, micro, inputs_of);
    gt_tensor *y = *x ? batch_of(r, step, micro, targets_of) : NULL;
    r->status = gt_last_error()->status;
    if (y == NULL) return NULL;
    if (r->p->input_grad && r->p->net.kind != NET_TOKENS) {
        *x = gt_tensor_detach(*x);
        if (*x == NULL) return NULL;
        OK(gt_tensor_set_requires_grad(*x, 1));
    }
    if (offloads) OK(gt_offload_begin(ctx, sizes[below(&r->d, 4)]));
    if (r->p->autocast != GT_DTYPE_F32) OK(gt_autocast_begin(ctx, r->p->autocast));
    gt_tensor *out = gt_module_forward(r->net, *x);
    gt_tensor *loss = NULL;
    if (out && r->p->cross_entropy)
        loss = gt_cross_entropy(out, y, NULL);
    else if (out)
        loss = gt_mse_loss(gt_cast(out, GT_DTYPE_F32), y, GT_REDUCTION_MEAN);
    if (loss && step == r->p->overflow_at && micro == 0) loss = gt_mul_scalar(loss, INFINITY);
    if (r->p->autocast != GT_DTYPE_F32) OK(gt_autocast_end(ctx));
    if (offloads) OK(gt_offload_end(ctx));
    r->status = loss ? GT_OK : gt_last_error()->status;
    if (loss && gt_last_error()->status != GT_OK)
        FAIL("seed %llu: an error is left after success: %s", (unsigned long long)r->seed, gt_last_error()->message);
    HOLDS(gt_autocast_dtype(ctx) == GT_DTYPE_F32 && gt_autocast_end(ctx) == GT_BAD_STATE); /* none is left open */
    if (loss) gt_clear_error();
    return loss;
}

static gt_status micro_in_window(run *r, int step, int micro) {
    gt_tensor *x, *items = NULL;
    int64_t rows = r->p->rows[step][micro];
    OK(gt_window_micro_begin(r->window));
    gt_tensor *loss = forward(r, step, micro, &x);
    if (loss == NULL) {
        gt_status status = r->status;
        if (chance(&r->d, 50))
            OK(gt_window_cancel(r->window));
        else
            HOLDS(gt_window_micro_end(r->window, NULL, 1, NULL) != GT_OK);
        return status;
    }
    disturb(r);
    if (r->p->items_on_device && step != r->p->overflow_at) {
        items = gt_cross_entropy_valid(loss);
        if (items == NULL) {
            gt_status status = gt_last_error()->status;
            OK(gt_window_cancel(r->window));
            return status;
        }
    }
    gt_status status = gt_window_micro_end(r->window, loss, (double)rows, items);
    if (status != GT_OK) return status;
    note_tensor(r, step, "loss", loss);
    if (r->p->input_grad && gt_tensor_grad(x)) note_tensor(r, step, "gradient of the input", gt_tensor_grad(x));
    return GT_OK;
}

static gt_status backward(run *r, int step, int micro, gt_tensor *loss) {
    if (!r->p->twice) return gt_backward(loss);
    gt_status status = gt_backward_from(&loss, NULL, 1, 1);
    if (status == GT_OUT_OF_MEMORY && micro == 0) { /* a record that is kept survives the failure */
        gt_clear_error();
        OK(gt_context_set_memory_limit(r->ctx, 0));
        status = gt_backward_from(&loss, NULL, 1, 1);
    }
    (void)step;
    disturb(r);
    return status == GT_OK ? gt_backward(loss) : status;
}

static gt_status micro_alone(run *r, int step, int micro) {
    gt_tensor *x, *loss = forward(r, step, micro, &x);
    if (loss == NULL) return r->status;
    gt_tensor *scaled = r->scaler ? gt_scaler_scale(r->scaler, loss) : loss;
    if (scaled == NULL) return gt_last_error()->status;
    disturb(r);
    gt_status status = backward(r, step, micro, scaled);
    if (status != GT_OK) return status;
    note_tensor(r, step, "loss", loss);
    if (r->p->input_grad && gt_tensor_grad(x)) note_tensor(r, step, "gradient of the input", gt_tensor_grad(x));
    return GT_OK;
}

static void update(run *r) {
    for (int i = 0; i < r->p->n_optimizers; i++) {
        if (r->p->clips) {
            OK(gt_scope_begin(r->ctx));
            if (r->scaler) OK(gt_scaler_unscale(r->scaler, r->optimizers[i]));
            OK(gt_optimizer_clip_grad_norm(r->optimizers[i], 0.5, NULL));
            OK(gt_optimizer_clip_grad_value(r->optimizers[i], 0.1));
            OK(gt_scope_end(r->ctx));
        }
        OK(r->scaler ? gt_scaler_step(r->scaler, r->optimizers[i]) : gt_optimizer_step(r->optimizers[i]));
    }
    if (r->scaler) OK(gt_scaler_update(r->scaler));
}

static gt_status attempt(run *r, int step) {
    gt_status status = GT_OK;
    for (int k = 0; k < MICROS && r->p->rows[step][k] > 0 && status == GT_OK; k++) {
        OK(gt_scope_begin(r->ctx));
        status = r->window ? micro_in_window(r, step, k) : micro_alone(r, step, k);
        OK(gt_scope_end(r->ctx));
        if (r->whole) break;
    }
    if (status != GT_OK) return status;
    if (r->window) return gt_window_flush(r->window);
    note_net(r, step); /* gradients */
    OK(gt_context_set_memory_limit(r->ctx, 0));
    update(r);
    return GT_OK;
}

/* What a caller without a window has to put back. */
typedef struct start {
    uint64_t seed, offset;
    char *buffers;
} start;

static size_t copy_buffers(run *r, char *host, int write) {
    size_t at = 0;
    for (int32_t i = 0; i < gt_module_buffer_count(r->net); i++) {
        gt_tensor *buffer;
        OK(gt_module_buffer(r->net, i, NULL, &buffer));
        size_t bytes = gt_tensor_bytes(buffer);
        if (host) OK(write ? gt_tensor_write(buffer, host + at, bytes) : gt_tensor_read(buffer, host + at, bytes));
        at += bytes;
    }
    return at;
}

enum { BALLAST = 64 };

/* Leaves no more than `room` bytes: the limit is what is reserved, and what is free of that is taken up by tensors. */
static void make_short(run *r, uint64_t room, gt_tensor **ballast) {
    gt_memory_stats s;
    OK(gt_memory_stats_init(&s, sizeof s));
    OK(gt_memory_get_stats(r->ctx, &s));
    OK(gt_context_set_memory_limit(r->ctx, s.reserved > s.in_use + room ? s.reserved : s.in_use + room));
    for (int i = 0; i < BALLAST; i++) {
        OK(gt_memory_get_stats(r->ctx, &s));
        if (s.cached <= room || s.largest_free == 0) break;
        uint64_t most = s.largest_free < s.cached - room ? s.largest_free : s.cached - room;
        int64_t bytes = (int64_t)(i % 2 == 0 && most > 1 << 19 ? 1 << 19 : most); /* small and large requests have segments of their own */
        ballast[i] = gt_tensor_empty(r->ctx, GT_DTYPE_U8, 1, &bytes);
    }
}

static void let_go(gt_tensor **ballast) {
    for (int i = 0; i < BALLAST; i++) {
        gt_tensor_release(ballast[i]);
        ballast[i] = NULL;
    }
}

static void step_with_retries(run *r, int step) {
    uint64_t rest = at_rest(r), room = 0;
    OK(gt_memory_reset_peak(r->ctx));
    size_t noted = r->used;
    start s = {0};
    OK(gt_random_state_get(r->ctx, &s.seed, &s.offset));
    int limited = r->varied && chance(&r->d, 40);
    if (limited) {
        room = (uint64_t)below(&r->d, (int64_t)(r->p->growth[step] + 1));
        s.buffers = malloc(copy_buffers(r, NULL, 0) + 1);
        (void)copy_buffers(r, s.buffers, 0);
    }
    for (;;) {
        gt_tensor *ballast[BALLAST] = {NULL};
        if (limited) make_short(r, room, ballast);
        gt_clear_error();
        gt_status status = attempt(r, step);
        let_go(ballast);
        if (status == GT_OK) break;
        if (!limited || status != GT_OUT_OF_MEMORY)
            FAIL("seed %llu, step %d: %s: %s", (unsigned long long)r->seed, step, gt_status_name(status), gt_last_error()->message);
        r->failures++;
        r->used = noted;
        OK(gt_context_set_memory_limit(r->ctx, 0));
        HOLDS(at_rest(r) == rest);
        if (r->window) { /* it has put everything back itself */
            start now;
            OK(gt_random_state_get(r->ctx, &now.seed, &now.offset));
            HOLDS(now.seed == s.seed && now.offset == s.offset);
            char *buffers = malloc(copy_buffers(r, NULL, 0) + 1);
            size_t bytes = copy_buffers(r, buffers, 0);
            HOLDS(memcmp(buffers, s.buffers, bytes) == 0);
            free(buffers);
        } else {
            OK(gt_random_state_set(r->ctx, s.seed, s.offset));
            (void)copy_buffers(r, s.buffers, 1);
        }
        if (chance(&r->d, 30)) limited = 0;
        room = room * 2 + 4096;
    }
    free(s.buffers);
    OK(gt_context_set_memory_limit(r->ctx, 0));
    HOLDS(gt_last_error()->status == GT_OK);
    if (!r->varied && !r->whole) {
        gt_memory_stats stats;
        OK(gt_memory_stats_init(&stats, sizeof stats));
        OK(gt_memory_get_stats(r->ctx, &stats));
        r->p->growth[step] = stats.peak_in_use - rest;
    }
    if (step == 0) r->first = r->used;
    note_net(r, step);
    HOLDS(at_rest(r) == rest);
}

/* Evaluation in between, sometimes with a backward of its own, must not show. */
static void look_at_it(run *r, int step) {
    gt_tensor *x;
    if (!r->varied || chance(&r->d, 60)) return;
    int with_grad = chance(&r->d, 30);
    gt_dtype autocast = r->p->autocast;
    OK(gt_module_set_training(r->net, 0));
    OK(gt_scope_begin(r->ctx));
    if (!with_grad) OK(gt_no_grad_begin(r->ctx));
    if (chance(&r->d, 30))
        r->p->autocast = r->p->parameters == GT_DTYPE_F32 ? (gt_dtype)(chance(&r->d, 50) ? GT_DTYPE_F16 : GT_DTYPE_BF16) : autocast;
    gt_tensor *loss = forward(r, step, 0, &x);
    r->p->autocast = autocast;
    if (loss == NULL) FAIL("seed %llu: evaluation: %s", (unsigned long long)r->seed, gt_last_error()->message);
    if (!with_grad) OK(gt_no_grad_end(r->ctx));
    disturb(r);
    if (with_grad) OK(gt_backward(loss));
    OK(gt_scope_end(r->ctx));
    OK(gt_module_set_training(r->net, 1));
    OK(gt_module_zero_grad(r->net));
}

/* --- a run -------------------------------------------------------------------------------------------------------------------------------------- */

static void choose_checkpoints(run *r, gt_module *m) {
    int32_t n = gt_module_child_count(m);
    if (chance(&r->d, 25)) OK(gt_module_set_checkpointing(m, 1));
    if (n > 0 && strcmp(gt_module_kind(m), "Sequential") == 0 && chance(&r->d, 35))
        OK(gt_nn_sequential_set_segments(m, 1 + (int32_t)below(&r->d, n)));
    for (int32_t i = 0; i < n; i++) {
        gt_module *child;
        OK(gt_module_child(m, i, NULL, &child));
        choose_checkpoints(r, child);
    }
}

static void make_optimizers(run *r) {
    gt_tensor *list[256];
    int32_t n = 0, count = gt_module_parameter_count(r->net);
    HOLDS(count <= 256);
    for (int32_t i = 0; i < count; i++) {
        OK(gt_module_parameter(r->net, i, NULL, &list[n]));
        n += gt_tensor_requires_grad(list[n]);
    }
    int32_t cut = r->p->n_optimizers == 2 ? n - 1 : n;
    OK(gt_optimizer_create(&r->p->optimizers[0], list, cut, &r->optimizers[0]));
    if (cut < n) OK(gt_optimizer_create(&r->p->optimizers[1], list + cut, n - cut, &r->optimizers[1]));
}

static void make_window(run *r) {
    gt_schedule schedule;
    gt_window_options o;
    OK(gt_schedule_init(&schedule, sizeof schedule, GT_SCHEDULE_COSINE));
    schedule.base = 0.02;
    schedule.total_steps = STEPS + 1;
    schedule.warmup_steps = 1;
    OK(gt_window_options_init(&o, sizeof o));
    o.micro_batches = r->whole ? 1 : r->p->micro_batches;
    o.optimizers = r->optimizers;
    o.n_optimizers = r->p->n_optimizers;
    o.module = r->net;
    o.scaler = r->scaler;
    o.schedule = r->p->scheduled ? &schedule : NULL;
    o.clip_norm = r->p->clips ? 0.5 : 0;
    o.clip_value = r->p->clips ? 0.1 : 0;
    OK(gt_window_create(&o, &r->window));
}

static void train(run *r) {
    uint64_t before = in_use(r);
    OK(gt_random_seed(r->ctx, r->seed));
    r->net = random_net(r->ctx, &r->p->net);
    if (getenv("GTRAIN_COMBINATIONS_TALK") && r->net) {
        char *text = malloc(1 << 16);
        OK(gt_module_describe(r->net, text, 1 << 16, NULL));
        fprintf(stderr, "%s\n", text);
        free(text);
    }
    if (r->net == NULL) FAIL("seed %llu: %s", (unsigned long long)r->seed, gt_last_error()->message);
    if (r->p->parameters != GT_DTYPE_F32) OK(gt_module_to_dtype(r->net, r->p->parameters));
    if (r->p->frozen >= 0 && r->p->frozen + 1 < gt_module_child_count(r->net)) {
        gt_module *child;
        OK(gt_module_child(r->net, r->p->frozen, NULL, &child));
        OK(gt_module_set_trainable(child, 0));
    }
    if (r->varied) choose_checkpoints(r, r->net);
    make_optimizers(r);
    if (r->p->scaled) OK(gt_scaler_create(r->ctx, &r->p->scaler, &r->scaler));
    if (r->p->windowed) make_window(r);
    for (int i = 0; i < STEPS && r->p->rows[i][0] > 0; i++) {
        disturb(r);
        look_at_it(r, i);
        step_with_retries(r, i);
    }
    gt_window_destroy(r->window);
    gt_scaler_destroy(r->scaler);
    gt_optimizer_destroy(r->optimizers[0]);
    gt_optimizer_destroy(r->optimizers[1]);
    gt_module_destroy(r->net);
    HOLDS(in_use(r) == before);
    HOLDS(gt_last_error()->status == GT_OK);
}

static void choose_optimizers(plan *p, dice *d) {
    for (int i = 0; i < 2; i++) {
        gt_optimizer_options *o = &p->optimizers[i];
        (void)gt_optimizer_options_init(o, sizeof *o, (gt_optimizer_kind)below(d, 3));
        o->learning_rate = 0.02;
        if (o->kind == GT_OPTIMIZER_SGD && chance(d, 70)) o->momentum = 0.9;
        if (chance(d, 30)) o->weight_decay = 0.01;
    }
    p->n_optimizers = 1 + chance(d, 30);
}

static plan choose(uint64_t seed) {
    dice d = {seed};
    static const gt_dtype dtypes[] = {GT_DTYPE_F32, GT_DTYPE_F32, GT_DTYPE_F16, GT_DTYPE_BF16};
    plan p = {.autocast = dtypes[below(&d, 4)], .parameters = chance(&d, 75) ? GT_DTYPE_F32 : dtypes[2 + below(&d, 2)]};
    p.net = (net_plan){.seed = roll(&d), .kind = (net_kind)below(&d, 3), .width = 4 + 4 * below(&d, 3), .classes = 2 + below(&d, 6)};
    p.net.large = chance(&d, 6);
    if (p.net.large) p.net.kind = NET_IMAGE;
    p.net.extent = p.net.kind == NET_IMAGE ? 4 + 2 * below(&d, 3) : 1 + below(&d, 6);
    p.net.plain = !p.net.large && chance(&d, 25);
    if (p.net.large) p.net.extent = 96, p.net.width = 4;
    if (p.net.plain) p.autocast = p.parameters = GT_DTYPE_F32;
    p.windowed = p.net.plain || chance(&d, 60);
    p.micro_batches = 1 + (int32_t)below(&d, p.net.large ? 2 : MICROS);
    p.cross_entropy = chance(&d, 60);
    p.items_on_device = p.cross_entropy && chance(&d, 50);
    p.twice = chance(&d, 20);
    p.input_grad = chance(&d, 20);
    p.frozen = chance(&d, 25) ? (int32_t)below(&d, 5) : -1;
    p.scaled = chance(&d, 50);
    (void)gt_scaler_options_init(&p.scaler, sizeof p.scaler);
    p.scaler.growth_interval = 1 + (int32_t)below(&d, 2);
    p.scaler.scale = chance(&d, 50) ? 1024 : 65536;
    p.overflow_at = p.scaled && !p.net.plain && chance(&d, 40) ? (int32_t)below(&d, STEPS) : -1;
    p.clips = chance(&d, 40);
    p.scheduled = chance(&d, 40);
    choose_optimizers(&p, &d);
    if (p.net.plain) p.optimizers[0].kind = p.optimizers[1].kind = GT_OPTIMIZER_SGD;
    int64_t steps = p.net.large ? 2 : 2 + below(&d, STEPS - 1);
    for (int i = 0; i < steps; i++) {
        int64_t micros = i + 1 == steps ? 1 + below(&d, p.micro_batches) : p.micro_batches; /* the last window may be short */
        for (int k = 0; k < micros; k++) p.rows[i][k] = p.net.large ? 4 : 2 + below(&d, 4);
    }
    return p;
}

static int one_round(test_case *t, gt_context *const *ctx, uint64_t seed, const char *file) {
    plan p = choose(seed);
    run plain = {.t = t, .seed = seed, .p = &p, .ctx = ctx[0], .d = {seed}, .file = file}, varied = plain, whole = plain;
    train(&plain);
    varied.ctx = ctx[1];
    varied.varied = 1;
    train(&varied);
    compare(&varied, &plain, 0);
    if (p.net.plain) {
        whole.whole = 1;
        train(&whole);
        compare(&whole, &plain, 1e-4);
    }
    free(plain.trace);
    free(varied.trace);
    free(whole.trace);
    return varied.failures;
}

static uint64_t from_environment(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && text[0] ? strtoull(text, NULL, 10) : otherwise;
}

static void two_contexts(test_case *t, gt_context **ctx) {
    gt_context_options o;
    CHECK_OK(gt_context_options_init(&o, sizeof o));
    o.allow_tf32 = 0;
    o.deterministic = 1;
    o.cpu_threads = 1;
    for (int i = 0; i < 2; i++) ctx[i] = test_context_with(t, &o);
}

/* Convolutions that ran short of scratch memory and took another way, which rounds otherwise. */
TEST_DEVICES(contract, D6_a_shortage_of_scratch_memory_changes_no_bit) {
    static const uint64_t seeds[] = {1311, 1406, 1476, 1626, 1754, 1833};
    gt_context *ctx[2];
    two_contexts(t, ctx);
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) (void)one_round(t, ctx, seeds[i], test_temp_path(t, "memory"));
}

TEST_DEVICES(unit, combinations_of_features_change_no_bit) {
    gt_context *ctx[2];
    two_contexts(t, ctx);
    const char *file = test_temp_path(t, "memory");
    uint64_t rounds = from_environment("GTRAIN_COMBINATIONS_ROUNDS", 120), seed = from_environment("GTRAIN_COMBINATIONS_SEED", 1);
    int failures = 0;
    for (uint64_t i = 0; i < rounds; i++) {
        if (getenv("GTRAIN_COMBINATIONS_TALK")) fprintf(stderr, "seed %llu\n", (unsigned long long)(seed + i));
        failures += one_round(t, ctx, seed + i, file);
    }
    if (getenv("GTRAIN_COMBINATIONS_TALK")) fprintf(stderr, "steps that failed: %d\n", failures);
    if (rounds >= 60) CHECK(failures >= (int)rounds / 4); /* memory did run out */
}
