// Majority votes, and votes that may abstain.
#include "../decode.h"
#include "../signs.h"

namespace grace {
namespace GRACE_TARGET {
namespace {

constexpr int SPAN = 32 * L;   // votes that are counted together: a vector of bits
constexpr int PLANES = 32;     // digits of a count
constexpr int64_t PART = 4080;  // whole bytes of trits, whole vectors

// The counts of SPAN votes, a vector for each binary digit: a voter costs some three operations for each digit.
struct Count {
    vq digit[PLANES];
    int digits = 0;
    uint64_t voters = 0;

    void vote(vq carry) {
        for (int k = 0; k < digits; k++) {
            const vq next = digit[k] & carry;
            digit[k] ^= carry;
            carry = next;
        }
        voters++;
        if (voters >> digits) digit[digits++] = carry;
    }
    // Where more than half the voters voted yes, and where half of them did.
    void decide(vq& most, vq& half) const {
        most = vq{}, half = ~vq{};
        for (int k = digits - 1; k >= 0; k--) {
            if (voters / 2 >> k & 1) {
                half &= digit[k];
            } else {
                most |= half & digit[k];
                half &= ~digit[k];
            }
        }
        if (voters % 2) half = vq{};
    }
};

// SPAN results from the bits.
template <bool past>
GRACE_INLINE void results(vq most, vq half, bool odd, float weight, float* out) {
    alignas(64) uint8_t yes[4 * L], tie[4 * L];
    store(yes, most), store(tie, half);
    const vf up = splat(weight), down = splat(-weight);
    for (int i = 0; i < 4 * L; i += L / 2) {
        lanes m[4], z[4];
        expand(yes + i, m);
        if (!odd) expand(tie + i, z);
        for (int j = 0; j < 4; j++) {
            const vf result = choose(m[j], up, down);
            put<past>(out + 8 * i + j * L, odd ? result : choose(z[j], vf{}, result));
        }
    }
}

// 2, 1 or 0 for numbers above, at and below zero; 1 for NaN.
GRACE_INLINE vi digits_of(vf p) { return (p < 0) - (p > 0) + 1; }

struct Votes {
    static constexpr int HEAD = 0;
    typedef float Factor;

    float weight;
    bool sign;

    int bits() const { return TRITS; }
    Factor factor(const uint8_t*, Refusal&) const { return weight; }
    GRACE_MEMBER vf value(vi code, const Factor& factor) const { return to_float(code - 1) * factor; }
    GRACE_MEMBER void values(const uint8_t* codes, const Factor& factor, vf (&out)[4]) const { values_of(*this, codes, factor, out); }
    uint8_t most() const { return 2; }
    GRACE_MEMBER vb suspect(vb codes) const { return codes; }
    GRACE_MEMBER vb suspect4(vb codes) const { return codes; }
    GRACE_MEMBER vf done(vf sum, bool last) const { return sign && last ? to_float(digits_of(sum) - 1) : sum; }
    bool fits(const uint8_t*, int64_t, const Factor&) const { return true; }
    bool fits4(const uint8_t*, int64_t, const Factor&) const { return true; }
};

}  // namespace
}  // namespace GRACE_TARGET
}  // namespace grace

// out = weight times the sign of the sum of the votes, 1 for a bit that is set and else -1.
GRACE_EXPORT(majority)(const uint8_t* const* wires, int64_t W, float* out, int64_t n, float weight, int threads) {
    using namespace grace::GRACE_TARGET;
    const bool past = goes_past(out, n);
    auto work = [&](int64_t task) {
        for (int64_t at = task * TASK, stop = least(n, at + TASK); at < stop; at += SPAN) {
            const int64_t left = stop - at;
            Count count;
            for (int64_t w = 0; w < W; w++) {
                const uint8_t* bits = wires[w] + at / 8;
                if (left >= SPAN) {
                    count.vote(load<vq>(bits));
                } else {
                    alignas(64) uint8_t some[4 * L] = {};
                    memcpy(some, bits, (size_t)((left + 7) / 8));
                    count.vote(load<vq>(some));
                }
            }
            vq most, half;
            count.decide(most, half);
            if (left < SPAN) {
                alignas(64) float some[SPAN];
                results<false>(most, half, W % 2, weight, some);
                memcpy(out + at, some, (size_t)left * 4);
            } else if (past) {
                results<true>(most, half, W % 2, weight, out + at);
            } else {
                results<false>(most, half, W % 2, weight, out + at);
            }
        }
        fence();
    };
    parallel(ceil_div(n, TASK), enough_threads(n, threads), work);
    return OK;
}

// Votes 1, 0 or -1 of p = x + memory; rest = p minus its vote. Returns whether all numbers were finite.
GRACE_EXPORT(trit_votes)(const float* x, const float* memory, float* rest, int64_t rows, int64_t n, uint8_t* wire, int64_t stride,
                         int threads) {
    using namespace grace::GRACE_TARGET;
    const Rows r = {x, memory, rest, rows, n, n};
    const int64_t per_row = ceil_div(n, 8 * PART);
    int32_t bad = 0;
    auto work = [&](int64_t task) {
        alignas(64) float p[PIECE + 16];
        alignas(64) uint8_t codes[PIECE + 16];
        const int64_t row = task / per_row, start = task % per_row * 8 * PART;
        for (int64_t at = start, stop = least(n, start + 8 * PART); at < stop; at += PART) {
            const int64_t len = least(PART, stop - at);
            if (gather(r, row * n + at, len, p) >= 0x7F800000) __atomic_store_n(&bad, 1, __ATOMIC_RELAXED);
            for (int64_t i = 0; i < len; i += L) {
                const vi vote = digits_of(loadf(p + i));
                store_u8(codes + i, vote);
                if (rest) store(p + i, loadf(p + i) - to_float(vote - 1));
            }
            if (rest) memcpy(rest + row * n + at, p, (size_t)len * 4);
            pack_trits(codes, len, wire + row * stride + at / 5);
        }
    };
    parallel(rows * per_row, enough_threads(rows * n, threads), work);
    return !bad;
}

// out = or += weight times the votes; then, if `sign`, its sign.
GRACE_EXPORT(trit_votes_sum)(const uint8_t* const* wires, int64_t W, float* out, int64_t n, float weight, int accumulate, int sign,
                             int threads) {
    using namespace grace::GRACE_TARGET;
    const Votes codec = {weight, sign != 0};
    return decode_blocks(codec, wires, W, out, n, n > 0 ? n : 1, accumulate != 0, threads);
}
