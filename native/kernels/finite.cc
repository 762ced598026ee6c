// Whether there is no inf or NaN.
#include "../blocks.h"

GRACE_EXPORT(finite)(const float* x, int64_t n, int threads) {
    using namespace grace::GRACE_TARGET;
    int32_t bad = 0;
    auto work = [&](int64_t task) {
        const int64_t stop = least(n, (task + 1) * TASK);
        vi a = {}, b = {};
        int64_t i = task * TASK;
        for (; i + 2 * L <= stop; i += 2 * L) {
            a = max(a, magnitude(load<vi>(x + i)));
            b = max(b, magnitude(load<vi>(x + i + L)));
        }
        int32_t most = largest(max(a, b));
        for (; i < stop; i++) {
            int32_t bits;
            memcpy(&bits, x + i, 4);
            bits &= 0x7FFFFFFF;
            most = bits > most ? bits : most;
        }
        if (most >= 0x7F800000) __atomic_store_n(&bad, 1, __ATOMIC_RELAXED);
    };
    parallel(ceil_div(n, TASK), enough_threads(n, threads), work);
    return !bad;
}

namespace grace {
namespace GRACE_TARGET {
namespace {

GRACE_INLINE int32_t sum_one(const float* x, const float* memory, float* out) {
    const float v = memory ? *x + *memory : *x;
    int32_t bits;
    memcpy(&bits, &v, 4);
    *out = v;
    return bits & 0x7FFFFFFF;
}

// Returns the largest magnitude, as bits.
template <bool has_memory, bool past>
int32_t sum_some(const float* x, const float* memory, float* out, int64_t len) {
    vi most = {};
    int32_t rest = 0;
    int64_t i = 0;
    auto one = [&] {
        const int32_t here = sum_one(x + i, has_memory ? memory + i : nullptr, out + i);
        rest = here > rest ? here : rest;
        i++;
    };
    while (i < len && (uintptr_t)(out + i) % sizeof(vf)) one();
    for (; i + L <= len; i += L) {
        const vf v = has_memory ? loadf(x + i) + loadf(memory + i) : loadf(x + i);
        if (past) stream(out + i, v); else store(out + i, v);
        most = max(most, magnitude(as_int(v)));
    }
    while (i < len) one();
    if (past) fence();
    return largest(most) > rest ? largest(most) : rest;
}

}  // namespace
}  // namespace GRACE_TARGET
}  // namespace grace

// out = x + memory (or x, where there is none); whether all of it is finite. out may be x or memory, but nothing in between.
GRACE_EXPORT(sum_finite)(const float* x, const float* memory, float* out, int64_t n, int threads) {
    using namespace grace::GRACE_TARGET;
    const bool past = n >= 4 * ALONE && out != x && out != memory;  // it would not stay in the caches anyway
    const auto some = memory ? past ? sum_some<true, true> : sum_some<true, false>
                             : past ? sum_some<false, true> : sum_some<false, false>;
    int32_t bad = 0;
    auto work = [&](int64_t task) {
        const int64_t at = task * TASK, len = least(TASK, n - at);
        if (some(x + at, memory ? memory + at : nullptr, out + at, len) >= 0x7F800000)
            __atomic_store_n(&bad, 1, __ATOMIC_RELAXED);
    };
    parallel(ceil_div(n, TASK), enough_threads(n, threads), work);
    return !bad;
}
