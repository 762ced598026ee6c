// Sums with a factor: the product is rounded before the sum, so that every processor has the same bits.
#include "../blocks.h"

namespace grace {
namespace GRACE_TARGET {
namespace {

enum Kind { FLOAT32, FLOAT16, BFLOAT16 };

// Exact. Without arithmetic on denormal numbers, which a processor may be told to take for zero.
template <class F, class I>
GRACE_INLINE F half_to_float(I bits) {
    const I body = (bits & 0x7FFF) << 13, exponent = body & (31 << 23);
    const I normal = body + (112 << 23);                    // from a bias of 15 to one of 127
    const I special = (exponent == (31 << 23)) & (112 << 23);  // inf and NaN
    const I tiny = exponent == 0;                              // zero and denormal numbers: 2^-14 (1 + m) - 2^-14
    const F small = (F)(body + (113 << 23)) - (F)(I{} + (113 << 23));
    return (F)((tiny & (I)small) | (~tiny & (normal + special)) | ((bits & 0x8000) << 16));
}

template <int kind>
GRACE_INLINE vf load_as(const uint8_t* x, int64_t i) {
    if (kind == FLOAT32) return load<vf>(x + 4 * i);
    const uint16_t* p = (const uint16_t*)(x + 2 * i);
    if (kind == BFLOAT16) return as_float(load_u16(p) << 16);
#if defined(__x86_64__) && GRACE_LANES == 16
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__x86_64__) && GRACE_LANES == 8
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
    return half_to_float<vf>(load_u16(p));
#endif
}

template <int kind>
void add_some(float* out, const uint8_t* x, float scale, int64_t len) {
    constexpr int64_t size = kind == FLOAT32 ? 4 : 2;
    const vf factor = splat(scale);
    int64_t i = 0;
    for (; i + L <= len; i += L) store(out + i, loadf(out + i) + load_as<kind>(x, i) * factor);
    if (i == len) return;
    uint8_t last[4 * L] = {};
    float sums[L] = {};
    memcpy(last, x + size * i, (size_t)(size * (len - i)));
    memcpy(sums, out + i, (size_t)(len - i) * sizeof(float));
    const vf sum = loadf(sums) + load_as<kind>(last, 0) * factor;
    memcpy(out + i, &sum, (size_t)(len - i) * sizeof(float));
}

}  // namespace
}  // namespace GRACE_TARGET
}  // namespace grace

// out += scale x. kind: 0, x is float32; 1, float16; 2, bfloat16.
GRACE_EXPORT(add_scaled)(float* out, const void* x, int kind, float scale, int64_t n, int threads) {
    using namespace grace::GRACE_TARGET;
    const auto some = kind == FLOAT32 ? add_some<FLOAT32> : kind == FLOAT16 ? add_some<FLOAT16> : add_some<BFLOAT16>;
    auto work = [&](int64_t task) {
        const int64_t at = task * TASK;
        some(out + at, (const uint8_t*)x + (kind == FLOAT32 ? 4 : 2) * at, scale, least(TASK, n - at));
    };
    parallel(ceil_div(n, TASK), enough_threads(n, threads), work);
    return 0;
}
