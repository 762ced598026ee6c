// Decoding what blocks.h encodes: the wires of several workers are added up in registers, in their order.
#pragma once

#include "blocks.h"

namespace grace {
namespace GRACE_TARGET {

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

// Asks for what lies `ahead` of 4 L bytes; of a line once.
GRACE_INLINE void fetch(const uint8_t* p, int64_t ahead) {
    if (L == 16 || (uintptr_t)p % 64 < 4 * L) prefetch((const void*)((uintptr_t)p + (uintptr_t)ahead));
}

// What 4 L codes say, a byte each.
template <class Codec>
GRACE_INLINE void values_of(const Codec& codec, const uint8_t* codes, const typename Codec::Factor& factor, vf (&out)[4]) {
    vi code[4];
    load_u8(codes, code);
    for (int k = 0; k < 4; k++) out[k] = codec.value(code[k], factor);
}

// sum[0, len) = (or, if more, +=) what the codes of the wires say, in their order; len is a multiple of STRIDE. What is read
// `ahead` bytes later is asked for; `worst` becomes the largest that the codec suspects of any byte.
template <Form form, bool streamed, class Codec>
GRACE_INLINE void sum_codes(const Codec& codec, const uint8_t* const* codes, int phase, int64_t wires,
                            const typename Codec::Factor* factors, bool more, bool last, int64_t ahead, int64_t len, float* sum,
                            vb& worst) {
    constexpr Keep keep = streamed ? STREAM : STORE;
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
            vb suspect = {};  // not all of them in one long chain
            for (int64_t w = 0; w < wires; w++) {
                fetch(codes[w] + i, ahead);
                suspect = max(suspect, codec.suspect(load<vb>(codes[w] + i)));
                vf values[4];
                codec.values(codes[w] + i, factors[w], values);
                for (int k = 0; k < 4; k++) acc[k] += values[k];
            }
            worst = max(worst, suspect);
            for (int k = 0; k < 4; k++) keep_rest<keep>(sum + i + k * L, codec.done(acc[k], last));
        }
    } else if (form == NIBBLES) {
        for (int64_t i = 0; i < len; i += 8 * L) {
            vf acc[8] = {};
            if (more)
                for (int k = 0; k < 8; k += 2) load_pairs(sum + i + k * L, acc[k], acc[k + 1]);
            vb suspect = {};
            for (int64_t w = 0; w < wires; w++) {
                const uint8_t* two = codes[w] + i / 2;
                fetch(two, ahead);
                suspect = max(suspect, codec.suspect4(load<vb>(two)));
                vi code[8];
                load_u4(two, code);
#if GRACE_LANES == 16
                for (int k = 0; k < 8; k++) acc[k] += lookup(table[w], code[k]);
#else
                for (int k = 0; k < 8; k++) acc[k] += codec.value(code[k], factors[w]);
#endif
            }
            worst = max(worst, suspect);
            for (int k = 0; k < 8; k += 2) {
                vf low, high;
                pairs(codec.done(acc[k], last), codec.done(acc[k + 1], last), low, high);
                keep_rest<keep>(sum + i + k * L, low), keep_rest<keep>(sum + i + (k + 1) * L, high);
            }
        }
    } else {
#if GRACE_LANES == 16
        int64_t byte = 0;
        for (int64_t i = 0; i < len; i += 16) {
            const __m512i where = _mm512_load_si512(DIGIT.where[phase]), factor = _mm512_load_si512(DIGIT.factor[phase]);
            vf acc = {};
            if (more) acc = loadf(sum + i);
            vb suspect = {};
            for (int64_t w = 0; w < wires; w++) {
                int32_t word;
                memcpy(&word, codes[w] + byte, 4);
                const __m512i four = _mm512_set1_epi32(word);
                suspect = max(suspect, (vb)four);
                const __m512i place = _mm512_mullo_epi16(_mm512_shuffle_epi8(four, where), factor);
                acc += lookup(table[w], (vi)_mm512_mulhi_epu16(place, _mm512_set1_epi32(3)));
            }
            worst = max(worst, suspect);
            keep_rest<keep>(sum + i, codec.done(acc, last));
            byte += 3 + (phase == 4), phase = phase == 4 ? 0 : phase + 1;
        }
#endif
    }
    (void)phase;
}

// The same for any len: what is left of a stride goes through a copy, since nothing may be read or written behind it.
template <Form form, class Codec>
GRACE_INLINE void sum_part(const Codec& codec, const uint8_t* const* codes, int phase, int64_t wires,
                           const typename Codec::Factor* factors, bool more, bool last, bool streamed, int64_t ahead,
                           int64_t len, float* sum, vb& worst) {
    const int64_t whole = len / STRIDE<form> * STRIDE<form>;
    if (streamed && (uintptr_t)sum % (4 * L) == 0) {
        if (wires == GROUP) {
            sum_codes<form, true>(codec, codes, phase, GROUP, factors, more, last, ahead, whole, sum, worst);  // unrolled
        } else {
            sum_codes<form, true>(codec, codes, phase, wires, factors, more, last, ahead, whole, sum, worst);
        }
    } else {
        sum_codes<form, false>(codec, codes, phase, wires, factors, more, last, ahead, whole, sum, worst);
    }
    for (int64_t i = whole; i < len; i += STRIDE<form>) {
        const int64_t left = least(len - i, STRIDE<form>);
        const int64_t first = form == BYTES ? i : form == NIBBLES ? i / 2 : (phase + i) / 5;
        const int64_t end = form == BYTES ? i + left : form == NIBBLES ? (i + left + 1) / 2 : (phase + i + left + 4) / 5;
        uint8_t copies[GROUP][4 * L] = {};
        const uint8_t* from[GROUP];
        alignas(64) float part[STRIDE<form>];
        for (int64_t w = 0; w < wires; w++) {
            memcpy(copies[w], codes[w] + first, (size_t)(end - first));
            if (form == NIBBLES && left % 2) copies[w][left / 2] &= 15;  // what fills the last byte says nothing
            from[w] = copies[w];
        }
        if (more) memcpy(part, sum + i, (size_t)left * 4);
        sum_codes<form, false>(codec, from, form == DIGITS ? (int)((phase + i) % 5) : 0, wires, factors, more, last, 0, STRIDE<form>,
                               part, worst);
        memcpy(sum + i, part, (size_t)left * 4);
    }
}

// out [n] = or += what W wires of a row say, added in their order. A Codec has:
//   HEAD, which may differ between objects; bits(); Factor factor(const uint8_t* head, Refusal&)
//   vf value(vi code, const Factor&): what codes say; values(const uint8_t* codes, const Factor&, vf (&)[4]): what 4 L of them do
//   vb suspect(vb codes), suspect4 of bytes of two codes: above most() if there is one that no sender writes; 0 is legal. Of
//     trits only bytes above 242 are not.
//   vf done(vf sum, bool last): what becomes of a sum, of all wires if it is the last
//   bool fits(const uint8_t* codes, int64_t count, const Factor&), fits4: whether they suit the head of their block
template <class Codec>
static int64_t decode_blocks(
    const Codec& codec, const uint8_t* const* wires, int64_t W, float* out, int64_t n, int64_t block, bool accumulate,
    int threads) {
    const int bits = codec.bits();
    const int64_t heads = ceil_div(n, block) * codec.HEAD;
    int64_t refused = OK;
    // Codes of other widths are unpacked first; and those of 4 bits where a block begins within a byte.
    Form form = BYTES;
    if (bits == 4 && (block % 2 == 0 || block >= n) && block >= 2 * L) form = NIBBLES;
    if (bits == TRITS && L == 16 && block >= 16) form = DIGITS;
    const bool direct = form != BYTES || bits == 8;
    const bool streamed = n >= ALONE && W <= GROUP && !accumulate;  // a sum that nobody reads before it has left the caches
    // Of the strip after the next: all at once, or, since few reads can wait for memory at a time, where sums read them.
    const int64_t next = 2 * packed_bytes(STRIP, bits), ahead = direct && form != DIGITS ? next : 0;
    const uintptr_t far = ahead ? 0 : (uintptr_t)next;
    auto work = [&](int64_t task) {
        alignas(64) uint8_t room[GROUP][STRIP + 64];
        Refusal bad = OK;
        vb worst = {};
        for (int64_t at = task * 24 * STRIP, end = least(n, at + 24 * STRIP); at < end; at += STRIP) {
            const int64_t len = least(STRIP, end - at);
            if (W == 0 && !accumulate) memset(out + at, 0, (size_t)len * 4);
            for (int64_t w = 0; w < W; w += GROUP) {
                const int64_t group = least(GROUP, W - w);
                const uint8_t* codes[GROUP];
                for (int64_t k = 0; k < group; k++) {
                    codes[k] = wires[w + k] + heads + packed_bytes(at, bits);
                    for (int64_t i = 0; far && i < packed_bytes(STRIP, bits); i += 64)
                        prefetch((const void*)((uintptr_t)codes[k] + far + (uintptr_t)i));
                    if (direct) continue;
                    if (bits == TRITS && any_above(codes[k], packed_bytes(len, bits), 242, [](vb x) { return x; })) bad = BAD_CODE;
                    unpack_codes(bits, codes[k], len, room[k]), codes[k] = room[k];
                }
                const bool more = accumulate || w > 0, last = w + GROUP >= W;
                int64_t j = at / block;
                for (int64_t i = 0; i < len; j++) {
                    const int64_t size = least(len, (j + 1) * block - at) - i;
                    typename Codec::Factor factors[GROUP];
                    const uint8_t* here[GROUP];
                    for (int64_t k = 0; k < group; k++) {
                        factors[k] = codec.factor(wires[w + k] + j * codec.HEAD, bad);
                        here[k] = codes[k] + (form == BYTES ? i : form == NIBBLES ? i / 2 : i / 5);
                        if (form == BYTES && !codec.fits(here[k], size, factors[k])) bad = BAD_HEAD;
                        if (form != NIBBLES) continue;
                        if (!codec.fits4(here[k], size / 2, factors[k])) bad = BAD_HEAD;
                        if (size % 2 == 0) continue;
                        const uint8_t alone = here[k][size / 2] & 15, twice = (uint8_t)(alone | alone << 4);
                        if (!codec.fits4(&twice, 1, factors[k])) bad = BAD_HEAD;
                    }
                    float* to = out + at + i;
                    if (form == BYTES) {
                        sum_part<BYTES>(codec, here, 0, group, factors, more, last, streamed, ahead, size, to, worst);
                    } else if (form == NIBBLES) {
                        sum_part<NIBBLES>(codec, here, 0, group, factors, more, last, streamed, ahead, size, to, worst);
                    } else {
                        sum_part<DIGITS>(codec, here, (int)(i % 5), group, factors, more, last, streamed, ahead, size, to, worst);
                    }
                    i += size;
                }
            }
        }
        fence();
        const uint8_t most = form == DIGITS ? 242 : codec.most();
        const vb limit = most + vb{}, over = max(worst, limit);
        if (memcmp(&over, &limit, sizeof over) != 0) bad = BAD_CODE;
        if (bad != OK) __atomic_store_n(&refused, (int64_t)bad, __ATOMIC_RELAXED);
    };
    parallel(ceil_div(n, 24 * STRIP), enough_threads(n, threads), work);
    return refused;
}

}  // namespace GRACE_TARGET
}  // namespace grace
