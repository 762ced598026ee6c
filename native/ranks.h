// The numbers at given places of a sorted row, without sorting all of it: where there are many, only those whose upper sixteen
// bits they share with one that is wanted.
//
// Keys are floats whose bits were turned so that they are in order as unsigned integers; -0 is just below 0, NaN anywhere.
#pragma once

#include "blocks.h"

namespace grace {
namespace GRACE_TARGET {

constexpr uint32_t MINUS_ZERO = 0x7FFFFFFF;  // its key: those of negative numbers are below
constexpr int64_t UNSORTED = 16384;          // up to here all are sorted
constexpr int64_t CELLS = 1 << 16;

GRACE_INLINE vu keys_of(vf x) {
    const vi bits = as_int(x);
    return (vu)(bits ^ (bits >> 31 | INT32_MIN));
}
GRACE_INLINE float number_of(uint32_t key) {
    const uint32_t bits = key >> 31 ? key ^ 0x80000000u : ~key;
    float out;
    memcpy(&out, &bits, 4);
    return out;
}

// Ascending, by digits of so many bits, the lowest first; those that all keys share are left out. Returns which of both arrays
// holds them.
template <int BITS>
static const uint32_t* sort_keys(uint32_t* keys, uint32_t* spare, int64_t count) {
    constexpr int DIGITS = (31 + BITS) / BITS;
    constexpr uint32_t MASK = (1u << BITS) - 1;
    uint32_t sizes[DIGITS][1 << BITS] = {};
    for (int64_t i = 0; i < count; i++)
        for (int d = 0; d < DIGITS; d++) sizes[d][keys[i] >> (d * BITS) & MASK]++;
    for (int d = 0; d < DIGITS && count; d++) {
        uint32_t* start = sizes[d];
        if (start[keys[0] >> (d * BITS) & MASK] == (uint32_t)count) continue;
        for (uint32_t digit = 0, at = 0; digit <= MASK; digit++) {
            const uint32_t size = start[digit];
            start[digit] = at, at += size;
        }
        for (int64_t i = 0; i < count; i++) spare[start[keys[i] >> (d * BITS) & MASK]++] = keys[i];
        uint32_t* sorted = spare;
        spare = keys, keys = sorted;
    }
    return keys;
}
static const uint32_t* sort_keys(uint32_t* keys, uint32_t* spare, int64_t count) {
    return count < 4096 ? sort_keys<8>(keys, spare, count) : sort_keys<11>(keys, spare, count);
}

// Places below n, so that those of a 2,048th of the row are together. Returns `out`.
static const uint32_t* order_nearly(const uint32_t* places, uint32_t* out, int64_t count, int64_t n) {
    constexpr uint32_t PARTS = 2048;
    int shift = 0;
    while ((n - 1) >> shift >= PARTS) shift++;
    uint32_t sizes[PARTS] = {};
    for (int64_t i = 0; i < count; i++) sizes[places[i] >> shift]++;
    for (uint32_t part = 0, at = 0; part < PARTS; part++) {
        const uint32_t size = sizes[part];
        sizes[part] = at, at += size;
    }
    for (int64_t i = 0; i < count; i++) out[sizes[places[i] >> shift]++] = places[i];
    return out;
}

// f(keys, len) for all of p, a piece at a time.
template <class F>
static void each_piece(const Rows& r, F f) {
    alignas(64) float p[PIECE + 16];
    alignas(64) uint32_t keys[PIECE + 16];
    for (int64_t at = 0; at < r.n; at += PIECE) {
        const int64_t len = least(PIECE, r.n - at);
        gather(r, at, len, p);
        for (int64_t i = 0; i < len; i += L) store(keys + i, keys_of(loadf(p + i)));
        f((const uint32_t*)keys, len);
    }
}

// Sets edges[j - 1] to the number at place floor(j n / q) of p, sorted, for j = 1 ... q - 1; n < 2**32. p is the first row of r.
// Returns how many numbers are negative.
static int64_t find_quantiles(const Rows& r, int64_t q, float* edges) {
    const int64_t n = r.n;
    if (n <= UNSORTED) {
        uint32_t *keys = new uint32_t[(size_t)(2 * n)], negative = 0;
        int64_t at = 0;
        each_piece(r, [&](const uint32_t* piece, int64_t len) {
            for (int64_t i = 0; i < len; i++) keys[at + i] = piece[i], negative += piece[i] < MINUS_ZERO;
            at += len;
        });
        const uint32_t* sorted = sort_keys(keys, keys + n, n);
        for (int64_t j = 1; j < q; j++) edges[j - 1] = number_of(sorted[j * n / q]);
        delete[] keys;
        return negative;
    }
    auto* cells = new uint32_t[2 * CELLS]();  // how many keys are in each; two of them, so that equal keys wait less
    auto* wanted = new uint8_t[CELLS]();
    int64_t negative = 0;
    each_piece(r, [&](const uint32_t* keys, int64_t len) {
        int64_t i = 0;
        uint32_t below = 0;
        for (; i + 2 <= len; i += 2) cells[keys[i] >> 16]++, cells[CELLS + (keys[i + 1] >> 16)]++;
        if (i < len) cells[keys[i] >> 16]++;
        for (i = 0; i < len; i++) below += keys[i] < MINUS_ZERO;
        negative += below;
    });
    int64_t places[256], kept = 0;  // among the keys of wanted cells
    for (int64_t cell = 0, below = 0, j = 1; j < q; cell++) {
        const int64_t size = (int64_t)cells[cell] + cells[CELLS + cell];
        for (; j < q && j * n / q < below + size; j++) wanted[cell] = 1, places[j] = j * n / q - below + kept;
        below += size;
        kept += wanted[cell] ? size : 0;
    }
    auto* keys = new uint32_t[(size_t)(2 * kept + 1)];
    int64_t count = 0;
    each_piece(r, [&](const uint32_t* piece, int64_t len) {
        for (int64_t i = 0; i < len; i++) keys[count] = piece[i], count += wanted[piece[i] >> 16];
    });
    const uint32_t* sorted = sort_keys(keys, keys + kept, kept);
    for (int64_t j = 1; j < q; j++) edges[j - 1] = number_of(sorted[places[j]]);
    delete[] keys;
    delete[] wanted;
    delete[] cells;
    return negative;
}

}  // namespace GRACE_TARGET
}  // namespace grace
