/* Noting calls. A call of an active phase costs two readings of the clock, one or two timers (none on the CPU) and a look-up. */
#include "profile/profile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Calls under way whose times are unread. Beyond that, those that have ended are read while the round runs, and if none has, calls go untimed. */
#define MOST_PENDING (1 << 15)
/* Seconds after which a stream may have been idle since the last call. */
#define NO_GAP 2e-6
/* Elapsed times are floats: what they are counted from moves along. */
#define ORIGIN_SECONDS 1.0

void gt__profile_failed(gt_profile *profile, gt_status status) {
    if (status == GT_OK || profile->failure != GT_OK) return;
    profile->failure = status;
    (void)snprintf(profile->failure_text, sizeof profile->failure_text, "%s", gt_last_error()->message);
}

/* --- timers ------------------------------------------------------------------------------------------------------------------------------------ */

static gt__timer *timer_take(gt__profiled *d) {
    gt_profile *p = d->profile;
    gt__timer *t = p->free_timers;
    if (t) {
        p->free_timers = t->next;
    } else {
        t = gt__calloc(1, sizeof *t);
        if (t == NULL) return NULL;
        gt_status status = d->real->backend->timer_create(d->real, &t->event);
        if (status != GT_OK) {
            gt__profile_failed(p, status);
            gt__free(t);
            return NULL;
        }
    }
    t->references = 1;
    return t;
}

static void timer_release(gt_profile *p, gt__timer *t) {
    if (t == NULL || --t->references > 0) return;
    for (int32_t s = 0; s < GT__STREAMS; ++s)
        if (p->last[s] == t) p->last[s] = NULL;
    t->next = p->free_timers;
    p->free_timers = t;
}

static gt__timer *timer_record(gt__profiled *d, gt__stream_id stream) {
    gt__timer *t = timer_take(d);
    if (t == NULL) return NULL;
    gt_status status = d->real->backend->event_record(d->real, t->event, stream);
    if (status == GT_OK) return t;
    gt__profile_failed(d->profile, status);
    timer_release(d->profile, t);
    return NULL;
}

/* --- sums --------------------------------------------------------------------------------------------------------------------------------------- */

static int32_t slot_of(const gt_profile *p, const char *op, const char *module, gt__phase phase, int32_t dtype) {
    uint64_t h = (uint64_t)(uintptr_t)op * 0x9e3779b97f4a7c15ull;
    h ^= ((uint64_t)(uintptr_t)module + (uint64_t)phase * 64 + (uint64_t)(dtype + 1)) * 0xc2b2ae3d27d4eb4full;
    int32_t mask = p->n_slots - 1, i = (int32_t)((h >> 20 ^ h >> 40) & (uint64_t)mask);
    for (; p->slots[i] >= 0; i = (i + 1) & mask) {
        const gt__profile_sum *s = &p->sums[p->slots[i]];
        if (s->op == op && s->module == module && s->phase == phase && s->shown.dtype == dtype) break;
    }
    return i;
}

static gt_status make_room(gt_profile *p) {
    if (p->n_sums == p->cap_sums) {
        int32_t capacity = GT__MAX(2 * p->cap_sums, 64);
        gt__profile_sum *grown = gt__realloc(p->sums, (size_t)capacity * sizeof *grown);
        if (grown == NULL) return GT_OUT_OF_HOST_MEMORY;
        p->sums = grown;
        p->cap_sums = capacity;
    }
    if (p->n_slots >= 2 * (p->n_sums + 1)) return GT_OK;
    int32_t count = GT__MAX(2 * p->n_slots, 256);
    int32_t *slots = gt__malloc((size_t)count * sizeof *slots);
    if (slots == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt__free(p->slots);
    p->slots = slots;
    p->n_slots = count;
    for (int32_t i = 0; i < count; ++i) slots[i] = -1;
    for (int32_t i = 0; i < p->n_sums; ++i) {
        const gt__profile_sum *s = &p->sums[i];
        slots[slot_of(p, s->op, s->module, s->phase, s->shown.dtype)] = i;
    }
    return GT_OK;
}

static const char *phase_name(gt__phase phase) {
    static const char *const names[GT__PHASE_COUNT] = {"other", "forward", "backward", "update"};
    return names[phase];
}

/* -1: no host memory. */
static int32_t sum_of(gt_profile *p, const char *op, const char *module, gt__phase phase, int32_t dtype) {
    if (GT__LIKELY(p->n_slots > 0)) {
        int32_t found = p->slots[slot_of(p, op, module, phase, dtype)];
        if (GT__LIKELY(found >= 0)) return found;
    }
    if (make_room(p) != GT_OK) return -1;
    /* Their own strings: results outlive the context. */
    char *op_text = gt__strdup(op), *module_text = gt__strdup(module ? module : "");
    if (op_text == NULL || module_text == NULL) {
        gt__free(op_text);
        gt__free(module_text);
        return -1;
    }
    p->sums[p->n_sums] = (gt__profile_sum){
        .shown = {.op = op_text, .module = module_text, .phase = phase_name(phase), .dtype = dtype},
        .op = op,
        .module = module,
        .phase = phase,
        .number = p->n_sums,
    };
    p->slots[slot_of(p, op, module, phase, dtype)] = p->n_sums;
    return p->n_sums++;
}

static void sums_cut(gt_profile *p, int32_t count) {
    for (; p->n_sums > count; --p->n_sums) {
        gt__profile_sum *last = &p->sums[p->n_sums - 1];
        gt__free((char *)(uintptr_t)last->shown.op);
        gt__free((char *)(uintptr_t)last->shown.module);
        gt__free(last->range);
    }
}

static void sums_clear(gt_profile *p) {
    sums_cut(p, 0);
    for (int32_t i = 0; i < p->n_slots; ++i) p->slots[i] = -1;
}

/* --- a call ---------------------------------------------------------------------------------------------------------------------------------------- */

static bool push_range(gt__profiled *d, const char *op, const char *module, int32_t sum) {
    const gt__backend *b = d->real->backend;
    if (!d->profile->options.nvtx || b->range_push == NULL || sum < 0) return false;
    gt__profile_sum *s = &d->profile->sums[sum];
    if (s->range == NULL) {
        size_t size = strlen(op) + (module ? strlen(module) : 0) + 2;
        s->range = gt__malloc(size);
        if (s->range == NULL) return false;
        (void)snprintf(s->range, size, module ? "%s %s" : "%s", op, module);
    }
    b->range_push(d->real, s->range);
    return true;
}

/* Nothing lies between the stream's last call and what is queued now: then the timer that ended that one begins this one, which halves the timers. So it is
 * where the host comes at once, and where the device has not got so far yet. */
static bool follows_at_once(gt__profiled *d, int32_t stream) {
    const gt_profile *p = d->profile;
    int32_t done = 1;
    if (p->last[stream] == NULL) return false;
    if (gt__clock_seconds() - p->last_host[stream] < NO_GAP) return true;
    return d->real->backend->event_query(d->real, p->last[stream]->event, &done) == GT_OK && !done;
}

void gt__watch_begin(gt__profiled *d, gt__watch *w, const char *op, int32_t dtype, int32_t stream) {
    gt_profile *p = d->profile;
    const char *module = d->ctx->module_path;
    d->watching = true;
    *w = (gt__watch){.sum = -1, .stream = stream};
    /* A warm-up makes timers, and leaves the last round's sums as they are. */
    if (p->phase == GT_PROFILE_ACTIVE) w->sum = sum_of(p, op, module, gt__allocator_phase(d->ctx->allocator), dtype);
    w->range = push_range(d, op, module, w->sum);
    if (stream != GT__STREAM_NONE && d->timers) {
        if (follows_at_once(d, stream)) {
            w->begin = p->last[stream];
            w->begin->references++;
        } else {
            w->begin = timer_record(d, (gt__stream_id)stream);
        }
    }
    w->host = gt__clock_seconds();
}

/* Moves what has ended out of the ring. `all`: the device has nothing to do. */
static void read_pending(gt__profiled *d, bool all);

static gt__pending *pending_add(gt__profiled *d) {
    gt_profile *p = d->profile;
    if (p->n_pending == MOST_PENDING) read_pending(d, false);
    if (p->n_pending == MOST_PENDING) return NULL;
    if (p->n_pending == p->cap_pending) {
        int32_t capacity = GT__MAX(2 * p->cap_pending, 1024);
        gt__pending *grown = gt__malloc((size_t)capacity * sizeof *grown);
        if (grown == NULL) return NULL;
        for (int32_t i = 0; i < p->n_pending; ++i) grown[i] = p->pending[(p->first_pending + i) % p->cap_pending];
        gt__free(p->pending);
        p->pending = grown;
        p->cap_pending = capacity;
        p->first_pending = 0;
    }
    return &p->pending[(p->first_pending + p->n_pending++) % p->cap_pending];
}

/* -1: not kept. */
static int64_t keep_call(gt_profile *p, const gt__profile_call *call) {
    if (p->n_calls == p->cap_calls && p->n_calls < p->options.max_events) {
        int64_t capacity = GT__MIN(GT__MAX(2 * p->cap_calls, 1024), (int64_t)p->options.max_events);
        gt__profile_call *grown = gt__realloc(p->calls, (size_t)capacity * sizeof *grown);
        if (grown) {
            p->calls = grown;
            p->cap_calls = capacity;
        }
    }
    if (p->n_calls == p->cap_calls) {
        p->summary.dropped_events++;
        return -1;
    }
    p->calls[p->n_calls] = *call;
    return p->n_calls++;
}

/* `host_timed`: the device's time is the host's. */
static int64_t add_up(gt_profile *p, const gt__watch *w, double host_end, const gt__cost *cost, bool host_timed) {
    if (w->sum < 0) return -1;
    gt_profile_entry *e = &p->sums[w->sum].shown;
    double host = host_end - w->host, device = host_timed ? host : 0;
    e->calls++;
    e->host_seconds += host;
    e->device_seconds += device;
    e->bytes += cost->bytes;
    e->flops += cost->flops;
    e->matrix |= cost->matrix;
    p->summary.calls++;
    p->summary.host_seconds += host;
    p->summary.device_seconds += device;
    p->summary.bytes += cost->bytes;
    p->summary.flops += cost->flops;
    const gt__profile_call call = {.host_begin = w->host,
                                   .host_end = host_end,
                                   .device_begin = host_timed ? w->host : NAN,
                                   .device_end = host_timed ? host_end : NAN,
                                   .bytes = cost->bytes,
                                   .flops = cost->flops,
                                   .entry = w->sum,
                                   .stream = w->stream};
    return keep_call(p, &call);
}

void gt__watch_end(gt__profiled *d, gt__watch *w, const gt__cost *cost, gt_status status) {
    double host_end = gt__clock_seconds();
    gt_profile *p = d->profile;
    d->watching = false;
    if (w->range && d->real->backend->range_pop) d->real->backend->range_pop(d->real);
    if (p == NULL) return; /* what was called has destroyed it */
    gt__timer *end = NULL;
    if (w->begin && status == GT_OK) end = timer_record(d, (gt__stream_id)w->stream);
    const bool host_timed = !d->timers && w->stream != GT__STREAM_NONE;
    int64_t call = status == GT_OK ? add_up(p, w, host_end, cost, host_timed) : -1;
    if (!d->timers) return;
    gt__pending *pending = end ? pending_add(d) : NULL;
    if (pending) {
        *pending = (gt__pending){.begin = w->begin, .end = end, .entry = w->sum, .call = call};
        p->last[w->stream] = end;
        p->last_host[w->stream] = host_end;
        return;
    }
    if (w->sum >= 0 && status == GT_OK && w->stream != GT__STREAM_NONE) p->summary.untimed++;
    if (end) timer_release(p, end);
    timer_release(p, w->begin);
}

void gt__watch_step(gt_profile *p) {
    double begin = p->n_steps > 0 ? p->steps[p->n_steps - 1].end : p->begin;
    p->summary.steps++;
    p->step_calls = p->summary.calls;
    if (p->n_steps == p->cap_steps) {
        int64_t capacity = GT__MAX(2 * p->cap_steps, 64);
        gt__span *grown = capacity <= p->options.max_events + 64 ? gt__realloc(p->steps, (size_t)capacity * sizeof *grown) : NULL;
        if (grown == NULL) return; /* sums have it */
        p->steps = grown;
        p->cap_steps = capacity;
    }
    p->steps[p->n_steps++] = (gt__span){begin, gt__clock_seconds()};
}

/* --- device times ------------------------------------------------------------------------------------------------------------------------------------ */

static gt_status read_times(gt__profiled *d, const gt__pending *n) {
    const gt__backend *b = d->real->backend;
    gt_profile *p = d->profile;
    double seconds, since;
    GT_TRY(b->event_elapsed(d->real, n->begin->event, n->end->event, &seconds));
    p->sums[n->entry].shown.device_seconds += seconds;
    p->summary.device_seconds += seconds;
    if (n->call < 0 || p->origin == NULL) return GT_OK;
    GT_TRY(b->event_elapsed(d->real, p->origin->event, n->begin->event, &since));
    gt__profile_call *call = &p->calls[n->call];
    call->device_begin = p->origin_seconds + since;
    call->device_end = call->device_begin + seconds;
    if (since < ORIGIN_SECONDS) return GT_OK;
    n->begin->references++;
    timer_release(p, p->origin);
    p->origin = n->begin;
    p->origin_seconds = call->device_begin;
    return GT_OK;
}

static void read_pending(gt__profiled *d, bool all) {
    gt_profile *p = d->profile;
    for (; p->n_pending > 0; --p->n_pending) {
        gt__pending *n = &p->pending[p->first_pending];
        int32_t done = all;
        if (!all && d->real->backend->event_query(d->real, n->end->event, &done) != GT_OK) done = 0;
        if (!done) return;
        if (n->entry >= 0) {
            gt_status status = read_times(d, n);
            p->summary.untimed += status != GT_OK;
            gt__profile_failed(p, status);
        }
        timer_release(p, n->begin);
        timer_release(p, n->end);
        p->first_pending = (p->first_pending + 1) % p->cap_pending;
    }
}

static void drop_pending(gt_profile *p) {
    for (; p->n_pending > 0; --p->n_pending) {
        gt__pending *n = &p->pending[p->first_pending];
        timer_release(p, n->begin);
        timer_release(p, n->end);
        p->first_pending = (p->first_pending + 1) % p->cap_pending;
    }
    for (int32_t s = 0; s < GT__STREAMS; ++s) p->last[s] = NULL;
}

/* --- a round -------------------------------------------------------------------------------------------------------------------------------------------- */

/* The device's clock beside the host's: an event on an idle stream comes between being recorded and being seen to have come. */
static gt_status set_origin(gt_profile *p) {
    gt__profiled *d = p->device;
    if (!d->timers) return GT_OK;
    timer_release(p, p->origin);
    double before = gt__clock_seconds();
    p->origin = timer_record(d, GT__STREAM_COMPUTE);
    if (p->origin == NULL) return p->failure != GT_OK ? p->failure : GT_OUT_OF_HOST_MEMORY;
    GT_TRY(d->real->backend->event_wait_host(d->real, p->origin->event));
    p->origin_seconds = before + (gt__clock_seconds() - before) / 2;
    return GT_OK;
}

gt_status gt__watch_restart(gt_profile *p) {
    drop_pending(p);
    sums_clear(p);
    p->n_calls = p->n_steps = p->step_calls = 0;
    p->summary = (gt_profile_summary){.struct_size = sizeof p->summary, .rounds = p->summary.rounds};
    gt_status status = set_origin(p);
    gt__profile_failed(p, status);
    p->begin = gt__clock_seconds();
    return status;
}

static int by_device_time(const void *a, const void *b) {
    const gt__profile_sum *x = a, *y = b;
    if ((x->shown.calls == 0) != (y->shown.calls == 0)) return x->shown.calls == 0 ? 1 : -1;
    if (x->shown.device_seconds != y->shown.device_seconds) return x->shown.device_seconds < y->shown.device_seconds ? 1 : -1;
    if (x->shown.host_seconds != y->shown.host_seconds) return x->shown.host_seconds < y->shown.host_seconds ? 1 : -1;
    return x->number - y->number;
}

static void sort(gt_profile *p) {
    if (p->n_sums == 0) return;
    int32_t *place = gt__malloc(((size_t)p->n_sums + 1) * sizeof *place);
    if (place == NULL) return; /* in the order in which they were met */
    qsort(p->sums, (size_t)p->n_sums, sizeof *p->sums, by_device_time);
    for (int32_t i = 0; i < p->n_sums; ++i) place[p->sums[i].number] = i;
    for (int64_t i = 0; i < p->n_calls; ++i) p->calls[i].entry = place[p->calls[i].entry];
    gt__free(place);
    int32_t count = p->n_sums; /* without those whose every call failed */
    while (count > 0 && p->sums[count - 1].shown.calls == 0) --count;
    sums_cut(p, count);
}

void gt__watch_finish(gt_profile *p) {
    p->end = gt__clock_seconds();
    read_pending(p->device, true);
    drop_pending(p);
    p->summary.wall_seconds = p->end - p->begin;
    p->ceilings = p->device->ceilings;
    for (int32_t i = 0; i < p->n_sums; ++i) {
        gt_profile_entry *e = &p->sums[i].shown;
        bool over_bus =
            p->sums[i].op == gt__copy_names[GT__COPY_HOST_TO_DEVICE] || p->sums[i].op == gt__copy_names[GT__COPY_DEVICE_TO_HOST];
        if (e->device_seconds <= 0) continue;
        e->bytes_per_second = (double)e->bytes / e->device_seconds;
        e->flops_per_second = (double)e->flops / e->device_seconds;
        e->ceiling = over_bus ? 0 : gt__ceilings_seconds(&p->ceilings, e) / e->device_seconds;
    }
    sort(p);
}

void gt__watch_close(gt_profile *p) {
    gt__profiled *d = p->device;
    drop_pending(p);
    timer_release(p, p->origin);
    p->origin = NULL;
    while (p->free_timers) {
        gt__timer *t = p->free_timers;
        p->free_timers = t->next;
        d->real->backend->event_destroy(d->real, t->event);
        gt__free(t);
    }
}

void gt__watch_free(gt_profile *p) {
    sums_clear(p);
    gt__free(p->sums);
    gt__free(p->slots);
    gt__free(p->calls);
    gt__free(p->steps);
    gt__free(p->pending);
}
