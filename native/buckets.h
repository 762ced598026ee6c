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
    float sorted[32];  // the edges of at most sixteen buckets, and infinities
    Tree(const float* edges, int64_t count, int bits) {
        for (int i = 0; i < 32; i++) sorted[i] = i < count ? edges[i] : __builtin_inff();
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
        if (bits <= 4) {  // the upper digit first; where it is found, the next edge is too
            __mmask16 above = 0;
            for (int k = 0; k < bits; k++) {
                const int digit = 1 << (bits - 1 - k);
                const __m512 low = _mm512_set1_ps(sorted[digit - 1]);
                __m512 edge = k ? _mm512_permutexvar_ps(j, _mm512_loadu_ps(sorted + digit - 1)) : low;
                if (k == 1) edge = _mm512_mask_mov_ps(low, above, _mm512_set1_ps(sorted[3 * digit - 1]));
                above = _mm512_cmp_ps_mask(edge, (__m512)x, _CMP_LE_OQ);
                j = _mm512_mask_add_epi32(j, above, j, _mm512_set1_epi32(digit));
            }
            return (vi)j;
        }
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

// Numbers as doubles; one or two with what counts them beside.
template <int count>
GRACE_INLINE auto entry(const float* p) {
    constexpr int places = count <= 2 ? 2 * count : count;
    typedef typename Several<places>::Doubles Doubles;
#if defined(__AVX__)
    if constexpr (count == 2) return (Doubles)_mm256_cvtps_pd(_mm_loadl_pi(_mm_setr_ps(0, 0, 1, 0), (const __m64*)p));
#endif
    if constexpr (count == 1) {
        return Doubles{p[0], 1};
    } else if constexpr (count == 2) {
        return Doubles{p[0], p[1], 1, 0};
    } else {
        return __builtin_convertvector(load<typename Several<places>::Floats>(p), Doubles);
    }
}

// Sums and counts of buckets. What is added is found by a whole byte of packed codes, which are those of several numbers. One or
// two sums lie beside their count, so that all is one store: a processor may keep no more than one line in a cycle.
template <int bits>
struct Sums {
    static constexpr int TOGETHER = bits == 1 ? 8 : bits == 2 ? 4 : bits == 4 ? 2 : 1;
    static constexpr int BYTES = TOGETHER > 1 ? 256 : 1 << bits;
    static constexpr bool BESIDE = TOGETHER <= 2;
    static constexpr int PLACES = BESIDE ? 2 * TOGETHER : TOGETHER;  // of an entry: sums, then a count and nothing

    alignas(64) double sum[2][BYTES * PLACES] = {};  // two of them, so that equal bytes wait less
    uint32_t count[2][BESIDE ? 1 : BYTES] = {};

    // p has zeros behind len, up to a whole byte, whose codes are 0.
    void add(const uint8_t* bytes, const float* p, int64_t len) {
        const int64_t whole = ceil_div(len, TOGETHER);
        int64_t i = 0;
        for (; i + 2 <= whole; i += 2) put(0, bytes[i], p + i * TOGETHER), put(1, bytes[i + 1], p + (i + 1) * TOGETHER);
        if (i < whole) put(0, bytes[i], p + i * TOGETHER);
    }
    void into(Bucket* buckets, int64_t zeros) const {
        for (int byte = 0; byte < BYTES; byte++) {
            const double *a = sum[0] + byte * PLACES, *b = sum[1] + byte * PLACES;
            const int64_t times = BESIDE ? (int64_t)(a[TOGETHER] + b[TOGETHER]) : (int64_t)count[0][byte] + count[1][byte];
            for (int k = 0; k < TOGETHER; k++) {
                Bucket& bucket = buckets[byte >> (k * bits) & ((1 << bits) - 1)];
                bucket.sum += a[k] + b[k], bucket.count += times;
            }
        }
        buckets[0].count -= zeros;
    }

   private:
    GRACE_MEMBER void put(int which, uint8_t byte, const float* p) {
        typedef typename Several<PLACES>::Doubles Doubles;
        double* at = sum[which] + (size_t)byte * PLACES;
        store(at, load<Doubles>(at) + entry<TOGETHER>(p));
        if (!BESIDE) count[which][byte]++;
    }
};

}  // namespace GRACE_TARGET
}  // namespace grace
