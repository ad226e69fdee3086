/* The caching allocator over a fake device with a hard capacity: a random trace, checked against what must always hold. */
#include "harness/test.h"

#include "memory/allocator.h"

#include <sys/mman.h>

enum { MOST = 512 };
typedef struct fake {
    gt__device head;
    size_t capacity, used;
    int live;
    struct {
        void *memory;
        size_t bytes;
    } segments[MOST];
} fake;

static gt_status fake_alloc(gt__device *device, size_t bytes, void **pointer) {
    fake *f = (fake *)device;
    if (bytes > f->capacity - f->used) return GT_OUT_OF_MEMORY;
    char *memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); /* addresses only */
    if (memory == MAP_FAILED) return GT_OUT_OF_MEMORY;
    for (int i = 0; i < MOST; ++i) {
        if (f->segments[i].memory) continue;
        f->segments[i].memory = memory;
        f->segments[i].bytes = bytes;
        break;
    }
    f->used += bytes;
    f->live++;
    *pointer = memory;
    return GT_OK;
}

static void fake_free(gt__device *device, void *pointer) {
    fake *f = (fake *)device;
    for (int i = 0; i < MOST; ++i) {
        if (f->segments[i].memory != pointer) continue;
        (void)munmap(pointer, f->segments[i].bytes);
        f->used -= f->segments[i].bytes;
        f->segments[i].memory = NULL;
        f->live--;
        return;
    }
    FAIL("memory that the device does not know was freed");
}

static gt_status fake_info(gt__device *device, uint64_t *free_bytes, uint64_t *total) {
    fake *f = (fake *)device;
    *free_bytes = f->capacity - f->used;
    *total = f->capacity;
    return GT_OK;
}

static const gt__backend fake_backend = {.memory_alloc = fake_alloc, .memory_free = fake_free, .memory_info = fake_info};

static uint32_t next_random(uint32_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

typedef struct live_block {
    gt__block *block;
    char *begin;
    size_t bytes;
} live_block;

TEST(unit, allocator_random_trace_keeps_its_invariants) {
    enum { SLOTS = 300, OPERATIONS = 200000 };
    static live_block slots[SLOTS];
    memset(slots, 0, sizeof slots);
    fake f = {.head = {.backend = &fake_backend}, .capacity = 1ull << 30};
    gt__allocator *a;
    CHECK_OK(gt__allocator_create(&f.head, 512u << 20, &a));
    uint32_t random = 12345;
    size_t asked = 0;
    int failures = 0;
    gt_memory_stats stats = {.struct_size = sizeof stats};
    for (int i = 0; i < OPERATIONS; ++i) {
        live_block *slot = &slots[next_random(&random) % SLOTS];
        if (slot->block) {
            gt__allocator_free(a, slot->block);
            asked -= slot->bytes;
            slot->block = NULL;
        } else {
            uint32_t shift = next_random(&random) % 23;
            size_t bytes = 1 + next_random(&random) % (1u << shift);
            gt_status status = gt__allocator_alloc(a, bytes, (gt_memory_category)(bytes % 8), "op", NULL, true, &slot->block);
            if (status == GT_OUT_OF_MEMORY) {
                slot->block = NULL;
                failures++;
                continue;
            }
            CHECK_OK(status);
            slot->begin = gt__block_data(slot->block);
            slot->bytes = bytes;
            asked += bytes;
        }
        gt__allocator_stats(a, &stats);
        CHECK(stats.in_use >= asked);
        CHECK(stats.in_use + stats.cached == stats.reserved);
        CHECK(stats.reserved == f.used && stats.reserved <= 512u << 20);
        uint64_t sum = 0;
        for (int c = 0; c < GT_MEMORY_CATEGORY_COUNT; ++c) sum += stats.category_in_use[c];
        CHECK(sum == stats.in_use);
        if (i % 5000 == 0) { /* no two live blocks overlap */
            for (int x = 0; x < SLOTS; ++x) {
                for (int y = x + 1; slots[x].block && y < SLOTS; ++y) {
                    if (slots[y].block == NULL) continue;
                    CHECK(slots[x].begin + slots[x].bytes <= slots[y].begin || slots[y].begin + slots[y].bytes <= slots[x].begin);
                }
            }
        }
    }
    CHECK(failures == 0);
    for (int x = 0; x < SLOTS; ++x) {
        if (slots[x].block) gt__allocator_free(a, slots[x].block);
    }
    gt__allocator_stats(a, &stats);
    CHECK_EQ_INT(stats.in_use, 0);
    gt__allocator_trim(a); /* all merged: every segment goes back */
    CHECK_EQ_INT(f.used, 0);
    CHECK_EQ_INT(f.live, 0);
    gt__allocator_destroy(a);
}

TEST(unit, allocator_reuses_splits_and_merges) {
    fake f = {.head = {.backend = &fake_backend}, .capacity = 1ull << 30};
    gt__allocator *a;
    CHECK_OK(gt__allocator_create(&f.head, 0, &a));
    gt__block *blocks[3], *whole;
    for (int i = 0; i < 3; ++i) CHECK_OK(gt__allocator_alloc(a, 6u << 20, GT_MEMORY_USER, "x", NULL, false, &blocks[i]));
    CHECK_EQ_INT(f.live, 1); /* three in one 20 MiB segment */
    gt__allocator_free(a, blocks[0]);
    gt__allocator_free(a, blocks[2]);
    gt__allocator_free(a, blocks[1]); /* between two free ones */
    CHECK_OK(gt__allocator_alloc(a, 20u << 20, GT_MEMORY_USER, "x", NULL, false, &whole));
    CHECK_EQ_INT(f.live, 1);
    gt__allocator_free(a, whole);
    gt__allocator_destroy(a);
    CHECK_EQ_INT(f.live, 0);
}

TEST(unit, allocator_returns_cached_memory_before_it_fails) {
    fake f = {.head = {.backend = &fake_backend}, .capacity = 64u << 20};
    gt__allocator *a;
    CHECK_OK(gt__allocator_create(&f.head, 0, &a));
    gt__block *x, *y;
    CHECK_OK(gt__allocator_alloc(a, 40u << 20, GT_MEMORY_USER, "x", NULL, false, &x));
    gt__allocator_free(a, x);
    CHECK_OK(gt__allocator_alloc(a, 60u << 20, GT_MEMORY_USER, "y", NULL, false, &y));
    CHECK_STATUS(gt__allocator_alloc(a, 40u << 20, GT_MEMORY_USER, "conv2d", "block1.conv", false, &x), GT_OUT_OF_MEMORY);
    CHECK_ERROR_HAS("conv2d \"block1.conv\"");
    CHECK_ERROR_HAS("user tensors 60.0 MiB");
    gt__allocator_free(a, y);
    gt__allocator_destroy(a);
}
