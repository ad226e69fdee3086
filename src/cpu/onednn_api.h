/* The part of oneDNN's C API that we use, in one form for versions 2 and 3: version 3 made memory descriptions opaque and dropped the
 * operation descriptions. All data is f32. */
#ifndef GT_CPU_ONEDNN_API_H
#define GT_CPU_ONEDNN_API_H

#include <oneapi/dnnl/dnnl.h>
#include <stddef.h>

typedef struct gt__dnn_conv {
    dnnl_dims_t stride, dilation, padding; /* dilation: 0 for neighbours */
} gt__dnn_conv;

#if DNNL_VERSION_MAJOR >= 3

typedef dnnl_memory_desc_t gt__dnn_md;           /* owned */
typedef const_dnnl_memory_desc_t gt__dnn_md_ref; /* borrowed */
typedef dnnl_primitive_desc_t gt__dnn_pd;

static inline gt__dnn_md_ref gt__dnn_ref(const gt__dnn_md *md) { return *md; }

static inline dnnl_status_t gt__dnn_md_strided(gt__dnn_md *md, int ndim, const dnnl_dims_t shape, const dnnl_dims_t strides) {
    return dnnl_memory_desc_create_with_strides(md, ndim, shape, dnnl_f32, strides);
}

static inline dnnl_status_t gt__dnn_md_tag(gt__dnn_md *md, int ndim, const dnnl_dims_t shape, dnnl_format_tag_t tag) {
    return dnnl_memory_desc_create_with_tag(md, ndim, shape, dnnl_f32, tag);
}

static inline dnnl_status_t gt__dnn_append_sum(dnnl_post_ops_t ops) { return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef); }

static inline void gt__dnn_md_free(gt__dnn_md *md) {
    if (*md) (void)dnnl_memory_desc_destroy(*md);
    *md = NULL;
}

static inline dnnl_status_t gt__dnn_matmul(gt__dnn_pd *pd, dnnl_engine_t engine, gt__dnn_md_ref a, gt__dnn_md_ref b, gt__dnn_md_ref bias,
                                           gt__dnn_md_ref c, const_dnnl_primitive_attr_t attr) {
    return dnnl_matmul_primitive_desc_create(pd, engine, a, b, bias, c, attr);
}

static inline dnnl_status_t gt__dnn_conv_forward(gt__dnn_pd *pd, dnnl_engine_t engine, gt__dnn_md_ref x, gt__dnn_md_ref w,
                                                 gt__dnn_md_ref bias, gt__dnn_md_ref y, const gt__dnn_conv *conv,
                                                 const_dnnl_primitive_attr_t attr) {
    return dnnl_convolution_forward_primitive_desc_create(pd, engine, dnnl_forward_training, dnnl_convolution_direct, x, w, bias, y,
                                                          conv->stride, conv->dilation, conv->padding, conv->padding, attr);
}

static inline dnnl_status_t gt__dnn_conv_backward_data(gt__dnn_pd *pd, dnnl_engine_t engine, gt__dnn_md_ref dx, gt__dnn_md_ref w,
                                                       gt__dnn_md_ref dy, const gt__dnn_conv *conv, const_dnnl_primitive_desc_t hint,
                                                       const_dnnl_primitive_attr_t attr) {
    return dnnl_convolution_backward_data_primitive_desc_create(pd, engine, dnnl_convolution_direct, dx, w, dy, conv->stride,
                                                                conv->dilation, conv->padding, conv->padding, hint, attr);
}

static inline dnnl_status_t gt__dnn_conv_backward_weights(gt__dnn_pd *pd, dnnl_engine_t engine, gt__dnn_md_ref x, gt__dnn_md_ref dw,
                                                          gt__dnn_md_ref dy, const gt__dnn_conv *conv, const_dnnl_primitive_desc_t hint,
                                                          const_dnnl_primitive_attr_t attr) {
    return dnnl_convolution_backward_weights_primitive_desc_create(pd, engine, dnnl_convolution_direct, x, dw, NULL, dy, conv->stride,
                                                                   conv->dilation, conv->padding, conv->padding, hint, attr);
}

#else

typedef dnnl_memory_desc_t gt__dnn_md;
typedef const dnnl_memory_desc_t *gt__dnn_md_ref;
typedef dnnl_primitive_desc_t gt__dnn_pd;

static inline gt__dnn_md_ref gt__dnn_ref(const gt__dnn_md *md) { return md; }

static inline dnnl_status_t gt__dnn_md_strided(gt__dnn_md *md, int ndim, const dnnl_dims_t shape, const dnnl_dims_t strides) {
    return dnnl_memory_desc_init_by_strides(md, ndim, shape, dnnl_f32, strides);
}

static inline dnnl_status_t gt__dnn_md_tag(gt__dnn_md *md, int ndim, const dnnl_dims_t shape, dnnl_format_tag_t tag) {
    return dnnl_memory_desc_init_by_tag(md, ndim, shape, dnnl_f32, tag);
}

static inline dnnl_status_t gt__dnn_append_sum(dnnl_post_ops_t ops) { return dnnl_post_ops_append_sum(ops, 1.0f); }

static inline void gt__dnn_md_free(gt__dnn_md *md) { (void)md; }

static inline dnnl_status_t gt__dnn_matmul(gt__dnn_pd *pd, dnnl_engine_t engine, gt__dnn_md_ref a, gt__dnn_md_ref b, gt__dnn_md_ref bias,
                                           gt__dnn_md_ref c, const_dnnl_primitive_attr_t attr) {
    dnnl_matmul_desc_t op;
    dnnl_status_t status = dnnl_matmul_desc_init(&op, a, b, bias, c);
    return status == dnnl_success ? dnnl_primitive_desc_create(pd, &op, attr, engine, NULL) : status;
}

static inline dnnl_status_t gt__dnn_conv_forward(gt__dnn_pd *pd, dnnl_engine_t engine, gt__dnn_md_ref x, gt__dnn_md_ref w,
                                                 gt__dnn_md_ref bias, gt__dnn_md_ref y, const gt__dnn_conv *conv,
                                                 const_dnnl_primitive_attr_t attr) {
    dnnl_convolution_desc_t op;
    dnnl_status_t status = dnnl_dilated_convolution_forward_desc_init(&op, dnnl_forward_training, dnnl_convolution_direct, x, w, bias, y,
                                                                      conv->stride, conv->dilation, conv->padding, conv->padding);
    return status == dnnl_success ? dnnl_primitive_desc_create(pd, &op, attr, engine, NULL) : status;
}

static inline dnnl_status_t gt__dnn_conv_backward_data(gt__dnn_pd *pd, dnnl_engine_t engine, gt__dnn_md_ref dx, gt__dnn_md_ref w,
                                                       gt__dnn_md_ref dy, const gt__dnn_conv *conv, const_dnnl_primitive_desc_t hint,
                                                       const_dnnl_primitive_attr_t attr) {
    dnnl_convolution_desc_t op;
    dnnl_status_t status = dnnl_dilated_convolution_backward_data_desc_init(&op, dnnl_convolution_direct, dx, w, dy, conv->stride,
                                                                            conv->dilation, conv->padding, conv->padding);
    return status == dnnl_success ? dnnl_primitive_desc_create(pd, &op, attr, engine, hint) : status;
}

static inline dnnl_status_t gt__dnn_conv_backward_weights(gt__dnn_pd *pd, dnnl_engine_t engine, gt__dnn_md_ref x, gt__dnn_md_ref dw,
                                                          gt__dnn_md_ref dy, const gt__dnn_conv *conv, const_dnnl_primitive_desc_t hint,
                                                          const_dnnl_primitive_attr_t attr) {
    dnnl_convolution_desc_t op;
    dnnl_status_t status = dnnl_dilated_convolution_backward_weights_desc_init(&op, dnnl_convolution_direct, x, dw, NULL, dy, conv->stride,
                                                                               conv->dilation, conv->padding, conv->padding);
    return status == dnnl_success ? dnnl_primitive_desc_create(pd, &op, attr, engine, hint) : status;
}

#endif
#endif
