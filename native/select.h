// Selecting numbers of large magnitude out of p = x + memory.
//
// One pass marks what reaches a bound, 64 numbers to a word, turns the marks into lists of candidates, and leaves p in `rest`
// with zeros in their places. For the k largest the bound comes from a sample, such that hardly more than k reach it; the
// k-th largest is found among the candidates, and surplus ones go back into `rest`. Where a sample cannot tell (many
// equal numbers), counting passes find the k-th largest itself.
//
// Numbers are compared as the integers of their magnitudes' bits; a NaN counts as infinite. Nothing here depends on the
// number of threads, but the order in which candidates of several strips lie in memory.
#pragma once

#include <stdlib.h>

#include "blocks.h"

namespace grace {
namespace GRACE_TARGET {

constexpr int64_t MARKED = 4096;               // numbers that are marked at once
constexpr int64_t STRIPS = 8;                 // of a task
constexpr int32_t INFINITE = 0x7F800000;      // bits of infinity
constexpr int64_t STREAMED = 1 << 20;         // numbers: from here on a rest is written past the caches
constexpr int64_t FEW = 1024;                 // keys that are searched by counting

// float32 whose lower half is zero: bfloat16, rounded to nearest, never up to infinity.
GRACE_INLINE float narrowed(float v) {
    uint32_t bits;
    memcpy(&bits, &v, 4);
    const uint32_t size = bits & 0x7FFFFFFF;
    if (size >= 0x7F7F0000) {
        bits = (bits & 0x80000000) | (size > (uint32_t)INFINITE ? 0x7FC00000 : 0x7F7F0000);
    } else {
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000;
    }
    memcpy(&v, &bits, 4);
    return v;
}
GRACE_INLINE int32_t key_of(float v) {
    int32_t bits;
    memcpy(&bits, &v, 4);
    bits &= 0x7FFFFFFF;
    return bits < INFINITE ? bits : INFINITE;
}

// p = x + memory, n numbers. rest: null; x itself, without a memory; or elsewhere.
struct Source {
    const float* x;
    const float* memory;
    float* rest;
    int64_t n;
    bool narrow;  // what is selected travels as bfloat16: rest keeps what that loses

    float at(int64_t i) const { return memory ? x[i] + memory[i] : x[i]; }
    void take(int64_t i, float v) const { rest[i] = narrow ? v - narrowed(v) : 0.0f; }
    bool in_place() const { return rest && rest == x; }
};

struct Candidates {
    uint32_t* index;
    float* value;
    int64_t capacity, count;      // count may exceed the capacity: then those of some strips are missing
    int64_t* start;               // of each strip
    int32_t* length;

    int64_t strips(int64_t n) const { return ceil_div(n, MARKED); }
};

// Marks 64 numbers; leaves those that are not marked, and zeros, in rest.
template <bool memory, bool copy, bool past>
GRACE_INLINE uint64_t mark(const float* x, const float* e, float* rest, vi bound) {
    uint64_t word = 0;
    for (int k = 0; k < 64; k += L) {
        vf v = loadf(x + k);
        if (memory) v += loadf(e + k);
        uint32_t below;
        const vf left = where_below(magnitude(as_int(v)), bound, v, below);
        word |= (uint64_t)below << k;
        if (copy) {
            if (past) stream(rest + k, left); else store(rest + k, left);
        }
    }
    return ~word;
}

// The places of the marks of a word, the first being `base`: at least `slots` are written. Most words have no more marks than
// slots: they take no branch.
template <int slots>
GRACE_INLINE int64_t list_word(uint64_t word, uint32_t base, uint32_t* out) {
    constexpr uint64_t END = 1ull << 63;  // so that there is a bit to count to
    const int found = __builtin_popcountll(word);
    for (int j = 0; j < slots; j++) {
        out[j] = base + (uint32_t)__builtin_ctzll(word | END);
        word &= word - 1;
    }
    for (int j = slots; j < found; j++) {
        out[j] = base + (uint32_t)__builtin_ctzll(word);
        word &= word - 1;
    }
    return found;
}

// The places of those of `len` numbers from `first` on whose keys reach the bound; list has room for `slots` more.
template <bool memory, bool copy, bool past, int slots>
static int64_t list_strip(const Source& s, int64_t first, int64_t len, int32_t bound, uint32_t* list) {
    const vi least_key = splat(bound);
    const float *x = s.x + first, *e = memory ? s.memory + first : nullptr;
    float* rest = copy ? s.rest + first : nullptr;
    int64_t count = 0, i = 0;
    for (; i + 64 <= len; i += 64) {
        const uint64_t word =
            mark<memory, copy, past>(x + i, memory ? e + i : nullptr, copy ? rest + i : nullptr, least_key);
        count += list_word<slots>(word, (uint32_t)(first + i), list + count);
    }
    if (i < len) {
        alignas(64) float a[64] = {}, b[64] = {}, c[64];
        const size_t bytes = (size_t)(len - i) * 4;
        memcpy(a, x + i, bytes);
        if (memory) memcpy(b, e + i, bytes);
        const uint64_t word = mark<memory, copy, false>(a, b, c, least_key) & ((1ull << (len - i)) - 1);
        if (copy) memcpy(rest + i, c, bytes);
        count += list_word<slots>(word, (uint32_t)(first + i), list + count);
    }
    return count;
}
template <bool memory, bool copy, bool past>
GRACE_INLINE int64_t list_strip(const Source& s, int64_t first, int64_t len, int32_t bound, int64_t expected, uint32_t* list) {
    if (expected < MARKED / 256) return list_strip<memory, copy, past, 1>(s, first, len, bound, list);
    if (expected < MARKED / 32) return list_strip<memory, copy, past, 3>(s, first, len, bound, list);
    return list_strip<memory, copy, past, 8>(s, first, len, bound, list);
}

// Lists all whose key reaches `bound`, as far as there is room, and counts them. What finds no room is not taken out of rest if
// that is x itself. Returns false, early, if there is no room and `counting` is not asked for.
template <bool memory, bool copy>
static void collect_as(const Source& s, int32_t bound, Candidates& found, bool counting, int threads) {
    const bool past = copy && !s.narrow && s.n >= STREAMED && (uintptr_t)s.rest % 64 == 0;
    const int64_t strips = found.strips(s.n);
    auto work = [&](int64_t task) {
        uint32_t list[MARKED + 8];
        int64_t count = MARKED / 64;
        for (int64_t j = task * STRIPS, end = least(strips, j + STRIPS); j < end; j++) {
            found.start[j] = found.length[j] = 0;
            if (!counting && __atomic_load_n(&found.count, __ATOMIC_RELAXED) > found.capacity) continue;
            const int64_t first = j * MARKED, len = least(MARKED, s.n - first);
            count = past ? list_strip<memory, copy, true>(s, first, len, bound, count, list)
                         : list_strip<memory, copy, false>(s, first, len, bound, count, list);
            const int64_t at = __atomic_fetch_add(&found.count, count, __ATOMIC_RELAXED);
            if (at + count > found.capacity) continue;
            found.start[j] = at, found.length[j] = (int32_t)count;
            for (int64_t c = 0; c < count; c++) {
                const uint32_t i = list[c];
                found.index[at + c] = i;
                found.value[at + c] = memory ? s.x[i] + s.memory[i] : s.x[i];
            }
            if (s.rest && (s.narrow || !copy)) {
                for (int64_t c = 0; c < count; c++) s.take(list[c], found.value[at + c]);
            }
        }
        if (past) fence();
    };
    found.count = 0;
    parallel(ceil_div(strips, STRIPS), enough_threads(s.n, threads), work);
}
static void collect(const Source& s, int32_t bound, Candidates& found, bool counting, int threads) {
    if (s.memory) {
        s.rest ? collect_as<true, true>(s, bound, found, counting, threads)
               : collect_as<true, false>(s, bound, found, counting, threads);
    } else if (s.rest && !s.in_place()) {
        collect_as<false, true>(s, bound, found, counting, threads);
    } else {
        collect_as<false, false>(s, bound, found, counting, threads);
    }
}
// What was taken goes back into x.
static void restore(const Source& s, const Candidates& found) {
    if (!s.in_place()) return;
    for (int64_t j = 0; j < found.strips(s.n); j++)
        for (int64_t c = found.start[j], end = c + found.length[j]; c < end; c++) s.rest[found.index[c]] = found.value[c];
}

// How many of the keys reach `bound`. keys has room up to a multiple of L, filled with negative numbers.
GRACE_INLINE int64_t count_keys(const int32_t* keys, int64_t count, int32_t bound) {
    vi sum = {};
    const vi b = splat(bound);
    for (int64_t i = 0; i < count; i += L) sum -= load<vi>(keys + i) >= b;
    int64_t out = 0;
    for (int i = 0; i < L; i++) out += sum[i];
    return out;
}

// The rank-th largest of `count` keys, 1 <= rank <= count, all of which are in [low, high]. The keys are lost; room for
// 16 more.
static int32_t ranked(int32_t* keys, int64_t count, int64_t rank, int32_t low, int32_t high) {
    constexpr int BITS = 11;
    while (count > FEW && low < high) {
        int shift = 0;
        while ((uint32_t)(high - low) >> shift >> BITS) shift++;
        uint32_t bins[2][1 << BITS] = {};
        int64_t i = 0;
        for (; i + 2 <= count; i += 2) {
            bins[0][(uint32_t)(keys[i] - low) >> shift]++;
            bins[1][(uint32_t)(keys[i + 1] - low) >> shift]++;
        }
        if (i < count) bins[0][(uint32_t)(keys[i] - low) >> shift]++;
        int bin = (1 << BITS) - 1;
        for (int64_t size; size = (int64_t)bins[0][bin] + bins[1][bin], size < rank; bin--) rank -= size;
        low += bin << shift;
        high = (int32_t)least(high, (int64_t)low + ((int64_t)1 << shift) - 1);
        int64_t kept = 0;
        for (int64_t j = 0; j < count; j++) {
            const int32_t key = keys[j];
            keys[kept] = key;
            kept += key >= low && key <= high;
        }
        count = kept;
    }
    for (int64_t i = count; i < count + 16; i++) keys[i] = -1;
    while (low < high) {
        const int32_t middle = low + (high - low + 1) / 2;
        if (count_keys(keys, count, middle) >= rank) low = middle; else high = middle - 1;
    }
    return low;
}

// What a sample says about the k-th largest: very probably it is in [low, high]. low is 0 if a sample cannot tell.
struct Guess {
    int32_t low, middle, high;
    int64_t candidates;  // how many reach `low`, about
    bool tied;           // many of them are equal
};

// From groups of sixteen neighbors, each at a place of its own in a stratum, so that no period of the numbers resonates with
// them. Neighbors may be alike: how far the sample is off follows from how much the groups differ. keys has room for three
// times as many numbers and 96 more; n >= 16 groups.
static Guess guess(const Source& s, int64_t k, int32_t* keys, int64_t groups, int threads) {
    constexpr int64_t G = 16, SOME = 1 << 10;
    const uint64_t step = ((uint64_t)(s.n - G + 1) << 32) / (uint64_t)groups;
    const vi most = splat(INFINITE);
    auto draw = [&](int64_t task) {
        for (int64_t t = task * SOME; t < least(groups, (task + 1) * SOME); t++) {
            const uint64_t u = (uint32_t)t * 0x9E3779B1u >> 16;
            const int64_t at = (int64_t)(((uint64_t)t * step + (step >> 16) * u) >> 32) / G * G;
            for (int64_t j = 0; j < G; j += L) {
                vf v = loadf(s.x + at + j);
                if (s.memory) v += loadf(s.memory + at + j);
                const vi size = magnitude(as_int(v));
                store(keys + t * G + j, select(size > most, most, size));
            }
        }
    };
    parallel(ceil_div(groups, SOME), enough_threads(s.n, threads), draw);
    const int64_t size = groups * G;
    const double share = (double)k / (double)s.n, expected = share * (double)size;
    int32_t* top = keys + size + 32;

    // a bound that a few more than needed reach, from one number of each group: so that little is sorted
    const double few = share * (double)groups;
    const int64_t rough = (int64_t)(1.5 * few + 8 * __builtin_sqrt(few) + 8);
    int32_t bound = 0;
    if (rough < groups) {
        for (int64_t t = 0; t < groups; t++) top[t] = keys[t * G + (t * 7) % G];
        bound = ranked(top, groups, rough, 0, INFINITE);
    }
    int64_t reach = 0;
    for (int64_t t = 0; t < size; t++) {
        top[reach] = keys[t];
        reach += keys[t] >= bound;
    }
    const int64_t mean = expected > 1 ? (int64_t)expected : 1;
    int32_t* work = top + size + 32;
    auto of_top = [&](int64_t rank) {
        memcpy(work, top, (size_t)reach * 4);
        return ranked(work, reach, rank, bound, INFINITE);
    };
    Guess out = {0, 0, INFINITE, s.n, false};
    if (reach < mean) return out;
    out.middle = of_top(mean);
    double variance = expected;
    for (int64_t t = 0; t < groups; t++) {
        const auto many = (double)count_keys(keys + t * G, G, out.middle);
        variance += many * many;
    }
    const double spread = 4 * __builtin_sqrt(variance) + 4;
    const auto rank = (int64_t)(expected + spread), above = (int64_t)(expected - spread);
    if (rank >= size) return out;
    if (rank > reach) {
        memcpy(top, keys, (size_t)size * 4);
        reach = size;
        bound = 0;
    }
    out.low = of_top(rank);
    if (above > 0) out.high = of_top(above);
    out.candidates = (int64_t)((double)rank * (double)s.n / (double)size);
    out.tied = out.low == 0;
    if (!out.tied) {
        int64_t as_large = 0;
        for (int64_t t = 0; t < reach; t++) as_large += top[t] >= out.low;
        out.tied = as_large > rank + rank / 2 + 16;
    }
    return out;
}

// How many of p reach each of eight keys.
static void count_reach(const Source& s, const int32_t* pivots, int64_t* counts, int threads) {
    for (int j = 0; j < 8; j++) counts[j] = 0;
    auto work = [&](int64_t task) {
        const int64_t first = task * TASK, end = least(s.n, first + TASK);
        vi sums[8] = {};
        int64_t mine[8] = {};
        int64_t i = first;
        for (; i + L <= end; i += L) {
            vf v = loadf(s.x + i);
            if (s.memory) v += loadf(s.memory + i);
            const vi size = magnitude(as_int(v));
            for (int j = 0; j < 8; j++) sums[j] -= size >= splat(pivots[j]);
        }
        for (; i < end; i++)
            for (int j = 0; j < 8; j++) mine[j] += key_of(s.at(i)) >= pivots[j];
        for (int j = 0; j < 8; j++) {
            for (int l = 0; l < L; l++) mine[j] += sums[j][l];
            __atomic_fetch_add(&counts[j], mine[j], __ATOMIC_RELAXED);
        }
    };
    parallel(ceil_div(s.n, TASK), enough_threads(s.n, threads), work);
}

// The k-th largest is in [low, high]; `reach` reach low, `above` exceed high.
struct Range {
    int32_t low, high;
    int64_t reach, above;
};

// By counting, until the range is one key or no more than `enough` reach it.
static Range narrow_down(const Source& s, int64_t k, const Guess& g, int64_t enough, int threads) {
    Range r = {0, INFINITE, s.n, 0};
    int32_t pivots[8] = {1, g.low, g.low + 1, g.middle, g.middle + 1, g.high, g.high + 1, INFINITE};
    for (;;) {
        for (int i = 1; i < 8; i++)  // ascending
            for (int j = i; j > 0 && pivots[j - 1] > pivots[j]; j--) {
                const int32_t t = pivots[j];
                pivots[j] = pivots[j - 1], pivots[j - 1] = t;
            }
        int64_t counts[8];
        count_reach(s, pivots, counts, threads);
        for (int j = 0; j < 8; j++) {
            if (pivots[j] <= r.low || pivots[j] > r.high) continue;
            if (counts[j] >= k) {
                r.low = pivots[j], r.reach = counts[j];
            } else {
                r.high = pivots[j] - 1, r.above = counts[j];
                break;
            }
        }
        if (r.low == r.high || r.reach <= enough) return r;
        const int64_t width = (int64_t)r.high - r.low;
        for (int j = 0; j < 8; j++) pivots[j] = (int32_t)(r.low + 1 + (width - 1) * j / 7);
    }
}

// The first `count` places whose key is `key`, while p is whole.
static void first_ties(const Source& s, int32_t key, int64_t count, uint32_t* out) {
    const vi wanted = splat(key), most = splat(INFINITE);
    int64_t i = 0;
    for (; count > 0 && i + L <= s.n; i += L) {
        vf v = loadf(s.x + i);
        if (s.memory) v += loadf(s.memory + i);
        vi size = magnitude(as_int(v));
        size = select(size > most, most, size);
        for (uint32_t bits = mask_bits(size == wanted); bits && count > 0; bits &= bits - 1, count--)
            *out++ = (uint32_t)i + (uint32_t)__builtin_ctz(bits);
    }
    for (; count > 0 && i < s.n; i++) {
        if (key_of(s.at(i)) == key) *out++ = (uint32_t)i, count--;
    }
}

}  // namespace GRACE_TARGET
}  // namespace grace
