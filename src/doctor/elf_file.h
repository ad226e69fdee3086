/* What a shared library says of itself in its file, without loading it: its code may need libraries that are not there. 64-bit ELF of this machine's byte
 * order; a file that is none, or is cut or made up, is told by `why` and nothing worse. */
#ifndef GT_DOCTOR_ELF_FILE_H
#define GT_DOCTOR_ELF_FILE_H

#include "base/host.h"

enum { GT__ELF_NEEDED = 32 };

typedef struct gt__elf_file {
    uint16_t machine; /* as e_machine has it */
    char needed[GT__ELF_NEEDED][64];
    int32_t needed_count;
    char runpath[1024]; /* DT_RUNPATH, or DT_RPATH where there is none */
    char note[1024];    /* the text of the note whose owner is "gtrain", or "" */
    char why[128];
} gt__elf_file;

/* False with `why` if it cannot be read. */
bool gt__elf_read(const char *path, gt__elf_file *elf);
/* Is it for the machine that this code runs on? */
bool gt__elf_runs_here(const gt__elf_file *elf);

#endif
