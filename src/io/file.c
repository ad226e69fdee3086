/* Opening a safetensors file, and looking at what is in it. */
#include "io/file.h"

#include "core/core.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static gt_status io_error(const char *path, const char *what, int code) {
    return gt__error_raise(GT_IO, __FILE__, __LINE__, code, "errno", NULL, "%s: cannot %s: %s", path, what, strerror(code));
}

static gt_status map_file(gt_safetensors *file) {
    struct stat about;
    file->fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a named pipe is refused below instead of waited for */
    if (file->fd < 0) return io_error(file->path, "open", errno);
    if (fstat(file->fd, &about) != 0) return io_error(file->path, "examine", errno);
    GT_REQUIRE(S_ISREG(about.st_mode), GT_IO, "%s: expected a file, found %s", file->path,
               S_ISDIR(about.st_mode) ? "a folder" : "something that is neither file nor folder");
    file->size = (uint64_t)about.st_size;
    GT_REQUIRE(file->size >= GT__SAFETENSORS_PREFIX + 2, GT_BAD_FILE, "%s: %llu bytes are too few for a safetensors file", file->path,
               (unsigned long long)file->size);
    void *map = mmap(NULL, file->size, PROT_READ, MAP_PRIVATE, file->fd, 0);
    if (map == MAP_FAILED) return io_error(file->path, "map into memory", errno);
    file->map = map;
    return GT_OK;
}

/* pread, so that a damaged disk is an error and not a signal; *got < size only at the end of the file. */
static gt_status read_at(const gt_safetensors *file, uint64_t at, void *buffer, size_t size, size_t *got) {
    *got = 0;
    while (*got < size) {
        ssize_t n = pread(file->fd, (char *)buffer + *got, size - *got, (off_t)(at + *got));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return io_error(file->path, "read", errno);
        if (n == 0) break;
        *got += (size_t)n;
    }
    return GT_OK;
}

static gt_status read_header(gt_safetensors *file) {
    unsigned char prefix[GT__SAFETENSORS_PREFIX];
    size_t got = 0;
    GT_TRY(read_at(file, 0, prefix, sizeof prefix, &got));
    uint64_t length = 0, room = file->size - sizeof prefix;
    for (size_t i = sizeof prefix; i-- > 0;) length = length << 8 | prefix[i];
    GT_REQUIRE(got == sizeof prefix && length <= room, GT_BAD_FILE,
               "%s: the header should have %llu bytes, the file has %llu after its first %d: is it truncated, or no safetensors file?",
               file->path, (unsigned long long)length, (unsigned long long)room, GT__SAFETENSORS_PREFIX);
    GT_REQUIRE(length <= GT__SAFETENSORS_HEADER, GT_BAD_FILE, "%s: a header of %llu bytes; at most %d are read", file->path,
               (unsigned long long)length, GT__SAFETENSORS_HEADER);
    char *header = gt__malloc((size_t)length);
    if (header == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt_status status = read_at(file, sizeof prefix, header, (size_t)length, &got);
    if (status == GT_OK && got < length)
        status = GT_RAISE(GT_BAD_FILE, "%s: the header should have %llu bytes, %zu could be read: the file was shortened meanwhile",
                          file->path, (unsigned long long)length, got);
    if (status == GT_OK) status = gt__table_read(file->path, header, (size_t)length, room - length, &file->table);
    gt__free(header);
    file->data = file->map + sizeof prefix + length;
    return status;
}

gt_status gt_safetensors_open(const char *path, gt_safetensors **file) {
    GT_REQUIRE(path != NULL && file != NULL, GT_BAD_ARGUMENT, "gt_safetensors_open: %s is NULL", path ? "file" : "path");
    gt_safetensors *made = gt__calloc(1, sizeof *made);
    if (made == NULL) return GT_OUT_OF_HOST_MEMORY;
    made->fd = -1;
    made->path = gt__strdup(path);
    gt_status status = made->path ? map_file(made) : GT_OUT_OF_HOST_MEMORY;
    if (status == GT_OK) status = read_header(made);
    if (status == GT_OK)
        *file = made;
    else
        gt_safetensors_close(made);
    return status;
}

void gt_safetensors_close(gt_safetensors *file) {
    if (file == NULL) return;
    gt__table_free(&file->table);
    if (file->map) (void)munmap((void *)(uintptr_t)file->map, file->size);
    if (file->fd >= 0) (void)close(file->fd);
    gt__free(file->path);
    gt__free(file);
}

gt_status gt__safetensors_verify(const gt_safetensors *file) {
    enum { CHUNK = 1 << 18 };
    void *chunk = gt__malloc(CHUNK);
    if (chunk == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt_status status = GT_OK;
    uint64_t at = 0;
    for (size_t got = CHUNK; status == GT_OK && got == CHUNK; at += got) status = read_at(file, at, chunk, CHUNK, &got);
    gt__free(chunk);
    GT_TRY(status);
    GT_REQUIRE(at == file->size, GT_BAD_FILE, "%s: the file had %llu bytes when it was opened, and has %llu now", file->path,
               (unsigned long long)file->size, (unsigned long long)at);
    return GT_OK;
}

/* --- looking ------------------------------------------------------------------------------------------------------------------------------ */
static const gt_safetensors_info no_info = {.struct_size = sizeof(gt_safetensors_info), .dtype = -1, .name = "", .dtype_name = ""};

gt_status gt_safetensors_info_init(gt_safetensors_info *info, size_t size) {
    return gt__options_write(info, size, &no_info, sizeof no_info, "gt_safetensors_info");
}

int64_t gt_safetensors_count(const gt_safetensors *file) { return file ? file->table.n_entries : 0; }
int64_t gt_safetensors_metadata_count(const gt_safetensors *file) { return file ? file->table.n_metadata : 0; }

static gt_status check_index(const gt_safetensors *file, int64_t index) {
    GT_REQUIRE(index >= 0 && index < file->table.n_entries, GT_BAD_ARGUMENT, "%s has %u tensors, number %lld was asked for", file->path,
               (unsigned)file->table.n_entries, (long long)index);
    return GT_OK;
}

static void fill_info(const gt_safetensors *file, int64_t index, gt_safetensors_info *info) {
    const gt__entry *entry = gt__safetensors_entry(file, index);
    const gt__safetensors_type *type = gt__safetensors_type_at(entry->type);
    *info = no_info;
    info->dtype = type->dtype;
    info->name = entry->name;
    info->dtype_name = type->name;
    info->data = file->data + entry->begin;
    info->bytes = entry->end - entry->begin;
    info->ndim = entry->ndim;
    gt__table_shape(&file->table, entry, info->shape);
}

gt_status gt_safetensors_get_info(const gt_safetensors *file, int64_t index, gt_safetensors_info *info) {
    GT_REQUIRE_HANDLE(file);
    GT_REQUIRE_HANDLE(info);
    GT_TRY(check_index(file, index));
    gt_safetensors_info ours = no_info;
    GT_TRY(gt__options_read(&ours, sizeof ours, info, "gt_safetensors_info"));
    fill_info(file, index, &ours);
    return gt__options_write(info, info->struct_size, &ours, sizeof ours, "gt_safetensors_info");
}

gt_status gt_safetensors_find(const gt_safetensors *file, const char *name, int64_t *index) {
    GT_REQUIRE_HANDLE(file);
    GT_REQUIRE(name != NULL && index != NULL, GT_BAD_ARGUMENT, "gt_safetensors_find: %s is NULL", name ? "index" : "name");
    int64_t found = gt__table_find(&file->table, name);
    if (found < 0) { /* another name of a tied tensor? */
        const char *first = NULL;
        int64_t text = gt__table_find_text(&file->table, name);
        if (text >= 0) first = file->table.header + file->table.metadata[text] + strlen(name) + 1;
        if (first) found = gt__table_find(&file->table, first);
    }
    GT_REQUIRE(found >= 0, GT_NOT_FOUND, "%s has no tensor \"%s\" among its %u", file->path, name, (unsigned)file->table.n_entries);
    *index = found;
    return GT_OK;
}

gt_status gt_safetensors_metadata(const gt_safetensors *file, int64_t index, gt_text_pair *pair) {
    GT_REQUIRE_HANDLE(file);
    GT_REQUIRE_HANDLE(pair);
    GT_REQUIRE(index >= 0 && index < file->table.n_metadata, GT_BAD_ARGUMENT, "%s has %u texts, number %lld was asked for", file->path,
               (unsigned)file->table.n_metadata, (long long)index);
    pair->key = file->table.header + file->table.metadata[index];
    pair->value = pair->key + strlen(pair->key) + 1;
    return GT_OK;
}

gt_status gt_safetensors_metadata_find(const gt_safetensors *file, const char *key, const char **value) {
    GT_REQUIRE_HANDLE(file);
    GT_REQUIRE(key != NULL && value != NULL, GT_BAD_ARGUMENT, "gt_safetensors_metadata_find: %s is NULL", key ? "value" : "key");
    int64_t index = gt__table_find_text(&file->table, key);
    GT_REQUIRE(index >= 0, GT_NOT_FOUND, "%s has no text \"%s\" among its %u", file->path, key, (unsigned)file->table.n_metadata);
    gt_text_pair pair;
    GT_TRY(gt_safetensors_metadata(file, index, &pair));
    *value = pair.value;
    return GT_OK;
}

gt_tensor *gt_safetensors_read(gt_context *ctx, const gt_safetensors *file, int64_t index) {
    if (ctx == NULL || file == NULL) {
        (void)gt__error_null("gt_safetensors_read", ctx ? "file" : "ctx", __FILE__, __LINE__);
        return NULL;
    }
    GT_TRY_NULL(check_index(file, index));
    gt_safetensors_info info;
    fill_info(file, index, &info);
    GT_REQUIRE_NULL(info.dtype >= 0, GT_NOT_SUPPORTED, "%s: tensor \"%s\" is %s, which gtrain has no tensors of", file->path, info.name,
                    info.dtype_name);
    gt_tensor *tensor = gt_tensor_from_data(ctx, info.dtype, info.ndim, info.shape, info.data, (size_t)info.bytes);
    if (tensor && gt_tensor_set_name(tensor, info.name) != GT_OK) {
        if (ctx->n_scopes == 0) gt_tensor_release(tensor);
        return NULL;
    }
    return tensor;
}
