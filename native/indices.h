// Lists of k indices, strictly increasing, below n <= 2^31, in few bytes.
//
//   raw          each in `low` bits
//   bitmap       n bits, of which those of the list are set
//   Elias-Fano   the `low` lowest bits of each; then a bit stream in which bit (index >> low) + j is set for the j-th
#pragma once

#include "packing.h"

namespace grace {
namespace GRACE_TARGET {

enum IndexCode : int { RAW = 0, BITMAP = 1, ELIAS_FANO = 2, LIST = 3, DENSE = 4 };
constexpr int64_t NOT_INCREASING = -2, OUT_OF_RANGE = -3, WRONG_BITS = -4, NO_MEMORY = -5;

// Sets bit (index[j] >> low) + j for each j, or bit index[j].
template <bool count_up, class T>
GRACE_INLINE void set_bits(const T* index, int64_t k, int low, uint8_t* out, int64_t bytes) {
    uint64_t word = 0;
    int64_t at = 0;
    memset(out, 0, (size_t)bytes);
    auto flush = [&] {
        const int64_t left = bytes - 8 * at;
        if (left >= 8) {
            memcpy(out + 8 * at, &word, 8);
        } else {
            memcpy(out + 8 * at, &word, (size_t)left);
        }
    };
    for (int64_t j = 0; j < k; j++) {
        const int64_t bit = ((int64_t)index[j] >> low) + (count_up ? j : 0);
        if (bit / 64 != at) {
            flush();
            at = bit / 64;
            word = 0;
        }
        word |= 1ull << bit % 64;
    }
    if (k) flush();
}

template <class T>
static int64_t check_list(const T* index, int64_t k, int64_t n) {
    uint32_t wrong = 0;
    for (int64_t j = 1; j < k; j++) wrong |= (uint32_t)(index[j] <= index[j - 1]);
    if (wrong) return NOT_INCREASING;
    return k && ((int64_t)index[0] < 0 || (int64_t)index[k - 1] >= n) ? OUT_OF_RANGE : (int64_t)OK;
}

// Bytes of the bit stream behind the low bits.
GRACE_INLINE int64_t high_bytes(int64_t k, int64_t n, int low) { return (k + ((n - 1) >> low) + 7) / 8; }

// The list is one: check_list was asked.
template <class T>
static void encode_list(const T* index, int64_t k, int64_t n, int code, int low, uint8_t* out) {
    if (code == BITMAP) {
        set_bits<false>(index, k, 0, out, (n + 7) / 8);
        return;
    }
    if (low) pack_numbers(low, index, k, out);
    if (code == ELIAS_FANO) set_bits<true>(index, k, low, out + (k * low + 7) / 8, high_bytes(k, n, low));
}

// The places of the bits that are set, as place(bit, j) for the j-th of them: k, or WRONG_BITS.
template <class Place>
GRACE_INLINE int64_t read_bits(const uint8_t* in, int64_t bytes, int64_t k, Place place) {
    int64_t j = 0;
    for (int64_t at = 0; at < bytes; at += 8) {
        uint64_t word = 0;
        if (at + 8 <= bytes) {
            memcpy(&word, in + at, 8);
        } else {
            memcpy(&word, in + at, (size_t)(bytes - at));
        }
        if (__builtin_popcountll(word) > k - j) return WRONG_BITS;
        for (; word; word &= word - 1) {
            place(8 * at + __builtin_ctzll(word), j);
            j++;
        }
    }
    return j == k ? (int64_t)OK : WRONG_BITS;
}

// index has room for k. Nothing is read but the bytes of the code, nothing is written but the list, whatever the bytes are.
template <class T>
static int64_t decode_list(const uint8_t* in, int64_t k, int64_t n, int code, int low, T* index) {
    int64_t refused = OK;
    if (code == RAW) {
        unpack_numbers(low, in, k, index);
    } else if (code == BITMAP) {
        refused = read_bits(in, (n + 7) / 8, k, [&](int64_t bit, int64_t j) { index[j] = (T)bit; });
    } else {
        if (low) unpack_numbers(low, in, k, index);
        // Places are below k + n + 8, so that what is shifted here stays below 2^34 + 2^low: a T that is too small
        // for it is found out by `over`.
        int64_t over = 0;
        refused = read_bits(in + (k * low + 7) / 8, high_bytes(k, n, low), k, [&](int64_t bit, int64_t j) {
            const int64_t i = (bit - j) << low | (low ? (int64_t)index[j] : 0);
            over |= i;
            index[j] = (T)i;
        });
        if (refused == OK && over >> 31) return OUT_OF_RANGE;
    }
    return refused == OK ? check_list(index, k, n) : refused;
}

}  // namespace GRACE_TARGET
}  // namespace grace
