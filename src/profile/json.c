/* Results for programs, and the time line for Perfetto. */
#include "base/json_write.h"
#include "base/replace_file.h"
#include "profile/profile.h"

#include <math.h>

static gt_status check_path(const gt_profile *profile, const char *path, const char *who) {
    GT_TRY(gt__profile_check_results(profile, who));
    GT_REQUIRE(path != NULL && path[0] != '\0', GT_BAD_ARGUMENT, "%s: the path is %s", who, path ? "empty" : "NULL");
    return GT_OK;
}

static gt_status write_file(gt__json *json, const char *who, const char *path) {
    gt_status status = json->status;
    if (status == GT_OK) status = gt__text_append(&json->text, "\n", 1);
    if (status == GT_OK) status = gt__replace_file(who, path, json->text.data, json->text.length);
    gt__json_free(json);
    return status;
}

/* --- results ---------------------------------------------------------------------------------------------------------------------------------- */

static void number_or_null(gt__json *json, const char *key, double value) { gt__json_number(json, key, value > 0 ? value : NAN); }

static void write_entry(gt__json *json, const gt_profile_entry *e) {
    gt__json_newline(json);
    gt__json_begin(json, NULL, '{');
    gt__json_string(json, "op", e->op);
    gt__json_string(json, "module", e->module);
    gt__json_string(json, "phase", e->phase);
    gt__json_string(json, "dtype", e->dtype >= 0 ? gt_dtype_name(e->dtype) : NULL);
    gt__json_integer(json, "calls", e->calls);
    gt__json_number(json, "host_seconds", e->host_seconds);
    gt__json_number(json, "device_seconds", e->device_seconds);
    gt__json_unsigned(json, "bytes", e->bytes);
    gt__json_unsigned(json, "flops", e->flops);
    number_or_null(json, "bytes_per_second", e->bytes_per_second);
    number_or_null(json, "flops_per_second", e->flops_per_second);
    number_or_null(json, "ceiling", e->ceiling);
    gt__json_end(json, '}');
}

gt_status gt_profile_json(const gt_profile *profile, const char *path) {
    GT_TRY(check_path(profile, path, "gt_profile_json"));
    const gt_profile_summary *s = &profile->summary;
    gt__json json = {0};
    gt__json_begin(&json, NULL, '{');
    gt__json_string(&json, "device", profile->device_name);
    gt__json_integer(&json, "rounds", s->rounds);
    gt__json_integer(&json, "steps", s->steps);
    gt__json_integer(&json, "calls", s->calls);
    gt__json_number(&json, "wall_seconds", s->wall_seconds);
    gt__json_number(&json, "host_seconds", s->host_seconds);
    gt__json_number(&json, "device_seconds", s->device_seconds);
    gt__json_unsigned(&json, "bytes", s->bytes);
    gt__json_unsigned(&json, "flops", s->flops);
    gt__json_integer(&json, "untimed", s->untimed);
    gt__json_integer(&json, "dropped_events", s->dropped_events);
    gt__json_begin(&json, "ceilings", '{');
    number_or_null(&json, "bytes_per_second", profile->ceilings.bytes_per_second);
    number_or_null(&json, "f32_flops_per_second", profile->ceilings.f32_flops_per_second);
    number_or_null(&json, "f16_flops_per_second", profile->ceilings.f16_flops_per_second);
    gt__json_end(&json, '}');
    gt__json_begin(&json, "entries", '[');
    for (int32_t i = 0; i < profile->n_sums; ++i) write_entry(&json, &profile->sums[i].shown);
    gt__json_end(&json, ']');
    gt__json_end(&json, '}');
    return write_file(&json, "gt_profile_json", path);
}

/* --- the time line ------------------------------------------------------------------------------------------------------------------------------- */

/* "Trace Event Format": tracks are threads of processes. */
enum { HOST = 1, DEVICE = 2, HOST_TRACK = 1, COMPUTE_TRACK = 1, COPY_TRACK = 2 };

static void name_track(gt__json *json, const char *what, int process, int thread, const char *name) {
    gt__json_newline(json);
    gt__json_begin(json, NULL, '{');
    gt__json_string(json, "ph", "M");
    gt__json_string(json, "name", what);
    gt__json_integer(json, "pid", process);
    if (thread > 0) gt__json_integer(json, "tid", thread);
    gt__json_begin(json, "args", '{');
    gt__json_string(json, "name", name);
    gt__json_end(json, '}');
    gt__json_end(json, '}');
}

/* Times in microseconds, in whole nanoseconds. */
static double microseconds(double seconds) { return round(seconds * 1e9) / 1e3; }

/* Opens an event; the caller adds its args and closes it. */
static void begin_event(gt__json *json, const char *name, const char *category, int process, int thread, double begin, double end) {
    gt__json_newline(json);
    gt__json_begin(json, NULL, '{');
    gt__json_string(json, "ph", "X");
    gt__json_string(json, "name", name);
    gt__json_string(json, "cat", category);
    gt__json_integer(json, "pid", process);
    gt__json_integer(json, "tid", thread);
    gt__json_number(json, "ts", microseconds(begin));
    gt__json_number(json, "dur", round((microseconds(end) - microseconds(begin)) * 1e3) / 1e3);
    gt__json_begin(json, "args", '{');
}

static void end_event(gt__json *json) {
    gt__json_end(json, '}');
    gt__json_end(json, '}');
}

static void write_call(gt__json *json, const gt_profile_entry *e, const gt__profile_call *c, int process, int thread, double begin,
                       double end) {
    begin_event(json, e->op, e->phase, process, thread, begin, end);
    gt__json_string(json, "module", e->module);
    if (e->dtype >= 0) gt__json_string(json, "dtype", gt_dtype_name(e->dtype));
    if (c->bytes > 0) gt__json_unsigned(json, "bytes", c->bytes);
    if (c->flops > 0) gt__json_unsigned(json, "flops", c->flops);
    if (process == DEVICE && end > begin && c->bytes > 0) gt__json_number(json, "TB/s", (double)c->bytes / (end - begin) / 1e12);
    if (process == DEVICE && end > begin && c->flops > 0) gt__json_number(json, "TFLOP/s", (double)c->flops / (end - begin) / 1e12);
    end_event(json);
}

gt_status gt_profile_trace(const gt_profile *profile, const char *path) {
    GT_TRY(check_path(profile, path, "gt_profile_trace"));
    const double zero = profile->begin;
    double free_from[GT__STREAMS] = {0}; /* calls of a stream follow each other, whatever rounding does to their times */
    gt__json json = {0};
    gt__json_begin(&json, NULL, '{');
    gt__json_string(&json, "displayTimeUnit", "ms");
    gt__json_begin(&json, "traceEvents", '[');
    name_track(&json, "process_name", HOST, 0, "host");
    name_track(&json, "thread_name", HOST, HOST_TRACK, "calls");
    name_track(&json, "process_name", DEVICE, 0, profile->device_name);
    name_track(&json, "thread_name", DEVICE, COMPUTE_TRACK, "compute stream");
    name_track(&json, "thread_name", DEVICE, COPY_TRACK, "copy stream");
    for (int64_t i = 0; i < profile->n_steps; ++i) {
        begin_event(&json, "step", "step", HOST, HOST_TRACK, profile->steps[i].begin - zero, profile->steps[i].end - zero);
        gt__json_integer(&json, "number", i);
        end_event(&json);
    }
    for (int64_t i = 0; i < profile->n_calls; ++i) {
        const gt__profile_call *c = &profile->calls[i];
        const gt_profile_entry *e = &profile->sums[c->entry].shown;
        write_call(&json, e, c, HOST, HOST_TRACK, c->host_begin - zero, c->host_end - zero);
        if (c->stream == GT__STREAM_NONE || isnan(c->device_begin)) continue;
        double begin = GT__MAX(c->device_begin - zero, free_from[c->stream]), end = GT__MAX(c->device_end - zero, begin);
        free_from[c->stream] = end;
        write_call(&json, e, c, DEVICE, c->stream == GT__STREAM_COPY ? COPY_TRACK : COMPUTE_TRACK, begin, end);
    }
    gt__json_end(&json, ']');
    gt__json_end(&json, '}');
    return write_file(&json, "gt_profile_trace", path);
}
