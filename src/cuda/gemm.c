/* Matrix products by cuBLASLt: MATMUL, LINEAR, LINEAR_RELU, LINEAR_BACKWARD_WEIGHT.
 *
 * Operands are row-major or column-major matrices, one batch axis, any leading dimension. cuBLASLt thinks in columns, so a row-major product
 * D = A B is asked for as D^T = B^T A^T, for which nothing moves. The first call of a shape chooses an algorithm (by timing the candidates,
 * or cuBLASLt's own first choice in deterministic mode); later calls only set pointers. */
#include "cuda/kernels.h"
#include "cuda/tune.h"

#include <limits.h>

#define CANDIDATES   8
#define TUNE_SECONDS 0.06
/* Who has met this many shapes has shapes that keep changing, for which timing does not pay. */
#define TUNED_PLANS 512
#define MAX_BATCH   65535
#define MAX_ROWS    ((int64_t)1 << 30)

typedef struct matrix {
    char *data;
    int64_t ld;
    int64_t batch_stride;
    bool transposed; /* stored column-major */
} matrix;

/* out [batch, m, n] = a [batch, m, k] b [batch, k, n], then += bias [n], then relu; or out += a b. out is row-major, of `dtype` or f32. */
typedef struct problem {
    matrix a, b, out;
    const char *bias; /* or NULL */
    int64_t m, n, k, batch;
    gt_dtype dtype, out_dtype;
    bool relu;
    bool accumulate; /* then neither bias nor relu */
} problem;

typedef enum epilogue { EPILOGUE_NONE, EPILOGUE_BIAS, EPILOGUE_BIAS_RELU } epilogue;

typedef struct gemm_key {
    int64_t m, n, k, batch;
    int64_t lda, ldb, ldd;
    int64_t stride_a, stride_b, stride_d;
    uint64_t workspace;
    int32_t dtype, out_dtype;
    uint8_t transposed_a, transposed_b;
    uint8_t epilogue;
    uint8_t align_a, align_b, align_d, align_bias; /* as powers of two */
    uint8_t accumulate;
} gemm_key;

typedef struct gemm_plan {
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t a, b, d; /* in our naming: cuBLASLt's A is b */
    cublasLtMatmulAlgo_t algo;
    uint64_t workspace;
    int32_t fused; /* the epilogue is the algorithm's */
    int32_t works; /* 0: no algorithm takes these operands as they lie */
} gemm_plan;

_Static_assert(sizeof(gemm_key) % 8 == 0 && sizeof(gemm_plan) % 8 == 0, "the plan cache keeps both aligned");

static void dispose(void *plan) { (void)plan; }

void gt__cuda_gemm_cache_init(gt__plan_cache *cache, uint32_t capacity) {
    gt__plan_cache_init(cache, sizeof(gemm_key), sizeof(gemm_plan), capacity, dispose);
}

/* --- plans ---------------------------------------------------------------------------------------------------------------------- */

static uint8_t alignment_of(const void *pointer, int cap) {
    int bits = 0;
    while (bits < cap && ((uintptr_t)pointer >> bits & 1) == 0) bits++;
    return (uint8_t)bits;
}

static cudaDataType_t data_type(gt_dtype dtype) {
    switch (dtype) {
    case GT_DTYPE_F16:
        return CUDA_R_16F;
    case GT_DTYPE_BF16:
        return CUDA_R_16BF;
    case GT_DTYPE_F64:
        return CUDA_R_64F;
    default:
        return CUDA_R_32F;
    }
}

static cublasComputeType_t compute_type(const gt__cuda_device *cuda, gt_dtype dtype) {
    if (dtype == GT_DTYPE_F64) return CUBLAS_COMPUTE_64F;
    if (dtype == GT_DTYPE_F32 && cuda->base.allow_tf32) return CUBLAS_COMPUTE_32F_FAST_TF32;
    return CUBLAS_COMPUTE_32F;
}

static gemm_key make_key(const problem *p, epilogue e, uint64_t workspace) {
    gemm_key key;
    memset(&key, 0, sizeof key);
    key.m = p->m, key.n = p->n, key.k = p->k, key.batch = p->batch;
    key.lda = p->a.ld, key.ldb = p->b.ld, key.ldd = p->out.ld;
    if (p->batch > 1) key.stride_a = p->a.batch_stride, key.stride_b = p->b.batch_stride, key.stride_d = p->out.batch_stride;
    key.workspace = workspace;
    key.dtype = p->dtype;
    key.out_dtype = p->out_dtype;
    key.accumulate = p->accumulate;
    key.transposed_a = p->a.transposed, key.transposed_b = p->b.transposed;
    key.epilogue = (uint8_t)e;
    key.align_a = alignment_of(p->a.data, 8), key.align_b = alignment_of(p->b.data, 8), key.align_d = alignment_of(p->out.data, 8);
    key.align_bias = e == EPILOGUE_NONE ? 0 : alignment_of(p->bias, 4);
    return key;
}

static bool init_layout(cublasLtMatrixLayout_t layout, cudaDataType_t type, int64_t rows, int64_t cols, int64_t ld, int64_t batch,
                        int64_t stride) {
    int32_t count = (int32_t)batch;
    return cublasLtMatrixLayoutInit(layout, type, (uint64_t)rows, (uint64_t)cols, ld) == CUBLAS_STATUS_SUCCESS &&
           (batch == 1 ||
            (cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count) == CUBLAS_STATUS_SUCCESS &&
             cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride) ==
                 CUBLAS_STATUS_SUCCESS));
}

static bool init_desc(gt__cuda_device *cuda, const problem *p, epilogue e, gemm_plan *plan) {
    cudaDataType_t type = data_type(p->dtype), scale = p->dtype == GT_DTYPE_F64 ? CUDA_R_64F : CUDA_R_32F;
    int32_t op_a = p->b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N, op_b = p->a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    if (cublasLtMatmulDescInit(&plan->desc, compute_type(cuda, p->dtype), scale) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulDescSetAttribute(&plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulDescSetAttribute(&plan->desc, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b) != CUBLAS_STATUS_SUCCESS)
        return false;
    if (e != EPILOGUE_NONE) {
        uint32_t kind = e == EPILOGUE_BIAS ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_RELU_BIAS;
        if (cublasLtMatmulDescSetAttribute(&plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &kind, sizeof kind) != CUBLAS_STATUS_SUCCESS ||
            cublasLtMatmulDescSetAttribute(&plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias, sizeof p->bias) !=
                CUBLAS_STATUS_SUCCESS)
            return false;
    }
    int64_t m = p->m, n = p->n, k = p->k;
    return init_layout(&plan->b, type, p->b.transposed ? k : n, p->b.transposed ? n : k, p->b.ld, p->batch, p->b.batch_stride) &&
           init_layout(&plan->a, type, p->a.transposed ? m : k, p->a.transposed ? k : m, p->a.ld, p->batch, p->a.batch_stride) &&
           init_layout(&plan->d, data_type(p->out_dtype), n, m, p->out.ld, p->batch, p->out.batch_stride);
}

/* cuBLASLt's candidates, best guess first. */
static int find_algorithms(gt__cuda_device *cuda, const gemm_key *key, gemm_plan *plan, cublasLtMatmulHeuristicResult_t *results) {
    cublasLtMatmulPreferenceOpaque_t preference;
    uint32_t align_a = 1u << key->align_a, align_b = 1u << key->align_b, align_d = 1u << key->align_d;
    /* Partial sums are kept in f32. In place they would be in the output's type, and in an order that is a matter of timing. */
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void *value;
        size_t size;
    } settings[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &key->workspace, sizeof key->workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align_b, sizeof align_b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align_a, sizeof align_a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align_d, sizeof align_d},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align_d, sizeof align_d},
    };
    if (cublasLtMatmulPreferenceInit(&preference) != CUBLAS_STATUS_SUCCESS) return 0;
    for (size_t i = 0; i < GT__COUNT(settings); i++)
        if (cublasLtMatmulPreferenceSetAttribute(&preference, settings[i].attribute, settings[i].value, settings[i].size) !=
            CUBLAS_STATUS_SUCCESS)
            return 0;
    int count = 0;
    if (cublasLtMatmulAlgoGetHeuristic(cuda->lt, &plan->desc, &plan->b, &plan->a, &plan->d, &plan->d, &preference, CANDIDATES, results,
                                       &count) != CUBLAS_STATUS_SUCCESS)
        return 0;
    int kept = 0;
    for (int i = 0; i < count; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS && results[i].workspaceSize <= key->workspace) results[kept++] = results[i];
    return kept;
}

static cublasStatus_t run_plan(gt__cuda_device *cuda, const problem *p, gemm_plan *plan, void *workspace) {
    static const float one = 1, zero = 0;
    static const double one64 = 1, zero64 = 0;
    bool f64 = p->dtype == GT_DTYPE_F64;
    if (plan->fused) {
        cublasStatus_t status = cublasLtMatmulDescSetAttribute(&plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias, sizeof p->bias);
        if (status != CUBLAS_STATUS_SUCCESS) return status;
    }
    const void *alpha = f64 ? (const void *)&one64 : &one, *beta = p->accumulate ? alpha : f64 ? (const void *)&zero64 : &zero;
    return cublasLtMatmul(cuda->lt, &plan->desc, alpha, p->b.data, &plan->b, p->a.data, &plan->a, beta, p->out.data, &plan->d, p->out.data,
                          &plan->d, &plan->algo, workspace, plan->workspace, cuda->compute);
}

typedef struct trial {
    gt__cuda_device *cuda;
    const problem *problem;
    gemm_plan *plan;
    void *workspace;
} trial;

static bool run_trial(void *argument) {
    trial *t = argument;
    return run_plan(t->cuda, t->problem, t->plan, t->workspace) == CUBLAS_STATUS_SUCCESS;
}

static void use_algorithm(gemm_plan *plan, const cublasLtMatmulHeuristicResult_t *result) {
    plan->algo = result->algo;
    plan->workspace = result->workspaceSize;
}

/* The fastest of the candidates, or the first that works where none may be timed. */
static float choose_by(gt__cuda_device *cuda, trial *t, const cublasLtMatmulHeuristicResult_t *results, int count) {
    if (cuda->gemm_plans.count >= TUNED_PLANS || !gt__cuda_may_tune(cuda)) {
        for (int i = 0; i < count; i++) {
            use_algorithm(t->plan, &results[i]);
            if (run_trial(t)) return 0;
        }
        return -1;
    }
    float best_ms = -1;
    int best = 0;
    double begin = gt__cuda_clock();
    for (int i = 0; i < count; i++) {
        use_algorithm(t->plan, &results[i]);
        float ms = gt__cuda_time(cuda, run_trial, t, best_ms);
        /* A later candidate must win by more than the noise of the measurement. */
        if (ms >= 0 && (best_ms < 0 || ms < 0.98f * best_ms)) best = i, best_ms = ms;
        if (best_ms >= 0 && gt__cuda_clock() - begin > TUNE_SECONDS) break;
    }
    use_algorithm(t->plan, &results[best]);
    return best_ms;
}

/* Chooses among candidates, and returns the time of the best (0 where nothing was timed), negative if none works. The output is overwritten, which the
 * call itself will do again; what is to be added to stays as it is. */
static float choose(gt__cuda_device *cuda, const problem *p, gemm_plan *plan, const cublasLtMatmulHeuristicResult_t *results, int count,
                    void *workspace) {
    problem elsewhere = *p;
    trial t = {cuda, &elsewhere, plan, workspace};
    void *room = NULL, *handle = NULL;
    if (p->accumulate) {
        size_t bytes = (size_t)((p->batch - 1) * p->out.batch_stride + p->m * p->out.ld) * gt_dtype_size(p->out_dtype);
        use_algorithm(plan, &results[0]); /* on trust where there is no room to try it */
        if (gt__scratch_alloc_quiet(cuda->base.ctx, bytes, &room, &handle) != GT_OK) return 0;
        elsewhere.out.data = room;
    }
    float ms = choose_by(cuda, &t, results, count);
    gt__scratch_free(cuda->base.ctx, handle);
    return ms;
}

/* A fused relu may return 0 for NaN, which would hide a training run's collapse: asks this very algorithm, with a bias of NaN. */
static bool relu_keeps_nan(gt__cuda_device *cuda, const problem *p, gemm_plan *plan, void *workspace) {
    size_t element = gt_dtype_size(p->dtype);
    void *bias, *handle;
    if (!gt__cuda_may_wait(cuda)) return false;
    if (gt__scratch_alloc_quiet(cuda->base.ctx, (size_t)p->n * element, &bias, &handle) != GT_OK) return false;
    problem probe = *p;
    probe.bias = bias;
    int64_t last = ((p->batch - 1) * p->out.batch_stride + (p->m - 1) * p->out.ld + p->n - 1) * (int64_t)element;
    /* All bits set is NaN in every floating dtype. */
    bool keeps = cudaMemsetAsync(bias, 0xff, (size_t)p->n * element, cuda->compute) == cudaSuccess &&
                 run_plan(cuda, &probe, plan, workspace) == CUBLAS_STATUS_SUCCESS &&
                 gt__cuda_both_nan(cuda, p->out.data, p->out.data + last, p->dtype);
    (void)cudaGetLastError();
    gt__scratch_free(cuda->base.ctx, handle);
    return keeps;
}

/* Scratch for the greediest candidate; where memory is short, drops those that need any. */
static int candidates_workspace(gt__cuda_device *cuda, cublasLtMatmulHeuristicResult_t *results, int count, void **workspace,
                                void **handle) {
    size_t most = 0;
    *workspace = *handle = NULL;
    for (int i = 0; i < count; i++) most = GT__MAX(most, results[i].workspaceSize);
    if (most == 0 || gt__scratch_alloc_quiet(cuda->base.ctx, most, workspace, handle) == GT_OK) return count;
    int kept = 0;
    for (int i = 0; i < count; i++)
        if (results[i].workspaceSize == 0) results[kept++] = results[i];
    return kept;
}

/* With the epilogue in the algorithm if that works, else without. */
static void prepare(gt__cuda_device *cuda, const problem *p, const gemm_key *key, gemm_plan *plan) {
    memset(plan, 0, sizeof *plan);
    for (int fused = key->epilogue != EPILOGUE_NONE; fused >= 0 && !plan->works; fused--) {
        cublasLtMatmulHeuristicResult_t results[CANDIDATES];
        void *workspace, *handle;
        epilogue e = fused ? (epilogue)key->epilogue : EPILOGUE_NONE;
        if (!init_desc(cuda, p, e, plan)) continue;
        plan->fused = fused;
        int count = find_algorithms(cuda, key, plan, results);
        count = candidates_workspace(cuda, results, count, &workspace, &handle);
        float ms = count ? choose(cuda, p, plan, results, count, workspace) : -1;
        plan->works = ms >= 0 && (e != EPILOGUE_BIAS_RELU || relu_keeps_nan(cuda, p, plan, workspace));
        gt__scratch_free(cuda->base.ctx, handle);
        gt__log(cuda->base.ctx, GT_LOG_DEBUG,
                "cublasLt %s %lldx%lldx%lld, batch %lld, epilogue %d: %d candidates, %.4f ms, workspace %llu%s", gt_dtype_name(p->dtype),
                (long long)p->m, (long long)p->n, (long long)p->k, (long long)p->batch, (int)e, count, (double)ms,
                (unsigned long long)plan->workspace, plan->works ? "" : ", unusable");
    }
    (void)cudaGetLastError();
}

/* --- one product ---------------------------------------------------------------------------------------------------------------- */

static gt_status multiply(gt__cuda_device *cuda, const gt__call *call, const problem *p, uint64_t workspace, bool may_pack);

static int64_t round_up(int64_t value) { return (value + 7) / 8 * 8; }

static gt__meta matrix_meta(const matrix *x, int64_t batch, int64_t rows, int64_t cols, gt_dtype dtype) {
    return (gt__meta){.shape = {batch, rows, cols},
                      .strides = {x->batch_stride, x->transposed ? 1 : x->ld, x->transposed ? x->ld : 1},
                      .numel = batch * rows * cols,
                      .ndim = 3,
                      .dtype = dtype};
}

/* Copies an operand to rows that begin at multiples of 16 bytes. */
static gt_status pack(gt__cuda_device *cuda, const problem *p, matrix *x, int64_t rows, int64_t cols, void **handle) {
    int64_t batch = x->batch_stride ? p->batch : 1;
    matrix packed = {.ld = round_up(cols), .batch_stride = batch > 1 ? rows * round_up(cols) : 0};
    size_t bytes = (size_t)(batch * rows * packed.ld) * gt_dtype_size(p->dtype);
    void *data;
    GT_TRY(gt__scratch_alloc(cuda->base.ctx, bytes, &data, handle));
    packed.data = data;
    gt__meta from = matrix_meta(x, batch, rows, cols, p->dtype), to = matrix_meta(&packed, batch, rows, cols, p->dtype);
    GT_TRY(gt__cuda_copy_strided(&cuda->base, packed.data, &to, x->data, &from));
    *x = packed;
    return GT_OK;
}

/* For operands whose alignment no algorithm takes. */
static gt_status multiply_packed(gt__cuda_device *cuda, const gt__call *call, const problem *p, uint64_t workspace) {
    problem packed = *p;
    void *handles[3] = {NULL, NULL, NULL}, *data = NULL;
    gt_status status = pack(cuda, p, &packed.a, p->m, p->k, &handles[0]);
    if (status == GT_OK) status = pack(cuda, p, &packed.b, p->k, p->n, &handles[1]);
    packed.out = (matrix){.ld = round_up(p->n), .batch_stride = p->m * round_up(p->n)};
    packed.bias = NULL;
    packed.relu = false;
    size_t bytes = (size_t)(p->batch * packed.out.batch_stride) * gt_dtype_size(p->out_dtype);
    gt__meta from = matrix_meta(&packed.out, p->batch, p->m, p->n, p->out_dtype);
    gt__meta to = matrix_meta(&p->out, p->batch, p->m, p->n, p->out_dtype);
    if (status == GT_OK) status = gt__scratch_alloc(cuda->base.ctx, bytes, &data, &handles[2]);
    if (status == GT_OK) {
        packed.out.data = data;
        if (p->accumulate) status = gt__cuda_copy_strided(&cuda->base, packed.out.data, &from, p->out.data, &to);
    }
    if (status == GT_OK) status = multiply(cuda, call, &packed, workspace, false);
    if (status == GT_OK) status = gt__cuda_copy_strided(&cuda->base, p->out.data, &to, packed.out.data, &from);
    for (int i = 0; i < 3; i++) gt__scratch_free(cuda->base.ctx, handles[i]);
    if (status == GT_OK && (p->bias || p->relu))
        status = gt__cuda_bias_act(&cuda->base, p->out.data, p->bias, p->batch * p->m, p->n, p->dtype, p->relu);
    return status;
}

static gt_status multiply(gt__cuda_device *cuda, const gt__call *call, const problem *p, uint64_t workspace, bool may_pack) {
    epilogue e = !p->bias || p->batch > 1 ? EPILOGUE_NONE : p->relu ? EPILOGUE_BIAS_RELU : EPILOGUE_BIAS;
    if (cuda->base.deterministic) workspace = 0; /* which algorithm runs must not depend on how full the card is (D6) */
    gemm_key key = make_key(p, e, workspace);
    gemm_plan *plan = gt__plan_cache_find(&cuda->gemm_plans, &key), made;
    size_t free_bytes;
    if (GT__UNLIKELY(!plan)) {
        prepare(cuda, p, &key, &made);
        if (!made.works && gt__cuda_make_room(cuda)) prepare(cuda, p, &key, &made);
        /* A card that is full for the moment, so that cuBLASLt cannot load its kernels, must not decide for good. */
        bool full = !made.works && gt__cuda_memory_is_full(&free_bytes);
        plan = full ? &made : gt__plan_cache_add(&cuda->gemm_plans, &key, &made);
        if (!plan) return GT_OUT_OF_HOST_MEMORY;
    }
    if (GT__UNLIKELY(!plan->works)) {
        if (may_pack) return multiply_packed(cuda, call, p, workspace);
        if (plan == &made) return gt__cuda_raise_cublas(CUBLAS_STATUS_ALLOC_FAILED, "cublasLtMatmul", __FILE__, __LINE__);
        GT_CALL_FAIL(call, GT_NOT_SUPPORTED, "cuBLASLt has no algorithm for %s [%lld,%lld] x [%lld,%lld], batch %lld",
                     gt_dtype_name(p->dtype), (long long)p->m, (long long)p->k, (long long)p->k, (long long)p->n, (long long)p->batch);
    }
    void *scratch = NULL, *handle = NULL;
    if (plan->workspace && cuda->base.deterministic) { /* another algorithm would round differently (D6) */
        GT_TRY(gt__scratch_alloc(cuda->base.ctx, plan->workspace, &scratch, &handle));
    } else if (plan->workspace && gt__scratch_alloc_quiet(cuda->base.ctx, plan->workspace, &scratch, &handle) != GT_OK)
        return multiply(cuda, call, p, 0, may_pack); /* memory is short: an algorithm that needs none */
    bool fused = plan->fused;
    cublasStatus_t status = run_plan(cuda, p, plan, scratch);
    if (GT__UNLIKELY(status != CUBLAS_STATUS_SUCCESS) && gt__cuda_make_room(cuda)) status = run_plan(cuda, p, plan, scratch);
    gt__scratch_free(cuda->base.ctx, handle);
    if (GT__UNLIKELY(status != CUBLAS_STATUS_SUCCESS)) return gt__cuda_raise_cublas(status, "cublasLtMatmul", __FILE__, __LINE__);
    if (fused || (!p->bias && !p->relu)) return GT_OK;
    return gt__cuda_bias_act(&cuda->base, p->out.data, p->bias, p->batch * p->m, p->n, p->dtype, p->relu);
}

/* --- any size ------------------------------------------------------------------------------------------------------------------- */

static uint64_t workspace_cap(const gt__cuda_device *cuda) {
    uint64_t enough = (uint64_t)(cuda->capability >= 90 ? 32 : 8) << 20;
    return GT__MIN(cuda->base.workspace_limit, enough);
}

static gt_status product(gt__cuda_device *cuda, const gt__call *call, problem p) {
    int64_t element = (int64_t)gt_dtype_size(p.dtype), out_element = (int64_t)gt_dtype_size(p.out_dtype);
    if (p.m == 0 || p.n == 0 || p.batch == 0) return GT_OK;
    if (p.k == 0) {
        if (p.accumulate) return GT_OK;
        GT_TRY_CUDA(cudaMemsetAsync(p.out.data, 0, (size_t)(p.batch * p.m * p.n * out_element), cuda->compute));
        if (!p.bias && !p.relu) return GT_OK;
        return gt__cuda_bias_act(&cuda->base, p.out.data, p.bias, p.batch * p.m, p.n, p.dtype, p.relu);
    }
    GT_CALL_REQUIRE(call, p.n <= INT_MAX && p.k <= INT_MAX, GT_NOT_SUPPORTED,
                    "[%lld,%lld] x [%lld,%lld]: cuBLASLt takes at most %d columns and %d terms a sum", (long long)p.m, (long long)p.k,
                    (long long)p.k, (long long)p.n, INT_MAX, INT_MAX);
    /* One right-hand matrix for all of a batch whose rows follow each other: one tall product. */
    if (p.batch > 1 && p.b.batch_stride == 0 && !p.a.transposed && p.a.batch_stride == p.m * p.a.ld) {
        p.m *= p.batch;
        p.batch = 1;
    }
    uint64_t workspace = workspace_cap(cuda);
    for (int64_t first = 0; first < p.batch; first += MAX_BATCH) {
        for (int64_t row = 0; row < p.m; row += MAX_ROWS) {
            problem part = p;
            part.batch = GT__MIN(p.batch - first, MAX_BATCH);
            part.m = GT__MIN(p.m - row, MAX_ROWS);
            part.a.data += (first * p.a.batch_stride + row * (p.a.transposed ? 1 : p.a.ld)) * element;
            part.b.data += first * p.b.batch_stride * element;
            part.out.data += (first * p.out.batch_stride + row * p.out.ld) * out_element;
            GT_CALL_REQUIRE(call, part.batch == 1 || p.m <= MAX_ROWS, GT_NOT_SUPPORTED, "a batch of %lld products with %lld rows each",
                            (long long)p.batch, (long long)p.m);
            GT_TRY(multiply(cuda, call, &part, workspace, true));
        }
    }
    return GT_OK;
}

/* A single row or column has no leading dimension of its own: it gets a round one, which the faster algorithms want. */
static matrix make_matrix(const gt_tensor *t, int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride) {
    matrix x = {.data = gt__data(t)};
    bool row_major = (cols == 1 || col_stride == 1) && (rows == 1 || row_stride >= cols);
    bool column_major = (rows == 1 || row_stride == 1) && (cols == 1 || col_stride >= rows);
    x.transposed = column_major && (!row_major || (cols == 1 && rows > 1));
    if (x.transposed)
        x.ld = cols == 1 ? round_up(rows) : col_stride;
    else
        x.ld = rows == 1 ? round_up(cols) : row_stride;
    return x;
}

/* The step of the leading axes, which are one even walk (the op's MATRIX layout). */
static int64_t batch_stride_of(const gt__meta *meta) {
    for (int32_t axis = meta->ndim - 3; axis >= 0; axis--)
        if (meta->shape[axis] != 1) return meta->strides[axis];
    return 0;
}

gt_status gt__cuda_matmul(gt__device *device, const gt__call *call) {
    const gt_tensor *a = call->in[0], *b = call->in[1], *out = call->out[0];
    const gt__meta *am = &a->meta, *bm = &b->meta;
    int32_t ar = am->ndim - 2, br = bm->ndim - 2;
    problem p = {.m = am->shape[ar],
                 .k = am->shape[ar + 1],
                 .n = bm->shape[br + 1],
                 .batch = 1,
                 .dtype = out->meta.dtype,
                 .out_dtype = out->meta.dtype};
    for (int32_t axis = 0; axis < out->meta.ndim - 2; axis++) p.batch *= out->meta.shape[axis];
    if (out->meta.numel == 0) return GT_OK;
    if (p.k > 0) {
        p.a = make_matrix(a, p.m, p.k, am->strides[ar], am->strides[ar + 1]);
        p.b = make_matrix(b, p.k, p.n, bm->strides[br], bm->strides[br + 1]);
        p.a.batch_stride = batch_stride_of(am);
        p.b.batch_stride = batch_stride_of(bm);
    }
    p.out = (matrix){.data = gt__data(out), .ld = p.n, .batch_stride = p.m * p.n};
    return product(gt__cuda(device), call, p);
}

static gt_status linear(gt__device *device, const gt__call *call, bool relu) {
    const gt_tensor *x = call->in[0], *w = call->in[1], *bias = call->n_in > 2 ? call->in[2] : NULL;
    const gt_tensor *out = call->out[0];
    const gt__meta *xm = &x->meta, *wm = &w->meta;
    problem p = {.m = xm->shape[0],
                 .k = xm->shape[1],
                 .n = wm->shape[0],
                 .batch = 1,
                 .dtype = out->meta.dtype,
                 .out_dtype = out->meta.dtype,
                 .relu = relu};
    if (out->meta.numel == 0) return GT_OK;
    if (p.k > 0) {
        p.a = make_matrix(x, p.m, p.k, xm->strides[0], xm->strides[1]);
        p.b = make_matrix(w, p.k, p.n, wm->strides[1], wm->strides[0]);
    }
    p.out = (matrix){.data = gt__data(out), .ld = p.n, .batch_stride = p.m * p.n};
    p.bias = bias ? gt__data(bias) : NULL;
    return product(gt__cuda(device), call, p);
}

gt_status gt__cuda_linear(gt__device *device, const gt__call *call) { return linear(device, call, false); }

gt_status gt__cuda_linear_relu(gt__device *device, const gt__call *call) { return linear(device, call, true); }

gt_status gt__cuda_linear_backward_weight(gt__device *device, const gt__call *call) {
    const gt_tensor *dz = call->in[0], *x = call->in[1], *dw = call->out[0];
    const gt__meta *zm = &dz->meta, *xm = &x->meta;
    problem p = {.m = zm->shape[1], .k = zm->shape[0], .n = xm->shape[1], .batch = 1, .dtype = zm->dtype, .out_dtype = dw->meta.dtype};
    if (dw->meta.numel == 0) return GT_OK;
    if (p.k > 0) {
        p.a = make_matrix(dz, p.m, p.k, zm->strides[1], zm->strides[0]);
        p.b = make_matrix(x, p.k, p.n, xm->strides[0], xm->strides[1]);
    }
    p.out = (matrix){.data = gt__data(dw), .ld = p.n, .batch_stride = p.m * p.n};
    p.accumulate = call->attr.linear.accumulate != 0;
    return product(gt__cuda(device), call, p);
}
