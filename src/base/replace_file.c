#include "base/replace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static gt_status io_error(const char *who, const char *path, const char *what, int code) {
    return gt__error_raise(GT_IO, __FILE__, __LINE__, code, "errno", NULL, "%s: cannot %s %s: %s", who, what, path, strerror(code));
}

/* Opens a new file next to `path`; its name goes to `name`. Not O_TMPFILE, which not every file system has. */
static int open_beside(const char *path, char *name, size_t size) {
    for (unsigned attempt = 0; attempt < 1000; ++attempt) {
        (void)snprintf(name, size, "%s.%ld-%u.tmp", path, (long)getpid(), attempt);
        int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return -1;
}

static int write_all(int fd, const char *data, size_t size) {
    while (size > 0) {
        ssize_t n = write(fd, data, GT__MIN(size, (size_t)1 << 30));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        data += n;
        size -= (size_t)n;
    }
    return 0;
}

/* A rename survives a crash once its folder is on the disk. Not every file system can flush a folder, and the file is whole either way. */
static void flush_folder(char *path) {
    char *slash = strrchr(path, '/');
    if (slash) slash[slash == path ? 1 : 0] = '\0';
    int fd = open(slash ? path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    (void)fsync(fd);
    (void)close(fd);
}

gt_status gt__replace_begin(gt__replacement *r, const char *who, const char *path) {
    *r = (gt__replacement){.who = who, .path = path, .fd = -1};
    struct stat there;
    if (lstat(path, &there) == 0) {
        GT_REQUIRE(S_ISREG(there.st_mode), GT_BAD_ARGUMENT, "%s: %s is not a plain file, and is not replaced by one", who, path);
    }
    size_t room = strlen(path) + 48;
    char *name = gt__malloc(room);
    if (name == NULL) return GT_OUT_OF_HOST_MEMORY;
    r->fd = open_beside(path, name, room);
    if (r->fd < 0) {
        gt_status status = io_error(who, path, "create", errno);
        gt__free(name);
        return status;
    }
    r->name = name;
    return GT_OK;
}

gt_status gt__replace_write(gt__replacement *r, const void *data, size_t size) {
    return write_all(r->fd, data, size) == 0 ? GT_OK : io_error(r->who, r->path, "write", errno);
}

/* Closes the file and, unless `keep`, removes it. */
static void end(gt__replacement *r, bool keep) {
    if (r->fd >= 0) (void)close(r->fd);
    if (!keep) (void)unlink(r->name);
    gt__free(r->name);
    r->name = NULL;
    r->fd = -1;
}

gt_status gt__replace_finish(gt__replacement *r) {
    gt_status status = GT_OK;
    if (fsync(r->fd) != 0 && errno != EINVAL && errno != EROFS) /* special files cannot be flushed */
        status = io_error(r->who, r->path, "flush", errno);
    int fd = r->fd;
    r->fd = -1;
    if (close(fd) != 0 && status == GT_OK) status = io_error(r->who, r->path, "close", errno);
    if (status == GT_OK && rename(r->name, r->path) != 0) status = io_error(r->who, r->path, "replace", errno);
    if (status == GT_OK) flush_folder(r->name);
    end(r, status == GT_OK);
    return status;
}

void gt__replace_give_up(gt__replacement *r) {
    if (r->name) end(r, false);
}

gt_status gt__replace_file(const char *who, const char *path, const void *data, size_t size) {
    gt__replacement r;
    GT_TRY(gt__replace_begin(&r, who, path));
    gt_status status = gt__replace_write(&r, data, size);
    if (status == GT_OK) return gt__replace_finish(&r);
    gt__replace_give_up(&r);
    return status;
}
