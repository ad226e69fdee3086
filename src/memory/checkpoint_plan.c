/* Which modules to checkpoint. What is saved for backward is cut, in the order of allocation, into runs of one module each; with checkpointing, a run keeps what
 * the next one begins with, and the largest run is there once as a whole while backward computes it again. */
#include "memory/report.h"

#include <stdio.h>
#include <stdlib.h>

enum { DEPTHS = 3 };

typedef struct run {
    const gt__live_block *first; /* whose module path's first `length` bytes name the run */
    size_t length;
    uint64_t bytes, output; /* all; what the next run begins with */
    int64_t index;          /* the last part of the name as a number: a sequential's child; else -1 */
    size_t parent;          /* bytes of the name before the last dot */
} run;

/* Bytes of the first `depth` parts of a path, or 0 where it has fewer: those above the leaves have nothing to gain from their one op. */
static size_t prefix(const char *path, int64_t depth) {
    const char *end = path;
    for (int64_t part = 0; part < depth; ++part) {
        if (part > 0) {
            if (*end != '.') return 0;
            ++end;
        }
        end += strcspn(end, ".");
    }
    return (size_t)(end - path);
}

static void name_run(run *r) {
    const char *path = r->first->module;
    r->parent = 0;
    for (size_t i = 0; i < r->length; ++i)
        if (path[i] == '.') r->parent = i;
    const char *last = path + r->parent + (r->parent > 0);
    char *end;
    r->index = strtol(last, &end, 10);
    if (last[0] < '0' || last[0] > '9' || end != path + r->length) r->index = -1;
}

static bool same_run(const run *r, const gt__live_block *block, size_t length) {
    return r->length == length && memcmp(r->first->module, block->module, length) == 0;
}

/* Runs of the blocks that are saved for backward; blocks outside modules, or in modules above `depth`, belong to none. */
static int64_t make_runs(const gt__live_list *live, int64_t step, int64_t depth, run *runs) {
    int64_t count = 0;
    for (int64_t i = 0; i < live->count; ++i) {
        const gt__live_block *block = &live->blocks[i];
        size_t length = prefix(block->module, depth);
        if (block->category != GT_MEMORY_ACTIVATION || block->step < step || length == 0) continue;
        if (count == 0 || !same_run(&runs[count - 1], block, length)) {
            runs[count] = (run){.first = block, .length = length};
            name_run(&runs[count]);
            ++count;
        }
        runs[count - 1].bytes += block->bytes;
        /* Statistics and masks that were saved beside the output are smaller than it. */
        if (block->bytes >= runs[count - 1].output / 2) runs[count - 1].output = block->bytes;
    }
    return count;
}

/* Merges runs[i] that have the same part_of[i] and returns what checkpointing each of the parts frees. */
static uint64_t gain(const run *runs, int64_t count, const int64_t *part_of) {
    uint64_t total = 0, kept = 0, largest = 0, part = 0;
    for (int64_t i = 0; i < count; ++i) {
        total += runs[i].bytes;
        part += runs[i].bytes;
        bool last = i + 1 == count;
        if (!last && part_of[i] == part_of[i + 1]) continue;
        uint64_t output = last ? 0 : runs[i].output; /* nothing has begun with the last one's yet */
        kept += output;
        largest = GT__MAX(largest, part - GT__MIN(part, output));
        part = 0;
    }
    return total > kept + largest ? total - kept - largest : 0;
}

static void copy_name(char to[64], const char *text, size_t length) { (void)snprintf(to, 64, "%.*s", (int)length, text); }

static void try_each(const run *runs, int64_t count, int64_t *part_of, int64_t depth, gt__checkpoint_plan *best) {
    for (int64_t i = 0; i < count; ++i) part_of[i] = i;
    uint64_t frees = gain(runs, count, part_of);
    if (frees <= best->frees) return;
    *best = (gt__checkpoint_plan){.frees = frees, .depth = depth, .count = count};
    copy_name(best->first, runs[0].first->module, runs[0].length);
    copy_name(best->last, runs[count - 1].first->module, runs[count - 1].length);
}

/* A sequential's children as segments of as nearly equal numbers as can be, as gt_nn_sequential_set_segments makes them: segment i begins with child
 * i * children / segments. */
static void try_segments(const run *runs, int64_t count, int64_t *part_of, gt__checkpoint_plan *best) {
    int64_t children = 0;
    for (int64_t i = 0; i < count; ++i) {
        if (runs[i].index < 0 || runs[i].parent >= 64) return;
        if (runs[i].parent != runs[0].parent || memcmp(runs[i].first->module, runs[0].first->module, runs[0].parent) != 0) return;
        if (i > 0 && runs[i].index <= runs[i - 1].index) return; /* called twice, or not in its order */
        children = runs[i].index + 1;
    }
    for (int64_t segments = 2; segments < GT__MIN(children, 65); ++segments) {
        for (int64_t i = 0; i < count; ++i) part_of[i] = ((runs[i].index + 1) * segments - 1) / children;
        uint64_t frees = gain(runs, count, part_of);
        if (frees <= best->frees + best->frees / 20) continue; /* fewer segments, or whole modules, unless it is clearly better */
        *best = (gt__checkpoint_plan){.frees = frees, .segments = segments, .count = children};
        copy_name(best->target, runs[0].first->module, runs[0].parent);
        copy_name(best->first, runs[0].first->module, runs[0].length);
        copy_name(best->last, runs[count - 1].first->module, runs[count - 1].length);
    }
}

void gt__checkpoint_plan_make(const gt__live_list *live, int64_t step, gt__checkpoint_plan *plan) {
    *plan = (gt__checkpoint_plan){0};
    if (live->count == 0) return;
    run *runs = gt__calloc((size_t)live->count, sizeof *runs);
    int64_t *part_of = gt__calloc((size_t)live->count, sizeof *part_of);
    for (int64_t depth = 1; runs && part_of && depth <= DEPTHS; ++depth) {
        int64_t count = make_runs(live, step, depth, runs);
        if (count < 2) continue;
        try_each(runs, count, part_of, depth, plan);
        try_segments(runs, count, part_of, plan);
    }
    gt__free(runs);
    gt__free(part_of);
}
