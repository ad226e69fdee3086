/* Work on the compute stream written down as a CUDA graph. */
#include "cuda/device.h"
#include "cuda/kernels.h"

struct gt__graph {
    cudaGraph_t graph; /* kept: `moves` is one of its nodes */
    cudaGraphExec_t ready;
    cudaGraphNode_t moves; /* the inputs' launch, or NULL */
};

/* Relaxed: what other threads and other contexts do meanwhile is none of the capture's business. */
gt_status gt__cuda_capture_begin(gt__device *device) {
    gt__cuda(device)->captured_moves = NULL;
    GT_TRY_CUDA(cudaStreamBeginCapture(gt__cuda(device)->compute, cudaStreamCaptureModeRelaxed));
    return GT_OK;
}

/* --- branches ------------------------------------------------------------------------------------------------------------------------- */

static gt_status set_stream(gt__cuda_device *cuda, cudaStream_t stream) {
    cuda->compute = stream;
    if (cuda->cudnn) GT_TRY_CUDNN(cudnnSetStream(cuda->cudnn, stream));
    return GT_OK;
}

/* `later` goes on after what `earlier` has so far. */
static gt_status follow(gt__cuda_device *cuda, cudaStream_t earlier, cudaStream_t later) {
    GT_TRY_CUDA(cudaEventRecord(cuda->branch_event, earlier));
    GT_TRY_CUDA(cudaStreamWaitEvent(later, cuda->branch_event, 0));
    return GT_OK;
}

static gt_status back(gt__cuda_device *cuda) {
    if (!cuda->main) return GT_OK;
    cudaStream_t main = cuda->main;
    cuda->main = NULL;
    return set_stream(cuda, main);
}

gt_status gt__cuda_capture_branch(gt__device *device, bool aside) {
    gt__cuda_device *cuda = gt__cuda(device);
    if (!aside) return back(cuda);
    cudaStream_t main = cuda->main ? cuda->main : cuda->compute;
    GT_TRY(follow(cuda, main, cuda->aside));
    if (cuda->main) return GT_OK;
    cuda->main = main;
    return set_stream(cuda, cuda->aside);
}

gt_status gt__cuda_capture_join(gt__device *device) {
    gt__cuda_device *cuda = gt__cuda(device);
    GT_TRY(back(cuda));
    return follow(cuda, cuda->aside, cuda->compute);
}

static gt_status finish(gt__cuda_device *cuda, cudaGraph_t graph, gt__graph **result) {
    gt__graph *made = gt__calloc(1, sizeof *made);
    if (!made) return GT_OUT_OF_HOST_MEMORY;
    cudaError_t code = cudaGraphInstantiate(&made->ready, graph, 0);
    if (code != cudaSuccess) {
        gt__free(made);
        GT_TRY_CUDA(code);
    }
    made->graph = graph;
    made->moves = cuda->captured_moves;
    *result = made;
    return GT_OK;
}

gt_status gt__cuda_capture_end(gt__device *device, gt__graph **result) {
    cudaGraph_t graph = NULL;
    (void)back(gt__cuda(device)); /* where a branch failed */
    cudaError_t code = cudaStreamEndCapture(gt__cuda(device)->compute, &graph);
    gt_status status = GT_OK;
    if (result == NULL) { /* whatever became of it */
        if (code != cudaSuccess) (void)cudaGetLastError();
    } else if (code != cudaSuccess) {
        status = gt__cuda_raise(code, "cudaStreamEndCapture", __FILE__, __LINE__);
    } else {
        status = finish(gt__cuda(device), graph, result);
    }
    if (graph && (result == NULL || status != GT_OK)) (void)cudaGraphDestroy(graph);
    return status;
}

/* While a stream is captured: the node that was written down last. */
static cudaGraphNode_t last_node(cudaStream_t stream) {
    enum cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    const cudaGraphNode_t *nodes = NULL;
    size_t count = 0;
#if CUDART_VERSION >= 13000
    cudaError_t code = cudaStreamGetCaptureInfo(stream, &capturing, NULL, NULL, &nodes, NULL, &count);
#else
    cudaError_t code = cudaStreamGetCaptureInfo_v2(stream, &capturing, NULL, NULL, &nodes, &count);
#endif
    if (code != cudaSuccess) (void)cudaGetLastError();
    return code == cudaSuccess && capturing == cudaStreamCaptureStatusActive && count == 1 ? nodes[0] : NULL;
}

gt_status gt__cuda_moves(gt__device *device, const gt__move *list, int32_t count) {
    gt__cuda_device *cuda = gt__cuda(device);
    GT_TRY(gt__cuda_move_many(device, list, count));
    cuda->captured_moves = last_node(cuda->compute);
    return GT_OK;
}

gt_status gt__cuda_graph_move(gt__device *device, gt__graph *graph, const gt__move *list, int32_t count) {
    (void)device;
    return graph->moves ? gt__cuda_move_node(graph->ready, graph->moves, list, count) : GT_OK;
}

gt_status gt__cuda_graph_launch(gt__device *device, gt__graph *graph) {
    GT_TRY_CUDA(cudaGraphLaunch(graph->ready, gt__cuda(device)->compute));
    return GT_OK;
}

/* A graph that runs still is waited for by CUDA itself. */
void gt__cuda_graph_destroy(gt__device *device, gt__graph *graph) {
    (void)device;
    if (!graph) return;
    if (cudaGraphExecDestroy(graph->ready) != cudaSuccess) (void)cudaGetLastError();
    if (cudaGraphDestroy(graph->graph) != cudaSuccess) (void)cudaGetLastError();
    gt__free(graph);
}
