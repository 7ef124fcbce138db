// Random histories of several sequences, a prefix cache and a pool that is too small for them,
// against a plain model that keeps every token's payload by value. Payloads are unique and written
// into the pages, so a page that is shared, copied, released or reused wrongly shows in its
// contents.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/rng.h"
#include "kv/page_pool.h"
#include "kv/prefix_cache.h"
#include "kv/prefix_cache_model.h"
#include "kv/sequence_kv.h"

namespace winnow {
namespace {

struct Token {
  int32_t id = 0;
  int32_t position = 0;
};

struct ModelLayer {
  std::vector<uint64_t> payloads;  // of every token, released ones included
  std::vector<int32_t> positions;  // likewise
  int64_t first_resident = 0;
};

struct ModelSequence {
  std::vector<Token> stream;  // what the layers have or will get
  std::vector<ModelLayer> layers;
  bool pruned = false;  // layers may hold other tokens than the stream's first
};

struct Sequence {
  SequenceKv kv;
  ModelSequence model;
};

struct HistoryCase {
  uint64_t seed = 0;
  PageLayout layout;
  int64_t capacity_pages = 0;
  std::vector<int64_t> windows;
  bool has_cache = true;
};

class History {
 public:
  explicit History(const HistoryCase& c)
      : windows_(c.windows),
        has_cache_(c.has_cache),
        rng_(c.seed),
        pool_(c.layout, c.capacity_pages),
        cache_(&pool_, c.windows),
        cache_model_(c.windows, c.layout.slots) {
    for (int i = 0; i < 2; ++i) AddEmpty();
  }

  void Step();
  void Verify();
  void Finish();

  // How often the rarer things happened: a history that never reaches them proves nothing.
  struct Counts {
    int64_t refused = 0;
    int64_t copied = 0;
    int64_t adopted_pages = 0;
    int64_t evicted_pages = 0;
    int64_t compactions = 0;
    int64_t compactions_refused = 0;
    int64_t compaction_copies = 0;
  } counts;

 private:
  int n_layers() const { return static_cast<int>(windows_.size()); }
  int64_t slots() const { return pool_.layout().slots; }
  int64_t Below(int64_t n) { return static_cast<int64_t>(rng_.Below(n)); }

  void AddEmpty() {
    sequences_.push_back({SequenceKv(&pool_, n_layers()), {}});
    sequences_.back().model.layers.resize(n_layers());
  }

  void ExtendStream(ModelSequence& model, int64_t n);
  std::vector<Hash128> Hashes(const ModelSequence& model, int64_t n_pages) const;
  void Write(SequenceKv& kv, int layer, int64_t token, uint64_t payload);
  void ExpectPayload(const PagedKv& view, int64_t token, uint64_t payload) const;
  std::vector<int> References() const;

  void Append(Sequence& s, int layer, int64_t n);
  void AppendAll(Sequence& s);
  void Fork(size_t index);
  void Move(size_t index);
  void Remove(size_t index);
  void TruncateAll(Sequence& s);
  void TruncateLayer(Sequence& s);
  void ReleaseBefore(Sequence& s);
  void Keep(Sequence& s);
  std::vector<std::pair<PageId, uint64_t>> Versions(const Sequence& s, int layer) const;
  void KeepInLayer(Sequence& s, int layer, std::span<const int64_t> tokens);
  void Insert(Sequence& s);
  void Adopt();
  void Evict();

  std::vector<int64_t> windows_;
  bool has_cache_;
  Rng rng_;
  PagePool pool_;
  PrefixCache cache_;
  PrefixCacheModel cache_model_;
  std::vector<Sequence> sequences_;
  uint64_t next_payload_ = 1;
};

// Few distinct tokens and gaps, so that sequences often share prefixes by accident.
void History::ExtendStream(ModelSequence& model, int64_t n) {
  while (static_cast<int64_t>(model.stream.size()) < n) {
    const int32_t last = model.stream.empty() ? -1 : model.stream.back().position;
    model.stream.push_back({static_cast<int32_t>(Below(8) == 0),
                            last + 1 + static_cast<int32_t>(Below(10) == 0 ? Below(3) : 0)});
  }
}

std::vector<Hash128> History::Hashes(const ModelSequence& model, int64_t n_pages) const {
  std::vector<Hash128> hashes;
  for (int64_t i = 0; i < n_pages; ++i) {
    std::vector<int32_t> ids;
    std::vector<int32_t> positions;
    for (int64_t t = i * slots(); t < (i + 1) * slots(); ++t) {
      ids.push_back(model.stream[t].id);
      positions.push_back(model.stream[t].position);
    }
    hashes.push_back(
        PrefixCache::PageHash(hashes.empty() ? Hash128{} : hashes.back(), ids, positions, 1));
  }
  return hashes;
}

// A row's bytes: the payload, its head and whether it is a key or a value, repeated.
std::vector<std::byte> Row(size_t row_bytes, uint64_t payload, int head, bool is_value) {
  const uint64_t word = payload * 64 + static_cast<uint64_t>(head) * 2 + (is_value ? 1 : 0);
  std::vector<std::byte> row(row_bytes);
  for (size_t i = 0; i < row_bytes; i += sizeof(word)) {
    std::memcpy(row.data() + i, &word, std::min(sizeof(word), row_bytes - i));
  }
  return row;
}

void History::Write(SequenceKv& kv, int layer, int64_t token, uint64_t payload) {
  const PageLayout& layout = pool_.layout();
  std::byte* page = kv.WritablePage(layer, token);
  const size_t offset = static_cast<size_t>(token % slots()) * layout.row_bytes;
  for (int head = 0; head < layout.kv_heads; ++head) {
    const auto key = Row(layout.row_bytes, payload, head, false);
    const auto value = Row(layout.row_bytes, payload, head, true);
    std::memcpy(page + layout.KeyOffset(head) + offset, key.data(), layout.row_bytes);
    std::memcpy(page + layout.ValueOffset(head) + offset, value.data(), layout.row_bytes);
  }
}

void History::ExpectPayload(const PagedKv& view, int64_t token, uint64_t payload) const {
  const size_t row_bytes = view.layout->row_bytes;
  const size_t offset = static_cast<size_t>(token % slots()) * row_bytes;
  for (int head = 0; head < view.layout->kv_heads; ++head) {
    const auto key = Row(row_bytes, payload, head, false);
    const auto value = Row(row_bytes, payload, head, true);
    ASSERT_EQ(0, std::memcmp(view.Keys(token / slots(), head) + offset, key.data(), row_bytes));
    ASSERT_EQ(0, std::memcmp(view.Values(token / slots(), head) + offset, value.data(), row_bytes));
  }
}

void History::Append(Sequence& s, int layer, int64_t n) {
  ModelLayer& model = s.model.layers[layer];
  const auto first = static_cast<int64_t>(model.payloads.size());
  std::vector<int32_t> positions;
  if (s.model.pruned) {
    const int32_t last = model.positions.empty() ? -1 : model.positions.back();
    for (int64_t i = 0; i < n; ++i) positions.push_back(last + 1 + static_cast<int32_t>(i));
  } else {
    ExtendStream(s.model, first + n);
    for (int64_t i = first; i < first + n; ++i) positions.push_back(s.model.stream[i].position);
  }

  const int64_t needed = s.kv.PagesNeeded(layer, n);
  const int64_t free_before = pool_.free_pages();
  const bool fits = s.kv.Append(layer, positions);
  ASSERT_EQ(fits, needed <= free_before);
  ASSERT_EQ(pool_.free_pages(), fits ? free_before - needed : free_before);
  if (!fits) {
    ++counts.refused;
    return;
  }
  const int64_t new_pages = (first + n + slots() - 1) / slots() - (first + slots() - 1) / slots();
  counts.copied += needed - new_pages;
  model.positions.insert(model.positions.end(), positions.begin(), positions.end());
  for (int64_t i = first; i < first + n; ++i) {
    model.payloads.push_back(next_payload_);
    Write(s.kv, layer, i, next_payload_++);
  }
}

void History::AppendAll(Sequence& s) {
  const int64_t end = static_cast<int64_t>(s.model.layers[0].payloads.size()) + 1 + Below(9);
  for (int layer = 0; layer < n_layers(); ++layer) {
    const int64_t n = end - static_cast<int64_t>(s.model.layers[layer].payloads.size());
    if (n > 0) Append(s, layer, n);
  }
}

void History::Fork(size_t index) {
  Sequence fork{sequences_[index].kv.Fork(), sequences_[index].model};
  sequences_.push_back(std::move(fork));
}

void History::Move(size_t index) {
  SequenceKv taken(std::move(sequences_[index].kv));
  SequenceKv other(&pool_, n_layers());
  other = std::move(taken);
  sequences_[index].kv = std::move(other);
}

void History::Remove(size_t index) {
  sequences_.erase(sequences_.begin() + static_cast<ptrdiff_t>(index));
  if (sequences_.empty()) AddEmpty();
}

// The sequence goes back to its first tokens and continues differently.
void History::TruncateAll(Sequence& s) {
  int64_t least = 0;
  int64_t most = 0;
  for (const ModelLayer& layer : s.model.layers) {
    least = std::max(least, layer.first_resident);
    most = std::max(most, static_cast<int64_t>(layer.payloads.size()));
  }
  const int64_t n = Below(8) == 0 || least > most ? 0 : least + Below(most - least + 1);
  if (n == 0) s.kv.Clear();
  for (int layer = 0; layer < n_layers(); ++layer) {
    ModelLayer& model = s.model.layers[layer];
    const int64_t kept = std::min(n, static_cast<int64_t>(model.payloads.size()));
    s.kv.Truncate(layer, kept);
    model.payloads.resize(kept);
    model.positions.resize(kept);
    model.first_resident = std::min(model.first_resident, kept);
  }
  s.model.stream.resize(std::min<size_t>(s.model.stream.size(), n));
  s.model.pruned = s.model.pruned && n > 0;
}

void History::TruncateLayer(Sequence& s) {
  const int layer = static_cast<int>(Below(n_layers()));
  ModelLayer& model = s.model.layers[layer];
  const auto n_tokens = static_cast<int64_t>(model.payloads.size());
  const int64_t kept = model.first_resident + Below(n_tokens - model.first_resident + 1);
  s.kv.Truncate(layer, kept);
  model.payloads.resize(kept);
  model.positions.resize(kept);
}

// All layers keep the same tokens, as far as they have them, or one keeps others.
void History::Keep(Sequence& s) {
  int64_t n_tokens = 0;
  for (const ModelLayer& layer : s.model.layers) {
    n_tokens = std::max<int64_t>(n_tokens, std::ssize(layer.payloads));
  }
  // Runs of tokens stay or go; where few go, whole pages stay.
  std::vector<int64_t> tokens;
  const int64_t run = 1 + Below(12);
  const int64_t dropped_of_eight = Below(9);
  for (int64_t t = 0; t < n_tokens; t += run) {
    if (Below(8) < dropped_of_eight) continue;
    for (int64_t i = t; i < std::min(t + run, n_tokens); ++i) tokens.push_back(i);
  }
  const int one = Below(3) == 0 ? static_cast<int>(Below(n_layers())) : -1;
  for (int layer = 0; layer < n_layers(); ++layer) {
    if (one < 0 || layer == one) KeepInLayer(s, layer, tokens);
  }
}

// The layer's pages with their versions.
std::vector<std::pair<PageId, uint64_t>> History::Versions(const Sequence& s, int layer) const {
  std::vector<std::pair<PageId, uint64_t>> pages;
  for (PageId page : s.kv.pages(layer)) {
    pages.emplace_back(page, page == kNoPage ? 0 : pool_.versions()[page]);
  }
  return pages;
}

void History::KeepInLayer(Sequence& s, int layer, std::span<const int64_t> all_tokens) {
  ModelLayer& model = s.model.layers[layer];
  std::vector<int64_t> tokens;
  for (int64_t t : all_tokens) {
    if (t >= model.first_resident && t < std::ssize(model.payloads)) tokens.push_back(t);
  }
  const auto before = Versions(s, layer);
  const int64_t needed = s.kv.PagesToKeep(layer, tokens);
  const int64_t free_before = pool_.free_pages();
  const std::optional<int64_t> changed = s.kv.Keep(layer, tokens);
  const auto after = Versions(s, layer);
  ASSERT_EQ(changed.has_value(), needed <= free_before);
  if (!changed) {
    ASSERT_EQ(pool_.free_pages(), free_before);
    ASSERT_EQ(after, before);
    ++counts.compactions_refused;
    return;
  }
  ++counts.compactions;
  counts.compaction_copies += needed;
  for (size_t page = 0; page < after.size(); ++page) {
    ASSERT_EQ(after[page] == before[page], static_cast<int64_t>(page) * slots() < *changed);
  }
  s.model.pruned = true;
  model.first_resident = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    model.payloads[i] = model.payloads[tokens[i]];
    model.positions[i] = model.positions[tokens[i]];
  }
  model.payloads.resize(tokens.size());
  model.positions.resize(tokens.size());
}

void History::ReleaseBefore(Sequence& s) {
  for (int layer = 0; layer < n_layers(); ++layer) {
    if (windows_[layer] == 0) continue;
    ModelLayer& model = s.model.layers[layer];
    const auto n_tokens = static_cast<int64_t>(model.payloads.size());
    const int64_t seen = std::max<int64_t>(0, n_tokens - windows_[layer] + 1);
    const int64_t first = Below(4) == 0 ? Below(n_tokens + 1) : std::min(seen, n_tokens);
    s.kv.ReleaseBefore(layer, first);
    model.first_resident = std::max(model.first_resident, first / slots() * slots());
  }
}

void History::Insert(Sequence& s) {
  int64_t n_tokens = s.kv.n_tokens(0);
  for (int layer = 1; layer < n_layers(); ++layer) {
    n_tokens = std::min(n_tokens, s.kv.n_tokens(layer));
  }
  const int64_t n = Below(4) == 0 ? Below(n_tokens / slots() + 1) : n_tokens / slots();
  const std::vector<Hash128> hashes = Hashes(s.model, n);
  cache_.Insert(hashes, s.kv);
  for (int64_t i = 0; i < n; ++i) {
    auto& entry = cache_model_.Add(hashes[i], i == 0 ? Hash128{} : hashes[i - 1]);
    for (int layer = 0; layer < n_layers(); ++layer) {
      const ModelLayer& model = s.model.layers[layer];
      if (entry.pages[layer] || i * slots() < model.first_resident) continue;
      const auto begin = model.payloads.begin() + i * slots();
      entry.pages[layer] = {{begin, begin + slots()}, s.kv.pages(layer)[i]};
    }
  }
  cache_model_.Use(hashes);
}

// A new sequence with a prompt that begins like one of the others.
void History::Adopt() {
  ModelSequence model;
  model.layers.resize(n_layers());
  model.stream = sequences_[Below(static_cast<int64_t>(sequences_.size()))].model.stream;
  model.stream.resize(Below(static_cast<int64_t>(model.stream.size()) + 1));
  ExtendStream(model, 1 + Below(40));
  const std::vector<Hash128> hashes =
      Hashes(model, static_cast<int64_t>(model.stream.size()) / slots());
  const int64_t max_pages = Below(3) == 0 ? Below(6) : 1000;
  SequenceKv kv(&pool_, n_layers());
  const int64_t n = cache_.Adopt(hashes, max_pages, &kv);
  ASSERT_EQ(n, cache_model_.UsableRun(hashes, max_pages));
  for (int layer = 0; layer < n_layers(); ++layer) {
    for (int64_t t = 0; t < n * slots(); ++t) {
      model.layers[layer].positions.push_back(model.stream[t].position);
      // Pages that no later query sees are left out, whether or not they are there.
      const int64_t page_end = (t / slots() + 1) * slots();
      if (windows_[layer] > 0 && page_end - 1 <= n * slots() - windows_[layer]) {
        model.layers[layer].payloads.push_back(0);
        model.layers[layer].first_resident = page_end;
      } else {
        model.layers[layer].payloads.push_back(cache_model_.Payload(hashes, layer, t));
      }
    }
  }
  cache_model_.Use(std::span(hashes).first(n));
  counts.adopted_pages += n;
  sequences_.push_back({std::move(kv), std::move(model)});
}

std::vector<int> History::References() const {
  std::vector<int> references(pool_.capacity_pages(), 0);
  for (const Sequence& s : sequences_) {
    for (int layer = 0; layer < n_layers(); ++layer) {
      for (PageId page : s.kv.pages(layer)) {
        if (page != kNoPage) ++references[page];
      }
    }
  }
  cache_model_.AddReferences(references);
  return references;
}

void History::Evict() {
  const int64_t evictable = cache_.evictable_pages();
  const int64_t free_before = pool_.free_pages();
  const int64_t n = Below(3) == 0 ? 1 + Below(pool_.capacity_pages()) : 1 + Below(4);
  const std::vector<int> references = References();
  const int64_t freed = cache_.Evict(n);
  ASSERT_EQ(freed, cache_model_.Evict(n, references));
  ASSERT_EQ(pool_.free_pages(), free_before + freed);
  ASSERT_GE(freed, std::min(n, evictable));
  counts.evicted_pages += freed;
}

void History::Step() {
  const auto index = static_cast<size_t>(Below(static_cast<int64_t>(sequences_.size())));
  Sequence& s = sequences_[index];
  const bool has_room = sequences_.size() < 6;
  const int64_t action = Below(103);
  if (action < 40) {
    AppendAll(s);
  } else if (action < 48) {
    Append(s, static_cast<int>(Below(n_layers())), Below(7));
  } else if (action < 56) {
    has_room ? Fork(index) : Remove(index);
  } else if (action < 64) {
    TruncateAll(s);
  } else if (action < 68) {
    TruncateLayer(s);
  } else if (action < 74) {
    ReleaseBefore(s);
  } else if (action < 78) {
    Remove(index);
  } else if (action < 80) {
    Move(index);
  } else if (action < 88) {
    if (has_cache_ && !s.model.pruned) Insert(s);
  } else if (action < 94) {
    has_room ? Adopt() : Remove(index);
  } else if (action < 100) {
    Evict();
  } else {
    Keep(s);
  }
}

void History::Verify() {
  pool_.CheckInvariants();
  cache_.CheckInvariants();
  ASSERT_EQ(cache_.size(), static_cast<int64_t>(cache_model_.entries().size()));
  const std::vector<int> references = References();
  ASSERT_EQ(pool_.used_pages(),
            std::ranges::count_if(references, [](int count) { return count > 0; }));
  for (PageId page = 0; page < pool_.capacity_pages(); ++page) {
    if (references[page] == 0) continue;
    ASSERT_EQ(pool_.ref_count(page), references[page]);
  }
  for (const Sequence& s : sequences_) {
    s.kv.CheckInvariants();
    for (int layer = 0; layer < n_layers(); ++layer) {
      const ModelLayer& model = s.model.layers[layer];
      const PagedKv view = s.kv.View(layer);
      ASSERT_EQ(view.n_tokens, static_cast<int64_t>(model.payloads.size()));
      ASSERT_EQ(s.kv.first_resident(layer), model.first_resident);
      for (int64_t t = model.first_resident; t < view.n_tokens; ++t) {
        ASSERT_EQ(s.kv.position(layer, t), model.positions[t]);
        ASSERT_NO_FATAL_FAILURE(ExpectPayload(view, t, model.payloads[t]));
      }
    }
  }
}

// Without sequences everything is evictable, and nothing is lost.
void History::Finish() {
  sequences_.clear();
  ASSERT_EQ(cache_.evictable_pages(), pool_.used_pages());
  cache_.Evict(pool_.capacity_pages() + 1);
  ASSERT_EQ(pool_.used_pages(), 0);
}

class KvHistoryTest : public testing::TestWithParam<HistoryCase> {};

TEST_P(KvHistoryTest, AgreesWithTheModel) {
  History history(GetParam());
  for (int step = 0; step < 6000; ++step) {
    SCOPED_TRACE(step);
    ASSERT_NO_FATAL_FAILURE(history.Step());
    ASSERT_NO_FATAL_FAILURE(history.Verify());
  }
  EXPECT_GT(history.counts.refused, 50);
  EXPECT_GT(history.counts.compactions, 50);
  EXPECT_GT(history.counts.compaction_copies, 10);
  EXPECT_GT(history.counts.compactions_refused, 0);
  if (GetParam().layout.slots > 1) {
    EXPECT_GT(history.counts.copied, 50);
  }
  if (GetParam().has_cache) {
    EXPECT_GT(history.counts.adopted_pages, 50);
    EXPECT_GT(history.counts.evicted_pages, 50);
  }
  history.Finish();
}

INSTANTIATE_TEST_SUITE_P(Seeds, KvHistoryTest,
                         testing::Values(HistoryCase{1, {2, 4, 8, DType::kF16}, 48, {0, 6, 0}},
                                         HistoryCase{2, {2, 4, 8, DType::kF16}, 24, {0, 6, 0}},
                                         HistoryCase{3, {1, 3, 32, DType::kQ8_0}, 40, {5, 0, 1, 9}},
                                         HistoryCase{4, {1, 1, 4, DType::kF32}, 60, {0, 3}},
                                         HistoryCase{5, {3, 8, 2, DType::kF32}, 16, {0}},
                                         HistoryCase{6, {2, 4, 8, DType::kF16}, 48, {7, 11}},
                                         HistoryCase{7, {2, 4, 8, DType::kF16}, 32, {0, 6}, false}),
                         [](const auto& info) { return "Seed" + std::to_string(info.param.seed); });

}  // namespace
}  // namespace winnow
