// The k largest magnitudes, or all from a bound on, with error feedback; and their wires.
#include "../select.h"

#include "../indices.h"

namespace grace {
namespace GRACE_TARGET {
namespace {

// One block of memory for all arrays.
class Scratch {
   public:
    explicit Scratch(int64_t bytes) : block((uint8_t*)malloc((size_t)bytes + 64)), next(block) {}
    ~Scratch() { free(block); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    template <class T>
    T* take(int64_t count) {
        T* out = (T*)next;
        next += ceil_div(count * (int64_t)sizeof(T), 64) * 64;
        return out;
    }
    explicit operator bool() const { return block != nullptr; }

   private:
    uint8_t *block, *next;
};

int64_t candidate_bytes(int64_t capacity, int64_t n) {
    return capacity * 12 + ceil_div(n, MARKED) * 12 + 1024;
}
Candidates candidates(Scratch& scratch, int64_t capacity, int64_t n) {
    const int64_t strips = ceil_div(n, MARKED);
    return {scratch.take<uint32_t>(capacity), scratch.take<float>(capacity), capacity, 0, scratch.take<int64_t>(strips),
            scratch.take<int32_t>(strips)};
}

int64_t count_above(const float* values, int64_t count, int32_t key) {
    int64_t out = 0, i = 0;
    const vi b = splat(key);
    const vi most = splat(INFINITE);
    while (i + L <= count) {
        vi sum = {};
        for (int64_t end = least(count - L, i + 65536); i <= end; i += L) {
            const vi size = magnitude(load<vi>(values + i));
            sum -= select(size > most, most, size) > b;
        }
        for (int l = 0; l < L; l++) out += sum[l];
    }
    for (; i < count; i++) out += key_of(values[i]) > key;
    return out;
}

// The k-th largest key of the candidates, of which there are k or more.
int32_t kth(const Candidates& found, int64_t k, int32_t* keys, int32_t low, int32_t high) {
    int64_t near = 0;
    for (int64_t c = 0; c < found.count; c++) {
        const int32_t key = key_of(found.value[c]);
        keys[near] = key;
        near += key <= high;
    }
    const int64_t above = found.count - near;
    if (above < k) return ranked(keys, near, k - above, low, high);
    for (int64_t c = 0; c < found.count; c++) keys[c] = key_of(found.value[c]);
    return ranked(keys, found.count, k, low, INFINITE);
}

// Of the candidates those above `key`, and the first that equal it: k in all, ascending. Others go back into rest.
// Returns whether all are finite. `trimmed` has room for as many as there are candidates.
bool emit(const Source& s, const Candidates& found, int64_t k, int32_t key, uint32_t* index, float* value, int32_t* trimmed) {
    int64_t ties = k - count_above(found.value, found.count, key), kept = 0, back = 0;
    for (int64_t j = 0; j < found.strips(s.n); j++) {
        int64_t c = found.start[j];
        const int64_t end = c + found.length[j];
        for (; c < end && kept < k; c++) {
            const int32_t mine = key_of(found.value[c]);
            bool keep = mine > key;
            if (mine == key && ties > 0) ties--, keep = true;
            index[kept] = found.index[c];
            value[kept] = found.value[c];
            kept += keep;
            trimmed[back] = (int32_t)c;
            back += !keep;
        }
        for (; c < end; c++) trimmed[back++] = (int32_t)c;
    }
    const bool finite = count_above(value, k, INFINITE - 1) == 0;
    if (s.narrow) {
        for (int64_t j = 0; j < k; j++) value[j] = narrowed(value[j]);
    }
    if (s.rest) {
        for (int64_t t = 0; t < back; t++) {
            __builtin_prefetch(s.rest + found.index[trimmed[t + 24 < back ? t + 24 : t]], 1);
            s.rest[found.index[trimmed[t]]] = found.value[trimmed[t]];
        }
    }
    return finite;
}

// Two ascending lists as one: the candidates, and ties of the k-th largest.
void merge(const Source& s, const Candidates& found, const uint32_t* ties, const float* tied, int64_t count, uint32_t* index,
           float* value) {
    int64_t t = 0, out = 0;
    auto put = [&](uint32_t i, float v) {
        index[out] = i;
        value[out++] = s.narrow ? narrowed(v) : v;
    };
    for (int64_t j = 0; j < found.strips(s.n); j++)
        for (int64_t c = found.start[j], end = c + found.length[j]; c < end; c++) {
            for (; t < count && ties[t] < found.index[c]; t++) put(ties[t], tied[t]);
            put(found.index[c], found.value[c]);
        }
    for (; t < count; t++) put(ties[t], tied[t]);
}

// Where a sample cannot tell. 1: all finite, 0: not, or NO_MEMORY.
int64_t topk_exact(const Source& s, int64_t k, const Guess& g, uint32_t* index, float* value, int threads) {
    const Range r = narrow_down(s, k, g, least(s.n, 2 * k + s.n / 32), threads);
    if (r.low < r.high) {
        Scratch scratch(candidate_bytes(r.reach, s.n) + r.reach * 4 + 128);
        if (!scratch) return NO_MEMORY;
        Candidates found = candidates(scratch, r.reach, s.n);
        int32_t* keys = scratch.take<int32_t>(r.reach + 16);
        collect(s, r.low, found, true, threads);
        return emit(s, found, k, kth(found, k, keys, r.low, r.high), index, value, keys);
    }
    const int64_t ties = k - r.above;
    Scratch scratch(candidate_bytes(r.above, s.n) + ties * 8 + 128);
    if (!scratch) return NO_MEMORY;
    Candidates found = candidates(scratch, r.above, s.n);
    uint32_t* places_ = scratch.take<uint32_t>(ties);
    float* tied = scratch.take<float>(ties);
    first_ties(s, r.low, ties, places_);
    for (int64_t t = 0; t < ties; t++) tied[t] = s.at(places_[t]);
    if (r.low < INFINITE) {
        collect(s, r.low + 1, found, true, threads);
    } else {  // nothing is greater, and nobody will ask for the rest
        for (int64_t j = 0; j < found.strips(s.n); j++) found.start[j] = found.length[j] = 0;
    }
    if (s.rest) {
        for (int64_t t = 0; t < ties; t++) s.take(places_[t], tied[t]);
    }
    merge(s, found, places_, tied, ties, index, value);
    bool finite = r.low < INFINITE;
    for (int64_t c = 0; c < found.count; c++) finite = finite && key_of(found.value[c]) < INFINITE;
    return finite;
}

// The k largest of s, ascending, 1 <= k <= n. 1: all of p is finite, 0: it is not, or NO_MEMORY.
int64_t topk(const Source& s, int64_t k, uint32_t* index, float* value, int threads) {
    const int64_t groups = s.n <= 2048 ? 0 : least(s.n / 128, s.n / 2048 < 256 ? 256 : least(s.n / 2048, 8192));
    Guess g = {0, 0, INFINITE, s.n, false};
    if (groups) {
        const int64_t room = 3 * 16 * groups + 96;
        Scratch scratch(room * 4);
        if (!scratch) return NO_MEMORY;
        g = guess(s, k, scratch.take<int32_t>(room), groups, threads);
    }
    if (g.tied) return topk_exact(s, k, g, index, value, threads);
    const int64_t capacity = least(s.n, g.candidates + g.candidates / 2 + 4096);
    Scratch scratch(candidate_bytes(capacity, s.n) + capacity * 4 + 128);
    if (!scratch) return NO_MEMORY;
    Candidates found = candidates(scratch, capacity, s.n);
    int32_t* keys = scratch.take<int32_t>(capacity + 16);
    collect(s, g.low, found, false, threads);
    if (found.count < k || found.count > capacity) {
        restore(s, found);
        return topk_exact(s, k, g, index, value, threads);
    }
    return emit(s, found, k, kth(found, k, keys, g.low, g.high), index, value, keys);
}

// k values, then their indices.
void write_pairs(const uint32_t* index, const float* value, int64_t k, int64_t n, bool narrow, int code, int low, uint8_t* wire) {
    if (k == 0) return;  // an empty list takes no byte
    if (narrow) {
        for (int64_t j = 0; j < k; j++) {
            uint32_t bits;
            memcpy(&bits, value + j, 4);
            bits >>= 16;
            memcpy(wire + 2 * j, &bits, 2);
        }
    } else {
        memcpy(wire, value, (size_t)k * 4);
    }
    encode_list(index, k, n, code, low, wire + k * (narrow ? 2 : 4));
}

}  // namespace
}  // namespace GRACE_TARGET
}  // namespace grace

// index, value: rows of k.
GRACE_EXPORT(topk)(const float* x, const float* memory, float* rest, int64_t rows, int64_t n, int64_t k, int narrow,
                   uint32_t* index, float* value, int threads) {
    using namespace grace::GRACE_TARGET;
    int64_t finite = 1;
    for (int64_t row = 0; row < rows; row++) {
        const int64_t at = row * n;
        const Source s = {x + at, memory ? memory + at : nullptr, rest ? rest + at : nullptr, n, narrow != 0};
        const int64_t one = topk(s, k, index + row * k, value + row * k, threads);
        if (one < 0) return one;
        finite &= one;
    }
    return finite;
}

// wire: rows of k values (float32, or bfloat16 if narrow), then the codes of their indices.
GRACE_EXPORT(topk_wire)(const float* x, const float* memory, float* rest, int64_t rows, int64_t n, int64_t k, int narrow,
                        int code, int low, uint8_t* wire, int64_t stride, int threads) {
    using namespace grace::GRACE_TARGET;
    int64_t finite = 1;
    Scratch scratch(k * 8 + 128);
    if (!scratch) return NO_MEMORY;
    uint32_t* index = scratch.take<uint32_t>(k);
    float* value = scratch.take<float>(k);
    for (int64_t row = 0; row < rows; row++) {
        const int64_t at = row * n;
        const Source s = {x + at, memory ? memory + at : nullptr, rest ? rest + at : nullptr, n, narrow != 0};
        const int64_t one = topk(s, k, index, value, threads);
        if (one < 0) return one;
        finite &= one;
        write_pairs(index, value, k, n, s.narrow, code, low, wire + row * stride);
    }
    return finite;
}

// All that reach the key `bound`, ascending. Returns how many there are: if that is more than `capacity`, nothing was selected,
// x is as it was, and rest, elsewhere, means nothing.
GRACE_EXPORT(above)(const float* x, const float* memory, float* rest, int64_t n, int bound, int narrow, int64_t capacity,
                    uint32_t* index, float* value, int32_t* finite, int threads) {
    using namespace grace::GRACE_TARGET;
    const Source s = {x, memory, rest, n, narrow != 0};
    const bool alone = enough_threads(n, threads) == 1;  // then candidates are in order as they are found
    Scratch scratch(candidate_bytes(alone ? 0 : capacity, n));
    if (!scratch) return NO_MEMORY;
    Candidates found = candidates(scratch, alone ? 0 : capacity, n);
    if (alone) found.index = index, found.value = value, found.capacity = capacity;
    collect(s, bound, found, true, threads);
    if (found.count > capacity) {
        restore(s, found);
        return found.count;
    }
    *finite = count_above(found.value, found.count, INFINITE - 1) == 0;
    if (!alone) {
        for (int64_t j = 0, at = 0; j < found.strips(n); j++) {
            const auto length = (size_t)found.length[j];
            memcpy(index + at, found.index + found.start[j], length * 4);
            memcpy(value + at, found.value + found.start[j], length * 4);
            at += (int64_t)length;
        }
    }
    if (s.narrow) {
        for (int64_t c = 0; c < found.count; c++) value[c] = narrowed(value[c]);
    }
    return found.count;
}

// The wire of k pairs, whose indices are ascending and below n.
GRACE_EXPORT(write_pairs)(const uint32_t* index, const float* value, int64_t k, int64_t n, int narrow, int code, int low,
                          uint8_t* wire) {
    using namespace grace::GRACE_TARGET;
    write_pairs(index, value, k, n, narrow != 0, code, low, wire);
    return OK;
}

// The sum of the squares of x + memory, in the order of the reference's ordered_sum.
GRACE_EXPORT(square_sum)(const float* x, const float* memory, int64_t n, double* out, int threads) {
    using namespace grace::GRACE_TARGET;
    const int64_t pieces = ceil_div(n, PIECE);
    Scratch scratch(pieces * 8);
    if (!scratch) return NO_MEMORY;
    double* sums = scratch.take<double>(pieces);
    const Rows rows = {x, memory, nullptr, 1, n, n};
    auto work = [&](int64_t task) {
        alignas(64) float p[PIECE + 16];
        for (int64_t j = task * 8; j < least(pieces, task * 8 + 8); j++) {
            const int64_t len = least(PIECE, n - j * PIECE);
            gather(rows, j * PIECE, len, p);
            Lanes16 sum;
            for (int64_t i = 0; i < len; i += 16) sum.add(p + i, [](vd v) { return v * v; });
            sums[j] = sum.sum();
        }
    };
    parallel(ceil_div(pieces, 8), enough_threads(n, threads), work);
    *out = 0;
    for (int64_t j = 0; j < pieces; j++) *out += sums[j];
    return OK;
}
