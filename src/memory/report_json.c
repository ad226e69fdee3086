/* The report as JSON, for programs: every field by its name in gt_oom_report. Reading reports of other versions. */
#include "memory/report.h"

#include "base/json_write.h"

static void empty_for_null(const char **text) {
    if (*text == NULL) *text = "";
}

gt_status gt_oom_report_init(gt_oom_report *report, size_t size) {
    const gt_oom_report defaults = {
        .struct_size = sizeof defaults, .op = "", .module = "", .phase = "", .growth_op = "", .growth_module = "", .ndim = -1};
    return gt__options_write(report, size, &defaults, sizeof defaults, "gt_oom_report");
}

gt_status gt__report_read(gt_oom_report *ours, const gt_oom_report *theirs, const char *buffer, size_t size, const char *who) {
    if (theirs == NULL) return gt__error_null(who, "report", __FILE__, __LINE__);
    GT_REQUIRE(buffer != NULL || size == 0, GT_BAD_ARGUMENT, "%s: the buffer is NULL, its size is %zu", who, size);
    GT_REQUIRE(theirs->struct_size >= sizeof theirs->struct_size, GT_BAD_ABI,
               "%s: struct_size is %u; fill the struct with gt_oom_report_init first", who, (unsigned)theirs->struct_size);
    memset(ours, 0, sizeof *ours);
    memcpy(ours, theirs, GT__MIN((size_t)theirs->struct_size, sizeof *ours));
    empty_for_null(&ours->op);
    empty_for_null(&ours->module);
    empty_for_null(&ours->phase);
    empty_for_null(&ours->growth_op);
    empty_for_null(&ours->growth_module);
    return GT_OK;
}

static void tensor(gt__json *j, int32_t ndim, const int64_t *shape, gt_dtype dtype) {
    if (ndim < 0) return;
    gt__json_begin(j, "shape", '[');
    for (int32_t i = 0; i < ndim; ++i) gt__json_integer(j, NULL, shape[i]);
    gt__json_end(j, ']');
    gt__json_string(j, "dtype", gt_dtype_name(dtype));
}

static void by_category(gt__json *j, const char *key, const uint64_t *bytes) {
    gt__json_begin(j, key, '{');
    for (int32_t c = 0; c < GT_MEMORY_CATEGORY_COUNT; ++c) gt__json_unsigned(j, gt_memory_category_name(c), bytes[c]);
    gt__json_end(j, '}');
}

static void groups(gt__json *j, const char *key, const gt_oom_group *list, int32_t count) {
    gt__json_newline(j);
    gt__json_begin(j, key, '[');
    for (int32_t i = 0; i < count; ++i) {
        const gt_oom_group *g = &list[i];
        gt__json_newline(j);
        gt__json_begin(j, NULL, '{');
        gt__json_string(j, "op", g->op);
        gt__json_string(j, "module", g->module);
        gt__json_string(j, "category", gt_memory_category_name(g->category));
        gt__json_unsigned(j, "bytes", g->bytes);
        gt__json_integer(j, "count", g->count);
        gt__json_unsigned(j, "largest", g->largest);
        gt__json_unsigned(j, "pinned", g->pinned);
        tensor(j, g->ndim, g->shape, g->dtype);
        gt__json_end(j, '}');
    }
    gt__json_end(j, ']');
}

static void remedies(gt__json *j, const gt_oom_report *r) {
    gt__json_newline(j);
    gt__json_begin(j, "remedies", '[');
    for (int32_t i = 0; i < r->n_remedies; ++i) {
        const gt_oom_remedy *m = &r->remedies[i];
        gt__json_newline(j);
        gt__json_begin(j, NULL, '{');
        gt__json_string(j, "kind", gt_oom_remedy_name(m->kind));
        gt__json_string(j, "subject", m->subject);
        gt__json_string(j, "cost", m->cost);
        gt__json_unsigned(j, "bytes", m->bytes);
        gt__json_unsigned(j, "need", m->need);
        gt__json_bool(j, "enough", m->enough != 0);
        if (m->kind == GT_OOM_REMEDY_MICRO_BATCH) {
            gt__json_integer(j, "micro_batch", m->micro_batch);
            gt__json_integer(j, "accumulation", m->accumulation);
        }
        if (m->kind == GT_OOM_REMEDY_CHECKPOINT) {
            gt__json_integer(j, "depth", m->depth);
            gt__json_integer(j, "segments", m->segments);
            gt__json_string(j, "target", m->target);
        }
        if (m->kind == GT_OOM_REMEDY_RAISE_LIMIT || m->kind == GT_OOM_REMEDY_WORKSPACE_LIMIT || m->kind == GT_OOM_REMEDY_OFFLOAD)
            gt__json_unsigned(j, "limit", m->limit);
        if (m->process) gt__json_integer(j, "process", m->process);
        if (m->count) gt__json_integer(j, "count", m->count);
        gt__json_end(j, '}');
    }
    gt__json_end(j, ']');
}

static void request(gt__json *j, const gt_oom_report *r) {
    gt__json_newline(j);
    gt__json_begin(j, "request", '{');
    gt__json_unsigned(j, "requested", r->requested);
    gt__json_unsigned(j, "rounded", r->rounded);
    gt__json_string(j, "op", r->op);
    gt__json_string(j, "module", r->module);
    gt__json_string(j, "category", gt_memory_category_name(r->category));
    tensor(j, r->ndim, r->shape, r->dtype);
    gt__json_end(j, '}');
}

static void all(gt__json *j, const gt_oom_report *r) {
    gt__json_begin(j, NULL, '{');
    gt__json_string(j, "cause", gt_oom_cause_name(r->cause));
    if (r->cause != GT_OOM_NONE) request(j, r);
    remedies(j, r);
    gt__json_newline(j);
    gt__json_begin(j, "device", '{');
    gt__json_unsigned(j, "total", r->device_total);
    gt__json_unsigned(j, "free", r->device_free);
    gt__json_unsigned(j, "ours", r->ours);
    gt__json_unsigned(j, "others", r->others);
    gt__json_unsigned(j, "here", r->here);
    gt__json_begin(j, "holders", '[');
    for (int32_t i = 0; i < r->n_holders; ++i) {
        gt__json_begin(j, NULL, '{');
        gt__json_integer(j, "process", r->holders[i].process);
        gt__json_unsigned(j, "bytes", r->holders[i].bytes);
        gt__json_end(j, '}');
    }
    gt__json_end(j, ']');
    gt__json_end(j, '}');
    gt__json_newline(j);
    gt__json_unsigned(j, "limit", r->limit);
    gt__json_unsigned(j, "in_use", r->in_use);
    gt__json_unsigned(j, "cached", r->cached);
    gt__json_unsigned(j, "reserved", r->reserved);
    gt__json_unsigned(j, "largest_free", r->largest_free);
    gt__json_unsigned(j, "largest_possible", r->largest_possible);
    gt__json_unsigned(j, "peak_in_use", r->peak_in_use);
    gt__json_unsigned(j, "last_step_peak", r->last_step_peak);
    gt__json_newline(j);
    by_category(j, "category_in_use", r->category_in_use);
    by_category(j, "category_peak", r->category_peak);
    gt__json_newline(j);
    gt__json_unsigned(j, "saved", r->saved);
    gt__json_integer(j, "graphs", r->graphs);
    gt__json_integer(j, "batch", r->batch);
    gt__json_integer(j, "step", r->step);
    gt__json_string(j, "phase", r->phase);
    gt__json_integer(j, "layers", r->layers);
    gt__json_integer(j, "layers_run", r->layers_run);
    if (r->growth_steps > 0) {
        gt__json_newline(j);
        gt__json_begin(j, "growth", '{');
        gt__json_string(j, "op", r->growth_op);
        gt__json_string(j, "module", r->growth_module);
        gt__json_string(j, "category", gt_memory_category_name(r->growth_category));
        gt__json_integer(j, "steps", r->growth_steps);
        gt__json_unsigned(j, "bytes_a_step", r->growth);
        gt__json_unsigned(j, "now", r->growth_now);
        gt__json_end(j, '}');
    }
    groups(j, "groups", r->groups, r->n_groups);
    groups(j, "pins", r->pins, r->n_pins);
    gt__json_end(j, '}');
}

gt_status gt_oom_report_json(const gt_oom_report *report, char *buffer, size_t size, size_t *needed) {
    gt_oom_report ours;
    GT_TRY(gt__report_read(&ours, report, buffer, size, "gt_oom_report_json"));
    gt__json json = {0};
    all(&json, &ours);
    gt_status status = json.status;
    if (status == GT_OK) {
        if (size > 0) {
            size_t length = GT__MIN(json.text.length, size - 1);
            memcpy(buffer, json.text.data, length);
            buffer[length] = '\0';
        }
        if (needed) *needed = json.text.length + 1;
    }
    gt__json_free(&json);
    return status;
}
