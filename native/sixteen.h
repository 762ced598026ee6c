// A table of sixteen numbers.
#pragma once

#include "simd.h"

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

}  // namespace GRACE_TARGET
}  // namespace grace
