// Which tokens a decode step reads: selectors estimate the mass of every page, and one rule takes
// the best within a budget.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/parallel.h"
#include "kv/sequence_kv.h"
#include "ops/page_scan.h"
#include "policy/params.h"
#include "policy/select/read_rule.h"

namespace winnow {

class ResidualMemory;

// One token's query heads in one layer of one sequence.
struct LayerQuery {
  const float* q = nullptr;  // [H, D], not yet scaled
  PagedKv kv;                // all of it resident
  PagedKv super_pages;       // SequenceKv::SuperPages; may be empty
  // What the residual estimator keeps of the sequence, if anything.
  ResidualMemory* memory = nullptr;
};

// One layer of one step, for the sequences that share an arm.
struct LayerStep {
  ThreadPool* pool = nullptr;
  int layer = 0;
  DecodeAttentionParams params;
  std::span<const LayerQuery> queries;
  std::span<const PageMasses> masses;  // one a query, of its full pages
};

// One KV head for which a selector chooses.
struct ChoiceHead {
  int64_t query = 0;  // of the step
  int kv_head = 0;
  int group = 0;  // R
  MiddlePages middle;
  const float* shares = nullptr;  // [R, n_pages], of the masses
};

// Called once a layer and step. Keeps its scratch; not for several threads.
class Selector {
 public:
  virtual ~Selector() = default;
  // What the pages have to keep.
  virtual PlaneSet planes() const = 0;
  // Bits of the key sketch whose token weights Score writes where PageMasses wants them; 0: none.
  virtual int weight_bits() const { return 0; }
  // Whether its masses estimate attention mass; otherwise they only rank.
  virtual bool estimates_mass() const { return true; }
  // K_c: tokens that count of the pages that are read, the best by their exact keys. 0: all.
  virtual int64_t candidate_tokens() const { return 0; }
  // Whether some tokens of the pages that are read may not count.
  virtual bool chooses_tokens() const { return candidate_tokens() > 0; }
  // Whether Choose takes the place of ReadRule's choice.
  virtual bool chooses() const { return false; }
  // Whether PageMasses::max are scores of keys, whose differences mean something.
  virtual bool has_scores() const { return true; }
  // Fills step.masses. Adds the bytes read to `bytes_read`.
  virtual void Score(const LayerStep& step, int64_t* bytes_read) = 0;
  // After Score, for one KV head, from any thread: the pages of the middle to read and to leave,
  // and the tokens of them that count.
  virtual void Choose(const ReadRule& /*rule*/, const ChoiceHead& /*head*/,
                      PageChoice* /*choice*/) {}
};

// Throws Error(kUsage) for an unknown name (nearest offered) or parameter.
std::unique_ptr<Selector> MakeSelector(std::string_view name, Params& params);
std::vector<std::string> SelectorNames();

}  // namespace winnow
