// One number for each block of a row: its largest magnitude, mean magnitude, Euclidean norm or sum.
#include "../signs.h"

namespace grace {
namespace GRACE_TARGET {
namespace {

constexpr int64_t MIDDLE = 65536;  // larger blocks are the work of several threads

struct Largest {
    typedef float Result;
    struct Part {
        vi lane[V] = {};
        int32_t total = 0;
    };
    static void add(Part& part, const vf* p) {
        for (int k = 0; k < V; k++) part.lane[k] = max(part.lane[k], magnitude(as_int(p[k])));
    }
    static void close(Part& part) {
        for (int k = 0; k < V; k++) combine(part, largest(part.lane[k]));
    }
    static void combine(Part& part, int32_t next) { part.total = next > part.total ? next : part.total; }
    static float result(int32_t total, int64_t) {
        float out;
        memcpy(&out, &total, 4);
        return out;
    }
};

struct Ordered {
    struct Part {
        vd lane[2 * V] = {};
        double total = 0;
    };
    static void close(Part& part) { part.total = folded(part.lane); }
    static void combine(Part& part, double next) { part.total += next; }
};

struct Mean : Ordered {
    typedef float Result;
    static void add(Part& part, const vf* p) {
        for (int k = 0; k < V; k++) {
            vd low, high;
            halves(absolute(p[k]), low, high);
            part.lane[2 * k] += low, part.lane[2 * k + 1] += high;
        }
    }
    static float result(double total, int64_t len) { return (float)(total / (double)len); }
};

struct Norm : Ordered {
    typedef float Result;
    static void add(Part& part, const vf* p) {
        for (int k = 0; k < V; k++) {
            vd low, high;
            halves(p[k], low, high);
            part.lane[2 * k] += low * low, part.lane[2 * k + 1] += high * high;
        }
    }
    static float result(double total, int64_t) {
        const double root = __builtin_sqrt(total), most = 0x1.fffffep127;
        return root > most ? (float)most : (float)root;
    }
};

struct Sum : Ordered {
    typedef double Result;
    static void add(Part& part, const vf* p) {
        for (int k = 0; k < V; k++) {
            vd low, high;
            halves(p[k], low, high);
            part.lane[2 * k] += low, part.lane[2 * k + 1] += high;
        }
    }
    static double result(double total, int64_t) { return total; }
};

// A piece.
template <class Kind>
static typename Kind::Part taken(const float* x, int64_t len) {
    typename Kind::Part part = {};
    int64_t i = 0;
    vf p[V];
    for (; i + 16 <= len; i += 16) {
        for (int k = 0; k < V; k++) p[k] = loadf(x + i + k * L);
        Kind::add(part, p);
    }
    if (i < len) {
        alignas(64) float t[16] = {};
        memcpy(t, x + i, (size_t)(len - i) * 4);
        for (int k = 0; k < V; k++) p[k] = loadf(t + k * L);
        Kind::add(part, p);
    }
    Kind::close(part);
    return part;
}

template <class Kind>
static void of_blocks(const float* x, int64_t rows, int64_t n, int64_t block, typename Kind::Result* out, int threads) {
    const int64_t nb = ceil_div(n, block);
    threads = enough_threads(rows * n, threads);
    if (block <= MIDDLE) {
        const int64_t each = TASK / block > 1 ? TASK / block : 1, per_row = ceil_div(nb, each);
        auto work = [&](int64_t task) {
            const int64_t row = task / per_row, from = task % per_row * each;
            for (int64_t j = from; j < least(nb, from + each); j++) {
                const int64_t at = j * block, len = least(block, n - at);
                auto part = taken<Kind>(x + row * n + at, least(len, PIECE));
                for (int64_t k = PIECE; k < len; k += PIECE)
                    Kind::combine(part, taken<Kind>(x + row * n + at + k, least(len - k, PIECE)).total);
                out[row * nb + j] = Kind::result(part.total, len);
            }
        };
        parallel(rows * per_row, threads, work);
        return;
    }
    auto* parts = new typename Kind::Part[(size_t)ceil_div(block, PIECE)];
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t j = 0; j < nb; j++) {
            const int64_t at = j * block, len = least(block, n - at), pieces = ceil_div(len, PIECE);
            auto work = [&](int64_t task) {
                for (int64_t k = 8 * task; k < least(pieces, 8 * task + 8); k++)
                    parts[k] = taken<Kind>(x + row * n + at + k * PIECE, least(len - k * PIECE, PIECE));
            };
            parallel(ceil_div(pieces, 8), threads, work);
            for (int64_t k = 1; k < pieces; k++) Kind::combine(parts[0], parts[k].total);
            out[row * nb + j] = Kind::result(parts[0].total, len);
        }
    }
    delete[] parts;
}

}  // namespace
}  // namespace GRACE_TARGET
}  // namespace grace

// kind: 0 largest magnitude, 1 mean magnitude, 2 norm (all float32), 3 sum (float64)
GRACE_EXPORT(block_statistics)(const float* x, int64_t rows, int64_t n, int64_t block, int kind, void* out, int threads) {
    using namespace grace::GRACE_TARGET;
    block = least(block, n);
    switch (kind) {
        case 0: of_blocks<Largest>(x, rows, n, block, (float*)out, threads); break;
        case 1: of_blocks<Mean>(x, rows, n, block, (float*)out, threads); break;
        case 2: of_blocks<Norm>(x, rows, n, block, (float*)out, threads); break;
        default: of_blocks<Sum>(x, rows, n, block, (double*)out, threads);
    }
    return OK;
}
