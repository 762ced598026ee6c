// Random rotations R = H D of blocks: H is the orthonormal Hadamard transform of h = 2**j numbers, D random signs.
//
// The order of additions is the reference's: at distance s = 1, 2, 4, ..., h/2 the pair (p, q) becomes (p + q, p - q). How one
// walks through the pairs does not change what they become, so several distances are done on what is in registers.
#pragma once

#include "blocks.h"
#include "sixteen.h"

namespace grace {
namespace GRACE_TARGET {

constexpr int64_t SHORTEST = 16;  // what is left of a row after its last block is transformed in pieces down to this size
constexpr int32_t LARGE = (127 + 96) << 23;  // 2**96: a block with a number beyond is transformed at 2**-32 of its size
constexpr float TINY = 0x1p-126f, GREATEST = 0x1.fffffep127f;
constexpr int64_t SIGNS = 64;                // how many each counter of the stream gives

#if defined(__FMA__) || defined(GRACE_NEON)
#define GRACE_FUSED
// a b + c, rounded once. Only where the product is exact anyway, so that all targets agree.
GRACE_INLINE vf fused(vf a, vf b, vf c) {
#if GRACE_LANES == 16
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif GRACE_LANES == 8
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#endif
}
#endif

// Lane i becomes lane i ^ s.
template <int s>
GRACE_INLINE vf partner(vf v) {
#if defined(__x86_64__) && GRACE_LANES == 16
    if (s == 1) return (vf)_mm512_permute_ps((__m512)v, 0xB1);
    if (s == 2) return (vf)_mm512_permute_ps((__m512)v, 0x4E);
    if (s == 4) return (vf)_mm512_shuffle_f32x4((__m512)v, (__m512)v, 0xB1);
    return (vf)_mm512_shuffle_f32x4((__m512)v, (__m512)v, 0x4E);
#elif defined(__x86_64__) && GRACE_LANES == 8
    if (s == 1) return (vf)_mm256_permute_ps((__m256)v, 0xB1);
    if (s == 2) return (vf)_mm256_permute_ps((__m256)v, 0x4E);
    return (vf)_mm256_permute2f128_ps((__m256)v, (__m256)v, 1);
#elif defined(__x86_64__)
    if (s == 1) return (vf)_mm_shuffle_ps((__m128)v, (__m128)v, 0xB1);
    return (vf)_mm_shuffle_ps((__m128)v, (__m128)v, 0x4E);
#elif defined(GRACE_NEON)
    const float32x4_t a = (float32x4_t)v;
    return s == 1 ? (vf)vrev64q_f32(a) : (vf)vextq_f32(a, a, 2);
#else
    vf out;
    for (int i = 0; i < L; i++) out[i] = v[i ^ s];
    return out;
#endif
}
// Distance s within a vector: q's lane gets -q + p, which is p - q.
template <int s>
GRACE_INLINE vf within(vf v) {
#ifdef GRACE_FUSED
    return fused(v, select((iota() & s) != 0, splat(-1.0f), splat(1.0f)), partner<s>(v));
#endif
    return partner<s>(v) + as_float(as_int(v) ^ (((iota() & s) != 0) & INT32_MIN));
}
GRACE_INLINE vf within(vf v) {
    v = within<2>(within<1>(v));
#if GRACE_LANES >= 8
    v = within<4>(v);
#endif
#if GRACE_LANES == 16
    v = within<8>(v);
#endif
    return v;
}
// Distances L, 2L, ... among K vectors.
template <int K>
GRACE_INLINE void among(vf (&v)[K]) {
#pragma GCC unroll 3
    for (int d = 1; d < K; d *= 2)
#pragma GCC unroll 8
        for (int i = 0; i < K; i++)
            if (!(i & d)) {
                const vf p = v[i], q = v[i + d];
                v[i] = p + q, v[i + d] = p - q;
            }
}

// The distances below K L of h numbers, or those from s to below K s: in(i) is what the L numbers from i on are, out(i, v) takes
// what they become.
template <int K, class In, class Out>
GRACE_INLINE void near(int64_t h, In in, Out out) {
    for (int64_t i = 0; i < h; i += K * L) {
        vf v[K];
        for (int k = 0; k < K; k++) v[k] = within(in(i + k * L));
        among(v);
        for (int k = 0; k < K; k++) out(i + k * L, v[k]);
    }
}
template <int K, class Out>
GRACE_INLINE void far(const float* x, int64_t h, int64_t s, Out out) {
    for (int64_t i = 0; i < h; i += K * s)
        for (int64_t j = i; j < i + s; j += L) {
            vf v[K];
            for (int k = 0; k < K; k++) v[k] = loadf(x + j + k * s);
            among(v);
            for (int k = 0; k < K; k++) out(j + k * s, v[k]);
        }
}

// H times h >= L numbers, which in(i) gives, L at a time, and out(i, v) takes; x [h] holds what is between.
template <class In, class Out>
GRACE_INLINE void transform(float* x, int64_t h, In in, Out out) {
    const vf unit = splat((float)(1 / __builtin_sqrt((double)h)));
    const auto last = [&](int64_t i, vf v) { out(i, v * unit); };
    const auto hold = [&](int64_t i, vf v) { store(x + i, v); };
    switch (h / L) {
        case 1: near<1>(h, in, last); return;
        case 2: near<2>(h, in, last); return;
        case 4: near<4>(h, in, last); return;
        case 8: near<8>(h, in, last); return;
    }
    near<8>(h, in, hold);
    int64_t s = 8 * L;
    for (; h / s > 8; s *= 8) far<8>(x, h, s, hold);
    switch (h / s) {
        case 2: far<2>(x, h, s, last); break;
        case 4: far<4>(x, h, s, last); break;
        default: far<8>(x, h, s, last);
    }
}

// x [h] times H.
static void transform(float* x, int64_t h) {
    if (h >= L) return transform(x, h, [=](int64_t i) { return loadf(x + i); }, [=](int64_t i, vf v) { store(x + i, v); });
    for (int64_t s = 1; s < h; s *= 2)
        for (int64_t i = 0; i < h; i++)
            if (!(i & s)) {
                const float p = x[i], q = x[i + s];
                x[i] = p + q, x[i + s] = p - q;
            }
    const float unit = (float)(1 / __builtin_sqrt((double)h));
    for (int64_t i = 0; i < h; i++) x[i] *= unit;
}

// A block of `len` numbers, fewer than h only at the end of a row, in a buffer; `most` is its largest magnitude, as bits.
static void transform_block(float* x, int64_t len, int64_t h, int32_t most) {
    const int64_t shortest = least(SHORTEST, h);
    const bool large = most > LARGE;
    if (large)
        for (int64_t i = 0; i < len; i++) x[i] *= 0x1p-32f;
    for (int64_t at = 0; at < len;) {
        while (h > len - at) h /= 2;
        if (h < shortest) break;
        transform(x + at, h);
        at += h;
    }
    if (large) {
        constexpr float limit = 0x1.fffffep95f;  // what is 2**32 times as large is float32's largest number
        for (int64_t i = 0; i < len; i++) x[i] = (x[i] > limit ? limit : x[i] < -limit ? -limit : x[i]) * 0x1p32f;
    }
}

// The signs of numbers [first, first + count) of every row: bit i of the stream's words is set where number i changes its sign.
class Signs {
   public:
    Signs(const Key& key, int64_t first_, int64_t count) : first(first_) {  // first is a multiple of 64
        const int64_t groups = ceil_div(count, SIGNS);
        bits = new uint32_t[(size_t)(2 * (ceil_div(groups, 4 * L) * 4 * L) + 2)];
        words(key, (uint64_t)(first / SIGNS), groups, bits);
    }
    Signs(const Signs&) = delete;
    Signs& operator=(const Signs&) = delete;
    ~Signs() { delete[] bits; }

    // y [0, len) = D x for the numbers from `at` on; both have room for a multiple of sixteen.
    void flip(const float* x, int64_t at, int64_t len, float* y) const {
        for (int64_t i = 0; i < len; i += L) {
            uint64_t word;
            const int64_t bit = at - first + i;
            memcpy(&word, (const uint8_t*)bits + bit / 8, 8);
            store(y + i, flip(loadf(x + i), (uint32_t)(word >> bit % 8)));
        }
    }
    // D v for the L numbers from `at` on, which is a multiple of L.
    GRACE_MEMBER vf flip(vf v, int64_t at) const {
        const int64_t bit = at - first;
        uint16_t word;
        memcpy(&word, (const uint8_t*)bits + bit / 8, 2);
        return flip(v, (uint32_t)word >> (L < 8 ? bit % 8 : 0));
    }

   private:
    GRACE_INLINE vf flip(vf v, uint32_t word) {
#if GRACE_LANES == 16
        const __m512i x = (__m512i)v;
        return (vf)_mm512_mask_xor_epi32(x, (__mmask16)word, x, _mm512_set1_epi32(INT32_MIN));
#else
        return as_float(as_int(v) ^ (bits_mask(word) & INT32_MIN));
#endif
    }

    int64_t first;
    uint32_t* bits;
};

// Tasks of whole blocks, whole bytes of codes and whole words of signs.
struct RotationTasks {
    int64_t n, size, per_row;
    RotationTasks(int64_t n_, int64_t block) : n(n_), size(0), per_row(0) {
        const int64_t unit = block < SIGNS ? SIGNS : block;
        size = (TASK / unit > 1 ? TASK / unit : 1) * unit;
        per_row = ceil_div(n, size);
    }
};
GRACE_INLINE int64_t padded(int64_t len) { return ceil_div(len, 16) * 16; }

// The largest magnitude of a buffer, as bits.
GRACE_INLINE int32_t largest_of(const float* x, int64_t len) {
    vi most = {};
    for (int64_t i = 0; i < len; i += L) most = max(most, magnitude(load<vi>(x + i)));
    return largest(most);
}

GRACE_INLINE int32_t largest_few(const float* x, int64_t len) {
    int32_t most = 0;
    for (int64_t i = 0; i < len; i++) {
        int32_t bits;
        memcpy(&bits, x + i, 4);
        bits &= INT32_MAX;
        most = bits > most ? bits : most;
    }
    return most;
}

// Sixteen float64 lanes of products of float32, which are exact, in the order of blocks.h.
struct Products {
    Lanes16 sum;
    GRACE_MEMBER void add(const float* a, const float* b) {
        for (int k = 0; k < 32 / L; k++)
            sum.lane[k] = add_product(sum.lane[k], __builtin_convertvector(load<half_vf>(a + k * (L / 2)), vd),
                                      __builtin_convertvector(load<half_vf>(b + k * (L / 2)), vd));
    }
    GRACE_INLINE vd add_product(vd sum, vd a, vd b) {
#if defined(__FMA__) && GRACE_LANES == 16
        return (vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)sum);
#elif defined(__FMA__) && GRACE_LANES == 8
        return (vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)sum);
#else
        return sum + a * b;
#endif
    }
};
// Zeros up to a multiple of sixteen; each(i) is called for every sixteen.
template <class Each>
GRACE_INLINE double dot(const float* a, const float* b, int64_t len, Each each) {
    double total = 0;
    for (int64_t at = 0; at < len; at += PIECE) {
        Products part;
        for (int64_t i = at; i < least(len, at + PIECE); i += 16) part.add(a + i, b + i), each(i);
        total = at ? total + part.sum.sum() : part.sum.sum();
    }
    return total;
}
GRACE_INLINE double dot(const float* a, const float* b, int64_t len) {
    return dot(a, b, len, [](int64_t) {});
}

// The Euclidean norm of y [len], zeros up to a multiple of sixteen.
template <class Each>
GRACE_INLINE float norm_of(const float* y, int64_t len, Each each) {
    const double root = __builtin_sqrt(dot(y, y, len, each));
    return root > (double)GREATEST ? GREATEST : (float)root;
}
GRACE_INLINE float norm_of(const float* y, int64_t len) {
    return norm_of(y, len, [](int64_t) {});
}

}  // namespace GRACE_TARGET
}  // namespace grace
