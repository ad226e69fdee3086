#include "common/args.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct choice {
    const char *name;
    int32_t value;
} choice;

static const choice devices[] = {{"auto", GT_DEVICE_AUTO}, {"cpu", GT_DEVICE_CPU}, {"cuda", GT_DEVICE_CUDA}, {NULL, 0}};
static const choice optimizers[] = {{"sgd", GT_OPTIMIZER_SGD}, {"adam", GT_OPTIMIZER_ADAM}, {"adamw", GT_OPTIMIZER_ADAMW}, {NULL, 0}};
static const choice precisions[] = {{"f32", GT_PRECISION_F32}, {"f16", GT_PRECISION_F16}, {"bf16", GT_PRECISION_BF16}, {NULL, 0}};

static const char *choice_name(const choice *choices, int32_t value) {
    while (choices->name && choices->value != value) choices++;
    return choices->name;
}

static int read_choice(const char *option, const char *text, const choice *choices, int32_t *value) {
    for (const choice *c = choices; c->name; ++c) {
        if (strcmp(c->name, text) != 0) continue;
        *value = c->value;
        return 0;
    }
    fprintf(stderr, "--%s %s: must be ", option, text);
    for (const choice *c = choices; c->name; ++c) fprintf(stderr, "%s%s", c->name, c[1].name ? " or " : "\n");
    return 1;
}

static int read_integer(const char *option, const char *text, int64_t least, int64_t most, int64_t *value) {
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno == 0 && end != text && *end == '\0' && number >= least && number <= most) {
        *value = number;
        return 0;
    }
    fprintf(stderr, "--%s %s: must be a whole number from %lld to %lld\n", option, text, (long long)least, (long long)most);
    return 1;
}

/* "2GiB", "512MiB", "64KiB", or bytes. */
static int read_bytes(const char *option, const char *text, int64_t *bytes) {
    static const struct {
        const char *name;
        int shift;
    } units[] = {{"", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
    char *end;
    errno = 0;
    double number = strtod(text, &end);
    for (size_t i = 0; i < sizeof units / sizeof *units && errno == 0 && end != text; ++i) {
        double whole = number * (double)(INT64_C(1) << units[i].shift);
        if (strcmp(end, units[i].name) != 0 || !(whole >= 1 && whole < 9e18)) continue;
        *bytes = (int64_t)whole;
        return 0;
    }
    fprintf(stderr, "--%s %s: must be a size such as 2GiB, 512MiB or 65536\n", option, text);
    return 1;
}

static int read_rate(const char *option, const char *text, double *value) {
    char *end;
    double number = strtod(text, &end);
    if (end != text && *end == '\0' && isfinite(number) && number > 0) {
        *value = number;
        return 0;
    }
    fprintf(stderr, "--%s %s: must be a number above 0\n", option, text);
    return 1;
}

static void print_help(const args *a, const char *what) {
    printf("%s\n\n"
           "Usage: %s [options]\n"
           "  --device NAME        auto, cpu or cuda (%s)\n"
           "  --epochs N           passes over the training data (%lld)\n"
           "  --batch N            samples a step (%lld)\n"
           "  --lr X               peak of the one-cycle learning rate (sgd 0.05, adam and adamw 0.002)\n"
           "  --optimizer NAME     sgd (momentum 0.9), adam or adamw (%s)\n"
           "  --precision NAME     f32, or mixed: f16 (with loss scaling) or bf16 (%s)\n"
           "  --accumulation N     batches that make one update (1); cnn only\n"
           "  --memory-limit N     MiB of device memory (all); where it is too little, cnn takes smaller micro-batches by itself\n"
           "  --memory-budget SIZE such as 2GiB: weights, optimizer state and all that an update makes keep to it (none); compiles\n"
           "  --offload            and some of it may wait in the host's memory\n"
           "  --data DIR           folder of the four Fashion-MNIST files, plain or .gz\n"
           "  --seed N             of weights, order and dropout (%llu)\n"
           "  --threads N          CPU threads (all cores)\n"
           "  --limit-samples N    use only the first N images (all)\n"
           "  --save FILE          write the run's state there after each epoch, and when Ctrl-C or SIGTERM ends it; cnn only\n"
           "  --resume             go on from the --save file, if it is there; cnn only\n"
           "  --compile            run each update as one compiled program; the results are the same\n"
           "  --deterministic      the same seed gives the same bits\n"
           "  --json               end with one line of JSON\n"
           "  --help               this text\n",
           what, a->program, choice_name(devices, a->device), (long long)a->epochs, (long long)a->batch,
           choice_name(optimizers, a->optimizer), choice_name(precisions, a->precision), (unsigned long long)a->seed);
}

enum {
    OPT_DEVICE = 256,
    OPT_EPOCHS,
    OPT_BATCH,
    OPT_LR,
    OPT_OPTIMIZER,
    OPT_PRECISION,
    OPT_ACCUMULATION,
    OPT_MEMORY_LIMIT,
    OPT_MEMORY_BUDGET,
    OPT_DATA,
    OPT_SEED,
    OPT_THREADS,
    OPT_LIMIT,
    OPT_COMPILE,
    OPT_DETERMINISTIC,
    OPT_JSON,
    OPT_OFFLOAD,
    OPT_SAVE,
    OPT_RESUME,
    OPT_HELP
};

static const struct option options[] = {
    {"device", required_argument, NULL, OPT_DEVICE},
    {"epochs", required_argument, NULL, OPT_EPOCHS},
    {"batch", required_argument, NULL, OPT_BATCH},
    {"lr", required_argument, NULL, OPT_LR},
    {"optimizer", required_argument, NULL, OPT_OPTIMIZER},
    {"precision", required_argument, NULL, OPT_PRECISION},
    {"accumulation", required_argument, NULL, OPT_ACCUMULATION},
    {"memory-limit", required_argument, NULL, OPT_MEMORY_LIMIT},
    {"memory-budget", required_argument, NULL, OPT_MEMORY_BUDGET},
    {"offload", no_argument, NULL, OPT_OFFLOAD},
    {"data", required_argument, NULL, OPT_DATA},
    {"seed", required_argument, NULL, OPT_SEED},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"limit-samples", required_argument, NULL, OPT_LIMIT},
    {"compile", no_argument, NULL, OPT_COMPILE},
    {"deterministic", no_argument, NULL, OPT_DETERMINISTIC},
    {"json", no_argument, NULL, OPT_JSON},
    {"save", required_argument, NULL, OPT_SAVE},
    {"resume", no_argument, NULL, OPT_RESUME},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

/* One option; not 0 after a mistake, which it has told. */
static int read_option(int code, args *a) {
    int64_t number = 0;
    int bad = 0;
    switch (code) {
    case OPT_DEVICE:
        return read_choice("device", optarg, devices, &a->device);
    case OPT_OPTIMIZER:
        return read_choice("optimizer", optarg, optimizers, &a->optimizer);
    case OPT_PRECISION:
        return read_choice("precision", optarg, precisions, &a->precision);
    case OPT_ACCUMULATION:
        return read_integer("accumulation", optarg, 1, 60000, &a->accumulation);
    case OPT_MEMORY_LIMIT:
        bad = read_integer("memory-limit", optarg, 1, INT64_MAX >> 20, &number);
        a->memory_limit = number << 20;
        return bad;
    case OPT_MEMORY_BUDGET:
        return read_bytes("memory-budget", optarg, &a->memory_budget);
    case OPT_OFFLOAD:
        a->offload = 1;
        return 0;
    case OPT_EPOCHS:
        return read_integer("epochs", optarg, 1, 1000000, &a->epochs);
    case OPT_BATCH:
        return read_integer("batch", optarg, 1, 60000, &a->batch);
    case OPT_LIMIT:
        return read_integer("limit-samples", optarg, 1, INT64_MAX, &a->limit_samples);
    case OPT_LR:
        return read_rate("lr", optarg, &a->learning_rate);
    case OPT_SEED:
        bad = read_integer("seed", optarg, 0, INT64_MAX, &number);
        a->seed = (uint64_t)number;
        return bad;
    case OPT_THREADS:
        bad = read_integer("threads", optarg, 1, 4096, &number);
        a->threads = (int32_t)number;
        return bad;
    case OPT_DATA:
        a->data = optarg;
        return 0;
    case OPT_COMPILE:
        a->compile = 1;
        return 0;
    case OPT_DETERMINISTIC:
        a->deterministic = 1;
        return 0;
    case OPT_JSON:
        a->json = 1;
        return 0;
    case OPT_SAVE:
        a->save = optarg;
        return 0;
    case OPT_RESUME:
        a->resume = 1;
        return 0;
    default:
        return 1; /* getopt_long has told */
    }
}

int args_parse(int argc, char **argv, const char *what, args *a) {
    a->program = argc > 0 ? argv[0] : "example";
    args given = *a;
    int bad = 0, code;
    while (!bad && (code = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (code == OPT_HELP || code == 'h') {
            print_help(a, what);
            return 0;
        }
        bad = read_option(code, &given);
    }
    if (!bad && optind < argc) {
        fprintf(stderr, "%s: what is this? Options begin with --\n", argv[optind]);
        bad = 1;
    }
    if (!bad && given.resume && given.save == NULL) {
        fprintf(stderr, "--resume: needs --save FILE, whose state it goes on from\n");
        bad = 1;
    }
    if (bad) {
        fprintf(stderr, "Try %s --help\n", a->program);
        return 2;
    }
    *a = given;
    return -1;
}

int args_fail(const args *a, const char *doing) {
    const gt_error *error = gt_last_error();
    fflush(stdout);
    fprintf(stderr, "%s: %s failed (%s): %s\n", a->program, doing, gt_status_name(error->status), error->message);
    if (error->hint[0]) fprintf(stderr, "%s\n", error->hint);
    return 1;
}

static void print_warning(void *user, gt_log_level level, const char *text) {
    (void)user;
    if (level >= GT_LOG_WARNING) fprintf(stderr, "%s\n", text);
}

gt_status args_open(const args *a, gt_context **ctx) {
    gt_context_options context;
    gt_status status = gt_context_options_init(&context, sizeof context);
    if (status != GT_OK) return status;
    context.device = a->device;
    context.cpu_threads = a->threads;
    context.seed = a->seed;
    context.deterministic = a->deterministic;
    context.memory_limit = (uint64_t)a->memory_limit;
    context.log = print_warning;
    return gt_context_create(&context, ctx);
}

gt_status args_optimizer(const args *a, gt_module *net, int64_t steps, gt_optimizer **optimizer, gt_schedule *schedule) {
    gt_optimizer_options rule;
    gt_status status = gt_optimizer_options_init(&rule, sizeof rule, a->optimizer);
    if (status == GT_OK) status = gt_schedule_init(schedule, sizeof *schedule, GT_SCHEDULE_ONE_CYCLE);
    if (status != GT_OK) return status;
    if (a->optimizer == GT_OPTIMIZER_SGD) rule.momentum = 0.9;
    schedule->base = a->learning_rate > 0 ? a->learning_rate : a->optimizer == GT_OPTIMIZER_SGD ? 0.05 : 0.002;
    schedule->total_steps = steps;
    return gt_optimizer_create_for(&rule, net, optimizer);
}
