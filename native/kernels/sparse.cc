// The sum of sparse wires: values and the codes of their indices, straight into a dense vector.
#include "../indices.h"

#include <stdlib.h>

namespace grace {
namespace GRACE_TARGET {
namespace {

constexpr int64_t BLOCK = 8192;          // numbers of the sum that are in the first-level cache at a time
constexpr int64_t BLOCKS = 8;            // of a task
constexpr int64_t PAST = 1 << 20;        // numbers: from here on the sum is written past the caches
constexpr int64_t NOT_FINITE = -1;

// Where one wire's parts are.
struct Part {
    const uint8_t* values;    // float32 or bfloat16
    const uint8_t* codes;     // of indices
    int64_t k;
    int code, low;
    const uint32_t* index;  // decoded
};

template <bool narrow>
GRACE_INLINE float value_at(const uint8_t* values, int64_t j) {
    uint32_t bits = 0;
    if (narrow) {
        memcpy(&bits, values + 2 * j, 2);
        bits <<= 16;
    } else {
        memcpy(&bits, values + 4 * j, 4);
    }
    float v;
    memcpy(&v, &bits, 4);
    return v;
}

template <bool narrow>
bool all_finite(const uint8_t* values, int64_t k) {
    uint32_t bad = 0;
    int64_t j = 0;
    vi most = {};
    for (; j + L <= k; j += L) {
        if (narrow) {
            uint16_t words[L];
            memcpy(words, values + 2 * j, sizeof words);
            most = max(most, load_u16(words) & 0x7FFF);
        } else {
            most = max(most, magnitude(load<vi>(values + 4 * j)));
        }
    }
    bad = largest(most) >= (narrow ? 0x7F80 : 0x7F800000);
    for (; j < k; j++) {
        const float v = value_at<narrow>(values, j);
        uint32_t bits;
        memcpy(&bits, &v, 4);
        bad |= (bits & 0x7F800000) == 0x7F800000;
    }
    return !bad;
}

template <bool narrow>
void add_block(const Part& part, int64_t& j, int64_t first, int64_t end, float weight, float* sum) {
    if (part.code == DENSE) {
        for (int64_t i = first; i < end; i++) sum[i - first] += value_at<narrow>(part.values, i) * weight;
        return;
    }
    const uint32_t* index = part.index;
    float* origin = sum - first;
    int64_t at = j;
    for (; at < part.k && index[at] < end; at++) origin[index[at]] += value_at<narrow>(part.values, at) * weight;
    j = at;
}

// The first of a list's indices that is not below `first`.
int64_t lower_bound(const Part& part, int64_t first) {
    int64_t low = 0, high = part.code == DENSE ? 0 : part.k;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (part.index[middle] < first) low = middle + 1; else high = middle;
    }
    return low;
}

template <bool narrow>
int64_t sum_parts(Part* parts, int64_t W, uint32_t* lists, float* out, int64_t n, float weight, bool accumulate, int threads) {
    int64_t refused = OK, total = 0;
    for (int64_t w = 0; w < W; w++) {
        if (parts[w].code == DENSE) {
            total += n;
        } else if (parts[w].code == LIST) {
            parts[w].index = (const uint32_t*)(const void*)parts[w].codes;
            total += parts[w].k;
        } else {
            parts[w].index = lists;
            lists += parts[w].k;
            total += parts[w].k;
        }
    }
    auto decode = [&](int64_t w) {
        Part& part = parts[w];
        int64_t wrong = OK;
        if (!all_finite<narrow>(part.values, part.code == DENSE ? n : part.k)) {
            wrong = NOT_FINITE;
        } else if (part.code == LIST) {
            wrong = check_list(part.index, part.k, n);
        } else if (part.code != DENSE && part.k) {
            wrong = decode_list(part.codes, part.k, n, part.code, part.low, const_cast<uint32_t*>(part.index));
        }
        if (wrong) __atomic_store_n(&refused, wrong, __ATOMIC_RELAXED);
    };
    parallel(W, enough_threads(8 * total, threads), decode);
    if (refused) return refused;
    const int64_t blocks = ceil_div(n, BLOCK);
    const bool past = !accumulate && n >= PAST && (uintptr_t)out % 64 == 0;
    auto add = [&](int64_t task) {
        alignas(64) float buffer[BLOCK];
        int64_t at[64];
        for (int64_t from = 0; from < W; from += 64) {
            const int64_t some = least(64, W - from);
            const bool fresh = from == 0 && !accumulate, direct = !past || W > 64;
            for (int64_t w = 0; w < some; w++) at[w] = lower_bound(parts[from + w], task * BLOCKS * BLOCK);
            for (int64_t block = task * BLOCKS; block < least(blocks, (task + 1) * BLOCKS); block++) {
                const int64_t first = block * BLOCK, end = least(n, first + BLOCK);
                float* sum = direct ? out + first : buffer;
                if (fresh) memset(sum, 0, (size_t)(end - first) * 4);
                for (int64_t w = 0; w < some; w++) add_block<narrow>(parts[from + w], at[w], first, end, weight, sum);
                if (!direct) {
                    int64_t i = 0;
                    for (; i + L <= end - first; i += L) stream(out + first + i, loadf(buffer + i));
                    for (; i < end - first; i++) out[first + i] = buffer[i];
                }
            }
        }
        if (past) fence();
    };
    parallel(ceil_div(blocks, BLOCKS), enough_threads(n, threads), add);
    return OK;
}

}  // namespace
}  // namespace GRACE_TARGET
}  // namespace grace

// out [n] = or += weight times what W wires say, added in their order. For each: where its values and its codes are, how many
// (k), which code, how many low bits. Nothing is written if a wire is refused.
GRACE_EXPORT(sparse_sum)(const uint8_t* const* values, const uint8_t* const* codes, const int64_t* k, const int32_t* code,
                         const int32_t* low, int64_t W, float* out, int64_t n, int narrow, float weight, int accumulate,
                         int threads) {
    using namespace grace::GRACE_TARGET;
    int64_t listed = 0;
    for (int64_t w = 0; w < W; w++) listed += code[w] == DENSE || code[w] == LIST ? 0 : k[w];
    auto* parts = (Part*)malloc((size_t)W * sizeof(Part) + (size_t)listed * 4 + 64);
    if (!parts) return NO_MEMORY;
    auto* lists = (uint32_t*)(void*)(parts + W);
    for (int64_t w = 0; w < W; w++) parts[w] = {values[w], codes[w], k[w], code[w], low[w], nullptr};
    const int64_t refused = narrow ? sum_parts<true>(parts, W, lists, out, n, weight, accumulate != 0, threads)
                                   : sum_parts<false>(parts, W, lists, out, n, weight, accumulate != 0, threads);
    free(parts);
    return refused;
}
