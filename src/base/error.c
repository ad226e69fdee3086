#include "base/error.h"
#include "base/host.h"

#include <stdio.h>

typedef struct error_record {
    gt_error view;
    char message[1024];
    char hint[512];
} error_record;

static _Thread_local error_record record;

static const char *or_empty(const char *text) { return text ? text : ""; }

/* Used by the CUDA module through the host table, and by gt__error_raise below. */
gt_status gt__error_raisev(gt_status status, const char *file, int line, int64_t native_code, const char *native_name, const char *hint,
                           const char *format, va_list arguments) {
    /* The message may quote the record's own text: format before writing. */
    char message[sizeof record.message];
    (void)vsnprintf(message, sizeof message, format, arguments);
    memcpy(record.message, message, sizeof message);
    (void)snprintf(record.hint, sizeof record.hint, "%s", or_empty(hint));
    const char *short_file = strstr(file, "src/");
    record.view.status = status;
    record.view.line = line;
    record.view.native_code = native_code;
    record.view.native_name = or_empty(native_name);
    record.view.file = short_file ? short_file : file;
    record.view.message = record.message;
    record.view.hint = record.hint;
    return status;
}

gt_status gt__error_raise(gt_status status, const char *file, int line, int64_t native_code, const char *native_name, const char *hint,
                          const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    gt__error_raisev(status, file, line, native_code, native_name, hint, format, arguments);
    va_end(arguments);
    return status;
}

gt_status gt__error_null(const char *function, const char *what, const char *file, int line) {
    if (record.view.status != GT_OK) return record.view.status;
    return gt__error_raise(GT_BAD_ARGUMENT, file, line, 0, NULL, NULL, "%s: %s is NULL", function, what);
}

const gt_error *gt_last_error(void) {
    if (record.view.message == NULL) gt_clear_error();
    return &record.view;
}

void gt_clear_error(void) {
    record.message[0] = '\0';
    record.hint[0] = '\0';
    record.view = (gt_error){.status = GT_OK, .file = "", .native_name = "", .message = record.message, .hint = record.hint};
}

typedef struct status_entry {
    const char *name;
    const char *text;
} status_entry;

static const status_entry statuses[] = {
#define STATUS_ENTRY(name, value, text) [value] = {"GT_" #name, text},
    GT_STATUS_LIST(STATUS_ENTRY)
#undef STATUS_ENTRY
};

static const status_entry *status_find(gt_status status) {
    if (status < 0 || (size_t)status >= GT__COUNT(statuses)) return NULL;
    return &statuses[status];
}

const char *gt_status_name(gt_status status) {
    const status_entry *entry = status_find(status);
    return entry ? entry->name : "GT_UNKNOWN";
}

const char *gt_status_text(gt_status status) {
    const status_entry *entry = status_find(status);
    return entry ? entry->text : "not a status of this version of gtrain";
}

int32_t gt_version_number(void) { return GT_VERSION_NUMBER; }

#define TEXT_OF(x)            #x
#define VERSION_TEXT(a, b, c) TEXT_OF(a) "." TEXT_OF(b) "." TEXT_OF(c)
const char *gt_version_string(void) { return VERSION_TEXT(GT_VERSION_MAJOR, GT_VERSION_MINOR, GT_VERSION_PATCH); }
