#include "data/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef GTRAIN_HAVE_ZLIB
#include <zlib.h>
#endif

enum { CHUNK = 64 * 1024 };

struct gt__file {
    const char *path;
    int fd;
    bool gzip;
    uint64_t size;
#ifdef GTRAIN_HAVE_ZLIB
    z_stream stream;
    bool stream_open; /* inflateInit2 succeeded */
    bool in_member;   /* between a gzip header and its trailer */
    unsigned char input[CHUNK];
#endif
};

static gt_status io_error(const gt__file *file, const char *what, int code) {
    return gt__error_raise(GT_IO, __FILE__, __LINE__, code, "errno", NULL, "%s: cannot %s: %s", file->path, what, strerror(code));
}

/* Reads up to `size` bytes from disk; fewer only at the end of the file. */
static gt_status read_raw(const gt__file *file, void *buffer, size_t size, size_t *got) {
    size_t done = 0;
    while (done < size) {
        ssize_t n = read(file->fd, (char *)buffer + done, size - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return io_error(file, "read", errno);
        if (n == 0) break;
        done += (size_t)n;
    }
    *got = done;
    return GT_OK;
}

#ifdef GTRAIN_HAVE_ZLIB
static void *zlib_alloc(void *opaque, unsigned count, unsigned size) {
    (void)opaque;
    return gt__calloc(count, size);
}

static void zlib_free(void *opaque, void *pointer) {
    (void)opaque;
    gt__free(pointer);
}

static gt_status stream_begin(gt__file *file) {
    file->stream = (z_stream){.zalloc = zlib_alloc, .zfree = zlib_free};
    file->in_member = true;
    int code = inflateInit2(&file->stream, 15 + 16);       /* a gzip wrapper, and nothing else */
    if (code == Z_MEM_ERROR) return GT_OUT_OF_HOST_MEMORY; /* raised by zlib_alloc */
    GT_REQUIRE(code == Z_OK, GT_INTERNAL, "%s: zlib could not start (%d)", file->path, code);
    file->stream_open = true;
    return GT_OK;
}

static gt_status read_gzip(gt__file *file, void *buffer, size_t size, size_t *got) {
    z_stream *stream = &file->stream;
    size_t done = 0;
    while (done < size) {
        if (stream->avail_in == 0) {
            size_t n = 0;
            GT_TRY(read_raw(file, file->input, sizeof file->input, &n));
            if (n == 0) {
                GT_REQUIRE(!file->in_member, GT_BAD_FILE,
                           "%s: the gzip data end too early: expected more after %llu bytes of file, found its end", file->path,
                           (unsigned long long)file->size);
                break;
            }
            stream->next_in = file->input;
            stream->avail_in = (unsigned)n;
        }
        if (!file->in_member) { /* another member follows the last one */
            (void)inflateReset(stream);
            file->in_member = true;
        }
        size_t room = GT__MIN(size - done, (size_t)1 << 30);
        stream->next_out = (unsigned char *)buffer + done;
        stream->avail_out = (unsigned)room;
        int code = inflate(stream, Z_NO_FLUSH);
        done += room - stream->avail_out;
        if (code == Z_STREAM_END) {
            file->in_member = false;
        } else if (code == Z_MEM_ERROR) {
            return GT_OUT_OF_HOST_MEMORY;
        } else {
            GT_REQUIRE(code == Z_OK || code == Z_BUF_ERROR, GT_BAD_FILE, "%s: the gzip data are damaged: %s", file->path,
                       stream->msg ? stream->msg : "expected a gzip header, found something else");
        }
    }
    *got = done;
    return GT_OK;
}
#endif

gt_status gt__file_open(const char *path, gt__file **result) {
    gt__file *file = gt__calloc(1, sizeof *file);
    if (file == NULL) return GT_OUT_OF_HOST_MEMORY;
    file->path = path;
    gt_status status = GT_OK;
    struct stat about;
    /* O_NONBLOCK: a named pipe is refused below instead of waited for. */
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->fd < 0) {
        status = io_error(file, "open", errno);
        goto fail;
    }
    if (fstat(file->fd, &about) != 0) {
        status = io_error(file, "examine", errno);
        goto fail;
    }
    if (!S_ISREG(about.st_mode)) {
        status = GT_RAISE(GT_IO, "%s: expected a file, found %s", path,
                          S_ISDIR(about.st_mode) ? "a folder" : "something that is neither file nor folder");
        goto fail;
    }
    file->size = (uint64_t)about.st_size;

    unsigned char magic[2] = {0, 0};
    size_t got = 0;
    GT_TRY_GOTO(status, read_raw(file, magic, sizeof magic, &got), fail);
    file->gzip = got == 2 && magic[0] == 0x1f && magic[1] == 0x8b;
#ifdef GTRAIN_HAVE_ZLIB
    if (file->gzip) GT_TRY_GOTO(status, stream_begin(file), fail);
#else
    if (file->gzip) {
        status = GT_RAISE_HINT(GT_BAD_FILE, "unpack it with gunzip, or use a build of gtrain with zlib",
                               "%s: expected plain data, found gzip data: this build reads no compressed files", path);
        goto fail;
    }
#endif
    GT_TRY_GOTO(status, gt__file_rewind(file), fail);
    *result = file;
    return GT_OK;
fail:
    gt__file_close(file);
    return status;
}

void gt__file_close(gt__file *file) {
    if (file == NULL) return;
#ifdef GTRAIN_HAVE_ZLIB
    if (file->stream_open) (void)inflateEnd(&file->stream);
#endif
    if (file->fd >= 0) (void)close(file->fd);
    gt__free(file);
}

gt_status gt__file_read(gt__file *file, void *buffer, size_t size, size_t *got) {
#ifdef GTRAIN_HAVE_ZLIB
    if (file->gzip) return read_gzip(file, buffer, size, got);
#endif
    return read_raw(file, buffer, size, got);
}

gt_status gt__file_rewind(gt__file *file) {
    if (lseek(file->fd, 0, SEEK_SET) < 0) return io_error(file, "rewind", errno);
#ifdef GTRAIN_HAVE_ZLIB
    if (file->gzip) {
        (void)inflateReset(&file->stream);
        file->stream.avail_in = 0;
        file->in_member = true;
    }
#endif
    return GT_OK;
}

bool gt__file_is_gzip(const gt__file *file) { return file->gzip; }

uint64_t gt__file_size(const gt__file *file) { return file->size; }
