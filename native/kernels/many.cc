// Many calls of one kernel, whose arguments are the rows of a table: a bucket of tensors is one call from Python.
#include "../simd.h"

#include <utility>

namespace grace {
namespace GRACE_TARGET {
namespace {

// An argument is in the first bytes of its word: numbers are little-endian.
template <class T>
T argument(const uint64_t* word) {
    T out;
    memcpy(&out, word, sizeof out);
    return out;
}

template <class... A, size_t... I>
int64_t call(int64_t (*kernel)(A...), const uint64_t* words, std::index_sequence<I...>) {
    return kernel(argument<A>(words + I)...);
}
template <class... A>
int64_t call(int64_t (*kernel)(A...), const uint64_t* words) {
    return call(kernel, words, std::index_sequence_for<A...>());
}

typedef int64_t (*Caller)(const uint64_t* words);

#define GRACE_KERNEL(name, ...) [](const uint64_t* words) { return call(GRACE_PASTE(grace_##name, GRACE_TARGET), words); },
const Caller CALLERS[] = {
#include "../signatures.h"
};
#undef GRACE_KERNEL

}  // namespace
}  // namespace GRACE_TARGET
}  // namespace grace

// Calls kernel number `which` of signatures.h, counted from 0, once for each row of `table [count, width]`, in their order, with
// an argument in each word. results [count]: what it returned.
GRACE_EXPORT(call_many)(int which, const uint64_t* table, int64_t count, int64_t width, int64_t* results) {
    using namespace grace::GRACE_TARGET;
    for (int64_t i = 0; i < count; i++) results[i] = CALLERS[which](table + i * width);
    return 0;
}
