/* What of an optimizer is saved with a run, and its state by name for programs that keep it themselves. */
#include "optim/optimizer.h"

#include <string.h>

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

/* --- for programs ------------------------------------------------------------------------------------------------------------------------ */
static gt_status check_index(const gt_optimizer *optimizer, int32_t index, const char *who) {
    GT_REQUIRE(index >= 0 && index < optimizer->count, GT_BAD_ARGUMENT, "%s: parameter %d of an optimizer with %d", who, (int)index,
               (int)optimizer->count);
    return GT_OK;
}

/* The number k of the state tensor of that name. */
static gt_status find_state(const gt_optimizer *optimizer, int32_t index, const char *name, const char *who, int32_t *found) {
    gt_context *ctx;
    GT_TRY(gt__optimizer_context(optimizer, who, &ctx));
    GT_TRY(check_index(optimizer, index, who));
    GT_REQUIRE(name != NULL, GT_BAD_ARGUMENT, "%s: name is NULL", who);
    char list[64] = "", text[300];
    for (int32_t k = 0; k < GT__OPTIMIZER_STATES; ++k) {
        const char *own;
        if (gt__optimizer_state(optimizer, index, k, &own) == NULL) continue;
        if (strcmp(own, name) == 0) {
            *found = k;
            return GT_OK;
        }
        if (list[0]) (void)strcat(list, ", ");
        (void)strcat(list, own);
    }
    GT_FAIL(GT_NOT_FOUND, "%s: parameter %d, %s, has no state \"%s\"; it has %s", who, (int)index,
            gt__tensor_text(optimizer->slots[index].parameter, text, sizeof text), name, list[0] ? list : "none");
}

gt_status gt_optimizer_parameter(const gt_optimizer *optimizer, int32_t index, gt_tensor **parameter) {
    GT_REQUIRE_HANDLE(optimizer);
    GT_REQUIRE(parameter != NULL, GT_BAD_ARGUMENT, "gt_optimizer_parameter: parameter is NULL");
    GT_TRY(check_index(optimizer, index, "gt_optimizer_parameter"));
    *parameter = optimizer->slots[index].parameter;
    return GT_OK;
}

gt_status gt_optimizer_state_get(gt_optimizer *optimizer, int32_t index, const char *name, gt_tensor **state) {
    static const char who[] = "gt_optimizer_state_get";
    GT_REQUIRE_HANDLE(optimizer);
    GT_REQUIRE(state != NULL, GT_BAD_ARGUMENT, "%s: state is NULL", who);
    int32_t k;
    GT_TRY(find_state(optimizer, index, name, who, &k));
    GT_TRY(gt__optimizer_refresh_masters(optimizer));
    *state = gt__optimizer_state(optimizer, index, k, &name);
    return GT_OK;
}

gt_status gt_optimizer_state_set(gt_optimizer *optimizer, int32_t index, const char *name, gt_tensor *source) {
    static const char who[] = "gt_optimizer_state_set";
    GT_REQUIRE_HANDLE(optimizer);
    int32_t k;
    GT_TRY(find_state(optimizer, index, name, who, &k));
    GT_TRY(gt__optimizer_check_free(optimizer, who));
    gt__slot_state *slot = &optimizer->slots[index];
    gt_tensor *state = gt__optimizer_state(optimizer, index, k, &name);
    if (source == NULL) {
        if (state != slot->master) return gt_tensor_fill(state, 0);
        slot->master_version = slot->parameter->storage->version - 1;
        return gt__optimizer_refresh_masters(optimizer);
    }
    char ours[300], theirs[300];
    GT_TRY(gt__tensor_check(source, who));
    GT_REQUIRE(source->ctx == state->ctx, GT_BAD_DEVICE, "%s: the source of \"%s\" belongs to another context", who, name);
    GT_REQUIRE(gt__dtype_is_float(source->meta.dtype), GT_BAD_DTYPE, "%s: the source of \"%s\" is %s; expected a floating dtype", who, name,
               gt_dtype_name(source->meta.dtype));
    GT_REQUIRE(gt__meta_same_shape(&state->meta, &source->meta), GT_BAD_SHAPE, "%s: \"%s\" of parameter %d is %s, its source %s", who, name,
               (int)index, gt__tensor_text(state, ours, sizeof ours), gt__tensor_text(source, theirs, sizeof theirs));
    bool itself = source->data == state->data && gt__meta_same_layout(&source->meta, &state->meta);
    if (state->meta.numel > 0 && !itself) GT_TRY(gt__op_into(GT__OP_COPY, &source, 1, NULL, state));
    state->storage->version++;
    if (state == slot->master) slot->master_version = slot->parameter->storage->version;
    return GT_OK;
}

static gt_status read_cells(const gt_optimizer *optimizer, const char *who, char **cells) {
    gt_context *ctx;
    GT_TRY(gt__optimizer_context(optimizer, who, &ctx));
    size_t bytes = gt_tensor_bytes(optimizer->cells);
    *cells = gt__malloc(bytes);
    if (*cells == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt_status status = gt_tensor_read(optimizer->cells, *cells, bytes);
    if (status != GT_OK) gt__free(*cells);
    return status;
}

gt_status gt_optimizer_steps_get(gt_optimizer *optimizer, int64_t *steps) {
    static const char who[] = "gt_optimizer_steps_get";
    GT_REQUIRE_HANDLE(optimizer);
    GT_REQUIRE(steps != NULL, GT_BAD_ARGUMENT, "%s: steps is NULL", who);
    char *cells;
    GT_TRY(read_cells(optimizer, who, &cells));
    for (int32_t i = 0; i < optimizer->count; ++i) {
        int32_t cell;
        memcpy(&cell, cells + gt__optimizer_step_at(optimizer, i), sizeof cell);
        steps[i] = cell;
    }
    gt__free(cells);
    return GT_OK;
}

gt_status gt_optimizer_steps_set(gt_optimizer *optimizer, const int64_t *steps) {
    static const char who[] = "gt_optimizer_steps_set";
    GT_REQUIRE_HANDLE(optimizer);
    GT_REQUIRE(steps != NULL, GT_BAD_ARGUMENT, "%s: steps is NULL", who);
    GT_TRY(gt__optimizer_check_free(optimizer, who));
    char text[300];
    for (int32_t i = 0; i < optimizer->count; ++i)
        GT_REQUIRE(steps[i] >= 0 && steps[i] < INT32_MAX, GT_BAD_ARGUMENT, "%s: parameter %d, %s, gets %lld; expected 0 to 2^31 - 2", who,
                   (int)i, gt__tensor_text(optimizer->slots[i].parameter, text, sizeof text), (long long)steps[i]);
    char *cells; /* besides counts it holds what the last step left */
    GT_TRY(read_cells(optimizer, who, &cells));
    for (int32_t i = 0; i < optimizer->count; ++i) {
        int32_t cell = (int32_t)steps[i];
        memcpy(cells + gt__optimizer_step_at(optimizer, i), &cell, sizeof cell);
    }
    gt_status status = gt_tensor_write(optimizer->cells, cells, gt_tensor_bytes(optimizer->cells));
    gt__free(cells);
    return status;
}
