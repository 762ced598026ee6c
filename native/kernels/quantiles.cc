// Buckets between quantiles: each number becomes the number of its bucket, which says the mean of all numbers in it.
//
//   wire of a row:  the means, float32 [q]; then the numbers of the buckets, packed
//
// A mean is that of the reference, which adds a bucket's numbers up in float64 in their order. Here they are added in many
// chains, several numbers at a time: all orders agree within a bound. Where the mean is the same at both of its ends it is the
// reference's; else the bucket is added up again, in order.
#include "../buckets.h"
#include "../decode.h"
#include "../ranks.h"
#include "../subset.h"

namespace grace {
namespace GRACE_TARGET {
namespace {

constexpr int64_t PART = 256;     // numbers whose buckets are found before they are added up: few, as what is stored behind streams waits for them
constexpr int64_t SOME = 4 * TASK;
constexpr int64_t SOON = 64;      // how many numbers of a sample ahead are fetched
constexpr float GREATEST = 0x1.fffffep127f;

struct Quantiles {
    int64_t q;
    int bits;
    bool zero_edge;
    int64_t seen;  // how many numbers edges are taken from: n, or as many as a random subset has
    Key key;
    int threads;

    // Where the code of number `at` of a row lies, the first of a byte.
    int64_t place(int64_t at) const { return 4 * q + packed_bytes(at, bits); }

    // Whether f holds for one of the numbers.
    template <class F>
    static bool any(const Rows& r, F f) {
        alignas(64) float p[PIECE + 16];
        for (int64_t at = 0; at < r.n; at += PIECE) {
            const int64_t len = least(PIECE, r.n - at);
            gather(r, at, len, p);
            for (int64_t i = 0; i < len; i++)
                if (f(p[i])) return true;
        }
        return false;
    }

    // Which signs a row has, as far as that is known: it may have what is true here.
    struct Signs {
        bool below, above;  // < 0, >= 0
    };

    Signs find_edges(const Rows& r, float* edges) const {
        int64_t negative;
        if (seen == r.n) {
            negative = find_quantiles(r, q, edges);
        } else {
            // About in the order of their places, so that few pages are looked up.
            auto* places = new uint32_t[(size_t)(2 * seen)];
            visit_subset(Subset(key, r.n, seen), seen, threads, [](uint32_t) {}, [&](int64_t i, uint32_t at) { places[i] = at; });
            const uint32_t* sorted = order_nearly(places, places + seen, seen, r.n);
            auto* drawn = new float[(size_t)seen];
            for (int64_t i = 0; i < seen; i++) {
                const uint32_t next = sorted[least(i + SOON, seen - 1)], at = sorted[i];
                prefetch((const void*)(r.x + next));
                if (r.memory) prefetch((const void*)(r.memory + next));
                drawn[i] = r.memory ? r.x[at] + r.memory[at] : r.x[at];
            }
            delete[] places;
            negative = find_quantiles(Rows{drawn, nullptr, nullptr, 1, seen, seen}, q, edges);
            delete[] drawn;
        }
        const bool all = seen == r.n;
        if (!zero_edge) return {!all || negative > 0, !all || negative < seen};
        const bool below = negative > 0 || (!all && any(r, [](float v) { return v < 0; }));
        const bool above = negative < seen || (!all && any(r, [](float v) { return v >= 0; }));
        if (!below || !above) return {below, above};
        int64_t z = (2 * q * negative + seen) / (2 * seen);
        z = z < 1 ? 1 : z > q - 1 ? q - 1 : z;
        edges[z - 1] = 0;
        return {true, true};
    }

    // The codes of a row, and the sums of all its buckets; returns the largest magnitude, as bits. With a memory and a rest, what
    // they sum up to is put there: it then is not read a second time.
    template <int width>
    int32_t encode(const Rows& r, const Tree& tree, uint8_t* wire, Bucket* buckets) const {
        const int64_t tasks = ceil_div(r.n, SOME);
        constexpr int64_t ALL = 1 << width;
        auto* parts = new Bucket[(size_t)(tasks * ALL)]();
        int32_t most = 0;
        const bool copy = r.memory && r.rest, streams = r.n >= ALONE && (uintptr_t)r.rest % (4 * L) == 0;
        auto work = [&](int64_t task) {
            Sums<width> sums;
            alignas(64) float p[PART + 16];
            alignas(64) uint8_t found[PART + 64];
            vi seen_most = {};
            for (int64_t at = task * SOME, stop = least(r.n, at + SOME); at < stop; at += PART) {
                const int64_t len = least(PART, stop - at);
                if (copy) fetch_page(r.rest + at, at);
                seen_most = max(seen_most, splat(gather(r, at, len, p)));
                for (int64_t i = 0; i < len; i += 4 * L) {
                    fetch(r, at + AHEAD + i, 4 * L);  // not all at once: few reads can wait for memory at a time
                    vi v[4];
                    for (int k = 0; k < 4; k++) v[k] = tree.template count<width>(loadf(p + i + k * L));
                    store_u8(found + i, v[0], v[1], v[2], v[3]);
                    if (!copy) continue;
                    if (i + 4 * L <= len) {
                        for (int64_t j = i; j < i + 4 * L; j += L)
                            streams ? stream(r.rest + at + j, loadf(p + j)) : store(r.rest + at + j, loadf(p + j));
                    } else {
                        memcpy(r.rest + at + i, p + i, (size_t)(len - i) * 4);
                    }
                }
                uint8_t* bytes = wire + place(at);
                pack_codes(width, found, len, bytes);
                sums.add(Sums<width>::TOGETHER > 1 ? bytes : found, p, len);
            }
            const int64_t stop = least(r.n, (task + 1) * SOME);
            constexpr int64_t T = Sums<width>::TOGETHER;
            sums.into(parts + task * ALL, ceil_div(stop, T) * T - stop);
            fence();
            const int32_t here = seen_most[0];
            for (int32_t before = __atomic_load_n(&most, __ATOMIC_RELAXED);
                 here > before && !__atomic_compare_exchange_n(&most, &before, here, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED);) {
            }
        };
        parallel(tasks, enough_threads(r.n, threads), work);
        for (int64_t task = 0; task < tasks; task++)
            for (int64_t j = 0; j < q; j++)
                buckets[j].sum += parts[task * ALL + j].sum, buckets[j].count += parts[task * ALL + j].count;
        delete[] parts;
        return most;
    }

    // How far the sum of a bucket may be from another order's. Numbers of bucket j are in [edges[j - 1], edges[j]); those of the
    // outermost are from `least_of_all` on, and up to `most_of_all`.
    double slack(const Bucket& bucket, const float* edges, int64_t j, float least_of_all, float most_of_all) const {
        const float low = j > 0 ? edges[j - 1] : least_of_all, high = j < q - 1 ? edges[j] : most_of_all;
        const double size = __builtin_fabs(bucket.sum);
        const bool one_sign = low >= 0 || high <= 0;
        if (one_sign) {
            // Below 2**53 of the last place of the least of them every sum is exact.
            const float least_ = low >= 0 ? low : -high;
            uint32_t word;
            memcpy(&word, &least_, 4);
            const int exponent = (int)(word >> 23 & 255);
            if (least_ > 0 && size <= __builtin_ldexp(1.0, (exponent ? exponent : 1) - 150 + 52)) return 0;
        }
        const double all = one_sign ? size : (double)bucket.count * (low + high > 0 ? (double)high : -(double)low);
        return (double)bucket.count * all * 0x1p-51;
    }

    static float mean(double sum, int64_t count) { return (float)(sum / (double)(count > 1 ? count : 1)); }

    void write_means(const Rows& r, const float* edges, const Bucket* buckets, Signs signs, float most, uint8_t* wire) const {
        bool sure = true;
        float means[MOST];
        for (int64_t j = 0; j < q; j++) {
            const double d = slack(buckets[j], edges, j, signs.below ? -most : 0, signs.above ? most : 0);
            const float low = mean(buckets[j].sum - d, buckets[j].count), high = mean(buckets[j].sum + d, buckets[j].count);
            means[j] = high;
            sure &= memcmp(&low, &high, 4) == 0;
        }
        if (!sure) {
            double sums[MOST] = {};
            alignas(64) float p[PART + 16];
            uint8_t found[PART + 64];
            for (int64_t at = 0; at < r.n; at += PART) {
                const int64_t len = least(PART, r.n - at);
                gather(r, at, len, p);
                unpack_codes(bits, wire + place(at), len, found);
                for (int64_t i = 0; i < len; i++) sums[found[i]] += (double)p[i];
            }
            for (int64_t j = 0; j < q; j++) means[j] = mean(sums[j], buckets[j].count);
        }
        memcpy(wire, means, (size_t)q * 4);
    }

    // What the means of their buckets leave of all numbers.
    template <bool few, Keep keeping>
    void keep(const Rows r, const uint8_t* wire) const {
        alignas(64) float means[MOST] = {};
        memcpy(means, wire, (size_t)q * 4);
        auto work = [&](int64_t task) {
            alignas(64) uint8_t found[PART + 64];
            const vf greatest = splat(GREATEST);
            const auto left = [&](vf p, int64_t i) {
                const vi code = load_u8(found + i);
                const vf v = p - (few ? Sixteen(means).at(code) : of_many((const uint8_t*)means, code));
                return -at_most(-at_most(v, greatest), greatest);
            };
            for (int64_t at = task * TASK, stop = least(r.n, at + TASK); at < stop; at += PART) {
                const int64_t len = least(PART, stop - at);
                unpack_codes(bits, wire + place(at), len, found);
                const float* x = r.x + at;
                float* rest = r.rest + at;
                fetch_page(rest, at);
                int64_t i = 0;
                for (; i + L <= len; i += L) {
                    if (i % 16 == 0) fetch(r, at + AHEAD + i, 16);
                    keep_rest<keeping>(rest + i, left(loadf(x + i), i));
                }
                if (i < len) {
                    float last[L] = {};
                    memcpy(last, x + i, (size_t)(len - i) * 4);
                    store_first(rest + i, left(loadf(last), i), len - i);
                }
            }
            fence();
        };
        parallel(ceil_div(r.n, TASK), enough_threads(r.n, threads), work);
    }
    void keep(const Rows& r, const uint8_t* wire) const {
        const bool streams = r.n >= ALONE && r.rest != r.x && (uintptr_t)r.rest % (4 * L) == 0;
        if (bits <= 4) {
            streams ? keep<true, STREAM>(r, wire) : keep<true, STORE>(r, wire);
        } else {
            streams ? keep<false, STREAM>(r, wire) : keep<false, STORE>(r, wire);
        }
    }

    bool encode_row(const Rows& r, uint8_t* wire) const {
        float edges[MOST];
        const Signs signs = find_edges(r, edges);
        const Tree tree(edges, q - 1, bits);
        Bucket buckets[MOST] = {};
        int32_t most = 0;
        switch (bits) {
#define GRACE_CASE(b) \
    case b: most = encode<b>(r, tree, wire, buckets); break;
            GRACE_EACH_WIDTH(GRACE_CASE)
#undef GRACE_CASE
        }
        if (most >= 0x7F800000) {
            memset(wire, 0, (size_t)q * 4);
            return false;
        }
        float largest_;
        memcpy(&largest_, &most, 4);
        const Rows p = r.memory && r.rest ? Rows{r.rest, nullptr, r.rest, 1, r.n, r.n} : r;
        write_means(p, edges, buckets, signs, largest_, wire);
        if (r.rest) keep(p, wire);
        return true;
    }
};

template <bool few>  // buckets: at most sixteen
struct Means {
    struct Factor {
        alignas(64) float said[16];
        const uint8_t* head;
    };

    const int64_t HEAD;  // float32 [q]
    int width;
    uint8_t last;  // bucket
    float weight;

    int bits() const { return width; }
    Factor factor(const uint8_t* head, Refusal&) const {
        Factor out = {{}, head};
        if (few) memcpy(out.said, head, (size_t)HEAD);
        for (float& mean : out.said) mean *= weight;
        return out;
    }
    GRACE_MEMBER vf value(vi code, const Factor& f) const {
        if (few) return Sixteen(f.said).at(code);
        return of_many(f.head, at_most(code, splat((int32_t)last))) * splat(weight);
    }
    GRACE_MEMBER void values(const uint8_t* codes, const Factor& f, vf (&out)[4]) const { values_of(*this, codes, f, out); }
    uint8_t most() const { return last; }
    GRACE_MEMBER vb suspect(vb codes) const { return codes; }
    GRACE_MEMBER vb suspect4(vb codes) const { return last == 15 ? vb{} : max(codes & 15, codes >> 4); }
    GRACE_MEMBER vf done(vf sum, bool) const { return sum; }
    bool fits(const uint8_t*, int64_t, const Factor&) const { return true; }
    bool fits4(const uint8_t*, int64_t, const Factor&) const { return true; }
};

int width_of(int64_t q) {
    int bits = 1;
    while ((q - 1) >> bits) bits++;
    return bits;
}

}  // namespace
}  // namespace GRACE_TARGET
}  // namespace grace

// q is 2 to 256; edges come from `seen` numbers, all n or a subset.
GRACE_EXPORT(encode_quantiles)(const float* x, const float* memory, float* rest, int64_t rows, int64_t n, uint8_t* wire,
                               int64_t stride, int q, int zero_edge, int64_t seen, uint32_t k0, uint32_t k1, uint32_t step,
                               int threads) {
    using namespace grace::GRACE_TARGET;
    const Quantiles quantiles = {q, width_of(q), zero_edge != 0, seen, {k0, k1, step}, threads};
    bool finite = true;
    for (int64_t row = 0; row < rows; row++) {
        const int64_t at = row * n;
        const Rows r = {x + at, memory ? memory + at : nullptr, rest ? rest + at : nullptr, 1, n, n};
        finite &= quantiles.encode_row(r, wire + row * stride);
    }
    return finite;
}

GRACE_EXPORT(sum_quantiles)(const uint8_t* const* wires, int64_t W, float* out, int64_t n, int q, float weight, int accumulate,
                            int threads) {
    using namespace grace::GRACE_TARGET;
    for (int64_t w = 0; w < W; w++)
        for (int64_t j = 0; j < q; j++) {
            float mean;
            memcpy(&mean, wires[w] + 4 * j, 4);
            if (!(mean <= GREATEST && mean >= -GREATEST)) return BAD_HEAD;
        }
    const auto last = (uint8_t)(q - 1);
    if (q <= 16) return decode_blocks(Means<true>{4 * q, width_of(q), last, weight}, wires, W, out, n, n, accumulate != 0, threads);
    return decode_blocks(Means<false>{4 * q, width_of(q), last, weight}, wires, W, out, n, n, accumulate != 0, threads);
}
