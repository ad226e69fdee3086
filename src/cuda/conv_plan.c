#include "cuda/conv_plan.h"

/* Names of the tensors inside a graph. */
enum { UID_X = 1, UID_W, UID_Y, UID_BIAS, UID_CONV_OUT, UID_BIAS_OUT };

#define MAX_CONFIGS 24

/* --- descriptors: a list that is freed as a whole, and remembers whether anything failed ------------------------------------------------- */

typedef struct graph {
    cudnnBackendDescriptor_t made[16];
    int count;
    bool failed;
} graph;

static cudnnBackendDescriptor_t make(graph *g, cudnnBackendDescriptorType_t type) {
    cudnnBackendDescriptor_t desc = NULL;
    if (g->failed || g->count == (int)GT__COUNT(g->made) || cudnnBackendCreateDescriptor(type, &desc) != CUDNN_STATUS_SUCCESS) {
        g->failed = true;
        return NULL;
    }
    g->made[g->count++] = desc;
    return desc;
}

static void set(graph *g, cudnnBackendDescriptor_t desc, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                const void *values) {
    if (!g->failed && cudnnBackendSetAttribute(desc, name, type, count, values) != CUDNN_STATUS_SUCCESS) g->failed = true;
}

static void finalize(graph *g, cudnnBackendDescriptor_t desc) {
    if (!g->failed && cudnnBackendFinalize(desc) != CUDNN_STATUS_SUCCESS) g->failed = true;
}

static void destroy(cudnnBackendDescriptor_t desc) {
    if (desc) (void)cudnnBackendDestroyDescriptor(desc);
}

static void graph_free(graph *g) {
    while (g->count > 0) destroy(g->made[--g->count]);
}

/* --- the operation graph --------------------------------------------------------------------------------------------------------- */

static cudnnDataType_t data_type(int32_t dtype) {
    switch (dtype) {
    case GT_DTYPE_F16:
        return CUDNN_DATA_HALF;
    case GT_DTYPE_BF16:
        return CUDNN_DATA_BFLOAT16;
    default:
        return CUDNN_DATA_FLOAT;
    }
}

static cudnnBackendDescriptor_t tensor(graph *g, int64_t uid, const int64_t *shape, cudnnDataType_t type, uint8_t align, bool is_virtual) {
    cudnnBackendDescriptor_t desc = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    int64_t alignment = (int64_t)1 << align;
    int64_t strides[4] = {shape[1] * shape[2] * shape[3], 1, shape[3] * shape[1], shape[1]};
    set(g, desc, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    set(g, desc, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(g, desc, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape);
    set(g, desc, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
    set(g, desc, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    if (is_virtual) set(g, desc, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    finalize(g, desc);
    return desc;
}

/* The two spatial axes; groups follow from the channels of x and w. */
static cudnnBackendDescriptor_t convolution(graph *g, const gt__conv_key *key) {
    cudnnBackendDescriptor_t desc = make(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    int64_t axes = 2;
    set(g, desc, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    set(g, desc, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set(g, desc, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &axes);
    set(g, desc, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, key->padding);
    set(g, desc, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, key->padding);
    set(g, desc, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, key->dilation);
    set(g, desc, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, key->stride);
    finalize(g, desc);
    return desc;
}

typedef struct conv_attributes {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t x, w, y, desc, alpha, beta;
} conv_attributes;

static const conv_attributes attributes_of[] = {
    [GT__CONV_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    [GT__CONV_BACKWARD_INPUT] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    [GT__CONV_BACKWARD_WEIGHT] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
};

static cudnnBackendDescriptor_t conv_operation(graph *g, const gt__conv_key *key, cudnnBackendDescriptor_t y) {
    const conv_attributes *a = &attributes_of[key->kind];
    cudnnDataType_t type = data_type(key->dtype);
    cudnnBackendDescriptor_t x = tensor(g, UID_X, key->x, type, key->align_x, false);
    cudnnBackendDescriptor_t w = tensor(g, UID_W, key->w, data_type(key->w_dtype), key->align_w, false);
    cudnnBackendDescriptor_t desc = convolution(g, key);
    cudnnBackendDescriptor_t op = make(g, a->type);
    const float alpha = 1, beta = 0;
    set(g, op, a->x, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x);
    set(g, op, a->w, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &w);
    set(g, op, a->y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y);
    set(g, op, a->desc, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &desc);
    set(g, op, a->alpha, CUDNN_TYPE_FLOAT, 1, &alpha);
    set(g, op, a->beta, CUDNN_TYPE_FLOAT, 1, &beta);
    finalize(g, op);
    return op;
}

/* y = mode(x, b); b is NULL for relu. */
static cudnnBackendDescriptor_t pointwise(graph *g, cudnnPointwiseMode_t mode, cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t b,
                                          cudnnBackendDescriptor_t y) {
    cudnnBackendDescriptor_t desc = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    set(g, desc, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(g, desc, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    finalize(g, desc);
    cudnnBackendDescriptor_t op = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &desc);
    set(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x);
    if (b) set(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &b);
    set(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y);
    finalize(g, op);
    return op;
}

static cudnnBackendDescriptor_t operation_graph(gt__cuda_device *cuda, graph *g, const gt__conv_key *key, bool fused) {
    cudnnBackendDescriptor_t ops[3];
    int64_t count = 0;
    cudnnDataType_t type = data_type(key->dtype);
    cudnnBackendDescriptor_t y = tensor(g, UID_Y, key->y, type, key->align_y, false);
    if (!fused) {
        ops[count++] = conv_operation(g, key, y);
    } else {
        cudnnBackendDescriptor_t at = tensor(g, UID_CONV_OUT, key->y, CUDNN_DATA_FLOAT, 4, true);
        ops[count++] = conv_operation(g, key, at);
        if (key->bias) {
            const int64_t shape[4] = {1, key->y[1], 1, 1};
            cudnnBackendDescriptor_t bias = tensor(g, UID_BIAS, shape, type, key->align_bias, false);
            cudnnBackendDescriptor_t next = key->relu ? tensor(g, UID_BIAS_OUT, key->y, CUDNN_DATA_FLOAT, 4, true) : y;
            ops[count++] = pointwise(g, CUDNN_POINTWISE_ADD, at, bias, next);
            at = next;
        }
        if (key->relu) ops[count++] = pointwise(g, CUDNN_POINTWISE_RELU_FWD, at, NULL, y);
    }
    cudnnBackendDescriptor_t desc = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(g, desc, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &cuda->cudnn);
    set(g, desc, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, ops);
    finalize(g, desc);
    return desc;
}

/* --- engines --------------------------------------------------------------------------------------------------------------------- */

/* Asks for configurations in one mode; the caller owns the results. */
static int ask_heuristic(cudnnBackendDescriptor_t operations, cudnnBackendHeurMode_t mode, cudnnBackendDescriptor_t *configs,
                         int capacity) {
    graph g = {0};
    cudnnBackendDescriptor_t heuristic = make(&g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set(&g, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &operations);
    set(&g, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finalize(&g, heuristic);
    int64_t count = 0;
    int made = 0;
    if (!g.failed && cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, NULL) ==
                         CUDNN_STATUS_SUCCESS) {
        count = GT__MIN(count, capacity);
        while (made < count && cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &configs[made]) == CUDNN_STATUS_SUCCESS)
            made++;
        int64_t got = 0;
        if (made > 0 && cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, made, &got,
                                                 configs) != CUDNN_STATUS_SUCCESS)
            got = 0;
        while (made > got) destroy(configs[--made]);
    }
    graph_free(&g);
    return made;
}

static bool has_note(const cudnnBackendNumericalNote_t *notes, int64_t count, cudnnBackendNumericalNote_t note) {
    for (int64_t i = 0; i < count; i++)
        if (notes[i] == note) return true;
    return false;
}

/* Does the engine compute what was promised: sums in f32, inputs as they are, TF32 only where allowed, the same bits each time if so wished? */
static bool acceptable(const gt__cuda_device *cuda, const gt__conv_key *key, cudnnBackendDescriptor_t config) {
    cudnnBackendDescriptor_t engine;
    if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) != CUDNN_STATUS_SUCCESS) return false;
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    cudnnBackendBehaviorNote_t behaviors[CUDNN_BEHAVIOR_NOTE_TYPE_COUNT];
    int64_t engines = 0, note_count = 0, behavior_count = 0;
    bool good = cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engines, &engine) ==
                    CUDNN_STATUS_SUCCESS &&
                cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                         CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &note_count, notes) == CUDNN_STATUS_SUCCESS &&
                cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, CUDNN_BEHAVIOR_NOTE_TYPE_COUNT,
                                         &behavior_count, behaviors) == CUDNN_STATUS_SUCCESS;
    note_count = GT__MIN(note_count, (int64_t)GT__COUNT(notes));
    behavior_count = GT__MIN(behavior_count, (int64_t)GT__COUNT(behaviors));
    if (has_note(notes, note_count, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS) ||
        has_note(notes, note_count, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION))
        good = false;
    if (cuda->base.deterministic && has_note(notes, note_count, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)) good = false;
    if (key->dtype == GT_DTYPE_F32 && !cuda->base.allow_tf32 && has_note(notes, note_count, CUDNN_NUMERICAL_NOTE_TENSOR_CORE)) good = false;
    /* Compiling at run time takes longer than a first call may. */
    for (int64_t i = 0; i < behavior_count; i++)
        if (behaviors[i] == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) good = false;
    destroy(engine);
    return good;
}

static bool make_plan(gt__cuda_device *cuda, const gt__conv_key *key, cudnnBackendDescriptor_t config, gt__conv_engine *engine) {
    cudnnBackendDescriptor_t plan;
    if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan) != CUDNN_STATUS_SUCCESS) return false;
    int64_t workspace = 0, count = 0;
    if (cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &cuda->cudnn) == CUDNN_STATUS_SUCCESS &&
        cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config) ==
            CUDNN_STATUS_SUCCESS &&
        cudnnBackendFinalize(plan) == CUDNN_STATUS_SUCCESS &&
        cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &workspace) ==
            CUDNN_STATUS_SUCCESS &&
        workspace >= 0 && (uint64_t)workspace <= key->workspace) {
        *engine = (gt__conv_engine){.plan = plan, .config = config, .workspace = workspace};
        return true;
    }
    destroy(plan);
    return false;
}

int gt__conv_engines(gt__cuda_device *cuda, const gt__conv_key *key, bool fused, gt__conv_engine *engines, int capacity) {
    /* Mode A is quick and good; B asks a slower model; the fallback's engines take nearly everything. */
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_FALLBACK};
    graph g = {0};
    int kept = 0;
    cudnnBackendDescriptor_t operations = operation_graph(cuda, &g, key, fused);
    for (size_t mode = 0; mode < GT__COUNT(modes) && !g.failed && kept == 0; mode++) {
        cudnnBackendDescriptor_t configs[MAX_CONFIGS];
        int count = ask_heuristic(operations, modes[mode], configs, MAX_CONFIGS);
        for (int i = 0; i < count; i++) {
            if (kept < capacity && acceptable(cuda, key, configs[i]) && make_plan(cuda, key, configs[i], &engines[kept])) {
                engines[kept++].fused = fused;
            } else {
                destroy(configs[i]);
            }
        }
    }
    graph_free(&g);
    return kept;
}

void gt__conv_engine_free(gt__conv_engine *engine) {
    destroy(engine->pack);
    destroy(engine->plan);
    destroy(engine->config);
    *engine = (gt__conv_engine){0};
}

static cudnnStatus_t bind(gt__conv_engine *engine, const gt__conv_data *data, void *workspace) {
    const int64_t uids[4] = {UID_X, UID_W, UID_Y, UID_BIAS};
    const void *pointers[4] = {data->x, data->w, data->y, data->bias};
    int64_t count = engine->fused && data->bias ? 4 : 3;
    destroy(engine->pack);
    engine->pack = NULL;
    cudnnBackendDescriptor_t pack;
    cudnnStatus_t status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (status != CUDNN_STATUS_SUCCESS) return status;
    status = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, uids);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (status == CUDNN_STATUS_SUCCESS) status = cudnnBackendFinalize(pack);
    if (status != CUDNN_STATUS_SUCCESS) {
        destroy(pack);
        return status;
    }
    engine->pack = pack;
    engine->bound = *data;
    engine->bound_workspace = workspace;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t gt__conv_engine_run(gt__cuda_device *cuda, gt__conv_engine *engine, const gt__conv_data *data, void *workspace) {
    const gt__conv_data *bound = &engine->bound;
    if (!engine->pack || bound->x != data->x || bound->w != data->w || bound->y != data->y || bound->bias != data->bias ||
        engine->bound_workspace != workspace) {
        cudnnStatus_t status = bind(engine, data, workspace);
        if (status != CUDNN_STATUS_SUCCESS) return status;
    }
    return cudnnBackendExecute(cuda->cudnn, engine->plan, engine->pack);
}
