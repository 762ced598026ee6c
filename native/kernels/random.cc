// Random words, uniform numbers and random subsets, as grace/random.py specifies them to the bit; and what random-k does with
// the numbers at the positions of a subset.
#include "../subset.h"

GRACE_EXPORT(words)(uint32_t k0, uint32_t k1, uint32_t step, int64_t first, int64_t groups, uint32_t* out, int threads) {
    using namespace grace::GRACE_TARGET;
    constexpr int64_t SIZE = TASK / 4;
    auto work = [&](int64_t task) {
        const int64_t start = task * SIZE, count = least(SIZE, groups - start), whole = count / (4 * L) * (4 * L);
        const Key key = {k0, k1, step};
        words(key, (uint64_t)(first + start), whole, out + 2 * start);
        if (whole < count) {
            uint32_t last[8 * L];
            words(key, (uint64_t)(first + start + whole), count - whole, last);
            memcpy(out + 2 * (start + whole), last, (size_t)(count - whole) * 8);
        }
    };
    parallel(ceil_div(groups, SIZE), enough_threads(2 * groups, threads), work);
    return 0;
}

GRACE_EXPORT(uniform)(uint32_t k0, uint32_t k1, uint32_t step, int64_t first, int64_t n, float* out, int threads) {
    using namespace grace::GRACE_TARGET;
    auto work = [&](int64_t task) {
        Lanes random({k0, k1, step});
        auto number = [](const uint16_t* lanes) { return (to_float(load_u16(lanes)) + 0.5f) * 0x1p-16f; };
        for (int64_t at = task * TASK, stop = least(n, at + TASK); at < stop;) {
            const int64_t count = least(Lanes::MOST, stop - at);
            const uint16_t* lanes = random.at((uint64_t)(first + at), count);
            int64_t i = 0;
            for (; i + L <= count; i += L) store(out + at + i, number(lanes + i));
            if (i < count) {
                const vf last = number(lanes + i);
                memcpy(out + at + i, &last, (size_t)(count - i) * 4);
            }
            at += count;
        }
    };
    parallel(ceil_div(n, TASK), enough_threads(n, threads), work);
    return 0;
}

// k distinct positions out of n < 2**32.
GRACE_EXPORT(subset)(uint32_t k0, uint32_t k1, uint32_t step, int64_t n, int64_t k, int64_t* out, int threads) {
    using namespace grace::GRACE_TARGET;
    const Subset subset({k0, k1, step}, n, k);
    visit_subset(subset, k, threads, [](uint32_t) {}, [&](int64_t i, uint32_t position) { out[i] = position; });
    return 0;
}

// wire [rows, k] = the numbers of x [rows, n] at the positions of a subset; with `keep`, what stays there is `left` of them.
GRACE_EXPORT(take_subset)(float* x, int64_t rows, int64_t n, int64_t k, uint32_t k0, uint32_t k1, uint32_t step, float* wire,
                          int keep, float left, int threads) {
    using namespace grace::GRACE_TARGET;
    const Subset subset({k0, k1, step}, n, k);
    if (keep) {
        visit_subset(subset, k, threads, [&](uint32_t at) { __builtin_prefetch(x + at, 1); },
             [&](int64_t i, uint32_t at) {
                 for (int64_t r = 0; r < rows; r++) {
                     const float v = x[r * n + at];
                     wire[r * k + i] = v;
                     x[r * n + at] = v * left;
                 }
             });
    } else {
        visit_subset(subset, k, threads, [&](uint32_t at) { __builtin_prefetch(x + at); },
             [&](int64_t i, uint32_t at) {
                 for (int64_t r = 0; r < rows; r++) wire[r * k + i] = x[r * n + at];
             });
    }
    return 0;
}

// A row of out [n] += weight times each of W wires [k] at the positions of a subset, in the order of the wires. The wires are
// bytes: they need not be aligned.
GRACE_EXPORT(add_subset)(const uint8_t* const* wires, int64_t W, float* out, int64_t n, int64_t k, uint32_t k0, uint32_t k1,
                         uint32_t step, float weight, int threads) {
    using namespace grace::GRACE_TARGET;
    const Subset subset({k0, k1, step}, n, k);
    visit_subset(subset, k, threads, [&](uint32_t at) { __builtin_prefetch(out + at, 1); },
         [&](int64_t i, uint32_t at) {
             float sum = out[at];
             for (int64_t w = 0; w < W; w++) {
                 float v;
                 memcpy(&v, wires[w] + 4 * i, 4);
                 sum += v * weight;
             }
             out[at] = sum;
         });
    return 0;
}
