/* Stand-ins for the driver and CUDA's libraries. What they tell is set by environment variables, so that one build of them plays every fault. */
#ifndef GTRAIN_DOCTOR_STUBS_H
#define GTRAIN_DOCTOR_STUBS_H

#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

static inline long stub_number(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text && text[0] ? strtol(text, NULL, 0) : otherwise;
}

#endif
