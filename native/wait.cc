// How processes that share memory wait for one another: counters in that memory, written with release and read with acquire, so
// that whoever has seen a counter also sees what its owner wrote before. Not kernels: no instruction set makes them faster.
//
// Each rank has a line of 64 bytes: the number of the turn that it has come to, and what it asks for in even and in odd turns.
#include <stdint.h>
#include <time.h>

#include <atomic>
#include <chrono>

#define GRACE_PUBLIC extern "C" __attribute__((visibility("default")))

namespace {

struct alignas(64) Line {
    std::atomic<int64_t> turn;
    std::atomic<int64_t> asked[2];
};
static_assert(sizeof(Line) == 64 && std::atomic<int64_t>::is_always_lock_free, "other processes share it");

constexpr int64_t FIRST_SLEEP = 20000, LONGEST_SLEEP = 1000000;  // nanoseconds

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

// The first rank that has not come to this turn; `ranks` if all have.
int64_t first_late(const Line* lines, int64_t ranks, int64_t turn, int64_t from) {
    while (from < ranks && lines[from].turn.load(std::memory_order_acquire) >= turn) from++;
    return from;
}

}  // namespace

// This rank has come to a turn: all that it wrote before is seen by those who have waited for it.
GRACE_PUBLIC int64_t grace_arrive(void* lines, int64_t rank, int64_t turn, int64_t asked) {
    Line& line = static_cast<Line*>(lines)[rank];
    line.asked[turn & 1].store(asked, std::memory_order_relaxed);
    line.turn.store(turn, std::memory_order_release);
    return 0;
}

// Waits until all ranks have come to a turn: first awake, then in sleeps that double.
// 0: they have, and ask for the same. 1 + r: rank r has not come within `nanoseconds`. -1: the word `failed` says why nobody
// should wait. -2 - r: rank r asks for something else.
GRACE_PUBLIC int64_t grace_wait(
    const void* lines_, int64_t ranks, int64_t turn, int64_t asked, const void* failed_, int64_t spins, int64_t nanoseconds) {
    const Line* lines = static_cast<const Line*>(lines_);
    const std::atomic<int64_t>* failed = static_cast<const std::atomic<int64_t>*>(failed_);
    int64_t late = first_late(lines, ranks, turn, 0), sleep = FIRST_SLEEP;
    for (; late < ranks && spins > 0; spins--) {
        pause();
        late = first_late(lines, ranks, turn, late);
    }
    const auto start = std::chrono::steady_clock::now();
    while (late < ranks) {
        if (failed->load(std::memory_order_acquire)) {
            // whoever leaves after its last turn says so, too, and all have come to that turn
            if (first_late(lines, ranks, turn, late) == ranks) break;
            return -1;
        }
        const int64_t left = nanoseconds - (std::chrono::steady_clock::now() - start) / std::chrono::nanoseconds(1);
        if (left <= 0) return 1 + late;
        const timespec some = {0, sleep < left ? sleep : left};
        nanosleep(&some, nullptr);
        sleep = 2 * sleep < LONGEST_SLEEP ? 2 * sleep : LONGEST_SLEEP;
        late = first_late(lines, ranks, turn, late);
    }
    for (int64_t rank = 0; rank < ranks; rank++) {
        if (lines[rank].asked[turn & 1].load(std::memory_order_relaxed) != asked) return -2 - rank;
    }
    return 0;
}

// Says why nobody should wait any more; the first word stays. Returns the word that is there now.
GRACE_PUBLIC int64_t grace_fail(void* failed_, int64_t word) {
    int64_t there = 0;
    const bool first = static_cast<std::atomic<int64_t>*>(failed_)->compare_exchange_strong(there, word, std::memory_order_acq_rel);
    return first ? word : there;
}
