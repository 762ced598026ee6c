// Stochastic rounding to s levels on each side of zero, relative to the largest magnitude or the norm of a block (QSGD).
#include "../blocks.h"

namespace grace {
namespace GRACE_TARGET {
namespace {

struct Quantiser {
    static constexpr int HEAD = 4;  // the norm, float32
    struct Stats {
        int32_t most;
        double squares;
    };
    struct Scale {
        float a, b, step;  // y = |x| a b; a level is worth `step`
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
        const float up = 1 + 0x1p-23f;  // so that the largest number reaches s
        if (!(norm >= 0x1p-126f)) {
            norm = 0;
        } else if (norm < 0x1p120f) {
            out.a = 1 / norm * up, out.b = (float)s;
        } else {  // 1/norm would be subnormal
            out.a = 0x1p-64f, out.b = (float)s / (norm * 0x1p-64f) * up;
        }
        norm *= shrink;
        out.step = norm / (float)s;
        memcpy(head, &norm, 4);
        return out;
    }

    void encode(float* p, int64_t len, const Scale& scale, int64_t row, int64_t at, Lanes& random, uint8_t* codes,
                bool keep_rest) const {
        const uint16_t* lanes = random.at((uint64_t)(row * n + at), len);
        const vf a = splat(scale.a), b = splat(scale.b), most = splat((float)s), step = splat(scale.step);
        const vi zero = splat((int32_t)s);
        for (int64_t i = 0; i < len; i += L) {
            const vf x = loadf(p + i);
            const vi level = truncate(at_most(absolute(x) * a * b + uniform(lanes + i), most)), sign = as_int(x) >> 31;
            const vi value = (level ^ sign) - sign;
            store_u8(codes + i, value + zero);
            if (keep_rest) store(p + i, x - to_float(value) * step);
        }
    }
};

struct Dequantiser {
    static constexpr int HEAD = 4;
    typedef float Factor;

    int s, width;
    float weight;

    int bits() const { return width; }
    Factor factor(const uint8_t* head, bool& bad) const {
        float norm;
        memcpy(&norm, head, 4);
        bad = !(norm >= 0 && norm <= 0x1.fffffep127f);
        return norm / (float)s * weight;
    }
    bool add(const uint8_t* codes, int64_t len, const Factor& factor, float* sum) const {
        const vf f = splat(factor);
        vi most = {};
        int64_t i = 0;
        for (; i < len; i += L) {
            const vi code = load_u8(codes + i);
            if (i + L > len) most = max(most, code & (iota() < (int32_t)(len - i))); else most = max(most, code);
            store(sum + i, loadf(sum + i) + to_float(code - s) * f);
        }
        return largest(most) <= 2 * s;
    }
};

}  // namespace
}  // namespace GRACE_TARGET
}  // namespace grace

GRACE_EXPORT(quantise)(const float* x, const float* memory, float* rest, int64_t rows, int64_t n, int64_t block, uint8_t* wire,
                       int64_t stride, int s, int bits, int l2, float shrink, uint32_t k0, uint32_t k1, uint32_t step,
                       int threads) {
    using namespace grace::GRACE_TARGET;
    const Quantiser codec = {s, bits, l2 != 0, shrink, {k0, k1, step}, n};
    return encode_blocks(codec, Rows{x, memory, rest, rows, n, block}, wire, stride, threads);
}

GRACE_EXPORT(dequantise_sum)(const uint8_t* const* wires, int64_t W, float* out, int64_t n, int64_t block, int s, int bits,
                             float weight, int accumulate, int threads) {
    using namespace grace::GRACE_TARGET;
    const Dequantiser codec = {s, bits, weight};
    return decode_blocks(codec, wires, W, out, n, block, accumulate != 0, threads);
}
