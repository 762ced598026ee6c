// Codes of 1 to 8 bits, a byte each, to and from a little-endian bit stream; and base-3 digits, five to a byte.
#pragma once

#include "simd.h"

namespace grace {
namespace GRACE_TARGET {

typedef uint16_t vw __attribute__((vector_size(4 * GRACE_LANES)));        // 2 L words
typedef uint64_t vq __attribute__((vector_size(4 * GRACE_LANES)));        // L/2 words
typedef uint32_t half_vu __attribute__((vector_size(2 * GRACE_LANES)));  // L/2 words

// Eight bytes of b bits -> the low 8 b bits.
template <int b, class V>
GRACE_INLINE V squeeze(V x) {
    constexpr uint64_t one = (1u << b) - 1, two = (1u << 2 * b) - 1, four = b == 8 ? 0xFFFFFFFFu : (1ull << 4 * b) - 1;
    x = (x & one * 0x0001000100010001u) | (x >> (8 - b) & (one << b) * 0x0001000100010001u);
    x = (x & two * 0x0000000100000001u) | (x >> (16 - 2 * b) & (two << 2 * b) * 0x0000000100000001u);
    return (x & four) | (x >> (32 - 4 * b) & four << 4 * b);
}
template <int b, class V>
GRACE_INLINE V widen(V x) {
    constexpr uint64_t one = (1u << b) - 1, two = (1u << 2 * b) - 1, four = b == 8 ? 0xFFFFFFFFu : (1ull << 4 * b) - 1;
    x = (x & four) | (x & four << 4 * b) << (32 - 4 * b);
    x = (x & two * 0x0000000100000001u) | (x & (two << 2 * b) * 0x0000000100000001u) << (16 - 2 * b);
    return (x & one * 0x0001000100010001u) | (x & (one << b) * 0x0001000100010001u) << (8 - b);
}

// Not memcpy: its way of copying some thousand bytes can be slower than a loop over what is in the first-level cache.
GRACE_INLINE void copy_bytes(const uint8_t* from, int64_t count, uint8_t* to) {
    int64_t i = 0;
    for (; i + 4 * L <= count; i += 4 * L) store(to + i, load<vi>(from + i));
    memcpy(to + i, from + i, (size_t)(count - i));
}

// Words of 0 to 255 as bytes: those of a, then those of b.
GRACE_INLINE vi narrow(vw a, vw b) {
#if defined(__x86_64__) && GRACE_LANES == 16
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    return (vi)_mm512_permutexvar_epi64(order, _mm512_packus_epi16((__m512i)a, (__m512i)b));
#elif defined(__x86_64__) && GRACE_LANES == 8
    return (vi)_mm256_permute4x64_epi64(_mm256_packus_epi16((__m256i)a, (__m256i)b), 0xD8);
#elif defined(__x86_64__)
    return (vi)_mm_packus_epi16((__m128i)a, (__m128i)b);
#elif defined(GRACE_NEON)
    return (vi)vcombine_u8(vmovn_u16((uint16x8_t)a), vmovn_u16((uint16x8_t)b));
#else
    typedef uint8_t bytes __attribute__((vector_size(4 * GRACE_LANES)));
    bytes out;
    for (int i = 0; i < 2 * L; i++) out[i] = (uint8_t)a[i], out[i + 2 * L] = (uint8_t)b[i];
    return (vi)out;
#endif
}
// 4 L codes of 4 bits, two to a word.
GRACE_INLINE vw nibbles(const uint8_t* codes) {
    const vw x = load<vw>(codes);
    return (x | x >> 4) & 0xFF;
}

// `count` codes -> ceil(count b / 8) bytes; codes has room for 8 more.
template <int b>
GRACE_INLINE void pack_bits(const uint8_t* codes, int64_t count, uint8_t* out) {
    int64_t i = 0;
    if (b == 8) {
        copy_bytes(codes, count, out);
        return;
    }
    if (b == 4) {
        for (; i + 8 * L <= count; i += 8 * L) store(out + i / 2, narrow(nibbles(codes + i), nibbles(codes + i + 4 * L)));
    }
    if (b == 1) {
        for (; i + 8 <= count; i += 8) {
            uint64_t x;
            memcpy(&x, codes + i, 8);
            out[i / 8] = (uint8_t)((x * 0x0102040810204080u) >> 56);
        }
    }
    for (; i + 8 <= count; i += 8) {
        uint64_t x;
        memcpy(&x, codes + i, 8);
        x = squeeze<b>(x);
        memcpy(out + i / 8 * b, &x, b);
    }
    if (i < count) {
        uint64_t x = 0;
        memcpy(&x, codes + i, (size_t)(count - i));
        x = squeeze<b>(x);
        memcpy(out + i / 8 * b, &x, (size_t)((count - i) * b + 7) / 8);
    }
}

// The inverse; codes has room for 8 more.
template <int b>
GRACE_INLINE void unpack_bits(const uint8_t* in, int64_t count, uint8_t* codes) {
    int64_t i = 0;
    if (b == 8) {
        copy_bytes(in, count, codes);
        return;
    }
    if (b == 4) {
        for (; i + 4 * L <= count; i += 4 * L)
            store(codes + i, widen<b>(__builtin_convertvector(load<half_vu>(in + i / 2), vq)));
    }
    // As whole words, while there are eight bytes: parts of a word would have to wait for one another.
    for (const int64_t words = (count * b + 7) / 8 - 8; i / 8 * b <= words; i += 8) {
        uint64_t x;
        memcpy(&x, in + i / 8 * b, 8);
        x = widen<b>(x);
        memcpy(codes + i, &x, 8);
    }
    for (; i < count; i += 8) {
        uint64_t x = 0;
        if (i + 8 <= count) {
            memcpy(&x, in + i / 8 * b, b);
        } else {
            memcpy(&x, in + i / 8 * b, (size_t)((count - i) * b + 7) / 8);
        }
        x = widen<b>(x);
        memcpy(codes + i, &x, 8);
    }
}

// Digits 0, 1, 2 -> ceil(count / 5) bytes d0 + 3 d1 + 9 d2 + 27 d3 + 81 d4; codes has room for 8 more, zero up to five.
GRACE_INLINE void pack_trits(uint8_t* codes, int64_t count, uint8_t* out) {
    for (int64_t i = count; i < count + 5; i++) codes[i] = 0;
    int64_t i = 0, j = 0;
#if defined(__x86_64__) && GRACE_LANES == 16
    // Ten digits to a quarter of a vector, five to a half of that; their products by 1, 3, ... 81 are below 256, two by two.
    const __m512i halves = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 3, 4, -1, -1, -1, 5, 6, 7, 8, 9, -1, -1, -1));
    const __m512i powers = _mm512_set1_epi64(81ll << 32 | 27ll << 24 | 9ll << 16 | 3ll << 8 | 1);
    for (; i + 46 <= count; i += 40, j += 8) {
        const auto quarter = [&](int k) { return _mm_loadu_si128((const __m128i*)(codes + i + 10 * k)); };
        __m512i x = _mm512_castsi128_si512(quarter(0));
        x = _mm512_inserti32x4(x, quarter(1), 1), x = _mm512_inserti32x4(x, quarter(2), 2), x = _mm512_inserti32x4(x, quarter(3), 3);
        x = _mm512_maddubs_epi16(_mm512_shuffle_epi8(x, halves), powers);
        _mm_storel_epi64((__m128i*)(out + j), _mm512_cvtepi64_epi8(_mm512_sad_epu8(x, _mm512_setzero_si512())));
    }
#endif
    for (; i < count; i += 5, j++) {
        uint64_t x;
        memcpy(&x, codes + i, 8);
        // byte 4 of the product is the sum; no lower byte overflows, and the digits behind only reach higher ones
        out[j] = (uint8_t)((x * (1ull << 32 | 3ull << 24 | 9ull << 16 | 27ull << 8 | 81ull)) >> 32);
    }
}
struct TritTable {
    uint64_t digits[256];  // a byte each
};
constexpr TritTable trit_table() {
    TritTable t = {};
    for (int n = 0; n < 243; n++)
        for (int j = 0, rest = n; j < 5; j++, rest /= 3) t.digits[n] |= (uint64_t)(rest % 3) << 8 * j;
    return t;
}
static constexpr TritTable TRIT = trit_table();
// The inverse; a byte above 242 gives zeros. codes has room for 8 more.
GRACE_INLINE void unpack_trits(const uint8_t* in, int64_t count, uint8_t* codes) {
    for (int64_t i = 0, j = 0; i < count; i += 5, j++) memcpy(codes + i, &TRIT.digits[in[j]], 8);
}

constexpr int TRITS = 0;  // in place of a number of bits

// How many codes fill whole bytes.
GRACE_INLINE int64_t whole_codes(int bits) { return bits == TRITS ? 5 : bits == 8 ? 1 : 8; }
GRACE_INLINE int64_t packed_bytes(int64_t count, int bits) {
    return bits == TRITS ? (count + 4) / 5 : (count * bits + 7) / 8;
}

#define GRACE_EACH_WIDTH(do_) do_(1) do_(2) do_(3) do_(4) do_(5) do_(6) do_(7) do_(8)

static inline void pack_codes(int bits, uint8_t* codes, int64_t count, uint8_t* out) {
    switch (bits) {
#define GRACE_CASE(b) \
    case b: pack_bits<b>(codes, count, out); return;
        GRACE_EACH_WIDTH(GRACE_CASE)
#undef GRACE_CASE
        default: pack_trits(codes, count, out);
    }
}
static inline void unpack_codes(int bits, const uint8_t* in, int64_t count, uint8_t* codes) {
    switch (bits) {
#define GRACE_CASE(b) \
    case b: unpack_bits<b>(in, count, codes); return;
        GRACE_EACH_WIDTH(GRACE_CASE)
#undef GRACE_CASE
        default: unpack_trits(in, count, codes);
    }
}

typedef uint8_t vb __attribute__((vector_size(4 * GRACE_LANES)));  // 4 L bytes
GRACE_INLINE vb max(vb a, vb b) {
#if defined(__x86_64__) && GRACE_LANES == 16
    return (vb)_mm512_max_epu8((__m512i)a, (__m512i)b);
#elif defined(__x86_64__) && GRACE_LANES == 8
    return (vb)_mm256_max_epu8((__m256i)a, (__m256i)b);
#elif defined(__x86_64__)
    return (vb)_mm_max_epu8((__m128i)a, (__m128i)b);
#else
    return a > b ? a : b;
#endif
}
// Whether f(byte) > limit for one of `count` bytes; f of a vector of them.
template <class F>
GRACE_INLINE bool any_above(const uint8_t* p, int64_t count, uint8_t limit, F f) {
    const vb limits = limit + vb{};
    vb most = {}, more = {};
    int64_t i = 0;
    for (; i + 8 * L <= count; i += 8 * L) most = max(most, f(load<vb>(p + i))), more = max(more, f(load<vb>(p + i + 4 * L)));
    for (; i < count; i += 4 * L) {
        const int64_t left = count - i;
        uint8_t all[4 * L];
        memcpy(all, p + i, (size_t)(left < 4 * L ? left : 4 * L));
        if (left < 4 * L) memset(all + left, p[i], (size_t)(4 * L - left));
        most = max(most, f(load<vb>(all)));
    }
    most = max(max(most, more), limits);
    return memcmp(&most, &limits, sizeof most) != 0;
}

}  // namespace GRACE_TARGET
}  // namespace grace
