// Threefry-2x32-20 (Salmon et al., SC 2011), as grace/random.py specifies it: counter g gives the four 16-bit lanes of
// numbers 4g to 4g + 3.
#pragma once

#include "simd.h"

namespace grace {
namespace GRACE_TARGET {

struct Key {
    uint32_t k0, k1, step;
};

template <int chains, int r>
GRACE_INLINE void round(vu* x0, vu* x1) {
    for (int c = 0; c < chains; c++) x0[c] += x1[c];
    for (int c = 0; c < chains; c++) x1[c] = rotate<r>(x1[c]) ^ x0[c];
}
template <int chains, int r0, int r1, int r2, int r3>
GRACE_INLINE void four_rounds(vu* x0, vu* x1, uint32_t a, uint32_t b) {
    round<chains, r0>(x0, x1), round<chains, r1>(x0, x1), round<chains, r2>(x0, x1), round<chains, r3>(x0, x1);
    for (int c = 0; c < chains; c++) x0[c] += a, x1[c] += b;
}

// Counters counter + c L for each chain c.
template <int chains>
GRACE_INLINE void threefry(const Key& key, vu counter, vu* x0, vu* x1) {
    const uint32_t k0 = key.k0, k1 = key.k1, k2 = k0 ^ k1 ^ 0x1BD11BDAu;
    for (int c = 0; c < chains; c++) x0[c] = counter + (k0 + (uint32_t)(c * L)), x1[c] = splat(key.step + k1);
    four_rounds<chains, 13, 15, 26, 6>(x0, x1, k1, k2 + 1);
    four_rounds<chains, 17, 29, 16, 24>(x0, x1, k2, k0 + 2);
    four_rounds<chains, 13, 15, 26, 6>(x0, x1, k0, k1 + 3);
    four_rounds<chains, 17, 29, 16, 24>(x0, x1, k1, k2 + 4);
    four_rounds<chains, 13, 15, 26, 6>(x0, x1, k2, k0 + 5);
}

// Words [groups, 2], from counter `first` on; room for a multiple of CHAINS L groups. That many at a time, since one alone
// would wait for itself.
template <int CHAINS = 4>
GRACE_INLINE void words(const Key& key, uint64_t first, int64_t groups, uint32_t* out) {
    const vu lanes = (vu)iota();
    for (int64_t g = 0; g < groups; g += CHAINS * L) {
        vu x0[CHAINS], x1[CHAINS];
        threefry<CHAINS>(key, lanes + (uint32_t)(first + (uint64_t)g), x0, x1);
        for (int c = 0; c < CHAINS; c++) store_pairs(out + 2 * (g + c * L), x0[c], x1[c]);
    }
}

// The stream's numbers, a window at a time: small blocks share the work of one.
class Lanes {
   public:
    static constexpr int64_t MOST = 4096;  // numbers that may be asked for at a time
    explicit Lanes(const Key& k) : key(k) {}

    // The 16-bit lanes of numbers [first, first + count), and L more that mean nothing.
    const uint16_t* at(uint64_t first, int64_t count) {
        if (first < low || first + (uint64_t)count > high) {
            const uint64_t group = first / 4;
            int64_t groups = (int64_t)(first % 4 + (uint64_t)count + 3) / 4;
            if (groups < ENOUGH) groups = ENOUGH;
            words<CHAINS>(key, group, groups, buffer);
            low = 4 * group, high = low + 4 * (uint64_t)groups;
        }
        return (const uint16_t*)buffer + (first - low);
    }

   private:
    static constexpr int CHAINS = L == 16 ? 8 : 4;  // as many as there are registers for
    static constexpr int64_t ENOUGH = 128;          // groups
    Key key;
    uint64_t low = 0, high = 0;
    alignas(64) uint32_t buffer[2 * (MOST / 4 + 1 + CHAINS * L)];
};

// floor(z), or one more where (lane + 1/2) / 2**16 is below z - floor(z), for z >= 0; a z within 1e-6 max(1, z) of an integer
// never moves.
GRACE_INLINE vi stochastic_round(vf z, vi lane) {
    const vf u = (to_float(lane) + splat(0.5f)) * splat(0x1p-16f), one = splat(1.0f);
    const vi low = truncate(z), near = nearest_int(z);
    const vf slack = splat(1e-6f) * select(z > one, z, one);
    return select(absolute(z - to_float(near)) <= slack, near, low - (u < z - to_float(low)));
}

}  // namespace GRACE_TARGET
}  // namespace grace
