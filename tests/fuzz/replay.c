/* Calls a fuzz target with every file of a folder: what was found once is looked for always, with any compiler. */
#include "fuzz/fuzz.h"

#include <dirent.h>

static int replay(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) return 0;
    enum { MOST = 1 << 20 };
    unsigned char *bytes = malloc(MOST);
    DEMAND(bytes != NULL);
    size_t size = fread(bytes, 1, MOST, file);
    (void)fclose(file);
    unsigned char *exact = malloc(size ? size : 1); /* so that a sanitizer sees its end */
    DEMAND(exact != NULL);
    memcpy(exact, bytes, size);
    free(bytes);
    (void)LLVMFuzzerTestOneInput(exact, size);
    free(exact);
    return 1;
}

int main(int argc, char **argv) {
    int count = 0;
    for (int i = 1; i < argc; ++i) {
        DIR *folder = opendir(argv[i]);
        if (folder == NULL) {
            count += replay(argv[i]);
            continue;
        }
        for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
            char path[4096];
            (void)snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name);
            if (entry->d_name[0] != '.') count += replay(path);
        }
        (void)closedir(folder);
    }
    printf("%d inputs\n", count);
    return count > 0 ? 0 : 1;
}
