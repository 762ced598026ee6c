// Products with thin factors: r rows of m or l numbers for a matrix of m x l. All in float32, every sum in one fixed order and no
// product fused with a sum: the same bits on all targets, for any number of threads, and from the reference.
#include "../blocks.h"

namespace grace {
namespace GRACE_TARGET {
namespace {

// ---- what a product of two factors gives, and the rest -------------------------------------------------------------------------
constexpr int64_t TILE = 1024;  // columns: of a few ranks they stay in the first-level cache while the rows of a task pass

enum Aim { SPLIT, MEAN, ADD };  // rest -= p mine and out = p q; out = p q; out += scale (p q)

struct Product {
    float *rest, *out;
    const float *p, *mine, *q;
    int64_t m, l, r;
    float scale;

    // Columns [j, j + K L) of row i: sums in the order of r.
    template <int K, Aim aim>
    GRACE_MEMBER void some_columns(int64_t i, int64_t j) const {
        vf left[K], said[K] = {};
        if (aim == SPLIT)
            for (int c = 0; c < K; c++) left[c] = loadf(rest + i * l + j + c * L);
        for (int64_t k = 0; k < r; k++) {
            const vf factor = splat(p[k * m + i]);
            for (int c = 0; c < K; c++) {
                said[c] += factor * loadf(q + k * l + j + c * L);
                if (aim == SPLIT) left[c] -= factor * loadf(mine + k * l + j + c * L);
            }
        }
        for (int c = 0; c < K; c++) {
            float* to = out + i * l + j + c * L;
            store(to, aim == ADD ? loadf(to) + splat(scale) * said[c] : said[c]);
            if (aim == SPLIT) store(rest + i * l + j + c * L, left[c]);
        }
    }

    template <Aim aim>
    GRACE_MEMBER void one_number(int64_t i, int64_t j) const {
        float said = 0;
        for (int64_t k = 0; k < r; k++) {
            said += p[k * m + i] * q[k * l + j];
            if (aim == SPLIT) rest[i * l + j] -= p[k * m + i] * mine[k * l + j];
        }
        out[i * l + j] = aim == ADD ? out[i * l + j] + scale * said : said;
    }

    template <Aim aim>
    void rows(int64_t first, int64_t stop) const {
        for (int64_t from = 0; from < l; from += TILE) {
            const int64_t to = least(l, from + TILE);
            for (int64_t i = first; i < stop; i++) {
                int64_t j = from;
                for (; j + 4 * L <= to; j += 4 * L) some_columns<4, aim>(i, j);
                for (; j + L <= to; j += L) some_columns<1, aim>(i, j);
                for (; j < to; j++) one_number<aim>(i, j);
            }
        }
    }

    template <Aim aim>
    void all(int threads) const {
        const int64_t rows_each = TASK / l > 1 ? TASK / l : 1;
        auto work = [&](int64_t task) { rows<aim>(task * rows_each, least(m, (task + 1) * rows_each)); };
        parallel(ceil_div(m, rows_each), enough_threads(m * l, threads), work);
    }
};

// ---- sums along the rows -------------------------------------------------------------------------------------------------------
constexpr int64_t SPAN = 1024;            // numbers of a row that are summed before the next: sixteen lanes, added up at the end
constexpr int V = 16 / L;                 // vectors of sixteen lanes
constexpr int SIDE = L == 16 ? 4 : 2;     // rows of either matrix at a time, as far as the registers go
constexpr int64_t LEFT_TASK = 64 << 10;   // numbers of a task, about

GRACE_INLINE float halved(float (&t)[16]) {
    for (int h = 8; h; h /= 2)
        for (int i = 0; i < h; i++) t[i] += t[i + h];
    return t[0];
}

// out[c m + a] (+)= the sum of x[a l + j] q[c l + j] over j in [0, len), for a < A and c < C; the first sum is stored.
template <int A, int C>
GRACE_INLINE void some_dots(const float* x, const float* q, int64_t l, int64_t len, float* out, int64_t m, bool first) {
    vf sum[A][C][V] = {};
    auto step = [&](const float* a, int64_t a_stride, const float* b, int64_t b_stride) __attribute__((always_inline)) {
        vf row[A][V];
        for (int i = 0; i < A; i++)
            for (int v = 0; v < V; v++) row[i][v] = loadf(a + i * a_stride + v * L);
        for (int c = 0; c < C; c++)
            for (int v = 0; v < V; v++) {
                const vf other = loadf(b + c * b_stride + v * L);
                for (int i = 0; i < A; i++) sum[i][c][v] += row[i][v] * other;
            }
    };
    int64_t j = 0;
    for (; j + 16 <= len; j += 16) step(x + j, l, q + j, l);
    if (j < len) {
        float a[A * 16] = {}, b[C * 16] = {};
        const size_t bytes = (size_t)(len - j) * sizeof(float);
        for (int i = 0; i < A; i++) memcpy(a + 16 * i, x + i * l + j, bytes);
        for (int c = 0; c < C; c++) memcpy(b + 16 * c, q + c * l + j, bytes);
        step(a, 16, b, 16);
    }
    for (int i = 0; i < A; i++)
        for (int c = 0; c < C; c++) {
            float lanes[16];
            memcpy(lanes, sum[i][c], sizeof lanes);
            const float total = halved(lanes);
            out[c * m + i] = first ? total : out[c * m + i] + total;
        }
}

template <int A>
GRACE_INLINE void dots_of_rows(const float* x, const float* q, int64_t l, int64_t r, int64_t len, float* out, int64_t m, bool first) {
    int64_t k = 0;
    for (; k + SIDE <= r; k += SIDE) some_dots<A, SIDE>(x, q + k * l, l, len, out + k * m, m, first);
    for (; k + 2 <= r; k += 2) some_dots<A, 2>(x, q + k * l, l, len, out + k * m, m, first);
    for (; k < r; k++) some_dots<A, 1>(x, q + k * l, l, len, out + k * m, m, first);
}

// ---- sums along the columns ----------------------------------------------------------------------------------------------------
constexpr int64_t ROWS = 256;             // rows that are summed in their order before the next ones
constexpr int64_t COLUMNS = 512;          // of a task
constexpr int DEEP = 8;                   // rows at a time
constexpr int WIDE = L == 16 ? 2 : 1;     // vectors at a time, as far as the registers go

// sum[k l + j] (+)= p[k m + i] x[i l + j] for i = 0, ..., D - 1 and W L numbers j; at first the sum starts at zero.
template <int D, int W>
GRACE_INLINE void some_sums(const float* x, const float* p, int64_t m, int64_t l, int64_t r, float* sum, bool first) {
    vf row[D][W];
    for (int i = 0; i < D; i++)
        for (int w = 0; w < W; w++) row[i][w] = loadf(x + i * l + w * L);
    for (int64_t k = 0; k < r; k++) {
        vf total[W] = {};
        if (!first)
            for (int w = 0; w < W; w++) total[w] = loadf(sum + k * l + w * L);
        for (int i = 0; i < D; i++) {
            const vf factor = splat(p[k * m + i]);
            for (int w = 0; w < W; w++) total[w] += factor * row[i][w];
        }
        for (int w = 0; w < W; w++) store(sum + k * l + w * L, total[w]);
    }
}

// Columns [from, to) of `rows` rows, which begin at x: sum [r, l].
static void sums_of_columns(const float* x, const float* p, int64_t rows, int64_t m, int64_t l, int64_t r, int64_t from, int64_t to,
                            float* sum) {
    for (int64_t i = 0; i < rows;) {
        const int64_t deep = i + DEEP <= rows ? DEEP : 1;
        const float *at = x + i * l, *factor = p + i;
        int64_t j = from;
        if (deep == DEEP) {
            for (; j + WIDE * L <= to; j += WIDE * L) some_sums<DEEP, WIDE>(at + j, factor, m, l, r, sum + j, i == 0);
            for (; j + L <= to; j += L) some_sums<DEEP, 1>(at + j, factor, m, l, r, sum + j, i == 0);
        } else {
            for (; j + L <= to; j += L) some_sums<1, 1>(at + j, factor, m, l, r, sum + j, i == 0);
        }
        for (; j < to; j++)
            for (int64_t k = 0; k < r; k++) {
                float total = i ? sum[k * l + j] : 0;
                for (int64_t d = 0; d < deep; d++) total += factor[k * m + d] * at[d * l + j];
                sum[k * l + j] = total;
            }
        i += deep;
    }
}

}  // namespace
}  // namespace GRACE_TARGET
}  // namespace grace

// rest [m, l] -= p^T mine, unless rest is null; out [m, l] = p^T q. p [r, m], mine and q [r, l].
GRACE_EXPORT(split_low_rank)(float* rest, float* out, const float* p, const float* mine, const float* q, int64_t m, int64_t l,
                             int64_t r, int threads) {
    using namespace grace::GRACE_TARGET;
    const Product product{rest, out, p, mine, q, m, l, r, 1};
    if (m == 0 || l == 0) return 0;
    if (rest) {
        product.all<SPLIT>(threads);
    } else {
        product.all<MEAN>(threads);
    }
    return 0;
}

// out [m, l] += scale (p^T q). p [r, m], q [r, l].
GRACE_EXPORT(add_low_rank)(float* out, const float* p, const float* q, int64_t m, int64_t l, int64_t r, float scale, int threads) {
    using namespace grace::GRACE_TARGET;
    const Product product{nullptr, out, p, nullptr, q, m, l, r, scale};
    if (m && l) product.all<ADD>(threads);
    return 0;
}

// out [r, m] = q x^T. x [m, l], q [r, l].
GRACE_EXPORT(project_rows)(const float* x, const float* q, float* out, int64_t m, int64_t l, int64_t r, int threads) {
    using namespace grace::GRACE_TARGET;
    if (m == 0) return 0;
    if (l == 0) {
        for (int64_t i = 0; i < r * m; i++) out[i] = 0;
        return 0;
    }
    const int64_t each = ceil_div(ceil_div(LEFT_TASK, l), SIDE) * SIDE;
    auto work = [&](int64_t task) {
        const int64_t start = task * each, stop = least(m, start + each);
        for (int64_t from = 0; from < l; from += SPAN) {
            const int64_t len = least(SPAN, l - from);
            int64_t i = start;
            for (; i + SIDE <= stop; i += SIDE) dots_of_rows<SIDE>(x + i * l + from, q + from, l, r, len, out + i, m, from == 0);
            for (; i < stop; i++) dots_of_rows<1>(x + i * l + from, q + from, l, r, len, out + i, m, from == 0);
        }
    };
    parallel(ceil_div(m, each), enough_threads(m * l, threads), work);
    return 0;
}

// out [r, l] = p x. x [m, l], p [r, m].
GRACE_EXPORT(project_columns)(const float* x, const float* p, float* out, int64_t m, int64_t l, int64_t r, int threads) {
    using namespace grace::GRACE_TARGET;
    const int64_t pieces = ceil_div(m, ROWS), across = ceil_div(l, COLUMNS), size = r * l;
    if (m == 0) {
        for (int64_t i = 0; i < size; i++) out[i] = 0;
        return 0;
    }
    float* sums = pieces > 1 ? new float[(size_t)(pieces * size)] : out;
    auto work = [&](int64_t task) {
        const int64_t piece = task / across, from = task % across * COLUMNS, i = piece * ROWS;
        sums_of_columns(x + i * l, p + i, least(ROWS, m - i), m, l, r, from, least(l, from + COLUMNS), sums + piece * size);
    };
    parallel(pieces * across, enough_threads(m * l, threads), work);
    if (pieces > 1) {
        auto add = [&](int64_t task) {
            const int64_t from = task * TASK, stop = least(size, from + TASK);
            for (int64_t i = from; i < stop; i++) out[i] = sums[i];
            for (int64_t piece = 1; piece < pieces; piece++)
                for (int64_t i = from; i < stop; i++) out[i] += sums[piece * size + i];
        };
        parallel(ceil_div(size, TASK), enough_threads(pieces * size, threads), add);
        delete[] sums;
    }
    return 0;
}
