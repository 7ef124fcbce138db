// The one pool of threads: ggml's. Backbone graphs and Winnow's own loops run on the same threads,
// so that neither spins beside the other. Only this file and its .cc know how.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/function_ref.h"

struct ggml_cgraph;

namespace winnow {

class ThreadPool {
 public:
  // Throws Error(kUsage) unless 1 <= n_threads <= 512.
  explicit ThreadPool(int n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;

  // Calls fn(thread, n_threads) once on every thread and waits (about 2 µs on two threads). `fn`
  // must not throw.
  void Run(FunctionRef<void(int, int)> fn);

  // Calls fn(task, thread) for each task in [0, n_tasks), handed out one at a time in order. `fn`
  // must not care which thread runs a task: results may not depend on it.
  void ForEach(int64_t n_tasks, FunctionRef<void(int64_t, int)> fn);

  // Computes a ggml graph whose tensors are all allocated. Throws Error(kResource) if ggml fails.
  void Compute(ggml_cgraph* graph);

  // Between Pause and the next call, the threads sleep instead of polling (used while a peer is
  // timed).
  void Pause();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The number of physical cores this process may use (affinity and container quota), at least 1.
int DefaultThreads();

}  // namespace winnow
