#include "engine/sampler.h"

#include <llama.h>

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/error.h"

namespace winnow {
namespace {

void Require(bool condition, const char* what) {
  if (!condition) Throw(ErrorKind::kUsage, "{}", what);
}

}  // namespace

void SamplingParams::Validate() const {
  Require(std::isfinite(temperature), "the temperature must be a number; 0 or less is greedy");
  Require(top_p > 0 && top_p <= 1, "top-p must be in (0, 1]; 1 switches it off");
  Require(min_p >= 0 && min_p < 1, "min-p must be in [0, 1); 0 switches it off");
  Require(std::isfinite(repeat_penalty) && repeat_penalty > 0,
          "the repeat penalty must be above 0; 1 switches it off");
  Require(std::isfinite(frequency_penalty) && std::isfinite(presence_penalty),
          "the frequency and presence penalties must be numbers; 0 switches them off");
  Require(seed != LLAMA_DEFAULT_SEED,
          "the seed 4294967295 means \"a random seed\" to llama.cpp: take another");
  Require(penalty_last_n >= -1, "the penalty range must be -1 (everything) or more");
}

void Sampler::Free::operator()(llama_sampler* chain) const { llama_sampler_free(chain); }

Sampler::Sampler(const SamplingParams& params, int n_vocab, int max_tokens,
                 std::span<const TokenId> prompt)
    : n_vocab_(n_vocab) {
  const bool penalties =
      params.penalty_last_n != 0 &&
      (params.repeat_penalty != 1 || params.frequency_penalty != 0 || params.presence_penalty != 0);
  const bool greedy = params.temperature <= 0;
  if (greedy && !penalties) return;

  chain_.reset(llama_sampler_chain_init(llama_sampler_chain_default_params()));
  if (penalties) {
    const int last_n =
        params.penalty_last_n < 0 ? max_tokens : std::min(params.penalty_last_n, max_tokens);
    llama_sampler_chain_add(chain_.get(), llama_sampler_init_penalties(
                                              n_vocab, last_n, params.repeat_penalty,
                                              params.frequency_penalty, params.presence_penalty));
  }
  if (greedy) {
    llama_sampler_chain_add(chain_.get(), llama_sampler_init_greedy());
  } else {
    llama_sampler_chain_add(chain_.get(), llama_sampler_init_top_k(params.top_k));
    llama_sampler_chain_add(chain_.get(), llama_sampler_init_top_p(params.top_p, 1));
    llama_sampler_chain_add(chain_.get(), llama_sampler_init_min_p(params.min_p, 1));
    llama_sampler_chain_add(chain_.get(), llama_sampler_init_temp(params.temperature));
    llama_sampler_chain_add(chain_.get(), llama_sampler_init_dist(params.seed));
  }
  for (TokenId token : prompt) llama_sampler_accept(chain_.get(), token);
}

void Sampler::Accept(TokenId token) {
  if (chain_ != nullptr) llama_sampler_accept(chain_.get(), token);
}

void Sampler::Replay(TokenId token) {
  if (chain_ == nullptr) return;
  // The chain takes one number from its generator whatever it chooses from.
  llama_token_data only = {.id = token, .logit = 0, .p = 0};
  llama_token_data_array array{.data = &only, .size = 1, .selected = -1, .sorted = false};
  llama_sampler_apply(chain_.get(), &array);
  llama_sampler_accept(chain_.get(), token);
}

TokenId Sampler::Sample(std::span<const float> logits) {
  WINNOW_CHECK(static_cast<int>(logits.size()) == n_vocab_);
  if (chain_ == nullptr) {
    return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  candidates_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates_[i] = {.id = static_cast<llama_token>(i), .logit = logits[i], .p = 0};
  }
  llama_token_data_array array{
      .data = candidates_.data(), .size = candidates_.size(), .selected = -1, .sorted = false};
  llama_sampler_apply(chain_.get(), &array);
  WINNOW_CHECK(array.selected >= 0 && array.selected < static_cast<int64_t>(array.size));
  const TokenId token = array.data[array.selected].id;
  llama_sampler_accept(chain_.get(), token);
  return token;
}

}  // namespace winnow
