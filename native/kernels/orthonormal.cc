// What all ranks compute from shared factors: an orthonormal basis, and the inverse of a regularized Gram matrix. In float64,
// every sum in one fixed order: the same bits on all targets, for any number of threads, and from the reference.
//
// A sum of n numbers: zeros are appended up to a power of two, then the upper half is added to the lower until one is left.
#include "../blocks.h"

#include <math.h>

namespace grace {
namespace GRACE_TARGET {
namespace {

// Half of the power of two from which a sum of n numbers starts; at least 1.
GRACE_INLINE int64_t half_of(int64_t n) {
    int64_t h = 1;
    while (2 * h < n) h *= 2;
    return h;
}

// The sum of a[i] b[i] for i < n. `room` is for half_of(n) numbers.
static double dot(const double* a, const double* b, int64_t n, double* room) {
    int64_t h = half_of(n);
    const int64_t both = n > h ? n - h : 0;
    for (int64_t i = 0; i < both; i++) room[i] = a[i] * b[i] + a[i + h] * b[i + h];
    for (int64_t i = both; i < h; i++) room[i] = (i < n ? a[i] * b[i] : 0.0) + 0.0;
    while (h > 1) {
        h /= 2;
        for (int64_t i = 0; i < h; i++) room[i] += room[i + h];
    }
    return room[0];
}

// x -= factor v
static void subtract(double* x, double factor, const double* v, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] -= factor * v[i];
}

// Rows [first, r) of a [r, m] are reflected: x -= tau (v . x) v.
static void reflect(double* a, int64_t first, int64_t r, int64_t m, const double* v, double tau, double* room, int threads) {
    const int64_t h = half_of(m);
    auto work = [&](int64_t task) {
        double* x = a + (first + task) * m;
        subtract(x, tau * dot(v, x, m, room + task * h), v, m);
    };
    parallel(r - first, enough_threads((r - first) * m, threads), work);
}

}  // namespace
}  // namespace GRACE_TARGET
}  // namespace grace

// p [r, m], r <= m, finite -> out [r, m]: orthonormal rows, by Householder reflections; where p has no more directions, others.
GRACE_EXPORT(orthonormalize)(const float* p, float* out, int64_t r, int64_t m, int threads) {
    using namespace grace::GRACE_TARGET;
    double* a = new double[(size_t)(r * m)];
    double* taus = new double[(size_t)r];
    double* room = new double[(size_t)(r * half_of(m))];
    for (int64_t k = 0; k < r; k++) {
        float largest = 0x1p-126f;
        for (int64_t i = 0; i < m; i++) {
            const float size = __builtin_fabsf(p[k * m + i]);
            largest = size > largest ? size : largest;
        }
        for (int64_t i = 0; i < m; i++) a[k * m + i] = (double)p[k * m + i] / (double)largest;
    }
    for (int64_t j = 0; j < r; j++) {
        double* v = a + j * m;  // becomes the vector of reflection j: zeros, one, the tail
        const double head = v[j];
        for (int64_t i = 0; i <= j; i++) v[i] = 0;
        const double tail = dot(v, v, m, room), norm = sqrt(head * head + tail), end = head < 0 ? norm : -norm;
        const bool any = tail > 0;
        taus[j] = any ? (end - head) / end : 0;
        const double scale = any ? head - end : 1;
        for (int64_t i = j + 1; i < m; i++) v[i] /= scale;
        v[j] = 1;
        reflect(a, j + 1, r, m, v, taus[j], room, threads);
    }
    for (int64_t j = r - 1; j >= 0; j--) {
        double* v = a + j * m;
        reflect(a, j + 1, r, m, v, taus[j], room, threads);
        for (int64_t i = 0; i < m; i++) v[i] = (i == j ? 1.0 : 0.0) - taus[j] * v[i];
    }
    for (int64_t i = 0; i < r * m; i++) out[i] = (float)a[i];
    delete[] room;
    delete[] taus;
    delete[] a;
    return 0;
}

// p [r, m] -> out [r, m], float64: (p p^T + lam t I)^-1 p with t = trace(p p^T) / r; zeros for zeros.
GRACE_EXPORT(solve_ridge)(const float* p, double* out, int64_t r, int64_t m, double lam, int threads) {
    using namespace grace::GRACE_TARGET;
    const int64_t h = half_of(m);
    double* gram = new double[(size_t)(r * r)];
    double* room = new double[(size_t)(r * h + half_of(r))];
    for (int64_t i = 0; i < r * m; i++) out[i] = p[i];
    auto row = [&](int64_t k) {
        for (int64_t c = 0; c <= k; c++) gram[k * r + c] = dot(out + k * m, out + c * m, m, room + k * h);
    };
    parallel(r, enough_threads(r * r * m, threads), row);
    double* diagonal = new double[(size_t)(2 * r)];
    double* ones = diagonal + r;
    for (int64_t k = 0; k < r; k++) diagonal[k] = gram[k * r + k], ones[k] = 1;
    const double size = dot(diagonal, ones, r, room + r * h) / (double)r;
    const double more = size > 0 ? lam * size : 1;
    for (int64_t k = 0; k < r; k++) gram[k * r + k] += more;
    for (int64_t k = 0; k < r; k++) {  // Cholesky: the lower triangle, in place
        const double root = sqrt(gram[k * r + k]);
        for (int64_t i = k; i < r; i++) gram[i * r + k] /= root;
        for (int64_t i = k + 1; i < r; i++)
            for (int64_t c = k + 1; c <= i; c++) gram[i * r + c] -= gram[i * r + k] * gram[c * r + k];
    }
    auto columns = [&](int64_t task) {
        const int64_t from = task * PIECE, count = least(PIECE, m - from);
        double* x = out + from;
        for (int64_t k = 0; k < r; k++) {
            for (int64_t i = 0; i < count; i++) x[k * m + i] /= gram[k * r + k];
            for (int64_t c = k + 1; c < r; c++) subtract(x + c * m, gram[c * r + k], x + k * m, count);
        }
        for (int64_t k = r - 1; k >= 0; k--) {
            for (int64_t i = 0; i < count; i++) x[k * m + i] /= gram[k * r + k];
            for (int64_t c = 0; c < k; c++) subtract(x + c * m, gram[k * r + c], x + k * m, count);
        }
    };
    parallel(ceil_div(m, PIECE), enough_threads(r * r * m, threads), columns);
    delete[] diagonal;
    delete[] room;
    delete[] gram;
    return 0;
}
