#include <fmt/format.h>

#include <algorithm>

#include "core/byte_size.h"
#include "core/error.h"
#include "core/memory.h"
#include "engine/engine_impl.h"

namespace winnow {
namespace {

// Contexts that the pool holds by default, if memory allows: the sequences of a small batch, or the
// prefixes of a conversation. Unused pages cost nothing.
constexpr int kDefaultContexts = 4;
// Share of the available memory that the pool may take; the rest is for activations and the system.
constexpr double kPoolShare = 0.8;

}  // namespace

int64_t Engine::Impl::ResolveContext() const {
  if (options.prefill_chunk < 1 || options.prefill_chunk > backbone->max_tokens()) {
    Throw(ErrorKind::kUsage, "the prefill chunk must be between 1 and {} tokens, not {}",
          backbone->max_tokens(), options.prefill_chunk);
  }
  if (options.max_batch < 1 || options.max_batch > backbone->max_tokens()) {
    Throw(ErrorKind::kUsage, "the batch must be between 1 and {} sequences, not {}",
          backbone->max_tokens(), options.max_batch);
  }
  if (options.context_tokens < 0 || options.context_tokens > config.context_length) {
    Throw(ErrorKind::kUsage, "a context of {} tokens: this model takes 1 to {}",
          options.context_tokens, config.context_length);
  }
  const int64_t context =
      options.context_tokens == 0 ? config.context_length : options.context_tokens;
  return std::min(context, kMaxAttentionTokens);
}

int64_t Engine::Impl::ResolveCapacity() const {
  const int64_t page_bytes = layout.TotalBytes();
  const auto allowed =
      static_cast<int64_t>(static_cast<double>(AvailableMemoryBytes()) * kPoolShare);
  const int64_t one_context = WorstCase(context_tokens) * page_bytes;
  const int64_t asked = options.kv_bytes > 0         ? options.kv_bytes
                        : options.context_tokens > 0 ? one_context
                                                     : 0;
  if (options.kv_bytes < 0) Throw(ErrorKind::kUsage, "KV memory must not be negative");
  if (asked > allowed) {
    const auto [wanted, limit] = FormatBytesApart(asked, allowed);
    Throw(ErrorKind::kResource,
          "{} of KV memory were asked for and {} may be used: a context of {} tokens would fit",
          wanted, limit,
          TokensThatFit(config, allowed / page_bytes, layout.slots, options.prefill_chunk));
  }
  const int64_t bytes =
      options.kv_bytes > 0 ? options.kv_bytes : std::min(allowed, kDefaultContexts * one_context);
  const int64_t capacity = bytes / page_bytes;
  if (capacity < WorstCase(1)) {
    const auto [has, needs] = FormatBytesApart(bytes, WorstCase(1) * page_bytes);
    Throw(ErrorKind::kResource,
          "{} of KV memory hold no token: one needs a page in each of {} layers, {}", has,
          config.n_layers, needs);
  }
  return capacity;
}

void Engine::Impl::ValidateRequest(const Request& request) const {
  const auto n_prompt = static_cast<int64_t>(request.tokens.size());
  if (n_prompt == 0) Throw(ErrorKind::kInput, "the prompt is empty");
  for (const std::vector<TokenId>* tokens : {&request.tokens, &request.forced_tokens}) {
    for (const TokenId token : *tokens) {
      if (token >= 0 && token < config.vocabulary) continue;
      Throw(ErrorKind::kInput, "token {} is not in the model's vocabulary of {}", token,
            config.vocabulary);
    }
  }
  if (request.max_new_tokens < 1) {
    Throw(ErrorKind::kUsage, "at least one new token must be asked for, not {}",
          request.max_new_tokens);
  }
  request.sampling.Validate();
  if (n_prompt >= context_tokens) {
    Throw(
        ErrorKind::kInput,
        "the prompt has {} tokens and the context holds {}, one of them for the answer: shorten or "
        "split the documents{}",
        n_prompt, context_tokens,
        context_tokens < config.context_length
            ? fmt::format(", or raise --ctx (this model takes up to {})", config.context_length)
            : ", or use a model with a longer context");
  }
  const int64_t n_total = TotalTokens(request);
  if (WorstCase(n_total) > pages.capacity_pages()) {
    const auto [needs, has] = FormatBytesApart(WorstCase(n_total) * layout.TotalBytes(),
                                               pages.capacity_pages() * layout.TotalBytes());
    Throw(ErrorKind::kResource,
          "{} prompt tokens and {} new ones need {} of KV memory and the pool has {}: {} tokens "
          "would fit (--kv-memory raises it)",
          n_prompt, n_total - n_prompt, needs, has,
          TokensThatFit(config, pages.capacity_pages(), layout.slots, options.prefill_chunk));
  }
}

}  // namespace winnow
