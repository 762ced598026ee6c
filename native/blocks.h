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
constexpr int64_t AHEAD = 2048;       // how many numbers ahead memory is asked for what encoding reads
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
        constexpr int64_t STEP = 640;  // whole bytes, of bits and of trits, and whole vectors
        const int64_t steps = apart ? ceil_div(r.block, 48 * STEP) : 1;
        auto work = [&](int64_t task) {
            auto state = codec.state();
            const int64_t from = apart ? task / steps * r.block + task % steps * 48 * STEP : 0;
            const int64_t stop = apart ? least(least(r.n, (task / steps + 1) * r.block), from + 48 * STEP) : r.n;
            if (from >= stop) return;
            Packer packer(bits, wire + row * stride + heads + packed_bytes(from, bits));
            alignas(64) float p[PIECE + 16];
            for (int64_t at = from; at < stop;) {
                const int64_t len = least(least(STEP, stop - at), (at / r.block + 1) * r.block - at), first = row * r.n + at;
                gather(r, first, len, p);
                fetch(r, first + AHEAD, len);
                float* rest = r.rest ? r.rest + first : nullptr;
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

enum Refusal : int64_t { OK = 0, BAD_HEAD = -1, BAD_CODE = -2 };

// How sums read codes: as they lie in the wire, or unpacked to a byte each.
enum Form { BYTES, NIBBLES, DIGITS };
template <Form form>
constexpr int64_t STRIDE = form == BYTES ? 4 * L : form == NIBBLES ? 8 * L : 16;  // codes that are read at a time

constexpr int64_t GROUP = 8;      // wires that are added up before their sum is stored
constexpr int64_t STRIP = 1280;   // whole bytes of bits and of trits, whole strides

#if GRACE_LANES == 16
// Where the sixteen digits from a byte's digit `phase` on lie in four bytes, and what a byte is multiplied with, modulo 2**16,
// so that the digit becomes the upper third: 270 byte / 2**16 is byte/243, and a bit more.
struct Digits {
    alignas(64) uint8_t where[5][64];
    alignas(64) uint32_t factor[5][16];
};
constexpr Digits digit_places() {
    Digits d = {};
    const uint32_t shifts[5] = {270 * 81 % 65536, 270 * 27, 270 * 9, 270 * 3, 270};
    for (int phase = 0; phase < 5; phase++)
        for (int i = 0; i < 16; i++) {
            d.where[phase][4 * i] = (uint8_t)((phase + i) / 5);
            for (int k = 1; k < 4; k++) d.where[phase][4 * i + k] = 0x80;
            d.factor[phase][i] = shifts[(phase + i) % 5];
        }
    return d;
}
static constexpr Digits DIGIT = digit_places();
#endif

// sum[0, len) = (or, if more, +=) what the codes of the wires say, in their order; len is a multiple of STRIDE.
template <Form form, bool streamed, class Codec>
GRACE_INLINE void sum_codes(const Codec& codec, const uint8_t* const* codes, int phase, int64_t wires,
                            const typename Codec::Factor* factors, bool more, int64_t len, float* sum) {
#if GRACE_LANES == 16
    vf table[GROUP];
    if (form != BYTES)
        for (int64_t w = 0; w < wires; w++) table[w] = codec.value(iota(), factors[w]);
#endif
    if (form == BYTES) {
        for (int64_t i = 0; i < len; i += 4 * L) {
            vf acc[4] = {};
            if (more)
                for (int k = 0; k < 4; k++) acc[k] = loadf(sum + i + k * L);
            for (int64_t w = 0; w < wires; w++) {
                vi code[4];
                load_u8(codes[w] + i, code);
                for (int k = 0; k < 4; k++) acc[k] += codec.value(code[k], factors[w]);
            }
            for (int k = 0; k < 4; k++) keep_rest<streamed ? STREAM : STORE>(sum + i + k * L, acc[k]);
        }
    } else if (form == NIBBLES) {
        for (int64_t i = 0; i < len; i += 8 * L) {
            vf acc[8] = {};
            if (more)
                for (int k = 0; k < 8; k += 2) load_pairs(sum + i + k * L, acc[k], acc[k + 1]);
            for (int64_t w = 0; w < wires; w++) {
                vi code[8];
                load_u4(codes[w] + i / 2, code);
#if GRACE_LANES == 16
                for (int k = 0; k < 8; k++) acc[k] += lookup(table[w], code[k]);
#else
                for (int k = 0; k < 8; k++) acc[k] += codec.value(code[k], factors[w]);
#endif
            }
            for (int k = 0; k < 8; k += 2) store_pairs((uint32_t*)(sum + i + k * L), (vu)acc[k], (vu)acc[k + 1]);
        }
    } else {
#if GRACE_LANES == 16
        int64_t byte = 0;
        for (int64_t i = 0; i < len; i += 16) {
            const __m512i where = _mm512_load_si512(DIGIT.where[phase]), factor = _mm512_load_si512(DIGIT.factor[phase]);
            vf acc = {};
            if (more) acc = loadf(sum + i);
            for (int64_t w = 0; w < wires; w++) {
                int32_t four;
                memcpy(&four, codes[w] + byte, 4);
                const __m512i place = _mm512_mullo_epi16(_mm512_shuffle_epi8(_mm512_set1_epi32(four), where), factor);
                acc += lookup(table[w], (vi)_mm512_mulhi_epu16(place, _mm512_set1_epi32(3)));
            }
            keep_rest<streamed ? STREAM : STORE>(sum + i, acc);
            byte += 3 + (phase == 4), phase = phase == 4 ? 0 : phase + 1;
        }
#endif
    }
    (void)phase;
}

// The same for any len: what is left of a stride goes through a copy, since nothing may be read or written behind it.
template <Form form, class Codec>
GRACE_INLINE void sum_part(const Codec& codec, const uint8_t* const* codes, int phase, int64_t wires,
                           const typename Codec::Factor* factors, bool more, bool streamed, int64_t len, float* sum) {
    const int64_t whole = len / STRIDE<form> * STRIDE<form>;
    if (streamed && (uintptr_t)sum % (4 * L) == 0) {
        if (wires == GROUP) {
            sum_codes<form, true>(codec, codes, phase, GROUP, factors, more, whole, sum);  // unrolled
        } else {
            sum_codes<form, true>(codec, codes, phase, wires, factors, more, whole, sum);
        }
    } else {
        sum_codes<form, false>(codec, codes, phase, wires, factors, more, whole, sum);
    }
    for (int64_t i = whole; i < len; i += STRIDE<form>) {
        const int64_t left = least(len - i, STRIDE<form>);
        const int64_t first = form == BYTES ? i : form == NIBBLES ? i / 2 : (phase + i) / 5;
        const int64_t last = form == BYTES ? i + left : form == NIBBLES ? (i + left + 1) / 2 : (phase + i + left + 4) / 5;
        uint8_t copies[GROUP][4 * L] = {};
        const uint8_t* from[GROUP];
        alignas(64) float part[STRIDE<form>];
        for (int64_t w = 0; w < wires; w++) {
            memcpy(copies[w], codes[w] + first, (size_t)(last - first));
            from[w] = copies[w];
        }
        if (more) memcpy(part, sum + i, (size_t)left * 4);
        sum_codes<form, false>(codec, from, form == DIGITS ? (int)((phase + i) % 5) : 0, wires, factors, more, STRIDE<form>, part);
        memcpy(sum + i, part, (size_t)left * 4);
    }
}

// out [n] = or += what W wires of a row say, added in their order. A Codec has:
//   HEAD, bits(); Factor factor(const uint8_t* head, Refusal&)
//   vf value(vi code, const Factor&): what codes say
//   bool legal(const uint8_t* codes, int64_t count): of codes in a byte each, whether a sender may write them; legal4: of
//     bytes of two codes, the last of which may be missing (0). Of trits only bytes above 242 are not.
//   bool fits(const uint8_t* codes, int64_t count, const Factor&), fits4: whether they suit the head of their block
template <class Codec>
static int64_t decode_blocks(
    const Codec& codec, const uint8_t* const* wires, int64_t W, float* out, int64_t n, int64_t block, bool accumulate,
    int threads) {
    const int bits = codec.bits();
    const int64_t heads = ceil_div(n, block) * Codec::HEAD;
    int64_t refused = OK;
    // Codes of other widths are unpacked first; and those of 4 bits where a block begins within a byte.
    Form form = BYTES;
    if (bits == 4 && (block % 2 == 0 || block >= n) && block >= 2 * L) form = NIBBLES;
    if (bits == TRITS && L == 16 && block >= 16) form = DIGITS;
    const bool direct = form != BYTES || bits == 8;
    const bool streamed = n >= ALONE && W <= GROUP && !accumulate;  // a sum that nobody reads before it has left the caches
    auto work = [&](int64_t task) {
        alignas(64) uint8_t room[GROUP][STRIP + 64];
        Refusal bad = OK;
        for (int64_t at = task * 24 * STRIP, end = least(n, at + 24 * STRIP); at < end; at += STRIP) {
            const int64_t len = least(STRIP, end - at);
            if (W == 0 && !accumulate) memset(out + at, 0, (size_t)len * 4);
            for (int64_t w = 0; w < W; w += GROUP) {
                const int64_t group = least(GROUP, W - w);
                const uint8_t* codes[GROUP];
                for (int64_t k = 0; k < group; k++) {
                    codes[k] = wires[w + k] + heads + packed_bytes(at, bits);
                    for (int64_t i = 0; i < packed_bytes(STRIP, bits); i += 64)  // of the strip after the next
                        prefetch((const void*)((uintptr_t)codes[k] + (uintptr_t)(2 * packed_bytes(STRIP, bits) + i)));
                    if (bits == TRITS && any_above(codes[k], packed_bytes(len, bits), 242, [](vb x) { return x; })) bad = BAD_CODE;
                    if (!direct) unpack_codes(bits, codes[k], len, room[k]), codes[k] = room[k];
                    if (form == BYTES && !codec.legal(codes[k], len)) bad = BAD_CODE;
                    if (form == NIBBLES && !codec.legal4(codes[k], packed_bytes(len, 4))) bad = BAD_CODE;
                }
                const bool more = accumulate || w > 0;
                int64_t j = at / block;
                for (int64_t i = 0; i < len; j++) {
                    const int64_t size = least(len, (j + 1) * block - at) - i;
                    typename Codec::Factor factors[GROUP];
                    const uint8_t* here[GROUP];
                    for (int64_t k = 0; k < group; k++) {
                        factors[k] = codec.factor(wires[w + k] + j * Codec::HEAD, bad);
                        here[k] = codes[k] + (form == BYTES ? i : form == NIBBLES ? i / 2 : i / 5);
                        if (form == BYTES && !codec.fits(here[k], size, factors[k])) bad = BAD_HEAD;
                        if (form == NIBBLES && !codec.fits4(here[k], (size + 1) / 2, factors[k])) bad = BAD_HEAD;
                    }
                    float* to = out + at + i;
                    if (form == BYTES) {
                        sum_part<BYTES>(codec, here, 0, group, factors, more, streamed, size, to);
                    } else if (form == NIBBLES) {
                        sum_part<NIBBLES>(codec, here, 0, group, factors, more, streamed, size, to);
                    } else {
                        sum_part<DIGITS>(codec, here, (int)(i % 5), group, factors, more, streamed, size, to);
                    }
                    i += size;
                }
            }
        }
        fence();
        if (bad != OK) __atomic_store_n(&refused, (int64_t)bad, __ATOMIC_RELAXED);
    };
    parallel(ceil_div(n, 24 * STRIP), enough_threads(n, threads), work);
    return refused;
}

}  // namespace GRACE_TARGET
}  // namespace grace
