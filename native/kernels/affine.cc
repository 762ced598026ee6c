// Numbers of 2 to 8 bits, in equal steps from the least number of a block to the largest.
#include "../decode.h"

namespace grace {
namespace GRACE_TARGET {
namespace {

constexpr float LARGEST = 0x1p126f;  // what is beyond counts as that: no difference of two overflows

GRACE_INLINE float within_range(float x) { return x > LARGEST ? LARGEST : x < -LARGEST ? -LARGEST : x; }

struct Encoder {
    static constexpr int HEAD = 8;  // the least number and the step, float32
    struct Stats {
        float least, minus;  // the least of p, and of -p
    };
    struct Scale {
        float least, step;
    };

    int width, q;  // bits; the largest code
    bool stochastic;
    Key key;
    int64_t n;

    int bits() const { return width; }
    Lanes state() const { return Lanes(key); }
    Stats stats(const float* p, int64_t len, int32_t) const {
        vf least = splat(__builtin_inff()), minus = least;
        int64_t i = 0;
        for (; i + L <= len; i += L) {
            const vf x = loadf(p + i);
            least = at_most(x, least), minus = at_most(-x, minus);
        }
        Stats out = {__builtin_inff(), __builtin_inff()};
        for (int k = 0; k < L; k++) combine(out, {least[k], minus[k]});
        for (; i < len; i++) combine(out, {p[i], -p[i]});
        return out;
    }
    void combine(Stats& into, const Stats& next) const {
        into.least = next.least < into.least ? next.least : into.least;
        into.minus = next.minus < into.minus ? next.minus : into.minus;
    }
    Scale scale(const Stats& stats, int64_t, uint8_t* head) const {
        Scale out = {within_range(stats.least) + 0.0f, 0};  // not -0
        out.step = (within_range(-stats.minus) - out.least) / (float)q;
        if (!(out.step >= 0x1p-126f)) out.step = 0;
        memcpy(head, &out, HEAD);
        return out;
    }

    template <Keep keep>
    void encode(const float* p, int64_t len, const Scale& scale, int64_t row, int64_t at, Lanes& random, uint8_t* codes,
                float* rest) const {
        const uint16_t* lanes = stochastic ? random.at((uint64_t)(row * n + at), len) : nullptr;
        const vf least = splat(scale.least), step = splat(scale.step), by = splat(scale.step > 0 ? scale.step : 1.0f);
        const vf top = splat((float)q), units = splat(32768.0f);
        const auto code = [&](vf x, int64_t i) {
            const vi y = max(nearest_int(at_most((x - least) / by, top) * units), vi{});
            return (y + (stochastic ? 0x7FFF - (load_u16(lanes + i) >> 1) : splat(0x4000))) >> 15;
        };
        int64_t i = 0;
        for (; i + 4 * L <= len; i += 4 * L) {
            vi v[4];
            for (int k = 0; k < 4; k++) {
                const vf x = loadf(p + i + k * L);
                v[k] = code(x, i + k * L);
                keep_rest<keep>(rest + i + k * L, x - (to_float(v[k]) * step + least));
            }
            store_u8(codes + i, v[0], v[1], v[2], v[3]);
        }
        for (; i < len; i += L) {
            const vf x = loadf(p + i);
            const vi v = code(x, i);
            store_u8(codes + i, v);
            if (keep != NOTHING) store_first(rest + i, x - (to_float(v) * step + least), len - i);
        }
    }
};

struct Decoder {
    static constexpr int HEAD = 8;
    struct Factor {
        float least, step;
    };

    int width, q;
    float weight;

    int bits() const { return width; }
    Factor factor(const uint8_t* head, Refusal& bad) const {
        Factor out;
        memcpy(&out, head, HEAD);
        const float reach = out.step * (float)q;
        if (!(out.least >= -LARGEST && out.least <= LARGEST && reach >= 0 && reach <= 0x1.00001p127f)) bad = BAD_HEAD;
        return {out.least * weight, out.step * weight};
    }
    GRACE_MEMBER vf value(vi code, const Factor& f) const { return to_float(code) * f.step + f.least; }
    GRACE_MEMBER void values(const uint8_t* codes, const Factor& f, vf (&out)[4]) const { values_of(*this, codes, f, out); }
    uint8_t most() const { return 0xFF; }
    GRACE_MEMBER vb suspect(vb) const { return vb{}; }
    GRACE_MEMBER vb suspect4(vb) const { return vb{}; }
    GRACE_MEMBER vf done(vf sum, bool) const { return sum; }
    bool fits(const uint8_t*, int64_t, const Factor&) const { return true; }
    bool fits4(const uint8_t*, int64_t, const Factor&) const { return true; }
};

}  // namespace
}  // namespace GRACE_TARGET
}  // namespace grace

GRACE_EXPORT(encode_affine)(const float* x, const float* memory, float* rest, int64_t rows, int64_t n, int64_t block, uint8_t* wire,
                            int64_t stride, int bits, int stochastic, uint32_t k0, uint32_t k1, uint32_t step, int threads) {
    using namespace grace::GRACE_TARGET;
    const Encoder codec = {bits, (1 << bits) - 1, stochastic != 0, {k0, k1, step}, n};
    return encode_blocks(codec, Rows{x, memory, rest, rows, n, block}, wire, stride, threads);
}

GRACE_EXPORT(sum_affine)(const uint8_t* const* wires, int64_t W, float* out, int64_t n, int64_t block, int bits, float weight,
                         int accumulate, int threads) {
    using namespace grace::GRACE_TARGET;
    const Decoder codec = {bits, (1 << bits) - 1, weight};
    return decode_blocks(codec, wires, W, out, n, block, accumulate != 0, threads);
}
