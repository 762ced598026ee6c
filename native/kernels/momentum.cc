// Momentum correction (Deep Gradient Compression): velocities and what was not sent, and which velocities are forgotten.
#include "../blocks.h"

namespace grace {
namespace GRACE_TARGET {
namespace {

template <bool nesterov, class V>
GRACE_INLINE void velocity(V x, V m, V& u, V& v) {
    u = nesterov ? (u + x) * m : u * m + x;
    v = nesterov ? (v + u) + x : v + u;
}

template <bool nesterov, bool past>
void some_velocities(const float* x, const float* u, const float* v, float m, float* next_u, float* next_v, int64_t len) {
    int64_t i = 0;
    for (; i + L <= len; i += L) {
        vf a = loadf(u + i), b = loadf(v + i);
        velocity<nesterov>(loadf(x + i), splat(m), a, b);
        if (past) stream(next_u + i, a), stream(next_v + i, b); else store(next_u + i, a), store(next_v + i, b);
    }
    for (; i < len; i++) {
        float a = u[i], b = v[i];
        velocity<nesterov>(x[i], m, a, b);
        next_u[i] = a, next_v[i] = b;
    }
    if (past) fence();
}

}  // namespace
}  // namespace GRACE_TARGET
}  // namespace grace

// next_u = m u + x, next_v = v + next_u; nesterov: next_u = m (u + x), next_v = v + next_u + x.
GRACE_EXPORT(accelerate)(const float* x, const float* u, const float* v, float m, int nesterov, float* next_u, float* next_v,
                         int64_t n, int threads) {
    using namespace grace::GRACE_TARGET;
    const bool past = n >= 4 * ALONE && ((uintptr_t)next_u | (uintptr_t)next_v) % sizeof(vf) == 0;
    const auto some = nesterov ? past ? some_velocities<true, true> : some_velocities<true, false>
                               : past ? some_velocities<false, true> : some_velocities<false, false>;
    auto work = [&](int64_t task) {
        const int64_t at = task * TASK;
        some(x + at, u + at, v + at, m, next_u + at, next_v + at, least(TASK, n - at));
    };
    parallel(ceil_div(n, TASK), enough_threads(n, threads), work);
    return 0;
}

// u = 0 where rest is not v + u; nesterov: v + u + x. Otherwise x is null.
GRACE_EXPORT(forget_sent)(float* u, const float* v, const float* x, const float* rest, int64_t n, int threads) {
    using namespace grace::GRACE_TARGET;
    auto work = [&](int64_t task) {
        const int64_t stop = least(n, (task + 1) * TASK);
        int64_t i = task * TASK;
        for (; i + L <= stop; i += L) {
            const vf velocity = loadf(u + i);
            vf all = loadf(v + i) + velocity;
            if (x) all += loadf(x + i);
            store(u + i, as_float(as_int(velocity) & (vi)(all == loadf(rest + i))));
        }
        for (; i < stop; i++) {
            float all = v[i] + u[i];
            if (x) all += x[i];
            if (all != rest[i]) u[i] = 0;
        }
    };
    parallel(ceil_div(n, TASK), enough_threads(n, threads), work);
    return 0;
}
