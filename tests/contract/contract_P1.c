/* Contract P1: a save is all or nothing, and so is a load. */
#include "io/support.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NUMBERS = 1 << 16 };

static int files_in_folder_of(const char *path) {
    char folder[4096];
    (void)snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = '\0';
    DIR *dir = opendir(folder);
    CHECK(dir != NULL);
    int count = 0;
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) count += entry->d_name[0] != '.';
    CHECK(closedir(dir) == 0);
    return count;
}

/* NUMBERS times `value`, twice. */
static gt_status save_value(gt_context *ctx, const char *path, float value, float *scratch) {
    const int64_t n = NUMBERS;
    const char *const names[] = {"first", "second"};
    gt_tensor *tensors[2];
    for (int i = 0; i < NUMBERS; ++i) scratch[i] = value;
    for (int k = 0; k < 2; ++k) tensors[k] = gt_tensor_from_data(ctx, GT_DTYPE_F32, 1, &n, scratch, NUMBERS * sizeof *scratch);
    gt_status status = gt_safetensors_save(path, names, tensors, 2, NULL, 0);
    for (int k = 0; k < 2; ++k) gt_tensor_release(tensors[k]);
    return status;
}

/* The one value that a whole file of save_value has. */
static float value_of(const char *path) {
    gt_safetensors *file = io_open(path);
    CHECK_EQ_INT(gt_safetensors_count(file), 2);
    float first = 0;
    for (int k = 0; k < 2; ++k) {
        gt_safetensors_info info = io_info(file, k ? "second" : "first");
        CHECK_EQ_INT(info.bytes, NUMBERS * sizeof(float));
        for (int i = 0; i < NUMBERS; ++i) {
            float value;
            memcpy(&value, (const char *)info.data + (size_t)i * sizeof value, sizeof value);
            if (k == 0 && i == 0) first = value;
            CHECK(value == first);
        }
    }
    gt_safetensors_close(file);
    return first;
}

static gt_context *plain_context(void) {
    gt_context_options options;
    gt_context *ctx = NULL;
    if (gt_context_options_init(&options, sizeof options) != GT_OK) return NULL;
    options.device = GT_DEVICE_CPU;
    options.cpu_threads = 1;
    return gt_context_create(&options, &ctx) == GT_OK ? ctx : NULL;
}

TEST(contract, P1_a_process_killed_while_it_saves_leaves_a_whole_file) {
    char *path = io_path(t, "state.safetensors");
    static float scratch[NUMBERS];
    gt_context *ctx = plain_context();
    CHECK(ctx != NULL);
    CHECK_OK(save_value(ctx, path, 0, scratch));
    float last = 0;
    for (int round = 0; round < 20; ++round) {
        int ends[2];
        CHECK(pipe(ends) == 0);
        pid_t child = fork();
        if (child == 0) {
            gt_context *own = plain_context();
            for (float value = last + 1; own; value += 1)
                if (save_value(own, path, value, scratch) != GT_OK || write(ends[1], "", 1) != 1) break;
            _exit(1);
        }
        char one;
        CHECK(child > 0 && read(ends[0], &one, 1) == 1); /* it has saved once, however slow the machine */
        (void)usleep((useconds_t)(1700 * round));
        CHECK(kill(child, SIGKILL) == 0);
        int how = 0;
        CHECK(waitpid(child, &how, 0) == child);
        CHECK(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL); /* not ended by itself */
        CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
        float now = value_of(path);
        CHECK(now > last);
        last = now;
    }
    gt_context_destroy(ctx);
    free(path);
}

/* In a process whose files may have `most` bytes. 0: it failed as it should. */
static char save_on_full_disk(const char *path, rlim_t most, float *scratch) {
    const struct rlimit limit = {most, most};
    gt_context *ctx = plain_context();
    (void)signal(SIGXFSZ, SIG_IGN);
    if (ctx == NULL || setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    if (save_value(ctx, path, 8, scratch) != GT_IO) return 2;
    return strstr(gt_last_error()->message, "cannot write") && gt_last_error()->native_code != 0 ? 0 : 3;
}

TEST(contract, P1_a_full_disk_leaves_the_old_file) {
    char *path = io_path(t, "state.safetensors");
    static float scratch[NUMBERS];
    gt_context *ctx = plain_context();
    CHECK(ctx != NULL);
    CHECK_OK(save_value(ctx, path, 7, scratch));
    for (rlim_t most = 0; most < 2 * sizeof scratch;
         most += sizeof scratch / 3) { /* fails at the header, in the first tensor, in the second */
        int ends[2], how = 0;
        char outcome = 9;
        CHECK(pipe(ends) == 0);
        pid_t child = fork();
        if (child == 0) {
            outcome = save_on_full_disk(path, most, scratch);
            if (write(ends[1], &outcome, 1) != 1) _exit(1);
            (void)kill(getpid(), SIGKILL); /* nobody asks what it has not freed */
        }
        CHECK(child > 0 && read(ends[0], &outcome, 1) == 1 && waitpid(child, &how, 0) == child);
        CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
        CHECK_EQ_INT(outcome, 0);
        CHECK(value_of(path) == 7);
        CHECK_EQ_INT(files_in_folder_of(path), 1); /* nothing is left behind */
    }
    gt_context_destroy(ctx);
    free(path);
}

TEST(contract, P1_a_folder_that_cannot_be_written_to_is_told) {
    gt_context *ctx = test_context(t);
    gt_module *net = gt_nn_linear(ctx, 2, 2, NULL);
    CHECK_STATUS(gt_module_save(net, test_temp_path(t, "no/such/folder"), NULL, 0), GT_IO);
    CHECK_ERROR_HAS("cannot create");
    char *path = io_path(t, "folder");
    CHECK(mkdir(path, 0777) == 0);
    CHECK_STATUS(gt_module_save(net, path, NULL, 0), GT_BAD_ARGUMENT);
    CHECK_ERROR_HAS("is not a plain file");
    free(path);
    gt_module_destroy(net);
}

TEST_DEVICES(contract, P1_a_truncated_file_changes_nothing) {
    gt_context *ctx = test_context(t);
    gt_module *net = io_net(ctx), *other = io_net(ctx);
    char *path = io_path(t, "net.safetensors");
    CHECK_OK(gt_module_save(other, path, NULL, 0));
    size_t size = 0, bits_size = 0;
    unsigned char *whole = io_slurp(path, &size), *bits = io_bits(net, &bits_size);
    char *cut = io_path(t, "cut.safetensors");
    for (size_t length = 0; length < size; length += length < 64 || length + 64 > size ? 1 : 37) {
        io_write(cut, whole, length);
        CHECK_STATUS(gt_module_load(net, cut, NULL), GT_BAD_FILE);
    }
    free(cut);
    io_check_bits(net, bits, bits_size);
    CHECK_OK(gt_module_load(net, path, NULL));
    free(bits);
    bits = io_bits(other, &bits_size);
    io_check_bits(net, bits, bits_size);
    free(bits);
    free(whole);
    free(path);
    gt_module_destroy(net);
    gt_module_destroy(other);
}

TEST_DEVICES(contract, P1_a_failed_load_changes_no_parameter) {
    gt_context *ctx = test_context(t);
    gt_module *net = io_net(ctx), *other = io_net(ctx);
    char *path = io_path(t, "net.safetensors");
    size_t size = 0;
    gt_tensor *last = NULL;
    CHECK_OK(gt_module_find(other, "7.bias", &last));
    CHECK_OK(gt_scope_begin(ctx));
    const int64_t five = 5;
    const char *names[16];
    gt_tensor *tensors[16];
    int32_t n = 0;
    for (int32_t i = 0; i < gt_module_parameter_count(other); ++i, ++n) CHECK_OK(gt_module_parameter(other, i, &names[n], &tensors[n]));
    for (int32_t i = 0; i < gt_module_buffer_count(other); ++i, ++n) CHECK_OK(gt_module_buffer(other, i, &names[n], &tensors[n]));
    for (int32_t i = 0; i < n; ++i)
        if (tensors[i] == last) tensors[i] = CHECK_TENSOR(gt_tensor_zeros(ctx, GT_DTYPE_F32, 1, &five)); /* all others fit */
    CHECK_OK(gt_safetensors_save(path, names, tensors, n, NULL, 0));
    CHECK_OK(gt_scope_end(ctx));

    unsigned char *bits = io_bits(net, &size);
    CHECK_STATUS(gt_module_load(net, path, NULL), GT_BAD_FILE);
    CHECK_ERROR_HAS("\"7.bias\" is [5] in the file, [4] here");
    io_check_bits(net, bits, size);

    /* No memory for the conversion to f32. */
    CHECK_OK(gt_module_to_dtype(other, GT_DTYPE_F16));
    CHECK_OK(gt_module_save(other, path, NULL, 0));
    gt_memory_stats stats;
    CHECK_OK(gt_memory_stats_init(&stats, sizeof stats));
    CHECK_OK(gt_memory_trim(ctx));
    CHECK_OK(gt_memory_get_stats(ctx, &stats));
    CHECK_OK(gt_context_set_memory_limit(ctx, stats.reserved));
    /* Fill what is reserved, in smaller and smaller pieces. */
    gt_tensor *fill[400];
    int filled = 0;
    for (int64_t bytes = (int64_t)1 << 24; bytes >= 256;) {
        gt_tensor *piece = filled < 400 ? gt_tensor_empty(ctx, GT_DTYPE_U8, 1, &bytes) : NULL;
        if (piece)
            fill[filled++] = piece;
        else
            bytes /= 2;
    }
    gt_status status = gt_module_load(net, path, NULL);
    CHECK_EQ_INT(status, GT_OUT_OF_MEMORY);
    CHECK_OK(gt_context_set_memory_limit(ctx, 0));
    for (int i = 0; i < filled; ++i) gt_tensor_release(fill[i]);
    io_check_bits(net, bits, size);
    CHECK_OK(gt_module_load(net, path, NULL)); /* and works when there is some */
    free(bits);
    free(path);
    gt_module_destroy(net);
    gt_module_destroy(other);
}
