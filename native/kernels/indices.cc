// Bit fields of 1 to 32 bits, and lists of indices in codes whose size follows from k and n.
#include "../indices.h"

namespace grace {
namespace GRACE_TARGET {
namespace {

constexpr int64_t FIELDS = 1 << 16;  // of a task: whole bytes

template <class T>
void pack_rows(const T* values, int64_t rows, int64_t n, int bits, uint8_t* out, int threads) {
    const int64_t per_row = ceil_div(n, FIELDS), width = (n * bits + 7) / 8;
    auto work = [&](int64_t task) {
        const int64_t row = task / per_row, at = task % per_row * FIELDS;
        pack_numbers(bits, values + row * n + at, least(FIELDS, n - at), out + row * width + at / 8 * bits);
    };
    parallel(rows * per_row, enough_threads(rows * n, threads), work);
}
template <class T>
void unpack_rows(const uint8_t* in, int64_t rows, int64_t stride, int64_t n, int bits, T* values, int threads) {
    const int64_t per_row = ceil_div(n, FIELDS);
    auto work = [&](int64_t task) {
        const int64_t row = task / per_row, at = task % per_row * FIELDS;
        unpack_numbers(bits, in + row * stride + at / 8 * bits, least(FIELDS, n - at), values + row * n + at);
    };
    parallel(rows * per_row, enough_threads(rows * n, threads), work);
}

}  // namespace
}  // namespace GRACE_TARGET
}  // namespace grace

// values: rows of n numbers of `size` bytes, 1, 4 or 8.
GRACE_EXPORT(pack)(const void* values, int size, int64_t rows, int64_t n, int bits, uint8_t* out, int threads) {
    using namespace grace::GRACE_TARGET;
    if (size == 1) {
        pack_rows((const uint8_t*)values, rows, n, bits, out, threads);
    } else if (size == 4) {
        pack_rows((const uint32_t*)values, rows, n, bits, out, threads);
    } else {
        pack_rows((const uint64_t*)values, rows, n, bits, out, threads);
    }
    return OK;
}

// in: rows `stride` bytes apart. values: numbers of `size` bytes, 1 or 8.
GRACE_EXPORT(unpack)(const uint8_t* in, int64_t rows, int64_t stride, int64_t n, int bits, void* values, int size,
                     int threads) {
    using namespace grace::GRACE_TARGET;
    if (size == 1) {
        unpack_rows(in, rows, stride, n, bits, (uint8_t*)values, threads);
    } else {
        unpack_rows(in, rows, stride, n, bits, (uint64_t*)values, threads);
    }
    return OK;
}

GRACE_EXPORT(encode_indices)(const int64_t* index, int64_t rows, int64_t k, int64_t n, int code, int low, uint8_t* out,
                             int64_t width, int threads) {
    using namespace grace::GRACE_TARGET;
    int64_t refused = OK;
    auto work = [&](int64_t row) {
        const int64_t* mine = index + row * k;
        const int64_t wrong = check_list(mine, k, n);
        if (wrong) __atomic_store_n(&refused, wrong, __ATOMIC_RELAXED);
        else encode_list(mine, k, n, code, low, out + row * width);
    };
    parallel(rows, enough_threads(rows * k, threads), work);
    return refused;
}

GRACE_EXPORT(decode_indices)(const uint8_t* in, int64_t rows, int64_t stride, int64_t k, int64_t n, int code, int low,
                             int64_t* index, int threads) {
    using namespace grace::GRACE_TARGET;
    int64_t refused = OK;
    auto work = [&](int64_t row) {
        const int64_t wrong = decode_list(in + row * stride, k, n, code, low, index + row * k);
        if (wrong) __atomic_store_n(&refused, wrong, __ATOMIC_RELAXED);
    };
    parallel(rows, enough_threads(rows * k, threads), work);
    return refused;
}
