// Every kernel, and a case that calls it. A new kernel needs one case and one row in CASES.
#pragma once

#include "trial.h"

#if defined(__x86_64__) && !defined(GRACE_BASE_ONLY)
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

extern "C" int64_t grace_best();
// The best target that this processor has and that was built.
inline int best_target() { return std::min(static_cast<int>(grace_best()), TARGETS - 1); }

typedef const uint8_t* const* Wires;
#include "../signatures.h"
#undef GRACE_KERNEL

struct Key {
    uint32_t k0, k1, step;
    explicit Key(Dice& dice)
        : k0(static_cast<uint32_t>(dice.roll())), k1(static_cast<uint32_t>(dice.roll())), step(static_cast<uint32_t>(dice.roll())) {}
};

inline int64_t some_block(Dice& dice) { return dice.of<int64_t>({1, 2, 3, 7, 8, 16, 100, 256, 1000, 4096, 4097, 10000, 1 << 20}); }
inline int64_t blocks(int64_t n, int64_t block) { return (n + block - 1) / block; }

// Levels of the quantizer, the bits of its codes (0: base 3), and the bytes of a row's wire.
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

inline void run_add_scaled(Trial& t) {
    const int kind = t.dice.of({0, 1, 2});
    float* out = t.written(t.numbers(t.n), t.n);
    uint16_t* halves = t.array<uint16_t>(t.n);
    const uint64_t legal = t.kind == NOT_FINITE ? 0xFFFF : 0xBFFF;  // small and denormal numbers
    for (int64_t i = 0; i < t.n; i++) halves[i] = static_cast<uint16_t>(t.dice.roll() & legal);
    const void* x = kind ? static_cast<void*>(halves) : t.numbers(t.n);
    t.returned(add_scaled[t.target](out, x, kind, t.dice.of({1.0f, -1.0f, 0.3f}), t.n, t.threads));
    if (t.kind == NOT_FINITE || t.kind == EXTREME) t.forget();  // which NaN comes of two is not the same everywhere
}

inline void run_low_rank(Trial& t) {
    const int64_t l = t.dice.of<int64_t>({1, 7, 16, 100, 1024, 1300}), m = t.n / l, r = 1 + t.dice.below(9);
    float *rest = t.dice.coin() ? t.written(t.numbers(m * l), m * l) : nullptr, *out = t.room<float>(m * l);
    const float *p = t.numbers(r * m), *mine = t.numbers(r * l), *q = t.numbers(r * l);
    t.returned(split_low_rank[t.target](rest, out, p, mine, q, m, l, r, t.threads));
    t.returned(project_rows[t.target](out, q, t.room<float>(r * m), m, l, r, t.threads));
    t.returned(project_columns[t.target](out, p, t.room<float>(r * l), m, l, r, t.threads));
    t.returned(add_low_rank[t.target](out, p, mine, m, l, r, 0.3f, t.threads));
    if (t.kind == NOT_FINITE || t.kind == EXTREME) t.forget();  // which NaN comes of two is not the same everywhere
}

inline void run_orthonormal(Trial& t) {
    const int64_t m = 1 + t.dice.below(t.n < 5000 ? t.n + 1 : 5000), r = 1 + t.dice.below(m < 9 ? m : 9);
    const float* p = t.numbers(r * m);
    t.returned(orthonormalize[t.target](p, t.room<float>(r * m), r, m, t.threads));
    t.returned(solve_ridge[t.target](p, t.room<double>(r * m), r, m, 0.01, t.threads));
    if (t.kind == NOT_FINITE) t.forget();  // which NaN comes of two is not the same everywhere
}

inline void run_momentum(Trial& t) {
    const float *x = t.numbers(t.n), *u = t.numbers(t.n), *v = t.numbers(t.n);
    const int nesterov = t.dice.coin();
    float *next_u = t.room<float>(t.n), *next_v = t.room<float>(t.n);
    t.returned(accelerate[t.target](x, u, v, 0.9f, nesterov, next_u, next_v, t.n, t.threads));
    const float* rest = t.dice.coin() ? next_v : t.numbers(t.n);
    t.returned(forget_sent[t.target](next_u, v, nesterov ? x : nullptr, rest, t.n, t.threads));
    if (t.kind == NOT_FINITE || t.kind == EXTREME) t.forget();  // which NaN comes of two is not the same everywhere
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

inline void run_quantize(Trial& t) {
    if (t.n == 0) return;
    const Key key(t.dice);
    const int64_t block = some_block(t.dice), rows = 1 + t.dice.below(3), W = 1 + t.dice.below(3);
    const Levels levels(t.dice.of({1, 2, 3, 5, 7, 15, 31, 63, 100, 127}), t.n, block);
    float* x = t.numbers(rows * t.n);
    const bool has_memory = t.dice.coin();
    const float* memory = has_memory ? t.numbers(rows * t.n) : nullptr;
    float* rest = has_memory ? t.room<float>(rows * t.n) : t.dice.coin() ? t.written(x, rows * t.n) : nullptr;
    uint8_t* wire = t.room<uint8_t>(rows * levels.width);
    const int l2 = t.dice.coin();  // compilers differ in the order in which they draw arguments
    const float shrink = t.dice.coin() ? 1.0f : 0.3f;
    const int64_t all = quantize[t.target](x, memory, rest, rows, t.n, block, wire, levels.width, levels.s, levels.bits, l2,
                                           shrink, key.k0, key.k1, key.step, t.threads);
    t.returned(all);
    if (!all) return t.forget();
    std::vector<const uint8_t*> wires;
    for (int64_t w = 0; w < W; w++) wires.push_back(wire + w % rows * levels.width);
    float* out = t.numbers(t.n);
    t.returned(dequantize_sum[t.target](wires.data(), W, out, t.n, block, levels.s, levels.bits, 0.5f, t.dice.coin(), t.threads));
}

// A code of k indices below n: raw, bitmap or Elias-Fano, its low bits, and its bytes.
struct IndexCode {
    int code, low;
    int64_t bytes;
    IndexCode(int code_, int64_t k, int64_t n) : code(code_), low(0), bytes(0) {
        if (k == 0) return;
        const int64_t most = code == 0 ? n - 1 : n / k;  // raw: as many bits as n - 1 has; Elias-Fano: floor(log2(n / k))
        while (code != 1 && most >> low > (code == 0 ? 0 : 1)) low++;
        if (code == 0 && low == 0) low = 1;
        const int64_t packed = (k * low + 7) / 8;
        bytes = code == 0 ? packed : code == 1 ? (n + 7) / 8 : packed + (k + ((n - 1) >> low) + 7) / 8;
    }
};

inline void run_topk(Trial& t) {
    if (t.n == 0) return;
    const int64_t rows = 1 + t.dice.below(3), k = t.dice.of<int64_t>({1, (t.n + 99) / 100, (t.n + 1) / 2, t.n}), W = 1 + t.dice.below(3);
    const int narrow = t.dice.coin();
    const IndexCode code(static_cast<int>(t.dice.below(3)), k, t.n);
    const int64_t values = k * (narrow ? 2 : 4), width = values + code.bytes;
    float* x = t.numbers(rows * t.n);
    const bool has_memory = t.dice.coin();
    const float* memory = has_memory ? t.numbers(rows * t.n) : nullptr;
    float* rest = has_memory ? t.room<float>(rows * t.n) : t.dice.coin() ? t.written(x, rows * t.n) : nullptr;
    int64_t all;
    if (t.dice.coin()) {
        uint32_t* indices = t.room<uint32_t>(rows * k);
        all = topk[t.target](x, memory, rest, rows, t.n, k, narrow, indices, t.room<float>(rows * k), t.threads);
    } else {
        uint8_t* wire = t.room<uint8_t>(rows * width);
        all = topk_wire[t.target](x, memory, rest, rows, t.n, k, narrow, code.code, code.low, wire, width, t.threads);
        std::vector<const uint8_t*> at, codes;
        for (int64_t w = 0; w < W; w++) at.push_back(wire + w % rows * width), codes.push_back(at.back() + values);
        const std::vector<int64_t> ks(static_cast<size_t>(W), k);
        const std::vector<int32_t> kinds(static_cast<size_t>(W), code.code), lows(static_cast<size_t>(W), code.low);
        float* out = t.written(t.numbers(t.n), t.n);
        const int64_t refused = sparse_sum[t.target](at.data(), codes.data(), ks.data(), kinds.data(), lows.data(), W, out, t.n,
                                                     narrow, 0.5f, t.dice.coin(), t.threads);
        if (all > 0) t.returned(refused);
        if (t.kind == NOT_FINITE) t.forget();  // what was there before is not finite, either
    }
    t.returned(all);
    if (all <= 0) t.forget();
}

inline void run_above(Trial& t) {
    if (t.n == 0) return;
    const bool has_memory = t.dice.coin();
    float* x = t.numbers(t.n);
    const float* memory = has_memory ? t.numbers(t.n) : nullptr;
    float* rest = has_memory ? t.room<float>(t.n) : t.dice.coin() ? t.written(x, t.n) : nullptr;
    const int bound = t.dice.of({0x3F000000, 0x38000000, 0x7F000000, 1});
    const int64_t capacity = t.dice.of<int64_t>({t.n, t.n / 2, 1});
    int32_t all = 1;
    uint32_t* index = t.array<uint32_t>(capacity);
    float* value = t.array<float>(capacity);
    const int64_t count =
        above[t.target](x, memory, rest, t.n, bound, t.dice.coin(), capacity, index, value, &all, t.threads);
    if (count > capacity || !all) return t.forget();
    t.returned(count);
    t.written(index, count), t.written(value, count);
}

inline void run_write_pairs(Trial& t) {
    const int64_t k = t.n, n = k * (1 + t.dice.below(200)) + t.dice.below(3);
    if (k == 0) return;
    const IndexCode code(static_cast<int>(t.dice.below(3)), k, n);
    const int narrow = t.dice.coin();
    uint32_t* index = t.array<uint32_t>(k);
    for (int64_t i = 0; i < k; i++) index[i] = static_cast<uint32_t>(i * (n / k) + t.dice.below(n / k));
    const float* values = t.numbers(k);
    write_pairs[t.target](index, values, k, n, narrow, code.code, code.low, t.room<uint8_t>(k * (narrow ? 2 : 4) + code.bytes));
    if (t.kind == NOT_FINITE) t.forget();
}

inline void run_square_sum(Trial& t) {
    const float* x = t.numbers(t.n);
    const float* memory = t.dice.coin() ? t.numbers(t.n) : nullptr;
    square_sum[t.target](x, memory, t.n, t.room<double>(1), t.threads);
    if (t.kind == NOT_FINITE || t.kind == EXTREME) t.forget();
}

inline void run_pack(Trial& t) {
    const int64_t rows = 1 + t.dice.below(3), count = rows * t.n;
    const int bits = 1 + static_cast<int>(t.dice.below(32)), size = bits <= 8 ? t.dice.of({1, 8}) : t.dice.of({4, 8});
    const int64_t width = (t.n * bits + 7) / 8;
    uint8_t* packed = t.room<uint8_t>(rows * width);
    const uint64_t most = (1ull << bits) - 1;
    if (size == 1) {
        uint8_t* values = t.array<uint8_t>(count);
        for (int64_t i = 0; i < count; i++) values[i] = static_cast<uint8_t>(t.dice.roll() & most);
        pack[t.target](values, 1, rows, t.n, bits, packed, t.threads);
    } else if (size == 4) {
        uint32_t* values = t.array<uint32_t>(count);
        for (int64_t i = 0; i < count; i++) values[i] = static_cast<uint32_t>(t.dice.roll() & most);
        pack[t.target](values, 4, rows, t.n, bits, packed, t.threads);
    } else {
        uint64_t* values = t.array<uint64_t>(count);
        for (int64_t i = 0; i < count; i++) values[i] = t.dice.roll() & most;
        pack[t.target](values, 8, rows, t.n, bits, packed, t.threads);
    }
    if (bits <= 8) {
        unpack[t.target](packed, rows, width, t.n, bits, t.room<uint8_t>(count), 1, t.threads);
    } else {
        unpack[t.target](packed, rows, width, t.n, bits, t.room<uint64_t>(count), 8, t.threads);
    }
}

inline void run_indices(Trial& t) {
    const int64_t rows = 1 + t.dice.below(3), k = t.n, n = k * (1 + t.dice.below(200)) + t.dice.below(3);
    if (k == 0) return;
    const IndexCode code(static_cast<int>(t.dice.below(3)), k, n);
    int64_t* index = t.array<int64_t>(rows * k);
    for (int64_t i = 0; i < rows * k; i++) index[i] = i % k * (n / k) + t.dice.below(n / k);
    if (t.dice.below(4) == 0) index[t.dice.below(rows * k)] = t.dice.of<int64_t>({-1, n, 0, 1ll << 40});  // refused
    uint8_t* wire = t.room<uint8_t>(rows * code.bytes);
    const int64_t refused = encode_indices[t.target](index, rows, k, n, code.code, code.low, wire, code.bytes, t.threads);
    t.returned(refused == 0);
    if (refused) return t.forget();
    t.returned(decode_indices[t.target](wire, rows, code.bytes, k, n, code.code, code.low, t.room<int64_t>(rows * k), t.threads));
}

// What all encoders take, and several wires for a decoder.
struct Encoding {
    int64_t rows, block, width, W;
    float *x, *rest = nullptr;
    const float* memory = nullptr;
    uint8_t* wire;
    std::vector<const uint8_t*> wires;
    Encoding(Trial& t, int64_t block_, int64_t width_)
        : rows(1 + t.dice.below(3)), block(block_), width(width_), W(1 + t.dice.below(20)), x(t.numbers(rows * t.n)) {
        if (t.dice.coin()) {
            memory = t.numbers(rows * t.n), rest = t.room<float>(rows * t.n);
        } else if (t.dice.coin()) {
            rest = t.written(x, rows * t.n);
        }
        wire = t.room<uint8_t>(rows * width);
        for (int64_t w = 0; w < W; w++) wires.push_back(wire + w % rows * width);
    }
};

inline void run_one_bit(Trial& t) {
    if (t.n == 0) return;
    const int rule = static_cast<int>(t.dice.below(3));
    const int64_t block = rule == 0 ? t.n : some_block(t.dice);
    const Encoding e(t, block, 4 * rule * blocks(t.n, block) + (t.n + 7) / 8);
    const int zeros = static_cast<int>(t.dice.below(3));
    const float below = t.dice.coin() ? 0.0f : 0.1f;
    const int64_t all = one_bit[t.target](e.x, e.memory, e.rest, e.rows, t.n, block, e.wire, e.width, rule, zeros, below, t.threads);
    t.returned(all);
    if (!all) return t.forget();
    float* out = t.written(t.numbers(t.n), t.n);
    t.returned(one_bit_sum[t.target](e.wires.data(), e.W, out, t.n, block, rule, 0.5f, t.dice.coin(), t.threads));
    if (rule == 0) majority[t.target](e.wires.data(), e.W, t.room<float>(t.n), t.n, 0.5f, t.threads);
    if (t.kind == EXTREME) t.forget();  // sums may overflow
}

inline void run_trit_votes(Trial& t) {
    if (t.n == 0) return;
    const Encoding e(t, t.n, (t.n + 4) / 5);
    const int64_t all = trit_votes[t.target](e.x, e.memory, e.rest, e.rows, t.n, e.wire, e.width, t.threads);
    t.returned(all);
    if (!all) return t.forget();
    float* out = t.written(t.numbers(t.n), t.n);
    const int first = t.dice.coin(), second = t.dice.coin();
    t.returned(trit_votes_sum[t.target](e.wires.data(), e.W, out, t.n, 0.5f, first, second, t.threads));
}

inline void run_block_statistics(Trial& t) {
    if (t.n == 0) return;
    const int64_t rows = 1 + t.dice.below(3), block = some_block(t.dice), count = rows * blocks(t.n, block);
    const int kind = static_cast<int>(t.dice.below(4));
    void* out = kind == 3 ? static_cast<void*>(t.room<double>(count)) : t.room<float>(count);
    block_statistics[t.target](t.numbers(rows * t.n), rows, t.n, block, kind, out, t.threads);
    if (t.kind == NOT_FINITE) t.forget();
}

inline void run_natural(Trial& t) {
    if (t.n == 0) return;
    const Key key(t.dice);
    const int bits = t.dice.of({4, 8});
    const int64_t block = some_block(t.dice);
    const Encoding e(t, block, blocks(t.n, block) + (t.n * bits + 7) / 8);
    const int64_t all = natural[t.target](e.x, e.memory, e.rest, e.rows, t.n, block, e.wire, e.width, bits, key.k0, key.k1, key.step,
                                          t.threads);
    t.returned(all);
    if (!all) return t.forget();
    float* out = t.room<float>(t.n);
    t.returned(natural_sum[t.target](e.wires.data(), e.W, out, t.n, block, bits, 0.5f, 0, t.threads));
    if (t.kind == EXTREME) t.forget();  // sums may overflow
}

// 128 magnitudes, the middles between them, and where to look for a number's.
struct Book {
    static constexpr int CELLS = 0x3F81;
    float entries[128], middle[128];
    uint8_t floor[CELLS];
    Book() {
        for (int i = 0; i < 128; i++) {
            const uint32_t bits = static_cast<uint32_t>(111 + i / 8) << 23 | static_cast<uint32_t>(i % 8) << 20;
            memcpy(&entries[i], &bits, 4);
        }
        entries[0] = 0;
        for (int i = 0; i < 127; i++) middle[i] = (entries[i] + entries[i + 1]) / 2;
        middle[127] = __builtin_inff();
        for (uint32_t cell = 0, below = 0; cell < CELLS; cell++) {
            const uint32_t bits = cell << 16;
            float edge;
            memcpy(&edge, &bits, 4);
            while (middle[below] < edge) below++;
            floor[cell] = static_cast<uint8_t>(below);
        }
    }
};

inline void run_codebook(Trial& t) {
    if (t.n == 0) return;
    static const Book book;
    const int64_t block = some_block(t.dice);
    const Encoding e(t, block, 4 * blocks(t.n, block) + t.n);
    const int64_t all = codebook[t.target](e.x, e.memory, e.rest, e.rows, t.n, block, e.wire, e.width, book.entries, book.middle,
                                           book.floor, t.threads);
    t.returned(all);
    if (!all) return t.forget();
    float* out = t.room<float>(t.n);
    t.returned(codebook_sum[t.target](e.wires.data(), e.W, out, t.n, block, book.entries, 0.5f, 0, t.threads));
    if (t.kind == EXTREME) t.forget();  // sums may overflow
}

// The centroids of so many bits, ascending.
inline std::vector<float> centroids(int bits) {
    std::vector<float> book;
    for (int i = 0; i < 1 << bits; i++) book.push_back(0.3f * static_cast<float>(2 * i + 1 - (1 << bits)));
    return book;
}
inline int64_t rotated_width(int64_t n, int64_t block, int bits, int keyed) {
    return 8 * keyed + 4 * blocks(n, block) + (n * bits + 7) / 8;
}

inline void run_rotate(Trial& t) {
    if (t.n == 0) return;
    const Key key(t.dice);
    const int64_t rows = 1 + t.dice.below(3), block = 2ll << t.dice.below(16);
    const float* x = t.numbers(rows * t.n);
    const int way = static_cast<int>(t.dice.below(3));
    rotate[t.target](x, t.room<float>(rows * t.n), rows, t.n, block, way, key.k0, key.k1, key.step, t.threads);
    if (t.kind == NOT_FINITE) t.forget();  // which NaN comes of two is not the same everywhere
}

inline void run_rotated(Trial& t) {
    if (t.n == 0) return;
    const Key key(t.dice);
    const int bits = 1 + static_cast<int>(t.dice.below(4));
    const std::vector<float> book = centroids(bits);
    const int64_t block = 2ll << t.dice.below(16);
    const int keyed = t.dice.coin();
    const Encoding e(t, block, rotated_width(t.n, block, bits, keyed));
    const int64_t all = encode_rotated[t.target](e.x, e.memory, e.rest, e.rows, t.n, block, e.wire, e.width, book.data(), bits,
                                                 t.dice.coin(), keyed, key.k0, key.k1, key.step, t.threads);
    t.returned(all);
    if (!all) return t.forget();
    float* out = t.written(t.numbers(t.n), t.n);
    t.returned(sum_rotated[t.target](e.wires.data(), e.W, out, t.n, block, book.data(), bits, keyed, 0.5f, t.dice.coin(), key.k0,
                                     key.k1, key.step, t.threads));
    if (t.kind == EXTREME) t.forget();  // sums may overflow
}

inline void run_floats(Trial& t) {
    if (t.n == 0) return;
    const Key key(t.dice);
    const int64_t block = some_block(t.dice);
    const int m = t.dice.of({2, 3});
    const Encoding e(t, block, 4 * blocks(t.n, block) + t.n);
    const int64_t all = encode_floats[t.target](e.x, e.memory, e.rest, e.rows, t.n, block, e.wire, e.width, m, t.dice.coin(), key.k0,
                                                key.k1, key.step, t.threads);
    t.returned(all);
    if (!all) return t.forget();
    float* out = t.written(t.numbers(t.n), t.n);
    t.returned(sum_floats[t.target](e.wires.data(), e.W, out, t.n, block, m, 0.5f, t.dice.coin(), t.threads));
    if (t.kind == EXTREME) t.forget();  // sums may overflow
}

inline void run_fixed(Trial& t) {
    if (t.n == 0) return;
    const Key key(t.dice);
    const int64_t block = some_block(t.dice);
    const int bits = 2 + static_cast<int>(t.dice.below(7)), q = (1 << (bits - 1)) - 1, clips = t.dice.coin();
    const Encoding e(t, block, 4 * blocks(t.n, block) + (t.n * bits + 7) / 8);
    const float share = (clips ? 0.5f : 1.0f) / static_cast<float>(q), most = 3e38f / static_cast<float>(q + clips);
    const float shrink = t.dice.coin() ? 1.0f : 1.3f;
    const int64_t all = encode_fixed[t.target](e.x, e.memory, e.rest, e.rows, t.n, block, e.wire, e.width, bits, q + clips, share,
                                               most, shrink, t.dice.coin(), key.k0, key.k1, key.step, t.threads);
    t.returned(all);
    if (!all) return t.forget();
    float* out = t.written(t.numbers(t.n), t.n);
    t.returned(sum_fixed[t.target](e.wires.data(), e.W, out, t.n, block, bits, !clips, 0.5f, t.dice.coin(), t.threads));
    if (t.kind == EXTREME) t.forget();  // sums may overflow
}

inline void run_affine(Trial& t) {
    if (t.n == 0) return;
    const Key key(t.dice);
    const int64_t block = some_block(t.dice);
    const int bits = 2 + static_cast<int>(t.dice.below(7));
    const Encoding e(t, block, 8 * blocks(t.n, block) + (t.n * bits + 7) / 8);
    const int64_t all = encode_affine[t.target](e.x, e.memory, e.rest, e.rows, t.n, block, e.wire, e.width, bits, t.dice.coin(), key.k0,
                                                key.k1, key.step, t.threads);
    t.returned(all);
    if (!all) return t.forget();
    float* out = t.written(t.numbers(t.n), t.n);
    t.returned(sum_affine[t.target](e.wires.data(), e.W, out, t.n, block, bits, 0.5f, t.dice.coin(), t.threads));
    if (t.kind == EXTREME) t.forget();  // sums may overflow
}

// Buckets, and the bytes of a row's wire.
inline int64_t quantile_width(int64_t n, int64_t q) {
    int bits = 1;
    while ((q - 1) >> bits) bits++;
    return 4 * q + (n * bits + 7) / 8;
}

inline void run_quantiles(Trial& t) {
    if (t.n == 0) return;
    const Key key(t.dice);
    const int q = t.dice.of({2, 3, 4, 5, 7, 13, 16, 17, 64, 100, 256}), zero_edge = t.dice.coin();
    const Encoding e(t, t.n, quantile_width(t.n, q));
    const int64_t seen = t.dice.coin() ? t.n : (t.n + 9) / 10;
    const int64_t all = encode_quantiles[t.target](e.x, e.memory, e.rest, e.rows, t.n, e.wire, e.width, q, zero_edge, seen, key.k0,
                                                   key.k1, key.step, t.threads);
    t.returned(all);
    if (!all) return t.forget();
    float* out = t.written(t.numbers(t.n), t.n);
    t.returned(sum_quantiles[t.target](e.wires.data(), e.W, out, t.n, q, 0.5f, t.dice.coin(), t.threads));
    if (t.kind == EXTREME) t.forget();  // sums may overflow
}

enum Number {
#define GRACE_KERNEL(name, ...) NUMBER_##name,
#include "../signatures.h"
#undef GRACE_KERNEL
};

template <class T>
uint64_t word_of(T x) {
    uint64_t out = ~0ull;  // what lies behind an argument is not read
    memcpy(&out, &x, sizeof x);
    return out;
}

inline void run_call_many(Trial& t) {
    const int64_t rows = 1 + t.dice.below(4);
    const float factor = t.dice.of({1.0f, -0.3f});
    std::vector<uint64_t> table;
    std::vector<const float*> given;
    std::vector<float*> sums, expected;
    for (int64_t row = 0; row < rows; row++) {
        given.push_back(t.numbers(t.n)), sums.push_back(t.room<float>(t.n)), expected.push_back(t.room<float>(t.n));
        sum_finite[t.target](given.back(), nullptr, sums.back(), t.n, 1);
        sum_finite[t.target](given.back(), nullptr, expected.back(), t.n, 1);
        add_scaled[t.target](expected.back(), given.back(), 0, factor, t.n, 1);
        for (uint64_t word : {word_of(sums.back()), word_of(given.back()), word_of<int32_t>(0), word_of(factor), word_of(t.n),
                              word_of<int32_t>(t.threads)})
            table.push_back(word);
    }
    call_many[t.target](NUMBER_add_scaled, table.data(), rows, 6, t.room<int64_t>(rows));
    for (int64_t row = 0; row < rows; row++)
        if (memcmp(sums[row], expected[row], static_cast<size_t>(t.n) * sizeof(float))) abort();
    if (t.kind == NOT_FINITE || t.kind == EXTREME) t.forget();  // which NaN comes of two is not the same everywhere
}

// Numbers are rotated, rounded to a table, and what W workers sent is added up and rotated back.
inline void run_tables(Trial& t) {
    if (t.n == 0) return;
    const Key key(t.dice), shared(t.dice);
    const int64_t block = 2ll << t.dice.below(16), W = 1 + t.dice.below(40), c = blocks(t.n, W), nb = blocks(t.n, block);
    const int bits = 1 + static_cast<int>(t.dice.below(4)), size = 1 << bits;
    float* table = t.array<float>(size);
    int last = 0;
    for (int i = 0; i < size; i++) table[i] = static_cast<float>(last), last += i + 1 < size ? 1 + static_cast<int>(t.dice.below(2)) : 0;
    const bool rests = t.dice.coin(), has_memory = rests && t.dice.coin();
    float* x = t.numbers(t.n);
    const float* memory = has_memory ? t.numbers(t.n) : nullptr;
    float* rest = !rests ? nullptr : has_memory ? t.room<float>(t.n) : t.written(x, t.n);
    float *y = t.room<float>(t.n), *bounds = t.room<float>(nb);
    const int64_t all =
        rotate_norms[t.target](x, memory, y, t.n, block, bounds, shared.k0, shared.k1, shared.step, t.threads);
    t.returned(all);
    if (!all) return t.forget();
    for (int64_t i = 0; i < nb; i++) bounds[i] = bounds[i] / 3 < 1e38f ? bounds[i] / 3 : 1e38f;
    const int64_t width = (c * bits + 7) / 8;
    uint8_t* wire = t.room<uint8_t>(W * width);
    encode_entries[t.target](y, bounds, t.n, block, table, size, W, wire, width, key.k0, key.k1, key.step, x, memory, rest, shared.k0,
                             shared.k1, shared.step, t.threads);
    const int64_t most = static_cast<int64_t>(last) * W;
    int sum_bits = 1;
    while (most >> sum_bits) sum_bits++;
    const int64_t sums = (c * sum_bits + 7) / 8;
    uint8_t* answer = t.room<uint8_t>(W * sums);
    for (int64_t w = 0; w < W; w++)  // of every chunk the same
        sum_entries[t.target](wire, W, width, c, table, size, sum_bits, answer + w * sums, t.threads);
    t.returned(decode_entries[t.target](answer, W, sums, sum_bits, most, bounds, t.room<float>(t.n), t.n, block,
                                        2.0 / static_cast<double>(most), shared.k0, shared.k1, shared.step, t.threads));
    if (t.kind == EXTREME) t.forget();  // what is left may overflow
}

struct Case {
    const char* kernels;  // their names, with spaces around each
    void (*run)(Trial&);
};
constexpr Case CASES[] = {
    {" finite ", run_finite},
    {" sum_finite ", run_sum_finite},
    {" add_scaled ", run_add_scaled},
    {" split_low_rank project_rows project_columns add_low_rank ", run_low_rank},
    {" orthonormalize solve_ridge ", run_orthonormal},
    {" accelerate forget_sent ", run_momentum},
    {" words ", run_words},
    {" uniform ", run_uniform},
    {" subset ", run_subset},
    {" take_subset add_subset ", run_random_k},
    {" quantize dequantize_sum ", run_quantize},
    {" topk topk_wire sparse_sum ", run_topk},
    {" above ", run_above},
    {" write_pairs ", run_write_pairs},
    {" square_sum ", run_square_sum},
    {" pack unpack ", run_pack},
    {" one_bit one_bit_sum majority ", run_one_bit},
    {" trit_votes trit_votes_sum ", run_trit_votes},
    {" block_statistics ", run_block_statistics},
    {" natural natural_sum ", run_natural},
    {" codebook codebook_sum ", run_codebook},
    {" rotate ", run_rotate},
    {" encode_rotated sum_rotated ", run_rotated},
    {" encode_floats sum_floats ", run_floats},
    {" encode_fixed sum_fixed ", run_fixed},
    {" encode_affine sum_affine ", run_affine},
    {" encode_indices decode_indices ", run_indices},
    {" rotate_norms encode_entries sum_entries decode_entries ", run_tables},
    {" encode_quantiles sum_quantiles ", run_quantiles},
    {" call_many ", run_call_many},
};
