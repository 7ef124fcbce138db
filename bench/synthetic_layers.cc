#include "bench/synthetic_layers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "bench/timed_rounds.h"
#include "core/check.h"
#include "ops/kv_store.h"
#include "ops/page_planes.h"
#include "policy/arm.h"

namespace winnow {
namespace {

constexpr double kSpreadInPage = 1.7;
constexpr double kSpreadOfPages = 3.0;
constexpr double kGroupAgreement = 0.8;  // cosine of a query to what its group has in common
constexpr int64_t kSlots = kDefaultPageSlots;
constexpr int64_t kBlockPages = 64;  // are made at a time, by all threads
constexpr uint64_t kSeed = 1;

// a and b have unit variance; so has the result, whose correlation with a is `cosine`.
float Mix(float a, double cosine, float b) {
  return static_cast<float>(cosine * a + std::sqrt(1 - cosine * cosine) * b);
}

// Keys and values of one page, [G, row] each.
void MakePage(int64_t page, int64_t row, float* keys, float* values) {
  Rng rng(Rng(kSeed + static_cast<uint64_t>(page)).Next());
  const std::vector<float> of_page = NormalValues(rng, row);
  for (int64_t i = 0; i < kSlots * row; ++i) {
    // A query has unit variance a channel, so these are the spreads of its logits.
    keys[i] = static_cast<float>(kSpreadInPage * rng.Normal() + kSpreadOfPages * of_page[i % row]);
    values[i] = static_cast<float>(rng.Normal());
  }
}

}  // namespace

PageLayout LayersOptions::Layout() const {
  return {heads.kv_heads, kDefaultPageSlots, heads.head_dim, dtype, planes};
}

int64_t LayersOptions::Bytes() const {
  const PageLayout layout = Layout();
  const int64_t pages = n_tokens / kSlots;
  const auto super_page = static_cast<int64_t>(layout.SuperPageLayout().side_bytes);
  // Vectors of super-pages grow by doubling, and copy what they hold.
  const int64_t of_layer =
      pages * layout.TotalBytes() + 3 * (pages / kSuperPagePages + 1) * super_page;
  const int64_t block = kBlockPages * kSlots * heads.kv_heads * heads.head_dim;
  return n_layers * of_layer + 2 * block * static_cast<int64_t>(sizeof(float));
}

SyntheticLayers::SyntheticLayers(ThreadPool& threads, const LayersOptions& options)
    : options_(options),
      pool_(options.Layout(), options.n_tokens / kSlots * options.n_layers),
      kv_(&pool_, options.n_layers) {
  WINNOW_CHECK(n_tokens() >= kSlots && n_tokens() % kSlots == 0, "{} tokens", n_tokens());
  std::vector<int32_t> positions(static_cast<size_t>(n_tokens()));
  std::iota(positions.begin(), positions.end(), 0);
  for (int layer = 0; layer < size(); ++layer) WINNOW_CHECK(kv_.Append(layer, positions));
  FillFirstLayer(threads);
  FillOtherLayers();
  for (int layer = 0; layer < size(); ++layer) UpdatePlanes(threads, &kv_, layer, 0, n_tokens());
  FillQueries();
}

DecodeAttentionParams SyntheticLayers::params() const {
  return {.query_heads = heads().query_heads,
          .scale = 1.0f / std::sqrt(static_cast<float>(heads().head_dim))};
}

void SyntheticLayers::FillFirstLayer(ThreadPool& threads) {
  const int64_t n_pages = n_tokens() / kSlots;
  const int64_t row = int64_t{heads().kv_heads} * heads().head_dim;
  const int64_t of_page = kSlots * row;
  std::vector<float> keys(std::min(n_pages, kBlockPages) * of_page);
  std::vector<float> values(keys.size());
  for (int64_t first = 0; first < n_pages; first += kBlockPages) {
    const int64_t n = std::min(kBlockPages, n_pages - first);
    threads.ForEach(n, [&](int64_t i, int /*thread*/) {
      MakePage(first + i, row, keys.data() + i * of_page, values.data() + i * of_page);
    });
    StoreKv(&kv_, 0, first * kSlots,
            {keys.data(), {n * kSlots, heads().kv_heads, heads().head_dim}},
            {values.data(), {n * kSlots, heads().kv_heads, heads().head_dim}});
  }
}

void SyntheticLayers::FillOtherLayers() {
  Rng rng(kSeed);
  std::vector<int64_t> order(static_cast<size_t>(n_tokens() / kSlots));
  std::iota(order.begin(), order.end(), 0);
  for (int layer = 1; layer < size(); ++layer) {
    Shuffle(rng, order);
    for (int64_t page = 0; page < std::ssize(order); ++page) {
      std::memcpy(kv_.WritablePage(layer, page * kSlots), pool_.data(kv_.pages(0)[order[page]]),
                  pool_.layout().page_bytes);
    }
  }
}

void SyntheticLayers::FillQueries() {
  Rng rng(kSeed);
  const int64_t dim = heads().head_dim;
  const int64_t group = heads().query_heads / heads().kv_heads;
  const std::vector<float> common = NormalValues(rng, heads().kv_heads * dim);
  q_ = NormalValues(rng, out_floats());
  for (int64_t i = 0; i < out_floats(); ++i) {
    q_[i] = Mix(common[i / (group * dim) * dim + i % dim], kGroupAgreement, q_[i]);
  }
}

void DenseRound::operator()() {
  for (int layer = 0; layer < layers_.size(); ++layer) {
    const DecodeQuery query{.q = layers_.q(),
                            .kv = layers_.View(layer),
                            .begin = 0,
                            .end = layers_.n_tokens(),
                            .out = out_.data()};
    DecodeAttention(threads_, {&query, 1}, layers_.params(), workspace_, nullptr);
  }
}

SparseRound::SparseRound(ThreadPool& threads, const SyntheticLayers& layers, const std::string& arm)
    : layers_(layers),
      sparse_(&threads),
      policy_(MakeDecodePolicy(arm)),
      out_(layers.out_floats()) {
  WINNOW_CHECK(policy_ != nullptr, "the arm {} is dense", arm);
}

void SparseRound::operator()() {
  account_ = {};
  if (++n_rounds_ == 2) {  // the first one warmed up
    seconds_ = {};
    total_ = 0;
  }
  const ScopedTimer timer(total_);
  for (int layer = 0; layer < layers_.size(); ++layer) {
    const SparseSlot slot{.query = layers_.Query(layer), .out = out_.data(), .account = &account_};
    sparse_.Attend(*policy_, layer, layers_.params(), {&slot, 1}, &seconds_);
  }
}

}  // namespace winnow
