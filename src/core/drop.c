/* Handles that any thread lets go of. They wait in a list until the context's own thread comes by: before it computes or makes a tensor, so that their memory is
 * free as soon as anything could want it. */
#include "core/core.h"

#include <pthread.h>

/* Guards gt_tensor.ctx against a context that is being destroyed, and the lists. Held for a few instructions. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void gt_tensor_drop(gt_tensor *tensor) {
    if (tensor == NULL) return;
    (void)pthread_mutex_lock(&lock);
    gt_context *ctx = tensor->ctx;
    if (ctx == NULL) {
        gt_tensor_release(tensor);     /* touches nothing but the handle */
    } else if (tensor->drops++ == 0) { /* two owners of one handle may drop it at once */
        tensor->drop_next = atomic_load_explicit(&ctx->dropped, memory_order_relaxed);
        atomic_store_explicit(&ctx->dropped, tensor, memory_order_release);
    }
    (void)pthread_mutex_unlock(&lock);
}

void gt__dropped_release_all(gt_context *ctx) {
    (void)pthread_mutex_lock(&lock);
    gt_tensor *list = atomic_exchange_explicit(&ctx->dropped, NULL, memory_order_acquire);
    (void)pthread_mutex_unlock(&lock);
    while (list != NULL) {
        gt_tensor *t = list;
        (void)pthread_mutex_lock(&lock);
        uint32_t drops = t->drops;
        list = t->drop_next;
        t->drops = 0;
        t->drop_next = NULL;
        (void)pthread_mutex_unlock(&lock);
        while (drops-- > 0) gt_tensor_release(t);
    }
}

void gt__tensor_release_orphan(gt_tensor *tensor) {
    (void)pthread_mutex_lock(&lock);
    tensor->ctx = NULL;
    gt_tensor_release(tensor); /* another thread may drop it at once */
    (void)pthread_mutex_unlock(&lock);
}
