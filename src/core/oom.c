/* A shortage: the report is made, the observer may help, and else the call fails with the report's cause in its message and the best remedy as its hint. */
#include "core/oom.h"
#include "core/offload.h"

#include <stdio.h>

gt_status gt__oom_create(gt_context *ctx) {
    ctx->oom = gt__calloc(1, sizeof *ctx->oom);
    return ctx->oom ? GT_OK : GT_OUT_OF_HOST_MEMORY;
}

void gt__oom_destroy(gt_context *ctx) {
    gt__free(ctx->oom);
    ctx->oom = NULL;
}

/* "parameters 1.0 MiB, user tensors 60.0 MiB" */
static const char *use_text(const gt_oom_report *report, char *buffer, size_t size) {
    size_t at = 0;
    buffer[0] = '\0';
    for (int32_t c = 0; c < GT_MEMORY_CATEGORY_COUNT && at < size; ++c) {
        char bytes[GT__BYTES_TEXT];
        if (report->category_in_use[c] == 0) continue;
        at += (size_t)snprintf(buffer + at, size - at, "%s%s %s", at ? ", " : "", gt_memory_category_name(c),
                               gt__bytes_text(report->category_in_use[c], bytes));
    }
    return buffer;
}

static void raise(const gt_oom_report *r) {
    char who[256], cause[320], use[320], hint[320], asked[GT__BYTES_TEXT], in_use[GT__BYTES_TEXT], reserved[GT__BYTES_TEXT],
        limit[GT__BYTES_TEXT], device_free[GT__BYTES_TEXT], total[GT__BYTES_TEXT], frees[GT__BYTES_TEXT];
    (void)gt__report_who(r->op, r->module, who, sizeof who);
    if (r->cause == GT_OOM_HOST) {
        (void)GT_RAISE(GT_OUT_OF_HOST_MEMORY, "%s: the host could not give the memory for the books of an allocation of %s", who,
                       gt__bytes_text(r->requested, asked));
        return;
    }
    const gt_oom_remedy *best = gt__report_best(r);
    hint[0] = '\0';
    if (best)
        (void)snprintf(hint, sizeof hint, "%s: %s about %s; gt_memory_last_oom has all", best->subject,
                       best->kind == GT_OOM_REMEDY_RAISE_LIMIT ? "adds" : "frees", gt__bytes_text(best->bytes, frees));
    (void)GT_RAISE_HINT(
        GT_OUT_OF_MEMORY, hint, "%s: %s (%llu bytes) asked, %s: %s; %s in use (%s), %s reserved, %s%s, device has %s of %s free", who,
        gt__bytes_text(r->requested, asked), (unsigned long long)r->requested, gt_oom_cause_name(r->cause),
        gt__report_cause_text(r, cause, sizeof cause), gt__bytes_text(r->in_use, in_use), use_text(r, use, sizeof use),
        gt__bytes_text(r->reserved, reserved), r->limit ? "limit " : "no limit set", r->limit ? gt__bytes_text(r->limit, limit) : "",
        gt__bytes_text(r->device_free, device_free), gt__bytes_text(r->device_total, total));
}

/* What an observer can change that makes another try worth it. */
typedef struct room {
    uint64_t in_use, limit, device_free;
} room;

static room room_of(const gt_context *ctx) {
    gt_memory_stats stats = {.struct_size = sizeof stats};
    gt__allocator_stats(ctx->allocator, &stats);
    room r = {.in_use = stats.in_use, .limit = gt__allocator_limit(ctx->allocator)};
    uint64_t total;
    if (ctx->backend->memory_info(ctx->device, &r.device_free, &total) != GT_OK) r.device_free = 0;
    return r;
}

/* Where the limit is in the way, more of the device changes nothing. */
static bool more_room(const gt_oom_report *report, room before, room after) {
    bool raised = before.limit != 0 && (after.limit == 0 || after.limit > before.limit);
    bool by_device = gt__report_room(report) == report->device_free && after.device_free > before.device_free;
    return raised || after.in_use < before.in_use || by_device;
}

/* Does the observer ask for another try, with reason? */
static bool ask_observer(gt_context *ctx) {
    gt__oom *oom = ctx->oom;
    if (oom->observer == NULL) return false;
    int32_t previous = gt__enter(ctx);
    room before = room_of(ctx);
    gt__leave(ctx, previous);
    if (oom->observer(oom->user, ctx, &oom->last) == 0) return false;
    previous = gt__enter(ctx);
    room after = room_of(ctx);
    gt__leave(ctx, previous);
    return more_room(&oom->last, before, after);
}

bool gt__oom_shortage(void *user, const gt__shortage *shortage) {
    gt_context *ctx = user;
    gt__oom *oom = ctx->oom;
    if (!shortage->host && gt__offload_relieve(ctx)) return true;
    bool clean = gt_last_error()->status == GT_OK;
    gt__report_facts facts = {.shortage = shortage};
    gt__oom_facts(ctx, &facts);
    oom->last.struct_size = sizeof oom->last;
    gt__report_make(ctx->allocator, &facts, &oom->last);
    oom->has_last = true;
    if (ask_observer(ctx)) {
        if (clean) gt_clear_error(); /* the call has not failed */
        return true;
    }
    raise(&oom->last);
    return false;
}

/* --- the public side ------------------------------------------------------------------------------------------------------------------- */

static gt_status check_report(const gt_oom_report *report, const char *who) {
    GT_REQUIRE(report->struct_size >= sizeof report->struct_size, GT_BAD_ABI,
               "%s: struct_size is %u; fill the struct with gt_oom_report_init first", who, (unsigned)report->struct_size);
    return GT_OK;
}

static void hand_out(const gt_oom_report *from, gt_oom_report *to) {
    uint32_t size = to->struct_size;
    memcpy(to, from, GT__MIN((size_t)size, sizeof *from));
    to->struct_size = size;
}

gt_status gt_memory_last_oom(const gt_context *ctx, gt_oom_report *report) {
    GT_REQUIRE_HANDLE(ctx);
    GT_REQUIRE_HANDLE(report);
    GT_TRY(check_report(report, "gt_memory_last_oom"));
    GT_REQUIRE(ctx->oom->has_last, GT_NOT_FOUND, "gt_memory_last_oom: no request of this context has failed");
    hand_out(&ctx->oom->last, report);
    return GT_OK;
}

gt_status gt_memory_report(gt_context *ctx, gt_oom_report *report) {
    GT_REQUIRE_HANDLE(ctx);
    GT_REQUIRE_HANDLE(report);
    GT_TRY(check_report(report, "gt_memory_report"));
    gt_oom_report *ours = gt__calloc(1, sizeof *ours);
    if (ours == NULL) return GT_OUT_OF_HOST_MEMORY;
    bool clean = gt_last_error()->status == GT_OK;
    gt__report_facts facts = {0};
    gt__dropped_release(ctx);
    gt__oom_facts(ctx, &facts);
    gt__report_make(ctx->allocator, &facts, ours);
    if (clean) gt_clear_error(); /* what could not be found out is left out */
    hand_out(ours, report);
    gt__free(ours);
    return GT_OK;
}

gt_status gt_memory_set_oom_observer(gt_context *ctx, gt_memory_oom_fn fn, void *user) {
    GT_REQUIRE_HANDLE(ctx);
    ctx->oom->observer = fn;
    ctx->oom->user = user;
    return GT_OK;
}
