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
