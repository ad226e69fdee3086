/* What a training step asks of CUDA, as CUPTI sees it: every runtime and driver call by name, none of which may wait for the device.
 * CUPTI is opened at run time; without it the case is skipped. */
#include "cuda/support.h"

#include <cupti.h>
#include <dlfcn.h>
#include <stdio.h>

enum { MOST_NAMES = 256, STEPS = 20 };

typedef struct counted {
    const char *name;
    int calls;
} counted;

static struct trace {
    int on;
    int n[2];
    counted calls[2][MOST_NAMES]; /* runtime, driver */
    int to_host;                  /* copies that end on the host */
} trace;

static void count_call(int domain, const char *name) {
    for (int i = 0; i < trace.n[domain]; ++i) {
        if (strcmp(trace.calls[domain][i].name, name) != 0) continue;
        trace.calls[domain][i].calls++;
        return;
    }
    if (trace.n[domain] < MOST_NAMES) trace.calls[domain][trace.n[domain]++] = (counted){name, 1};
}

static void CUPTIAPI on_call(void *user, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *site) {
    const CUpti_CallbackData *data = site;
    (void)user, (void)id;
    if (!trace.on || data->callbackSite != CUPTI_API_ENTER) return;
    count_call(domain == CUPTI_CB_DOMAIN_DRIVER_API, data->functionName);
    if (strstr(data->functionName, "DtoH")) trace.to_host++;
}

static int begins_with_one_of(const char *name, const char *const *list) {
    for (; *list; ++list)
        if (strncmp(name, *list, strlen(*list)) == 0) return 1;
    return 0;
}

typedef CUptiResult(CUPTIAPI *subscribe_fn)(CUpti_SubscriberHandle *, CUpti_CallbackFunc, void *);
typedef CUptiResult(CUPTIAPI *enable_fn)(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain);
typedef CUptiResult(CUPTIAPI *unsubscribe_fn)(CUpti_SubscriberHandle);

static gt_module *small_cnn(gt_context *ctx) {
    gt_module *layers[] = {gt_nn_conv2d(ctx, 8, 16, 3, NULL),
                           gt_nn_batch_norm(ctx, 16, NULL),
                           gt_nn_relu(ctx),
                           gt_nn_conv2d(ctx, 16, 16, 3, NULL),
                           gt_nn_relu(ctx),
                           gt_nn_dropout(ctx, 0.1),
                           gt_nn_adaptive_avg_pool2d(ctx, 1, 1),
                           gt_nn_flatten(ctx, 1),
                           gt_nn_linear(ctx, 16, 10, NULL)};
    return gt_nn_sequential_from(ctx, layers, (int32_t)(sizeof layers / sizeof *layers));
}

static gt_status micro_batch(gt_window *window, gt_module *net, gt_tensor *x, gt_tensor *labels) {
    gt_context *ctx = gt_module_context(net);
    gt_status status = gt_window_micro_begin(window);
    if (status == GT_OK) status = gt_scope_begin(ctx);
    if (status == GT_OK) status = gt_autocast_begin(ctx, GT_DTYPE_F16);
    if (status != GT_OK) return status;
    gt_tensor *loss = gt_cross_entropy(gt_module_forward(net, x), labels, NULL);
    (void)gt_autocast_end(ctx);
    status = gt_window_micro_end(window, loss, 0, gt_cross_entropy_valid(loss));
    (void)gt_scope_end(ctx);
    return status;
}

TEST_CUDA_ONLY(unit, an_fp16_step_makes_no_cuda_call_that_waits) {
    gt_context *ctx = test_context(t);
    void *cupti = NULL;
    static const char *const names[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
    for (size_t i = 0; i < sizeof names / sizeof *names && !cupti; ++i) cupti = dlopen(names[i], RTLD_NOW);
    if (!cupti) SKIP("there is no libcupti on the library path");
    subscribe_fn subscribe = (subscribe_fn)dlsym(cupti, "cuptiSubscribe");
    enable_fn enable = (enable_fn)dlsym(cupti, "cuptiEnableDomain");
    unsubscribe_fn unsubscribe = (unsubscribe_fn)dlsym(cupti, "cuptiUnsubscribe");
    CHECK(subscribe && enable && unsubscribe);

    gt_module *net = small_cnn(ctx);
    CHECK_OK(gt_module_check(net));
    gt_optimizer_options oo;
    gt_optimizer *optimizer;
    CHECK_OK(gt_optimizer_options_init(&oo, sizeof oo, GT_OPTIMIZER_ADAMW));
    CHECK_OK(gt_optimizer_create_for(&oo, net, &optimizer));
    gt_scaler *scaler;
    CHECK_OK(gt_scaler_create(ctx, NULL, &scaler));
    gt_schedule schedule;
    CHECK_OK(gt_schedule_init(&schedule, sizeof schedule, GT_SCHEDULE_COSINE));
    schedule.base = 0.01;
    schedule.total_steps = 100;
    gt_window_options o;
    gt_window *window;
    CHECK_OK(gt_window_options_init(&o, sizeof o));
    o.micro_batches = 2;
    o.optimizers = &optimizer;
    o.n_optimizers = 1;
    o.module = net;
    o.scaler = scaler;
    o.schedule = &schedule;
    o.clip_norm = 1;
    CHECK_OK(gt_window_create(&o, &window));
    gt_tensor *x = CHECK_TENSOR(gt_tensor_normal(ctx, GT_DTYPE_F32, 4, (const int64_t[]){32, 8, 16, 16}, 0, 1));
    gt_tensor *labels = CHECK_TENSOR(gt_tensor_full(ctx, GT_DTYPE_I64, 1, (const int64_t[]){32}, 2));
    for (int i = 0; i < 6; ++i) CHECK_OK(micro_batch(window, net, x, labels)); /* plans are chosen by timing, which waits */
    CHECK_OK(gt_context_synchronize(ctx));

    memset(&trace, 0, sizeof trace);
    CUpti_SubscriberHandle subscriber;
    CHECK(subscribe(&subscriber, on_call, NULL) == CUPTI_SUCCESS);
    CHECK(enable(1, subscriber, CUPTI_CB_DOMAIN_RUNTIME_API) == CUPTI_SUCCESS);
    CHECK(enable(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API) == CUPTI_SUCCESS);
    trace.on = 1;
    gt_status status = GT_OK;
    for (int i = 0; i < 2 * STEPS && status == GT_OK; ++i) status = micro_batch(window, net, x, labels);
    trace.on = 0;
    int counted_before = trace.n[0] + trace.n[1];
    trace.on = 1;
    (void)gt_context_synchronize(ctx); /* so the trace sees waits */
    trace.on = 0;
    CHECK(unsubscribe(subscriber) == CUPTI_SUCCESS);
    CHECK_OK(status);

    static const char *const waits[] = {"cudaStreamSynchronize",
                                        "cudaDeviceSynchronize",
                                        "cudaEventSynchronize",
                                        "cudaMemcpy_",
                                        "cudaMalloc",
                                        "cudaFree",
                                        "cuStreamSynchronize",
                                        "cuCtxSynchronize",
                                        "cuEventSynchronize",
                                        "cuMemAlloc",
                                        "cuMemFree",
                                        "cuMemMap",
                                        "cuMemUnmap",
                                        "cuMemcpyDtoH",
                                        NULL};
    int waited = 0, synchronized = 0;
    for (int domain = 0; domain < 2; ++domain)
        for (int i = 0; i < trace.n[domain]; ++i) {
            const counted *c = &trace.calls[domain][i];
            int within_steps = i < trace.n[domain] && c->calls >= STEPS;
            if (within_steps) printf("%-7s %-40s %6.1f a step\n", domain ? "driver" : "runtime", c->name, (double)c->calls / STEPS);
            if (!begins_with_one_of(c->name, waits)) continue;
            synchronized += c->calls;
            if (within_steps) waited++;
        }
    CHECK(counted_before > 2);
    EXPECT_EQ_INT(waited, 0);
    EXPECT(synchronized >= 1 && synchronized <= 8); /* the one after the steps alone: two streams, seen in both domains */
    EXPECT_EQ_INT(trace.to_host, 0);

    gt_window_destroy(window);
    gt_scaler_destroy(scaler);
    gt_optimizer_destroy(optimizer);
    gt_module_destroy(net);
    gt_tensor_release(x);
    gt_tensor_release(labels); /* the library stays open: CUPTI cannot be unloaded */
}
