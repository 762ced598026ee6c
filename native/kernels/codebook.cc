// Codes of 8 bits: a sign, and the nearest of 128 ascending magnitudes, in units of the largest one of a block.
#include "../decode.h"

namespace grace {
namespace GRACE_TARGET {
namespace {

constexpr int SIZE = 128;  // magnitudes

// What code c stands for.
GRACE_INLINE vf entry(const float* book, vi c) {
#if GRACE_LANES == 16
    const auto of = [&](int k) { return _mm512_permutex2var_ps(_mm512_loadu_ps(book + 32 * k), (__m512i)c, _mm512_loadu_ps(book + 32 * k + 16)); };
    const __mmask16 b5 = _mm512_test_epi32_mask((__m512i)c, _mm512_set1_epi32(32));
    const __mmask16 b6 = _mm512_test_epi32_mask((__m512i)c, _mm512_set1_epi32(64));
    const __m512 low = _mm512_mask_blend_ps(b5, of(0), of(1)), high = _mm512_mask_blend_ps(b5, of(2), of(3));
    return (vf)_mm512_mask_blend_ps(b6, low, high);
#elif GRACE_LANES == 8
    return (vf)_mm256_i32gather_ps(book, (__m256i)(c & (SIZE - 1)), 4);
#else
    vf out;
    for (int i = 0; i < L; i++) out[i] = book[c[i] & (SIZE - 1)];
    return out;
#endif
}
GRACE_INLINE vf signed_entry(const float* book, vi code) {
    return as_float(as_int(entry(book, code)) ^ (vi)((vu)(code & SIZE) << 24));
}

struct Codebook {
    static constexpr int HEAD = 4;  // the scale, float32
    typedef int32_t Stats;
    struct Scale {
        float up, a, scale;  // y = |x| up a; the scale
    };
    struct Nothing {};

    const float* book;     // [128]
    const float* middle;   // [128]: between an entry and the next; the last one is infinite
    const uint8_t* floor;  // [0x3F81]: for the upper half of a y in [0, 1], how many middles are below all such y; one at most is among them
#if GRACE_LANES == 16
    float node[8][64];     // level k of a binary search has 2**k of the middles
#endif

    Codebook(const float* b, const float* m, const uint8_t* f) : book(b), middle(m), floor(f) {
#if GRACE_LANES == 16
        for (int k = 0; k < 7; k++)
            for (int j = 0; j < 64; j++) node[k][j] = middle[((j << (7 - k)) + (1 << (6 - k)) - 1) & (SIZE - 1)];
#endif
    }
    int bits() const { return 8; }
    Nothing state() const { return {}; }
    Stats stats(const float*, int64_t, int32_t most) const { return most; }
    void combine(Stats& into, const Stats& next) const { into = next > into ? next : into; }
    Scale scale(const Stats& most, int64_t, uint8_t* head) const {
        Scale out = {1, 0, 0};
        memcpy(&out.scale, &most, 4);
        if (!(out.scale >= 0x1p-126f)) {
            out.scale = 0;
        } else {
            out.up = out.scale < 0x1p-64f ? 0x1p60f : 1.0f;
            out.a = 1 / (out.scale * out.up);
        }
        memcpy(head, &out.scale, 4);
        return out;
    }

    // How many middles are below y.
    GRACE_MEMBER vi nearest(vf y) const {
#if GRACE_LANES == 16
        const __m512 x = (__m512)y;
        const __m512i one = _mm512_set1_epi32(1);
        const auto next = [&](__m512i j, __m512 edge) {
            j = _mm512_add_epi32(j, j);
            return _mm512_mask_add_epi32(j, _mm512_cmp_ps_mask(edge, x, _CMP_LT_OQ), j, one);
        };
        const auto at = [&](int k, int from) { return _mm512_loadu_ps(node[k] + from); };
        __m512i j = next(_mm512_setzero_si512(), _mm512_set1_ps(node[0][0]));
        for (int k = 1; k < 5; k++) j = next(j, _mm512_permutexvar_ps(j, at(k, 0)));
        j = next(j, _mm512_permutex2var_ps(at(5, 0), j, at(5, 16)));
        const __mmask16 high = _mm512_test_epi32_mask(j, _mm512_set1_epi32(32));
        const __m512 low = _mm512_permutex2var_ps(at(6, 0), j, at(6, 16));
        return (vi)next(j, _mm512_mask_blend_ps(high, low, _mm512_permutex2var_ps(at(6, 32), j, at(6, 48))));
#else
        vi out;
        float all[L];
        int32_t word[L], code[L];
        memcpy(all, &y, sizeof y);
        memcpy(word, &y, sizeof y);
        for (int i = 0; i < L; i++) {
            const int c = floor[word[i] >> 16];
            code[i] = c + (middle[c] < all[i]);
        }
        memcpy(&out, code, sizeof out);
        return out;
#endif
    }

    template <Keep keep>
    void encode(const float* p, int64_t len, const Scale& s, int64_t, int64_t, Nothing&, uint8_t* codes, float* rest) const {
        const vf up = splat(s.up), a = splat(s.a), scale = splat(s.scale), one = splat(1.0f);
        const auto code = [&](vf x) {
            const vi c = nearest(at_most(absolute(x) * up * a, one));
            return c | (as_int(x) >> 31 & (c != 0) & SIZE);
        };
        int64_t i = 0;
        for (; i + 4 * L <= len; i += 4 * L) {
            vi v[4];
            for (int k = 0; k < 4; k++) {
                const vf x = loadf(p + i + k * L);
                v[k] = code(x);
                if (keep != NOTHING) keep_rest<keep>(rest + i + k * L, x - signed_entry(book, v[k]) * scale);
            }
            store_u8(codes + i, v[0], v[1], v[2], v[3]);
        }
        for (; i < len; i += L) {
            const vf x = loadf(p + i);
            const vi v = code(x);
            store_u8(codes + i, v);
            if (keep != NOTHING) store_first(rest + i, x - signed_entry(book, v) * scale, len - i);
        }
    }
};

struct Entries {
    static constexpr int HEAD = 4;
    typedef float Factor;

    const float* book;
    float weight;
#if GRACE_LANES == 16
    alignas(64) uint16_t lower[SIZE], upper[SIZE];  // halves of the entries
#else
    float said[2 * SIZE];  // what each code says: a read for each is faster than `entry`
#endif

    Entries(const float* b, float w) : book(b), weight(w) {
        for (int i = 0; i < SIZE; i++) {
#if GRACE_LANES == 16
            uint32_t word;
            memcpy(&word, b + i, 4);
            lower[i] = (uint16_t)word, upper[i] = (uint16_t)(word >> 16);
#else
            said[i] = b[i], said[i + SIZE] = -b[i];
#endif
        }
    }
    int bits() const { return 8; }
    Factor factor(const uint8_t* head, Refusal& bad) const {
        float scale;
        memcpy(&scale, head, 4);
        if (!(scale >= 0 && scale <= 0x1.fffffep127f)) bad = BAD_HEAD;
        return scale * weight;
    }
    GRACE_MEMBER vf value(vi code, const Factor& factor) const { return signed_entry(book, code) * factor; }
    GRACE_MEMBER void values(const uint8_t* codes, const Factor& factor, vf (&out)[4]) const {
#if GRACE_LANES == 16
        // Halves of entries, of 32 codes at a time: an upper and a lower word of sixteen bits each.
        const __m512i turned = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        const __m512i all = _mm512_permutexvar_epi32(turned, _mm512_loadu_si512(codes));
        const auto half = [&](const uint16_t* of, __m512i code, __mmask32 second) {
            const auto at = [&](int k) { return _mm512_load_si512(of + 32 * k); };
            const __m512i front = _mm512_permutex2var_epi16(at(0), code, at(1)), back = _mm512_permutex2var_epi16(at(2), code, at(3));
            return _mm512_mask_blend_epi16(second, front, back);
        };
        for (int k = 0; k < 2; k++) {
            const __m512i code = k ? _mm512_unpackhi_epi8(all, all) : _mm512_unpacklo_epi8(all, all);  // in both bytes of a word
            const __mmask32 second = _mm512_test_epi16_mask(code, _mm512_set1_epi16(64));
            const __m512i low = half(lower, code, second), sign = _mm512_set1_epi16(INT16_MIN);
            const __m512i high = _mm512_ternarylogic_epi32(half(upper, code, second), code, sign, 0x78);  // a ^ (b & c)
            out[2 * k] = (vf)_mm512_unpacklo_epi16(low, high) * factor;
            out[2 * k + 1] = (vf)_mm512_unpackhi_epi16(low, high) * factor;
        }
#else
        for (int k = 0; k < 4; k++) {
            for (int i = 0; i < L; i++) out[k][i] = said[codes[k * L + i]];
            out[k] *= factor;
        }
#endif
    }
    // 128 alone would be minus zero.
    uint8_t most() const { return 0; }
    GRACE_MEMBER vb suspect(vb codes) const { return (vb)(codes == SIZE); }
    GRACE_MEMBER vb suspect4(vb) const { return vb{}; }
    GRACE_MEMBER vf done(vf sum, bool) const { return sum; }
    bool fits(const uint8_t*, int64_t, const Factor&) const { return true; }
    bool fits4(const uint8_t*, int64_t, const Factor&) const { return true; }
};

}  // namespace
}  // namespace GRACE_TARGET
}  // namespace grace

GRACE_EXPORT(codebook)(const float* x, const float* memory, float* rest, int64_t rows, int64_t n, int64_t block, uint8_t* wire,
                       int64_t stride, const float* book, const float* middle, const uint8_t* floor, int threads) {
    using namespace grace::GRACE_TARGET;
    const Codebook codec(book, middle, floor);
    return encode_blocks(codec, Rows{x, memory, rest, rows, n, block}, wire, stride, threads);
}

GRACE_EXPORT(codebook_sum)(const uint8_t* const* wires, int64_t W, float* out, int64_t n, int64_t block, const float* book,
                           float weight, int accumulate, int threads) {
    using namespace grace::GRACE_TARGET;
    const Entries codec(book, weight);
    return decode_blocks(codec, wires, W, out, n, block, accumulate != 0, threads);
}
