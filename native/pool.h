// Threads of our own instead of OpenMP, whose children hang after a fork, and two of which clash in one process.
#pragma once

#include <stdint.h>

extern "C" {
// Calls work(context, task) once for each task in [0, tasks), on up to `threads` threads, the caller's among them; returns
// when all are done. Tasks are handed out one by one, so that a slow core takes fewer. If the pool is busy with another
// caller's tasks, the caller does its own alone.
void grace_parallel(int64_t tasks, int threads, void (*work)(void* context, int64_t task), void* context);
}

template <class Work>
static inline void parallel(int64_t tasks, int threads, Work& work) {
    if (threads <= 1 || tasks <= 1) {
        for (int64_t task = 0; task < tasks; task++) work(task);
        return;
    }
    grace_parallel(tasks, threads, [](void* context, int64_t task) { (*static_cast<Work*>(context))(task); }, &work);
}
