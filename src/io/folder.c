/* Several states of a run in one folder, told apart by numbers. */
#include "base/host.h"

#include <dirent.h>
#include <errno.h>
#include <gtrain/io.h>
#include <stdlib.h>
#include <unistd.h>

static const char ending[] = ".safetensors";

static gt_status give_path(const char *who, const gt__text *text, char *path, size_t size, size_t *needed) {
    GT_REQUIRE(path != NULL || size == 0, GT_BAD_ARGUMENT, "%s: path is NULL for %zu bytes", who, size);
    if (needed) *needed = text->length + 1;
    if (size == 0) return GT_OK;
    size_t length = GT__MIN(text->length, size - 1);
    memcpy(path, text->data, length);
    path[length] = '\0';
    GT_REQUIRE(length == text->length || needed != NULL, GT_BAD_ARGUMENT, "%s: the path %s has %zu bytes, there is room for %zu", who,
               text->data, text->length + 1, size);
    return GT_OK;
}

gt_status gt_state_path(const char *prefix, int64_t number, char *path, size_t size, size_t *needed) {
    static const char who[] = "gt_state_path";
    GT_REQUIRE(prefix != NULL && number >= 0, GT_BAD_ARGUMENT, "%s: %s", who, prefix ? "the number is negative" : "prefix is NULL");
    gt__text text = {0};
    gt_status status = gt__text_add(&text, "%s%06lld%s", prefix, (long long)number, ending);
    if (status == GT_OK) status = give_path(who, &text, path, size, needed);
    gt__text_free(&text);
    return status;
}

/* --- looking into the folder ------------------------------------------------------------------------------------------------------------------- */
typedef struct numbered {
    char *name; /* in the folder */
    int64_t number;
} numbered;

typedef struct listing {
    gt__text folder; /* with its slash; "" for the current one */
    numbered *files; /* by number, the greatest first */
    int32_t count, capacity;
} listing;

/* The number of "<start><digits>.safetensors", or -1. */
static int64_t number_of(const char *name, const char *start) {
    size_t length = strlen(name), skip = strlen(start);
    if (length <= skip + sizeof ending - 1 || strncmp(name, start, skip) != 0 || strcmp(name + length - (sizeof ending - 1), ending) != 0)
        return -1;
    int64_t number = 0;
    for (const char *s = name + skip; s < name + length - (sizeof ending - 1); ++s) {
        if (*s < '0' || *s > '9' || number > (INT64_MAX - 9) / 10) return -1;
        number = number * 10 + (*s - '0');
    }
    return number;
}

static gt_status add_file(listing *list, const char *name, int64_t number) {
    if (list->count == list->capacity) {
        int32_t capacity = GT__MAX(list->capacity * 2, 16);
        numbered *grown = gt__realloc(list->files, (size_t)capacity * sizeof *grown);
        if (grown == NULL) return GT_OUT_OF_HOST_MEMORY;
        list->files = grown;
        list->capacity = capacity;
    }
    char *copy = gt__strdup(name);
    if (copy == NULL) return GT_OUT_OF_HOST_MEMORY;
    list->files[list->count++] = (numbered){copy, number};
    return GT_OK;
}

static int greatest_first(const void *a, const void *b) {
    const numbered *x = a, *y = b;
    return x->number != y->number ? (x->number < y->number) - (x->number > y->number) : strcmp(x->name, y->name);
}

static void listing_free(listing *list) {
    for (int32_t i = 0; i < list->count; ++i) gt__free(list->files[i].name);
    gt__free(list->files);
    gt__text_free(&list->folder);
}

static gt_status list_files(const char *who, const char *prefix, listing *list) {
    const char *slash = strrchr(prefix, '/'), *start = slash ? slash + 1 : prefix;
    GT_TRY(gt__text_append(&list->folder, prefix, (size_t)(start - prefix)));
    DIR *folder = opendir(slash ? list->folder.data : ".");
    if (folder == NULL)
        return gt__error_raise(GT_IO, __FILE__, __LINE__, errno, "errno", NULL, "%s: cannot look into %s: %s", who,
                               slash ? list->folder.data : "the current folder", strerror(errno));
    gt_status status = GT_OK;
    for (const struct dirent *entry; status == GT_OK && (entry = readdir(folder)) != NULL;) {
        int64_t number = number_of(entry->d_name, start);
        if (number >= 0) status = add_file(list, entry->d_name, number);
    }
    (void)closedir(folder);
    if (list->count > 0) qsort(list->files, (size_t)list->count, sizeof *list->files, greatest_first);
    return status;
}

gt_status gt_state_latest(const char *prefix, char *path, size_t size, size_t *needed, int64_t *number) {
    static const char who[] = "gt_state_latest";
    GT_REQUIRE(prefix != NULL, GT_BAD_ARGUMENT, "%s: prefix is NULL", who);
    listing list = {0};
    gt_status status = list_files(who, prefix, &list);
    if (status == GT_OK && list.count == 0) status = GT_RAISE(GT_NOT_FOUND, "%s: there is no %s<number>%s", who, prefix, ending);
    if (status == GT_OK) status = gt__text_add(&list.folder, "%s", list.files[0].name);
    if (status == GT_OK) status = give_path(who, &list.folder, path, size, needed);
    if (status == GT_OK && number) *number = list.files[0].number;
    listing_free(&list);
    return status;
}

gt_status gt_state_keep_last(const char *prefix, int32_t keep) {
    static const char who[] = "gt_state_keep_last";
    GT_REQUIRE(prefix != NULL && keep >= 1, GT_BAD_ARGUMENT, "%s: %s", who, prefix ? "keep must be at least 1" : "prefix is NULL");
    listing list = {0};
    gt_status status = list_files(who, prefix, &list);
    size_t folder = list.folder.length;
    for (int32_t i = keep; i < list.count && status == GT_OK; ++i) {
        list.folder.length = folder;
        status = gt__text_add(&list.folder, "%s", list.files[i].name);
        if (status == GT_OK && unlink(list.folder.data) != 0 && errno != ENOENT)
            status = gt__error_raise(GT_IO, __FILE__, __LINE__, errno, "errno", NULL, "%s: cannot remove %s: %s", who, list.folder.data,
                                     strerror(errno));
    }
    listing_free(&list);
    return status;
}
