#include "doctor/elf_file.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* More than any library has; what is beyond is not read. */
enum { MOST_HEADERS = 128, MOST_DYNAMIC = 512, MOST_NOTES = 64 * 1024, MOST_NAMES = 4096 };

typedef struct reader {
    int file;
    Elf64_Phdr headers[MOST_HEADERS];
    int header_count;
} reader;

static bool read_at(const reader *r, uint64_t offset, void *data, size_t bytes) {
    if (offset > (uint64_t)INT64_MAX - bytes) return false;
    return pread(r->file, data, bytes, (off_t)offset) == (ssize_t)bytes;
}

/* Where the byte that will lie at `address` is in the file. */
static bool offset_of(const reader *r, uint64_t address, uint64_t *offset) {
    for (int i = 0; i < r->header_count; i++) {
        const Elf64_Phdr *h = &r->headers[i];
        if (h->p_type != PT_LOAD || address < h->p_vaddr || address - h->p_vaddr >= h->p_filesz) continue;
        *offset = h->p_offset + (address - h->p_vaddr);
        return true;
    }
    return false;
}

/* A name of the string table: cut if it is longer than the caller wants. */
static bool read_name(const reader *r, uint64_t table, uint64_t at, char *name, size_t size) {
    char bytes[MOST_NAMES];
    if (at > UINT64_MAX - table || table + at > (uint64_t)INT64_MAX) return false;
    ssize_t got = pread(r->file, bytes, sizeof bytes, (off_t)(table + at));
    if (got <= 0) return false;
    size_t length = strnlen(bytes, (size_t)got);
    if (length == (size_t)got || length >= size) return false; /* without an end, or too long to be one of those that we look for */
    memcpy(name, bytes, length + 1);
    return true;
}

static void read_dynamic(const reader *r, const Elf64_Phdr *header, gt__elf_file *elf) {
    Elf64_Dyn entries[MOST_DYNAMIC];
    size_t count = GT__MIN(header->p_filesz / sizeof *entries, (uint64_t)MOST_DYNAMIC);
    uint64_t table = 0;
    if (!read_at(r, header->p_offset, entries, count * sizeof *entries)) return;
    bool found = false;
    for (size_t i = 0; i < count && entries[i].d_tag != DT_NULL; i++)
        if (entries[i].d_tag == DT_STRTAB) found = offset_of(r, entries[i].d_un.d_ptr, &table);
    if (!found) return;
    bool runpath = false;
    for (size_t i = 0; i < count && entries[i].d_tag != DT_NULL; i++) {
        uint64_t at = entries[i].d_un.d_val;
        if (entries[i].d_tag == DT_NEEDED && elf->needed_count < GT__ELF_NEEDED) {
            char *name = elf->needed[elf->needed_count];
            elf->needed_count += read_name(r, table, at, name, sizeof elf->needed[0]);
        } else if (entries[i].d_tag == DT_RUNPATH || (entries[i].d_tag == DT_RPATH && !runpath)) {
            runpath |= entries[i].d_tag == DT_RUNPATH;
            if (!read_name(r, table, at, elf->runpath, sizeof elf->runpath)) elf->runpath[0] = '\0';
        }
    }
}

static void read_notes(const reader *r, const Elf64_Phdr *header, gt__elf_file *elf) {
    static const char owner[] = "gtrain";
    char name[sizeof owner];
    size_t padding = header->p_align == 8 ? 7 : 3;
    uint64_t end = GT__MIN(header->p_filesz, (uint64_t)MOST_NOTES);
    for (uint64_t at = 0; at + sizeof(Elf64_Nhdr) <= end;) {
        Elf64_Nhdr note;
        if (!read_at(r, header->p_offset + at, &note, sizeof note)) return;
        uint64_t name_at = at + sizeof note;
        uint64_t text_at = (name_at + note.n_namesz + padding) & ~(uint64_t)padding;
        uint64_t next = (text_at + note.n_descsz + padding) & ~(uint64_t)padding;
        if (next > end) return;
        if (note.n_namesz == sizeof owner && note.n_descsz > 0 && note.n_descsz < sizeof elf->note &&
            read_at(r, header->p_offset + name_at, name, sizeof name) && memcmp(name, owner, sizeof owner) == 0) {
            if (!read_at(r, header->p_offset + text_at, elf->note, note.n_descsz)) elf->note[0] = '\0';
            elf->note[note.n_descsz] = '\0';
            return;
        }
        at = next;
    }
}

static bool read_all(reader *r, gt__elf_file *elf) {
    Elf64_Ehdr head;
    const unsigned char order = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB;
    if (!read_at(r, 0, &head, sizeof head) || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) {
        (void)snprintf(elf->why, sizeof elf->why, "it is not a shared library");
        return false;
    }
    if (head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_ident[EI_DATA] != order) {
        (void)snprintf(elf->why, sizeof elf->why, "it is a library for another kind of machine");
        return false;
    }
    elf->machine = head.e_machine;
    r->header_count = GT__MIN((int)head.e_phnum, MOST_HEADERS);
    if (head.e_phentsize != sizeof r->headers[0] || !read_at(r, head.e_phoff, r->headers, (size_t)r->header_count * sizeof r->headers[0])) {
        (void)snprintf(elf->why, sizeof elf->why, "its headers are cut off");
        return false;
    }
    for (int i = 0; i < r->header_count; i++) {
        if (r->headers[i].p_type == PT_DYNAMIC) read_dynamic(r, &r->headers[i], elf);
        if (r->headers[i].p_type == PT_NOTE && !elf->note[0]) read_notes(r, &r->headers[i], elf);
    }
    return true;
}

bool gt__elf_read(const char *path, gt__elf_file *elf) {
    struct stat info;
    memset(elf, 0, sizeof *elf);
    reader r = {.file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (r.file < 0) {
        char text[96];
        (void)snprintf(elf->why, sizeof elf->why, "it cannot be opened: %s", strerror_r(errno, text, sizeof text));
        return false;
    }
    bool fine = fstat(r.file, &info) == 0 && S_ISREG(info.st_mode);
    if (!fine) (void)snprintf(elf->why, sizeof elf->why, "it is not a file");
    fine = fine && read_all(&r, elf);
    (void)close(r.file);
    return fine;
}

bool gt__elf_runs_here(const gt__elf_file *elf) {
#if defined(__x86_64__)
    return elf->machine == EM_X86_64;
#elif defined(__aarch64__)
    return elf->machine == EM_AARCH64;
#else
    return elf->machine != EM_NONE;
#endif
}
