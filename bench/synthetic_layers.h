// Keys, values and queries of a known shape, made without a model, and attention over them: dense,
// and by an arm through the engine's own sparse decode.
//
// Attention runs over several layers in turn, so that no cache holds what is read. What is read
// depends on how concentrated attention is, so the logits are made as on real text: they spread by
// 1.7 inside a page and by 3 between pages, and the queries of a group agree mostly. Then 32 pages
// of 1,024 hold most of the mass.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention/sparse_decode.h"
#include "core/account.h"
#include "core/dtype.h"
#include "core/parallel.h"
#include "kv/page_pool.h"
#include "kv/sequence_kv.h"
#include "model/synthetic.h"
#include "ops/decode_attention.h"
#include "policy/decode_policy.h"

namespace winnow {

struct LayersOptions {
  SyntheticHeads heads;
  DType dtype = DType::kF16;
  int64_t n_tokens = 0;  // a multiple of kDefaultPageSlots, at least one page
  int n_layers = 8;
  PlaneSet planes;

  // Throws Error(kUsage) where `dtype` cannot hold such heads.
  PageLayout Layout() const;
  // Memory that the layers take, while they are made too.
  int64_t Bytes() const;
};

// Layers of one sequence: the first has random keys and values, the others its pages in another
// order. The same options give the same numbers.
class SyntheticLayers {
 public:
  // Throws as LayersOptions::Layout, and Error(kResource) if no addresses can be reserved.
  SyntheticLayers(ThreadPool& threads, const LayersOptions& options);

  int size() const { return kv_.n_layers(); }
  int64_t n_tokens() const { return options_.n_tokens; }
  const SyntheticHeads& heads() const { return options_.heads; }
  DecodeAttentionParams params() const;
  int64_t out_floats() const { return int64_t{heads().query_heads} * heads().head_dim; }
  const float* q() const { return q_.data(); }  // [H, D]
  PagedKv View(int layer) const { return kv_.View(layer); }
  LayerQuery Query(int layer) const {
    return {.q = q(), .kv = kv_.View(layer), .super_pages = kv_.SuperPages(layer)};
  }

 private:
  void FillFirstLayer(ThreadPool& threads);
  void FillOtherLayers();
  void FillQueries();

  LayersOptions options_;
  PagePool pool_;
  SequenceKv kv_;
  std::vector<float> q_;
};

// Dense attention of all layers in turn. References outlive it.
class DenseRound {
 public:
  DenseRound(ThreadPool& threads, const SyntheticLayers& layers)
      : threads_(threads), layers_(layers), out_(layers.out_floats()) {}
  void operator()();
  const std::vector<float>& out() const { return out_; }  // of the last layer, [H, D]

 private:
  ThreadPool& threads_;
  const SyntheticLayers& layers_;
  DecodeWorkspace workspace_;
  std::vector<float> out_;
};

// The same by an arm, which the layers' planes suffice for. Throws what MakeDecodePolicy throws.
class SparseRound {
 public:
  SparseRound(ThreadPool& threads, const SyntheticLayers& layers, const std::string& arm);
  void operator()();
  const std::vector<float>& out() const { return out_; }

  const AttentionAccount& account() const { return account_; }  // of the last round
  // Of dense's bytes.
  double ByteShare() const {
    return static_cast<double>(account_.bytes_read) / static_cast<double>(account_.bytes_dense);
  }
  // Milliseconds a layer of a stage, by its own timer, and of everything; means over the rounds
  // after the first, which warms up.
  double StageMs(double StageSeconds::*stage) const { return Mean(seconds_.*stage); }
  double TotalMs() const { return Mean(total_); }

 private:
  double Mean(double seconds) const {
    return 1e3 * seconds / (std::max(1, n_rounds_ - 1) * layers_.size());
  }

  const SyntheticLayers& layers_;
  SparseDecode sparse_;
  std::unique_ptr<DecodePolicy> policy_;
  AttentionAccount account_;
  StageSeconds seconds_;
  double total_ = 0;
  int n_rounds_ = 0;
  std::vector<float> out_;
};

}  // namespace winnow
