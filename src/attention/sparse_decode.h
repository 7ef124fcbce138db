// Attention of one layer of a decode step that reads few tokens, says how sure that is, estimates
// the others, and writes down the split: score → select → read → certify → estimate → account →
// merge.
#pragma once

#include <cstdint>
#include <optional>
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
  // What was done about one certified figure of a head.
  struct Verdict {
    bool over_tolerance = false;
    int widened = 0;     // times that more was read for it
    bool dense = false;  // everything was read for it
  };
  // One KV head of one slot.
  struct Head {
    MiddlePages middle;
    PageChoice choice;
    std::vector<PageId> ids;        // of the pages that are read
    std::vector<float> shares;      // [R, n_pages]
    std::vector<float> pooled;      // [n_pages]
    std::vector<float> log_totals;  // [R]
    CandidateOutcome outcome;       // of what is read
    bool small_gap = false;         // the best scores lie closer than the rule's gap

    // Of certification: reading more is a loop over the heads that are not done.
    Verdict share;            // of the unread mass,
    Verdict error;            // and of the output
    bool not_finite = false;  // there was no certificate
    PageBounds bounds;        // what it rests on
    std::vector<PageId> more_ids;
  };
  struct Bytes {
    int64_t scanned = 0;
    int64_t certified = 0;
    int64_t estimated = 0;
  };

  void Prepare(const DecodePolicy& policy, std::span<const SparseSlot> slots);
  void Select(DecodePolicy& policy, int layer, std::span<const SparseSlot> slots);
  void Choose(const DecodePolicy& policy, const SparseSlot& slot, int64_t slot_index, int kv_head,
              Head* head) const;
  void Read(const DecodePolicy& policy, std::span<const SparseSlot> slots,
            const DecodeAttentionParams& params, StageSeconds* seconds);
  void ReadCandidates(const DecodePolicy& policy, const DecodeAttentionParams& params,
                      StageSeconds* seconds);
  void AddQuery(std::span<const SparseSlot> slots, size_t head, std::span<const PageId> ids,
                int64_t n_tokens, float* out, float* log_mass);
  void Plan(DecodePolicy& policy, int layer, int64_t head);
  void Estimate(DecodePolicy& policy, const LayerStep& step);
  void Merge(std::span<const SparseSlot> slots);

  // sparse_certify.cc: intervals of every head's unread share, and then, with the residual's
  // estimates, bounds of its output's error; heads above tolerance read more.
  void Certify(DecodePolicy& policy, const LayerStep& step, std::span<const SparseSlot> slots);
  void CertifyOutput(DecodePolicy& policy, const LayerStep& step,
                     std::span<const SparseSlot> slots);
  void OpenAllHeads();
  void FindReadHeads();
  void BoundShares(DecodePolicy& policy, const LayerStep& step);
  void BoundErrors(const DecodePolicy& policy, const LayerStep& step,
                   std::span<const SparseSlot> slots);
  bool ShareNeedsMore(const ReadRule& rule, size_t head);
  bool ErrorNeedsMore(const ReadRule& rule, size_t head);
  // Writes what a head's figure comes to, which is `over` the tolerance or not.
  static bool NeedsMore(const ReadRule& rule, Head& head, Verdict& verdict, bool finite, bool over);
  void ReadMore(const ReadRule& rule, const LayerStep& step, std::span<const SparseSlot> slots,
                Verdict Head::*cause);

  // sparse_account.cc: what was read, and where the mass went.
  void Account(const DecodePolicy& policy, int layer, std::span<const SparseSlot> slots) const;
  void AccountHead(const DecodePolicy& policy, size_t head, AttentionAccount* account,
                   HeadAccount* of_head) const;
  void AccountMass(const DecodePolicy& policy, size_t head, int r, AttentionAccount* account,
                   HeadAccount* of_head) const;
  void AccountStatement(const DecodePolicy& policy, size_t head, int r,
                        std::optional<double> estimate, AttentionAccount* account,
                        HeadAccount* of_head) const;
  void AccountError(size_t row, AttentionAccount* account, HeadAccount* of_head) const;

  ThreadPool* pool_;
  const PageLayout* layout_ = nullptr;
  int query_heads_ = 0;
  int group_ = 0;
  std::vector<LayerQuery> layer_queries_;
  std::vector<PageMasses> masses_;
  AlignedBuffer<float> mass_values_;
  AlignedBuffer<uint8_t> weights_;
  std::vector<Head> heads_;                // [slots · K]
  AlignedBuffer<float> log_mass_;          // [slots, H] of what was read
  AlignedBuffer<float> rest_;              // [slots, H, D]
  AlignedBuffer<float> rest_log_mass_;     // [slots, H]
  std::vector<int64_t> residual_dropped_;  // [slots], query heads without an estimate
  Bytes bytes_;                            // of all slots
  std::vector<ShareInterval> shares_;      // [slots, H], certified
  std::vector<size_t> open_;               // heads that are to be certified
  std::vector<ReadHead> read_heads_;
  std::vector<ShareInterval> open_shares_;
  OutputErrors output_errors_;
  std::vector<OutputError> errors_;  // [slots, H], certified
  std::vector<OutputHead> output_heads_;
  std::vector<OutputError> open_errors_;
  AlignedBuffer<float> merged_;         // [open, R, D] with what stands for the rest
  AlignedBuffer<float> more_;           // [open, R, D]
  AlignedBuffer<float> more_log_mass_;  // [open, R]
  std::vector<DecodeQuery> queries_;
  DecodeWorkspace workspace_;
  std::vector<CandidateQuery> candidate_queries_;
  CandidateRead candidate_read_;
};

}  // namespace winnow
