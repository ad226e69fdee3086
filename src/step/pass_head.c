/* The last layer, its loss and their gradients, where there are few classes: two calls instead of six. They are small, and each would wait for the one before: linear and
 * cross-entropy are one, and so are the product that takes the gradient back through linear, relu's gradient of the layer below and both sums for biases. */
#include "step/calls.h"
#include "step/passes.h"

/* What the kernels are made for (cuda/head.cuh). */
enum { MOST_CLASSES = 32, MOST_ROWS = 1024, MOST_WIDTH = 8184 };

static bool written(gt__program *program, int32_t from, int32_t to, const gt_tensor *t) { return gt__uses_of(program, from, to, t).writes; }
static bool touched(gt__program *program, int32_t from, int32_t to, const gt_tensor *t) {
    return gt__uses_of(program, from, to, t).count > 0;
}

static bool is_matrix(const gt_tensor *t) { return t && t->meta.ndim == 2 && gt__meta_is_row_major(&t->meta); }

/* --- linear and cross-entropy -------------------------------------------------------------------------------------------------------------- */

static bool loss_fits(gt__program *program, int32_t linear, int32_t loss) {
    const gt__call *l = gt__call_at(program, linear, GT__OP_LINEAR), *e = gt__call_at(program, loss, GT__OP_CROSS_ENTROPY_BOTH);
    if (l == NULL || e == NULL || l->out[0] == NULL || e->in[1]->data != l->out[0]->data || e->out[0] == NULL || e->out[3] == NULL)
        return false;
    const gt_tensor *logits = l->out[0];
    if (l->attr.linear.activation != GT_ACTIVATION_NONE || !is_matrix(l->in[0]) || !is_matrix(l->in[1]) || !is_matrix(logits) ||
        !is_matrix(e->out[3]) || !gt__meta_same_layout(&e->in[1]->meta, &logits->meta))
        return false;
    if (logits->meta.shape[1] > MOST_CLASSES || logits->meta.shape[0] > MOST_ROWS || logits->meta.numel == 0 || l->in[0]->meta.numel == 0)
        return false;
    /* The sums of exponentials are for nobody else, and nothing that the new call reads or writes is touched on the way from one to the other. */
    if (e->out[1] && (!gt__is_traced(e->out[1]->data) || gt__uses_of(program, 0, program->count, e->out[1]).count > 1)) return false;
    for (int32_t k = 0; k < l->n_in; ++k)
        if (written(program, linear + 1, loss, l->in[k])) return false;
    return !touched(program, linear + 1, loss, logits);
}

static gt_status join_loss(gt__program *program, int32_t linear, int32_t loss) {
    const gt__call *l = &program->list[linear].call->call, *e = &program->list[loss].call->call;
    const gt_tensor *in[] = {e->in[0], l->in[0], l->in[1], gt__call_input(l, 2), e->in[2], gt__call_input(e, 3)};
    const gt_tensor *out[] = {e->out[0], l->out[0], e->out[2], e->out[3]};
    GT_TRY(gt__call_replace(&program->list[loss], GT__OP_LINEAR_CROSS_ENTROPY, e, in, 6, out, 4));
    gt__program_drop(program, linear);
    return GT_OK;
}

/* --- back through linear and relu ------------------------------------------------------------------------------------------------------------ */

static bool back_fits(gt__program *program, int32_t product, int32_t relu) {
    const gt__call *p = gt__call_at(program, product, GT__OP_MATMUL), *r = gt__call_at(program, relu, GT__OP_BIAS_RELU_BACKWARD);
    if (p == NULL || r == NULL || p->out[0] == NULL || r->out[0] == NULL || r->in[0]->data != p->out[0]->data) return false;
    const gt_tensor *between = p->out[0];
    if (!is_matrix(p->in[0]) || !is_matrix(p->in[1]) || !is_matrix(between) || !is_matrix(r->in[1]) || !is_matrix(r->out[0]) ||
        !gt__meta_same_layout(&r->in[0]->meta, &between->meta))
        return false;
    if (p->in[1]->meta.shape[0] > MOST_CLASSES || p->in[0]->meta.shape[0] > MOST_ROWS || between->meta.numel == 0 ||
        p->in[0]->meta.numel == 0)
        return false;
    if (r->out[1] && r->out[1]->meta.dtype != gt__dtype_accumulate(between->meta.dtype)) return false;
    /* Only these two know what is between them. */
    bool alone =
        gt__is_traced(between->data) && gt__uses_of(program, 0, program->count, between).count == 2 + (r->out[0]->data == between->data);
    return alone && !written(program, product + 1, relu, p->in[0]) && !written(program, product + 1, relu, p->in[1]);
}

/* Sums dy over its rows, as a bias's gradient is. */
static bool is_sum_of(const gt__call *sum, const gt_tensor *dy) {
    return sum && sum->in[0]->data == dy->data && gt__meta_same_layout(&sum->in[0]->meta, &dy->meta) && sum->attr.reduce.mask == 1 &&
           sum->out[0] && sum->out[0]->meta.dtype == gt__dtype_accumulate(dy->meta.dtype) && gt__meta_is_row_major(&sum->out[0]->meta);
}

/* The sum of dy that may as well be made by instruction `at`; -1: none. */
static int32_t find_sum(gt__program *program, const gt_tensor *dy, int32_t at) {
    for (int32_t i = 0; i < program->count; ++i) {
        const gt__call *sum = gt__call_at(program, i, GT__OP_SUM);
        if (!is_sum_of(sum, dy) || i == at) continue;
        int32_t first = GT__MIN(i, at), last = GT__MAX(i, at);
        if (!written(program, first + 1, last, dy) && !touched(program, first + 1, last, sum->out[0])) return i;
    }
    return -1;
}

static gt_status join_back(gt__program *program, int32_t product, int32_t relu) {
    const gt__call *p = &program->list[product].call->call, *r = &program->list[relu].call->call;
    int32_t sum = find_sum(program, p->in[0], relu);
    const gt_tensor *sums = sum >= 0 ? program->list[sum].call->call.out[0] : NULL;
    const gt_tensor *in[] = {p->in[0], p->in[1], r->in[1]}, *out[] = {r->out[0], r->out[1], sums};
    GT_TRY(gt__call_replace(&program->list[relu], GT__OP_LINEAR_RELU_BACKWARD, r, in, 3, out, 3));
    gt__program_drop(program, GT__MAX(product, sum));
    if (sum >= 0) gt__program_drop(program, GT__MIN(product, sum));
    return GT_OK;
}

gt_status gt__pass_head(gt__program *program) {
    for (int32_t i = 0; i < program->count; ++i) {
        for (int32_t k = i + 1; k < program->count && gt__call_at(program, i, GT__OP_LINEAR); ++k) {
            if (!loss_fits(program, i, k)) continue;
            GT_TRY(join_loss(program, i, k));
            break;
        }
    }
    for (int32_t i = 0; i < program->count; ++i) {
        for (int32_t k = i + 1; k < program->count && gt__call_at(program, i, GT__OP_MATMUL); ++k) {
            if (!back_fits(program, i, k)) continue;
            GT_TRY(join_back(program, i, k));
            break;
        }
    }
    return GT_OK;
}
