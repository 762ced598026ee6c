// One bit a number: signs with the mean magnitude of their block, two means, or bare votes.
//
// A bit does not depend on the block, but what it stands for does. So x and the memory are read once for bits and sums, and once
// more if what was not sent is wanted: from a cache, if the block fits into one.
#include "../signs.h"

namespace grace {
namespace GRACE_TARGET {
namespace {

constexpr int64_t MIDDLE = 65536;  // a block that may stay in the second-level cache

struct Pair {
    float up, down;
};

// A Rule has:
//   FIELDS: floats of a block on the wire, in arrays one behind the other
//   lanes up(vf p): whose bit is set. Made for positions that are even, or odd.
//   Sums: void add(const vf* p, const lanes* up) of sixteen numbers; void close(bits) behind a piece; void combine(Sums); finite()
//   Pair pair(const Sums&, int64_t len): what the bits stand for

// Which zeros are positive.
enum Zeros { ALL = 0, EVEN = 1, ODD = 2 };

struct BySign {
    vi bound;
    BySign(int zeros, int64_t at) {
        const vi odd = (iota() + (int32_t)(at & 1)) & 1;
        bound = zeros == ALL ? splat(-1) : zeros == ODD ? -odd : odd - 1;
    }
    // p + 0 makes -0 into 0, which as an integer is above -1
    lanes up(vf p) const { return greater(as_int(p + vf{}), bound); }
};

struct Signs : BySign {
    static constexpr int FIELDS = 1;
    struct Sums {
        vd lane[2 * V] = {};
        double total = 0;
        __attribute__((always_inline)) void add(const vf* p, const lanes*) {
            for (int k = 0; k < V; k++) {
                vd low, high;
                halves(absolute(p[k]), low, high);
                lane[2 * k] += low, lane[2 * k + 1] += high;
            }
        }
        void close(const uint16_t*, int64_t) {
            total = folded(lane);
        }
        void combine(const Sums& next) { total += next.total; }
        bool finite() const { return total <= 0x1.fffffffffffffp1023; }  // finite float32 numbers cannot add up to more
    };
    Signs(int zeros, float, int64_t at) : BySign(zeros, at) {}
    static Pair pair(const Sums& sums, int64_t len) {
        const float mean = (float)(sums.total / (double)len);
        return {mean, -mean};
    }
};

struct Votes : BySign {
    static constexpr int FIELDS = 0;
    struct Sums {
        vi most[V] = {};
        int32_t all = 0;
        __attribute__((always_inline)) void add(const vf* p, const lanes*) {
            for (int k = 0; k < V; k++) most[k] = max(most[k], magnitude(as_int(p[k])));
        }
        void close(const uint16_t*, int64_t) {
            int32_t each[16];
            memcpy(each, most, sizeof each);
            for (int32_t one : each) all = one > all ? one : all;
        }
        void combine(const Sums& next) { all = next.all > all ? next.all : all; }
        bool finite() const { return all < 0x7F800000; }
    };
    Votes(int zeros, float, int64_t at) : BySign(zeros, at) {}
    static Pair pair(const Sums&, int64_t) { return {1, -1}; }
};

struct TwoMeans {
    static constexpr int FIELDS = 2;
    struct Sums {
        vd upper[2 * V] = {}, lower[2 * V] = {};
        double up = 0, down = 0;
        int64_t ups = 0;
        __attribute__((always_inline)) void add(const vf* p, const lanes* m) {
            for (int k = 0; k < V; k++) {
                vd low, high;
                halves(choose(m[k], p[k], vf{}), low, high);
                upper[2 * k] += low, upper[2 * k + 1] += high;
                halves(choose(m[k], vf{}, p[k]), low, high);
                lower[2 * k] += low, lower[2 * k + 1] += high;
            }
        }
        void close(const uint16_t* words, int64_t count) {
            up = folded(upper), down = folded(lower);
            for (int64_t i = 0; i < count; i += 16) ups += __builtin_popcount(words[i / 16]);
        }
        void combine(const Sums& next) { up += next.up, down += next.down, ups += next.ups; }
        bool finite() const { return up - up == 0 && down - down == 0; }
    };
    vf tau;
    TwoMeans(int, float tau_, int64_t) : tau(splat(tau_)) {}
    lanes up(vf p) const { return at_least(p, tau); }
    static Pair pair(const Sums& sums, int64_t len) {
        const int64_t downs = len - sums.ups;
        return {(float)(sums.up / (double)(sums.ups > 1 ? sums.ups : 1)), (float)(sums.down / (double)(downs > 1 ? downs : 1))};
    }
};

template <bool memory>
GRACE_INLINE vf number(const float* x, const float* e, int64_t i) {
    return memory ? loadf(x + i) + loadf(e + i) : loadf(x + i);
}
// The last count < 16 numbers, and zeros.
GRACE_INLINE void last_numbers(const float* x, const float* e, int64_t count, vf* p) {
    alignas(64) float t[16] = {};
    for (int64_t i = 0; i < count; i++) t[i] = e ? x[i] + e[i] : x[i];
    for (int k = 0; k < V; k++) p[k] = loadf(t + k * L);
}

template <bool memory, class Rule>
GRACE_INLINE void measure_(const Rule& rule, const float* x, const float* e, int64_t len, uint16_t* words, int64_t next, typename Rule::Sums& out) {
    typename Rule::Sums sums = {};
    int64_t i = 0;
    for (; i + 16 <= len; i += 16) {
        vf p[V];
        lanes m[V];
        prefetch(x + i + next);
        for (int k = 0; k < V; k++) p[k] = number<memory>(x, e, i + k * L), m[k] = rule.up(p[k]);
        sums.add(p, m);
        words[i / 16] = (uint16_t)sixteen_bits(m);
    }
    if (i < len) {
        vf p[V];
        lanes m[V];
        last_numbers(x + i, memory ? e + i : nullptr, len - i, p);
        for (int k = 0; k < V; k++) m[k] = rule.up(p[k]);
        sums.add(p, m);
        words[i / 16] = (uint16_t)(sixteen_bits(m) & ((1u << (len - i)) - 1));
    }
    sums.close(words, len);
    out = sums;
}
// Bits and sums of a piece. Fetches x `next` numbers ahead.
template <class Rule>
static void measure(const Rule& rule, const float* x, const float* e, int64_t len, uint16_t* words, int64_t next, typename Rule::Sums& out) {
    if (e) measure_<true>(rule, x, e, len, words, next, out); else measure_<false>(rule, x, e, len, words, next, out);
}

template <bool memory, bool past, class Rule>
GRACE_INLINE void subtract_(const Rule& rule, const float* x, const float* e, int64_t len, Pair pair, float* rest, int64_t next) {
    const vf up = splat(pair.up), down = splat(pair.down);
    int64_t i = 0;
    for (; i + 16 <= len; i += 16) {
        if (memory) prefetch(e + i + next);
        for (int k = 0; k < V; k++) {
            const vf p = number<memory>(x, e, i + k * L);
            put<past>(rest + i + k * L, p - choose(rule.up(p), up, down));
        }
    }
    if (i < len) {
        alignas(64) float t[16];
        vf p[V];
        last_numbers(x + i, memory ? e + i : nullptr, len - i, p);
        for (int k = 0; k < V; k++) store(t + k * L, p[k] - choose(rule.up(p[k]), up, down));
        for (int64_t k = 0; i + k < len; k++) rest[i + k] = t[k];
    }
}
// rest = p minus what the bits say; fetches what lies `next` numbers ahead.
template <class Rule>
static void subtract(const Rule& rule, const float* x, const float* e, int64_t len, Pair pair, float* rest, bool past, int64_t next) {
    if (e) {
        if (past) subtract_<true, true>(rule, x, e, len, pair, rest, next); else subtract_<true, false>(rule, x, e, len, pair, rest, next);
    } else {
        if (past) subtract_<false, true>(rule, x, e, len, pair, rest, next); else subtract_<false, false>(rule, x, e, len, pair, rest, next);
    }
}

template <class Rule>
struct Encoder {
    Rows r;
    uint8_t* wire;
    int64_t stride;
    int zeros;
    float tau;
    int32_t bad = 0;

    uint8_t* bits(int64_t row) const { return wire + row * stride + 4 * Rule::FIELDS * r.blocks(); }
    // For the numbers from `at` on: what differs between even and odd positions.
    Rule rule(int64_t at) const { return Rule(zeros, tau, at); }
    const float* memory(int64_t first) const { return r.memory ? r.memory + first : nullptr; }
    bool past(int64_t first) const { return r.rest != r.x && goes_past(r.rest + first, r.rows * r.n); }

    Pair head(int64_t row, int64_t block, const typename Rule::Sums& sums, int64_t len) {
        if (!sums.finite()) __atomic_store_n(&bad, 1, __ATOMIC_RELAXED);
        const Pair pair = Rule::pair(sums, len);
        uint8_t* at = wire + row * stride + 4 * block;
        if (Rule::FIELDS == 1) memcpy(at, &pair.up, 4);
        if (Rule::FIELDS == 2) memcpy(at, &pair.down, 4), memcpy(at + 4 * r.blocks(), &pair.up, 4);
        return pair;
    }

    // Blocks [start, stop) of a row, one after the other; start is at a whole byte.
    void whole_blocks(int64_t row, int64_t start, int64_t stop) {
        Bits out(bits(row) + start / 8);
        uint16_t words[PIECE / 16 + 2];
        for (int64_t at = start; at < stop; at += r.block) {
            const int64_t len = least(r.block, stop - at), first = row * r.n + at;
            const Rule rule_ = rule(at);
            typename Rule::Sums sums;
            const int64_t next = r.rest && len <= PIECE ? len : 0;
            measure(rule_, r.x + first, memory(first), least(len, PIECE), words, next, sums);
            out.append(words, least(len, PIECE));
            for (int64_t k = PIECE; k < len; k += PIECE) {
                typename Rule::Sums more;
                measure(rule_, r.x + first + k, memory(first + k), least(len - k, PIECE), words, 0, more);
                out.append(words, least(len - k, PIECE));
                sums.combine(more);
            }
            const Pair pair = head(row, at / r.block, sums, len);
            if (r.rest) subtract(rule_, r.x + first, memory(first), len, pair, r.rest + first, past(first), next);
        }
        out.finish();
        fence();
    }

    // One block [at, at + len) of a row, in pieces.
    void large_block(int64_t row, int64_t block, int threads) {
        const int64_t start = block * r.block, len = least(r.block, r.n - start), offset = row * r.n + start;
        const int64_t pieces = ceil_div(len, PIECE);
        const Rule rule_ = rule(start);
        auto* sums = new typename Rule::Sums[(size_t)pieces];
        auto first_pass = [&](int64_t task) {
            uint16_t words[PIECE / 16 + 2];
            for (int64_t piece = 8 * task; piece < least(pieces, 8 * task + 8); piece++) {
                const int64_t at = piece * PIECE, count = least(PIECE, len - at);
                measure(rule_, r.x + offset + at, memory(offset + at), count, words, 0, sums[piece]);
                Bits out(bits(row) + (start + at) / 8);
                out.append(words, count);
                out.finish();
            }
        };
        parallel(ceil_div(pieces, 8), threads, first_pass);
        for (int64_t piece = 1; piece < pieces; piece++) sums[0].combine(sums[piece]);
        const Pair pair = head(row, block, sums[0], len);
        delete[] sums;
        if (!r.rest) return;
        auto second_pass = [&](int64_t task) {
            const int64_t at = task * TASK, first = offset + at;
            subtract(rule_, r.x + first, memory(first), least(TASK, len - at), pair, r.rest + first, past(first), 0);
            fence();
        };
        parallel(ceil_div(len, TASK), threads, second_pass);
    }

    bool run(int threads) {
        threads = enough_threads(r.rows * r.n, threads);
        if (r.block <= MIDDLE || (r.block < r.n && r.block % 8)) {
            const int64_t unit = lcm(r.block, 8), size = (TASK / unit > 1 ? TASK / unit : 1) * unit, per_row = ceil_div(r.n, size);
            auto work = [&](int64_t task) {
                const int64_t row = task / per_row, start = task % per_row * size;
                whole_blocks(row, start, least(r.n, start + size));
            };
            parallel(r.rows * per_row, threads, work);
        } else {
            for (int64_t row = 0; row < r.rows; row++)
                for (int64_t block = 0; block < r.blocks(); block++) large_block(row, block, threads);
        }
        return !bad;
    }
};

template <class Rule>
static bool encode(const Rows& r, uint8_t* wire, int64_t stride, int zeros, float tau, int threads) {
    Encoder<Rule> encoder = {r, wire, stride, zeros, tau};
    return encoder.run(threads);
}

// ---- decoding ------------------------------------------------------------------------------------------------------------
constexpr int AT_ONCE = 16;      // wires at a time
constexpr int64_t AHEAD = 1024;  // numbers: what is written is fetched before

struct Decoder {
    const uint8_t* const* wires;
    int W, fields;
    float* out;
    int64_t n, block;
    float weight;
    bool accumulate;
    int32_t refused = 0;

    int64_t heads() const { return 4 * fields * ceil_div(n, block); }

    // What the bits of each wire stand for in this block.
    void pairs(int64_t j, vf* up, vf* down) {
        for (int w = 0; w < W; w++) {
            float one = 1, other = 1;
            if (fields > 0) memcpy(&one, wires[w] + 4 * j, 4), other = one;
            if (fields > 1) memcpy(&one, wires[w] + 4 * (j + ceil_div(n, block)), 4);
            if (!(one - one == 0 && other - other == 0) || (fields == 1 && one < 0)) __atomic_store_n(&refused, 1, __ATOMIC_RELAXED);
            if (fields < 2) other = -one;
            up[w] = splat(one * weight), down[w] = splat(other * weight);
        }
    }

    // Numbers [i, stop), whole groups.
    template <bool opposite>
    void groups_(int64_t i, int64_t stop, const vf* up, const vf* down) const {
        const uint8_t* bits[AT_ONCE];
        const int64_t skip = heads();
        for (int w = 0; w < W; w++) bits[w] = wires[w] + skip;
        for (; i < stop; i += G) {
            for (int j = 0; j < G; j += 16) prefetch_for_writing(out + i + AHEAD + j);
            vf sum[4] = {};
            if (accumulate)
                for (int j = 0; j < 4; j++) sum[j] = loadf(out + i + j * L);
            for (int w = 0; w < W; w++) add_chosen<opposite>(bits[w] + i / 8, up[w], down[w], sum);
            for (int j = 0; j < 4; j++) store(out + i + j * L, sum[j]);
        }
    }
    void groups(int64_t i, int64_t stop, const vf* up, const vf* down) const {
        if (fields < 2) groups_<true>(i, stop, up, down); else groups_<false>(i, stop, up, down);
    }

    // Numbers [i, stop), any.
    void few(int64_t i, int64_t stop, const vf* up, const vf* down) const {
        const int64_t skip = heads();
        for (; i < stop; i += 16) {
            const int64_t count = least(16, stop - i);
            alignas(64) float sum[64] = {};
            if (accumulate)
                for (int64_t k = 0; k < count; k++) sum[k] = out[i + k];
            for (int w = 0; w < W; w++) {
                uint8_t bits[8] = {};
                const uint32_t word = window(wires[w] + skip, i, count);
                memcpy(bits, &word, 4);
                lanes m[4];
                expand(bits, m);
                for (int k = 0; k < V; k++) store(sum + k * L, loadf(sum + k * L) + choose(m[k], up[w], down[w]));
            }
            for (int64_t k = 0; k < count; k++) out[i + k] = sum[k];
        }
    }

    void run(int threads) {
        auto work = [&](int64_t task) {
            vf up[AT_ONCE], down[AT_ONCE];
            for (int64_t at = task * TASK, stop = least(n, at + TASK); at < stop;) {
                const int64_t j = at / block, end = least(stop, (j + 1) * block);
                pairs(j, up, down);
                const int64_t first = least(end, ceil_div(at, G) * G), last = first + (end - first) / G * G;
                few(at, first, up, down);
                groups(first, last, up, down);
                few(last, end, up, down);
                at = end;
            }
        };
        parallel(ceil_div(n, TASK), enough_threads(n, threads), work);
    }
};

}  // namespace
}  // namespace GRACE_TARGET
}  // namespace grace

// rule: 0 votes, 1 signs, 2 two means. zeros: which positions' zeros count as positive, 0 all, 1 even, 2 odd.
GRACE_EXPORT(one_bit)(const float* x, const float* memory, float* rest, int64_t rows, int64_t n, int64_t block, uint8_t* wire,
                      int64_t stride, int rule, int zeros, float tau, int threads) {
    using namespace grace::GRACE_TARGET;
    const Rows r = {x, memory, rest, rows, n, least(block, n)};
    if (rule == 0) return encode<Votes>(r, wire, stride, zeros, tau, threads);
    if (rule == 1) return encode<Signs>(r, wire, stride, zeros, tau, threads);
    return encode<TwoMeans>(r, wire, stride, zeros, tau, threads);
}

// fields: floats of a block, 0 (the bits are 1 and -1), 1 (a scale, >= 0) or 2 (what a bit that is not set and one that is stand for)
GRACE_EXPORT(one_bit_sum)(const uint8_t* const* wires, int64_t W, float* out, int64_t n, int64_t block, int fields, float weight,
                          int accumulate, int threads) {
    using namespace grace::GRACE_TARGET;
    bool refused = false;
    int64_t w = 0;
    do {
        Decoder decoder = {wires + w, (int)least(AT_ONCE, W - w), fields, out, n, least(block, n), weight, accumulate || w};
        decoder.run(threads);
        refused = refused || decoder.refused;
        w += AT_ONCE;
    } while (w < W);
    return refused ? BAD_HEAD : OK;
}
