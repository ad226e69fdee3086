#include "cuda/tune.h"

#include <time.h>

/* Runs longer than this need no graph: a launch costs the host about 5 us. */
#define SHORT_MS   0.1f
#define GRAPH_RUNS 10

double gt__cuda_clock(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

bool gt__cuda_may_wait(gt__cuda_device *cuda) {
    enum cudaStreamCaptureStatus capturing;
    if (cudaStreamIsCapturing(cuda->compute, &capturing) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    return capturing == cudaStreamCaptureStatusNone;
}

bool gt__cuda_may_tune(gt__cuda_device *cuda) { return !cuda->base.deterministic && gt__cuda_may_wait(cuda); }

static bool elapsed(gt__cuda_device *cuda, float *ms) {
    return cudaEventRecord(cuda->tune_end, cuda->compute) == cudaSuccess && cudaEventSynchronize(cuda->tune_end) == cudaSuccess &&
           cudaEventElapsedTime(ms, cuda->tune_begin, cuda->tune_end) == cudaSuccess;
}

static bool time_runs(gt__cuda_device *cuda, gt__tune_run run, void *argument, int runs, float *ms) {
    if (cudaEventRecord(cuda->tune_begin, cuda->compute) != cudaSuccess) return false;
    for (int i = 0; i < runs; i++)
        if (!run(argument)) return false;
    if (!elapsed(cuda, ms)) return false;
    *ms /= (float)runs;
    return true;
}

static bool launch_timed(gt__cuda_device *cuda, cudaGraphExec_t graph, float *ms) {
    if (cudaGraphLaunch(graph, cuda->compute) != cudaSuccess) return false;
    if (cudaEventRecord(cuda->tune_begin, cuda->compute) != cudaSuccess) return false;
    if (cudaGraphLaunch(graph, cuda->compute) != cudaSuccess || !elapsed(cuda, ms)) return false;
    *ms /= GRAPH_RUNS;
    return true;
}

static bool time_graph(gt__cuda_device *cuda, gt__tune_run run, void *argument, float *ms) {
    if (cudaStreamBeginCapture(cuda->compute, cudaStreamCaptureModeRelaxed) != cudaSuccess) return false;
    bool works = true;
    for (int i = 0; i < GRAPH_RUNS && works; i++) works = run(argument);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t executable = NULL;
    /* The capture must end whatever happened in it. */
    works = cudaStreamEndCapture(cuda->compute, &graph) == cudaSuccess && graph && works;
    works = works && cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess;
    works = works && launch_timed(cuda, executable, ms);
    if (executable) (void)cudaGraphExecDestroy(executable);
    if (graph) (void)cudaGraphDestroy(graph);
    return works;
}

float gt__cuda_time(gt__cuda_device *cuda, gt__tune_run run, void *argument, float best) {
    float ms = -1, finer;
    /* The first run loads the kernel's code, which a capture might not allow. */
    bool works = run(argument) && time_runs(cuda, run, argument, 1, &ms);
    if (works && ms < SHORT_MS) {
        if (time_graph(cuda, run, argument, &finer)) ms = finer;
    } else if (works && (best <= 0 || ms < 1.3f * best)) {
        works = time_runs(cuda, run, argument, ms < 1 ? 5 : 2, &ms);
    }
    (void)cudaGetLastError();
    return works ? ms : -1;
}

static bool is_nan(const unsigned char *bytes, gt_dtype dtype) {
    switch (dtype) {
    case GT_DTYPE_F16: {
        uint16_t bits;
        memcpy(&bits, bytes, sizeof bits);
        return (bits & 0x7fffu) > 0x7c00u;
    }
    case GT_DTYPE_BF16: {
        uint16_t bits;
        memcpy(&bits, bytes, sizeof bits);
        return (bits & 0x7fffu) > 0x7f80u;
    }
    case GT_DTYPE_F32: {
        uint32_t bits;
        memcpy(&bits, bytes, sizeof bits);
        return (bits & 0x7fffffffu) > 0x7f800000u;
    }
    case GT_DTYPE_F64: {
        uint64_t bits;
        memcpy(&bits, bytes, sizeof bits);
        return (bits & 0x7fffffffffffffffu) > 0x7ff0000000000000u;
    }
    default:
        return false;
    }
}

bool gt__cuda_both_nan(gt__cuda_device *cuda, const void *first, const void *last, gt_dtype dtype) {
    unsigned char *host = cuda->probe_host;
    size_t bytes = dtype == GT_DTYPE_F64 ? 8 : dtype == GT_DTYPE_F32 ? 4 : 2;
    bool read = cudaMemcpyAsync(host, first, bytes, cudaMemcpyDeviceToHost, cuda->compute) == cudaSuccess &&
                cudaMemcpyAsync(host + 8, last, bytes, cudaMemcpyDeviceToHost, cuda->compute) == cudaSuccess &&
                cudaStreamSynchronize(cuda->compute) == cudaSuccess;
    if (!read) (void)cudaGetLastError();
    return read && is_nan(host, dtype) && is_nan(host + 8, dtype);
}
