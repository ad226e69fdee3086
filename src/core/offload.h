/* Offload (gt_offload_begin): memory that only records hold moves to pinned host memory, and back ahead of its use in backward.
 *
 * It is done to storages. gt__save marks the storage of what it saves in a region with a parcel; when the last handle that is not a record's goes, a copy to
 * the host is queued on the copy stream, behind the work that the compute stream has so far. The device block is freed once the copy has run: asked, never
 * waited for; where too many bytes are on their way, the compute stream is made to wait for the oldest copy. Backward fetches a parcel when it unpacks what
 * it saved, and starts the copies of the next older ones. A storage moves once: what backward has looked at stays.
 *
 * Handles keep the address that they had; since only records hold the storage meanwhile, unpacking is the one place that must put it right. */
#ifndef GT_CORE_OFFLOAD_H
#define GT_CORE_OFFLOAD_H

#include "core/core.h"
#include <gtrain/checkpoint.h>

/* `saved` is a record's new handle of a storage. Marks the storage if a region is open. Never fails: what cannot be marked stays on the device. */
void gt__offload_saved(gt_tensor *saved);
/* Only records hold the storage now; it has a parcel. */
void gt__offload_idle(gt__storage *storage);
/* Before a record's handle is used: its memory is there for the compute stream. */
gt_status gt__offload_fetch(gt_tensor *saved);
/* The storage is about to be freed; it has a parcel. */
void gt__offload_forget(gt__storage *storage);
/* Frees device memory that has been copied or can be fetched later. False: there was none. */
bool gt__offload_relieve(gt_context *ctx);
bool gt__offload_is_on(const gt_context *ctx); /* in a region */
int32_t gt__offload_depth(const gt_context *ctx);
void gt__offload_set_depth(gt_context *ctx, int32_t depth); /* back to what it was */
void gt__offload_trim(gt_context *ctx);        /* gives unused host buffers back; the caller has waited */
void gt__offload_stop(gt_context *ctx);        /* nothing leaves any more: the context is being destroyed */
void gt__offload_free(gt_context *ctx);        /* the same for all, after the last storage is gone */

#endif
