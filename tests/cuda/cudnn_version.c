/* Opens the GPU with a preloaded cuDNN of another version: cudnn_version refused|accepted <version> <file>,
 * or with one that lacks a part: cudnn_version incomplete <part> <file>. */
#include <gtrain/gtrain.h>

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    gt_context_options options;
    gt_context_options_init(&options, sizeof options);
    options.device = GT_DEVICE_CUDA;
    gt_context *ctx = NULL;
    gt_status status = gt_context_create(&options, &ctx);
    const char *message = gt_last_error()->message;
    int passed;
    if (strcmp(argv[1], "refused") == 0)
        passed = status == GT_VERSION_MISMATCH && strstr(message, argv[2]) && strstr(message, "9.0.0") && strstr(message, argv[3]);
    else if (strcmp(argv[1], "incomplete") == 0) /* and the process lives on */
        passed = status == GT_NO_DEVICE && strstr(message, "is not complete") && strstr(message, argv[2]) && strstr(message, argv[3]);
    else /* without a GPU the search ends there, but not before */
        passed = status == GT_OK || status == GT_NO_DEVICE;
    printf("%s: %s\n", gt_status_name(status), message);
    gt_context_destroy(ctx);
    return passed ? 0 : 1;
}
