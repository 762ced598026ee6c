// Stochastic rounding to s levels on each side of zero, relative to the largest magnitude or the norm of a block (QSGD).
#include "../decode.h"

namespace grace {
namespace GRACE_TARGET {
namespace {

struct Quantizer {
    static constexpr int HEAD = 4;  // the norm, float32
    struct Stats {
        int32_t most;
        double squares;
    };
    struct Scale {
        float up, a, step;  // y = x up a, in units of 2**-16 levels; a level is worth `step`
    };

    int s, width;
    bool l2;
    float shrink;
    Key key;
    int64_t n;

    int bits() const { return width; }
    Lanes state() const { return Lanes(key); }

    Stats stats(const float* p, int64_t len, int32_t most) const {
        if (!l2) return {most, 0};
        Lanes16 sum;
        for (int64_t i = 0; i < len; i += 16) sum.add(p + i, [](vd v) { return v * v; });
        return {most, sum.sum()};
    }
    void combine(Stats& into, const Stats& next) const {
        into.most = next.most > into.most ? next.most : into.most;
        into.squares += next.squares;
    }

    Scale scale(const Stats& stats, int64_t, uint8_t* head) const {
        float norm;
        memcpy(&norm, &stats.most, 4);
        if (l2) {
            const double root = __builtin_sqrt(stats.squares);
            norm = root < 0x1.fffffep127 ? (float)root : 0x1.fffffep127f;
        }
        Scale out = {0, 0, 0};
        if (!(norm >= 0x1p-126f)) {
            norm = 0;
        } else {
            out.up = norm < 0x1p-64f ? 0x1p60f : 1.0f;
            out.a = (float)(s << 16) / (norm * out.up);
        }
        norm *= shrink;
        out.step = norm / (float)s;
        memcpy(head, &norm, 4);
        return out;
    }

    template <Keep keep>
    void encode(const float* p, int64_t len, const Scale& scale, int64_t row, int64_t at, Lanes& random, uint8_t* codes,
                float* rest) const {
        const uint16_t* lanes = random.at((uint64_t)(row * n + at), len);
        const vf up = splat(scale.up), a = splat(scale.a), step = splat(scale.step);
        const vi zero = splat(s);
        // In units of 2**-16: |y| is rounded up if its part above a level exceeds the lane, so by floor(|y| + 1 - 2**-16 -
        // lane); for y < 0 that is -floor(y + lane).
        const auto level = [&](vf x, int64_t i) {
            const vi y = nearest_int(x * up * a);
            return (y + (load_u16(lanes + i) ^ (~(y >> 31) & 0xFFFF))) >> 16;
        };
        int64_t i = 0;
        for (; i + 4 * L <= len; i += 4 * L) {
            vi v[4];
            for (int k = 0; k < 4; k++) {
                const vf x = loadf(p + i + k * L);
                v[k] = level(x, i + k * L);
                keep_rest<keep>(rest + i + k * L, x - to_float(v[k]) * step);
            }
            store_u8(codes + i, v[0] + zero, v[1] + zero, v[2] + zero, v[3] + zero);
        }
        for (; i < len; i += L) {
            const vf x = loadf(p + i);
            const vi v = level(x, i);
            store_u8(codes + i, v + zero);
            if (keep != NOTHING) store_first(rest + i, x - to_float(v) * step, len - i);
        }
    }
};

struct Dequantizer {
    static constexpr int HEAD = 4;
    typedef float Factor;

    int s, width;
    float weight;

    int bits() const { return width; }
    Factor factor(const uint8_t* head, Refusal& bad) const {
        float norm;
        memcpy(&norm, head, 4);
        if (!(norm >= 0 && norm <= 0x1.fffffep127f)) bad = BAD_HEAD;
        return norm / (float)s * weight;
    }
    GRACE_MEMBER vf value(vi code, const Factor& factor) const { return to_float(code - s) * factor; }
    GRACE_MEMBER void values(const uint8_t* codes, const Factor& factor, vf (&out)[4]) const {
        if (L > 4) return values_of(*this, codes, factor, out);
        vi code[4];
        load_u8<0x4B00>(codes, code);  // 2**23 + code: saves a conversion, where unpacking costs as much as without
        for (int k = 0; k < 4; k++) out[k] = (as_float(code[k]) - (0x1p23f + (float)s)) * factor;
    }
    uint8_t most() const { return (uint8_t)(2 * s); }
    GRACE_MEMBER vb suspect(vb codes) const { return codes; }
    GRACE_MEMBER vb suspect4(vb codes) const { return max(codes & 15, codes >> 4); }
    GRACE_MEMBER vf done(vf sum, bool) const { return sum; }
    bool fits(const uint8_t*, int64_t, const Factor&) const { return true; }
    bool fits4(const uint8_t*, int64_t, const Factor&) const { return true; }
};

}  // namespace
}  // namespace GRACE_TARGET
}  // namespace grace

GRACE_EXPORT(quantize)(const float* x, const float* memory, float* rest, int64_t rows, int64_t n, int64_t block, uint8_t* wire,
                       int64_t stride, int s, int bits, int l2, float shrink, uint32_t k0, uint32_t k1, uint32_t step,
                       int threads) {
    using namespace grace::GRACE_TARGET;
    const Quantizer codec = {s, bits, l2 != 0, shrink, {k0, k1, step}, n};
    return encode_blocks(codec, Rows{x, memory, rest, rows, n, block}, wire, stride, threads);
}

GRACE_EXPORT(dequantize_sum)(const uint8_t* const* wires, int64_t W, float* out, int64_t n, int64_t block, int s, int bits,
                             float weight, int accumulate, int threads) {
    using namespace grace::GRACE_TARGET;
    const Dequantizer codec = {s, bits, weight};
    return decode_blocks(codec, wires, W, out, n, block, accumulate != 0, threads);
}
