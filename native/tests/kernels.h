// Every kernel: its C interface, and a case that calls it. A new kernel needs one GRACE_KERNEL, one case, one row in CASES.
#pragma once

#include "trial.h"

#if defined(__x86_64__)
constexpr int TARGETS = 3;
#define GRACE_KERNEL(name, ...)                                                                   \
    extern "C" int64_t grace_##name##_base(__VA_ARGS__), grace_##name##_avx2(__VA_ARGS__),        \
        grace_##name##_avx512(__VA_ARGS__);                                                       \
    static constexpr int64_t (*name[TARGETS])(__VA_ARGS__) = {grace_##name##_base, grace_##name##_avx2, grace_##name##_avx512};
#else
constexpr int TARGETS = 1;
#define GRACE_KERNEL(name, ...)                         \
    extern "C" int64_t grace_##name##_base(__VA_ARGS__); \
    static constexpr int64_t (*name[TARGETS])(__VA_ARGS__) = {grace_##name##_base};
#endif
typedef const uint8_t* const* Wires;

extern "C" int64_t grace_best();

GRACE_KERNEL(finite, const float*, int64_t, int)
GRACE_KERNEL(sum_finite, const float*, const float*, float*, int64_t, int)
GRACE_KERNEL(words, uint32_t, uint32_t, uint32_t, int64_t, int64_t, uint32_t*, int)
GRACE_KERNEL(uniform, uint32_t, uint32_t, uint32_t, int64_t, int64_t, float*, int)
GRACE_KERNEL(subset, uint32_t, uint32_t, uint32_t, int64_t, int64_t, int64_t*, int)
GRACE_KERNEL(take_subset, float*, int64_t, int64_t, int64_t, uint32_t, uint32_t, uint32_t, float*, int, float, int)
GRACE_KERNEL(add_subset, Wires, int64_t, float*, int64_t, int64_t, uint32_t, uint32_t, uint32_t, float, int)
GRACE_KERNEL(quantise, const float*, const float*, float*, int64_t, int64_t, int64_t, uint8_t*, int64_t, int, int, int, float,
             uint32_t, uint32_t, uint32_t, int)
GRACE_KERNEL(dequantise_sum, Wires, int64_t, float*, int64_t, int64_t, int, int, float, int, int)

struct Key {
    uint32_t k0, k1, step;
    explicit Key(Dice& dice)
        : k0(static_cast<uint32_t>(dice.roll())), k1(static_cast<uint32_t>(dice.roll())), step(static_cast<uint32_t>(dice.roll())) {}
};

inline int64_t some_block(Dice& dice) { return dice.of<int64_t>({1, 2, 3, 7, 8, 16, 100, 256, 1000, 4096, 4097, 10000, 1 << 20}); }
inline int64_t blocks(int64_t n, int64_t block) { return (n + block - 1) / block; }

// Levels of the quantiser, the bits of its codes (0: base 3), and the bytes of a row's wire.
struct Levels {
    int s, bits;
    int64_t width;
    Levels(int s_, int64_t n, int64_t block) : s(s_), bits(0) {
        while (s > 1 && 2 * s >> bits) bits++;
        width = 4 * blocks(n, block) + (s == 1 ? (n + 4) / 5 : (n * bits + 7) / 8);
    }
};

inline void run_finite(Trial& t) { t.returned(finite[t.target](t.numbers(t.n), t.n, t.threads)); }

inline void run_sum_finite(Trial& t) {
    float* x = t.numbers(t.n);
    const float* memory = t.dice.coin() ? t.numbers(t.n) : nullptr;
    float* out = t.dice.coin() ? t.room<float>(t.n) : t.written(x, t.n);
    const int64_t all = sum_finite[t.target](x, memory, out, t.n, t.threads);
    t.returned(all);
    if (!all) t.forget();
}

inline void run_words(Trial& t) {
    const Key key(t.dice);
    const int64_t first = t.dice.below(1ll << 32);
    t.returned(words[t.target](key.k0, key.k1, key.step, first, t.n, t.room<uint32_t>(2 * t.n), t.threads));
}

inline void run_uniform(Trial& t) {
    const Key key(t.dice);
    const int64_t first = t.dice.below(1ll << 32);
    t.returned(uniform[t.target](key.k0, key.k1, key.step, first, t.n, t.room<float>(t.n), t.threads));
}

inline int64_t part_of(Trial& t) { return t.dice.of<int64_t>({0, t.n / 100, t.n / 3, t.n > 0 ? t.n - 1 : 0, t.n}); }

inline void run_subset(Trial& t) {
    const Key key(t.dice);
    const int64_t k = part_of(t);
    t.returned(subset[t.target](key.k0, key.k1, key.step, t.n, k, t.room<int64_t>(k), t.threads));
}

inline void run_random_k(Trial& t) {
    const Key key(t.dice);
    const int64_t k = part_of(t), rows = 1 + t.dice.below(3), W = 1 + t.dice.below(3);
    float *x = t.written(t.numbers(rows * t.n), rows * t.n), *wire = t.room<float>(rows * k);
    take_subset[t.target](x, rows, t.n, k, key.k0, key.k1, key.step, wire, t.dice.coin(), 0.25f, t.threads);
    std::vector<const uint8_t*> wires(static_cast<size_t>(W), reinterpret_cast<const uint8_t*>(wire));
    add_subset[t.target](wires.data(), W, x, t.n, k, key.k0, key.k1, key.step, 0.5f, t.threads);
    if (t.kind == NOT_FINITE || t.kind == EXTREME) t.forget();  // what the bits of a NaN are is nobody's business
}

inline void run_quantise(Trial& t) {
    if (t.n == 0) return;
    const Key key(t.dice);
    const int64_t block = some_block(t.dice), rows = 1 + t.dice.below(3), W = 1 + t.dice.below(3);
    const Levels levels(t.dice.of({1, 2, 3, 5, 7, 15, 31, 63, 100, 127}), t.n, block);
    float* x = t.numbers(rows * t.n);
    const bool has_memory = t.dice.coin();
    const float* memory = has_memory ? t.numbers(rows * t.n) : nullptr;
    float* rest = has_memory ? t.room<float>(rows * t.n) : t.dice.coin() ? t.written(x, rows * t.n) : nullptr;
    uint8_t* wire = t.room<uint8_t>(rows * levels.width);
    const int64_t all = quantise[t.target](x, memory, rest, rows, t.n, block, wire, levels.width, levels.s, levels.bits,
                                           t.dice.coin(), t.dice.coin() ? 1.0f : 0.3f, key.k0, key.k1, key.step, t.threads);
    t.returned(all);
    if (!all) return t.forget();
    std::vector<const uint8_t*> wires;
    for (int64_t w = 0; w < W; w++) wires.push_back(wire + w % rows * levels.width);
    t.returned(dequantise_sum[t.target](wires.data(), W, t.numbers(t.n), t.n, block, levels.s, levels.bits, 0.5f,
                                        t.dice.coin(), t.threads));
}

struct Case {
    const char* kernels;  // their names, with spaces around each
    void (*run)(Trial&);
};
constexpr Case CASES[] = {
    {" finite ", run_finite},
    {" sum_finite ", run_sum_finite},
    {" words ", run_words},
    {" uniform ", run_uniform},
    {" subset ", run_subset},
    {" take_subset add_subset ", run_random_k},
    {" quantise dequantise_sum ", run_quantise},
};
