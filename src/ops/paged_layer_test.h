// One layer of one sequence with keys, values and queries that a test chooses, its planes, and its
// attention in double.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "core/rng.h"
#include "kv/page_pool.h"
#include "ops/kv_store.h"
#include "ops/page_planes.h"
#include "ops/reference.h"

namespace winnow::testing {

struct LayerShape {
  int kv_heads = 2;
  int group = 3;
  int dim = 64;
  int slots = 32;
  int64_t n_tokens = 0;
};

class PagedLayer {
 public:
  // Everything is standard normal until a test writes something else, before Store.
  PagedLayer(const LayerShape& shape, PlaneSet planes, DType dtype, uint64_t seed)
      : shape_(shape),
        scale_(1.0f / std::sqrt(static_cast<float>(shape.dim))),
        pool_(PageLayout(shape.kv_heads, shape.slots, shape.dim, dtype, planes),
              shape.n_tokens / shape.slots + 1),
        kv_(&pool_, 1) {
    Rng rng(seed);
    const int64_t n = shape.n_tokens * shape.kv_heads * shape.dim;
    for (std::vector<float>* rows : {&keys_, &values_}) {
      rows->resize(n);
      for (float& x : *rows) x = static_cast<float>(rng.Normal());
    }
    q_.resize(static_cast<size_t>(query_heads()) * shape.dim);
    for (float& x : q_) x = static_cast<float>(rng.Normal());
  }

  std::span<float> key(int64_t token, int kv_head) { return Row(keys_, token, kv_head); }
  std::span<float> value(int64_t token, int kv_head) { return Row(values_, token, kv_head); }
  std::span<const float> q(int query_head) const {
    return std::span(q_).subspan(static_cast<size_t>(query_head) * shape_.dim, shape_.dim);
  }

  // Makes `token` score about `score` in every query head: its key points to the mean query of its
  // group.
  void Attract(int64_t token, float score) {
    for (int head = 0; head < shape_.kv_heads; ++head) {
      const std::span<float> k = key(token, head);
      std::fill(k.begin(), k.end(), 0.0f);
      for (int r = 0; r < shape_.group; ++r) {
        const std::span<const float> row = q(head * shape_.group + r);
        double squares = 0;
        for (float x : row) squares += static_cast<double>(x) * x;
        const auto unit = static_cast<float>(score / (squares * scale_));
        for (int c = 0; c < shape_.dim; ++c) k[c] += unit * row[c];
      }
    }
  }

  void Store(ThreadPool& threads) {
    std::vector<int32_t> positions(shape_.n_tokens);
    std::iota(positions.begin(), positions.end(), 0);
    ASSERT_TRUE(kv_.Append(0, positions));
    StoreKv(&kv_, 0, 0, {keys_.data(), {shape_.n_tokens, shape_.kv_heads, shape_.dim}},
            {values_.data(), {shape_.n_tokens, shape_.kv_heads, shape_.dim}});
    UpdatePlanes(threads, &kv_, 0, 0, shape_.n_tokens);
  }

  PagedKv View() const { return kv_.View(0); }
  PagedKv SuperPages() const { return kv_.SuperPages(0); }
  const float* queries() const { return q_.data(); }
  const LayerShape& shape() const { return shape_; }
  const PageLayout& layout() const { return pool_.layout(); }
  int query_heads() const { return shape_.kv_heads * shape_.group; }
  int64_t n_full() const { return shape_.n_tokens / shape_.slots; }
  float scale() const { return scale_; }

  // What the pages hold, of the KV head of `query_head`: rows of keys and of values [n, D].
  struct Rows {
    std::vector<double> keys, values;
  };
  Rows Stored(int query_head) const {
    Rows rows;
    std::vector<float> k(shape_.dim);
    std::vector<float> v(shape_.dim);
    for (int64_t t = 0; t < shape_.n_tokens; ++t) {
      LoadKv(View(), query_head / shape_.group, t, k.data(), v.data());
      rows.keys.insert(rows.keys.end(), k.begin(), k.end());
      rows.values.insert(rows.values.end(), v.begin(), v.end());
    }
    return rows;
  }

  // Attention over all tokens [D].
  std::vector<double> Attention(int query_head) const {
    const Rows rows = Stored(query_head);
    const std::vector<double> query(q(query_head).begin(), q(query_head).end());
    std::vector<double> out(shape_.dim);
    reference::Attention(query, {rows.keys.data(), {shape_.n_tokens, shape_.dim}},
                         {rows.values.data(), {shape_.n_tokens, shape_.dim}}, scale_, out);
    return out;
  }

  // Σ e^score of each page, the short last one included.
  std::vector<double> TrueMasses(int query_head) const {
    const Rows rows = Stored(query_head);
    std::vector<double> masses((shape_.n_tokens + shape_.slots - 1) / shape_.slots);
    for (int64_t t = 0; t < shape_.n_tokens; ++t) {
      double score = 0;
      for (int c = 0; c < shape_.dim; ++c)
        score += rows.keys[t * shape_.dim + c] * q(query_head)[c];
      masses[t / shape_.slots] += std::exp(scale_ * score);
    }
    return masses;
  }

 private:
  std::span<float> Row(std::vector<float>& rows, int64_t token, int kv_head) const {
    return std::span(rows).subspan((token * shape_.kv_heads + kv_head) * shape_.dim, shape_.dim);
  }

  LayerShape shape_;
  float scale_;
  PagePool pool_;
  SequenceKv kv_;
  std::vector<float> keys_, values_, q_;
};

}  // namespace winnow::testing
