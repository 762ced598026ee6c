// Vectors of the width that the target has: 16, 8 or 4 numbers. One source serves all targets: every kernel is compiled
// once for each of them (GRACE_TARGET names it), and what it computes does not depend on the width.
//
// Arithmetic is that of the compilers' vector extensions; what they cannot say is written here, once for each target.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__ARM_NEON) && !defined(__ARM_BIG_ENDIAN)
#include <arm_neon.h>
#define GRACE_NEON
#endif

#ifndef GRACE_TARGET
#error "compile with -DGRACE_TARGET=base, avx2 or avx512"
#endif

#if defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define GRACE_LANES 16
#elif defined(__AVX2__)
#define GRACE_LANES 8
#else
#define GRACE_LANES 4
#endif

#define GRACE_PASTE_(a, b) a##_##b
#define GRACE_PASTE(a, b) GRACE_PASTE_(a, b)
// A C function of this target: grace_topk_avx2.
#define GRACE_EXPORT(name) extern "C" __attribute__((visibility("default"))) int64_t GRACE_PASTE(grace_##name, GRACE_TARGET)
// Every one of them is declared here, for this target: a definition with another signature does not compile.
typedef const uint8_t* const* Wires;
#define GRACE_KERNEL(name, ...) GRACE_EXPORT(name)(__VA_ARGS__);
#include "signatures.h"
#undef GRACE_KERNEL
#define GRACE_MEMBER __attribute__((always_inline)) inline
#define GRACE_INLINE static inline __attribute__((always_inline))

// Everything in a namespace of the target's own: an inline function that two targets share could be linked from either.
namespace grace {
namespace GRACE_TARGET {

constexpr int L = GRACE_LANES;
typedef float vf __attribute__((vector_size(4 * GRACE_LANES)));
typedef int32_t vi __attribute__((vector_size(4 * GRACE_LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * GRACE_LANES)));

template <class V, class T>
GRACE_INLINE V load(const T* p) {
    V v;
    memcpy(&v, p, sizeof v);
    return v;
}
template <class V, class T>
GRACE_INLINE void store(T* p, V v) {
    memcpy(p, &v, sizeof v);
}
GRACE_INLINE vf loadf(const float* p) { return load<vf>(p); }

GRACE_INLINE vf splat(float x) { return x - vf{}; }  // x - 0 is x, whatever its sign
GRACE_INLINE vi splat(int32_t x) { return x + vi{}; }
GRACE_INLINE vu splat(uint32_t x) { return x + vu{}; }
GRACE_INLINE vi iota() {
    vi v;
    for (int i = 0; i < L; i++) v[i] = i;
    return v;
}

GRACE_INLINE vf as_float(vi x) { return (vf)x; }
GRACE_INLINE vi as_int(vf x) { return (vi)x; }
GRACE_INLINE vf to_float(vi x) { return __builtin_convertvector(x, vf); }
// Towards zero. What does not fit an int32, and NaN, gives a number that means nothing: it never faults.
GRACE_INLINE vi truncate(vf x) {
#if defined(__x86_64__) && GRACE_LANES == 16
    return (vi)_mm512_cvttps_epi32((__m512)x);
#elif defined(__x86_64__) && GRACE_LANES == 8
    return (vi)_mm256_cvttps_epi32((__m256)x);
#elif defined(__x86_64__)
    return (vi)_mm_cvttps_epi32((__m128)x);
#elif defined(GRACE_NEON)
    const int32x4_t v = vcvtq_s32_f32((float32x4_t)x);  // too much becomes the largest, NaN 0
    return (vi)v;
#else
    vi out;
    for (int i = 0; i < L; i++) out[i] = x[i] >= -2147483648.0f && x[i] < 2147483648.0f ? (int32_t)x[i] : INT32_MIN;
    return out;
#endif
}
GRACE_INLINE vi magnitude(vi bits) { return bits & 0x7FFFFFFF; }
GRACE_INLINE vf absolute(vf x) { return as_float(magnitude(as_int(x))); }
GRACE_INLINE vf select(vi mask, vf a, vf b) { return mask ? a : b; }
GRACE_INLINE vi select(vi mask, vi a, vi b) { return mask ? a : b; }
GRACE_INLINE vi max(vi a, vi b) {
#if defined(__x86_64__) && GRACE_LANES == 16
    return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b);
#elif defined(__x86_64__) && GRACE_LANES == 8
    return (vi)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
    return a > b ? a : b;  // one instruction on ARM
#endif
}
// To the nearest, ties to even, under the default rounding mode. What does not fit gives a number that means nothing.
GRACE_INLINE vi nearest_int(vf x) {
#if defined(__x86_64__) && GRACE_LANES == 16
    return (vi)_mm512_cvtps_epi32((__m512)x);
#elif defined(__x86_64__) && GRACE_LANES == 8
    return (vi)_mm256_cvtps_epi32((__m256)x);
#elif defined(__x86_64__)
    return (vi)_mm_cvtps_epi32((__m128)x);
#elif defined(GRACE_NEON)
    return (vi)vcvtnq_s32_f32((float32x4_t)x);
#else
    vi out;
    for (int i = 0; i < L; i++) {
        const bool fits = x[i] >= -2147483648.0f && x[i] < 2147483648.0f;
        out[i] = fits ? (int32_t)__builtin_rintf(x[i]) : INT32_MIN;
    }
    return out;
#endif
}
GRACE_INLINE vi at_most(vi a, vi most) {
#if defined(__x86_64__) && GRACE_LANES == 16
    return (vi)_mm512_min_epi32((__m512i)a, (__m512i)most);
#elif defined(__x86_64__) && GRACE_LANES == 8
    return (vi)_mm256_min_epi32((__m256i)a, (__m256i)most);
#else
    return a < most ? a : most;
#endif
}
// x where x < most, else most: NaN gives most.
GRACE_INLINE vf at_most(vf x, vf most) {
#if defined(__x86_64__) && GRACE_LANES == 16
    return (vf)_mm512_min_ps((__m512)x, (__m512)most);
#elif defined(__x86_64__) && GRACE_LANES == 8
    return (vf)_mm256_min_ps((__m256)x, (__m256)most);
#elif defined(__x86_64__)
    return (vf)_mm_min_ps((__m128)x, (__m128)most);
#else
    return x < most ? x : most;
#endif
}
template <int r>
GRACE_INLINE vu rotate(vu x) {
#if defined(__x86_64__) && GRACE_LANES == 16
    return (vu)_mm512_rol_epi32((__m512i)x, r);
#elif defined(__x86_64__) && GRACE_LANES == 8
    if (r == 16 || r == 24) {  // bytes: one shuffle
        const __m256i by16 = _mm256_setr_epi8(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8,
                                              9, 14, 15, 12, 13);
        const __m256i by24 = _mm256_setr_epi8(1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12, 1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11,
                                              8, 13, 14, 15, 12);
        return (vu)_mm256_shuffle_epi8((__m256i)x, r == 16 ? by16 : by24);
    }
    return (x << r) | (x >> (32 - r));
#elif defined(GRACE_NEON)
    if (r == 16) return (vu)vrev32q_u16((uint16x8_t)x);
    const uint32x4_t v = (uint32x4_t)x;
    return (vu)vsriq_n_u32(vshlq_n_u32(v, r), v, 32 - r);
#else
    return (x << r) | (x >> (32 - r));
#endif
}

GRACE_INLINE int32_t largest(vi v) {
#if defined(__x86_64__) && GRACE_LANES == 16
    return _mm512_reduce_max_epi32((__m512i)v);
#elif defined(GRACE_NEON)
    return vmaxvq_s32((int32x4_t)v);
#endif
    int32_t out = v[0];
    for (int i = 1; i < L; i++) out = v[i] > out ? v[i] : out;
    return out;
}

// Bit i is set where lane i of a comparison's result is.
GRACE_INLINE uint32_t mask_bits(vi mask) {
#if defined(__x86_64__) && GRACE_LANES == 16
    return _mm512_movepi32_mask((__m512i)mask);
#elif defined(__x86_64__) && GRACE_LANES == 8
    return (uint32_t)_mm256_movemask_ps((__m256)mask);
#elif defined(__x86_64__)
    return (uint32_t)_mm_movemask_ps((__m128)mask);
#elif defined(GRACE_NEON)
    constexpr uint32_t place[4] = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32((uint32x4_t)mask, vld1q_u32(place)));
#else
    uint32_t out = 0;
    for (int i = 0; i < L; i++) out |= (uint32_t)(mask[i] & 1) << i;
    return out;
#endif
}
// The inverse: all ones where bit i is set.
GRACE_INLINE vi bits_mask(uint32_t bits) {
#if defined(__x86_64__) && GRACE_LANES == 16
    return (vi)_mm512_movm_epi32((__mmask16)bits);
#else
    return (splat((int32_t)bits) & (splat(1) << iota())) != 0;
#endif
}

// v where a < b, else 0; bit i of `below` is set where a < b in lane i.
GRACE_INLINE vf where_below(vi a, vi b, vf v, uint32_t& below) {
#if defined(__x86_64__) && GRACE_LANES == 16
    const __mmask16 mask = _mm512_cmplt_epi32_mask((__m512i)a, (__m512i)b);
    below = mask;
    return (vf)_mm512_maskz_mov_ps(mask, (__m512)v);
#else
    const vi mask = a < b;
    below = mask_bits(mask);
    return as_float(as_int(v) & mask);
#endif
}
// To memory that will not be read soon: past the caches. p is aligned to a vector. Then `fence`, before another thread reads.
GRACE_INLINE void stream(float* p, vf v) {
#if defined(__x86_64__) && GRACE_LANES == 16
    _mm512_stream_ps(p, (__m512)v);
#elif defined(__x86_64__) && GRACE_LANES == 8
    _mm256_stream_ps(p, (__m256)v);
#elif defined(__x86_64__)
    _mm_stream_ps(p, (__m128)v);
#else
    store(p, v);
#endif
}
GRACE_INLINE void fence() {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

// L bytes or 16-bit words as numbers, and back; the numbers must fit.
GRACE_INLINE vi load_u8(const uint8_t* p) {
#if defined(__x86_64__) && GRACE_LANES == 16
    return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
#elif defined(__x86_64__) && GRACE_LANES == 8
    return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
#elif defined(__x86_64__)
    int32_t four;
    memcpy(&four, p, 4);
    const __m128i zero = _mm_setzero_si128();
    return (vi)_mm_unpacklo_epi16(_mm_unpacklo_epi8(_mm_cvtsi32_si128(four), zero), zero);
#elif defined(GRACE_NEON)
    uint32_t four;
    memcpy(&four, p, 4);
    return (vi)vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
#else
    vi out;
    for (int i = 0; i < L; i++) out[i] = p[i];
    return out;
#endif
}
GRACE_INLINE vi load_u16(const uint16_t* p) {
#if defined(__x86_64__) && GRACE_LANES == 16
    return (vi)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__x86_64__) && GRACE_LANES == 8
    return (vi)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
#elif defined(__x86_64__)
    return (vi)_mm_unpacklo_epi16(_mm_loadl_epi64((const __m128i*)p), _mm_setzero_si128());
#elif defined(GRACE_NEON)
    return (vi)vmovl_u16(load<uint16x4_t>(p));
#else
    vi out;
    for (int i = 0; i < L; i++) out[i] = p[i];
    return out;
#endif
}
GRACE_INLINE void store_u8(uint8_t* p, vi v) {
#if defined(__x86_64__) && GRACE_LANES == 16
    _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8((__m512i)v));
#elif defined(__x86_64__) && GRACE_LANES == 8
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    _mm_storel_epi64((__m128i*)p, _mm_packus_epi16(words, words));
#elif defined(__x86_64__)
    const __m128i words = _mm_packs_epi32((__m128i)v, (__m128i)v);
    const int32_t four = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
    memcpy(p, &four, 4);
#elif defined(GRACE_NEON)
    const uint16x4_t words = vqmovun_s32((int32x4_t)v);
    const uint32_t four = vget_lane_u32(vreinterpret_u32_u8(vqmovn_u16(vcombine_u16(words, words))), 0);
    memcpy(p, &four, 4);
#else
    for (int i = 0; i < L; i++) p[i] = (uint8_t)v[i];
#endif
}
// 4 L of them, each in [-32768, 32767]: below 0 becomes 0, above 255 becomes 255.
GRACE_INLINE void store_u8(uint8_t* p, vi a, vi b, vi c, vi d) {
#if defined(__x86_64__) && GRACE_LANES == 16
    const __m512i words = _mm512_packs_epi32((__m512i)a, (__m512i)b), more = _mm512_packs_epi32((__m512i)c, (__m512i)d);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(p, _mm512_permutexvar_epi32(order, _mm512_packus_epi16(words, more)));
#elif defined(__x86_64__) && GRACE_LANES == 8
    const __m256i words = _mm256_packs_epi32((__m256i)a, (__m256i)b), more = _mm256_packs_epi32((__m256i)c, (__m256i)d);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((__m256i*)p, _mm256_permutevar8x32_epi32(_mm256_packus_epi16(words, more), order));
#elif defined(__x86_64__)
    const __m128i words = _mm_packs_epi32((__m128i)a, (__m128i)b), more = _mm_packs_epi32((__m128i)c, (__m128i)d);
    _mm_storeu_si128((__m128i*)p, _mm_packus_epi16(words, more));
#elif defined(GRACE_NEON)
    const uint16x8_t words = vcombine_u16(vqmovun_s32((int32x4_t)a), vqmovun_s32((int32x4_t)b));
    const uint16x8_t more = vcombine_u16(vqmovun_s32((int32x4_t)c), vqmovun_s32((int32x4_t)d));
    store(p, vcombine_u8(vqmovn_u16(words), vqmovn_u16(more)));
#else
    store_u8(p, a), store_u8(p + L, b), store_u8(p + 2 * L, c), store_u8(p + 3 * L, d);
#endif
}
GRACE_INLINE void store_u16(uint16_t* p, vi v) {
#if defined(__x86_64__) && GRACE_LANES == 16
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16((__m512i)v));
#elif defined(GRACE_NEON)
    store(p, vmovn_u32((uint32x4_t)v));
#else
    for (int i = 0; i < L; i++) p[i] = (uint16_t)v[i];
#endif
}

// The first `count` lanes, or all.
GRACE_INLINE void store_first(float* p, vf v, int64_t count) {
#if defined(__x86_64__) && GRACE_LANES == 16
    _mm512_mask_storeu_ps(p, (__mmask16)(count < L ? (1u << count) - 1 : 0xFFFFu), (__m512)v);
#else
    float all[L];
    memcpy(all, &v, sizeof v);
    memcpy(p, all, (size_t)(count < L ? count : L) * sizeof(float));
#endif
}

// 4 L bytes as numbers; with `above` as their upper halves.
template <int16_t above = 0>
GRACE_INLINE void load_u8(const uint8_t* p, vi (&out)[4]) {
#if defined(__x86_64__) && GRACE_LANES == 4
    const __m128i bytes = _mm_loadu_si128((const __m128i*)p), zero = _mm_setzero_si128(), upper = _mm_set1_epi16(above);
    const __m128i low = _mm_unpacklo_epi8(bytes, zero), high = _mm_unpackhi_epi8(bytes, zero);
    out[0] = (vi)_mm_unpacklo_epi16(low, upper), out[1] = (vi)_mm_unpackhi_epi16(low, upper);
    out[2] = (vi)_mm_unpacklo_epi16(high, upper), out[3] = (vi)_mm_unpackhi_epi16(high, upper);
#elif defined(GRACE_NEON)
    const uint8x16_t bytes = load<uint8x16_t>(p);
    const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_high_u8(bytes);
    const uint16x8_t halves[2] = {low, high};
    for (int k = 0; k < 2; k++) {
        const uint32x4_t upper = vdupq_n_u32((uint32_t)above << 16);
        out[2 * k] = (vi)vorrq_u32(vmovl_u16(vget_low_u16(halves[k])), upper);
        out[2 * k + 1] = (vi)vorrq_u32(vmovl_high_u16(halves[k]), upper);
    }
#else
    for (int k = 0; k < 4; k++) out[k] = load_u8(p + k * L) | above * 65536;
#endif
}

// 8 L codes of 4 bits as numbers: out[2k] has those in the lower halves of bytes kL to (k+1)L, out[2k + 1] those in the
// upper halves. A lower code comes with bits above its four where `lookup` looks at no more than that.
GRACE_INLINE void load_u4(const uint8_t* p, vi (&out)[8]) {
    vi bytes[4];
    load_u8(p, bytes);
    for (int k = 0; k < 4; k++) out[2 * k] = L == 16 ? bytes[k] : bytes[k] & 15, out[2 * k + 1] = (vi)((vu)bytes[k] >> 4);
}
#if GRACE_LANES == 16
// Of sixteen values those that the lower four bits of `code` say.
GRACE_INLINE vf lookup(vf values, vi code) { return (vf)_mm512_permutexvar_ps((__m512i)code, (__m512)values); }
#endif

// a0 b0 a1 b1 ...
GRACE_INLINE void pairs(vf a, vf b, vf& first, vf& second) {
#if defined(__x86_64__) && GRACE_LANES == 16
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    first = (vf)_mm512_permutex2var_ps((__m512)a, low, (__m512)b);
    second = (vf)_mm512_permutex2var_ps((__m512)a, high, (__m512)b);
#elif defined(__x86_64__) && GRACE_LANES == 8
    const __m256 low = _mm256_unpacklo_ps((__m256)a, (__m256)b), high = _mm256_unpackhi_ps((__m256)a, (__m256)b);
    first = (vf)_mm256_permute2f128_ps(low, high, 0x20);
    second = (vf)_mm256_permute2f128_ps(low, high, 0x31);
#elif defined(__x86_64__)
    first = (vf)_mm_unpacklo_ps((__m128)a, (__m128)b);
    second = (vf)_mm_unpackhi_ps((__m128)a, (__m128)b);
#elif defined(GRACE_NEON)
    first = (vf)vzip1q_f32((float32x4_t)a, (float32x4_t)b), second = (vf)vzip2q_f32((float32x4_t)a, (float32x4_t)b);
#else
    for (int i = 0; i < L; i++) {
        (i < L / 2 ? first : second)[2 * i % L] = a[i];
        (i < L / 2 ? first : second)[2 * i % L + 1] = b[i];
    }
#endif
}
GRACE_INLINE void store_pairs(uint32_t* p, vu a, vu b) {
    vf first, second;
    pairs((vf)a, (vf)b, first, second);
    store(p, first), store(p + L, second);
}

// The inverse: p[0 .. 2L) is a0 b0 a1 b1 ...
GRACE_INLINE void load_pairs(const float* p, vf& a, vf& b) {
    const vf low = loadf(p), high = loadf(p + L);
#if defined(__x86_64__) && GRACE_LANES == 16
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    a = (vf)_mm512_permutex2var_ps((__m512)low, even, (__m512)high);
    b = (vf)_mm512_permutex2var_ps((__m512)low, odd, (__m512)high);
#elif defined(__x86_64__) && GRACE_LANES == 8
    const __m256 front = _mm256_permute2f128_ps((__m256)low, (__m256)high, 0x20);
    const __m256 back = _mm256_permute2f128_ps((__m256)low, (__m256)high, 0x31);
    a = (vf)_mm256_shuffle_ps(front, back, 0x88);
    b = (vf)_mm256_shuffle_ps(front, back, 0xDD);
#elif defined(__x86_64__)
    a = (vf)_mm_shuffle_ps((__m128)low, (__m128)high, 0x88);
    b = (vf)_mm_shuffle_ps((__m128)low, (__m128)high, 0xDD);
#elif defined(GRACE_NEON)
    a = (vf)vuzp1q_f32((float32x4_t)low, (float32x4_t)high), b = (vf)vuzp2q_f32((float32x4_t)low, (float32x4_t)high);
#else
    for (int i = 0; i < L; i++) a[i] = p[2 * i], b[i] = p[2 * i + 1];
    (void)low, (void)high;
#endif
}

// Asks for the cache line of p, which need not be ours.
GRACE_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

}  // namespace GRACE_TARGET
}  // namespace grace
