/* The thread's error record, and the macros that write it. The record is written where an error is raised and nowhere else. */
#ifndef GT_BASE_ERROR_H
#define GT_BASE_ERROR_H

#include <gtrain/status.h>

#if defined(__GNUC__) || defined(__clang__)
#define GT__PRINTF(f, a) __attribute__((format(printf, f, a)))
#define GT__LIKELY(x)    __builtin_expect(!!(x), 1)
#define GT__UNLIKELY(x)  __builtin_expect(!!(x), 0)
#else
#define GT__PRINTF(f, a)
#define GT__LIKELY(x)   (x)
#define GT__UNLIKELY(x) (x)
#endif

GT_EXTERN_C_BEGIN

/* Writes the record and returns `status`. `hint` may be NULL; `native_name` too. */
gt_status gt__error_raise(gt_status status, const char *file, int line, int64_t native_code, const char *native_name, const char *hint,
                          const char *format, ...) GT__PRINTF(7, 8);

/* The status of the record, or GT_BAD_ARGUMENT with a message about `what` being NULL if there is none. For functions that were given
 * NULL instead of a tensor. */
gt_status gt__error_null(const char *function, const char *what, const char *file, int line);

GT_EXTERN_C_END

/* Their value is `code` itself, so that the compiler sees that it is not GT_OK. */
#define GT_RAISE(code, ...)            ((void)gt__error_raise((code), __FILE__, __LINE__, 0, NULL, NULL, __VA_ARGS__), (gt_status)(code))
#define GT_RAISE_HINT(code, hint, ...) ((void)gt__error_raise((code), __FILE__, __LINE__, 0, NULL, (hint), __VA_ARGS__), (gt_status)(code))
#define GT_FAIL(code, ...)             return GT_RAISE(code, __VA_ARGS__)
#define GT_FAIL_HINT(code, hint, ...)  return GT_RAISE_HINT(code, hint, __VA_ARGS__)
#define GT_REQUIRE(cond, code, ...)                                                                                                        \
    do {                                                                                                                                   \
        if (GT__UNLIKELY(!(cond))) GT_FAIL(code, __VA_ARGS__);                                                                             \
    } while (0)
#define GT_REQUIRE_NULL(cond, code, ...)                                                                                                   \
    do {                                                                                                                                   \
        if (GT__UNLIKELY(!(cond))) {                                                                                                       \
            (void)GT_RAISE(code, __VA_ARGS__);                                                                                             \
            return NULL;                                                                                                                   \
        }                                                                                                                                  \
    } while (0)
#define GT_TRY(expr)                                                                                                                       \
    do {                                                                                                                                   \
        gt_status gt__st = (expr);                                                                                                         \
        if (GT__UNLIKELY(gt__st != GT_OK)) return gt__st;                                                                                  \
    } while (0)
#define GT_TRY_NULL(expr)                                                                                                                  \
    do {                                                                                                                                   \
        if (GT__UNLIKELY((expr) != GT_OK)) return NULL;                                                                                    \
    } while (0)
#define GT_TRY_GOTO(st, expr, label)                                                                                                       \
    do {                                                                                                                                   \
        (st) = (expr);                                                                                                                     \
        if (GT__UNLIKELY((st) != GT_OK)) goto label;                                                                                       \
    } while (0)
/* For gt_status functions that need a handle. */
#define GT_REQUIRE_HANDLE(handle)                                                                                                          \
    do {                                                                                                                                   \
        if (GT__UNLIKELY((handle) == NULL)) return gt__error_null(__func__, #handle, __FILE__, __LINE__);                                  \
    } while (0)

#endif
