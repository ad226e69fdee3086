#include "core/offload.h"

#include <stdio.h>

#define MIB          ((size_t)1 << 20)
#define LEAVING_MOST (256 * MIB) /* device bytes that may wait for copies to the host */
#define AHEAD        2           /* parcels that are fetched ahead of their use */
#define AHEAD_LOOK   16          /* how far to look for them among those that never left */
#define REGION_DEPTH 64

/* Pinned host memory. All copies to and from it are on the copy stream, so that it can be used again at once. */
typedef struct buffer {
    void *data;
    size_t bytes;
    gt__event *event; /* after the last copy */
    struct buffer *next;
} buffer;

typedef enum place {
    HERE,     /* on the device, has not left yet */
    LEAVING,  /* being copied to the host; still on the device */
    AWAY,     /* on the host alone */
    ARRIVING, /* being copied back, not awaited by the compute stream yet; the host's copy is still there */
    BACK      /* on the device for good */
} place;

typedef struct gt__parcel {
    gt__storage *storage;
    const char *module;
    buffer *host;                     /* LEAVING to ARRIVING; BACK: the copy out may still be running, with this event */
    char *was;                        /* address before it left */
    struct gt__parcel *older, *newer; /* in the order in which they were saved */
    struct gt__parcel *next_leaving;
    place place;
    bool moved; /* the address is another one than `was` */
} parcel;

typedef struct gt__offload {
    uint64_t regions[REGION_DEPTH]; /* smallest tensors, in bytes */
    int32_t n_regions;
    parcel *newest;
    parcel *leaving_first, *leaving_last;
    size_t leaving_bytes;
    gt__event *fence; /* marks where the compute stream is */
    buffer *unused;
    bool closing;                             /* the context is being destroyed */
    size_t host_bytes, used_bytes, used_most; /* of all buffers, of those in use, the most of these at once */
} offload;

/* --- regions ----------------------------------------------------------------------------------------------------------------------------- */

gt_status gt_offload_begin(gt_context *ctx, uint64_t min_bytes) {
    GT_REQUIRE_HANDLE(ctx);
    if (ctx->offload == NULL) {
        ctx->offload = gt__calloc(1, sizeof *ctx->offload);
        if (ctx->offload == NULL) return GT_OUT_OF_HOST_MEMORY;
    }
    offload *o = ctx->offload;
    GT_REQUIRE(o->n_regions < REGION_DEPTH, GT_BAD_STATE, "gt_offload_begin: %d regions are open already; is a gt_offload_end missing?",
               REGION_DEPTH);
    o->regions[o->n_regions++] = min_bytes;
    return GT_OK;
}

gt_status gt_offload_end(gt_context *ctx) {
    GT_REQUIRE_HANDLE(ctx);
    GT_REQUIRE(gt__offload_is_on(ctx), GT_BAD_STATE, "gt_offload_end: no region is open");
    ctx->offload->n_regions--;
    return GT_OK;
}

int32_t gt__offload_depth(const gt_context *ctx) { return ctx->offload ? ctx->offload->n_regions : 0; }

void gt__offload_set_depth(gt_context *ctx, int32_t depth) {
    if (ctx->offload) ctx->offload->n_regions = depth;
}

bool gt__offload_is_on(const gt_context *ctx) { return gt__offload_depth(ctx) > 0; }

/* --- the error record: what happens behind the caller's back must not be seen there ----------------------------------------------------- */

typedef struct kept_error {
    gt_error record;
    char message[1024], hint[512];
} kept_error;

static void error_keep(kept_error *kept) {
    kept->record = *gt_last_error();
    if (kept->record.status == GT_OK) return;
    (void)snprintf(kept->message, sizeof kept->message, "%s", kept->record.message);
    (void)snprintf(kept->hint, sizeof kept->hint, "%s", kept->record.hint);
}

static void error_put_back(const kept_error *kept) {
    gt_clear_error();
    if (kept->record.status == GT_OK) return;
    (void)gt__error_raise(kept->record.status, kept->record.file, kept->record.line, kept->record.native_code, kept->record.native_name,
                          kept->hint, "%s", kept->message);
}

/* --- host buffers ------------------------------------------------------------------------------------------------------------------------ */

static bool has_run(gt_context *ctx, gt__event *event) {
    int32_t done = 0;
    return ctx->backend->event_query && ctx->backend->event_query(ctx->device, event, &done) == GT_OK && done;
}

static void buffer_free(gt_context *ctx, buffer *b) {
    ctx->offload->host_bytes -= b->bytes;
    ctx->backend->host_free(ctx->device, b->data);
    ctx->backend->event_destroy(ctx->device, b->event);
    gt__free(b);
}

/* Gives unused buffers back until no more than `most` bytes are left in all; those that a copy still works on only if the caller has waited. */
static void buffers_shrink(gt_context *ctx, size_t most, bool waited) {
    offload *o = ctx->offload;
    for (buffer **at = &o->unused; *at && o->host_bytes > most;) {
        buffer *b = *at;
        if (!waited && !has_run(ctx, b->event)) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        buffer_free(ctx, b);
    }
}

static buffer *buffer_new(gt_context *ctx, size_t bytes) {
    buffer *b = gt__calloc(1, sizeof *b);
    if (b == NULL) return NULL;
    b->bytes = bytes;
    if (ctx->backend->event_create(ctx->device, &b->event) != GT_OK) {
        gt__free(b);
        return NULL;
    }
    gt_status status = ctx->backend->host_alloc(ctx->device, bytes, &b->data);
    if (status != GT_OK) { /* the host is short: unused buffers of other sizes are the first to go */
        buffers_shrink(ctx, 0, false);
        status = ctx->backend->host_alloc(ctx->device, bytes, &b->data);
    }
    if (status != GT_OK) {
        ctx->backend->event_destroy(ctx->device, b->event);
        gt__free(b);
        return NULL;
    }
    ctx->offload->host_bytes += bytes;
    return b;
}

/* Where the same is saved in every step, the buffers of the last step serve the next. All of them are at most half again what was in use at once. */
static buffer *buffer_take(gt_context *ctx, size_t bytes) {
    offload *o = ctx->offload;
    buffer **best = NULL;
    for (buffer **at = &o->unused; *at; at = &(*at)->next) {
        size_t have = (*at)->bytes;
        if (have < bytes || have - bytes > bytes / 4) continue;
        if (best == NULL || have < (*best)->bytes) best = at;
        if (have == bytes) break;
    }
    buffer *b;
    if (best) {
        b = *best;
        *best = b->next;
    } else {
        size_t most = GT__MAX(o->used_most, o->used_bytes + bytes) / 2 * 3;
        buffers_shrink(ctx, most > bytes ? most - bytes : 0, false);
        b = buffer_new(ctx, bytes);
        if (b == NULL) return NULL;
    }
    b->next = NULL;
    o->used_bytes += b->bytes;
    o->used_most = GT__MAX(o->used_most, o->used_bytes);
    return b;
}

static void buffer_return(gt_context *ctx, parcel *p) {
    buffer *b = p->host;
    p->host = NULL;
    if (b == NULL) return;
    ctx->offload->used_bytes -= b->bytes;
    b->next = ctx->offload->unused;
    ctx->offload->unused = b;
}

/* --- leaving ----------------------------------------------------------------------------------------------------------------------------- */

static void unlink_leaving(offload *o, parcel *p) {
    parcel *before = NULL;
    for (parcel *q = o->leaving_first; q != p; q = q->next_leaving) before = q;
    if (before)
        before->next_leaving = p->next_leaving;
    else
        o->leaving_first = p->next_leaving;
    if (o->leaving_last == p) o->leaving_last = before;
    p->next_leaving = NULL;
    o->leaving_bytes -= p->storage->bytes;
}

static void block_free(parcel *p) {
    gt__storage *storage = p->storage;
    gt__allocator_free(storage->ctx->allocator, storage->block);
    storage->block = NULL;
    storage->data = NULL;
    p->moved = true;
}

/* The oldest copy has run, or the compute stream waits for it: whoever gets the block comes later. */
static void retire_oldest(offload *o) {
    parcel *p = o->leaving_first;
    unlink_leaving(o, p);
    block_free(p);
    p->place = AWAY;
}

static void retire_finished(gt_context *ctx) {
    offload *o = ctx->offload;
    while (o->leaving_first && has_run(ctx, o->leaving_first->host->event)) retire_oldest(o);
}

/* Down to `most` bytes. */
static bool retire_waiting(gt_context *ctx, size_t most) {
    offload *o = ctx->offload;
    bool any = false;
    while (o->leaving_first && o->leaving_bytes > most) {
        if (ctx->backend->event_wait_stream(ctx->device, o->leaving_first->host->event, GT__STREAM_COMPUTE) != GT_OK) break;
        retire_oldest(o);
        any = true;
    }
    return any;
}

/* What the copy stream is given from here on comes after all that the compute stream has now. */
static gt_status copy_after_compute(gt_context *ctx) {
    offload *o = ctx->offload;
    const gt__backend *b = ctx->backend;
    if (o->fence == NULL) GT_TRY(b->event_create(ctx->device, &o->fence));
    GT_TRY(b->event_record(ctx->device, o->fence, GT__STREAM_COMPUTE));
    return b->event_wait_stream(ctx->device, o->fence, GT__STREAM_COPY);
}

static gt_status copy_out(gt_context *ctx, const gt__storage *storage, buffer *to) {
    GT_TRY(copy_after_compute(ctx));
    GT_TRY(ctx->backend->copy(ctx->device, GT__STREAM_COPY, GT__COPY_DEVICE_TO_HOST, to->data, storage->data, storage->bytes));
    return ctx->backend->event_record(ctx->device, to->event, GT__STREAM_COPY);
}

static void leave(gt_context *ctx, parcel *p) {
    offload *o = ctx->offload;
    p->place = BACK; /* unless all goes well; it is not tried again */
    retire_finished(ctx);
    p->host = buffer_take(ctx, p->storage->bytes);
    if (p->host == NULL) return;
    if (copy_out(ctx, p->storage, p->host) != GT_OK) {
        buffer_return(ctx, p);
        return;
    }
    p->was = p->storage->data;
    p->place = LEAVING;
    if (o->leaving_last)
        o->leaving_last->next_leaving = p;
    else
        o->leaving_first = p;
    o->leaving_last = p;
    o->leaving_bytes += p->storage->bytes;
    retire_finished(ctx);
    (void)retire_waiting(ctx, ctx->backend->event_query ? LEAVING_MOST : 0);
}

void gt__offload_idle(gt__storage *storage) {
    if (storage->parcel->place != HERE || storage->ctx->offload->closing) return;
    kept_error kept;
    error_keep(&kept);
    int32_t previous = gt__enter(storage->ctx);
    leave(storage->ctx, storage->parcel);
    gt__leave(storage->ctx, previous);
    error_put_back(&kept);
}

/* --- arriving ---------------------------------------------------------------------------------------------------------------------------- */

static gt_status block_new(gt_context *ctx, parcel *p, bool quiet) {
    gt__storage *storage = p->storage;
    const gt__tag tag = {.op = "offload", .module = p->module, .ndim = -1, .category = GT_MEMORY_ACTIVATION};
    GT_TRY(gt__allocator_alloc(ctx->allocator, storage->bytes, &tag, quiet, &storage->block));
    storage->data = gt__block_data(storage->block);
    return GT_OK;
}

/* AWAY to ARRIVING. */
static gt_status arrive(gt_context *ctx, parcel *p, bool quiet) {
    const gt__backend *b = ctx->backend;
    gt__storage *storage = p->storage;
    GT_TRY(block_new(ctx, p, quiet));
    gt_status status = copy_after_compute(ctx);
    if (status == GT_OK)
        status = b->copy(ctx->device, GT__STREAM_COPY, GT__COPY_HOST_TO_DEVICE, storage->data, p->host->data, storage->bytes);
    if (status == GT_OK) status = b->event_record(ctx->device, p->host->event, GT__STREAM_COPY);
    if (status != GT_OK) {
        block_free(p);
        return status;
    }
    p->place = ARRIVING;
    return GT_OK;
}

/* Any place to BACK. */
static gt_status bring_back(gt_context *ctx, parcel *p) {
    if (p->place == AWAY) {
        gt_status status = arrive(ctx, p, true);
        if (status == GT_OUT_OF_MEMORY) {
            (void)gt__offload_relieve(ctx);
            status = arrive(ctx, p, false);
        }
        GT_TRY(status);
    }
    if (p->place == ARRIVING) {
        GT_TRY(ctx->backend->event_wait_stream(ctx->device, p->host->event, GT__STREAM_COMPUTE));
        buffer_return(ctx, p);
    }
    if (p->place == LEAVING) unlink_leaving(ctx->offload, p);
    p->place = BACK;
    return GT_OK;
}

static void fetch_ahead(gt_context *ctx, parcel *p) {
    int32_t ahead = 0, looks = 0;
    for (p = p->older; p && ahead < AHEAD && looks < AHEAD_LOOK; p = p->older, ++looks) {
        if (p->place == AWAY && arrive(ctx, p, true) != GT_OK) return;
        if (p->place == ARRIVING) ++ahead;
        if (p->place == LEAVING) {
            unlink_leaving(ctx->offload, p);
            p->place = BACK;
        }
    }
}

gt_status gt__offload_fetch(gt_tensor *saved) {
    gt__storage *storage = saved->storage;
    gt_context *ctx = storage->ctx;
    parcel *p = storage->parcel;
    if (p->place != BACK) {
        int32_t previous = gt__enter(ctx);
        gt_status status = bring_back(ctx, p);
        if (status == GT_OK) {
            kept_error kept;
            error_keep(&kept);
            fetch_ahead(ctx, p);
            error_put_back(&kept);
        }
        gt__leave(ctx, previous);
        GT_TRY(status);
    }
    if (p->moved && saved->saved == GT__SAVED_STALE) {
        saved->data = saved->data ? (char *)storage->data + ((char *)saved->data - p->was) : NULL;
        saved->saved = GT__SAVED;
    }
    return GT_OK;
}

/* --- marking and forgetting -------------------------------------------------------------------------------------------------------------- */

void gt__offload_saved(gt_tensor *saved) {
    gt__storage *storage = saved->storage;
    gt_context *ctx = storage->ctx;
    saved->saved = storage->parcel && storage->parcel->moved ? GT__SAVED : GT__SAVED_STALE;
    storage->saved++;
    if (!gt__offload_is_on(ctx) || storage->parcel || storage->block == NULL) return;
    offload *o = ctx->offload;
    if (gt_tensor_bytes(saved) < GT__MAX(o->regions[o->n_regions - 1], 1)) return;
    if (gt__block_category(storage->block) == GT_MEMORY_PARAMETER) return;
    kept_error kept;
    error_keep(&kept);
    parcel *p = gt__calloc(1, sizeof *p);
    if (p == NULL) {
        error_put_back(&kept);
        return;
    }
    p->storage = storage;
    p->module = ctx->module_path;
    p->older = o->newest;
    if (p->older) p->older->newer = p;
    o->newest = p;
    storage->parcel = p;
}

void gt__offload_forget(gt__storage *storage) {
    parcel *p = storage->parcel;
    gt_context *ctx = storage->ctx;
    offload *o = ctx->offload;
    if (p->place == LEAVING) unlink_leaving(o, p);
    if (p->host && storage->block) { /* a copy may still use the block */
        kept_error kept;
        error_keep(&kept);
        int32_t previous = gt__enter(ctx);
        if (!has_run(ctx, p->host->event)) (void)ctx->backend->event_wait_stream(ctx->device, p->host->event, GT__STREAM_COMPUTE);
        gt__leave(ctx, previous);
        error_put_back(&kept);
    }
    buffer_return(ctx, p);
    if (p->older) p->older->newer = p->newer;
    if (p->newer)
        p->newer->older = p->older;
    else
        o->newest = p->older;
    gt__free(p);
    storage->parcel = NULL;
}

/* --- pressure ---------------------------------------------------------------------------------------------------------------------------- */

bool gt__offload_relieve(gt_context *ctx) {
    offload *o = ctx->offload;
    if (o == NULL) return false;
    kept_error kept;
    error_keep(&kept);
    int32_t previous = gt__enter(ctx);
    bool any = retire_waiting(ctx, 0);
    for (parcel *p = o->newest; p; p = p->older) { /* what was fetched too early */
        if (p->place != ARRIVING) continue;
        if (ctx->backend->event_wait_stream(ctx->device, p->host->event, GT__STREAM_COMPUTE) != GT_OK) break;
        block_free(p);
        p->place = AWAY;
        any = true;
    }
    gt__leave(ctx, previous);
    error_put_back(&kept);
    return any;
}

void gt__offload_stop(gt_context *ctx) {
    if (ctx->offload) ctx->offload->closing = true;
}

void gt__offload_trim(gt_context *ctx) {
    if (ctx->offload == NULL) return;
    int32_t previous = gt__enter(ctx);
    buffers_shrink(ctx, 0, true);
    ctx->offload->used_most = ctx->offload->used_bytes;
    gt__leave(ctx, previous);
}

void gt__offload_free(gt_context *ctx) {
    if (ctx->offload == NULL) return;
    gt__offload_trim(ctx);
    if (ctx->offload->fence) ctx->backend->event_destroy(ctx->device, ctx->offload->fence);
    gt__free(ctx->offload);
    ctx->offload = NULL;
}
