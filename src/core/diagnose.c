/* Finding the op that overflowed first. Each result is looked through on the device; the least mark of one that is not finite stays in a cell there, which is
 * read when somebody asks. A mark is the call's number since the window began, and below it the place in the program: places are few and are kept, so
 * that a mark still tells what it was many windows later. */
#include "core/core.h"

static gt_status find_site(gt__diagnosis *d, const gt__op_site *site, int32_t *index) {
    for (int32_t k = 0; k < d->n_sites; ++k) { /* steps repeat: it is nearly always the one after the last */
        int32_t at = (d->next_site + k) % d->n_sites;
        const gt__op_site *s = &d->sites[at];
        if (s->op != site->op || s->module != site->module || s->backward != site->backward) continue;
        *index = at;
        d->next_site = at + 1;
        return GT_OK;
    }
    if (d->n_sites == d->cap_sites) {
        int32_t capacity = GT__MAX(d->cap_sites * 2, 64);
        gt__op_site *grown = gt__realloc(d->sites, (size_t)capacity * sizeof *grown);
        if (grown == NULL) return GT_OUT_OF_HOST_MEMORY;
        d->sites = grown;
        d->cap_sites = capacity;
    }
    *index = d->n_sites;
    d->sites[d->n_sites++] = *site;
    d->next_site = d->n_sites;
    return GT_OK;
}

gt_status gt__diagnose(const gt__call *call) {
    gt_context *ctx = call->ctx;
    gt__diagnosis *d = ctx->diagnosis;
    const gt__op_site site = {.module = ctx->module_path, .op = call->op, .backward = ctx->in_backward};
    int32_t index = 0;
    GT_TRY(find_site(d, &site, &index));
    uint64_t mark = (uint64_t)d->calls++ << 32 | (uint32_t)index;
    for (int32_t k = 0; k < call->n_out; ++k) {
        const gt_tensor *out = call->out[k];
        if (out == NULL || out->meta.numel == 0 || !gt__dtype_is_float(out->meta.dtype) || !gt__meta_is_dense(&out->meta)) continue;
        int32_t previous = gt__enter(ctx);
        gt_status status = ctx->backend->mark_not_finite(ctx->device, out->data, out->meta.dtype, out->meta.numel, mark, d->least);
        gt__leave(ctx, previous);
        GT_TRY(status);
    }
    return GT_OK;
}

const gt__op_site *gt__diagnosis_site(const gt__diagnosis *diagnosis, uint64_t mark) {
    uint32_t index = (uint32_t)mark;
    return mark != UINT64_MAX && index < (uint32_t)diagnosis->n_sites ? &diagnosis->sites[index] : NULL;
}
