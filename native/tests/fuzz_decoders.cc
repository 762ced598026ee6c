// A fuzz target for all decoders: bytes that no sender writes must be refused or decoded, without undefined behavior, and by
// all instruction sets alike. An input is the decoder's number, what describes the wire (which a receiver knows by itself), and
// the wire. With clang, link with -fsanitize=fuzzer instead of mutate.cc.
//
// A new decoder needs its parameters, a function that decodes, one that writes a valid wire, and a row in DECODERS.
#include <stdio.h>

#include "kernels.h"

namespace {

// Reads an input; behind its end there are zeros. Arrays have the exact size, on the heap.
class Feed {
   public:
    Feed(const uint8_t* data_, size_t size) : data(data_), left(size) {}
    Feed(const Feed&) = delete;
    Feed& operator=(const Feed&) = delete;
    ~Feed() {
        for (void* p : owned) free(p);
    }
    uint8_t byte() {
        if (!left) return 0;
        left--;
        return *data++;
    }
    int64_t upto(int64_t most) {
        const int64_t a = byte(), b = byte();
        return (a + 256 * b) % (most + 1);
    }
    template <class T>
    T* array(int64_t count) {
        T* p = static_cast<T*>(malloc(static_cast<size_t>(count) * sizeof(T)));
        if (p == nullptr && count) abort();
        owned.push_back(p);
        return p;
    }
    uint8_t* bytes(int64_t count) {
        uint8_t* p = array<uint8_t>(count);
        for (int64_t i = 0; i < count; i++) p[i] = byte();
        return p;
    }

   private:
    const uint8_t* data;
    size_t left;
    std::vector<void*> owned;
};

// What one decoder made of an input: the same for all targets.
struct Decoded {
    int64_t code;  // 0: decoded; -1, -2, ...: refused
    const void* out;
    int64_t size;
};

typedef std::vector<uint8_t> Input;
void append(Input& to, const uint8_t* p, int64_t size) { to.insert(to.end(), p, p + size); }

// ---- stochastic quantization
struct Quantized {
    int64_t n, block, W;
    Levels levels;
    explicit Quantized(Feed& feed)
        : n(1 + feed.upto(5000)), block(1 + feed.upto(feed.byte() & 1 ? 70 : 6000)), W(1 + feed.upto(2)),
          levels(1 + static_cast<int>(feed.upto(126)), n, block) {}
};
Decoded decode_quantized(Feed& feed, int target) {
    const Quantized q(feed);
    std::vector<const uint8_t*> wires;
    for (int64_t w = 0; w < q.W; w++) wires.push_back(feed.bytes(q.levels.width));
    float* out = feed.array<float>(q.n);
    const int64_t code =
        dequantize_sum[target](wires.data(), q.W, out, q.n, q.block, q.levels.s, q.levels.bits, 0.5f, 0, 1);
    return {code, out, 4 * q.n};
}
void encode_quantized(Feed& feed, Dice& dice, Input& to) {
    const Quantized q(feed);
    for (int64_t w = 0; w < q.W; w++) {
        float* x = feed.array<float>(q.n);
        for (int64_t i = 0; i < q.n; i++) x[i] = number(USUAL, dice);
        uint8_t* wire = feed.array<uint8_t>(q.levels.width);
        quantize[0](x, nullptr, nullptr, 1, q.n, q.block, wire, q.levels.width, q.levels.s, q.levels.bits, 0, 1, 1, 2, 3, 1);
        append(to, wire, q.levels.width);
    }
}

// ---- the other block codecs: heads for each block, then codes
enum Family { ONE_BIT, VOTES, NATURAL, CODEBOOK, FLOATS, FIXED, AFFINE };
template <Family family>
struct Blocked {
    int64_t n, block, W, width;
    int kind;
    explicit Blocked(Feed& feed)
        : n(1 + feed.upto(5000)), block(1 + feed.upto(feed.byte() & 1 ? 70 : 6000)), W(1 + feed.upto(2)), width(0), kind(feed.byte()) {
        if (family == ONE_BIT) {
            kind %= 3;  // heads of 0, 4 or 8 bytes
            if (kind == 0) block = n;
            width = 4 * kind * blocks(n, block) + (n + 7) / 8;
        } else if (family == VOTES) {
            width = (n + 4) / 5;
        } else if (family == NATURAL) {
            kind = kind & 1 ? 4 : 8;  // bits
            width = blocks(n, block) + (n * kind + 7) / 8;
        } else if (family == FIXED || family == AFFINE) {
            kind = kind % 7 + 2;  // bits
            width = (family == FIXED ? 4 : 8) * blocks(n, block) + (n * kind + 7) / 8;
        } else {
            width = 4 * blocks(n, block) + n;
        }
    }
};
const Book book;
template <Family family>
Decoded decode_blocked(Feed& feed, int target) {
    const Blocked<family> b(feed);
    std::vector<const uint8_t*> wires;
    for (int64_t w = 0; w < b.W; w++) wires.push_back(feed.bytes(b.width));
    float* out = feed.array<float>(b.n);
    int64_t code;
    if (family == ONE_BIT) {
        code = one_bit_sum[target](wires.data(), b.W, out, b.n, b.block, b.kind, 0.5f, 0, 1);
        if (b.kind == 0) majority[target](wires.data(), b.W, out, b.n, 0.5f, 1);
    } else if (family == VOTES) {
        code = trit_votes_sum[target](wires.data(), b.W, out, b.n, 0.5f, 0, b.kind & 1, 1);
    } else if (family == NATURAL) {
        code = natural_sum[target](wires.data(), b.W, out, b.n, b.block, b.kind, 0.5f, 0, 1);
    } else if (family == FIXED) {
        code = sum_fixed[target](wires.data(), b.W, out, b.n, b.block, b.kind, b.n % 2 == 0, 0.25f, 0, 1);
    } else if (family == AFFINE) {
        code = sum_affine[target](wires.data(), b.W, out, b.n, b.block, b.kind, 0.25f, 0, 1);
    } else if (family == FLOATS) {
        code = sum_floats[target](wires.data(), b.W, out, b.n, b.block, 2 + (b.kind & 1), 0.25f, 0, 1);
    } else {
        code = codebook_sum[target](wires.data(), b.W, out, b.n, b.block, book.entries, 0.5f, 0, 1);
    }
    return {code, out, 4 * b.n};
}
template <Family family>
void encode_blocked(Feed& feed, Dice& dice, Input& to) {
    const Blocked<family> b(feed);
    for (int64_t w = 0; w < b.W; w++) {
        float* x = feed.array<float>(b.n);
        for (int64_t i = 0; i < b.n; i++) x[i] = number(USUAL, dice);
        uint8_t* wire = feed.array<uint8_t>(b.width);
        if (family == ONE_BIT) {
            one_bit[0](x, nullptr, nullptr, 1, b.n, b.block, wire, b.width, b.kind, 0, 0, 1);
        } else if (family == VOTES) {
            trit_votes[0](x, nullptr, nullptr, 1, b.n, wire, b.width, 1);
        } else if (family == NATURAL) {
            natural[0](x, nullptr, nullptr, 1, b.n, b.block, wire, b.width, b.kind, 1, 2, 3, 1);
        } else if (family == FIXED) {
            const float q = static_cast<float>((1 << (b.kind - 1)) - 1);
            encode_fixed[0](x, nullptr, nullptr, 1, b.n, b.block, wire, b.width, b.kind, static_cast<int>(q), 1 / q, 3e38f / q, 1, 0, 1,
                            2, 3, 1);
        } else if (family == AFFINE) {
            encode_affine[0](x, nullptr, nullptr, 1, b.n, b.block, wire, b.width, b.kind, 0, 1, 2, 3, 1);
        } else if (family == FLOATS) {
            encode_floats[0](x, nullptr, nullptr, 1, b.n, b.block, wire, b.width, 2 + (b.kind & 1), 0, 1, 2, 3, 1);
        } else {
            codebook[0](x, nullptr, nullptr, 1, b.n, b.block, wire, b.width, book.entries, book.middle, book.floor, 1);
        }
        append(to, wire, b.width);
    }
}

// ---- codes of rotated blocks
struct Rotated {
    int64_t n, block, W;
    int bits, keyed;
    std::vector<float> book;
    int64_t width;
    explicit Rotated(Feed& feed)
        : n(1 + feed.upto(5000)), block(2ll << feed.byte() % 16), W(1 + feed.upto(2)), bits(1 + feed.byte() % 4), keyed(feed.byte() & 1),
          book(centroids(bits)), width(rotated_width(n, block, bits, keyed)) {}
};
Decoded decode_rotated(Feed& feed, int target) {
    const Rotated r(feed);
    std::vector<const uint8_t*> wires;
    for (int64_t w = 0; w < r.W; w++) wires.push_back(feed.bytes(r.width));
    float* out = feed.array<float>(r.n);
    const int64_t code = sum_rotated[target](wires.data(), r.W, out, r.n, r.block, r.book.data(), r.bits, r.keyed, 0.5f, 0, 1, 2, 3, 1);
    for (int64_t i = 0; i < r.n; i++) out[i] = out[i] == out[i] ? out[i] : 0;  // sums may overflow
    return {code, out, 4 * r.n};
}
void encode_rotated_blocks(Feed& feed, Dice& dice, Input& to) {
    const Rotated r(feed);
    for (int64_t w = 0; w < r.W; w++) {
        float* x = feed.array<float>(r.n);
        for (int64_t i = 0; i < r.n; i++) x[i] = number(USUAL, dice);
        uint8_t* wire = feed.array<uint8_t>(r.width);
        encode_rotated[0](x, nullptr, nullptr, 1, r.n, r.block, wire, r.width, r.book.data(), r.bits, 0, r.keyed, 1, 2, 3, 1);
        append(to, wire, r.width);
    }
}

// ---- buckets between quantiles
struct Bucketed {
    int64_t n, W;
    int q;
    int64_t width;
    explicit Bucketed(Feed& feed) : n(1 + feed.upto(5000)), W(1 + feed.upto(2)), q(2 + feed.byte() % 255), width(quantile_width(n, q)) {}
};
Decoded decode_quantiles(Feed& feed, int target) {
    const Bucketed b(feed);
    std::vector<const uint8_t*> wires;
    for (int64_t w = 0; w < b.W; w++) wires.push_back(feed.bytes(b.width));
    float* out = feed.array<float>(b.n);
    return {sum_quantiles[target](wires.data(), b.W, out, b.n, b.q, 0.25f, 0, 1), out, 4 * b.n};
}
void encode_buckets(Feed& feed, Dice& dice, Input& to) {
    const Bucketed b(feed);
    for (int64_t w = 0; w < b.W; w++) {
        float* x = feed.array<float>(b.n);
        for (int64_t i = 0; i < b.n; i++) x[i] = number(USUAL, dice);
        uint8_t* wire = feed.array<uint8_t>(b.width);
        encode_quantiles[0](x, nullptr, nullptr, 1, b.n, wire, b.width, b.q, 1, b.n, 1, 2, 3, 1);
        append(to, wire, b.width);
    }
}

// ---- random-k
Decoded decode_random_k(Feed& feed, int target) {
    const int64_t n = 1 + feed.upto(9000), k = feed.upto(n), W = 1 + feed.upto(2);
    std::vector<const uint8_t*> wires;
    for (int64_t w = 0; w < W; w++) wires.push_back(feed.bytes(4 * k));
    float* out = feed.array<float>(n);
    for (int64_t i = 0; i < n; i++) out[i] = 0;
    add_subset[target](wires.data(), W, out, n, k, 1, 2, 3, 0.5f, 1);
    for (int64_t i = 0; i < n; i++) out[i] = out[i] == out[i] ? out[i] : 0;  // a NaN's other bits mean nothing
    return {0, out, 4 * n};
}
void encode_nothing(Feed&, Dice&, Input&) {}  // any bytes are valid

// ---- lists of indices, alone and with values
struct Listed {
    int64_t n, k;
    int narrow;
    IndexCode code;
    explicit Listed(Feed& feed)
        : n(1 + feed.upto(feed.byte() & 1 ? 70 : 9000)), k(1 + feed.upto(n < 500 ? n - 1 : 499)), narrow(feed.byte() & 1),
          code(feed.byte() % 3, k, n) {}
    int64_t values() const { return k * (narrow ? 2 : 4); }
};
Decoded decode_list(Feed& feed, int target) {
    const Listed list(feed);
    const uint8_t* codes = feed.bytes(list.code.bytes);
    int64_t* out = feed.array<int64_t>(list.k);
    return {decode_indices[target](codes, 1, list.code.bytes, list.k, list.n, list.code.code, list.code.low, out, 1), out, 8 * list.k};
}
void encode_list(Feed& feed, Dice& dice, Input& to) {
    const Listed list(feed);
    int64_t* index = feed.array<int64_t>(list.k);
    for (int64_t i = 0; i < list.k; i++) index[i] = i * (list.n / list.k) + dice.below(list.n / list.k);
    uint8_t* codes = feed.array<uint8_t>(list.code.bytes);
    encode_indices[0](index, 1, list.k, list.n, list.code.code, list.code.low, codes, list.code.bytes, 1);
    append(to, codes, list.code.bytes);
}
Decoded decode_sparse(Feed& feed, int target) {
    const Listed list(feed);
    const uint8_t *values = feed.bytes(list.values()), *codes = feed.bytes(list.code.bytes);
    const uint8_t *at[] = {values, values}, *coded[] = {codes, codes};
    const int64_t k[] = {list.k, list.k};
    const int32_t code[] = {list.code.code, list.code.code}, low[] = {list.code.low, list.code.low};
    float* out = feed.array<float>(list.n);
    return {sparse_sum[target](at, coded, k, code, low, 2, out, list.n, list.narrow, 0.5f, 0, 1), out, 4 * list.n};
}
void encode_sparse(Feed& feed, Dice& dice, Input& to) {
    const Listed list(feed);
    float* x = feed.array<float>(list.n);
    for (int64_t i = 0; i < list.n; i++) x[i] = number(USUAL, dice);
    const int64_t width = list.values() + list.code.bytes;
    uint8_t* wire = feed.array<uint8_t>(width);
    topk_wire[0](x, nullptr, nullptr, 1, list.n, list.k, list.narrow, list.code.code, list.code.low, wire, width, 1);
    append(to, wire, width);
}

// ---- packed numbers: any bytes are valid
Decoded decode_packed(Feed& feed, int target) {
    const int64_t n = 1 + feed.upto(3000);
    const int bits = 1 + feed.byte() % 32, size = bits <= 8 ? 1 : 8;
    const int64_t width = (n * bits + 7) / 8;
    uint8_t* out = feed.array<uint8_t>(n * size);
    return {unpack[target](feed.bytes(width), 1, width, n, bits, out, size, 1), out, n * size};
}

struct Decoder {
    const char* name;
    int64_t description;  // bytes that describe the wire
    Decoded (*decode)(Feed&, int target);
    void (*encode)(Feed&, Dice&, Input&);
};
constexpr Decoder DECODERS[] = {
    {"dequantize_sum", 9, decode_quantized, encode_quantized},
    {"one_bit_sum", 8, decode_blocked<ONE_BIT>, encode_blocked<ONE_BIT>},
    {"trit_votes_sum", 8, decode_blocked<VOTES>, encode_blocked<VOTES>},
    {"natural_sum", 8, decode_blocked<NATURAL>, encode_blocked<NATURAL>},
    {"codebook_sum", 8, decode_blocked<CODEBOOK>, encode_blocked<CODEBOOK>},
    {"sum_fixed", 8, decode_blocked<FIXED>, encode_blocked<FIXED>},
    {"sum_affine", 8, decode_blocked<AFFINE>, encode_blocked<AFFINE>},
    {"sum_floats", 8, decode_blocked<FLOATS>, encode_blocked<FLOATS>},
    {"sum_rotated", 6, decode_rotated, encode_rotated_blocks},
    {"sum_quantiles", 5, decode_quantiles, encode_buckets},
    {"add_subset", 6, decode_random_k, encode_nothing},
    {"decode_indices", 7, decode_list, encode_list},
    {"sparse_sum", 7, decode_sparse, encode_sparse},
    {"unpack", 3, decode_packed, encode_nothing},
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) return 0;
    const Decoder& decoder = DECODERS[data[0] % std::size(DECODERS)];
    Feed first(data + 1, size - 1);
    const Decoded expected = decoder.decode(first, 0);
    for (int target = 1; target <= best_target(); target++) {
        Feed feed(data + 1, size - 1);
        const Decoded found = decoder.decode(feed, target);
        const bool same = found.size == expected.size && (found.code == 0) == (expected.code == 0);
        if (same && (found.code || !found.size || !memcmp(found.out, expected.out, static_cast<size_t>(found.size)))) continue;
        fprintf(stderr, "%s: target %d differs from target 0\n", decoder.name, target);
        abort();
    }
    return expected.code != 0;  // libFuzzer then leaves it out of its corpus; mutate.cc counts it
}

// The names of the decoders, in the order of their numbers.
std::vector<const char*> decoder_names() {
    std::vector<const char*> out;
    for (const Decoder& decoder : DECODERS) out.push_back(decoder.name);
    return out;
}

// A valid input for one decoder. Most are short: a run then has time for many, and the edges are near each other.
std::vector<uint8_t> valid_input(size_t number, uint64_t seed) {
    Dice dice(seed);
    Input out = {static_cast<uint8_t>(number)};
    const Decoder& decoder = DECODERS[number];
    for (int64_t i = 0; i < decoder.description; i++) out.push_back(static_cast<uint8_t>(dice.roll()));
    if (dice.below(64)) out[2] = out[3] = 0;  // the upper byte of n, or of what n is drawn from
    const Input description(out.begin() + 1, out.end());
    Feed feed(description.data(), description.size());
    decoder.encode(feed, dice, out);
    return out;
}
