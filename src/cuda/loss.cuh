/* What kernels of cross-entropy know of their call. */
#ifndef GT_CUDA_LOSS_CUH
#define GT_CUDA_LOSS_CUH

#include "cuda/launch.cuh"
#include "cuda/report.cuh"

namespace gt {

template <typename C>
struct Loss {
    const void *labels;
    const C *weights; /* of classes, or NULL */
    gt_dtype label_dtype;
    int32_t op;
    int64_t rows, classes, ignore;
    C smoothing;
    gt_reduction reduction;
    int32_t lanes; /* neighbouring threads that share a row */
    gt__error_slot error;

#ifdef __CUDACC__
    /* The row's class, or -1 where it does not count. */
    __device__ __forceinline__ int64_t label(int64_t row, bool report) const {
        const int64_t value = load_index(labels, label_dtype, row);
        if (value == ignore) return -1;
        if (value >= 0 && value < classes) return value;
        if (report) report_label(error, op, row, value, classes);
        return -1;
    }
    __device__ __forceinline__ C weight(int64_t c) const { return weights ? weights[c] : C(1); }
#endif
};

#ifdef __CUDACC__
/* Writes the loss (unless it is one a row) and the sums, from totals of loss, weight and valid rows. */
template <typename C>
__device__ __forceinline__ void loss_finish(gt_reduction reduction, C loss_sum, C weight_sum, C count, C *loss, C *sums) {
    if (loss && reduction == GT_REDUCTION_SUM) loss[0] = loss_sum;
    if (loss && reduction == GT_REDUCTION_MEAN) loss[0] = count > C(0) ? loss_sum / weight_sum : C(0);
    if (!sums) return;
    sums[0] = weight_sum;
    sums[1] = count;
}
#endif

/* With `device` NULL there is nowhere to report a label. */
template <typename C>
inline Loss<C> loss_make(gt__device *device, const gt__call *call, const gt_tensor *logits, const gt_tensor *labels,
                         const gt_tensor *weights) {
    Loss<C> info;
    info.labels = data(labels);
    info.weights = data<const C>(weights);
    info.label_dtype = labels->meta.dtype;
    info.op = static_cast<int32_t>(call->op);
    info.rows = logits->meta.shape[0];
    info.classes = logits->meta.shape[1];
    info.ignore = call->attr.loss.ignore_label;
    info.smoothing = static_cast<C>(call->attr.loss.label_smoothing);
    info.reduction = call->attr.loss.reduction;
    info.lanes = 1;
    if (device) info.error = gt__cuda_error_slot(device);
    return info;
}

} // namespace gt

#endif
