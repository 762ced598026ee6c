// Fixed-point numbers of 2 to 8 bits, whose unit is a share of the largest magnitude of a block.
#include "../decode.h"

namespace grace {
namespace GRACE_TARGET {
namespace {

constexpr float GREATEST = 0x1.fffffep127f;

struct Encoder {
    static constexpr int HEAD = 4;  // the unit, float32
    typedef int32_t Stats;
    struct Scale {
        float by, step;  // what numbers are divided by, 0 where all become 0; what a code is worth
    };

    int width, q, least;  // bits; the outermost codes, above and below zero
    float share, most;    // of the largest magnitude; of units, so that no code overflows
    float shrink;         // units are divided by that, after numbers have been
    bool stochastic;
    Key key;
    int64_t n;

    int bits() const { return width; }
    Lanes state() const { return Lanes(key); }
    Stats stats(const float*, int64_t, int32_t largest_) const { return largest_; }
    void combine(Stats& into, const Stats& next) const { into = next > into ? next : into; }
    Scale scale(const Stats& stats, int64_t, uint8_t* head) const {
        float unit;
        memcpy(&unit, &stats, 4);
        unit *= share;
        if (!(unit < most)) unit = most;
        if (!(unit >= 0x1p-126f)) unit = 0;
        const float sent = unit / shrink;
        memcpy(head, &sent, 4);
        return {unit, sent};
    }

    template <Keep keep>
    void encode(const float* p, int64_t len, const Scale& scale, int64_t row, int64_t at, Lanes& random, uint8_t* codes,
                float* rest) const {
        const uint16_t* lanes = stochastic ? random.at((uint64_t)(row * n + at), len) : nullptr;
        const vf by = splat(scale.by > 0 ? scale.by : 1.0f), step = splat(scale.step);
        const vf above = splat((float)q), below = splat((float)least);
        const vi nothing = splat(scale.by > 0 ? -1 : 0), zero = splat(q + 1);
        const auto level = [&](vf x, int64_t i) {
            const vi y = as_int(x / by) & nothing, minus = y >> 31;
            const vf z = at_most(as_float(magnitude(y)), select(minus, below, above));
            const vi size = stochastic ? stochastic_round(z, load_u16(lanes + i)) : nearest_int(z);
            return (size ^ minus) - minus;
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

struct Decoder {
    static constexpr int HEAD = 4;
    struct Factor {
        float unit, weight;
    };

    int width, q, first;  // the least code that senders write: 0 or 1
    float weight;

    int bits() const { return width; }
    Factor factor(const uint8_t* head, Refusal& bad) const {
        float unit;
        memcpy(&unit, head, 4);
        if (!(unit >= 0 && unit <= GREATEST)) bad = BAD_HEAD;
        return {unit, weight};
    }
    GRACE_MEMBER vf value(vi code, const Factor& f) const { return to_float((code & 0xFF) - (q + 1)) * f.unit * f.weight; }
    GRACE_MEMBER void values(const uint8_t* codes, const Factor& f, vf (&out)[4]) const { values_of(*this, codes, f, out); }
    uint8_t most() const { return 0xFF; }
    GRACE_MEMBER vb suspect(vb) const { return vb{}; }
    GRACE_MEMBER vb suspect4(vb) const { return vb{}; }
    GRACE_MEMBER vf done(vf sum, bool) const { return sum; }
    // Whether senders write these codes, and no number is infinite.
    bool fits(const uint8_t* codes, int64_t count, const Factor& f) const {
        if (first && any_above(codes, count, 0, [](vb x) { return (vb)(x == 0); })) return false;
        return small(f) || !any_infinite(codes, count, f);
    }
    bool fits4(const uint8_t* codes, int64_t count, const Factor& f) const {
        if (first && any_above(codes, count, 0, [](vb x) { return (vb)((x & 15) == 0) | (vb)(x >> 4 == 0); })) return false;
        if (small(f)) return true;
        for (int64_t i = 0; i < count; i++) {
            const uint8_t two[] = {(uint8_t)(codes[i] & 15), (uint8_t)(codes[i] >> 4)};
            if (any_infinite(two, 2, f)) return false;
        }
        return true;
    }

   private:
    bool small(const Factor& f) const { return (float)(q + 1) * f.unit <= GREATEST; }
    bool any_infinite(const uint8_t* codes, int64_t count, const Factor& f) const {
        for (int64_t i = 0; i < count; i++) {
            const float value = (float)(codes[i] - (q + 1)) * f.unit;
            if (!(value <= GREATEST && value >= -GREATEST)) return true;
        }
        return false;
    }
};

}  // namespace
}  // namespace GRACE_TARGET
}  // namespace grace

GRACE_EXPORT(encode_fixed)(const float* x, const float* memory, float* rest, int64_t rows, int64_t n, int64_t block, uint8_t* wire,
                           int64_t stride, int bits, int least, float share, float most, float shrink, int stochastic, uint32_t k0,
                           uint32_t k1, uint32_t step, int threads) {
    using namespace grace::GRACE_TARGET;
    const int q = (1 << (bits - 1)) - 1;
    const Encoder codec = {bits, q, least, share, most, shrink, stochastic != 0, {k0, k1, step}, n};
    return encode_blocks(codec, Rows{x, memory, rest, rows, n, block}, wire, stride, threads);
}

GRACE_EXPORT(sum_fixed)(const uint8_t* const* wires, int64_t W, float* out, int64_t n, int64_t block, int bits, int first,
                        float weight, int accumulate, int threads) {
    using namespace grace::GRACE_TARGET;
    const Decoder codec = {bits, (1 << (bits - 1)) - 1, first, weight};
    return decode_blocks(codec, wires, W, out, n, block, accumulate != 0, threads);
}
