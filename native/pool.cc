#include "pool.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

namespace {

struct Job {
    int64_t tasks;
    void (*work)(void*, int64_t);
    void* context;
    std::atomic<int64_t> next{0};

    void run() {
        for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) work(context, task);
    }
};

// Never destroyed: workers sleep in it while the process ends.
class Pool {
   public:
    bool try_run(Job& job, int helpers) {
        std::unique_lock<std::mutex> mine(busy, std::try_to_lock);
        if (!mine) return false;
        std::unique_lock<std::mutex> lock(mutex);
        grow(helpers);
        current = &job;
        wanted = helpers < size ? helpers : size;
        if (wanted > 1) {
            wake.notify_all();
        } else {
            wake.notify_one();
        }
        lock.unlock();
        job.run();
        lock.lock();
        current = nullptr;  // workers that have not come by now are too late
        wanted = 0;
        idle.wait(lock, [this] { return working == 0; });
        return true;
    }

   private:
    static constexpr int MOST = 256;

    void grow(int helpers) {
        for (; size < helpers && size < MOST; size++) {
            try {
                std::thread([this] { serve(); }).detach();
            } catch (const std::system_error&) {
                return;  // no more threads available: fewer will do
            }
        }
    }

    void serve() {
        std::unique_lock<std::mutex> lock(mutex);
        for (;;) {
            wake.wait(lock, [this] { return current != nullptr && wanted > 0; });
            Job* job = current;
            wanted--;
            working++;
            lock.unlock();
            job->run();
            lock.lock();
            if (--working == 0) idle.notify_one();
        }
    }

    std::mutex busy;   // held by the caller whose tasks these are
    std::mutex mutex;  // guards what follows
    std::condition_variable wake, idle;
    Job* current = nullptr;
    int size = 0, wanted = 0, working = 0;
};

Pool* pool = new Pool;

// A forked child has none of its parent's threads, and mutexes in any state: it starts with a pool of its own.
void renew() { pool = new Pool; }
const int registered = pthread_atfork(nullptr, nullptr, renew);

}  // namespace

extern "C" __attribute__((visibility("default"))) void grace_parallel(
    int64_t tasks, int threads, void (*work)(void*, int64_t), void* context) {
    (void)registered;
    Job job{tasks, work, context};
    const int64_t helpers = (threads < tasks ? threads : tasks) - 1;
    if (helpers < 1 || !pool->try_run(job, static_cast<int>(helpers))) job.run();
}
