// What codecs of one bit a number share: the bits of sixteen numbers from a comparison, and numbers from such bits.
#pragma once

#include "blocks.h"

namespace grace {
namespace GRACE_TARGET {

constexpr int V = 16 / L;  // vectors of sixteen numbers
constexpr int G = 4 * L;   // numbers that are decoded together: whole bytes of bits

// Which lanes of a vector. Without AVX-512 the sign of each lane says it; what comparisons give is all ones or zeros.
#if defined(__x86_64__) && GRACE_LANES == 16
typedef __mmask16 lanes;
GRACE_INLINE lanes greater(vi a, vi b) { return _mm512_cmpgt_epi32_mask((__m512i)a, (__m512i)b); }
GRACE_INLINE lanes at_least(vf a, vf b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GE_OQ); }
GRACE_INLINE vf choose(lanes m, vf a, vf b) { return (vf)_mm512_mask_blend_ps(m, (__m512)b, (__m512)a); }
GRACE_INLINE uint32_t sixteen_bits(const lanes* m) { return m[0]; }
#elif defined(__x86_64__) && GRACE_LANES == 8
typedef vi lanes;
GRACE_INLINE lanes greater(vi a, vi b) { return a > b; }
GRACE_INLINE lanes at_least(vf a, vf b) { return a >= b; }
GRACE_INLINE vf choose(lanes m, vf a, vf b) { return (vf)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)m); }
GRACE_INLINE uint32_t sixteen_bits(const lanes* m) { return mask_bits(m[0]) | mask_bits(m[1]) << 8; }
#else
typedef vi lanes;
GRACE_INLINE lanes greater(vi a, vi b) { return a > b; }
GRACE_INLINE lanes at_least(vf a, vf b) { return a >= b; }
GRACE_INLINE vf choose(lanes m, vf a, vf b) { return as_float((m & (as_int(a) ^ as_int(b))) ^ as_int(b)); }
GRACE_INLINE uint32_t sixteen_bits(const lanes* m) {
#if defined(__x86_64__)
    const __m128i low = _mm_packs_epi32((__m128i)m[0], (__m128i)m[1]), high = _mm_packs_epi32((__m128i)m[2], (__m128i)m[3]);
    return (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(low, high));
#elif defined(GRACE_NEON)
    const uint16x8_t low = vcombine_u16(vmovn_u32((uint32x4_t)m[0]), vmovn_u32((uint32x4_t)m[1]));
    const uint16x8_t high = vcombine_u16(vmovn_u32((uint32x4_t)m[2]), vmovn_u32((uint32x4_t)m[3]));
    constexpr uint8_t place[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x16_t bits = vandq_u8(vcombine_u8(vmovn_u16(low), vmovn_u16(high)), vld1q_u8(place));
    return (uint32_t)vaddv_u8(vget_low_u8(bits)) | (uint32_t)vaddv_u8(vget_high_u8(bits)) << 8;
#else
    return mask_bits(m[0]) | mask_bits(m[1]) << 4 | mask_bits(m[2]) << 8 | mask_bits(m[3]) << 12;
#endif
}
#endif

// The lanes of four vectors, from their 4L bits.
GRACE_INLINE void expand(const uint8_t* bits, lanes* m) {
#if defined(__x86_64__) && GRACE_LANES == 16
    uint16_t words[4];
    memcpy(words, bits, 8);
    for (int j = 0; j < 4; j++) m[j] = words[j];
#elif defined(__x86_64__) && GRACE_LANES == 8
    int32_t word;
    memcpy(&word, bits, 4);
    for (int j = 0; j < 4; j++) m[j] = (vi)_mm256_sllv_epi32(_mm256_set1_epi32(word), (__m256i)(splat(31 - 8 * j) - iota()));
#else
    alignas(16) static const int32_t table[16][4] = {
        {0, 0, 0, 0},  {-1, 0, 0, 0},  {0, -1, 0, 0},  {-1, -1, 0, 0},  {0, 0, -1, 0},  {-1, 0, -1, 0},  {0, -1, -1, 0},  {-1, -1, -1, 0},
        {0, 0, 0, -1}, {-1, 0, 0, -1}, {0, -1, 0, -1}, {-1, -1, 0, -1}, {0, 0, -1, -1}, {-1, 0, -1, -1}, {0, -1, -1, -1}, {-1, -1, -1, -1},
    };
    for (int j = 0; j < 4; j++) m[j] = load<vi>(table[(bits[j / 2] >> 4 * (j % 2)) & 15]);
#endif
}

#if GRACE_LANES == 4
// The eight lanes of a byte of bits: the sign is set where the bit is not.
struct SignTable {
    alignas(16) int32_t of[256][8];
    constexpr SignTable() : of() {
        for (int byte = 0; byte < 256; byte++)
            for (int i = 0; i < 8; i++) of[byte][i] = byte >> i & 1 ? 0 : INT32_MIN;
    }
};
static const SignTable signs_of_bytes;
#endif

// sum[j] += up or down, by 4L bits; `opposite`: up is -down.
template <bool opposite>
GRACE_INLINE void add_chosen(const uint8_t* bits, vf up, vf down, vf* sum) {
#if defined(__x86_64__) && GRACE_LANES == 16
    for (int half = 0; half < 2; half++) {
        int32_t word;
        memcpy(&word, bits + 4 * half, 4);
        const __m512i all = _mm512_set1_epi32(word);
        for (int j = 0; j < 2; j++) {
            __m512 x;
            if (opposite) {  // (bit << 31) ^ down, without a mask register, of which moves are slow
                const __m512i moved = _mm512_sllv_epi32(all, (__m512i)(splat(31 - 16 * j) - iota()));
                x = _mm512_castsi512_ps(_mm512_ternarylogic_epi32(moved, _mm512_set1_epi32(INT32_MIN), (__m512i)down, 0x6A));
            } else {
                x = _mm512_mask_blend_ps(_mm512_test_epi32_mask(all, (__m512i)(splat(1 << 16 * j) << iota())), (__m512)down, (__m512)up);
            }
            sum[2 * half + j] += (vf)x;
        }
    }
#elif GRACE_LANES == 4
    for (int half = 0; half < 2; half++) {
        for (int j = 0; j < 2; j++) {
            const vi sign = load<vi>(signs_of_bytes.of[bits[half]] + 4 * j);
            sum[2 * half + j] += opposite ? as_float(sign ^ as_int(up)) : choose(sign >> 31, down, up);
        }
    }
#else
    lanes m[4];
    expand(bits, m);
    for (int j = 0; j < 4; j++) sum[j] += choose(m[j], up, down);
#endif
}

GRACE_INLINE void halves(vf x, vd& low, vd& high) {
#if defined(__x86_64__) && GRACE_LANES == 16
    low = (vd)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)x));
    high = (vd)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)x, 1));
#elif defined(__x86_64__) && GRACE_LANES == 8
    low = (vd)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)x));
    high = (vd)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)x, 1));
#elif defined(__x86_64__)
    low = (vd)_mm_cvtps_pd((__m128)x);
    high = (vd)_mm_cvtps_pd(_mm_movehl_ps((__m128)x, (__m128)x));
#elif defined(GRACE_NEON)
    low = (vd)vcvt_f64_f32(vget_low_f32((float32x4_t)x)), high = (vd)vcvt_high_f64_f32((float32x4_t)x);
#else
    for (int i = 0; i < L / 2; i++) low[i] = (double)x[i], high[i] = (double)x[i + L / 2];
#endif
}

// The sum of sixteen lanes, in the order that all targets share.
GRACE_INLINE double folded(const vd* lane) {
    double t[16];
    memcpy(t, lane, sizeof t);
    for (int h = 8; h; h /= 2)
        for (int i = 0; i < h; i++) t[i] += t[i + h];
    return t[0];
}

// Past the caches, for what is too large to stay in them: saves reading what is overwritten.
constexpr int64_t TOO_LARGE = 2 << 20;  // numbers
template <bool past>
GRACE_INLINE void put(float* p, vf x) {
#if defined(__x86_64__)
    if (past) {
#if GRACE_LANES == 16
        _mm512_stream_ps(p, (__m512)x);
#elif GRACE_LANES == 8
        _mm256_stream_ps(p, (__m256)x);
#else
        _mm_stream_ps(p, (__m128)x);
#endif
        return;
    }
#endif
    store(p, x);
}
GRACE_INLINE bool goes_past(const float* p, int64_t numbers) { return numbers >= TOO_LARGE && ((uintptr_t)p & 63) == 0; }
GRACE_INLINE void prefetch(const float* p) { __builtin_prefetch(p, 0, 3); }
GRACE_INLINE void prefetch_for_writing(const float* p) { __builtin_prefetch(p, 1, 3); }

// Bits in the order of the numbers, from words of sixteen.
class Bits {
   public:
    explicit Bits(uint8_t* out_) : out(out_) {}
    // `count` more, those behind them in the last word are zeros; words has room for two more.
    void append(const uint16_t* words, int64_t count) {
        if (held == 0) {
            memcpy(out, words, (size_t)(count / 8));
            out += count / 8, held = (int)(count % 8);
            last = held ? ((const uint8_t*)words)[count / 8] : 0;
            return;
        }
        for (int64_t i = 0; i < count; i += 32) {
            uint32_t next;
            memcpy(&next, words + i / 16, 4);
            const int more = (int)least(32, count - i);
            if (more < 32) next &= (1u << more) - 1;
            const uint64_t all = (uint64_t)next << held | last;
            const int bytes = (held + more) / 8;
            for (int k = 0; k < bytes; k++) *out++ = (uint8_t)(all >> 8 * k);
            last = (uint32_t)(all >> 8 * bytes), held = (held + more) % 8;
        }
    }
    void finish() {
        if (held) *out = (uint8_t)last;
    }

   private:
    uint8_t* out;
    uint32_t last = 0;
    int held = 0;
};

// Bits [i, i + count) of a stream, count <= 16; reads no byte that holds none of them.
GRACE_INLINE uint32_t window(const uint8_t* bits, int64_t i, int64_t count) {
    uint32_t word = 0;
    const int64_t first = i / 8, end = (i + count + 7) / 8;
    for (int64_t k = first; k < end; k++) word |= (uint32_t)bits[k] << 8 * (k - first);
    return word >> (i & 7);
}

}  // namespace GRACE_TARGET
}  // namespace grace
