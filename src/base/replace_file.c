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

gt_status gt__replace_file(const char *who, const char *path, const void *data, size_t size) {
    struct stat there;
    if (lstat(path, &there) == 0) {
        GT_REQUIRE(S_ISREG(there.st_mode), GT_BAD_ARGUMENT, "%s: %s is not a plain file, and is not replaced by one", who, path);
    }
    size_t room = strlen(path) + 48;
    char *name = gt__malloc(room);
    if (name == NULL) return GT_OUT_OF_HOST_MEMORY;
    gt_status status = GT_OK;
    int fd = open_beside(path, name, room);
    if (fd < 0) {
        status = io_error(who, path, "create", errno);
        goto done;
    }
    if (write_all(fd, data, size) != 0)
        status = io_error(who, path, "write", errno);
    else if (fsync(fd) != 0 && errno != EINVAL && errno != EROFS) /* special files cannot be flushed */
        status = io_error(who, path, "flush", errno);
    if (close(fd) != 0 && status == GT_OK) status = io_error(who, path, "close", errno);
    if (status == GT_OK && rename(name, path) != 0) status = io_error(who, path, "replace", errno);
    if (status != GT_OK)
        (void)unlink(name);
    else
        flush_folder(name);
done:
    gt__free(name);
    return status;
}
