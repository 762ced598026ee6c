// What this library is, and what this processor can run.
#include <stdint.h>

#define GRACE_PUBLIC extern "C" __attribute__((visibility("default")))

// The C interface, one line a function: the Python side refuses a function whose line is not what it would call.
GRACE_PUBLIC const char* grace_signatures() {
#define GRACE_KERNEL(name, ...) #name "(" #__VA_ARGS__ ")\n"
    return
#include "signatures.h"
        ;
#undef GRACE_KERNEL
}

// A digest of the sources that this library was built from (CMakeLists.txt).
GRACE_PUBLIC const char* grace_sources() { return GRACE_SOURCES; }

// The best instruction set that this processor has: 0 base, 1 AVX2, 2 AVX-512.
GRACE_PUBLIC int64_t grace_best() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) return 1;
#endif
    return 0;
}
