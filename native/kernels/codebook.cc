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

    int bits() const { return 8; }
    Factor factor(const uint8_t* head, Refusal& bad) const {
        float scale;
        memcpy(&scale, head, 4);
        if (!(scale >= 0 && scale <= 0x1.fffffep127f)) bad = BAD_HEAD;
        return scale * weight;
    }
    GRACE_MEMBER vf value(vi code, const Factor& factor) const { return signed_entry(book, code) * factor; }
    // 128 alone would be minus zero.
    bool legal(const uint8_t* codes, int64_t count) const {
        return !any_above(codes, count, 0, [](vb x) { return (vb)(x == SIZE); });
    }
    bool legal4(const uint8_t*, int64_t) const { return false; }
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
    const Entries codec = {book, weight};
    return decode_blocks(codec, wires, W, out, n, block, accumulate != 0, threads);
}
