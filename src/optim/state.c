/* What of an optimizer is saved with a run. */
#include "optim/optimizer.h"

gt_tensor *gt__optimizer_state(const gt_optimizer *optimizer, int32_t i, int32_t k, const char **name) {
    static const char *const names[2][GT__OPTIMIZER_STATES] = {{"master", "momentum_buffer", ""}, {"master", "exp_avg", "exp_avg_sq"}};
    const gt__slot_state *slot = &optimizer->slots[i];
    gt_tensor *const states[GT__OPTIMIZER_STATES] = {slot->master, slot->state0, slot->state1};
    *name = names[optimizer->options.kind != GT_OPTIMIZER_SGD][k];
    return states[k];
}

size_t gt__optimizer_step_at(const gt_optimizer *optimizer, int32_t i) {
    return GT__CONTROLS * sizeof(gt__step_control) + (2 * (size_t)i + optimizer->slots[i].step_cell) * sizeof(int32_t);
}

void gt__optimizer_loaded(gt_optimizer *optimizer) {
    for (int32_t i = 0; i < optimizer->count; ++i) optimizer->slots[i].master_version = optimizer->slots[i].parameter->storage->version;
}
