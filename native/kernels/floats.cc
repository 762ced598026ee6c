// Floats of 8 bits, in units of a block's scale: with m fraction bits, the smallest normal number 2**least, the largest `top`.
#include "../decode.h"

namespace grace {
namespace GRACE_TARGET {
namespace {

constexpr float GREATEST = 0x1.fffffep127f;

// Codes without a sign count from 0 in steps of 2**(least - m), doubled at each power of two.
struct Format {
    int m, least;
    float top;
    int last;  // the code of `top`

    GRACE_MEMBER vf value(vi code) const {  // of a magnitude
#if defined(__x86_64__) && GRACE_LANES >= 8
        // As a float of 16 bits, whose least is -14: e5m2 as it is, e4m3 times 2**-8.
        const vi half = code << (10 - m);
        const vf scale = splat(m == 3 ? 0x1p8f : 1.0f);
#if GRACE_LANES == 16
        return (vf)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)half)) * scale;
#else
        const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128((__m256i)half), _mm256_extracti128_si256((__m256i)half, 1));
        return (vf)_mm256_cvtph_ps(words) * scale;
#endif
#else
        // A number below the smallest normal one is its code times a step; the others have their bits.
        const vf normal = as_float((code << (23 - m)) + splat((int32_t)(126 + least) << 23));
        return select(code >> m == 0, to_float(code) * splat(power(least - m)), normal);
#endif
    }
    GRACE_MEMBER vf signed_value(vi code) const { return as_float(as_int(value(code & 0x7F)) | (vi)((vu)(code & 0x80) << 24)); }
    static float power(int e) {
        const int32_t bits = (127 + e) << 23;
        float out;
        memcpy(&out, &bits, 4);
        return out;
    }
};

struct Encoder {
    static constexpr int HEAD = 4;  // the scale, float32
    typedef int32_t Stats;
    typedef float Scale;

    Format format;
    bool stochastic;
    Key key;
    int64_t n;

    int bits() const { return 8; }
    Lanes state() const { return Lanes(key); }
    Stats stats(const float*, int64_t, int32_t most) const { return most; }
    void combine(Stats& into, const Stats& next) const { into = next > into ? next : into; }
    Scale scale(const Stats& most, int64_t, uint8_t* head) const {
        constexpr float limit = (float)(0x1.fffffep127 * (1 - 0x1p-20));  // so that rounding does not overflow
        float out;
        memcpy(&out, &most, 4);
        out = (out < limit ? out : limit) / format.top;
        if (!(out >= 0x1p-126f)) out = 0;
        memcpy(head, &out, 4);
        return out;
    }

    template <Keep keep>
    void encode(const float* p, int64_t len, const Scale& scale, int64_t row, int64_t at, Lanes& random, uint8_t* codes,
                float* rest) const {
        const uint16_t* lanes = stochastic ? random.at((uint64_t)(row * n + at), len) : nullptr;
        const vf by = splat(scale > 0 ? scale : 1.0f), step = splat(scale);
        const vi nothing = splat(scale > 0 ? -1 : 0), least = splat(127 + format.least), last = splat(format.last);
        const auto code = [&](vf x, int64_t i) {
            const vi y = as_int(x / by) & nothing;
            const vi e = max(magnitude(y) >> 23, least);
            const vf z = as_float(magnitude(y)) * as_float((splat(254 + format.m) - e) << 23);  // in steps at y
            const vi level = stochastic ? stochastic_round(z, load_u16(lanes + i)) : nearest_int(z);
            const vi count = ((e - least) << format.m) + level;
            return at_most(count, last) | (vi)((vu)y >> 24 & 0x80);
        };
        int64_t i = 0;
        for (; i + 4 * L <= len; i += 4 * L) {
            vi v[4];
            for (int k = 0; k < 4; k++) {
                const vf x = loadf(p + i + k * L);
                v[k] = code(x, i + k * L);
                if (keep != NOTHING) keep_rest<keep>(rest + i + k * L, x - format.signed_value(v[k]) * step);
            }
            store_u8(codes + i, v[0], v[1], v[2], v[3]);
        }
        for (; i < len; i += L) {
            const vf x = loadf(p + i);
            const vi v = code(x, i);
            store_u8(codes + i, v);
            if (keep != NOTHING) store_first(rest + i, x - format.signed_value(v) * step, len - i);
        }
    }
};

struct Decoder {
    static constexpr int HEAD = 4;
    struct Factor {
        float scale, weight;
    };

    Format format;
    float weight;

    int bits() const { return 8; }
    Factor factor(const uint8_t* head, Refusal& bad) const {
        float scale;
        memcpy(&scale, head, 4);
        if (!(scale >= 0 && scale <= GREATEST)) bad = BAD_HEAD;
        return {scale, weight};
    }
    GRACE_MEMBER vf value(vi code, const Factor& f) const { return format.signed_value(code) * f.scale * f.weight; }
    GRACE_MEMBER void values(const uint8_t* codes, const Factor& f, vf (&out)[4]) const { values_of(*this, codes, f, out); }
    uint8_t most() const { return (uint8_t)format.last; }
    GRACE_MEMBER vb suspect(vb codes) const { return codes & 0x7F; }
    GRACE_MEMBER vb suspect4(vb) const { return vb{}; }
    GRACE_MEMBER vf done(vf sum, bool) const { return sum; }
    // Whether no number is infinite.
    bool fits(const uint8_t* codes, int64_t count, const Factor& f) const {
        if (format.top * f.scale <= GREATEST) return true;
        int most = 0;
        for (int64_t i = 0; i < count; i++) most = (codes[i] & 0x7F) > most ? codes[i] & 0x7F : most;
        vf largest = format.value(splat(most)) * f.scale;
        return largest[0] <= GREATEST;
    }
    bool fits4(const uint8_t*, int64_t, const Factor&) const { return true; }
};

Format format_of(int m) { return m == 3 ? Format{3, -6, 448, 0x7E} : Format{2, -14, 57344, 0x7B}; }

}  // namespace
}  // namespace GRACE_TARGET
}  // namespace grace

// m: 3 for e4m3, 2 for e5m2
GRACE_EXPORT(encode_floats)(const float* x, const float* memory, float* rest, int64_t rows, int64_t n, int64_t block,
                            uint8_t* wire, int64_t stride, int m, int stochastic, uint32_t k0, uint32_t k1, uint32_t step,
                            int threads) {
    using namespace grace::GRACE_TARGET;
    const Encoder codec = {format_of(m), stochastic != 0, {k0, k1, step}, n};
    return encode_blocks(codec, Rows{x, memory, rest, rows, n, block}, wire, stride, threads);
}

GRACE_EXPORT(sum_floats)(const uint8_t* const* wires, int64_t W, float* out, int64_t n, int64_t block, int m, float weight,
                         int accumulate, int threads) {
    using namespace grace::GRACE_TARGET;
    const Decoder codec = {format_of(m), weight};
    return decode_blocks(codec, wires, W, out, n, block, accumulate != 0, threads);
}
