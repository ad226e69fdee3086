/* Loops compiled for several generations of processors; the best is chosen when the library is loaded. Not under sanitizers: their
 * runtime is not yet there when that choice is made. No contraction into fused multiply-add, so results are the same everywhere. */
#ifndef GT_CPU_TARGET_H
#define GT_CPU_TARGET_H

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer) ||                              \
    __has_feature(undefined_behavior_sanitizer)
#define GT__CPU_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define GT__CPU_SANITIZED 1
#endif

#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && defined(__OPTIMIZE__) && !defined(GT__CPU_SANITIZED) &&             \
    (!defined(__clang__) || __clang_major__ >= 14)
#define GT__CPU_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define GT__CPU_CLONES
#endif

#endif
