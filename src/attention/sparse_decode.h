// Attention of one layer of a decode step that reads few tokens, estimates the others, and writes
// down the split: score → select → read → estimate → merge → account.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/candidate_read.h"
#include "core/account.h"
#include "core/parallel.h"
#include "core/tensor_view.h"
#include "kv/sequence_kv.h"
#include "ops/decode_attention.h"
#include "policy/decode_policy.h"

namespace winnow {

// One sequence of the step.
struct SparseSlot {
  LayerQuery query;
  int64_t n_generated = 0;  // the last tokens of the layer that follow the prompt
  float* out = nullptr;     // [H, D]
  AttentionAccount* account = nullptr;
};

class SparseDecode {
 public:
  explicit SparseDecode(ThreadPool* pool) : pool_(pool), candidate_read_(pool) {}

  // Whether a policy leaves anything unread of a layer with so many tokens.
  static bool Applies(const DecodePolicy& policy, int layer, int64_t n_tokens, int64_t n_generated,
                      int slots);

  // Writes every slot's output. The slots share the policy, which applies to all of them.
  void Attend(DecodePolicy& policy, int layer, const DecodeAttentionParams& params,
              std::span<const SparseSlot> slots, StageSeconds* seconds);

 private:
  // One KV head of one slot.
  struct Head {
    MiddlePages middle;
    PageChoice choice;
    std::vector<PageId> ids;        // of the pages that are read
    std::vector<float> shares;      // [R, n_pages]
    std::vector<float> pooled;      // [n_pages]
    std::vector<float> log_totals;  // [R]
    CandidateOutcome outcome;       // of what is read
  };

  void Prepare(const DecodePolicy& policy, std::span<const SparseSlot> slots);
  void Choose(const DecodePolicy& policy, const SparseSlot& slot, int64_t slot_index, int kv_head,
              Head* head) const;
  void Read(const DecodePolicy& policy, std::span<const SparseSlot> slots,
            const DecodeAttentionParams& params, StageSeconds* seconds);
  void ReadCandidates(const DecodePolicy& policy, const DecodeAttentionParams& params,
                      StageSeconds* seconds);
  int64_t Estimate(DecodePolicy& policy, const LayerStep& step);
  void Merge(std::span<const SparseSlot> slots);
  void Account(const DecodePolicy& policy, std::span<const SparseSlot> slots, int64_t bytes_scanned,
               int64_t bytes_estimated);
  void AccountMass(const DecodePolicy& policy, size_t slot_index, AttentionAccount* account) const;

  ThreadPool* pool_;
  const PageLayout* layout_ = nullptr;
  int query_heads_ = 0;
  int group_ = 0;
  std::vector<LayerQuery> layer_queries_;
  std::vector<PageMasses> masses_;
  AlignedBuffer<float> mass_values_;
  AlignedBuffer<uint8_t> weights_;
  std::vector<Head> heads_;             // [slots · K]
  AlignedBuffer<float> log_mass_;       // [slots, H] of what was read
  AlignedBuffer<float> rest_;           // [slots, H, D]
  AlignedBuffer<float> rest_log_mass_;  // [slots, H]
  std::vector<DecodeQuery> queries_;
  DecodeWorkspace workspace_;
  std::vector<CandidateQuery> candidate_queries_;
  CandidateRead candidate_read_;
};

}  // namespace winnow
