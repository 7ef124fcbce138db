#include "bench/peer_llama.h"

#include <ggml-cpu.h>
#include <llama-ext.h>
#include <llama.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "core/ggml_dtype.h"
#include "core/library_log.h"

namespace winnow {
namespace {

using Clock = std::chrono::steady_clock;

// llama-bench's defaults.
constexpr int64_t kBatch = 2048;
constexpr int64_t kMicroBatch = 512;

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* p) const {
    Free(p);
  }
};
using ModelPtr = std::unique_ptr<llama_model, Deleter<llama_model_free>>;
using ContextPtr = std::unique_ptr<llama_context, Deleter<llama_free>>;
using SamplerPtr = std::unique_ptr<llama_sampler, Deleter<llama_sampler_free>>;
using ThreadsPtr = std::unique_ptr<ggml_threadpool, Deleter<ggml_threadpool_free>>;

void InitLibllama() {
  static std::once_flag once;
  std::call_once(once, [] {
    TakeLibraryLog();
    llama_backend_init();
  });
}

llama_flash_attn_type FlashType(PeerAttention attention) {
  switch (attention) {
    case PeerAttention::kAuto:
      return LLAMA_FLASH_ATTN_TYPE_AUTO;
    case PeerAttention::kFlash:
      return LLAMA_FLASH_ATTN_TYPE_ENABLED;
    case PeerAttention::kPlain:
      return LLAMA_FLASH_ATTN_TYPE_DISABLED;
  }
  return LLAMA_FLASH_ATTN_TYPE_AUTO;
}

// A batch of llama.cpp's with room for `capacity` tokens of one sequence each.
class Batch {
 public:
  explicit Batch(int64_t capacity)
      : capacity_(capacity), batch_(llama_batch_init(static_cast<int32_t>(capacity), 0, 1)) {}
  ~Batch() { llama_batch_free(batch_); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  void Clear() { batch_.n_tokens = 0; }
  void Add(int32_t token, int64_t position, int sequence, bool logits) {
    WINNOW_CHECK(batch_.n_tokens < capacity_);
    const int32_t i = batch_.n_tokens++;
    batch_.token[i] = token;
    batch_.pos[i] = static_cast<llama_pos>(position);
    batch_.n_seq_id[i] = 1;
    batch_.seq_id[i][0] = sequence;
    batch_.logits[i] = logits ? 1 : 0;
  }
  const llama_batch& get() const { return batch_; }

 private:
  int64_t capacity_;
  llama_batch batch_;
};

}  // namespace

struct PeerModel::Impl {
  ThreadPool* sleeper = nullptr;
  int n_threads = 1;
  ThreadsPtr threads;
  ModelPtr model;
};

PeerModel::PeerModel(const std::string& gguf_path, int n_threads, ThreadPool* sleeper)
    : impl_(std::make_unique<Impl>()) {
  if (n_threads < 1 || n_threads > GGML_MAX_N_THREADS) {
    Throw(ErrorKind::kUsage, "the number of threads must be between 1 and {}, not {}",
          GGML_MAX_N_THREADS, n_threads);
  }
  InitLibllama();
  impl_->sleeper = sleeper;
  impl_->n_threads = n_threads;
  impl_->model.reset(llama_model_load_from_file(gguf_path.c_str(), llama_model_default_params()));
  if (impl_->model == nullptr) Throw(ErrorKind::kInput, "{}: llama.cpp cannot load it", gguf_path);
  ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
  params.paused = true;
  impl_->threads.reset(ggml_threadpool_new(&params));
  if (impl_->threads == nullptr) Throw(ErrorKind::kResource, "cannot start {} threads", n_threads);
}

PeerModel::~PeerModel() = default;

int PeerModel::vocabulary() const {
  return llama_vocab_n_tokens(llama_model_get_vocab(impl_->model.get()));
}

int64_t PeerModel::context_length() const { return llama_model_n_ctx_train(impl_->model.get()); }

int64_t PeerModel::weight_bytes() const {
  return static_cast<int64_t>(llama_model_size(impl_->model.get()));
}

struct PeerLlama::Impl {
  // While one lives, it is the peer's turn: Winnow's threads sleep. Afterwards the peer's do.
  class Turn {
   public:
    explicit Turn(PeerModel::Impl& model) : model_(model) {
      if (model_.sleeper != nullptr) model_.sleeper->Pause();
    }
    ~Turn() { ggml_threadpool_pause(model_.threads.get()); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    PeerModel::Impl& model_;
  };

  PeerModel::Impl& model;
  PeerOptions options;
  ContextPtr context;
  SamplerPtr greedy;
  Batch batch{kBatch};
  int vocabulary = 0;
  std::vector<int64_t> n_tokens;  // of each sequence

  Impl(PeerModel::Impl& model_in, const PeerOptions& options_in)
      : model(model_in), options(options_in), n_tokens(options_in.sequences, 0) {}

  llama_memory_t memory() const { return llama_get_memory(context.get()); }

  void DecodeBatch() {
    const int32_t status = llama_decode(context.get(), batch.get());
    if (status == 0) return;
    if (status == 1) Throw(ErrorKind::kResource, "llama.cpp has no room left in its KV memory");
    Throw(ErrorKind::kResource, "llama.cpp could not compute a batch (status {})", status);
  }

  // The greedy choice at entry `i` of the last batch, through the sampler chain its users have.
  int32_t Sample(int32_t i) { return llama_sampler_sample(greedy.get(), context.get(), i); }

  void CheckInput(int sequence, std::span<const int32_t> tokens) const {
    WINNOW_CHECK(0 <= sequence && sequence < options.sequences, "sequence {}", sequence);
    const int64_t n = n_tokens[sequence] + static_cast<int64_t>(tokens.size());
    if (tokens.empty()) Throw(ErrorKind::kInput, "an empty prompt");
    if (n > options.context_tokens) {
      Throw(ErrorKind::kInput, "{} tokens do not fit llama.cpp's context of {}", n,
            options.context_tokens);
    }
    for (const int32_t token : tokens) {
      if (token < 0 || token >= vocabulary) {
        Throw(ErrorKind::kInput, "token {} is not in the vocabulary of {}", token, vocabulary);
      }
    }
  }

  // Computes tokens [begin, end) of `tokens`, appended to `sequence`.
  void Append(int sequence, std::span<const int32_t> tokens, bool all_logits) {
    batch.Clear();
    for (size_t i = 0; i < tokens.size(); ++i) {
      batch.Add(tokens[i], n_tokens[sequence] + static_cast<int64_t>(i), sequence,
                all_logits || i + 1 == tokens.size());
    }
    DecodeBatch();
    n_tokens[sequence] += static_cast<int64_t>(tokens.size());
  }
};

PeerLlama::PeerLlama(PeerModel* model, const PeerOptions& options) {
  if (options.context_tokens < 1 || options.sequences < 1) {
    Throw(ErrorKind::kUsage, "a context needs at least one token and one sequence");
  }
  if (options.sequences > static_cast<int>(llama_max_parallel_sequences())) {
    Throw(ErrorKind::kUsage, "llama.cpp takes at most {} sequences, not {}",
          llama_max_parallel_sequences(), options.sequences);
  }
  impl_ = std::make_unique<Impl>(*model->impl_, options);
  impl_->vocabulary = model->vocabulary();

  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(options.context_tokens * options.sequences);
  params.n_batch = kBatch;
  params.n_ubatch = kMicroBatch;
  params.n_seq_max = static_cast<uint32_t>(options.sequences);
  params.n_threads = impl_->model.n_threads;
  params.n_threads_batch = impl_->model.n_threads;
  params.flash_attn_type = FlashType(options.attention);
  params.type_k = GgmlType(options.kv_dtype);
  params.type_v = GgmlType(options.kv_dtype);
  params.kv_unified = options.kv_unified;
  params.swa_full = false;
  impl_->context.reset(llama_init_from_model(impl_->model.model.get(), params));
  if (impl_->context == nullptr) {
    Throw(ErrorKind::kResource, "llama.cpp cannot make a context of {} x {} tokens ({} KV, {})",
          options.sequences, options.context_tokens, DTypeName(options.kv_dtype),
          options.attention == PeerAttention::kPlain ? "without flash attention"
                                                     : "with flash attention");
  }
  llama_attach_threadpool(impl_->context.get(), impl_->model.threads.get(), nullptr);
  impl_->greedy.reset(llama_sampler_chain_init(llama_sampler_chain_default_params()));
  llama_sampler_chain_add(impl_->greedy.get(), llama_sampler_init_greedy());
}

PeerLlama::~PeerLlama() = default;

void PeerLlama::Clear() {
  llama_memory_clear(impl_->memory(), false);
  std::fill(impl_->n_tokens.begin(), impl_->n_tokens.end(), 0);
}

bool PeerLlama::Rewind(int sequence, int64_t n_tokens) {
  int64_t& present = impl_->n_tokens.at(sequence);
  if (n_tokens >= present) return n_tokens == present;
  if (llama_memory_seq_rm(impl_->memory(), sequence, static_cast<llama_pos>(n_tokens), -1)) {
    present = n_tokens;
    return true;
  }
  llama_memory_seq_rm(impl_->memory(), sequence, -1, -1);
  present = 0;
  return false;
}

int64_t PeerLlama::n_tokens(int sequence) const { return impl_->n_tokens.at(sequence); }

PeerPrefill PeerLlama::Prefill(int sequence, std::span<const int32_t> tokens) {
  impl_->CheckInput(sequence, tokens);
  const Impl::Turn turn(impl_->model);
  const auto start = Clock::now();
  for (size_t begin = 0; begin < tokens.size(); begin += kBatch) {
    const size_t n = std::min<size_t>(kBatch, tokens.size() - begin);
    impl_->Append(sequence, tokens.subspan(begin, n), /*all_logits=*/false);
  }
  PeerPrefill result;
  result.next_token = impl_->Sample(-1);
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return result;
}

void PeerLlama::PrefillWithLogits(int sequence, std::span<const int32_t> tokens,
                                  LogitsFn on_logits) {
  impl_->CheckInput(sequence, tokens);
  // One micro-batch at a time: the rows of 2,048 tokens of a large vocabulary take gigabytes.
  for (size_t begin = 0; begin < tokens.size(); begin += kMicroBatch) {
    const size_t n = std::min<size_t>(kMicroBatch, tokens.size() - begin);
    const int64_t first = impl_->n_tokens[sequence];
    {
      const Impl::Turn turn(impl_->model);
      impl_->Append(sequence, tokens.subspan(begin, n), /*all_logits=*/true);
      llama_synchronize(impl_->context.get());
    }
    for (size_t i = 0; i < n; ++i) {
      const float* row = llama_get_logits_ith(impl_->context.get(), static_cast<int32_t>(i));
      WINNOW_CHECK(row != nullptr);
      on_logits(first + static_cast<int64_t>(i), {row, static_cast<size_t>(impl_->vocabulary)});
    }
  }
}

PeerDecode PeerLlama::Decode(std::span<const int32_t> first, int64_t steps) {
  const int n_sequences = static_cast<int>(first.size());
  WINNOW_CHECK(1 <= n_sequences && n_sequences <= impl_->options.sequences);
  for (int s = 0; s < n_sequences; ++s) {
    if (impl_->n_tokens[s] + steps > impl_->options.context_tokens) {
      Throw(ErrorKind::kInput, "{} more tokens do not fit llama.cpp's context of {}", steps,
            impl_->options.context_tokens);
    }
  }
  PeerDecode result;
  result.tokens.resize(n_sequences);
  std::vector<int32_t> next(first.begin(), first.end());
  const Impl::Turn turn(impl_->model);
  const auto start = Clock::now();
  for (int64_t step = 0; step < steps; ++step) {
    impl_->batch.Clear();
    for (int s = 0; s < n_sequences; ++s) {
      impl_->batch.Add(next[s], impl_->n_tokens[s]++, s, /*logits=*/true);
    }
    impl_->DecodeBatch();
    for (int s = 0; s < n_sequences; ++s) {
      next[s] = impl_->Sample(s);
      result.tokens[s].push_back(next[s]);
    }
  }
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return result;
}

int64_t PeerLlama::kv_bytes() const {
  size_t bytes = 0;
  for (const auto& [type, memory] : llama_get_memory_breakdown(impl_->context.get())) {
    bytes += memory.context;
  }
  return static_cast<int64_t>(bytes);
}

int64_t PeerLlama::total_bytes() const {
  size_t bytes = 0;
  for (const auto& [type, memory] : llama_get_memory_breakdown(impl_->context.get())) {
    bytes += memory.context + memory.compute;
  }
  return static_cast<int64_t>(bytes);
}

void RequantizeGguf(const std::string& from, const std::string& to, std::string_view type,
                    int n_threads) {
  static constexpr std::pair<std::string_view, llama_ftype> kTypes[] = {
      {"Q4_0", LLAMA_FTYPE_MOSTLY_Q4_0},     {"Q4_1", LLAMA_FTYPE_MOSTLY_Q4_1},
      {"Q5_0", LLAMA_FTYPE_MOSTLY_Q5_0},     {"Q8_0", LLAMA_FTYPE_MOSTLY_Q8_0},
      {"Q4_K_S", LLAMA_FTYPE_MOSTLY_Q4_K_S}, {"Q4_K_M", LLAMA_FTYPE_MOSTLY_Q4_K_M},
      {"Q6_K", LLAMA_FTYPE_MOSTLY_Q6_K},     {"F16", LLAMA_FTYPE_MOSTLY_F16},
  };
  const auto* found = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [&](const auto& entry) { return entry.first == type; });
  if (found == std::end(kTypes)) Throw(ErrorKind::kUsage, "unknown quantisation '{}'", type);
  InitLibllama();
  llama_model_quantize_params params = llama_model_quantize_default_params();
  params.nthread = n_threads;
  params.ftype = found->second;
  params.allow_requantize = true;
  if (llama_model_quantize(from.c_str(), to.c_str(), &params) != 0) {
    Throw(ErrorKind::kInput, "llama.cpp cannot requantise {} as {}", from, type);
  }
}

}  // namespace winnow
