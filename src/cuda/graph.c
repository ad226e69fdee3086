/* Work on the compute stream written down as a CUDA graph. */
#include "cuda/device.h"
#include "cuda/kernels.h"

/* Relaxed: what other threads and other contexts do meanwhile is none of the capture's business. */
gt_status gt__cuda_capture_begin(gt__device *device) {
    GT_TRY_CUDA(cudaStreamBeginCapture(gt__cuda(device)->compute, cudaStreamCaptureModeRelaxed));
    return GT_OK;
}

gt_status gt__cuda_capture_end(gt__device *device, gt__graph **result) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t ready = NULL;
    cudaError_t code = cudaStreamEndCapture(gt__cuda(device)->compute, &graph);
    if (result == NULL) { /* whatever became of it */
        if (graph) (void)cudaGraphDestroy(graph);
        if (code != cudaSuccess) (void)cudaGetLastError();
        return GT_OK;
    }
    GT_TRY_CUDA(code);
    code = cudaGraphInstantiate(&ready, graph, 0);
    (void)cudaGraphDestroy(graph);
    GT_TRY_CUDA(code);
    *result = (gt__graph *)ready;
    return GT_OK;
}

gt_status gt__cuda_graph_launch(gt__device *device, gt__graph *graph) {
    GT_TRY_CUDA(cudaGraphLaunch((cudaGraphExec_t)graph, gt__cuda(device)->compute));
    return GT_OK;
}

/* A graph that runs still is waited for by CUDA itself. */
void gt__cuda_graph_destroy(gt__device *device, gt__graph *graph) {
    (void)device;
    if (graph && cudaGraphExecDestroy((cudaGraphExec_t)graph) != cudaSuccess) (void)cudaGetLastError();
}
