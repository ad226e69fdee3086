/* gt_step_describe: a plan as text and as a graph. */
#include "support.h"

#include <stdio.h>

static char *described(gt_step *step, gt_step_format format) {
    size_t needed = 0, again = 0;
    CHECK_OK(gt_step_describe(step, format, NULL, 0, &needed));
    char *text = malloc(needed + 8);
    memset(text, 'x', needed + 8);
    CHECK_OK(gt_step_describe(step, format, text, needed, &again));
    CHECK_EQ_INT(again, needed);
    CHECK_EQ_INT(strlen(text), needed - 1);
    CHECK(text[needed] == 'x');
    return text;
}

static int occurrences(const char *text, const char *what) {
    int n = 0;
    for (; (text = strstr(text, what)) != NULL; text += strlen(what)) ++n;
    return n;
}

#define CHECK_HAS(text, what)                                                                                                              \
    do {                                                                                                                                   \
        if (strstr(text, what) == NULL) FAIL("\"%s\" is not in:\n%s", what, text);                                                         \
    } while (0)

TEST_DEVICES(unit, step_describe_needs_a_run_and_cuts_to_the_buffer) {
    net_step n = net_begin(net_context(t), false, 1);
    char small[12];
    size_t needed;
    CHECK_STATUS(gt_step_describe(n.step, GT_STEP_TEXT, small, sizeof small, NULL), GT_BAD_STATE);
    CHECK_OK(net_run(&n, 8, 0));
    CHECK_STATUS(gt_step_describe(n.step, GT_STEP_TEXT, NULL, 1, NULL), GT_BAD_ARGUMENT);
    CHECK_STATUS(gt_step_describe(n.step, 7, small, sizeof small, NULL), GT_BAD_ARGUMENT);
    gt_clear_error();
    CHECK_STATUS(gt_step_describe(NULL, GT_STEP_TEXT, small, sizeof small, NULL), GT_BAD_ARGUMENT);
    CHECK_OK(gt_step_describe(n.step, GT_STEP_TEXT, small, sizeof small, &needed));
    CHECK_EQ_STR(small, "plan of %0 ");
    CHECK(needed > 1000);
    CHECK_OK(gt_step_reset(n.step));
    CHECK_STATUS(gt_step_describe(n.step, GT_STEP_TEXT, small, sizeof small, NULL), GT_BAD_STATE);
    net_end(&n);
}

TEST(unit, step_describe_names_operands_phases_and_modules) {
    net_step n = net_begin(net_context(t), false, 1);
    CHECK_OK(net_run(&n, 8, 0));
    char *text = described(n.step, GT_STEP_TEXT);
    CHECK_HAS(text, "plan of %0 f32[8,12], %1 i64[8], training\n");
    CHECK_HAS(text, "= linear(%0 f32[8,12], \"0.weight\" f32[16,12], \"0.bias\" f32[16])");
    CHECK_HAS(text, "\"1.running_mean\" f32[16]");
    CHECK_HAS(text, " f32[8,16] = dropout(%");
    CHECK_HAS(text, "= update[6 parameters](");
    CHECK_HAS(text, "exp_avg of \"0.weight\"");
    CHECK_HAS(text, " loss f32[]");
    CHECK_HAS(text, " output 0 f32[8,5] = ");
    CHECK_HAS(text, " forward  0 ");
    CHECK_HAS(text, " backward 4 ");
    CHECK_HAS(text, " update   - ");
    CHECK_HAS(text, "activations saved for backward ");
    CHECK_HAS(text, "workspace: beside the arena\n");
    /* every instruction has a line, and the fullest is among them */
    gt_step_memory m = net_step_memory();
    char line[64];
    CHECK_OK(gt_step_get_memory(n.step, &m));
    (void)snprintf(line, sizeof line, "\n%d instructions, ", (int)m.instructions);
    CHECK_HAS(text, line);
    CHECK_EQ_INT(occurrences(text, "\n"), m.instructions + 5);
    (void)snprintf(line, sizeof line, "at once at instruction %d, %s", (int)m.instruction, m.op);
    CHECK_HAS(text, line);
    free(text);
    net_end(&n);
}

TEST(unit, step_describe_tells_half_copies_micro_batches_and_two_optimizers) {
    gt_context *ctx = net_context(t);
    net_step n = {.ctx = ctx, .net = net_mlp(ctx, NET_IN, NET_HIDDEN)};
    gt_optimizer *optimizers[2];
    gt_optimizer_options oo;
    CHECK_OK(gt_optimizer_options_init(&oo, sizeof oo, GT_OPTIMIZER_SGD));
    for (int i = 0; i < 2; ++i) {
        gt_tensor *p[3];
        for (int k = 0; k < 3; ++k) CHECK_OK(gt_module_parameter(n.net, 3 * i + k, NULL, &p[k]));
        CHECK_OK(gt_optimizer_create(&oo, p, 3, &optimizers[i]));
    }
    CHECK_OK(gt_scaler_create(ctx, NULL, &n.scaler));
    gt_step_options o = net_options(&n);
    o.optimizers = optimizers;
    o.n_optimizers = 2;
    o.micro_batches = 2;
    CHECK_OK(gt_step_create(ctx, &o, &n.step));
    CHECK_OK(net_run(&n, 8, 0));
    char *text = described(n.step, GT_STEP_TEXT);
    CHECK_HAS(text, ", in 2 micro-batches, training\n");
    CHECK_HAS(text, "\"0.weight\" in f16 f16[16,12]");
    CHECK_HAS(text, "optimizer 1 cells");
    CHECK_HAS(text, "scaler cells");
    CHECK_EQ_INT(occurrences(text, "= update[3 parameters]("), 2);
    free(text);
    net_end(&n);
    for (int i = 0; i < 2; ++i) gt_optimizer_destroy(optimizers[i]);
}

/* Names that dot knows: nodes first, then edges between them. */
TEST(unit, step_describe_draws_every_instruction_in_its_module_and_edges_between_them) {
    net_step n = net_begin(net_context(t), true, 1);
    CHECK_OK(net_run(&n, 8, 0));
    gt_step_memory m = net_step_memory();
    CHECK_OK(gt_step_get_memory(n.step, &m));
    char *text = described(n.step, GT_STEP_GRAPHVIZ);
    CHECK(strncmp(text, "digraph step {\nnewrank=true;\n", 29) ==
          0); /* without it dot ranks each module alone, which forward and backward defeat */
    CHECK_EQ_INT(occurrences(text, "{\n"), occurrences(text, "}\n"));
    CHECK_EQ_INT(occurrences(text, "\ni"), m.instructions + occurrences(text, "\ni") - occurrences(text, ", fillcolor=\"#") + 2);
    CHECK_EQ_INT(occurrences(text, "subgraph cluster_"),
                 4); /* each layer once, forward and backward together; batch norm and relu are one */
    CHECK_HAS(text, "label=\"4\";\n");
    CHECK_HAS(text, "fillcolor=\"#cfe2f3\"");
    CHECK_HAS(text, "fillcolor=\"#f9cb9c\"");
    CHECK_HAS(text, "fillcolor=\"#b6d7a8\"");
    CHECK_HAS(text, "in0 -> i0;\n");
    int edges = 0;
    for (const char *line = strstr(text, "\n"); line; line = strstr(line + 1, "\n")) {
        int from, to;
        if (sscanf(line, "\ni%d -> i%d [", &from, &to) != 2) continue;
        CHECK(from >= 0 && from < to && to < m.instructions); /* in the order of the program */
        ++edges;
    }
    CHECK(edges >= m.instructions / 2);
    free(text);
    net_end(&n);
}
