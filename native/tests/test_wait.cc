// Processes and threads that share memory take turns: everybody sees what the others wrote, a rank that is late or asks for
// something else is named, and a failure ends all waiting. Under ThreadSanitizer the slots, which are not atomic, show whether
// the counters order them.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

extern "C" int64_t grace_arrive(void*, int64_t, int64_t, int64_t);
extern "C" int64_t grace_wait(const void*, int64_t, int64_t, int64_t, const void*, int64_t, int64_t);
extern "C" int64_t grace_fail(void*, int64_t);

namespace {

constexpr int64_t RANKS = 3, TURNS = 400, SECOND = 1000000000;
std::atomic<int> failures{0};

struct Shared {
    alignas(64) int64_t failed;
    alignas(64) char lines[RANKS * 64];
    int64_t slots[2][RANKS];
};

void check(bool holds, const char* what) {
    if (holds) return;
    failures++;
    fprintf(stderr, "%s\n", what);
}

// Two slots for each rank: nobody writes what another may still read.
bool take_turns(Shared* shared, int64_t rank) {
    for (int64_t turn = 1; turn <= TURNS; turn++) {
        shared->slots[turn & 1][rank] = turn * RANKS + rank;
        grace_arrive(shared->lines, rank, turn, turn);
        if (grace_wait(shared->lines, RANKS, turn, turn, &shared->failed, turn % 50, 60 * SECOND)) return false;
        for (int64_t other = 0; other < RANKS; other++) {
            if (shared->slots[turn & 1][other] != turn * RANKS + other) return false;
        }
    }
    return true;
}

Shared* share() {
    void* p = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) abort();
    return static_cast<Shared*>(p);
}

void threads() {
    Shared* shared = share();
    std::vector<std::thread> ranks;
    for (int64_t rank = 0; rank < RANKS; rank++) {
        ranks.emplace_back([=] { check(take_turns(shared, rank), "a thread does not see what the others wrote"); });
    }
    for (std::thread& rank : ranks) rank.join();
    munmap(shared, sizeof(Shared));
}

void processes() {
    Shared* shared = share();
    for (int64_t rank = 0; rank < RANKS; rank++) {
        if (fork() == 0) _exit(take_turns(shared, rank) ? 0 : 1);
    }
    for (int64_t rank = 0; rank < RANKS; rank++) {
        int status = -1;
        check(wait(&status) > 0 && status == 0, "a process does not see what the others wrote");
    }
    munmap(shared, sizeof(Shared));
}

void answers() {
    Shared* shared = share();
    char* lines = shared->lines;
    for (int64_t rank : {0, 2}) grace_arrive(lines, rank, 1, 7);
    check(grace_wait(lines, RANKS, 1, 7, &shared->failed, 10, SECOND / 1000) == 2, "rank 1 is late");
    grace_arrive(lines, 1, 1, 8);
    check(grace_wait(lines, RANKS, 1, 7, &shared->failed, 10, 0) == -3, "rank 1 asks for something else");
    grace_arrive(lines, 1, 2, 7);  // and is a turn ahead
    check(grace_wait(lines, RANKS, 1, 8, &shared->failed, 0, 0) == -2, "rank 0 asks for something else");
    check(grace_fail(&shared->failed, 5) == 5 && grace_fail(&shared->failed, 6) == 5, "the first failure stays");
    check(grace_wait(lines, RANKS, 1, 7, &shared->failed, 0, SECOND) == -3, "a turn to which all have come is not failed");
    check(grace_wait(lines, RANKS, 2, 7, &shared->failed, 0, SECOND) == -1, "a failure ends waiting");
    munmap(shared, sizeof(Shared));
}

}  // namespace

int main() {
    answers();
    processes();
    threads();
    printf("waiting: %d failures\n", failures.load());
    return failures != 0;
}
