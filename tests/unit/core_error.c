#include "harness/test.h"

#include <gtrain/gtrain.h>
#include <pthread.h>
#include <stdio.h>

TEST(unit, status_names_cover_the_whole_list) {
#define CHECK_NAME(name, value, text)                                                                                                      \
    CHECK_EQ_STR(gt_status_name(GT_##name), "GT_" #name);                                                                                  \
    CHECK_EQ_STR(gt_status_text(GT_##name), text);                                                                                         \
    CHECK_EQ_INT(GT_##name, value);
    GT_STATUS_LIST(CHECK_NAME)
    CHECK_EQ_STR(gt_status_name(-1), "GT_UNKNOWN");
    CHECK_EQ_STR(gt_status_name(100000), "GT_UNKNOWN");
}

TEST(unit, last_error_is_never_null_and_can_be_cleared) {
    gt_clear_error();
    CHECK(gt_last_error() != NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_OK);
    CHECK_EQ_STR(gt_last_error()->message, "");
    CHECK_STATUS(gt_context_synchronize(NULL), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("gt_context_synchronize: ctx is NULL");
    CHECK(gt_last_error()->line > 0);
    gt_clear_error();
    CHECK_EQ_INT(gt_last_error()->status, GT_OK);
}

TEST_DEVICES(unit, null_in_null_out_keeps_the_first_error) {
    gt_context *ctx = test_context(t);
    CHECK_OK(gt_scope_begin(ctx));
    const int64_t two[1] = {2}, three[1] = {3};
    gt_tensor *a = CHECK_TENSOR(gt_tensor_zeros(ctx, GT_DTYPE_F32, 1, two));
    gt_tensor *b = CHECK_TENSOR(gt_tensor_zeros(ctx, GT_DTYPE_F32, 1, three));
    gt_tensor *bad = gt_add(a, b);
    CHECK(bad == NULL);
    CHECK(gt_relu(gt_mul(bad, b)) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_BAD_SHAPE);
    CHECK_ERROR_HAS("add");
    CHECK_STATUS(gt_backward(gt_relu(bad)), GT_BAD_SHAPE);
    CHECK_OK(gt_scope_end(ctx));
}

static void *fails_elsewhere(void *argument) {
    gt_clear_error();
    (void)gt_scope_end(NULL);
    *(gt_status *)argument = gt_last_error()->status;
    return NULL;
}

TEST(contract, E3_error_records_are_per_thread) {
    gt_clear_error();
    (void)gt_tensor_empty(NULL, GT_DTYPE_F32, 0, NULL);
    const char *message = gt_last_error()->message;
    char copy[256];
    strncpy(copy, message, sizeof copy - 1);
    copy[sizeof copy - 1] = '\0';
    pthread_t thread;
    gt_status other = GT_OK;
    CHECK(pthread_create(&thread, NULL, fails_elsewhere, &other) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK_EQ_INT(other, GT_BAD_ARGUMENT);
    CHECK_EQ_STR(gt_last_error()->message, copy);
}

TEST(unit, log_queue_keeps_messages_in_order_and_counts_what_is_lost) {
    gt_log_queue *queue;
    CHECK_OK(gt_log_queue_create(&queue));
    const int32_t *count = gt_log_queue_count(queue);
    gt_log_level level = -1;
    char text[GT_LOG_TEXT_MAX];
    CHECK_EQ_INT(gt_log_queue_take(queue, &level, text, sizeof text), 0);
    for (int round = 0; round < 3; ++round) {
        for (int i = 0; i < 70; ++i) {
            (void)snprintf(text, sizeof text, "message %d", i);
            gt_log_queue_put(queue, i % 2 ? GT_LOG_INFO : GT_LOG_ERROR, text);
        }
        CHECK_EQ_INT(*count, 64);
        for (int i = 0; i < 64; ++i) {
            char expected[32];
            (void)snprintf(expected, sizeof expected, "message %d", i);
            CHECK_EQ_INT(gt_log_queue_take(queue, &level, text, sizeof text), 1);
            CHECK_EQ_STR(text, expected);
            CHECK_EQ_INT(level, i % 2 ? GT_LOG_INFO : GT_LOG_ERROR);
        }
        CHECK_EQ_INT(*count, 0);
        CHECK_EQ_INT(gt_log_queue_take(queue, &level, text, sizeof text), 1);
        CHECK_EQ_STR(text, "6 further messages were lost");
        CHECK_EQ_INT(gt_log_queue_take(queue, &level, text, sizeof text), 0);
    }
    gt_log_queue_put(queue, GT_LOG_INFO, "cut here");
    CHECK_EQ_INT(gt_log_queue_take(queue, &level, text, 4), 1);
    CHECK_EQ_STR(text, "cut");
    CHECK_EQ_INT(gt_log_queue_take(queue, NULL, text, 4), 0);
    gt_log_queue_put(NULL, GT_LOG_INFO, "nowhere");
    gt_log_queue_destroy(queue);
    gt_log_queue_destroy(NULL);
    CHECK_STATUS(gt_log_queue_create(NULL), GT_BAD_ARGUMENT);
}
