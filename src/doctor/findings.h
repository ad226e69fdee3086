/* What the doctor has found, before it is judged. Each file of this folder fills or reads its part:
 *
 *     machine.c    /dev, /proc, /sys, the container, the CPU, settings
 *     module.c     libgtrain_cuda.so and what it was built for, read from the file
 *     libraries.c  the CUDA libraries: found where, of which version
 *     driver.c     what libcuda tells, and the GPUs in its order
 *     nvml.c       what NVML tells of each GPU
 *     faults*.c    the rules: faults and verdict
 *     text.c, json.c
 *
 * Nothing here includes a CUDA header: what is asked is declared where it is asked. */
#ifndef GT_DOCTOR_FINDINGS_H
#define GT_DOCTOR_FINDINGS_H

#include "base/host.h"
#include <gtrain/doctor.h>

enum { GT__DOCTOR_PATH = 1024, GT__DOCTOR_GPUS = 64, GT__DOCTOR_USERS = 8, GT__DOCTOR_FAULTS = 48, GT__DOCTOR_NODES = 2 + GT__DOCTOR_GPUS };

/* A version as three numbers, so that CUDA's, cuDNN's and cuBLAS's ways to pack one do not matter. major 0: unknown; a negative
 * minor or patch: that part is. */
typedef struct gt__version {
    int32_t major, minor, patch;
} gt__version;
int gt__version_compare(gt__version a, gt__version b);
/* "9.14.0", "13.0", "9", or "" for an unknown one; returns `buffer`. */
const char *gt__version_text(gt__version version, char *buffer, size_t size);

typedef enum gt__library_id {
    GT__LIBRARY_DRIVER,
    GT__LIBRARY_RUNTIME,
    GT__LIBRARY_CUBLASLT, /* before cuBLAS, which needs it */
    GT__LIBRARY_CUBLAS,
    GT__LIBRARY_CUDNN,
    GT__LIBRARY_NCCL,
    GT__LIBRARY_NVML,
    GT__LIBRARY_ONEDNN,
    GT__LIBRARY_COUNT
} gt__library_id;

typedef enum gt__library_state {
    GT__LIBRARY_MISSING,
    GT__LIBRARY_ELSEWHERE, /* `path` is where it lies, but the dynamic loader does not look there */
    GT__LIBRARY_BROKEN,    /* found, but it does not load: `why` */
    GT__LIBRARY_FOUND
} gt__library_state;

typedef struct gt__library {
    const char *name; /* "cuDNN" */
    const char *key;  /* "cudnn", in JSON */
    char soname[64];
    void *handle; /* while the doctor works */
    void *part;   /* of the part of it that was asked: cuDNN's */
    gt__library_state state;
    bool needed; /* by the CUDA module */
    bool loaded; /* was in the process before the doctor came */
    gt__version found, built;
    gt__version least; /* the oldest that will do */
    char path[GT__DOCTOR_PATH];
    char why[512];
} gt__library;

typedef enum gt__node_state { GT__NODE_MISSING, GT__NODE_FORBIDDEN, GT__NODE_OPEN, GT__NODE_FAILED } gt__node_state;
typedef struct gt__node {
    char path[64]; /* "/dev/nvidia0" */
    gt__node_state state;
    int error; /* errno of the attempt to open it */
    uint32_t mode, group, owner;
} gt__node;

typedef struct gt__gpu_user {
    int64_t process;
    uint64_t bytes; /* 0: unknown */
    char name[64];  /* "" where it cannot be seen: another container's */
} gt__gpu_user;

typedef struct gt__gpu {
    int32_t index;      /* as nvidia-smi counts; -1: NVML is not there */
    int32_t cuda_index; /* as CUDA counts; -1: hidden, or unknown */
    bool hidden;        /* by CUDA_VISIBLE_DEVICES */
    bool lost;
    bool usable; /* set by the rules */
    char name[96];
    char uuid[96];
    char pci[32];
    int32_t capability; /* 90; 0: unknown */
    bool has_memory;
    uint64_t memory_total, memory_free;
    gt__gpu_user users[GT__DOCTOR_USERS]; /* those that hold most, first */
    int32_t user_count;                   /* may be more than the list holds */
    int32_t compute_mode;                 /* nvmlComputeMode_t; -1: unknown */
    int32_t mig;                          /* 1: cut into instances */
    int32_t ecc;                          /* 1: on, 0: off, -1: not supported or unknown */
    uint64_t ecc_uncorrected;             /* since the driver was loaded */
    bool remap_pending, remap_failed;     /* rows of memory that wait to be replaced, or could not be */
    uint64_t throttle;                    /* nvmlClocksEventReasons */
    int32_t temperature;                  /* Celsius; -1: unknown */
} gt__gpu;

typedef struct gt__found_module {
    char path[GT__DOCTOR_PATH]; /* "" where there is none */
    bool chosen;                /* by the options or GTRAIN_CUDA_MODULE */
    bool is_file;
    bool linked_in; /* part of the program or of libgtrain itself */
    bool note;      /* it says what it was built for: */
    int32_t abi;
    gt__version cuda, cublas, cudnn, cudnn_least;
    char architectures[256];
    char runpath[GT__DOCTOR_PATH];
    char why[256]; /* that it is none */
} gt__found_module;

typedef struct gt__found_driver {
    bool asked;
    gt__version cuda;        /* the newest CUDA that it supports */
    char version[64];        /* "580.65.06", from NVML or the kernel module */
    char kernel_version[64]; /* of the kernel module; "" where it is not loaded */
    bool started;            /* by us or by somebody before */
    int32_t start_code;      /* of cuInit, or of cuDeviceGetCount where it was started already; 0: fine */
    int32_t count;           /* GPUs that CUDA sees; -1: not asked */
    bool nvml_asked;
    int32_t nvml_code;
} gt__found_driver;

typedef struct gt__found_machine {
    bool wsl;              /* /dev/dxg in place of the usual nodes */
    bool pci_known;        /* /sys/bus/pci can be read */
    int32_t pci_gpus;      /* NVIDIA display controllers on the bus */
    bool nouveau;          /* the free driver is loaded, which keeps NVIDIA's out */
    bool driver_files;     /* /proc/driver/nvidia is there */
    char container[32];    /* "docker", "podman", "kubernetes", "container" or "" */
    char distribution[32]; /* ID of /etc/os-release */
    gt__node nodes[GT__DOCTOR_NODES];
    int32_t node_count;
    int32_t gpu_nodes; /* of them /dev/nvidia0 and so on */
    char cpu_name[96];
    char cpu_features[256];   /* those that matter: "avx2 fma f16c avx512f" */
    bool cpu_known, cpu_slow; /* no AVX2 and FMA */
    int32_t cores, cores_allowed;
    double quota; /* cores' worth of time that the control group grants; 0: no limit */
    bool openmp;  /* the CPU backend runs on OpenMP's threads */
} gt__found_machine;

struct gt_doctor_report {
    gt_doctor_options options; /* its texts are the caller's: used during the examination alone */
    gt__found_machine machine;
    gt__found_module module;
    gt__library libraries[GT__LIBRARY_COUNT];
    gt__found_driver driver;
    gt__gpu gpus[GT__DOCTOR_GPUS];
    int32_t gpu_count;
    gt_doctor_verdict verdict;
    char summary[512];
    gt_doctor_fault faults[GT__DOCTOR_FAULTS];
    int32_t fault_count;
    gt_status status; /* the first failure, of an allocation */
    gt__text text;
    char *json;
};

/* --- lookup.c --------------------------------------------------------------------------------------------------------------- */
/* `path`, which begins with "/", below the root that was asked for. */
const char *gt__doctor_path(const gt_doctor_report *report, const char *path, char *buffer, size_t size);
/* The first line of a small file, without its end; false and "" if it cannot be read. */
bool gt__doctor_line(const gt_doctor_report *report, const char *path, char *line, size_t size);
/* The value of an environment variable, NULL if it is not set. */
const char *gt__doctor_setting(const char *name);
/* Where the code of libgtrain lies; "" if nobody knows. */
const char *gt__doctor_own_path(char *buffer, size_t size);

void gt__doctor_machine(gt_doctor_report *report);
void gt__doctor_module(gt_doctor_report *report);
void gt__doctor_libraries(gt_doctor_report *report);
void gt__doctor_libraries_close(gt_doctor_report *report);
void gt__doctor_driver(gt_doctor_report *report);
void gt__doctor_nvml(gt_doctor_report *report);
/* The rules: faults*.c. Failures of memory are in report->status. */
void gt__doctor_faults(gt_doctor_report *report);
gt_status gt__doctor_write_text(gt_doctor_report *report);
gt_status gt__doctor_write_json(gt_doctor_report *report);

/* The function `name` of a library, or NULL. The type is the caller's: GT__DOCTOR_FIND(library, "cuInit", init_fn). */
void *gt__doctor_symbol(const gt__library *library, const char *name);
#define GT__DOCTOR_FIND(library, name, type) ((type)(uintptr_t)gt__doctor_symbol(library, name))

#endif
