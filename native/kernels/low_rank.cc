// What a product of two thin matrices says, and what it does not, in one pass over the matrix.
#include "../blocks.h"

namespace grace {
namespace GRACE_TARGET {
namespace {

constexpr int64_t TILE = 1024;  // columns: of a few ranks they stay in the first-level cache while the rows of a task pass

// Columns [j, j + K L) of one row: rest -= p mine; mean = p q.
template <int K, bool has_rest>
GRACE_INLINE void some_columns(const float* p, int64_t r, const float* mine, const float* q, int64_t l, int64_t j, float* rest,
                               float* mean) {
    vf left[K], said[K] = {};
    if (has_rest)
        for (int c = 0; c < K; c++) left[c] = loadf(rest + j + c * L);
    for (int64_t k = 0; k < r; k++) {
        const vf factor = splat(p[k]);
        for (int c = 0; c < K; c++) {
            said[c] += factor * loadf(q + k * l + j + c * L);
            if (has_rest) left[c] -= factor * loadf(mine + k * l + j + c * L);
        }
    }
    for (int c = 0; c < K; c++) {
        store(mean + j + c * L, said[c]);
        if (has_rest) store(rest + j + c * L, left[c]);
    }
}

template <bool has_rest>
void some_rows(float* rest, float* mean, const float* p, const float* mine, const float* q, int64_t rows, int64_t l, int64_t r) {
    for (int64_t from = 0; from < l; from += TILE) {
        const int64_t stop = least(l, from + TILE);
        for (int64_t i = 0; i < rows; i++) {
            float *left = has_rest ? rest + i * l : nullptr, *said = mean + i * l;
            int64_t j = from;
            for (; j + 4 * L <= stop; j += 4 * L) some_columns<4, has_rest>(p + i * r, r, mine, q, l, j, left, said);
            for (; j + L <= stop; j += L) some_columns<1, has_rest>(p + i * r, r, mine, q, l, j, left, said);
            for (; j < stop; j++) {
                float sum = 0;
                for (int64_t k = 0; k < r; k++) {
                    sum += p[i * r + k] * q[k * l + j];
                    if (has_rest) left[j] -= p[i * r + k] * mine[k * l + j];
                }
                said[j] = sum;
            }
        }
    }
}

}  // namespace
}  // namespace GRACE_TARGET
}  // namespace grace

// rest [m, l] -= p [m, r] mine [r, l], unless rest is null; mean [m, l] = p q [r, l].
GRACE_EXPORT(low_rank)(float* rest, float* mean, const float* p, const float* mine, const float* q, int64_t m, int64_t l,
                       int64_t r, int threads) {
    using namespace grace::GRACE_TARGET;
    const int64_t rows = TASK / l > 1 ? TASK / l : 1;
    auto work = [&](int64_t task) {
        const int64_t at = task * rows, count = least(rows, m - at);
        if (rest) {
            some_rows<true>(rest + at * l, mean + at * l, p + at * r, mine, q, count, l, r);
        } else {
            some_rows<false>(nullptr, mean + at * l, p + at * r, mine, q, count, l, r);
        }
    };
    parallel(l ? ceil_div(m, rows) : 0, enough_threads(m * l, threads), work);
    return 0;
}
