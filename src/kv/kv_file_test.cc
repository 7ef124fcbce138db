#include "kv/kv_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/rng.h"

namespace winnow {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Hash128 kModel = {0x0123456789abcdef, 0xfedcba9876543210};
constexpr int kLayers = 4;
constexpr int64_t kTokens = 50;

std::string ReadAll(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// A pruned sequence: a full layer, one that kept some tokens, one that released its first pages
// and one without tokens.
class KvFileTest : public ::testing::TestWithParam<DType> {
 protected:
  KvFileTest()
      : folder_(fs::temp_directory_path() / ("winnow_kv_file_test_" + std::to_string(getpid()))),
        path_((folder_ / "a.kv").string()),
        layout_(2, 8, 32, GetParam()),
        pool_(layout_, 100),
        kv_(&pool_, kLayers) {
    fs::create_directories(folder_);
    std::vector<int32_t> positions(kTokens);
    std::iota(positions.begin(), positions.end(), 0);
    header_ = {.model = kModel, .tokens = positions, .note = std::string("{\"a\":1}\0x", 9)};
    std::reverse(header_.tokens.begin(), header_.tokens.end());
    Rng rng(3);
    for (int layer = 0; layer < 3; ++layer) {
      EXPECT_TRUE(kv_.Append(layer, positions));
      for (int64_t t = 0; t < kTokens; t += layout_.slots) {
        std::byte* const page = kv_.WritablePage(layer, t);
        for (size_t i = 0; i < layout_.page_bytes; ++i)
          page[i] = static_cast<std::byte>(rng.Below(256));
      }
    }
    const std::vector<int64_t> kept = {0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 30, 31, 32, 49};
    EXPECT_TRUE(kv_.Keep(1, kept).has_value());
    kv_.ReleaseBefore(2, 33);
  }
  ~KvFileTest() override { fs::remove_all(folder_); }

  void Save() { bytes_ = SaveKvFile(path_, kv_, header_); }
  // 7 pages of 50 tokens, 2 of 14, 3 of those from 32 on.
  static constexpr int64_t kPages = 7 + 2 + 3;

  void Write(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }

  // The error of loading the file; the pool must be left as it was.
  std::string LoadError(PagePool* pool, ErrorKind kind = ErrorKind::kInput,
                        const Hash128& model = kModel, int n_layers = kLayers) const {
    std::string message;
    const int64_t free_before = pool->free_pages();
    try {
      LoadKvFile(path_, model, n_layers, pool);
      ADD_FAILURE() << "was loaded";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind);
      EXPECT_THAT(error.what(), HasSubstr(path_));
      message = error.what();
    }
    EXPECT_EQ(pool->free_pages(), free_before);
    return message;
  }

  fs::path folder_;
  std::string path_;
  PageLayout layout_;
  PagePool pool_;
  SequenceKv kv_;
  KvFileHeader header_;
  KvFileBytes bytes_;
};

void ExpectSameTokens(const SequenceKv& a, const SequenceKv& b) {
  ASSERT_EQ(a.n_layers(), b.n_layers());
  const PageLayout& layout = a.pool().layout();
  for (int layer = 0; layer < a.n_layers(); ++layer) {
    ASSERT_EQ(a.n_tokens(layer), b.n_tokens(layer));
    ASSERT_EQ(a.first_resident(layer), b.first_resident(layer));
    for (int64_t t = a.first_resident(layer); t < a.n_tokens(layer); ++t) {
      EXPECT_EQ(a.position(layer, t), b.position(layer, t));
      const size_t offset = (t % layout.slots) * layout.row_bytes;
      for (int head = 0; head < layout.kv_heads; ++head) {
        const auto same = [&](auto rows) {
          return std::memcmp(std::invoke(rows, a.View(layer), t / layout.slots, head) + offset,
                             std::invoke(rows, b.View(layer), t / layout.slots, head) + offset,
                             layout.row_bytes) == 0;
        };
        EXPECT_TRUE(same(&PagedKv::Keys) && same(&PagedKv::Values)) << layer << " " << t;
      }
    }
  }
}

TEST_P(KvFileTest, ComesBackIntoAnotherPool) {
  Save();
  // Planes, which the file does not have, and other page numbers.
  PagePool other(PageLayout(2, 8, 32, GetParam(), {Plane::kKeyMean}), 30);
  SequenceKv neighbour(&other, 1);
  ASSERT_TRUE(neighbour.Append(0, std::vector<int32_t>{0, 1, 2}));
  LoadedKv loaded = LoadKvFile(path_, kModel, kLayers, &other);
  EXPECT_EQ(loaded.header, header_);
  ExpectSameTokens(loaded.kv, kv_);
  loaded.kv.CheckInvariants();
  EXPECT_EQ(loaded.kv.allocated_pages(), kPages);
  // It goes on as any other.
  for (int layer = 0; layer < kLayers; ++layer) {
    EXPECT_TRUE(loaded.kv.Append(layer, std::vector<int32_t>{kTokens, kTokens + 1}));
  }
  loaded.kv.CheckInvariants();
}

TEST_P(KvFileTest, TellsWhatItTakes) {
  Save();
  EXPECT_EQ(bytes_.pages, kPages);
  EXPECT_EQ(bytes_.payload, kPages * 2 * 8 * 2 * static_cast<int64_t>(RowBytes(GetParam(), 32)));
  EXPECT_EQ(bytes_.total(), static_cast<int64_t>(fs::file_size(path_)));
  const KvFileInfo info = InspectKvFile(path_);
  EXPECT_EQ(info.bytes.pages, kPages);
  EXPECT_EQ(info.bytes.payload, bytes_.payload);
  EXPECT_EQ(info.bytes.metadata, bytes_.metadata);
  EXPECT_EQ(info.header, header_);
  EXPECT_EQ(info.layout, layout_);
  ASSERT_EQ(info.layers.size(), size_t{kLayers});
  EXPECT_EQ(info.layers[1].n_tokens, 14);
  EXPECT_EQ(info.layers[1].positions.back(), 49);
  EXPECT_EQ(info.layers[2].n_released, 32);
  // Nothing is left beside it.
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_P(KvFileTest, SameContentsAreSameBytes) {
  Save();
  const std::string first = ReadAll(path_);
  // What lies in slots without a token does not get into the file.
  for (int layer : {0, 1, 2}) {
    const int64_t last = kv_.n_tokens(layer) - 1;
    const size_t slot = last % layout_.slots + 1;
    std::byte* const page = kv_.WritablePage(layer, last);
    for (int head = 0; head < 2; ++head) {
      for (const size_t offset : {layout_.KeyOffset(head), layout_.ValueOffset(head)}) {
        std::memset(page + offset + slot * layout_.row_bytes, 7,
                    (layout_.slots - slot) * layout_.row_bytes);
      }
    }
  }
  Save();
  EXPECT_EQ(ReadAll(path_), first);
  PagePool other(layout_, 30);
  SaveKvFile(path_, LoadKvFile(path_, kModel, kLayers, &other).kv, header_);
  EXPECT_EQ(ReadAll(path_), first);
}

TEST_P(KvFileTest, RefusesWhatDoesNotFit) {
  Save();
  EXPECT_THAT(LoadError(&pool_, ErrorKind::kInput, {1, 2}),
              AllOf(HasSubstr("hash 0123456789abcdeffedcba9876543210"), HasSubstr("this one's")));
  EXPECT_THAT(LoadError(&pool_, ErrorKind::kInput, kModel, 5), HasSubstr("layers: 4 in the file"));
  const auto with = [&](const PageLayout& layout) {
    PagePool pool(layout, 30);
    return LoadError(&pool);
  };
  EXPECT_THAT(with({2, 16, 32, GetParam()}), HasSubstr("tokens of a page: 8 in the file, 16 here"));
  EXPECT_THAT(with({3, 8, 32, GetParam()}), HasSubstr("KV heads"));
  EXPECT_THAT(with({2, 8, 64, GetParam()}), HasSubstr("dimensions of a head"));
  EXPECT_THAT(with({2, 8, 32, GetParam() == DType::kF16 ? DType::kF32 : DType::kF16}),
              HasSubstr("type of keys and values"));
  PagePool small(layout_, kPages - 1);
  EXPECT_THAT(LoadError(&small, ErrorKind::kResource), HasSubstr("12 pages, and 11 are free"));
}

TEST_P(KvFileTest, RefusesWhatIsNoSuchFile) {
  EXPECT_THAT(LoadError(&pool_), HasSubstr("no regular file"));  // it is not there
  Write("");
  EXPECT_THAT(LoadError(&pool_), HasSubstr("too short"));
  Write(std::string(100, 'x'));
  EXPECT_THAT(LoadError(&pool_), HasSubstr("does not begin with"));
  Save();
  std::string bytes = ReadAll(path_);
  bytes[8] = 2;
  Write(bytes);
  EXPECT_THAT(LoadError(&pool_), HasSubstr("version is 2"));
  EXPECT_THROW(SaveKvFile((folder_ / "none" / "b.kv").string(), kv_, header_), Error);
  EXPECT_THROW(SaveKvFile(folder_.string(), kv_, header_), Error);
}

TEST_P(KvFileTest, EveryFlippedBitAndEveryCutIsTold) {
  Save();
  const std::string whole = ReadAll(path_);
  Rng rng(17);
  for (int i = 0; i < 100; ++i) {
    std::string bytes = whole;
    // Half of them in the head.
    const uint64_t limit = i % 2 == 0 ? bytes.size() : static_cast<uint64_t>(bytes_.metadata);
    bytes[rng.Below(limit)] ^= static_cast<char>(1U << rng.Below(8));
    Write(bytes);
    LoadError(&pool_);
  }
  for (int i = 0; i < 100; ++i) {
    Write(whole.substr(0, rng.Below(whole.size())));
    LoadError(&pool_);
  }
  Write(whole + "x");
  EXPECT_THAT(LoadError(&pool_), HasSubstr("cut or damaged"));
}

// Heads with wrong numbers and the right hash: told or loaded, never more.
TEST_P(KvFileTest, WrongNumbersUnderARightHashDoNoHarm) {
  Save();
  const std::string whole = ReadAll(path_);
  uint64_t head = 0;
  std::memcpy(&head, whole.data() + 16, sizeof(head));
  Rng rng(23);
  int loaded = 0;
  for (int i = 0; i < 300; ++i) {
    std::string bytes = whole;
    const size_t at = 24 + rng.Below(i % 2 == 0 ? 120 : head - 40);
    bytes[at] = static_cast<char>(rng.Below(3) == 0 ? 0xff : rng.Below(256));
    const Hash128 hash = HashBytes(std::as_bytes(std::span(bytes.data(), head - 16)));
    std::memcpy(bytes.data() + head - 16, &hash.high, 8);
    std::memcpy(bytes.data() + head - 8, &hash.low, 8);
    Write(bytes);
    try {
      const LoadedKv kv = LoadKvFile(path_, kModel, kLayers, &pool_);
      kv.kv.CheckInvariants();
      ++loaded;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(path_));
    }
  }
  // Token IDs and the note may be anything.
  EXPECT_GT(loaded, 10);
  EXPECT_LT(loaded, 200);
}

INSTANTIATE_TEST_SUITE_P(DTypes, KvFileTest,
                         ::testing::Values(DType::kF32, DType::kF16, DType::kQ8_0),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

}  // namespace
}  // namespace winnow
