// gtrain inside a C++ program: learns which of two interleaved spirals a point belongs to, from data that the program makes itself.
// Uses whatever device there is. Returns 0 only if the network has learned.
#include <gtrain/gtrain.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

// The library's handles as owners: gtrain's destroy functions accept NULL, so empty pointers are fine.
template <auto Destroy>
struct Destroyer {
    template <typename T>
    void operator()(T *handle) const {
        Destroy(handle);
    }
};
using Context = std::unique_ptr<gt_context, Destroyer<gt_context_destroy>>;
using Module = std::unique_ptr<gt_module, Destroyer<gt_module_destroy>>;
using Dataset = std::unique_ptr<gt_dataset, Destroyer<gt_dataset_destroy>>;
using Loader = std::unique_ptr<gt_loader, Destroyer<gt_loader_destroy>>;
using Optimizer = std::unique_ptr<gt_optimizer, Destroyer<gt_optimizer_destroy>>;
using Trainer = std::unique_ptr<gt_trainer, Destroyer<gt_trainer_destroy>>;

// Statuses become exceptions.
void check(gt_status status) {
    if (status != GT_OK) throw std::runtime_error(std::string(gt_status_name(status)) + ": " + gt_last_error()->message);
}

struct Points {
    std::vector<float> positions; // x, y
    std::vector<int64_t> spirals; // 0 or 1
};

Points make_points(int64_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> along(0.0f, 1.0f);
    std::normal_distribution<float> noise(0.0f, 0.02f);
    Points points;
    for (int64_t i = 0; i < count; ++i) {
        const float t = along(random), angle = 9.0f * std::sqrt(t) + 3.14159265f * static_cast<float>(i % 2);
        points.positions.push_back(std::sqrt(t) * std::cos(angle) + noise(random));
        points.positions.push_back(std::sqrt(t) * std::sin(angle) + noise(random));
        points.spirals.push_back(i % 2);
    }
    return points;
}

Loader make_loader(gt_context *ctx, const Points &points, bool training) {
    gt_dataset_format format;
    check(gt_dataset_format_init(&format, sizeof format));
    format.sample_ndim = 1;
    format.sample_shape[0] = 2;
    format.length = static_cast<int64_t>(points.spirals.size());
    format.classes = 2;
    gt_dataset *dataset = nullptr;
    check(gt_dataset_from_arrays(&format, points.positions.data(), points.spirals.data(), 0, &dataset));
    const Dataset owned(dataset);

    gt_loader_options options;
    check(gt_loader_options_init(&options, sizeof options));
    options.batch_size = training ? 50 : 500;
    options.shuffle = training;
    gt_loader *loader = nullptr;
    check(gt_loader_create(ctx, dataset, &options, &loader));
    return Loader(loader);
}

Module make_net(gt_context *ctx) {
    std::array layers = {gt_nn_linear(ctx, 2, 64, nullptr), gt_nn_tanh(ctx), gt_nn_linear(ctx, 64, 64, nullptr), gt_nn_tanh(ctx),
                         gt_nn_linear(ctx, 64, 2, nullptr)};
    gt_module *net = gt_nn_sequential_from(ctx, layers.data(), static_cast<int32_t>(layers.size()));
    if (net == nullptr) check(gt_last_error()->status);
    return Module(net);
}

// The part of unseen points that the trained network gets right.
double learn(gt_context *ctx) {
    const Loader training = make_loader(ctx, make_points(1000, 1), true), test = make_loader(ctx, make_points(1000, 2), false);
    const Module net = make_net(ctx);

    gt_optimizer_options adam;
    check(gt_optimizer_options_init(&adam, sizeof adam, GT_OPTIMIZER_ADAM));
    adam.learning_rate = 0.01;
    gt_optimizer *optimizer = nullptr;
    check(gt_optimizer_create_for(&adam, net.get(), &optimizer));
    const Optimizer owned_optimizer(optimizer);

    gt_trainer_options options;
    check(gt_trainer_options_init(&options, sizeof options));
    options.optimizer = optimizer;
    gt_trainer *trainer = nullptr;
    check(gt_trainer_create(net.get(), &options, &trainer));
    const Trainer owned_trainer(trainer);

    check(gt_trainer_fit(trainer, training.get(), nullptr, 40, nullptr));
    gt_metrics metrics;
    check(gt_metrics_init(&metrics, sizeof metrics));
    check(gt_trainer_evaluate(trainer, test.get(), &metrics));
    return metrics.accuracy;
}

} // namespace

int main() {
    try {
        gt_context *ctx = nullptr;
        check(gt_context_create(nullptr, &ctx));
        const Context owned(ctx);
        const double accuracy = learn(ctx);
        std::printf("gtrain %s on %s: accuracy %.1f %%\n", gt_version_string(), gt_context_device_name(ctx), 100 * accuracy);
        return accuracy > 0.95 ? 0 : 1;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
