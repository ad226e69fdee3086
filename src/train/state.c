/* The state of a run in one file: what gt_state_save gathers from the parts of a run, and gt_state_load puts back, all or nothing. */
#include "core/core.h"
#include "data/loader.h"
#include "io/load.h"
#include "io/save.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "optim/scaler.h"
#include "train/trainer.h"

#include <gtrain/io.h>
#include <math.h>
#include <stdio.h>

static const gt_state_parts defaults = {.struct_size = sizeof(gt_state_parts)};
static const char version_key[] = "gtrain.state", version[] = "1";

gt_status gt_state_parts_init(gt_state_parts *parts, size_t size) {
    return gt__options_write(parts, size, &defaults, sizeof defaults, "gt_state_parts");
}

/* --- the parts ------------------------------------------------------------------------------------------------------------------------------ */
typedef struct run {
    const char *who;
    gt_state_parts parts; /* with what the trainer stands in for */
    gt_context *ctx;
} run;

static gt_status add_context(run *r, gt_context *ctx, const char *part) {
    GT_REQUIRE(ctx != NULL, GT_BAD_STATE, "%s: the %s's context was destroyed", r->who, part);
    GT_REQUIRE(r->ctx == NULL || r->ctx == ctx, GT_BAD_DEVICE, "%s: the %s belongs to another context than the other parts", r->who, part);
    r->ctx = ctx;
    return GT_OK;
}

static gt_status read_parts(run *r, const gt_state_parts *theirs) {
    GT_REQUIRE(theirs != NULL, GT_BAD_ARGUMENT, "%s: parts is NULL; fill them with gt_state_parts_init", r->who);
    gt_state_parts *p = &r->parts;
    *p = defaults;
    GT_TRY(gt__options_read(p, sizeof *p, theirs, "gt_state_parts"));
    if (p->trainer) {
        if (p->module == NULL) p->module = p->trainer->module;
        if (p->scaler == NULL) p->scaler = p->trainer->scaler;
        if (p->window == NULL) p->window = p->trainer->window;
        if (p->n_optimizers == 0 && p->trainer->options.optimizer) {
            p->optimizers = &p->trainer->options.optimizer;
            p->n_optimizers = 1;
        }
    }
    GT_REQUIRE(p->n_optimizers >= 0 && (p->n_optimizers == 0 || p->optimizers != NULL), GT_BAD_ARGUMENT, "%s: n_optimizers is %d%s", r->who,
               (int)p->n_optimizers, p->optimizers ? "" : ", optimizers NULL");
    GT_REQUIRE(p->module != NULL || p->n_optimizers > 0, GT_BAD_ARGUMENT, "%s: there is no module, no optimizer and no trainer", r->who);
    if (p->module) {
        GT_TRY(gt_module_check(p->module));
        GT_TRY(add_context(r, gt_module_context(p->module), "module"));
        GT_TRY(gt__module_table(p->module));
    }
    if (p->trainer) GT_TRY(add_context(r, gt_module_context(p->trainer->module), "trainer"));
    for (int32_t i = 0; i < p->n_optimizers; ++i) {
        GT_REQUIRE(p->optimizers[i] != NULL, GT_BAD_ARGUMENT, "%s: optimizer %d is NULL", r->who, (int)i);
        GT_TRY(add_context(r, p->optimizers[i]->cells->ctx, "optimizer"));
    }
    if (p->scaler) {
        GT_TRY(add_context(r, p->scaler->cells->ctx, "scaler"));
        GT_TRY(gt__scaler_check(p->scaler, r->who, true));
    }
    if (p->loader) GT_TRY(add_context(r, gt_loader_context(p->loader), "loader"));
    GT_REQUIRE(r->ctx->open_windows == 0, GT_BAD_STATE,
               "%s: a window is open, and its gradients are not part of a state; flush or cancel it first, or wait for its update", r->who);
    return GT_OK;
}

/* By which the optimizer's state of the parameter is known: the module's name for it, its own, or its number. */
static const char *name_of(const run *r, const gt_optimizer *optimizer, int32_t i, char *buffer, size_t size) {
    const gt_tensor *parameter = optimizer->slots[i].parameter;
    const gt_module *m = r->parts.module;
    for (int32_t k = 0; m && k < m->n_parameters; ++k)
        if (m->table[k].tensor == parameter) return m->table[k].name;
    if (parameter->name) return parameter->name;
    (void)snprintf(buffer, size, "#%d", (int)i);
    return buffer;
}

/* --- saving ---------------------------------------------------------------------------------------------------------------------------------- */
static gt_status save_slot(gt__save_list *list, const run *r, int32_t number, int32_t i, const char *cells) {
    const gt_optimizer *optimizer = r->parts.optimizers[number];
    char buffer[32];
    const char *name = name_of(r, optimizer, i, buffer, sizeof buffer), *kind;
    int32_t steps;
    memcpy(&steps, cells + gt__optimizer_step_at(optimizer, i), sizeof steps);
    GT_TRY(gt__save_i64(list, steps, "optimizer.%d.step.%s", (int)number, name));
    for (int32_t k = 0; k < GT__OPTIMIZER_STATES; ++k) {
        gt_tensor *state = gt__optimizer_state(optimizer, i, k, &kind);
        if (state) GT_TRY(gt__save_tensor(list, state, "optimizer.%d.%s.%s", (int)number, kind, name));
    }
    return GT_OK;
}

static gt_status save_optimizer(gt__save_list *list, const run *r, int32_t number) {
    gt_optimizer *optimizer = r->parts.optimizers[number];
    GT_TRY(gt__optimizer_refresh_masters(optimizer));
    GT_TRY(gt__save_i64(list, optimizer->options.kind, "optimizer.%d.kind", (int)number));
    GT_TRY(gt__save_f64(list, optimizer->options.learning_rate, "optimizer.%d.learning_rate", (int)number));
    size_t bytes = gt_tensor_bytes(optimizer->cells);
    char *cells = gt__malloc(bytes);
    if (cells == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt_status status = gt_tensor_read(optimizer->cells, cells, bytes);
    for (int32_t i = 0; i < optimizer->count && status == GT_OK; ++i) status = save_slot(list, r, number, i, cells);
    gt__free(cells);
    return status;
}

static gt_status save_scaler(gt__save_list *list, gt_scaler *scaler) {
    gt_scaler_state s;
    GT_TRY(gt_scaler_state_init(&s, sizeof s));
    GT_TRY(gt_scaler_get_state(scaler, &s));
    GT_TRY(gt__save_f64(list, s.scale, "scaler.scale"));
    GT_TRY(gt__save_i64(list, s.growth_count, "scaler.growth_count"));
    GT_TRY(gt__save_i64(list, s.updates, "scaler.updates"));
    GT_TRY(gt__save_i64(list, s.skipped, "scaler.skipped"));
    return gt__save_i64(list, s.skipped_in_row, "scaler.skipped_in_row");
}

static gt_status save_window(gt__save_list *list, gt_window *window) {
    gt_window_state s;
    GT_TRY(gt_window_state_init(&s, sizeof s));
    GT_TRY(gt_window_get_state(window, &s));
    return gt__save_i64(list, s.updates, "window.updates");
}

static gt_status save_trainer(gt__save_list *list, gt_trainer *trainer) {
    const gt__meter *meter = &trainer->meter;
    GT_TRY(gt__compiled_settle(trainer->compiled, &trainer->meter));
    GT_TRY(gt__save_i64(list, trainer->epoch, "trainer.epoch"));
    GT_TRY(gt__save_i64(list, trainer->batch, "trainer.batch"));
    GT_TRY(gt__save_i64(list, trainer->batches, "trainer.batches"));
    GT_TRY(gt__save_i64(list, trainer->parts, "trainer.parts"));
    GT_TRY(gt__save_f64(list, meter->total_loss, "trainer.metrics.total_loss"));
    GT_TRY(gt__save_f64(list, meter->total_weight, "trainer.metrics.total_weight"));
    GT_TRY(gt__save_i64(list, meter->total_rows, "trainer.metrics.total_rows"));
    GT_TRY(gt__save_i64(list, meter->total_correct, "trainer.metrics.total_correct"));
    GT_TRY(gt__save_i64(list, meter->rows, "trainer.metrics.rows"));
    if (meter->loss) GT_TRY(gt__save_tensor(list, meter->loss, "trainer.metrics.loss"));
    if (meter->sums) GT_TRY(gt__save_tensor(list, meter->sums, "trainer.metrics.sums"));
    if (meter->correct) GT_TRY(gt__save_tensor(list, meter->correct, "trainer.metrics.correct"));
    return GT_OK;
}

/* The numbers of a loader that must be the same when a run goes on, and their names. */
enum { ORDER_NUMBERS = 5 };
static const char *const order_names[ORDER_NUMBERS] = {"loader.samples", "loader.batch_size", "loader.batches", "loader.seed",
                                                       "loader.shuffle"};
static void order_of(const gt_loader *loader, int64_t *numbers) {
    uint64_t seed;
    int32_t shuffle;
    gt__loader_order(loader, &seed, &shuffle);
    numbers[0] = gt_loader_samples(loader);
    numbers[1] = gt_loader_batch_size(loader);
    numbers[2] = gt_loader_batches(loader);
    memcpy(&numbers[3], &seed, sizeof seed);
    numbers[4] = shuffle;
}

static gt_status save_loader(gt__save_list *list, const gt_loader *loader) {
    int64_t numbers[ORDER_NUMBERS], epoch, batch;
    order_of(loader, numbers);
    for (int i = 0; i < ORDER_NUMBERS; ++i) GT_TRY(gt__save_i64(list, numbers[i], "%s", order_names[i]));
    GT_TRY(gt_loader_state_get(loader, &epoch, &batch));
    GT_TRY(gt__save_i64(list, epoch, "loader.epoch"));
    return gt__save_i64(list, batch, "loader.batch");
}

static gt_status save_random(gt__save_list *list, const gt_context *ctx) {
    int64_t seed, offset;
    memcpy(&seed, &ctx->rng_seed, sizeof seed);
    memcpy(&offset, &ctx->rng_offset, sizeof offset);
    GT_TRY(gt__save_i64(list, seed, "random.seed"));
    return gt__save_i64(list, offset, "random.offset");
}

static gt_status gather(gt__save_list *list, const run *r) {
    const gt_state_parts *p = &r->parts;
    GT_TRY(gt__save_text(list, version_key, version));
    GT_TRY(gt__save_metadata(list, p->metadata, p->n_metadata));
    GT_TRY(save_random(list, r->ctx));
    if (p->module) GT_TRY(gt__save_module(list, p->module, "module."));
    for (int32_t i = 0; i < p->n_optimizers; ++i) GT_TRY(save_optimizer(list, r, i));
    if (p->scaler) GT_TRY(save_scaler(list, p->scaler));
    if (p->window) GT_TRY(save_window(list, p->window));
    if (p->trainer) GT_TRY(save_trainer(list, p->trainer));
    return p->loader ? save_loader(list, p->loader) : GT_OK;
}

gt_status gt_state_save(const char *path, const gt_state_parts *parts) {
    static const char who[] = "gt_state_save";
    GT_REQUIRE(path != NULL, GT_BAD_ARGUMENT, "%s: path is NULL", who);
    run r = {.who = who};
    GT_TRY(read_parts(&r, parts));
    gt__save_list list = {.who = who, .ctx = r.ctx};
    gt_status status = gather(&list, &r);
    if (status == GT_OK) status = gt__save_write(&list, path);
    gt__save_free(&list);
    return status;
}

/* --- loading: what the file says -------------------------------------------------------------------------------------------------------------- */
typedef struct found {
    gt__load_plan plan;
    const run *run;
    char **cells;          /* one an optimizer, as they will be */
    double *learning_rate; /* one an optimizer */
    gt_scaler_state scaler;
    int64_t window_updates;
    int64_t epoch, batch, batches, parts; /* the trainer's */
    gt__meter meter;                      /* whose tensors are counted */
    int64_t loader_epoch, loader_batch;
    int64_t seed, offset; /* random */
} found;

static gt_status different(found *f, const char *name, int64_t theirs, int64_t ours) {
    if (theirs == ours) return GT_OK;
    return gt__load_mismatch(&f->plan, true, GT_MISMATCH_DIFFERENT, name, "is %lld in the file, %lld here", (long long)theirs,
                             (long long)ours);
}

static gt_status find_slot(found *f, int32_t number, int32_t i, gt__text *text) {
    const gt_optimizer *optimizer = f->run->parts.optimizers[number];
    char buffer[32];
    const char *name = name_of(f->run, optimizer, i, buffer, sizeof buffer), *kind;
    int64_t steps;
    text->length = 0;
    GT_TRY(gt__text_add(text, "optimizer.%d.step.%s", (int)number, name));
    GT_TRY(gt__load_i64(&f->plan, text->data, 0, &steps));
    if (steps > INT32_MAX) GT_TRY(gt__load_mismatch(&f->plan, true, GT_MISMATCH_DIFFERENT, text->data, "is larger than 2^31 - 1"));
    int32_t cell = (int32_t)steps;
    memcpy(f->cells[number] + gt__optimizer_step_at(optimizer, i), &cell, sizeof cell);
    for (int32_t k = 0; k < GT__OPTIMIZER_STATES; ++k) {
        gt_tensor *state = gt__optimizer_state(optimizer, i, k, &kind);
        if (state == NULL) continue;
        text->length = 0;
        GT_TRY(gt__text_add(text, "optimizer.%d.%s.%s", (int)number, kind, name));
        GT_TRY(gt__load_tensor(&f->plan, text->data, state));
    }
    return GT_OK;
}

static gt_status find_optimizer(found *f, int32_t number) {
    gt_optimizer *optimizer = f->run->parts.optimizers[number];
    size_t bytes = gt_tensor_bytes(optimizer->cells);
    f->cells[number] = gt__malloc(bytes);
    if (f->cells[number] == NULL) return GT_OUT_OF_HOST_MEMORY;
    GT_TRY(gt_tensor_read(optimizer->cells, f->cells[number], bytes)); /* besides counts it holds what the last step left */
    char name[64];
    int64_t kind;
    (void)snprintf(name, sizeof name, "optimizer.%d.kind", (int)number);
    GT_TRY(gt__load_i64(&f->plan, name, 0, &kind));
    GT_TRY(different(f, name, kind, optimizer->options.kind));
    (void)snprintf(name, sizeof name, "optimizer.%d.learning_rate", (int)number);
    double *rate = &f->learning_rate[number];
    GT_TRY(gt__load_f64(&f->plan, name, rate));
    if (!isfinite(*rate) || *rate < 0)
        GT_TRY(gt__load_mismatch(&f->plan, true, GT_MISMATCH_DIFFERENT, name, "is %g in the file; expected a finite rate from 0", *rate));
    gt__text text = {0};
    gt_status status = GT_OK;
    for (int32_t i = 0; i < optimizer->count && status == GT_OK; ++i) status = find_slot(f, number, i, &text);
    gt__text_free(&text);
    return status == GT_OK ? gt__load_bytes(&f->plan, optimizer->cells, f->cells[number]) : status;
}

static gt_status find_scaler(found *f, const gt_scaler *scaler) {
    gt_scaler_state *s = &f->scaler;
    GT_TRY(gt_scaler_state_init(s, sizeof *s));
    int64_t before = f->plan.mismatches;
    GT_TRY(gt__load_f64(&f->plan, "scaler.scale", &s->scale));
    bool there = f->plan.mismatches == before;
    GT_TRY(gt__load_i64(&f->plan, "scaler.growth_count", 0, &s->growth_count));
    GT_TRY(gt__load_i64(&f->plan, "scaler.updates", 0, &s->updates));
    GT_TRY(gt__load_i64(&f->plan, "scaler.skipped", 0, &s->skipped));
    GT_TRY(gt__load_i64(&f->plan, "scaler.skipped_in_row", 0, &s->skipped_in_row));
    const gt_scaler_options *o = &scaler->options;
    if (there && !(s->scale >= o->floor && s->scale <= o->cap))
        GT_TRY(gt__load_mismatch(&f->plan, true, GT_MISMATCH_DIFFERENT, "scaler.scale",
                                 "is %g in the file; this scaler's floor is %g and its cap %g", s->scale, o->floor, o->cap));
    if (s->growth_count > INT32_MAX)
        GT_TRY(gt__load_mismatch(&f->plan, true, GT_MISMATCH_DIFFERENT, "scaler.growth_count", "is larger than 2^31 - 1"));
    return GT_OK;
}

/* A sum that the trainer's metrics go on with, or NULL. Inside a scope. */
static gt_status find_sum(found *f, const char *name, gt_dtype dtype, int64_t numel, gt_tensor **sum) {
    int64_t entry = gt__load_find(&f->plan, name);
    if (entry < 0) return GT_OK;
    gt_tensor *read = gt_safetensors_read(f->plan.ctx, f->plan.file, entry);
    if (read == NULL) return gt_last_error()->status;
    bool fits = dtype == GT_DTYPE_I64 ? read->meta.dtype == dtype : gt__dtype_is_float(read->meta.dtype);
    if (read->meta.numel != numel || read->meta.ndim > 1 || !fits)
        return gt__load_mismatch(&f->plan, true, GT_MISMATCH_DIFFERENT, name, "is not a sum of the trainer's metrics");
    *sum = gt_tensor_retain(read);
    return gt_tensor_set_name(read, NULL);
}

static gt_status find_meter(found *f) {
    gt__meter *meter = &f->meter;
    GT_TRY(gt__load_f64(&f->plan, "trainer.metrics.total_loss", &meter->total_loss));
    GT_TRY(gt__load_f64(&f->plan, "trainer.metrics.total_weight", &meter->total_weight));
    GT_TRY(gt__load_i64(&f->plan, "trainer.metrics.total_rows", 0, &meter->total_rows));
    GT_TRY(gt__load_i64(&f->plan, "trainer.metrics.total_correct", 0, &meter->total_correct));
    GT_TRY(gt__load_i64(&f->plan, "trainer.metrics.rows", 0, &meter->rows));
    GT_TRY(gt__scope_begin(f->plan.ctx));
    gt_status status = find_sum(f, "trainer.metrics.loss", GT_DTYPE_F32, 1, &meter->loss);
    if (status == GT_OK) status = find_sum(f, "trainer.metrics.sums", GT_DTYPE_F32, 2, &meter->sums);
    if (status == GT_OK) status = find_sum(f, "trainer.metrics.correct", GT_DTYPE_I64, 1, &meter->correct);
    (void)gt_scope_end(f->plan.ctx);
    GT_TRY(status);
    bool whole = (meter->sums != NULL) == (meter->correct != NULL) && (meter->sums == NULL || meter->loss != NULL);
    return whole ? GT_OK
                 : gt__load_mismatch(&f->plan, true, GT_MISMATCH_DIFFERENT, "trainer.metrics", "has some of its sums and lacks others");
}

static gt_status find_trainer(found *f, const gt_trainer *trainer) {
    GT_TRY(gt__load_i64(&f->plan, "trainer.epoch", 0, &f->epoch));
    GT_TRY(gt__load_i64(&f->plan, "trainer.batch", 0, &f->batch));
    GT_TRY(gt__load_i64(&f->plan, "trainer.batches", 0, &f->batches));
    GT_TRY(gt__load_i64(&f->plan, "trainer.parts", 1, &f->parts));
    if (f->batch > f->batches)
        GT_TRY(gt__load_mismatch(&f->plan, true, GT_MISMATCH_DIFFERENT, "trainer.batch", "is %lld of %lld batches", (long long)f->batch,
                                 (long long)f->batches));
    if (f->parts > INT32_MAX / trainer->options.accumulation)
        GT_TRY(gt__load_mismatch(&f->plan, true, GT_MISMATCH_DIFFERENT, "trainer.parts", "is %lld", (long long)f->parts));
    return find_meter(f);
}

static gt_status find_loader(found *f, const gt_loader *loader) {
    int64_t numbers[ORDER_NUMBERS], theirs;
    order_of(loader, numbers);
    for (int i = 0; i < ORDER_NUMBERS; ++i) {
        int64_t before = f->plan.mismatches;
        GT_TRY(gt__load_i64(&f->plan, order_names[i], INT64_MIN, &theirs));
        if (f->plan.mismatches == before) GT_TRY(different(f, order_names[i], theirs, numbers[i]));
    }
    GT_TRY(gt__load_i64(&f->plan, "loader.epoch", 0, &f->loader_epoch));
    GT_TRY(gt__load_i64(&f->plan, "loader.batch", 0, &f->loader_batch));
    if (f->loader_batch > gt_loader_batches(loader))
        GT_TRY(gt__load_mismatch(&f->plan, true, GT_MISMATCH_DIFFERENT, "loader.batch", "is %lld of %lld batches",
                                 (long long)f->loader_batch, (long long)gt_loader_batches(loader)));
    return GT_OK;
}

static gt_status check_version(const found *f) {
    const char *path = f->plan.file->path, *text;
    if (gt_safetensors_metadata_find(f->plan.file, version_key, &text) != GT_OK)
        GT_FAIL(GT_BAD_FILE, "%s: %s was not written by gt_state_save; gt_module_load reads a module's parameters alone", f->plan.who,
                path);
    GT_REQUIRE(strcmp(text, version) == 0, GT_BAD_FILE, "%s: %s is a state of version %.20s; this library reads version %s", f->plan.who,
               path, text, version);
    return GT_OK;
}

static gt_status find_all(found *f, const char *path) {
    const gt_state_parts *p = &f->run->parts;
    GT_TRY(gt__load_open(&f->plan, path));
    GT_TRY(check_version(f));
    GT_TRY(gt__load_i64(&f->plan, "random.seed", INT64_MIN, &f->seed));
    GT_TRY(gt__load_i64(&f->plan, "random.offset", INT64_MIN, &f->offset));
    if (p->module) GT_TRY(gt__load_module(&f->plan, p->module, "module.", true, false));
    f->cells = gt__calloc((size_t)p->n_optimizers, sizeof *f->cells);
    f->learning_rate = gt__calloc((size_t)p->n_optimizers, sizeof *f->learning_rate);
    if (f->cells == NULL || f->learning_rate == NULL) return GT_OUT_OF_HOST_MEMORY;
    for (int32_t i = 0; i < p->n_optimizers; ++i) GT_TRY(find_optimizer(f, i));
    if (p->n_optimizers > 0) GT_TRY(gt__load_unexpected(&f->plan, true, "optimizer."));
    if (p->scaler) GT_TRY(find_scaler(f, p->scaler));
    if (p->window) GT_TRY(gt__load_i64(&f->plan, "window.updates", 0, &f->window_updates));
    if (p->trainer) GT_TRY(find_trainer(f, p->trainer));
    if (p->loader) GT_TRY(find_loader(f, p->loader));
    return gt__load_prepare(&f->plan);
}

static void found_free(found *f) {
    for (int32_t i = 0; f->cells && i < f->run->parts.n_optimizers; ++i) gt__free(f->cells[i]);
    gt__free(f->cells);
    gt__free(f->learning_rate);
    gt__meter_end(&f->meter);
    gt__load_close(&f->plan);
}

/* --- loading: putting it there ------------------------------------------------------------------------------------------------------------------ */
/* How the parts that are set by calls stand before, to go back to. */
typedef struct before {
    int64_t loader_epoch, loader_batch, window_updates;
    gt_scaler_state scaler;
} before;

static gt_status look(const gt_state_parts *p, before *b) {
    if (p->loader) GT_TRY(gt_loader_state_get(p->loader, &b->loader_epoch, &b->loader_batch));
    GT_TRY(gt_scaler_state_init(&b->scaler, sizeof b->scaler));
    if (p->scaler) GT_TRY(gt_scaler_get_state(p->scaler, &b->scaler));
    gt_window_state window;
    GT_TRY(gt_window_state_init(&window, sizeof window));
    if (p->window) GT_TRY(gt_window_get_state(p->window, &window));
    b->window_updates = window.updates;
    return GT_OK;
}

/* The parts that are set by calls, which may fail: first, so that nothing else has changed then. */
static gt_status set_calls(const found *f) {
    const gt_state_parts *p = &f->run->parts;
    before b = {0};
    GT_TRY(look(p, &b));
    gt_status status = p->loader ? gt_loader_state_set(p->loader, f->loader_epoch, f->loader_batch) : GT_OK;
    if (status == GT_OK && p->scaler) {
        status = gt_scaler_set_state(p->scaler, &f->scaler);
        if (status == GT_OK && p->window) {
            status = gt_window_set_updates(p->window, f->window_updates);
            if (status != GT_OK) (void)gt_scaler_set_state(p->scaler, &b.scaler);
        }
    } else if (status == GT_OK && p->window) {
        status = gt_window_set_updates(p->window, f->window_updates);
    }
    if (status != GT_OK && p->loader) (void)gt_loader_state_set(p->loader, b.loader_epoch, b.loader_batch);
    return status;
}

static gt_status set_trainer(found *f, gt_trainer *trainer) {
    if (trainer->window) GT_TRY(gt_window_set_micro_batches(trainer->window, trainer->options.accumulation * (int32_t)f->parts));
    gt__meter_end(&trainer->meter);
    gt__meter_begin(&trainer->meter, trainer->ctx, &trainer->objective);
    f->meter.ctx = trainer->meter.ctx;
    f->meter.objective = trainer->meter.objective;
    trainer->meter = f->meter;
    f->meter = (gt__meter){0};
    trainer->epoch = f->epoch;
    trainer->batch = f->batch;
    trainer->batches = f->batches;
    trainer->parts = (int32_t)f->parts;
    trainer->total_steps = f->window_updates;
    trainer->skipped = 0;
    return GT_OK;
}

static gt_status put(found *f) {
    const gt_state_parts *p = &f->run->parts;
    GT_TRY(set_calls(f));
    GT_TRY(gt__load_commit(&f->plan));
    for (int32_t i = 0; i < p->n_optimizers; ++i) {
        p->optimizers[i]->options.learning_rate = f->learning_rate[i];
        gt__optimizer_loaded(p->optimizers[i]);
    }
    if (p->trainer) GT_TRY(set_trainer(f, p->trainer));
    uint64_t seed, offset;
    memcpy(&seed, &f->seed, sizeof seed);
    memcpy(&offset, &f->offset, sizeof offset);
    return gt_random_state_set(f->run->ctx, seed, offset);
}

gt_status gt_state_load(const char *path, const gt_state_parts *parts) {
    static const char who[] = "gt_state_load";
    run r = {.who = who};
    GT_TRY(read_parts(&r, parts));
    found f = {.run = &r, .plan = {.who = who, .ctx = r.ctx, .on_mismatch = r.parts.on_mismatch, .user = r.parts.user}};
    gt_status status = find_all(&f, path);
    if (status == GT_OK) status = put(&f);
    found_free(&f);
    return status;
}
