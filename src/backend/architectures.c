#include "backend/architectures.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Machine code runs on its own major version from its own minor version on (90a: on 9.0 alone); PTX on anything newer. An entry is "80-real" (machine
 * code), "90-virtual" (PTX) or "90" (both). */
gt__gpu_code gt__architectures_cover(const char *architectures, int capability) {
    gt__gpu_code best = GT__GPU_CODE_NONE;
    const char *at = architectures;
    while (*at) {
        char *end;
        long arch = strtol(at, &end, 10);
        if (end == at) {
            at++;
            continue;
        }
        bool exact = *end == 'a', family = *end == 'f';
        if (exact || family) end++;
        bool real = strncmp(end, "-real", 5) == 0, ptx = strncmp(end, "-virtual", 8) == 0;
        bool same_major = arch / 10 == capability / 10;
        if (!ptx && same_major && (exact ? arch == capability : arch <= capability)) return GT__GPU_CODE_MACHINE;
        if (!real && !exact && !family && arch <= capability) best = GT__GPU_CODE_PTX;
        while (*end && *end != ';' && *end != ' ' && *end != ',') end++;
        at = end;
    }
    return best;
}
