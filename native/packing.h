// Fields of 1 to 32 bits, from and to numbers of any width, in a little-endian bit stream. Eight fields fill whole bytes.
#pragma once

#include "blocks.h"

namespace grace {
namespace GRACE_TARGET {

// Up to eight numbers -> their ceil(count b / 8) bytes.
template <int b, class T>
GRACE_INLINE void pack_eight(const T* values, int count, uint8_t* out) {
    uint64_t words[5] = {};
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        if (j >= count) break;
        const int word = j * b / 64, at = j * b % 64;
        const uint64_t x = (uint64_t)values[j] & ((1ull << b) - 1);
        words[word] |= x << at;
        if (at + b > 64) words[word + 1] |= x >> (64 - at);
    }
    memcpy(out, words, (size_t)(count * b + 7) / 8);
}
template <int b, class T>
GRACE_INLINE void unpack_eight(const uint8_t* in, int count, T* values) {
    uint64_t words[5] = {};
    memcpy(words, in, (size_t)(count * b + 7) / 8);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        if (j >= count) break;
        const int word = j * b / 64, at = j * b % 64;
        uint64_t x = words[word] >> at;
        if (at + b > 64) x |= words[word + 1] << (64 - at);
        values[j] = (T)(x & ((1ull << b) - 1));
    }
}

template <int b, class T>
static void pack_fields(const T* values, int64_t count, uint8_t* out) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) pack_eight<b>(values + i, 8, out + i / 8 * b);
    if (i < count) pack_eight<b>(values + i, (int)(count - i), out + i / 8 * b);
}
template <int b, class T>
static void unpack_fields(const uint8_t* in, int64_t count, T* values) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) unpack_eight<b>(in + i / 8 * b, 8, values + i);
    if (i < count) unpack_eight<b>(in + i / 8 * b, (int)(count - i), values + i);
}

#define GRACE_EACH_FIELD(do_)                                                                                          \
    do_(1) do_(2) do_(3) do_(4) do_(5) do_(6) do_(7) do_(8) do_(9) do_(10) do_(11) do_(12) do_(13) do_(14) do_(15) do_(16) \
    do_(17) do_(18) do_(19) do_(20) do_(21) do_(22) do_(23) do_(24) do_(25) do_(26) do_(27) do_(28) do_(29) do_(30)      \
    do_(31) do_(32)

// Numbers, of which the low `bits` bits count, 1 to 32 -> ceil(count bits / 8) bytes.
template <class T>
static void pack_numbers(int bits, const T* values, int64_t count, uint8_t* out) {
    switch (bits) {
#define GRACE_CASE(b) \
    case b: pack_fields<b>(values, count, out); return;
        GRACE_EACH_FIELD(GRACE_CASE)
#undef GRACE_CASE
    }
}
template <class T>
static void unpack_numbers(int bits, const uint8_t* in, int64_t count, T* values) {
    switch (bits) {
#define GRACE_CASE(b) \
    case b: unpack_fields<b>(in, count, values); return;
        GRACE_EACH_FIELD(GRACE_CASE)
#undef GRACE_CASE
    }
}

}  // namespace GRACE_TARGET
}  // namespace grace
