/* gtrain/onnx.h: models as ONNX files, for ONNX Runtime, TensorRT, Triton and whatever else reads them.
 *
 * @code
 * #include <gtrain/gtrain.h>
 * gt_status save(gt_module *net, gt_tensor *images) { // [N,3,224,224], any N
 *     return gt_module_export_onnx(net, &images, 1, NULL, "net.onnx");
 * }
 * @endcode
 *
 * The module's forward is run on example inputs and the ops that it calls are written down, so what is exported is what this forward does: an `if` in a
 * forward of your own has taken one of its ways. Values stay f32, f16, bf16 or f64 as the module has them; an autocast region around the call, or in a
 * forward, is written down as casts.
 */
#ifndef GTRAIN_ONNX_H
#define GTRAIN_ONNX_H

#include <gtrain/nn.h>

GT_EXTERN_C_BEGIN

typedef struct gt_onnx_options {
    uint32_t struct_size;
    int32_t opset; /* version of ONNX's operators, 17 to 23; default 17 */
    /* Not 0 (default): axis 0 of the inputs is a batch, and the model takes one of any size. 0: the sizes are the examples'. */
    int32_t dynamic_batch;
    int32_t n_metadata; /* pairs in `metadata` */
    /* One an input; NULL (default): "input", or "input_0", "input_1" … of several. */
    const char *const *input_names;
    /* One an input: 0 where an input has no batch axis although dynamic_batch is on; NULL (default): all have one. */
    const int32_t *batched;
    const char *output_name;     /* default "output" */
    const char *batch_name;      /* of the batch axis; default "batch" */
    const char *const *metadata; /* key, value, key, value …; stored with the model */
} gt_onnx_options;
GT_API gt_status gt_onnx_options_init(gt_onnx_options *options, size_t size); /* @since 0.1 */

/* Writes `module`, in evaluation mode, to `path`. The inputs give dtypes and sizes; with a dynamic batch the forward runs on two other batch sizes, made from the
 * examples' rows, and what differs between them is what depends on the batch. Weights have the names that gt_module_parameter gives and lie in logical order. Names of
 * nodes begin with their module's path. The module, its modes and the context's random numbers are left as they were. `options` may be NULL. Waits for the device.
 *
 * NOT_SUPPORTED, naming op and module, for what ONNX cannot say: ops of your own, losses, random numbers, batch statistics in evaluation mode, values that the forward
 * reads on the host (gt_tensor_read, gt_tensor_item), changes in place, tensors or numbers that the forward makes from the batch size, models over 2 GiB. What reads
 * through gt_tensor_data is not noticed, and what comes of it is taken for a constant. BAD_ARGUMENT for an opset, a name or a number of inputs that does not fit;
 * BAD_SHAPE for inputs without a batch axis or of several batch sizes; BAD_STATE inside another export. IO, after which `path` is as it was (see
 * gt_memory_snapshot). Whatever the forward fails with. @since 0.1 */
GT_API gt_status gt_module_export_onnx(gt_module *module, gt_tensor *const *inputs, int32_t n_inputs, const gt_onnx_options *options,
                                       const char *path);

GT_EXTERN_C_END
#endif
