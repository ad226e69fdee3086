#include "io/table.h"

#include "base/json_read.h"

static const gt__safetensors_type types[] = {
    {"F64", 64, GT_DTYPE_F64},
    {"F32", 32, GT_DTYPE_F32},
    {"F16", 16, GT_DTYPE_F16},
    {"BF16", 16, GT_DTYPE_BF16},
    {"I64", 64, GT_DTYPE_I64},
    {"I32", 32, GT_DTYPE_I32},
    {"U8", 8, GT_DTYPE_U8},
    /* Known so that their sizes can be checked. */
    {"BOOL", 8, -1},
    {"I8", 8, -1},
    {"I16", 16, -1},
    {"U16", 16, -1},
    {"U32", 32, -1},
    {"U64", 64, -1},
    {"C64", 64, -1},
    {"F8_E4M3", 8, -1},
    {"F8_E5M2", 8, -1},
    {"F8_E8M0", 8, -1},
    {"F6_E2M3", 6, -1},
    {"F6_E3M2", 6, -1},
    {"F4", 4, -1},
};

const gt__safetensors_type *gt__safetensors_type_at(uint8_t type) { return &types[type]; }

const char *gt__safetensors_type_name(gt_dtype dtype) {
    for (size_t i = 0; i < GT__COUNT(types); ++i)
        if (types[i].dtype == dtype) return types[i].name;
    return "?";
}

/* --- sorting without memory, whatever the order before (Williams 1964) ------------------------------------------------------------------------ */
typedef bool (*less_fn)(const gt__table *table, uint32_t a, uint32_t b);

static void sift(const gt__table *table, uint32_t *list, uint32_t at, uint32_t n, less_fn less) {
    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && less(table, list[child], list[child + 1])) child++;
        if (!less(table, list[at], list[child])) return;
        uint32_t kept = list[at];
        list[at] = list[child];
        list[child] = kept;
    }
}

static void sort(const gt__table *table, uint32_t *list, uint32_t n, less_fn less) {
    for (uint32_t i = n / 2; i-- > 0;) sift(table, list, i, n, less);
    for (uint32_t end = n; end > 1;) {
        uint32_t greatest = list[0];
        list[0] = list[--end];
        list[end] = greatest;
        sift(table, list, 0, end, less);
    }
}

static bool by_name(const gt__table *table, uint32_t a, uint32_t b) { return strcmp(table->entries[a].name, table->entries[b].name) < 0; }

static bool by_key(const gt__table *table, uint32_t a, uint32_t b) { return strcmp(table->header + a, table->header + b) < 0; }

static bool by_place(const gt__table *table, uint32_t a, uint32_t b) {
    const gt__entry *x = &table->entries[a], *y = &table->entries[b];
    return x->begin != y->begin ? x->begin < y->begin : x->end < y->end;
}

/* --- reading ------------------------------------------------------------------------------------------------------------------------------- */
typedef struct reading {
    const char *path;
    gt__table *table;
    gt__json_reader json;
    gt__json_token token; /* the last one */
    size_t size;          /* of the header */
    uint64_t data_size;
} reading;

#define NAME_MOST 200 /* bytes of a name in a message */

static gt_status next(reading *r) {
    if (gt__json_next(&r->json, &r->token)) return GT_OK;
    GT_FAIL(GT_BAD_FILE, "%s: the header is not valid JSON: found %s at byte %zu", r->path, r->json.problem, r->json.at);
}

/* How many tensors and texts there are. Everything after this is known to be valid JSON. */
static gt_status count(reading *r, uint32_t *entries, uint32_t *texts) {
    bool metadata = false;
    *entries = *texts = 0;
    gt__json_reader_init(&r->json, r->table->header, r->size);
    do {
        GT_TRY(next(r));
        if (r->token.kind != GT__JSON_KEY) continue;
        if (r->json.depth == 1) metadata = gt__json_is(r->json.text, &r->token, "__metadata__");
        if (r->json.depth == 1 && !metadata) ++*entries;
        if (r->json.depth == 2 && metadata) ++*texts;
    } while (r->token.kind != GT__JSON_END);
    return GT_OK;
}

/* Moves the last token, a string, to header + at, without escapes and with a NUL behind. `at` is not behind it. */
static gt_status settle(reading *r, size_t at, const char *what, size_t *length) {
    char *to = r->table->header + at;
    *length = gt__json_decode(r->json.text, &r->token, to);
    GT_REQUIRE(memchr(to, '\0', *length) == NULL, GT_BAD_FILE, "%s: %s at byte %zu of the header has a NUL character", r->path, what,
               r->token.at);
    to[*length] = '\0';
    return GT_OK;
}

/* "key": "text", …, packed to the front of where they stood. */
static gt_status read_metadata(reading *r) {
    gt__table *table = r->table;
    GT_TRY(next(r));
    GT_REQUIRE(r->token.kind == GT__JSON_OBJECT, GT_BAD_FILE, "%s: __metadata__ is not an object of texts", r->path);
    size_t at = r->token.at;
    for (;;) {
        size_t length = 0;
        GT_TRY(next(r));
        if (r->token.kind == GT__JSON_OBJECT_END) return GT_OK;
        table->metadata[table->n_metadata++] = (uint32_t)at;
        GT_TRY(settle(r, at, "a key of __metadata__", &length));
        const char *key = table->header + at;
        at += length + 1;
        GT_TRY(next(r));
        GT_REQUIRE(r->token.kind == GT__JSON_STRING, GT_BAD_FILE, "%s: __metadata__ has something else than a text for \"%.*s\"", r->path,
                   NAME_MOST, key);
        GT_TRY(settle(r, at, "a text of __metadata__", &length));
        at += length + 1;
    }
}

static gt_status read_type(reading *r, gt__entry *entry) {
    GT_TRY(next(r));
    for (size_t i = 0; i < GT__COUNT(types) && r->token.kind == GT__JSON_STRING; ++i) {
        if (!gt__json_is(r->json.text, &r->token, types[i].name)) continue;
        entry->type = (uint8_t)i;
        return GT_OK;
    }
    GT_FAIL(GT_BAD_FILE, "%s: tensor \"%.*s\": dtype %.*s is unknown", r->path, NAME_MOST, entry->name,
            (int)GT__MIN(r->token.length, (size_t)40), r->json.text + r->token.at);
}

/* A list of whole numbers, at most `most`; a place in each of `values` while it is not NULL. */
static gt_status read_numbers(reading *r, const gt__entry *entry, const char *field, int32_t most, uint64_t *values, int32_t *n) {
    GT_TRY(next(r));
    GT_REQUIRE(r->token.kind == GT__JSON_ARRAY, GT_BAD_FILE, "%s: tensor \"%.*s\": %s is not a list", r->path, NAME_MOST, entry->name,
               field);
    for (*n = 0;; ++*n) {
        GT_TRY(next(r));
        if (r->token.kind == GT__JSON_ARRAY_END) return GT_OK;
        GT_REQUIRE(*n < most, GT_BAD_FILE, "%s: tensor \"%.*s\": %s has more than %d numbers", r->path, NAME_MOST, entry->name, field,
                   (int)most);
        GT_REQUIRE(gt__json_whole(r->json.text, &r->token, &values[*n]), GT_BAD_FILE,
                   "%s: tensor \"%.*s\": %s has %.*s; expected a whole number from 0 to 2^63 - 1", r->path, NAME_MOST, entry->name, field,
                   (int)GT__MIN(r->token.length, (size_t)40), r->json.text + r->token.at);
    }
}

/* Bytes that the shape needs, which must be those that there are. */
static gt_status check_size(const reading *r, const gt__entry *entry, const uint64_t *shape) {
    const gt__safetensors_type *type = &types[entry->type];
    const uint64_t most = ((uint64_t)1 << 62) / (uint64_t)type->bits; /* in eighths of bytes */
    uint64_t product = 1, elements = 1;
    char text[GT__SHAPE_TEXT];
    int64_t sizes[GT_MAX_DIMS] = {0};
    for (int32_t i = 0; i < entry->ndim; ++i) sizes[i] = (int64_t)shape[i];
    (void)gt__shape_text(text, sizeof text, entry->ndim, sizes);
    for (int32_t i = 0; i < entry->ndim; ++i) {
        uint64_t size = GT__MAX(shape[i], 1); /* empty axes count as 1, so that no product is too large for strides */
        GT_REQUIRE(product <= most / size, GT_BAD_FILE, "%s: tensor \"%.*s\": shape %s of %s is larger than an address range", r->path,
                   NAME_MOST, entry->name, text, type->name);
        product *= size;
        elements = shape[i] == 0 ? 0 : elements;
    }
    uint64_t bits = elements * product * (uint64_t)type->bits;
    GT_REQUIRE(bits % 8 == 0, GT_BAD_FILE, "%s: tensor \"%.*s\": shape %s of %s does not fill whole bytes", r->path, NAME_MOST, entry->name,
               text, type->name);
    GT_REQUIRE(bits / 8 == entry->end - entry->begin, GT_BAD_FILE,
               "%s: tensor \"%.*s\": shape %s of %s takes %llu bytes, its data_offsets [%llu,%llu] are %llu", r->path, NAME_MOST,
               entry->name, text, type->name, (unsigned long long)(bits / 8), (unsigned long long)entry->begin,
               (unsigned long long)entry->end, (unsigned long long)(entry->end - entry->begin));
    return GT_OK;
}

static gt_status check_place(const reading *r, const gt__entry *entry) {
    GT_REQUIRE(entry->begin <= entry->end, GT_BAD_FILE, "%s: tensor \"%.*s\": data_offsets [%llu,%llu] end before they begin", r->path,
               NAME_MOST, entry->name, (unsigned long long)entry->begin, (unsigned long long)entry->end);
    GT_REQUIRE(entry->end <= r->data_size, GT_BAD_FILE,
               "%s: tensor \"%.*s\": data_offsets [%llu,%llu] end behind the %llu bytes of data that the file has%s", r->path, NAME_MOST,
               entry->name, (unsigned long long)entry->begin, (unsigned long long)entry->end, (unsigned long long)r->data_size,
               ": is it truncated?");
    return GT_OK;
}

/* "name": {"dtype": …, "shape": […], "data_offsets": […]}, from behind the name. */
static gt_status read_entry(reading *r, gt__entry *entry) {
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };
    static const char *const fields[] = {"dtype", "shape", "data_offsets"};
    int found = 0;
    uint64_t shape[GT_MAX_DIMS] = {0}, offsets[2] = {0};
    int32_t n = 0;
    GT_TRY(next(r));
    GT_REQUIRE(r->token.kind == GT__JSON_OBJECT, GT_BAD_FILE, "%s: tensor \"%.*s\" is not described by an object", r->path, NAME_MOST,
               entry->name);
    for (;;) {
        GT_TRY(next(r));
        if (r->token.kind == GT__JSON_OBJECT_END) break;
        int field = 0;
        while (field < 3 && !gt__json_is(r->json.text, &r->token, fields[field])) ++field;
        GT_REQUIRE(field < 3, GT_BAD_FILE, "%s: tensor \"%.*s\" has an unknown field, %.*s", r->path, NAME_MOST, entry->name,
                   (int)GT__MIN(r->token.length, (size_t)40), r->json.text + r->token.at);
        GT_REQUIRE(!(found & 1 << field), GT_BAD_FILE, "%s: tensor \"%.*s\" has %s twice", r->path, NAME_MOST, entry->name, fields[field]);
        found |= 1 << field;
        if (1 << field == DTYPE) {
            GT_TRY(read_type(r, entry));
        } else if (1 << field == SHAPE) {
            entry->shape_at = (uint32_t)r->json.at;
            GT_TRY(read_numbers(r, entry, "shape", GT_MAX_DIMS, shape, &n));
            entry->ndim = (uint8_t)n;
        } else {
            GT_TRY(read_numbers(r, entry, "data_offsets", 2, offsets, &n));
            GT_REQUIRE(n == 2, GT_BAD_FILE, "%s: tensor \"%.*s\": data_offsets has %d numbers, not 2", r->path, NAME_MOST, entry->name,
                       (int)n);
        }
    }
    for (int field = 0; field < 3; ++field)
        GT_REQUIRE(found & 1 << field, GT_BAD_FILE, "%s: tensor \"%.*s\" has no %s", r->path, NAME_MOST, entry->name, fields[field]);
    entry->begin = offsets[0];
    entry->end = offsets[1];
    GT_TRY(check_place(r, entry));
    return check_size(r, entry, shape);
}

static gt_status read_entries(reading *r) {
    gt__table *table = r->table;
    bool metadata = false;
    gt__json_reader_init(&r->json, table->header, r->size);
    GT_TRY(next(r));
    GT_REQUIRE(r->token.kind == GT__JSON_OBJECT && r->token.at == 0, GT_BAD_FILE, "%s: the header does not begin with a brace: %s", r->path,
               "is this a safetensors file?");
    for (;;) {
        GT_TRY(next(r));
        if (r->token.kind == GT__JSON_OBJECT_END) return next(r);
        if (gt__json_is(r->json.text, &r->token, "__metadata__")) {
            GT_REQUIRE(!metadata, GT_BAD_FILE, "%s: the header has __metadata__ twice", r->path);
            metadata = true;
            GT_TRY(read_metadata(r));
            continue;
        }
        gt__entry *entry = &table->entries[table->n_entries++];
        size_t length;
        entry->name = table->header + r->token.at;
        GT_TRY(settle(r, r->token.at, "a name", &length));
        GT_TRY(read_entry(r, entry));
    }
}

/* --- checks over all ----------------------------------------------------------------------------------------------------------------------------- */
static gt_status check_names(const reading *r) {
    const gt__table *table = r->table;
    for (uint32_t i = 1; i < table->n_entries; ++i) {
        const char *name = table->entries[table->by_name[i]].name;
        GT_REQUIRE(strcmp(name, table->entries[table->by_name[i - 1]].name) != 0, GT_BAD_FILE, "%s: tensor \"%.*s\" is there twice",
                   r->path, NAME_MOST, name);
    }
    for (uint32_t i = 1; i < table->n_metadata; ++i) {
        const char *key = table->header + table->metadata[i];
        GT_REQUIRE(strcmp(key, table->header + table->metadata[i - 1]) != 0, GT_BAD_FILE, "%s: __metadata__ has \"%.*s\" twice", r->path,
                   NAME_MOST, key);
    }
    return GT_OK;
}

/* `order`: by place. */
static gt_status check_places(const reading *r, const uint32_t *order) {
    uint64_t covered = 0;
    for (uint32_t i = 0; i < r->table->n_entries; ++i) {
        const gt__entry *entry = &r->table->entries[order[i]];
        GT_REQUIRE(entry->begin >= covered, GT_BAD_FILE,
                   "%s: tensor \"%.*s\": data_offsets [%llu,%llu] overlap those of \"%.*s\", [%llu,%llu]", r->path, NAME_MOST, entry->name,
                   (unsigned long long)entry->begin, (unsigned long long)entry->end, NAME_MOST,
                   i > 0 ? r->table->entries[order[i - 1]].name : "",
                   (unsigned long long)(i > 0 ? r->table->entries[order[i - 1]].begin : 0), (unsigned long long)covered);
        GT_REQUIRE(entry->begin == covered, GT_BAD_FILE,
                   "%s: tensor \"%.*s\": data_offsets [%llu,%llu] leave a hole of %llu bytes before them", r->path, NAME_MOST, entry->name,
                   (unsigned long long)entry->begin, (unsigned long long)entry->end, (unsigned long long)(entry->begin - covered));
        covered = entry->end;
    }
    GT_REQUIRE(covered == r->data_size, GT_BAD_FILE, "%s: the tensors end after %llu bytes of data, the file after %llu", r->path,
               (unsigned long long)covered, (unsigned long long)r->data_size);
    return GT_OK;
}

/* Two places share a zero-size tensor only at their border, so that the order by place is also that of the check. */
static gt_status check(reading *r) {
    gt__table *table = r->table;
    for (uint32_t i = 0; i < table->n_entries; ++i) table->by_name[i] = i;
    sort(table, table->by_name, table->n_entries, by_place);
    GT_TRY(check_places(r, table->by_name));
    sort(table, table->by_name, table->n_entries, by_name);
    sort(table, table->metadata, table->n_metadata, by_key);
    return check_names(r);
}

gt_status gt__table_read(const char *path, const void *header, size_t header_size, uint64_t data_size, gt__table *table) {
    *table = (gt__table){0};
    GT_REQUIRE(header_size <= GT__SAFETENSORS_HEADER, GT_BAD_FILE, "%s: a header of %zu bytes; at most %d are read", path, header_size,
               GT__SAFETENSORS_HEADER);
    reading r = {.path = path, .table = table, .size = header_size, .data_size = data_size};
    uint32_t entries = 0, texts = 0;
    gt_status status = GT_OUT_OF_HOST_MEMORY;
    table->header = gt__malloc(header_size + 1);
    if (table->header == NULL) return status;
    memcpy(table->header, header, header_size);
    table->header[header_size] = '\0';
    GT_TRY_GOTO(status, count(&r, &entries, &texts), fail);
    table->entries = gt__calloc(entries, sizeof *table->entries);
    table->by_name = gt__calloc(entries, sizeof *table->by_name);
    table->metadata = gt__calloc(texts, sizeof *table->metadata);
    status = GT_OUT_OF_HOST_MEMORY;
    if (table->entries == NULL || table->by_name == NULL || table->metadata == NULL) goto fail;
    GT_TRY_GOTO(status, read_entries(&r), fail);
    GT_TRY_GOTO(status, check(&r), fail);
    return GT_OK;
fail:
    gt__table_free(table);
    return status;
}

void gt__table_free(gt__table *table) {
    gt__free(table->header);
    gt__free(table->entries);
    gt__free(table->by_name);
    gt__free(table->metadata);
    *table = (gt__table){0};
}

void gt__table_shape(const gt__table *table, const gt__entry *entry, int64_t *shape) {
    const char *s = table->header + entry->shape_at;
    for (int32_t i = 0; i < entry->ndim; ++i) {
        while (*s < '0' || *s > '9') ++s;
        for (shape[i] = 0; *s >= '0' && *s <= '9'; ++s) shape[i] = shape[i] * 10 + (*s - '0');
    }
}

int64_t gt__table_find(const gt__table *table, const char *name) {
    uint32_t begin = 0, end = table->n_entries;
    while (begin < end) {
        uint32_t middle = begin + (end - begin) / 2;
        int order = strcmp(name, table->entries[table->by_name[middle]].name);
        if (order == 0) return table->by_name[middle];
        if (order < 0)
            end = middle;
        else
            begin = middle + 1;
    }
    return -1;
}

int64_t gt__table_find_text(const gt__table *table, const char *key) {
    uint32_t begin = 0, end = table->n_metadata;
    while (begin < end) {
        uint32_t middle = begin + (end - begin) / 2;
        int order = strcmp(key, table->header + table->metadata[middle]);
        if (order == 0) return middle;
        if (order < 0)
            end = middle;
        else
            begin = middle + 1;
    }
    return -1;
}
