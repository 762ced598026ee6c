// Natural compression: stochastic rounding to a power of two, in codes of 8 or 4 bits: a sign, and an octave of the range that
// ends at the largest number of a block.
//
// The raw bits of a float's magnitude are its logarithm, piecewise linear: adding 23 random bits and dropping as many rounds it
// up with the probability that its mantissa gives.
#include "../decode.h"

namespace grace {
namespace GRACE_TARGET {
namespace {

constexpr int TOP = 254;  // the raw exponent of 2**127, the largest power of two

struct Natural {
    static constexpr int HEAD = 1;  // the exponent of the range's top, int8
    typedef int32_t Stats;
    struct Scale {
        int32_t below;  // the raw exponent below the range: code 0
        float unit;     // the factor that makes the range's lowest power 1; 0 where it is not a normal number
    };

    int width;
    Key key;
    int64_t n;

    int bits() const { return width; }
    int octaves() const { return width == 4 ? 7 : 126; }
    Lanes state() const { return Lanes(key); }
    Stats stats(const float*, int64_t, int32_t most) const { return most; }
    void combine(Stats& into, const Stats& next) const { into = next > into ? next : into; }

    Scale scale(const Stats& most, int64_t, uint8_t* head) const {
        int32_t top = (most >> 23) + (most >= 1 << 23 && most & 0x7FFFFF);  // rounded up
        top = top < 1 ? 1 : top > TOP ? TOP : top;
        *head = (uint8_t)(top - 127);
        Scale out = {top - octaves(), 0};
        const int32_t unit = (253 - out.below) * (1 << 23);  // the bits of 2**(127 - lowest)
        if (out.below >= 0) memcpy(&out.unit, &unit, 4);
        return out;
    }

    template <Keep keep>
    void encode(const float* p, int64_t len, const Scale& scale, int64_t row, int64_t at, Lanes& random, uint8_t* codes,
                float* rest) const {
        const uint16_t* lanes = random.at((uint64_t)(row * n + at), len);
        const vf unit = splat(scale.unit);
        const vi base = splat(scale.below * (1 << 23)), lowest = splat(least32(scale.below + 1) << 23);
        const vi most = splat(octaves()), sign = splat(1 << (width - 1));
        const auto code = [&](vf x, int64_t i) {
            const vi size = magnitude(as_int(x));
            // below the range: |x| in units of 2**-23 of its lowest power
            const vi small = truncate(as_float(size) * unit * 0x1p23f);
            const vu place = (vu)select(size >= lowest, (vi)((vu)size - (vu)base), small);
            // up if its part above the octave exceeds the lane plus a half, in units of 2**-16
            const vi level = at_most((vi)((place + 0x7FFFBFu - (vu)(load_u16(lanes + i) << 7)) >> 23), most);
            return level | (as_int(x) >> 31 & (level != 0) & sign);
        };
        const auto said = [&](vf x, vi c) {
            const vi level = c & (sign - 1), size = (vi)((vu)(level << 23) + (vu)base) & (level != 0);
            return as_float(size | (as_int(x) & (int32_t)0x80000000 & (level != 0)));
        };
        int64_t i = 0;
        for (; i + 4 * L <= len; i += 4 * L) {
            vi v[4];
            for (int k = 0; k < 4; k++) {
                const vf x = loadf(p + i + k * L);
                v[k] = code(x, i + k * L);
                keep_rest<keep>(rest + i + k * L, x - said(x, v[k]));
            }
            store_u8(codes + i, v[0], v[1], v[2], v[3]);
        }
        for (; i < len; i += L) {
            const vf x = loadf(p + i);
            const vi v = code(x, i);
            store_u8(codes + i, v);
            if (keep != NOTHING) store_first(rest + i, x - said(x, v), len - i);
        }
    }

   private:
    static int32_t least32(int32_t raw) { return raw < 1 ? 1 : raw; }  // no subnormal number is in the range
};

struct Unnatural {
    static constexpr int HEAD = 1;
    struct Factor {
        int32_t below;
        float power, weight;  // of 8 bits: a code's float32 with the level as exponent, times this, exactly, times that
    };

    int width;
    float weight;

    int bits() const { return width; }
    int octaves() const { return width == 4 ? 7 : 126; }
    Factor factor(const uint8_t* head, Refusal& bad) const {
        const int32_t top = (int8_t)*head + 127;
        if (top > TOP) bad = BAD_HEAD;
        Factor out = {top - octaves(), 0, weight};
        if (width != 8) return out;
        const int32_t raw = out.below + 127, legal = (raw < 1 ? 1 : raw > TOP ? TOP : raw) * (1 << 23);
        memcpy(&out.power, &legal, 4);
        // 2**128 is none; a weight that cannot be doubled makes all but zero infinite as it is
        if (raw > TOP && weight > -0x1p127f && weight < 0x1p127f) out.weight = 2 * weight;
        return out;
    }
    // Of 4 bits.
    GRACE_MEMBER vf value(vi code, const Factor& f) const {
        const vi level = code & 7, size = (vi)((vu)(level << 23) + (uint32_t)f.below * (1u << 23)) & (level != 0);
        // the sign of a zero does no harm: 0 + -0 is 0
        return as_float(size | (vi)((vu)(code & 8) << 28)) * f.weight;
    }
    GRACE_MEMBER void values(const uint8_t* codes, const Factor& f, vf (&out)[4]) const {
        if (width != 8) return values_of(*this, codes, f, out);
        vi code[4];
        load_u8(codes, code);
        for (int k = 0; k < 4; k++) {
            const vu high = (vu)code[k] << 23;  // the sign is a bit too low
            out[k] = as_float((vi)(high + (high & 1u << 30))) * f.power * f.weight;
        }
    }
    uint8_t most() const { return 126; }
    GRACE_MEMBER vb suspect(vb codes) const { return codes & 127; }
    GRACE_MEMBER vb suspect4(vb) const { return vb{}; }
    GRACE_MEMBER vf done(vf sum, bool) const { return sum; }
    // The lowest octave that is used is a normal number.
    bool fits(const uint8_t* codes, int64_t count, const Factor& f) const {
        if (f.below >= 0) return true;
        const uint8_t mask = (uint8_t)((1 << (width - 1)) - 1), none = (uint8_t)-f.below;  // levels 1 to none say too little
        return !any_above(codes, count, 0, [=](vb x) {
            const vb level = x & mask;
            return (vb)(level != 0) & (vb)(level <= none);
        });
    }
    bool fits4(const uint8_t* codes, int64_t count, const Factor& f) const {
        return f.below >= 0 || (fits(codes, count, f) && !any_above(codes, count, 0, [=](vb x) {
            const vb level = x >> 4 & 7;
            return (vb)(level != 0) & (vb)(level <= (uint8_t)-f.below);
        }));
    }
};

}  // namespace
}  // namespace GRACE_TARGET
}  // namespace grace

GRACE_EXPORT(natural)(const float* x, const float* memory, float* rest, int64_t rows, int64_t n, int64_t block, uint8_t* wire,
                      int64_t stride, int bits, uint32_t k0, uint32_t k1, uint32_t step, int threads) {
    using namespace grace::GRACE_TARGET;
    const Natural codec = {bits, {k0, k1, step}, n};
    return encode_blocks(codec, Rows{x, memory, rest, rows, n, block}, wire, stride, threads);
}

GRACE_EXPORT(natural_sum)(const uint8_t* const* wires, int64_t W, float* out, int64_t n, int64_t block, int bits, float weight,
                          int accumulate, int threads) {
    using namespace grace::GRACE_TARGET;
    const Unnatural codec = {bits, weight};
    return decode_blocks(codec, wires, W, out, n, block, accumulate != 0, threads);
}
