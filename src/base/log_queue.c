/* Messages that wait for the program to fetch them. Putting one in takes no memory and so cannot fail: a log function may not touch the
 * error record of the call that it is in the middle of. */
#include "base/host.h"
#include <gtrain/context.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

enum { MESSAGES = 64 };

struct gt_log_queue {
    _Atomic int32_t count; /* read by the program without the lock */
    int32_t first;
    int32_t lost;
    gt_log_level levels[MESSAGES];
    char texts[MESSAGES][GT_LOG_TEXT_MAX];
    pthread_mutex_t lock;
};

gt_status gt_log_queue_create(gt_log_queue **queue) {
    GT_REQUIRE(queue != NULL, GT_BAD_ARGUMENT, "gt_log_queue_create: queue is NULL");
    gt_log_queue *made = gt__calloc(1, sizeof *made);
    if (made == NULL) return GT_OUT_OF_HOST_MEMORY;
    (void)pthread_mutex_init(&made->lock, NULL);
    *queue = made;
    return GT_OK;
}

void gt_log_queue_destroy(gt_log_queue *queue) {
    if (queue == NULL) return;
    (void)pthread_mutex_destroy(&queue->lock);
    gt__free(queue);
}

void gt_log_queue_put(void *user, gt_log_level level, const char *text) {
    gt_log_queue *queue = user;
    if (queue == NULL || text == NULL) return;
    (void)pthread_mutex_lock(&queue->lock);
    int32_t count = atomic_load(&queue->count);
    if (count == MESSAGES) {
        queue->lost++;
    } else {
        int32_t slot = (queue->first + count) % MESSAGES;
        queue->levels[slot] = level;
        (void)snprintf(queue->texts[slot], sizeof queue->texts[slot], "%s", text);
        atomic_store(&queue->count, count + 1);
    }
    (void)pthread_mutex_unlock(&queue->lock);
}

const int32_t *gt_log_queue_count(const gt_log_queue *queue) { return queue ? (const int32_t *)&queue->count : NULL; }

int32_t gt_log_queue_take(gt_log_queue *queue, gt_log_level *level, char *text, size_t size) {
    if (queue == NULL || level == NULL || text == NULL || size == 0) return 0;
    (void)pthread_mutex_lock(&queue->lock);
    int32_t count = atomic_load(&queue->count), taken = 1;
    if (count > 0) {
        *level = queue->levels[queue->first];
        (void)snprintf(text, size, "%s", queue->texts[queue->first]);
        queue->first = (queue->first + 1) % MESSAGES;
        atomic_store(&queue->count, count - 1);
    } else if (queue->lost > 0) {
        *level = GT_LOG_WARNING;
        (void)snprintf(text, size, "%d further messages were lost", (int)queue->lost);
        queue->lost = 0;
    } else {
        taken = 0;
    }
    (void)pthread_mutex_unlock(&queue->lock);
    return taken;
}
