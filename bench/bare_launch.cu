/* Seconds that the host spends on one bare kernel launch: the best of many rounds. */
#include <chrono>

__global__ static void empty_kernel(float *p) {
    if (p) *p = 1.0f;
}

extern "C" double bare_launch_seconds(int count) {
    cudaStream_t stream;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return 0;
    double best = 1e9;
    for (int round = 0; round < 25; ++round) {
        auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < count; ++i) empty_kernel<<<8, 128, 0, stream>>>(nullptr);
        double each = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / count;
        (void)cudaStreamSynchronize(stream);
        if (each < best) best = each;
    }
    (void)cudaStreamDestroy(stream);
    return best;
}
