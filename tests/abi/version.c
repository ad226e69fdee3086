#include "harness/test.h"

#include <stdio.h>

TEST(abi, version_of_the_library_is_that_of_its_headers) {
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", GT_VERSION_MAJOR, GT_VERSION_MINOR, GT_VERSION_PATCH);
    CHECK_EQ_INT(gt_version_number(), GT_VERSION_NUMBER);
    CHECK_EQ_STR(gt_version_string(), text);
}

TEST(abi, status_names_are_those_of_the_constants) {
#define CHECK_NAME(name, value, words)                                                                                                     \
    CHECK_EQ_INT(GT_##name, value);                                                                                                        \
    CHECK_EQ_STR(gt_status_name(GT_##name), "GT_" #name);                                                                                  \
    CHECK_EQ_STR(gt_status_text(GT_##name), words);
    GT_STATUS_LIST(CHECK_NAME)
#undef CHECK_NAME
    CHECK_EQ_STR(gt_status_name(-1), "GT_UNKNOWN");
    CHECK_EQ_STR(gt_status_name(1000), "GT_UNKNOWN");
    CHECK(gt_status_text(1000) != NULL);
}

TEST(abi, status_values_are_consecutive_and_unique) {
    int expected = 0;
#define CHECK_VALUE(name, value, words) CHECK_EQ_INT(value, expected++);
    GT_STATUS_LIST(CHECK_VALUE)
#undef CHECK_VALUE
}
