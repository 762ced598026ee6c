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
constexpr int64_t BATCH = 512;        // numbers of the blocks whose statistics are taken before they are encoded
constexpr int64_t AHEAD = 2048;       // how many numbers ahead encoding fetches from memory
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

// What encoding reads next, so that it arrives while codes are made.
GRACE_INLINE void fetch(const Rows& r, int64_t first, int64_t len) {
    for (int64_t i = 0; i < len; i += 16) prefetch((const void*)((uintptr_t)r.x + (uintptr_t)(first + i) * 4));
    if (r.memory)
        for (int64_t i = 0; i < len; i += 16) prefetch((const void*)((uintptr_t)r.memory + (uintptr_t)(first + i) * 4));
}

// Asks for the address of what is streamed to p [0] and beyond, of which a page comes next: a store that waits for an address
// holds up all stores behind it.
constexpr int64_t PAGE = 1024;  // numbers
GRACE_INLINE void fetch_page(const float* p, int64_t at) {
    if (at % PAGE == 0) prefetch((const void*)((uintptr_t)p + 2 * PAGE * sizeof(float)));
}

// How a rest is kept. STREAM is for what will have left the caches anyway before it is read: its lines need not be read first.
enum Keep { NOTHING, STORE, STREAM };
template <Keep keep>
GRACE_INLINE void keep_rest(float* p, vf v) {
    if (keep == STORE) store(p, v);
    if (keep == STREAM) stream(p, v);
}

template <class Codec, class... Args>
GRACE_INLINE void encode_part(const Codec& codec, bool large, float* rest, const float* p, int64_t len, Args&&... args) {
    if (!rest) {
        codec.template encode<NOTHING>(p, len, args..., rest);
    } else if (large && (uintptr_t)rest % (4 * L) == 0) {
        codec.template encode<STREAM>(p, len, args..., rest);
    } else {
        codec.template encode<STORE>(p, len, args..., rest);
    }
}

// A Codec has:
//   HEAD: bytes of a head; bits(): of a code
//   Stats: of a piece; Stats stats(const float* p, int64_t len, int32_t largest); void combine(Stats&, const Stats&)
//   Scale scale(const Stats&, int64_t len, uint8_t* head): writes the head
//   template <Keep keep> void encode(const float* p, int64_t len, const Scale&, int64_t row, int64_t at, State&, uint8_t* codes,
//     float* rest): the codes of the numbers at [at, at + len) of the row and what they do not say, in rest[0, len), by
//     keep_rest. p has zeros up to a multiple of sixteen, codes room for as many.
//   State state() const: what each task has of its own
// Returns whether all numbers were finite.
template <class Codec>
static bool encode_blocks(const Codec& codec, const Rows& r, uint8_t* wire, int64_t stride, int threads) {
    const int bits = codec.bits();
    const int64_t nb = r.blocks(), heads = nb * Codec::HEAD;
    const bool large = r.rows * r.n >= ALONE;
    int32_t bad = 0;
    threads = enough_threads(r.rows * r.n, threads);
    if (r.block <= PIECE) {
        const int64_t unit = lcm(r.block, whole_codes(bits)), size = (TASK / unit > 1 ? TASK / unit : 1) * unit;
        const int64_t per_row = ceil_div(r.n, size);
        // Several blocks at a time, so that one need not wait for the statistics of another.
        const int64_t slot = ceil_div(r.block, 16) * 16, batch = slot < BATCH ? BATCH / slot : 1;
        auto work = [&](int64_t task) {
            const int64_t row = task / per_row, start = task % per_row * size, stop = least(r.n, start + size);
            uint8_t* head = wire + row * stride + start / r.block * Codec::HEAD;
            Packer packer(bits, wire + row * stride + heads + packed_bytes(start, bits));
            auto state = codec.state();
            alignas(64) float p[PIECE + 16];
            typename Codec::Scale scales[BATCH / 16];
            int32_t seen = 0;
            for (int64_t at = start; at < stop; at += batch * r.block) {
                const int64_t end = least(stop, at + batch * r.block), base = row * r.n;
                int64_t k = 0;
                for (int64_t i = at; i < end; i += r.block, k++, head += Codec::HEAD) {
                    const int64_t len = least(r.block, end - i);
                    const int32_t most = gather(r, base + i, len, p + k * slot);
                    seen = most > seen ? most : seen;
                    scales[k] = codec.scale(codec.stats(p + k * slot, len, most), len, head);
                }
                uint8_t* codes = packer.room();
                k = 0;
                for (int64_t i = at; i < end; i += r.block, k++) {
                    const int64_t len = least(r.block, end - i);
                    fetch(r, base + i + AHEAD, len);
                    float* rest = r.rest ? r.rest + base + i : nullptr;
                    if (large && rest) fetch_page(rest, i);
                    encode_part(codec, large, rest, p + k * slot, len, scales[k], row, i, state, codes + (i - at));
                }
                packer.took(end - at);
            }
            packer.finish();
            fence();
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
        constexpr int64_t SPAN = 60 * BATCH;  // whole bytes, of bits and of trits
        const int64_t steps = apart ? ceil_div(r.block, SPAN) : 1;
        auto work = [&](int64_t task) {
            auto state = codec.state();
            const int64_t from = apart ? task / steps * r.block + task % steps * SPAN : 0;
            const int64_t stop = apart ? least(least(r.n, (task / steps + 1) * r.block), from + SPAN) : r.n;
            if (from >= stop) return;
            Packer packer(bits, wire + row * stride + heads + packed_bytes(from, bits));
            alignas(64) float p[PIECE + 16];
            for (int64_t at = from; at < stop;) {
                const int64_t len = least(least(BATCH, stop - at), (at / r.block + 1) * r.block - at), first = row * r.n + at;
                gather(r, first, len, p);
                fetch(r, first + AHEAD, len);
                float* rest = r.rest ? r.rest + first : nullptr;
                if (large && rest) fetch_page(rest, at);
                encode_part(codec, large, rest, p, len, scales[at / r.block], row, at, state, packer.room());
                packer.took(len);
                at += len;
            }
            packer.finish();
            fence();
        };
        parallel(apart ? nb * steps : 1, threads, work);
        delete[] stats;
        delete[] scales;
    }
    return !bad;
}

// Why a decoder refuses a wire.
enum Refusal : int64_t { OK = 0, BAD_HEAD = -1, BAD_CODE = -2 };

}  // namespace GRACE_TARGET
}  // namespace grace
