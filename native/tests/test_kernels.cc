// Runs every kernel on many sizes, alignments and inputs, with every instruction set and number of threads, and compares what
// they wrote. Meant to be built with sanitizers: they see what a comparison cannot.
//
//   test_kernels            all of it
//   test_kernels threads    large arrays only, for ThreadSanitizer: several threads, several callers at once, a fork
//   test_kernels list       the names of the kernels that are run
//   test_kernels digest     what the base target writes, as numbers: the same on every processor
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "kernels.h"

namespace {

constexpr int64_t LARGE = (512 << 10) + 77;  // several threads work from 512 K numbers on
std::atomic<int64_t> runs{0}, failures{0};

uint64_t run(const Case& one, int target, int threads, int64_t n, uint64_t seed) {
    Trial trial(target, threads, n, seed);
    one.run(trial);
    runs++;
    return trial.outcome();
}

uint64_t seed_of(size_t which, int64_t n, int repeat) {
    return (static_cast<uint64_t>(which) << 48) + (static_cast<uint64_t>(n) << 8) + static_cast<uint64_t>(repeat);
}

void compare(size_t which, int64_t n, int repeats, std::initializer_list<int> threads) {
    for (int repeat = 0; repeat < repeats; repeat++) {
        const uint64_t seed = seed_of(which, n, repeat), expected = run(CASES[which], 0, 1, n, seed);
        for (int target = 0; target <= best_target(); target++) {
            for (int many : threads) {
                if (run(CASES[which], target, many, n, seed) == expected) continue;
                failures++;
                fprintf(stderr, "%s: target %d with %d threads differs from target 0: n = %lld, repeat %d\n",
                        CASES[which].kernels, target, many, static_cast<long long>(n), repeat);
            }
        }
    }
}

// All cases in their order, from any thread: the same outcome as alone.
uint64_t all_cases(int target, int threads, int64_t n) {
    uint64_t sum = 0;
    for (size_t which = 0; which < std::size(CASES); which++) sum += run(CASES[which], target, threads, n, seed_of(which, n, 0));
    return sum;
}

void check(bool holds, const char* what) {
    if (holds) return;
    failures++;
    fprintf(stderr, "%s\n", what);
}

void several_callers(int64_t n) {
    const uint64_t expected = all_cases(0, 1, n);
    std::vector<std::thread> callers;
    for (int i = 0; i < 4; i++) {
        callers.emplace_back([=] {
            const int target = i <= best_target() ? i : 0;
            check(all_cases(target, 1 + i % 4, n) == expected, "several callers at once disturb one another");
        });
    }
    for (std::thread& caller : callers) caller.join();
}

void forked(int64_t n) {
    const uint64_t expected = all_cases(0, 2, n);  // the pool has threads by now, which the child will not have
    const pid_t child = fork();
    if (child == 0) _exit(all_cases(0, 2, n) == expected ? 0 : 1);
    int status = -1;
    check(child > 0 && waitpid(child, &status, 0) == child && status == 0, "a forked child does not compute the same");
    check(all_cases(0, 2, n) == expected, "nor does its parent afterwards");
}

}  // namespace

int main(int argc, char** argv) {
    const char* mode = argc > 1 ? argv[1] : "all";
    if (!strcmp(mode, "list")) {
        for (const Case& one : CASES) puts(one.kernels);
        return 0;
    }
    if (!strcmp(mode, "digest")) {
        for (size_t which = 0; which < std::size(CASES); which++) {
            for (int64_t n : {1, 2, 3, 5, 15, 16, 17, 33, 64, 70, 255, 257, 1000, 4095, 4097, 8195, 40003}) {
                for (int repeat = 0; repeat < 6; repeat++) {
                    Trial trial(0, 1, n, seed_of(which, n, repeat));
                    CASES[which].run(trial);
                    printf("%s%lld %d %d: %016llx\n", CASES[which].kernels, static_cast<long long>(n), repeat,
                           static_cast<int>(trial.kind), static_cast<unsigned long long>(trial.outcome()));
                }
            }
        }
        return 0;
    }
    const bool all = !strcmp(mode, "all");
    for (size_t which = 0; which < std::size(CASES); which++) {
        if (all) {
            for (int64_t n = 0; n <= 70; n++) compare(which, n, 6, {1});
            for (int64_t n : {127, 128, 255, 257, 1000, 4080, 4095, 4096, 4097, 8195, 40003}) compare(which, n, 4, {1});
        }
        compare(which, LARGE, all ? 2 : 1, {1, 2, 4});
    }
    several_callers(all ? 70000 : LARGE);
    forked(LARGE);
    printf("%lld runs of %zu cases, %lld failures\n", static_cast<long long>(runs), std::size(CASES),
           static_cast<long long>(failures));
    return failures != 0;
}
