// Stochastic rounding to a table of integers that all workers share, sums of its entries, and what sums say.
#include "../blocks.h"

namespace grace {
namespace GRACE_TARGET {
namespace {

constexpr float TINY = 0x1p-126f;
constexpr int MOST_ENTRIES = 16;

// A table of 2 to 16 ascending numbers, and how far each is from the next.
struct Table {
    int size;
    float entry[MOST_ENTRIES] = {}, gap[MOST_ENTRIES] = {};
    float half;  // of the largest
    Table(const float* table, int size_) : size(size_), half(table[size_ - 1] / 2) {
        for (int i = 0; i < size; i++) entry[i] = table[i], gap[i] = i + 1 < size ? table[i + 1] - table[i] : 0;
    }

    // Codes of y in units of a bound, 0 where everything is.
    GRACE_MEMBER vi round(vf y, vf bound, vi nothing, vf u) const {
        const vf one = splat(1.0f);
        vf v = as_float(as_int(y / bound) & ~nothing);
        v = v < -one ? -one : v;
        v = v > one ? one : v;
        v = (v + one) * splat(half);
        const vf near = to_float(nearest_int(v));
        const vf slack = (v < one ? one : v) * splat(1e-6f);
        v = select(absolute(v - near) <= slack, near, v);
        vi code = {};
        vf low = splat(entry[0]), step = splat(gap[0]);
        for (int j = 1; j < size - 1; j++) {
            const vi beyond = v >= splat(entry[j]);
            code -= beyond;
#if GRACE_LANES != 16
            low = select(beyond, splat(entry[j]), low), step = select(beyond, splat(gap[j]), step);
#endif
        }
#if GRACE_LANES == 16
        low = lookup(loadf(entry), code), step = lookup(loadf(gap), code);
#endif
        return code - (vi)(u * step < v - low);
    }
};

// f(where a run of numbers with one bound begins, how many, its bound), in tasks.
template <class F>
void each_block(const float* bounds, int64_t n, int64_t block, int threads, F f) {
    auto work = [&](int64_t task) {
        const int64_t stop = least(n, (task + 1) * TASK);
        for (int64_t at = task * TASK; at < stop;) {
            const int64_t end = least(stop, (at / block + 1) * block);
            f(at, end - at, bounds[at / block]);
            at = end;
        }
    };
    parallel(ceil_div(n, TASK), enough_threads(n, threads), work);
}

}  // namespace
}  // namespace GRACE_TARGET
}  // namespace grace

GRACE_EXPORT(round_to_table)(const float* y, const float* bounds, const float* u, int64_t n, int64_t block, const float* table,
                             int size, uint8_t* codes, int threads) {
    using namespace grace::GRACE_TARGET;
    const Table of(table, size);
    each_block(bounds, n, block, threads, [&](int64_t at, int64_t len, float bound) {
        const vi nothing = splat(bound < TINY ? -1 : 0);
        const vf by = splat(bound < TINY ? 1.0f : bound);
        int64_t i = at;
        for (; i + L <= at + len; i += L) store_u8(codes + i, of.round(loadf(y + i), by, nothing, loadf(u + i)));
        if (const int64_t left = at + len - i) {
            float p[L] = {}, q[L] = {};
            uint8_t last[L];
            memcpy(p, y + i, (size_t)left * 4), memcpy(q, u + i, (size_t)left * 4);
            store_u8(last, of.round(loadf(p), by, nothing, loadf(q)));
            memcpy(codes + i, last, (size_t)left);
        }
    });
    return 0;
}

// codes [W, n], each below the table's size
GRACE_EXPORT(sum_entries)(const uint8_t* codes, int64_t W, int64_t n, const float* table, int size, int32_t* sums, int threads) {
    using namespace grace::GRACE_TARGET;
    int32_t entry[256] = {};
    for (int i = 0; i < size; i++) entry[i] = (int32_t)table[i];
    auto work = [&](int64_t task) {
        const int64_t stop = least(n, (task + 1) * TASK);
        for (int64_t at = task * TASK; at < stop; at += BATCH) {
            const int64_t end = least(stop, at + BATCH);
            for (int64_t i = at; i < end; i++) sums[i] = entry[codes[i]];
            for (int64_t w = 1; w < W; w++)
                for (int64_t i = at; i < end; i++) sums[i] += entry[codes[w * n + i]];
        }
    };
    parallel(ceil_div(n, TASK), enough_threads(n * W, threads), work);
    return 0;
}

// out = (sum times factor - 1) times the block's bound; sums are int32 [n], or where there are none codes say their entries
GRACE_EXPORT(table_means)(const uint8_t* codes, const int32_t* sums, const float* bounds, int64_t n, int64_t block,
                          const float* table, int size, double factor, float* out, int threads) {
    using namespace grace::GRACE_TARGET;
    float share[256] = {};
    for (int i = 0; i < size; i++) share[i] = (float)((double)table[i] * factor - 1);
    each_block(bounds, n, block, threads, [&](int64_t at, int64_t len, float bound) {
        if (codes != nullptr) {
            for (int64_t i = at; i < at + len; i++) out[i] = share[codes[i]] * bound;
        } else {
            for (int64_t i = at; i < at + len; i++) out[i] = (float)((double)sums[i] * factor - 1) * bound;
        }
    });
    return 0;
}
