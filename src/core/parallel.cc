#include "core/parallel.h"

#include <ggml-cpu.h>
#include <ggml.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <utility>

#ifdef __linux__
#include <sched.h>
#endif

#include "core/check.h"
#include "core/error.h"
#include "core/tensor_view.h"

namespace winnow {

struct ThreadPool::Impl {
  int n_threads = 1;
  ggml_threadpool* pool = nullptr;
  AlignedBuffer<uint8_t> work;

  // A graph with one custom node, built once; each Run swaps in the function to call.
  ggml_context* region_context = nullptr;
  ggml_cgraph* region = nullptr;
  FunctionRef<void(int, int)>* current = nullptr;

  static void Trampoline(ggml_tensor* /*dst*/, int ith, int nth, void* userdata) {
    (*static_cast<Impl*>(userdata)->current)(ith, nth);
  }
};

ThreadPool::ThreadPool(int n_threads) : impl_(std::make_unique<Impl>()) {
  if (n_threads < 1 || n_threads > GGML_MAX_N_THREADS) {
    Throw(ErrorKind::kUsage, "the number of threads must be between 1 and {}, not {}",
          GGML_MAX_N_THREADS, n_threads);
  }
  ggml_cpu_init();
  impl_->n_threads = n_threads;
  ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
  impl_->pool = ggml_threadpool_new(&params);
  if (impl_->pool == nullptr) Throw(ErrorKind::kResource, "cannot start {} threads", n_threads);

  impl_->region_context =
      ggml_init({.mem_size = 4 * ggml_tensor_overhead() + ggml_graph_overhead_custom(4, false),
                 .mem_buffer = nullptr,
                 .no_alloc = true});
  WINNOW_CHECK(impl_->region_context != nullptr);
  ggml_tensor* node = ggml_custom_4d(impl_->region_context, GGML_TYPE_F32, 1, 1, 1, 1, nullptr, 0,
                                     &Impl::Trampoline, GGML_N_TASKS_MAX, impl_.get());
  impl_->region = ggml_new_graph_custom(impl_->region_context, 4, false);
  ggml_build_forward_expand(impl_->region, node);
}

ThreadPool::~ThreadPool() {
  ggml_threadpool_free(impl_->pool);
  ggml_free(impl_->region_context);
}

int ThreadPool::size() const { return impl_->n_threads; }

void ThreadPool::Run(FunctionRef<void(int, int)> fn) {
  WINNOW_CHECK(impl_->current == nullptr, "a parallel region inside a parallel region");
  // Also where Compute throws.
  struct Reset {
    FunctionRef<void(int, int)>** current;
    ~Reset() { *current = nullptr; }
  } reset{&impl_->current};
  impl_->current = &fn;
  Compute(impl_->region);
}

void ThreadPool::ForEach(int64_t n_tasks, FunctionRef<void(int64_t, int)> fn) {
  if (n_tasks <= 0) return;
  if (n_tasks == 1 || impl_->n_threads == 1) {
    for (int64_t task = 0; task < n_tasks; ++task) fn(task, 0);
    return;
  }
  std::atomic<int64_t> next = 0;
  Run([&](int thread, int /*n_threads*/) {
    for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < n_tasks;) {
      fn(task, thread);
    }
  });
}

void ThreadPool::Compute(ggml_cgraph* graph) {
  ggml_cplan plan = ggml_graph_plan(graph, impl_->n_threads, impl_->pool);
  if (plan.work_size > 0) {
    impl_->work.Resize(plan.work_size);
    plan.work_data = impl_->work.data();
  }
  const ggml_status status = ggml_graph_compute(graph, &plan);
  if (status != GGML_STATUS_SUCCESS) {
    Throw(ErrorKind::kResource, "ggml could not compute a graph: {}",
          ggml_status_to_string(status));
  }
}

void ThreadPool::Pause() { ggml_threadpool_pause(impl_->pool); }

namespace {

#ifdef __linux__
// Physical cores that the process may run on; 0 if the system does not tell.
int AllowedCores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return 0;
  // Two hardware threads of one core share its arithmetic units: count each core once.
  std::set<std::pair<int, int>> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const std::string topology = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    int package = 0;
    int core = cpu;
    std::ifstream(topology + "physical_package_id") >> package;
    std::ifstream(topology + "core_id") >> core;
    cores.emplace(package, core);
  }
  return static_cast<int>(cores.size());
}

// Whole processors that a container's quota leaves ("quota period" in microseconds); 0: no quota.
int QuotaCores() {
  std::ifstream in("/sys/fs/cgroup/cpu.max");
  double quota = 0;
  double period = 0;
  if (!(in >> quota >> period) || period <= 0) return 0;
  return std::max(1, static_cast<int>(quota / period));
}
#endif

}  // namespace

int DefaultThreads() {
  int threads = static_cast<int>(std::thread::hardware_concurrency());
#ifdef __linux__
  if (const int cores = AllowedCores(); cores > 0) threads = cores;
  if (const int quota = QuotaCores(); quota > 0) threads = std::min(threads, quota);
#endif
  return std::clamp(threads, 1, GGML_MAX_N_THREADS);
}

}  // namespace winnow
