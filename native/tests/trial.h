// One run of one kernel: what it is given, and what it wrote, to be compared with other runs.
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <initializer_list>
#include <vector>

// SplitMix64: every trial is a function of its seed.
class Dice {
   public:
    explicit Dice(uint64_t seed) : state(seed) {}
    uint64_t roll() {
        uint64_t z = state += 0x9E3779B97F4A7C15u;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        z = (z ^ z >> 27) * 0x94D049BB133111EBu;
        return z ^ z >> 31;
    }
    int64_t below(int64_t n) { return n > 0 ? static_cast<int64_t>(roll() % static_cast<uint64_t>(n)) : 0; }
    template <class T>
    T of(std::initializer_list<T> choices) {
        return choices.begin()[below(static_cast<int64_t>(choices.size()))];
    }
    bool coin() { return roll() >> 63; }

   private:
    uint64_t state;
};

enum Kind { USUAL, ZEROS, EQUAL, EXTREME, NOT_FINITE, KINDS };

inline float number(Kind kind, Dice& dice) {
    const uint64_t r = dice.roll();
    const float usual = static_cast<float>(static_cast<int32_t>(r)) * 0x1p-31f;
    float out;
    uint32_t bits;
    switch (kind) {
        case ZEROS: return r & 1 ? -0.0f : 0.0f;
        case EQUAL: return r & 1 ? -0.75f : 0.75f;
        case NOT_FINITE:
            if (r >> 61) return usual;
            bits = 0x7F800000u | (static_cast<uint32_t>(r) & 0x80C00001u);  // inf and NaN, quiet and signaling
            memcpy(&out, &bits, 4);
            return out;
        case EXTREME:  // every exponent, denormal numbers too
            bits = static_cast<uint32_t>(r) & 0xFF7FFFFFu;
            memcpy(&out, &bits, 4);
            return out;
        default: return usual * usual * usual;
    }
}

// A kernel's arguments. Arrays end where their memory ends, so that AddressSanitizer sees the first byte behind them, and start
// a few elements behind where it starts.
class Trial {
   public:
    Trial(int target_, int threads_, int64_t n_, uint64_t seed) : target(target_), threads(threads_), n(n_), dice(seed) {
        kind = static_cast<Kind>(dice.below(KINDS));
    }
    Trial(const Trial&) = delete;
    Trial& operator=(const Trial&) = delete;
    ~Trial() {
        for (void* p : owned) free(p);
    }

    const int target, threads;
    const int64_t n;
    Dice dice;
    Kind kind;

    template <class T>
    T* array(int64_t count) {
        const size_t size = static_cast<size_t>(count) * sizeof(T), offset = static_cast<size_t>(dice.below(4)) * sizeof(T);
        uint8_t* p = static_cast<uint8_t*>(malloc(size + offset));
        if (p == nullptr && size + offset) abort();
        owned.push_back(p);
        return reinterpret_cast<T*>(p + offset);
    }
    float* numbers(int64_t count) {
        float* out = array<float>(count);
        for (int64_t i = 0; i < count; i++) out[i] = number(kind, dice);
        return out;
    }
    // An array that the kernel writes; it takes part in the comparison.
    template <class T>
    T* room(int64_t count) {
        T* out = array<T>(count);
        memset(static_cast<void*>(out), 0x5A, static_cast<size_t>(count) * sizeof(T));
        return written(out, count);
    }
    // An array that the kernel changes.
    template <class T>
    T* written(T* p, int64_t count) {
        results.push_back({reinterpret_cast<const uint8_t*>(p), static_cast<size_t>(count) * sizeof(T)});
        return p;
    }
    void returned(int64_t value) {
        digest = (digest ^ static_cast<uint64_t>(value)) * 0x9E3779B97F4A7C15u;
        digest ^= digest >> 29;
    }
    // What was written means nothing, and need not be the same everywhere.
    void forget() { results.clear(); }

    // Of all that was returned and written.
    uint64_t outcome() {
        for (const Result& result : results)
            for (size_t i = 0; i < result.size; i += 8) {
                uint64_t eight = 0;
                memcpy(&eight, result.p + i, result.size - i < 8 ? result.size - i : 8);
                returned(static_cast<int64_t>(eight));
            }
        results.clear();
        return digest;
    }

   private:
    struct Result {
        const uint8_t* p;
        size_t size;
    };
    std::vector<void*> owned;
    std::vector<Result> results;
    uint64_t digest = 0xCBF29CE484222325u;
};
