/* A build without oneDNN. */
#include "cpu/onednn.h"

gt_status gt__onednn_create(int32_t threads, gt__onednn **onednn) {
    (void)threads;
    *onednn = NULL;
    return GT_OK;
}

void gt__onednn_destroy(gt__onednn *onednn) { (void)onednn; }

const char *gt__onednn_version(char *buffer, size_t size) {
    if (size) buffer[0] = '\0';
    return buffer;
}

gt_status gt__onednn_matmul(gt__device *device, const gt__call *call) {
    (void)device;
    (void)call;
    return GT_NOT_SUPPORTED;
}

gt_status gt__onednn_linear(gt__device *device, const gt__call *call) {
    (void)device;
    (void)call;
    return GT_NOT_SUPPORTED;
}

gt_status gt__onednn_linear_backward_weight(gt__device *device, const gt__call *call) {
    (void)device;
    (void)call;
    return GT_NOT_SUPPORTED;
}

gt_status gt__onednn_conv2d(gt__device *device, const gt__call *call) {
    (void)device;
    (void)call;
    return GT_NOT_SUPPORTED;
}

gt_status gt__onednn_conv2d_backward_input(gt__device *device, const gt__call *call) {
    (void)device;
    (void)call;
    return GT_NOT_SUPPORTED;
}

gt_status gt__onednn_conv2d_backward_weight(gt__device *device, const gt__call *call) {
    (void)device;
    (void)call;
    return GT_NOT_SUPPORTED;
}
