// Random subsets, as grace/random specifies them to the bit: which positions they have, a few at a time.
#pragma once

#include "blocks.h"

namespace grace {
namespace GRACE_TARGET {

constexpr int64_t SORTED = 4096;    // up to here a subset is drawn by sorting keys, beyond by a Feistel permutation
constexpr int64_t WALKED = 1024;     // positions that are walked together
constexpr int64_t SHARE = 4096;     // positions of a task
constexpr int64_t MANY = 32 << 10;  // positions that keep several threads busy
constexpr int ROUNDS = 6, TOGETHER = 4;

// The lanes of v whose bit is set, side by side; room for L. Returns how many.
GRACE_INLINE int64_t compress(uint32_t* out, vu v, uint32_t bits) {
#if defined(__x86_64__) && GRACE_LANES == 16
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi32((__mmask16)bits, (__m512i)v));
    return __builtin_popcount(bits);
#else
    int64_t count = 0;
    for (int i = 0; i < L; i++) {
        out[count] = v[i];
        count += bits >> i & 1;
    }
    return count;
#endif
}

// "lowbias32"
GRACE_INLINE vu hash(vu x) {
    x = (x ^ x >> 16) * 0x7FEB352Du;
    x = (x ^ x >> 15) * 0x846CA68Bu;
    return x ^ x >> 16;
}

// k distinct positions out of n < 2**32: all of them, the first k by random keys, or images under a permutation.
class Subset {
   public:
    Subset(const Key& key, int64_t n_, int64_t k) : n((uint32_t)n_) {
        if (k == n_) {
            kind = ALL;
        } else if (n_ <= SORTED) {
            kind = BY_KEYS;
            sort_keys(key, k);
        } else {
            kind = PERMUTED;
            while (2 * half < 32 && (int64_t)1 << 2 * half < n_) half++;
            mask = (1u << half) - 1;
            uint32_t drawn[2 * (ROUNDS + 4 * L)];
            words(key, 0, ROUNDS, drawn);
            for (int r = 0; r < ROUNDS; r++) keys[r] = drawn[2 * r];
        }
    }

    // The positions number [first, first + count), count <= WALKED, into `image`, which has room for L more. `meanwhile` is
    // called now and then.
    template <class F>
    void positions(int64_t first, int64_t count, uint32_t* image, F meanwhile) const {
        if (kind == PERMUTED) {
            walk((uint32_t)first, count, image, meanwhile);
        } else if (kind == ALL) {
            for (int64_t i = 0; i < count; i++) image[i] = (uint32_t)(first + i);
        } else {
            for (int64_t i = 0; i < count; i++) image[i] = order[first + i];
        }
    }

   private:
    // One pass of the network for several vectors at a time: each alone waits for its own multiplications.
    GRACE_INLINE void permute(const Subset& s, vu* x) {
        vu right[TOGETHER];
        for (int j = 0; j < TOGETHER; j++) right[j] = x[j] & s.mask, x[j] >>= s.half;
        for (int r = 0; r < ROUNDS; r++) {
            for (int j = 0; j < TOGETHER; j++) {
                const vu next = x[j] ^ (hash(right[j] ^ s.keys[r]) & s.mask);
                x[j] = right[j], right[j] = next;
            }
        }
        for (int j = 0; j < TOGETHER; j++) x[j] = x[j] << s.half | right[j];
    }
    GRACE_INLINE uint32_t outside(vu x, uint32_t n) { return mask_bits((vi)(x >= n)); }

    template <class F>
    void walk(uint32_t first, int64_t count, uint32_t* image, F meanwhile) const {
        alignas(64) uint32_t todo[WALKED + TOGETHER * L], at[WALKED + TOGETHER * L];
        int64_t left = 0;
        vu x[TOGETHER];
        for (int64_t i = 0; i < count; i += TOGETHER * L) {
            const vu place = (vu)iota() + (uint32_t)i;
            for (int j = 0; j < TOGETHER; j++) x[j] = place + (uint32_t)(j * L) + first;
            permute(*this, x);
            meanwhile();
            for (int j = 0; j < TOGETHER && i + j * L < count; j++) {
                uint32_t again = outside(x[j], n);
                if (count - i - j * L < L) again &= (1u << (count - i - j * L)) - 1;
                store(image + i + j * L, x[j]);
                compress(at + left, place + (uint32_t)(j * L), again);
                left += compress(todo + left, x[j], again);
            }
        }
        while (left) {  // an image behind the end is permuted again, until it is not
            const int64_t now = left;
            left = 0;
            for (int64_t i = 0; i < now; i += TOGETHER * L) {
                for (int j = 0; j < TOGETHER; j++) x[j] = load<vu>(todo + i + j * L);
                permute(*this, x);
                meanwhile();
                for (int j = 0; j < TOGETHER && i + j * L < now; j++) {
                    const int64_t here = least(L, now - i - j * L);
                    const vu place = load<vu>(at + i + j * L);
                    uint32_t again = outside(x[j], n);
                    if (here < L) again &= (1u << here) - 1;
                    for (int64_t l = 0; l < here; l++) image[place[l]] = x[j][l];
                    compress(at + left, place, again);
                    left += compress(todo + left, x[j], again);
                }
            }
        }
    }

    // The positions of the k smallest of n random 64-bit keys, in their order: by their first bits into as many buckets as
    // there are keys, then by insertion.
    void sort_keys(const Key& key, int64_t k) {
        alignas(64) uint32_t drawn[2 * (SORTED + 4 * L)];
        const int64_t count = n;
        words(key, 0, count, drawn);
        auto value = [&](int64_t i) {  // the reference's keys are signed, and so are their halves
            return (((uint64_t)drawn[2 * i] << 32) + (uint64_t)(int64_t)(int32_t)drawn[2 * i + 1]) ^ 1ull << 63;
        };
        int bits = 1;
        while ((int64_t)1 << bits < count) bits++;
        uint16_t starts[SORTED + 1] = {}, held[SORTED] = {};
        for (int64_t i = 0; i < count; i++) held[value(i) >> (64 - bits)]++;
        int64_t bound = 0;  // the buckets below it hold k or more
        for (; starts[bound] < k; bound++) {
            starts[bound + 1] = (uint16_t)(starts[bound] + held[bound]);
            held[bound] = 0;
        }
        for (int64_t i = 0; i < count; i++) {
            const int64_t bucket = (int64_t)(value(i) >> (64 - bits));
            if (bucket >= bound) continue;
            int64_t slot = starts[bucket] + held[bucket]++;
            for (; slot > starts[bucket] && value(order[slot - 1]) > value(i); slot--) order[slot] = order[slot - 1];
            order[slot] = (uint16_t)i;
        }
    }

    enum { ALL, BY_KEYS, PERMUTED } kind;
    uint32_t n, mask = 0, keys[ROUNDS] = {};
    int half = 0;
    uint16_t order[SORTED];
};

// visit(i, position) for each of the k positions; near(position) some time before.
template <class Near, class Visit>
static void visit_subset(const Subset& subset, int64_t k, int threads, Near near, Visit visit) {
    auto work = [&](int64_t task) {
        alignas(64) uint32_t images[2][WALKED + L];
        int64_t before = 0;  // how many positions the other buffer holds; they end at `first`
        int flip = 0;
        for (int64_t first = task * SHARE, stop = least(k, first + SHARE);; flip ^= 1) {
            const int64_t count = least(WALKED, stop - first);
            const uint32_t* other = images[flip ^ 1];
            int64_t fetched = 0;
            auto fetch = [&](int64_t most) {
                for (const int64_t end = least(before, fetched + most); fetched < end; fetched++) near(other[fetched]);
            };
            if (count > 0) subset.positions(first, count, images[flip], [&] { fetch(TOGETHER * L / 2); });
            fetch(WALKED);
            for (int64_t i = 0; i < before; i++) visit(first - before + i, other[i]);
            if (count <= 0) break;
            before = count, first += count;
        }
    };
    parallel(ceil_div(k, SHARE), k < MANY ? 1 : threads, work);
}

}  // namespace GRACE_TARGET
}  // namespace grace
