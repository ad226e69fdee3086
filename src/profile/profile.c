/* The schedule of a profile, and what its caller may ask for. */
#include "profile/profile.h"

#include <stdio.h>

#define WITH_DEFAULTS                                                                                                                      \
    { .struct_size = sizeof(gt_profile_options), .nvtx = 1, .max_events = 1000000 }

gt_status gt_profile_options_init(gt_profile_options *options, size_t size) {
    const gt_profile_options defaults = WITH_DEFAULTS;
    return gt__options_write(options, size, &defaults, sizeof defaults, "gt_profile_options");
}

gt_status gt_profile_summary_init(gt_profile_summary *summary, size_t size) {
    const gt_profile_summary defaults = {.struct_size = sizeof defaults};
    return gt__options_write(summary, size, &defaults, sizeof defaults, "gt_profile_summary");
}

/* --- the schedule ------------------------------------------------------------------------------------------------------------------------------ */

/* Of the step that follows `done` others. *first: it is its round's first active one. */
static gt_profile_phase phase_after(const gt_profile_options *o, int64_t done, bool *first) {
    int64_t before = (int64_t)o->wait + o->warmup, round = before + o->active;
    *first = false;
    done -= o->skip_first;
    if (done < 0) return GT_PROFILE_WAIT;
    if (o->active > 0) {
        if (o->repeat > 0 && done / round >= o->repeat) return GT_PROFILE_DONE;
        done %= round;
    }
    *first = done == before;
    return done < o->wait ? GT_PROFILE_WAIT : done < before ? GT_PROFILE_WARMUP : GT_PROFILE_ACTIVE;
}

static gt_status wait_for_all(gt__profiled *d) {
    GT_TRY(d->real->backend->synchronize(d->real, GT__STREAM_COMPUTE));
    return d->real->backend->synchronize(d->real, GT__STREAM_COPY);
}

static gt_status begin_round(gt_profile *p) {
    gt__profiled *d = p->device;
    int32_t previous = gt__profiled_enter(d);
    gt_status status = wait_for_all(d);
    gt_status restarted = gt__watch_restart(p);
    gt__profiled_leave(d, previous);
    return status != GT_OK ? status : restarted;
}

/* Its results are complete afterwards, whatever is returned. */
static gt_status end_round(gt_profile *p) {
    gt__profiled *d = p->device;
    int32_t previous = gt__profiled_enter(d);
    gt_status status = wait_for_all(d);
    gt__watch_finish(p);
    gt__profiled_leave(d, previous);
    gt__profile_failed(p, status);
    p->summary.rounds++;
    p->results = true;
    return status;
}

static void set_phase(gt_profile *p, gt_profile_phase phase) {
    gt__profiled *d = p->device;
    bool wanted = phase == GT_PROFILE_WARMUP || phase == GT_PROFILE_ACTIVE;
    p->phase = phase;
    d->profile = wanted ? p : NULL;
    if (!wanted) {
        gt__profiled_remove(d);
    } else {
        if (d->ctx->device != &d->device) gt__profiled_place(d);
        d->hooks.lists = !p->options.whole_graphs;
    }
}

static void free_all(gt_profile *p) {
    gt__watch_free(p);
    gt__free(p);
}

/* The caller's function. False: it has destroyed the profile. */
static bool call_back(gt_profile *p) {
    if (p->options.on_round == NULL) return true;
    p->in_callback = true;
    p->options.on_round(p->options.user, p);
    p->in_callback = false;
    return !p->doomed;
}

/* Away from the context. */
static void detach(gt_profile *p) {
    gt__profiled *d = p->device;
    if (d == NULL) return;
    set_phase(p, GT_PROFILE_DONE);
    int32_t previous = gt__profiled_enter(d);
    gt__watch_close(p);
    gt__profiled_leave(d, previous);
    d->owner = NULL;
    p->device = NULL;
}

static gt_status step(gt_profile *p) {
    bool first;
    gt_status status = GT_OK;
    gt_profile_phase next = phase_after(&p->options, ++p->steps_done, &first);
    if (p->phase == GT_PROFILE_ACTIVE) {
        gt__watch_step(p);
        if (next != GT_PROFILE_ACTIVE || first) {
            status = end_round(p);
            set_phase(p, GT_PROFILE_WAIT);
            if (!call_back(p)) {
                detach(p);
                free_all(p);
                return status;
            }
        }
    }
    if (next == GT_PROFILE_DONE) {
        detach(p);
    } else if (next != p->phase) {
        set_phase(p, next);
        if (next == GT_PROFILE_ACTIVE) {
            gt_status begun = begin_round(p);
            if (status == GT_OK) status = begun;
        }
    }
    return status;
}

void gt__profile_step_done(gt__profiler *hooks) {
    gt__profiled *d = gt__profiled_of_hooks(hooks);
    gt_profile *p = d->owner;
    if (p == NULL)
        gt__profiled_remove(d); /* a profile that was destroyed while a trace stood before it */
    else if (!p->options.manual_steps && !p->in_callback && !d->watching)
        (void)step(p); /* a failure is kept for gt_profile_stop */
}

void gt__profile_context_closes(gt__profiler *hooks) {
    gt__profiled *d = gt__profiled_of_hooks(hooks);
    gt_profile *p = d->owner;
    if (p) {
        if (p->phase == GT_PROFILE_ACTIVE) (void)end_round(p);
        detach(p);
    }
    gt__profiled_remove(d);
    d->ctx->profiler = NULL;
    gt__free(d);
}

/* --- the caller's side ---------------------------------------------------------------------------------------------------------------------------- */

static gt_status check_options(const gt_profile_options *o) {
    const struct {
        const char *name;
        int32_t value;
    } counts[] = {{"skip_first", o->skip_first}, {"wait", o->wait},     {"warmup", o->warmup},
                  {"active", o->active},         {"repeat", o->repeat}, {"max_events", o->max_events}};
    for (size_t i = 0; i < GT__COUNT(counts); ++i)
        GT_REQUIRE(counts[i].value >= 0, GT_BAD_ARGUMENT, "gt_profile_create: option %s is %d; it must not be negative", counts[i].name,
                   (int)counts[i].value);
    GT_REQUIRE(o->repeat == 0 || o->active > 0, GT_BAD_ARGUMENT,
               "gt_profile_create: option repeat is %d and active 0, which has no end; set active too", (int)o->repeat);
    return GT_OK;
}

/* The device may be exchanged: nobody is in the middle of using it. */
static gt_status check_context(const gt_context *ctx, const char *who) {
    GT_REQUIRE(ctx->tracer == NULL, GT_BAD_STATE, "%s: a step is being traced", who);
    GT_REQUIRE(!ctx->in_backward, GT_BAD_STATE, "%s: a backward is running", who);
    GT_REQUIRE(ctx->profiler == NULL || !gt__profiled_of_hooks(ctx->profiler)->watching, GT_BAD_STATE,
               "%s: a custom op's function is running", who);
    return GT_OK;
}

gt_status gt_profile_create(gt_context *ctx, const gt_profile_options *options, gt_profile **profile) {
    GT_REQUIRE_HANDLE(ctx);
    GT_REQUIRE_HANDLE(profile);
    gt_profile_options o = WITH_DEFAULTS;
    if (options) GT_TRY(gt__options_read(&o, sizeof o, options, "gt_profile_options"));
    GT_TRY(check_options(&o));
    GT_TRY(check_context(ctx, "gt_profile_create"));
    gt__profiled *d;
    GT_TRY(gt__profiled_get(ctx, &d));
    GT_REQUIRE(d->owner == NULL, GT_BAD_STATE,
               "gt_profile_create: the context has a profile; gt_profile_stop or gt_profile_destroy it first");
    gt_status measured = gt__ceilings_measure(d);
    if (measured != GT_OK && measured != GT_OUT_OF_MEMORY) return measured;
    gt_profile *p = gt__calloc(1, sizeof *p);
    if (p == NULL) return GT_OUT_OF_HOST_MEMORY;
    p->options = o;
    p->summary.struct_size = sizeof p->summary;
    (void)snprintf(p->device_name, sizeof p->device_name, "%s", ctx->opened->name);
    p->device = d;
    d->owner = p;
    bool first;
    set_phase(p, phase_after(&o, 0, &first));
    gt_status status = p->phase == GT_PROFILE_ACTIVE ? begin_round(p) : GT_OK;
    if (status != GT_OK) {
        detach(p);
        free_all(p);
        return status;
    }
    *profile = p;
    return GT_OK;
}

gt_status gt_profile_step(gt_profile *profile) {
    GT_REQUIRE_HANDLE(profile);
    GT_REQUIRE(!profile->in_callback, GT_BAD_STATE, "gt_profile_step: called by the profile's own on_round");
    GT_REQUIRE(!profile->stopped, GT_BAD_STATE, "gt_profile_step: the profile has stopped");
    if (profile->device == NULL) return GT_OK; /* all rounds are over, or the context is gone */
    GT_TRY(check_context(profile->device->ctx, "gt_profile_step"));
    return step(profile);
}

gt_status gt_profile_stop(gt_profile *profile) {
    GT_REQUIRE_HANDLE(profile);
    gt_profile *p = profile;
    GT_REQUIRE(!p->in_callback, GT_BAD_STATE, "gt_profile_stop: called by the profile's own on_round");
    if (p->device) {
        GT_TRY(check_context(p->device->ctx, "gt_profile_stop"));
        bool round = p->phase == GT_PROFILE_ACTIVE;
        if (round) {
            if (p->summary.calls > p->step_calls) gt__watch_step(p);
            (void)end_round(p);
        }
        detach(p);
        if (round && !call_back(p)) {
            free_all(p);
            return GT_OK;
        }
    }
    p->stopped = true;
    GT_REQUIRE(p->failure == GT_OK, p->failure, "gt_profile: results are not complete: %s", p->failure_text);
    return GT_OK;
}

void gt_profile_destroy(gt_profile *profile) {
    if (profile == NULL) return;
    if (profile->in_callback) {
        profile->doomed = true;
        return;
    }
    detach(profile);
    free_all(profile);
}

gt_profile_phase gt_profile_get_phase(const gt_profile *profile) { return profile ? profile->phase : GT_PROFILE_DONE; }

/* --- results -------------------------------------------------------------------------------------------------------------------------------------------- */

static bool has_results(const gt_profile *p) { return p->results && p->phase != GT_PROFILE_ACTIVE; }

gt_status gt__profile_check_results(const gt_profile *p, const char *who) {
    if (p == NULL) return gt__error_null(who, "profile", __FILE__, __LINE__);
    GT_REQUIRE(p->phase != GT_PROFILE_ACTIVE, GT_BAD_STATE, "%s: a round is being measured; gt_profile_stop ends it", who);
    GT_REQUIRE(p->results, GT_BAD_STATE, "%s: no round has ended yet: %lld steps were seen, of which the schedule measures none", who,
               (long long)p->steps_done);
    return GT_OK;
}

gt_status gt_profile_get_summary(const gt_profile *profile, gt_profile_summary *summary) {
    GT_TRY(gt__profile_check_results(profile, "gt_profile_get_summary"));
    GT_REQUIRE_HANDLE(summary);
    GT_REQUIRE(summary->struct_size >= sizeof(uint32_t), GT_BAD_ABI,
               "gt_profile_get_summary: struct_size is %u; fill the struct with gt_profile_summary_init first",
               (unsigned)summary->struct_size);
    gt_profile_summary ours = profile->summary;
    ours.struct_size = summary->struct_size;
    memcpy(summary, &ours, GT__MIN((size_t)summary->struct_size, sizeof ours));
    return GT_OK;
}

int32_t gt_profile_entry_count(const gt_profile *profile) { return profile && has_results(profile) ? profile->n_sums : 0; }

const gt_profile_entry *gt_profile_get_entry(const gt_profile *profile, int32_t index) {
    return index >= 0 && index < gt_profile_entry_count(profile) ? &profile->sums[index].shown : NULL;
}
