/* Strings that live as long as the context. Memory tags and records keep plain pointers to module paths, and outlive the modules. */
#include "core/core.h"

struct gt__string {
    struct gt__string *next;
    size_t length;
    uint32_t hash;
    char text[];
};

static uint32_t hash_of(const char *text, size_t length) { /* FNV-1a */
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < length; ++i) hash = (hash ^ (unsigned char)text[i]) * 16777619u;
    return hash;
}

const char *gt__context_string(gt_context *ctx, const char *text) {
    size_t length = strlen(text);
    uint32_t hash = hash_of(text, length);
    for (struct gt__string *s = ctx->strings; s; s = s->next)
        if (s->hash == hash && s->length == length && memcmp(s->text, text, length) == 0) return s->text;
    struct gt__string *made = gt__malloc(sizeof *made + length + 1);
    if (made == NULL) return NULL;
    made->next = ctx->strings;
    made->length = length;
    made->hash = hash;
    memcpy(made->text, text, length + 1);
    ctx->strings = made;
    return made->text;
}

void gt__context_strings_free(gt_context *ctx) {
    while (ctx->strings) {
        struct gt__string *s = ctx->strings;
        ctx->strings = s->next;
        gt__free(s);
    }
}
