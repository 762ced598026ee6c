// Threefry-2x32-20 (Salmon et al., SC 2011), as grace/random.py specifies it: counter g gives the four 16-bit lanes of
// numbers 4g to 4g + 3.
#pragma once

#include "simd.h"

namespace grace {
namespace GRACE_TARGET {

struct Key {
    uint32_t k0, k1, step;
};

template <int a, int b, int c, int d>
GRACE_INLINE void four_rounds(vu& x0, vu& x1) {
    x0 += x1, x1 = rotate<a>(x1) ^ x0;
    x0 += x1, x1 = rotate<b>(x1) ^ x0;
    x0 += x1, x1 = rotate<c>(x1) ^ x0;
    x0 += x1, x1 = rotate<d>(x1) ^ x0;
}

GRACE_INLINE void threefry(const Key& key, vu counter, vu& x0, vu& x1) {
    const uint32_t k0 = key.k0, k1 = key.k1, k2 = k0 ^ k1 ^ 0x1BD11BDAu;
    x0 = counter + k0, x1 = splat(key.step + k1);
    four_rounds<13, 15, 26, 6>(x0, x1), x0 += k1, x1 += k2 + 1;
    four_rounds<17, 29, 16, 24>(x0, x1), x0 += k2, x1 += k0 + 2;
    four_rounds<13, 15, 26, 6>(x0, x1), x0 += k0, x1 += k1 + 3;
    four_rounds<17, 29, 16, 24>(x0, x1), x0 += k1, x1 += k2 + 4;
    four_rounds<13, 15, 26, 6>(x0, x1), x0 += k2, x1 += k0 + 5;
}

// Words [groups, 2], from counter `first` on; room for a multiple of L groups.
GRACE_INLINE void words(const Key& key, uint64_t first, int64_t groups, uint32_t* out) {
    const vu lanes = (vu)iota();
    int64_t g = 0;
    for (; g + 2 * L <= groups; g += 2 * L) {  // two at a time: each chain alone waits for itself
        vu a0, a1, b0, b1;
        threefry(key, lanes + (uint32_t)(first + (uint64_t)g), a0, a1);
        threefry(key, lanes + (uint32_t)(first + (uint64_t)(g + L)), b0, b1);
        store_pairs(out + 2 * g, a0, a1);
        store_pairs(out + 2 * (g + L), b0, b1);
    }
    for (; g < groups; g += L) {
        vu x0, x1;
        threefry(key, lanes + (uint32_t)(first + (uint64_t)g), x0, x1);
        store_pairs(out + 2 * g, x0, x1);
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
            words(key, group, groups, buffer);
            low = 4 * group, high = low + 4 * (uint64_t)groups;
        }
        return (const uint16_t*)buffer + (first - low);
    }

   private:
    static constexpr int64_t ENOUGH = 256;  // groups
    Key key;
    uint64_t low = 0, high = 0;
    alignas(64) uint32_t buffer[2 * (MOST / 4 + 1 + 2 * L)];
};

// (lane + 1/2) / 2**16
GRACE_INLINE vf uniform(const uint16_t* lanes) { return (to_float(load_u16(lanes)) + 0.5f) * 0x1p-16f; }

}  // namespace GRACE_TARGET
}  // namespace grace
