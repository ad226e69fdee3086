/* gtrain/api.h: export and calling conventions shared by every public header. */
#ifndef GTRAIN_API_H
#define GTRAIN_API_H

#include <stddef.h>
#include <stdint.h>

/* The version of these headers; gt_version_number is that of the library that was loaded. */
#define GT_VERSION_MAJOR  0
#define GT_VERSION_MINOR  1                                                                      /* see GT_VERSION_MAJOR */
#define GT_VERSION_PATCH  0                                                                      /* see GT_VERSION_MAJOR */
#define GT_VERSION_NUMBER (GT_VERSION_MAJOR * 10000 + GT_VERSION_MINOR * 100 + GT_VERSION_PATCH) /* 100 for 0.1.0 */

#if defined(__GNUC__) || defined(__clang__)
/* Before each function: the library exports it. */
#define GT_API __attribute__((visibility("default")))
#else
#define GT_API
#endif

#ifdef __cplusplus
/* Around the declarations of a header, which are C in a C++ program too. */
#define GT_EXTERN_C_BEGIN extern "C" {
#define GT_EXTERN_C_END   } /* see GT_EXTERN_C_BEGIN */
#else
#define GT_EXTERN_C_BEGIN
#define GT_EXTERN_C_END
#endif

/* Highest number of dimensions of a tensor. */
#define GT_MAX_DIMS 8

GT_EXTERN_C_BEGIN

typedef struct gt_context gt_context;     /* a device with its streams, memory and random state */
typedef struct gt_tensor gt_tensor;       /* a reference-counted handle of an n-dimensional array */
typedef struct gt_module gt_module;       /* a layer or a tree of layers, with parameters and buffers */
typedef struct gt_optimizer gt_optimizer; /* an update rule over a list of parameters */
typedef struct gt_loader gt_loader;       /* worker threads that turn a data set into batches */
typedef struct gt_dataset gt_dataset;     /* samples that can be fetched by number */
typedef struct gt_trainer gt_trainer;     /* fits a module from loaders */
typedef struct gt_scaler gt_scaler;       /* the state of loss scaling */
typedef struct gt_window gt_window;       /* micro-batches that make one update */

/* The version of the library that is loaded, as GT_VERSION_NUMBER. Never fails. @since 0.1 */
GT_API int32_t gt_version_number(void);
/* "0.1.0"; static. @since 0.1 */
GT_API const char *gt_version_string(void);

GT_EXTERN_C_END
#endif
