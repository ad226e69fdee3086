/* Trains a network of three linear layers on Fashion-MNIST with the training loop written out, one level below gt_trainer.
 * examples/cnn.c leaves the same loop to gt_trainer. */
#include "common/args.h"
#include "common/fashion.h"
#include "common/progress.h"

#include <stdio.h>

#define READ_EVERY 50 /* steps between two looks at the loss */

#define TRY(call)                                                                                                                          \
    do {                                                                                                                                   \
        gt_status try_status = (call);                                                                                                     \
        if (try_status != GT_OK) return try_status;                                                                                        \
    } while (0)

/* [N,1,28,28] to [N,10]. NULL if any layer could not be made; the error is kept. */
static gt_module *make_net(gt_context *ctx) {
    gt_module *layers[] = {
        gt_nn_flatten(ctx, 1), gt_nn_linear(ctx, 784, 512, NULL), gt_nn_relu(ctx), gt_nn_linear(ctx, 512, 512, NULL),
        gt_nn_relu(ctx),       gt_nn_linear(ctx, 512, 10, NULL),
    };
    return gt_nn_sequential_from(ctx, layers, sizeof layers / sizeof layers[0]);
}

/* The sums stay on the device. To see a number the host has to wait until a GPU has done all that was queued before it; a wait in each step
 * would leave the GPU idle while the host prepares the next one. */
typedef struct tally {
    gt_tensor *loss;    /* f64: each batch's mean times its samples. NULL before the first batch */
    gt_tensor *correct; /* i64 */
    int64_t samples;    /* known on the host all along */
} tally;

static gt_status add_to(gt_tensor **sum, gt_tensor *value) {
    gt_tensor *next = *sum ? gt_add(*sum, value) : value;
    if (next == NULL) return gt_last_error()->status;
    gt_tensor_retain(next); /* results belong to the step's scope; this one must outlive it */
    gt_tensor_release(*sum);
    *sum = next;
    return GT_OK;
}

static gt_tensor *count_correct(gt_tensor *logits, gt_tensor *labels) {
    return gt_sum(gt_equal(gt_argmax(logits, 1, 0), labels), NULL, 0, 0);
}

static gt_status tally_add(tally *t, gt_tensor *loss, gt_tensor *correct, int64_t samples) {
    gt_tensor *mean = gt_cast(gt_tensor_detach(loss), GT_DTYPE_F64); /* detached: nobody wants the gradient of a sum over steps */
    TRY(add_to(&t->loss, gt_mul_scalar(mean, (double)samples)));
    TRY(add_to(&t->correct, correct));
    t->samples += samples;
    return GT_OK;
}

/* Waits for the device. */
static gt_status tally_read(const tally *t, gt_metrics *metrics) {
    double loss, correct;
    if (t->samples == 0) return GT_OK;
    TRY(gt_tensor_item(t->loss, &loss));
    TRY(gt_tensor_item(t->correct, &correct));
    metrics->samples = t->samples;
    metrics->correct = (int64_t)correct;
    metrics->loss = loss / (double)t->samples;
    metrics->accuracy = correct / (double)t->samples;
    return GT_OK;
}

static void tally_clear(tally *t) {
    gt_tensor_release(t->loss);
    gt_tensor_release(t->correct);
    *t = (tally){0};
}

typedef struct session {
    gt_context *ctx;
    gt_module *net;
    gt_loader *training, *test;
    gt_optimizer *optimizer;
    gt_scaler *scaler;     /* keeps small f16 gradients from vanishing; NULL in other precisions */
    gt_step *step;         /* with --compile: the whole update as one program; else NULL */
    uint64_t budget;       /* bytes that it keeps to; 0: none */
    int32_t offload;       /* some may wait in the host's memory */
    gt_dtype half;         /* GT_DTYPE_F16 or BF16 in mixed precision, else GT_DTYPE_F32 */
    gt_schedule schedule;  /* gives the learning rate of each step */
    tally sums;            /* of this epoch's training, then of its test */
    gt_train_progress now; /* what the progress line shows */
    gt_fit_result *result; /* what the summary shows */
    progress shown;
    double began; /* seconds on progress_clock */
} session;

/* Forward and loss; in mixed precision the matrix products run in half precision, and nothing else changes. */
static gt_tensor *forward(session *s, gt_tensor *x, gt_tensor *labels, gt_tensor **logits) {
    int mixed = s->half != GT_DTYPE_F32;
    *logits = NULL;
    if (mixed && gt_autocast_begin(s->ctx, s->half) != GT_OK) return NULL;
    /* Ops need no check one by one: one that fails gives NULL, ops on NULL give NULL, and gt_backward returns the first error's status. */
    *logits = gt_module_forward(s->net, x);
    gt_tensor *loss = gt_cross_entropy(*logits, labels, NULL);
    if (mixed) gt_autocast_end(s->ctx);
    return loss;
}

static gt_status update(session *s, gt_tensor *loss) {
    if (s->scaler == NULL) {
        TRY(gt_backward(loss));
        return gt_optimizer_step(s->optimizer);
    }
    TRY(gt_backward(gt_scaler_scale(s->scaler, loss)));
    TRY(gt_scaler_step(s->scaler, s->optimizer)); /* unscales, and leaves the step out where a gradient is not finite */
    return gt_scaler_update(s->scaler);
}

/* What an update of a compiled step begins with. It is called once for each shape of a batch, to be written down; what it computes is repeated in each run. */
static gt_status step_loss(void *user, gt_tensor *const *inputs, int32_t n, gt_step_result *result) {
    session *s = user;
    (void)n;
    gt_tensor *logits = gt_module_forward(s->net, inputs[0]);
    result->loss = gt_cross_entropy(logits, inputs[1], NULL);
    result->outputs[0] = count_correct(logits, inputs[1]);
    return result->loss && result->outputs[0] ? GT_OK : gt_last_error()->status;
}

/* The step knows how to update: schedule, precision and loss scaling are part of the program. */
static gt_status make_step(session *s) {
    gt_step_options options;
    TRY(gt_step_options_init(&options, sizeof options));
    options.fn = step_loss;
    options.user = s;
    options.module = s->net;
    options.optimizers = &s->optimizer;
    options.n_optimizers = 1;
    options.scaler = s->scaler;
    options.schedule = &s->schedule;
    options.autocast = s->half;
    options.memory_budget = s->budget;
    options.offload = s->offload;
    if (s->budget > 0) options.micro_batches = 0; /* as many as it wants */
    return gt_step_create(s->ctx, &options, &s->step);
}

/* One update, inside a scope. *count: the samples of the batch, 0 when the epoch is over. */
static gt_status train_batch(session *s, int64_t *count) {
    gt_tensor *x, *labels; /* f32 [count,1,28,28] and i64 [count], already on the device */
    TRY(gt_loader_next(s->training, &x, &labels, count));
    if (*count == 0) return GT_OK;

    TRY(gt_schedule_rate(&s->schedule, s->now.total_steps, &s->now.learning_rate));
    if (s->step) {
        gt_tensor *const batch[] = {x, labels};
        TRY(gt_step_run(s->step, batch, 2));
        return tally_add(&s->sums, gt_step_loss(s->step), gt_step_output(s->step, 0), *count);
    }
    TRY(gt_optimizer_set_learning_rate(s->optimizer, s->now.learning_rate));
    TRY(gt_optimizer_zero_grad(s->optimizer)); /* backward adds to the gradients that it finds */

    gt_tensor *logits, *loss = forward(s, x, labels, &logits);
    TRY(update(s, loss));
    return tally_add(&s->sums, loss, count_correct(logits, labels), *count);
}

/* Reads the loss, and with it the speed: before, a GPU may be steps behind the host. */
static gt_status measure(session *s, double epoch_began) {
    gt_train_progress *now = &s->now;
    TRY(tally_read(&s->sums, &now->training));
    double samples = (double)s->sums.samples;
    double left = (double)gt_loader_samples(s->training) * (double)(now->epochs - now->epoch) - samples;
    now->samples_per_second = samples / (progress_clock() - epoch_began);
    now->seconds_left = left / now->samples_per_second;
    return GT_OK;
}

static gt_status train_epoch(session *s) {
    gt_train_progress *now = &s->now;
    double began = progress_clock();
    int64_t count = 1;
    TRY(gt_module_set_training(s->net, 1));
    TRY(gt_loader_start_epoch(s->training, now->epoch)); /* each epoch's number gives it an order of its own */
    for (now->step = 0; !s->result->stopped;) {
        TRY(gt_scope_begin(s->ctx));
        gt_status status = train_batch(s, &count);
        TRY(gt_scope_end(s->ctx)); /* frees the batch and all that was computed from it, after a failure too */
        TRY(status);
        if (count == 0) break;
        now->step++;
        s->result->steps = ++now->total_steps;
        if (now->step % READ_EVERY == 0) TRY(measure(s, began));
        now->seconds = progress_clock() - s->began;
        s->result->stopped = progress_step(&s->shown, now); /* Ctrl-C */
    }
    TRY(measure(s, began));
    s->result->training = now->training;
    s->result->training_seconds += progress_clock() - began;
    s->result->samples_per_second = (double)(now->epoch * gt_loader_samples(s->training) + s->sums.samples) / s->result->training_seconds;
    return GT_OK;
}

/* Forward only, inside a scope. */
static gt_status test_batch(session *s, int64_t *count) {
    gt_tensor *x, *labels;
    TRY(gt_loader_next(s->test, &x, &labels, count));
    if (*count == 0) return GT_OK;
    gt_tensor *logits, *loss = forward(s, x, labels, &logits);
    return tally_add(&s->sums, loss, count_correct(logits, labels), *count);
}

static gt_status test_epoch(session *s) {
    int64_t count = 1;
    TRY(gt_module_set_training(s->net, 0)); /* for dropout and batch_norm; this network has neither, the next may */
    TRY(gt_loader_start_epoch(s->test, 0));
    while (count > 0) {
        TRY(gt_scope_begin(s->ctx));
        gt_status status = test_batch(s, &count);
        TRY(gt_scope_end(s->ctx));
        TRY(status);
    }
    return tally_read(&s->sums, &s->now.validation);
}

static gt_status train_and_test(session *s) {
    gt_train_progress *now = &s->now;
    for (; now->epoch < now->epochs && !s->result->stopped; now->epoch++) {
        TRY(gt_metrics_init(&now->training, sizeof now->training));
        TRY(gt_metrics_init(&now->validation, sizeof now->validation));
        tally_clear(&s->sums);
        TRY(train_epoch(s));
        if (now->step < now->steps) break; /* stopped half-way */
        tally_clear(&s->sums);
        TRY(gt_no_grad_begin(s->ctx)); /* keeps nothing for a backward that will not come */
        gt_status status = test_epoch(s);
        TRY(gt_no_grad_end(s->ctx));
        TRY(status);
        s->result->validation = now->validation;
        s->result->epochs++;
        now->seconds = progress_clock() - s->began;
        if (progress_epoch(&s->shown, now)) s->result->stopped = 1;
    }
    s->result->seconds = progress_clock() - s->began;
    return GT_OK;
}

static int run(const args *a, gt_context *ctx) {
    gt_fit_result result;
    session s = {.ctx = ctx, .result = &result, .budget = (uint64_t)a->memory_budget, .offload = a->offload};
    s.half = a->precision == GT_PRECISION_F16 ? GT_DTYPE_F16 : a->precision == GT_PRECISION_BF16 ? GT_DTYPE_BF16 : GT_DTYPE_F32;
    int code = fashion_open(a, ctx, &s.training, &s.test);
    if (code != 0) return code;
    s.net = make_net(ctx);
    s.now.epochs = a->epochs;
    s.now.steps = gt_loader_batches(s.training);
    if (s.net == NULL || gt_fit_result_init(&result, sizeof result) != GT_OK ||
        args_optimizer(a, s.net, a->epochs * s.now.steps, &s.optimizer, &s.schedule) != GT_OK ||
        (s.half == GT_DTYPE_F16 && gt_scaler_create(ctx, NULL, &s.scaler) != GT_OK) ||
        ((a->compile || a->memory_budget > 0) && make_step(&s) != GT_OK)) {
        code = args_fail(a, "making the network");
    } else {
        progress_describe(ctx, s.net);
        progress_begin(&s.shown);
        s.began = progress_clock();
        if (train_and_test(&s) != GT_OK)
            code = args_fail(a, "training");
        else if (progress_summary(a, ctx, "mlp", &result) != GT_OK)
            code = args_fail(a, "reading the memory statistics");
    }
    tally_clear(&s.sums);
    gt_step_destroy(s.step);
    gt_scaler_destroy(s.scaler);
    gt_optimizer_destroy(s.optimizer);
    gt_module_destroy(s.net);
    gt_loader_destroy(s.training);
    gt_loader_destroy(s.test);
    return code;
}

int main(int argc, char **argv) {
    args a = {.optimizer = GT_OPTIMIZER_ADAM, .epochs = 5, .batch = 64, .seed = 1};
    int code = args_parse(argc, argv, "Trains a network of three linear layers on Fashion-MNIST.", &a);
    if (code >= 0) return code;
    gt_context *ctx;
    if (args_open(&a, &ctx) != GT_OK) return args_fail(&a, "opening the device");
    code = run(&a, ctx);
    gt_context_destroy(ctx);
    return code;
}
