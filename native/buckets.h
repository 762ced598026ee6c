// Numbers in buckets between edges: which bucket each is in, what each bucket sums up to, and what a bucket's number says.
#pragma once

#include "blocks.h"
#include "sixteen.h"

namespace grace {
namespace GRACE_TARGET {

constexpr int MOST = 256;  // buckets

// The edges as a search tree: level k has 2**k of them, and infinities where there are fewer than 2**bits - 1.
struct Tree {
    alignas(64) float node[8][MOST / 2];
    Tree(const float* edges, int64_t count, int bits) {
        for (int k = 0; k < bits; k++)
            for (int j = 0; j < (1 << k); j++) {
                const int64_t at = ((int64_t)j << (bits - k)) + (1 << (bits - 1 - k)) - 1;
                node[k][j] = at < count ? edges[at] : __builtin_inff();
            }
        for (int k = 0; k < 4; k++)
            for (int j = 1 << k; j < 16; j++) node[k][j] = 0;  // vectors are read as a whole
    }

    // How many edges are <= x; 0 where x is NaN.
    template <int bits>
    GRACE_MEMBER vi count(vf x) const {
#if GRACE_LANES == 16
        __m512i j = _mm512_setzero_si512();
        for (int k = 0; k < bits; k++) {
            const auto at = [&](int from) { return _mm512_load_ps(node[k] + from); };
            __m512 edge;
            if (k == 0) {
                edge = _mm512_set1_ps(node[0][0]);
            } else if (k <= 4) {
                edge = _mm512_permutexvar_ps(j, at(0));
            } else {
                edge = _mm512_permutex2var_ps(at(0), j, at(16));
                if (k >= 6) {
                    const __mmask16 b5 = _mm512_test_epi32_mask(j, _mm512_set1_epi32(32));
                    edge = _mm512_mask_blend_ps(b5, edge, _mm512_permutex2var_ps(at(32), j, at(48)));
                    if (k == 7) {
                        const __m512 low = _mm512_permutex2var_ps(at(64), j, at(80)), high = _mm512_permutex2var_ps(at(96), j, at(112));
                        const __mmask16 b6 = _mm512_test_epi32_mask(j, _mm512_set1_epi32(64));
                        edge = _mm512_mask_blend_ps(b6, edge, _mm512_mask_blend_ps(b5, low, high));
                    }
                }
            }
            j = _mm512_add_epi32(j, j);
            j = _mm512_mask_add_epi32(j, _mm512_cmp_ps_mask(edge, (__m512)x, _CMP_LE_OQ), j, _mm512_set1_epi32(1));
        }
        return (vi)j;
#elif GRACE_LANES == 8
        vi j = {};
        for (int k = 0; k < bits; k++) {
            vf edge;
            if (k == 0) {
                edge = splat(node[0][0]);
            } else if (k <= 3) {
                edge = (vf)_mm256_permutevar8x32_ps(_mm256_load_ps(node[k]), (__m256i)j);
            } else {
                edge = (vf)_mm256_i32gather_ps(node[k], (__m256i)j, 4);
            }
            j = j + j - (edge <= x);
        }
        return j;
#else
        vi out = {};
        if (bits <= 5) {
            for (int k = 0; k < bits; k++)
                for (int j = 0; j < (1 << k); j++) out -= splat(node[k][j]) <= x;
        } else {
            for (int i = 0; i < L; i++) {
                int32_t j = 0;
                for (int k = 0; k < bits; k++) j = 2 * j + (node[k][j] <= x[i]);
                out[i] = j;
            }
        }
        return out;
#endif
    }
};

// Of any numbers, which need not be aligned, those that codes say.
GRACE_INLINE vf of_many(const uint8_t* table, vi code) {
    float out[L];
    int32_t at[L];
    memcpy(at, &code, sizeof at);
    for (int i = 0; i < L; i++) memcpy(out + i, table + 4 * at[i], 4);
    return loadf(out);
}

struct Bucket {
    double sum;
    int64_t count;
};

// Of a fixed number, whatever the vectors of the target.
template <int>
struct Several;
template <>
struct Several<1> {
    typedef float Floats;
    typedef double Doubles;
};
#define GRACE_SEVERAL(count)                                             \
    template <>                                                          \
    struct Several<count> {                                              \
        typedef float Floats __attribute__((vector_size(4 * count)));    \
        typedef double Doubles __attribute__((vector_size(8 * count)));  \
    };
GRACE_SEVERAL(2)
GRACE_SEVERAL(4)
GRACE_SEVERAL(8)
#undef GRACE_SEVERAL

// As many numbers as doubles.
template <int count>
GRACE_INLINE typename Several<count>::Doubles widened(const float* p) {
#if defined(__x86_64__)
    if constexpr (count == 2) return (Several<2>::Doubles)_mm_cvtps_pd(_mm_castsi128_ps(_mm_loadl_epi64((const __m128i*)p)));
#endif
    if constexpr (count == 1) {
        return (double)*p;
    } else {
        return __builtin_convertvector(load<typename Several<count>::Floats>(p), typename Several<count>::Doubles);
    }
}

// Sums and counts of buckets. What is added is found by a whole byte of packed codes, which are those of several numbers.
template <int bits>
struct Sums {
    static constexpr int TOGETHER = bits == 1 ? 8 : bits == 2 ? 4 : bits == 4 ? 2 : 1;
    static constexpr int BYTES = TOGETHER > 1 ? 256 : 1 << bits;

    double sum[2][BYTES * TOGETHER] = {};  // two of them, so that equal bytes wait less
    uint32_t count[2][BYTES] = {};

    // p has zeros behind len, up to a whole byte, whose codes are 0.
    void add(const uint8_t* bytes, const float* p, int64_t len) {
        const int64_t whole = ceil_div(len, TOGETHER);
        int64_t i = 0;
        for (; i + 2 <= whole; i += 2) put(0, bytes[i], p + i * TOGETHER), put(1, bytes[i + 1], p + (i + 1) * TOGETHER);
        if (i < whole) put(0, bytes[i], p + i * TOGETHER);
    }
    void into(Bucket* buckets, int64_t zeros) const {
        for (int byte = 0; byte < BYTES; byte++)
            for (int k = 0; k < TOGETHER; k++) {
                Bucket& bucket = buckets[byte >> (k * bits) & ((1 << bits) - 1)];
                bucket.sum += sum[0][byte * TOGETHER + k] + sum[1][byte * TOGETHER + k];
                bucket.count += (int64_t)count[0][byte] + count[1][byte];
            }
        buckets[0].count -= zeros;
    }

   private:
    GRACE_MEMBER void put(int which, uint8_t byte, const float* p) {
        double* at = sum[which] + (size_t)byte * TOGETHER;
        store(at, load<typename Several<TOGETHER>::Doubles>(at) + widened<TOGETHER>(p));
        count[which][byte]++;
    }
};

}  // namespace GRACE_TARGET
}  // namespace grace
