// A table of sixteen numbers.
#pragma once

#include "bits.h"

namespace grace {
namespace GRACE_TARGET {

// Of sixteen numbers those that codes below sixteen say.
struct Sixteen {
#if GRACE_LANES == 16
    vf all;
    explicit Sixteen(const float* p) : all(loadf(p)) {}
    GRACE_MEMBER vf at(vi code) const { return lookup(all, code); }
#elif defined(__x86_64__) && GRACE_LANES == 8
    __m256 low, high;
    explicit Sixteen(const float* p) : low(_mm256_loadu_ps(p)), high(_mm256_loadu_ps(p + 8)) {}
    GRACE_MEMBER vf at(vi code) const {
        const __m256 a = _mm256_permutevar8x32_ps(low, (__m256i)code), b = _mm256_permutevar8x32_ps(high, (__m256i)code);
        return (vf)_mm256_blendv_ps(a, b, _mm256_castsi256_ps(_mm256_slli_epi32((__m256i)code, 28)));
    }
#else
    float all[16];
    explicit Sixteen(const float* p) { memcpy(all, p, sizeof all); }
    GRACE_MEMBER vf at(vi code) const {
        vf out;
        for (int i = 0; i < L; i++) out[i] = all[code[i] & 15];
        return out;
    }
#endif
};

// A table of sixteen bytes: of 4 L codes below sixteen those that they say.
struct SixteenBytes {
    alignas(16) uint8_t all[16];
    GRACE_MEMBER vb at(vb codes) const {
#if defined(__x86_64__) && GRACE_LANES == 16
        return (vb)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_load_si128((const __m128i*)all)), (__m512i)codes);
#elif defined(__x86_64__) && GRACE_LANES == 8
        return (vb)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128((const __m128i*)all)), (__m256i)codes);
#elif defined(GRACE_NEON)
        return (vb)vqtbl1q_u8(vld1q_u8(all), (uint8x16_t)codes);
#else
        vb out;
        for (int i = 0; i < 4 * L; i++) out[i] = all[codes[i] & 15];
        return out;
#endif
    }
};

}  // namespace GRACE_TARGET
}  // namespace grace
