/* The CUDA source of chains, as far as it needs no GPU: NVRTC compiles it, where there is one. */
#include "cuda/chain_samples.h"
#include "harness/test.h"

#include "cuda/chain_kernels.h"
#include "cuda/chain_source.h"
#include "cuda/nvrtc.h"

#include <stdio.h>
#include <stdlib.h>

static chain_memory addresses(void) {
    chain_memory m;
    for (int k = 0; k < GT__CHAIN_INPUTS; k++) m.in[k] = (void *)(uintptr_t)(0x10000 * (k + 1));
    for (int k = 0; k < GT__CHAIN_OUTPUTS; k++) m.out[k] = (void *)(uintptr_t)(0x1000000 * (k + 1));
    m.sum = (void *)(uintptr_t)0x20000000;
    m.cells = NULL;
    return m;
}

static char *source_of(const gt__chain *c) {
    char *text = NULL;
    CHECK_OK(gt__chain_source(c, &text));
    return text;
}

static void compiles(const gt__chain *c, int capability) {
    char why[512] = "", text[GT__CHAIN_TEXT], *source = source_of(c);
    gt__nvrtc_image image;
    if (!gt__nvrtc_compile(source, capability, &image, why, sizeof why))
        FAIL("%s in %s for %d: %s\n%s", gt__chain_text(c, text, sizeof text), gt_dtype_name(c->nodes[0].dtype), capability, why, source);
    CHECK(image.bytes > 100);
    gt__free(image.data);
    gt__free(source);
}

static void need_nvrtc(void) {
    if (!gt__nvrtc_usable()) SKIP("there is no libnvrtc.so.13 or libnvrtc.so.12 here");
}

TEST(unit, chain_sources_of_all_ops_compile) {
    const chain_memory m = addresses();
    gt__chain c;
    need_nvrtc();
    for (int d = 0; d < 4; d++)
        for (int part = 0; part < 4; part++) {
            sample_all_ops(&c, &m, sample_dtypes[d], part, 1000);
            compiles(&c, 90);
        }
}

TEST(unit, chain_sources_of_all_shapes_compile) {
    static const int capabilities[] = {75, 80, 90, 100};
    const chain_memory m = addresses();
    gt__chain c;
    need_nvrtc();
    for (int d = 0; d < 4; d++) {
        sample_mixed(&c, &m, sample_dtypes[d], 10, 100);
        compiles(&c, capabilities[d]);
        sample_loss(&c, &m, sample_dtypes[d], 1000, 1, 0, 1, d % 2);
        compiles(&c, 90);
        sample_loss(&c, &m, sample_dtypes[d], 1000, 10, 0, 0, 1);
        compiles(&c, 90);
        sample_loss(&c, &m, sample_dtypes[d], 1000, 10, 1, 1, 0);
        compiles(&c, 90);
        sample_loss(&c, &m, sample_dtypes[d], 1024, 64, 1, 0, 1); /* in packs */
        compiles(&c, 90);
    }
}

TEST(unit, chain_sources_that_are_wrong_say_what) {
    char why[512] = "";
    gt__nvrtc_image image;
    need_nvrtc();
    CHECK(!gt__nvrtc_compile("#include \"cuda/chain_prelude.cuh\"\n__device__ int f() { return nothing; }\n", 90, &image, why, sizeof why));
    if (strstr(why, "nothing") == NULL) FAIL("%s", why);
    CHECK(image.data == NULL);
    CHECK(!gt__nvrtc_compile("", 20, &image, why, sizeof why));
    CHECK(strstr(why, "20") != NULL);
    /* PTX of an older one for a GPU that is not known yet */
    CHECK(gt__nvrtc_compile("extern \"C\" __global__ void k() {}\n", 999, &image, why, sizeof why));
    CHECK(strstr(image.data, ".target") != NULL);
    gt__free(image.data);
}

TEST(unit, chain_sources_leave_sizes_and_numbers_out) {
    const chain_memory m = addresses();
    gt__chain a, b;
    sample_mixed(&a, &m, GT_DTYPE_F32, 10, 100);
    sample_mixed(&b, &m, GT_DTYPE_F32, 333, 64);
    b.nodes[3].value = 0.5;
    b.nodes[3].seed = 77;
    char *first = source_of(&a), *second = source_of(&b);
    CHECK_EQ_STR(first, second);
    gt__free(second);
    b.nodes[0].op = GT__OP_DIV;
    second = source_of(&b);
    CHECK(strcmp(first, second) != 0);
    gt__free(first);
    gt__free(second);
}

/* Every sum's elements are in exactly one part, and the arguments say where. */
TEST(unit, chain_launches_cover_all_elements) {
    const chain_memory m = addresses();
    static const int64_t sizes[][2] = {{1, 5}, {1, 1000000}, {3, 1000000}, {70000, 8}, {1000, 10}, {4096, 512}, {64, 1 << 20}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int leading = 0; leading < 2; leading++) {
            gt__chain c;
            gt__chain_arguments a;
            gt__chain_launch l, s;
            size_t bytes;
            sample_loss(&c, &m, GT_DTYPE_F32, sizes[i][0] * sizes[i][1], sizes[i][0], leading, 1, 1);
            const int64_t width = gt__chain_width(&c);
            gt__chain_prepare(&c, 132, 1024, &a, &l, &s, &bytes);
            CHECK_EQ_INT(l.block_x * l.block_y, GT__CHAIN_BLOCK);
            CHECK(a.parts >= 1 && a.parts <= 1024);
            CHECK_EQ_INT(bytes, a.parts > 1 ? a.parts * c.sum.kept * 4 : 0);
            CHECK(a.divisor == (double)c.sum.reduced);
            switch (gt__chain_form_of(&c)) {
            case GT__CHAIN_ALL:
                CHECK_EQ_INT(l.grid_x, a.parts);
                break;
            case GT__CHAIN_ROWS:
                CHECK(l.grid_x * (int64_t)l.block_x >= c.sum.kept && l.grid_y == a.parts && a.part % width == 0);
                CHECK(a.parts * a.part >= c.sum.reduced && (a.parts - 1) * a.part < c.sum.reduced);
                break;
            default:
                CHECK(l.grid_x * (int64_t)l.block_x * width >= c.sum.kept && l.grid_y == a.parts);
                CHECK(a.parts * a.part >= c.sum.reduced && (a.parts - 1) * a.part < c.sum.reduced);
                break;
            }
            if (c.sum.kept > 1) CHECK(s.grid_x * (int64_t)GT__CHAIN_BLOCK >= c.sum.kept);
            gt__chain_prepare(&c, 132, 1, &a, &l, &s, &bytes); /* without memory for parts */
            CHECK_EQ_INT(a.parts, 1);
            CHECK_EQ_INT(bytes, 0);
        }
    }
}

TEST(unit, chain_launches_take_packs_where_all_is_aligned) {
    chain_memory m = addresses();
    gt__chain c;
    gt__chain_arguments a;
    gt__chain_launch l, s;
    size_t bytes;
    for (int odd = 0; odd < 4; odd++) {
        m = addresses();
        if (odd == 1) m.in[0] = (char *)m.in[0] + 4;
        if (odd == 2) m.out[1] = (char *)m.out[1] + 8;
        if (odd == 3) m.in[3] = (char *)m.in[3] + 4; /* one element, repeated */
        sample_mixed(&c, &m, GT_DTYPE_F32, 10, 100);
        gt__chain_prepare(&c, 132, 1024, &a, &l, &s, &bytes);
        CHECK_EQ_INT(a.vector, odd == 0 || odd == 3);
    }
}

TEST(unit, chain_kernels_are_bounded) {
    gt__cuda_device cuda = {.chains = NULL};
    for (int i = 0; i < GT__CHAIN_KERNELS + 3; i++) {
        char *text = gt__malloc(32);
        (void)snprintf(text, 32, "kernel %d", i);
        bool room = i < GT__CHAIN_KERNELS;
        CHECK((gt__chain_kernel_add(&cuda, text) != NULL) == room);
        if (!room) gt__free(text);
    }
    CHECK_EQ_INT(cuda.chain_count, GT__CHAIN_KERNELS);
    CHECK_EQ_STR(gt__chain_kernel_find(&cuda, "kernel 17")->source, "kernel 17");
    CHECK(gt__chain_kernel_find(&cuda, "kernel 256") == NULL);
    gt__chain_kernels_clear(&cuda, NULL);
    CHECK(cuda.chains == NULL);
}
