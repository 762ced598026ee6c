// What all block codecs share: rows of n numbers in blocks with a head each, and codes of 1 to 8 bits behind all heads.
//
//   wire of a row:  the heads of its blocks, then the codes of its numbers, packed
//
// Encoding p = x + memory reads both once: a block is summed into a buffer that stays in the first-level cache, its
// statistics are taken, its head is written, its codes are made, and what they do not say is left in `rest`. Blocks of more
// than PIECE numbers are read twice: their statistics are those of their pieces, combined in order.
//
// Sums are of float64: sixteen lanes, in the order of the numbers; then the upper half is added to the lower, four times.
// All targets do that alike, and so does the reference.
#pragma once

#include "bits.h"
#include "pool.h"
#include "random.h"

namespace grace {
namespace GRACE_TARGET {

constexpr int64_t PIECE = 4096;       // numbers of a buffer: 16 KB
constexpr int64_t TASK = 32768;       // numbers of a task, about
constexpr int64_t ALONE = 512 << 10;  // below, waking others costs more than they save

typedef float half_vf __attribute__((vector_size(2 * GRACE_LANES)));  // L/2 numbers
typedef int32_t half_vi __attribute__((vector_size(2 * GRACE_LANES)));
typedef double vd __attribute__((vector_size(4 * GRACE_LANES)));  // L/2 numbers

GRACE_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
GRACE_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
GRACE_INLINE int64_t lcm(int64_t a, int64_t b) {
    int64_t x = a, y = b;
    while (y) {
        const int64_t r = x % y;
        x = y, y = r;
    }
    return a / x * b;
}
GRACE_INLINE int enough_threads(int64_t numbers, int threads) { return numbers < ALONE ? 1 : threads; }

struct Lanes16 {
    vd lane[32 / L];
    Lanes16() {
        for (vd& v : lane) v = vd{};
    }
    template <class F>
    __attribute__((always_inline)) void add(const float* p, F f) {  // f of sixteen numbers
        for (int k = 0; k < 32 / L; k++) lane[k] += f(__builtin_convertvector(load<half_vf>(p + k * (L / 2)), vd));
    }
    double sum() const {
        double t[16];
        memcpy(t, lane, sizeof t);
        for (int h = 8; h; h /= 2)
            for (int i = 0; i < h; i++) t[i] += t[i + h];
        return t[0];
    }
};

struct Rows {
    const float* x;
    const float* memory;  // null: none
    float* rest;          // null: not wanted; may be x
    int64_t rows, n, block;

    int64_t blocks() const { return ceil_div(n, block); }
};

// p[first, first + len) of the flat rows into the buffer, zeros up to a multiple of sixteen. Returns the largest magnitude,
// as bits: 0x7F800000 or more if there is an inf or NaN.
GRACE_INLINE int32_t gather(const Rows& r, int64_t first, int64_t len, float* buffer) {
    const float *x = r.x + first, *e = r.memory + (r.memory ? first : 0);
    vi most = {}, more = {};
    int64_t i = 0;
    if (r.memory) {
        for (; i + 2 * L <= len; i += 2 * L) {
            const vf a = loadf(x + i) + loadf(e + i), b = loadf(x + i + L) + loadf(e + i + L);
            store(buffer + i, a), store(buffer + i + L, b);
            most = max(most, magnitude(as_int(a))), more = max(more, magnitude(as_int(b)));
        }
        for (; i < len; i++) buffer[i] = x[i] + e[i];
    } else {
        for (; i + 2 * L <= len; i += 2 * L) {
            const vf a = loadf(x + i), b = loadf(x + i + L);
            store(buffer + i, a), store(buffer + i + L, b);
            most = max(most, magnitude(as_int(a))), more = max(more, magnitude(as_int(b)));
        }
        for (; i < len; i++) buffer[i] = x[i];
    }
    for (; i % 16; i++) buffer[i] = 0;
    for (int64_t j = len / (2 * L) * (2 * L); j < i; j += L) most = max(most, magnitude(load<vi>(buffer + j)));
    return largest(max(most, more));
}

// Codes in the order of the numbers, packed whenever some fill whole bytes.
class Packer {
   public:
    Packer(int bits_, uint8_t* out_) : bits(bits_), out(out_) {}
    uint8_t* room() { return codes + held; }  // for PIECE codes and L more
    void took(int64_t count) {
        held += count;
        const int64_t whole = held / whole_codes(bits) * whole_codes(bits);
        emit(whole);
    }
    void finish() { emit(held); }

   private:
    void emit(int64_t count) {
        uint8_t kept[8];
        memcpy(kept, codes + count, 8);  // packing may write behind its codes
        pack_codes(bits, codes, count, out);
        out += packed_bytes(count, bits);
        held -= count;
        memcpy(codes, kept, 8);
    }
    int bits;
    uint8_t* out;
    int64_t held = 0;
    alignas(64) uint8_t codes[PIECE + 8 + 64];
};

GRACE_INLINE void write_rest(const float* from, float* to, int64_t len) { memcpy(to, from, (size_t)len * sizeof(float)); }

// A Codec has:
//   HEAD: bytes of a head; bits(): of a code
//   Stats: of a piece; Stats stats(const float* p, int64_t len, int32_t largest); void combine(Stats&, const Stats&)
//   Scale scale(const Stats&, int64_t len, uint8_t* head): writes the head
//   void encode(float* p, int64_t len, const Scale&, int64_t row, int64_t at, State&, uint8_t* codes, bool keep_rest): the
//     codes of the numbers at [at, at + len) of the row; leaves in p what they do not say. p has zeros up to a multiple of
//     sixteen, codes room for as many.
//   State state() const: what each task has of its own
// Returns whether all numbers were finite.
template <class Codec>
static bool encode_blocks(const Codec& codec, const Rows& r, uint8_t* wire, int64_t stride, int threads) {
    const int bits = codec.bits();
    const int64_t nb = r.blocks(), heads = nb * Codec::HEAD;
    int32_t bad = 0;
    threads = enough_threads(r.rows * r.n, threads);
    if (r.block <= PIECE) {
        const int64_t unit = lcm(r.block, whole_codes(bits)), size = (TASK / unit > 1 ? TASK / unit : 1) * unit;
        const int64_t per_row = ceil_div(r.n, size);
        auto work = [&](int64_t task) {
            const int64_t row = task / per_row, start = task % per_row * size, stop = least(r.n, start + size);
            uint8_t* head = wire + row * stride + start / r.block * Codec::HEAD;
            Packer packer(bits, wire + row * stride + heads + packed_bytes(start, bits));
            auto state = codec.state();
            alignas(64) float p[PIECE + 16];
            int32_t seen = 0;
            for (int64_t at = start; at < stop; at += r.block, head += Codec::HEAD) {
                const int64_t len = least(r.block, stop - at), first = row * r.n + at;
                const int32_t most = gather(r, first, len, p);
                seen = most > seen ? most : seen;
                const auto scale = codec.scale(codec.stats(p, len, most), len, head);
                codec.encode(p, len, scale, row, at, state, packer.room(), r.rest != nullptr);
                packer.took(len);
                if (r.rest) write_rest(p, r.rest + first, len);
            }
            packer.finish();
            if (seen >= 0x7F800000) __atomic_store_n(&bad, 1, __ATOMIC_RELAXED);
        };
        parallel(r.rows * per_row, threads, work);
        return !bad;
    }
    // Blocks of several pieces. Where codes of two blocks share a byte, one task does the whole row.
    const int64_t pieces = ceil_div(r.block, PIECE);
    for (int64_t row = 0; row < r.rows; row++) {
        auto* stats = new typename Codec::Stats[(size_t)(nb * pieces)]();
        auto* scales = new typename Codec::Scale[(size_t)nb]();
        auto measure = [&](int64_t task) {
            const int64_t at = task / pieces * r.block + task % pieces * PIECE;
            const int64_t stop = least(r.n, (task / pieces + 1) * r.block);
            if (at >= stop) return;
            alignas(64) float p[PIECE + 16];
            const int64_t len = least(PIECE, stop - at);
            const int32_t most = gather(r, row * r.n + at, len, p);
            if (most >= 0x7F800000) __atomic_store_n(&bad, 1, __ATOMIC_RELAXED);
            stats[task] = codec.stats(p, len, most);
        };
        parallel(nb * pieces, threads, measure);
        for (int64_t j = 0; j < nb; j++) {
            const int64_t len = least(r.block, r.n - j * r.block);
            for (int64_t k = 1; k < ceil_div(len, PIECE); k++) codec.combine(stats[j * pieces], stats[j * pieces + k]);
            scales[j] = codec.scale(stats[j * pieces], len, wire + row * stride + j * Codec::HEAD);
        }
        const bool apart = nb == 1 || r.block % whole_codes(bits) == 0;
        constexpr int64_t STEP = PIECE / 40 * 40;  // whole bytes, of bits and of trits
        const int64_t steps = apart ? ceil_div(r.block, 8 * STEP) : 1;
        auto work = [&](int64_t task) {
            auto state = codec.state();
            const int64_t from = apart ? task / steps * r.block + task % steps * 8 * STEP : 0;
            const int64_t stop = apart ? least(least(r.n, (task / steps + 1) * r.block), from + 8 * STEP) : r.n;
            if (from >= stop) return;
            Packer packer(bits, wire + row * stride + heads + packed_bytes(from, bits));
            alignas(64) float p[PIECE + 16];
            for (int64_t at = from; at < stop;) {
                const int64_t len = least(least(STEP, stop - at), (at / r.block + 1) * r.block - at);
                gather(r, row * r.n + at, len, p);
                codec.encode(p, len, scales[at / r.block], row, at, state, packer.room(), r.rest != nullptr);
                packer.took(len);
                if (r.rest) write_rest(p, r.rest + row * r.n + at, len);
                at += len;
            }
            packer.finish();
        };
        parallel(apart ? nb * steps : 1, threads, work);
        delete[] stats;
        delete[] scales;
    }
    return !bad;
}

enum Refusal : int64_t { OK = 0, BAD_HEAD = -1, BAD_CODE = -2 };

// out [n] = or += what W wires of a row say, added in their order. A Codec has:
//   HEAD, bits(); Factor factor(const uint8_t* head, bool& bad)
//   bool add(const uint8_t* codes, int64_t len, const Factor&, float* sum): sum[i] += what code i says; false: a code that
//     no sender writes. codes and sum have room up to the next multiple of L behind len, which may be overwritten.
template <class Codec>
static int64_t decode_blocks(
    const Codec& codec, const uint8_t* const* wires, int64_t W, float* out, int64_t n, int64_t block, bool accumulate,
    int threads) {
    const int bits = codec.bits();
    const int64_t heads = ceil_div(n, block) * Codec::HEAD;
    constexpr int64_t STRIP = 4080;  // whole bytes of bits and of trits, whole vectors
    int64_t refused = OK;
    auto work = [&](int64_t task) {
        alignas(64) uint8_t codes[STRIP + 64];
        alignas(64) float sum[STRIP + 16];
        for (int64_t at = task * 8 * STRIP, end = least(n, at + 8 * STRIP); at < end; at += STRIP) {
            const int64_t len = least(STRIP, end - at);
            if (accumulate) {
                memcpy(sum, out + at, (size_t)len * 4);
            } else {
                memset(sum, 0, (size_t)len * 4);
            }
            for (int64_t w = 0; w < W; w++) {
                if (unpack_codes(bits, wires[w] + heads + packed_bytes(at, bits), len, codes) > 242)
                    __atomic_store_n(&refused, BAD_CODE, __ATOMIC_RELAXED);
                for (int64_t i = 0; i < len;) {
                    const int64_t j = (at + i) / block, size = least(len, (j + 1) * block - at) - i;
                    bool bad = false;
                    const auto factor = codec.factor(wires[w] + j * Codec::HEAD, bad);
                    if (bad) __atomic_store_n(&refused, BAD_HEAD, __ATOMIC_RELAXED);
                    float kept[L];
                    memcpy(kept, sum + i + size, sizeof kept);
                    if (!codec.add(codes + i, size, factor, sum + i))
                        __atomic_store_n(&refused, BAD_CODE, __ATOMIC_RELAXED);
                    memcpy(sum + i + size, kept, sizeof kept);
                    i += size;
                }
            }
            memcpy(out + at, sum, (size_t)len * 4);
        }
    };
    parallel(ceil_div(n, 8 * STRIP), enough_threads(n, threads), work);
    return refused;
}

}  // namespace GRACE_TARGET
}  // namespace grace
