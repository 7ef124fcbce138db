#include "kv/kv_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "core/error.h"

namespace winnow {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "WINNOWKV";
constexpr uint32_t kVersion = 1;
constexpr int64_t kHeadBytesOffset = 16;
constexpr int64_t kPrefixBytes = 24;  // up to and with the length of the head
constexpr int64_t kHashBytes = 16;
constexpr uint32_t kMaxDimension = 1U << 16;
// Token IDs and positions of a million tokens in 200 layers fit; a damaged length shall not take
// all memory.
constexpr uint64_t kMaxHeadBytes = uint64_t{1} << 30;

// Bytes of keys and values of one page; the pool's pages may be padded.
int64_t PayloadBytes(const PageLayout& layout) { return layout.TokenBytes(layout.slots); }

class HeadWriter {
 public:
  template <typename T>
  void Put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void PutHash(const Hash128& hash) {
    Put(hash.high);
    Put(hash.low);
  }
  void PutBytes(std::string_view bytes) { bytes_ += bytes; }
  template <typename T>
  void PutAll(std::span<const T> values) {
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  }
  // The head with its length and its hash.
  std::string Finish() && {
    const uint64_t n = bytes_.size() + kHashBytes;
    std::memcpy(bytes_.data() + kHeadBytesOffset, &n, sizeof(n));
    PutHash(HashBytes(std::as_bytes(std::span(bytes_))));
    return std::move(bytes_);
  }

 private:
  std::string bytes_;
};

std::string MakeHead(const SequenceKv& kv, const KvFileHeader& header) {
  const PageLayout& layout = kv.pool().layout();
  HeadWriter head;
  head.PutBytes(kMagic);
  head.Put(kVersion);
  head.Put(uint32_t{0});
  head.Put(uint64_t{0});  // the length, when it is known
  head.PutHash(header.model);
  for (const int n : {layout.kv_heads, layout.slots, layout.head_dim,
                      static_cast<int>(layout.dtype), kv.n_layers()}) {
    head.Put(static_cast<uint32_t>(n));
  }
  head.Put(uint64_t{header.tokens.size()});
  head.Put(uint64_t{header.note.size()});
  for (int layer = 0; layer < kv.n_layers(); ++layer) {
    WINNOW_CHECK(kv.n_tokens(layer) <= std::ssize(header.tokens), "layer {}: {} of {} tokens",
                 layer, kv.n_tokens(layer), header.tokens.size());
    head.Put(static_cast<uint64_t>(kv.n_tokens(layer)));
    head.Put(static_cast<uint64_t>(kv.first_resident(layer)));
  }
  head.PutAll(std::span(header.tokens));
  head.PutBytes(header.note);
  for (int layer = 0; layer < kv.n_layers(); ++layer) {
    for (int64_t t = kv.first_resident(layer); t < kv.n_tokens(layer); ++t) {
      const int32_t position = kv.position(layer, t);
      WINNOW_CHECK(0 <= position && position < std::ssize(header.tokens), "position {} of {}",
                   position, header.tokens.size());
      head.Put(position);
    }
  }
  return std::move(head).Finish();
}

class FileWriter {
 public:
  explicit FileWriter(const std::string& path) : path_(path), part_(path + ".part") {
    errno = 0;
    stream_.open(part_, std::ios::binary | std::ios::trunc);
    Check();
  }
  ~FileWriter() {
    if (done_) return;
    stream_.close();
    std::error_code ignored;
    fs::remove(part_, ignored);
  }
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void Write(const void* bytes, int64_t n) {
    errno = 0;
    stream_.write(static_cast<const char*>(bytes), n);
    Check();
  }
  void Finish() {
    errno = 0;
    stream_.close();
    Check();
    std::error_code error;
    fs::rename(part_, path_, error);
    if (error) Throw(ErrorKind::kResource, "cannot write {}: {}", path_, error.message());
    done_ = true;
  }

 private:
  void Check() const {
    if (stream_) return;
    Throw(ErrorKind::kResource, "cannot write {}: {}", part_,
          errno == 0 ? "unknown cause" : std::strerror(errno));
  }
  std::string path_;
  std::string part_;
  std::ofstream stream_;
  bool done_ = false;
};

// A page with zeros after its first `n` tokens: what lies there is whatever the memory held before.
std::vector<std::byte> WithoutTail(const PageLayout& layout, const std::byte* page, int64_t n) {
  std::vector<std::byte> copy(PayloadBytes(layout));
  for (int head = 0; head < layout.kv_heads; ++head) {
    for (const size_t offset : {layout.KeyOffset(head), layout.ValueOffset(head)}) {
      std::memcpy(copy.data() + offset, page + offset, n * layout.row_bytes);
    }
  }
  return copy;
}

class FileReader {
 public:
  explicit FileReader(const std::string& path) : path_(path) {
    std::error_code error;
    if (!fs::is_regular_file(path, error)) Refuse("it is no regular file");
    bytes_ = static_cast<int64_t>(fs::file_size(path, error));
    if (error) Refuse("{}", error.message());
    errno = 0;
    stream_.open(path, std::ios::binary);
    if (!stream_) Refuse("{}", std::strerror(errno));
  }
  int64_t bytes() const { return bytes_; }
  void Read(void* to, int64_t n) {
    stream_.read(static_cast<char*>(to), n);
    if (!stream_) Refuse("it cannot be read to its end");
  }
  template <typename... Args>
  [[noreturn]] void Refuse(fmt::format_string<Args...> format, Args&&... args) const {
    Throw(ErrorKind::kInput, "the KV file {} cannot be used: {}", path_,
          fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  std::string path_;
  std::ifstream stream_;
  int64_t bytes_ = 0;
};

// Reads a head whose length and hash are right; every number in it is still held against what is
// there.
class HeadReader {
 public:
  explicit HeadReader(FileReader* file) : file_(*file) { ReadBytes(); }

  KvFileInfo Parse() {
    KvFileInfo info;
    info.header.model = GetHash();
    ReadLayout(&info);
    const auto n_layers = GetBelow(kMaxDimension, "layers");
    const auto n_tokens = Get<uint64_t>();
    const auto n_note = Get<uint64_t>();
    for (int64_t i = 0; i < n_layers; ++i) {
      const auto n = Get<uint64_t>();
      const auto released = Get<uint64_t>();
      if (n > n_tokens || released > n || released % info.layout.slots != 0) {
        file_.Refuse("layer {} has {} tokens, {} released, of {}", i, n, released, n_tokens);
      }
      info.layers.push_back(
          {.n_tokens = static_cast<int64_t>(n), .n_released = static_cast<int64_t>(released)});
    }
    info.header.tokens = GetAll(n_tokens);
    info.header.note = GetBytes(n_note);
    for (KvFileInfo::Layer& layer : info.layers) ReadPositions(info, &layer);
    if (at_ != bytes_.size()) file_.Refuse("its head is longer than what it holds");
    Measure(&info);
    return info;
  }

 private:
  void ReadBytes() {
    if (file_.bytes() < kPrefixBytes + kHashBytes) file_.Refuse("it is too short to be one");
    bytes_.resize(kPrefixBytes);
    file_.Read(bytes_.data(), kPrefixBytes);
    if (GetBytes(kMagic.size()) != kMagic) {
      file_.Refuse("it does not begin with \"{}\"", kMagic);
    }
    const auto version = Get<uint32_t>();
    if (version != kVersion) file_.Refuse("its version is {}, and {} is known", version, kVersion);
    Get<uint32_t>();
    const auto n = Get<uint64_t>();
    const uint64_t limit = std::min(static_cast<uint64_t>(file_.bytes()), kMaxHeadBytes);
    if (n < kPrefixBytes + kHashBytes || n > limit) {
      file_.Refuse("it is cut or damaged: {} bytes, and a head of {}", file_.bytes(), n);
    }
    bytes_.resize(n - kHashBytes);
    file_.Read(bytes_.data() + kPrefixBytes, std::ssize(bytes_) - kPrefixBytes);
    std::array<uint64_t, 2> hash{};
    file_.Read(hash.data(), kHashBytes);
    if (HashBytes(std::as_bytes(std::span(bytes_))) != Hash128{hash[0], hash[1]}) {
      file_.Refuse("its head is damaged");
    }
  }

  // Where the next `n` bytes lie.
  const char* Take(uint64_t n) {
    if (n > bytes_.size() - at_) file_.Refuse("its head ends early");
    return bytes_.data() + std::exchange(at_, at_ + n);
  }
  template <typename T>
  T Get() {
    T value;
    std::memcpy(&value, Take(sizeof(value)), sizeof(value));
    return value;
  }
  Hash128 GetHash() {
    const auto high = Get<uint64_t>();
    return {high, Get<uint64_t>()};
  }
  std::string GetBytes(uint64_t n) { return {Take(n), n}; }
  std::vector<int32_t> GetAll(uint64_t n) {
    if (n > bytes_.size()) file_.Refuse("its head ends early");  // before 4·n overflows
    const char* const from = Take(n * sizeof(int32_t));
    std::vector<int32_t> values(n);
    if (n > 0) std::memcpy(values.data(), from, n * sizeof(int32_t));
    return values;
  }
  int GetBelow(uint32_t limit, std::string_view what) {
    const auto n = Get<uint32_t>();
    if (n == 0 || n > limit) file_.Refuse("it has {} {}", n, what);
    return static_cast<int>(n);
  }

  void ReadLayout(KvFileInfo* info) {
    const int kv_heads = GetBelow(kMaxDimension, "KV heads");
    const int slots = GetBelow(kMaxDimension, "slots a page");
    const int head_dim = GetBelow(kMaxDimension, "dimensions a head");
    const auto dtype = Get<uint32_t>();
    if (dtype > static_cast<uint32_t>(DType::kQ8_0)) file_.Refuse("its type is number {}", dtype);
    try {
      info->layout = PageLayout(kv_heads, slots, head_dim, static_cast<DType>(dtype));
    } catch (const Error& error) {
      file_.Refuse("{}", error.what());
    }
  }

  void ReadPositions(const KvFileInfo& info, KvFileInfo::Layer* layer) {
    layer->positions = GetAll(layer->n_tokens - layer->n_released);
    int32_t last = -1;
    for (int32_t position : layer->positions) {
      if (position <= last || position >= std::ssize(info.header.tokens)) {
        file_.Refuse("position {} comes after {}, of {} tokens", position, last,
                     info.header.tokens.size());
      }
      last = position;
    }
  }

  // Also holds the length of the file against what the head says.
  void Measure(KvFileInfo* info) const {
    const int64_t slots = info->layout.slots;
    for (const KvFileInfo::Layer& layer : info->layers) {
      info->bytes.pages += (std::ssize(layer.positions) + slots - 1) / slots;
    }
    const int64_t head = std::ssize(bytes_) + kHashBytes;
    const int64_t payload = file_.bytes() - head - kHashBytes;
    const int64_t page_bytes = PayloadBytes(info->layout);
    // A product could overflow.
    if (payload < 0 || payload % page_bytes != 0 || payload / page_bytes != info->bytes.pages) {
      file_.Refuse("it is cut or damaged: {} bytes for {} pages of {} and a head of {}",
                   file_.bytes(), info->bytes.pages, page_bytes, head);
    }
    info->bytes.payload = payload;
    info->bytes.metadata = head + kHashBytes;
  }

  FileReader& file_;
  std::string bytes_;
  size_t at_ = 0;
};

void CheckMatches(const FileReader& file, const KvFileInfo& info, const Hash128& model,
                  int n_layers, const PageLayout& layout) {
  if (info.header.model != model) {
    file.Refuse("it is of the model with hash {}, and this one's is {}", info.header.model.Hex(),
                model.Hex());
  }
  const auto check = [&](std::string_view what, auto theirs, auto ours) {
    if (theirs != ours) file.Refuse("{}: {} in the file, {} here", what, theirs, ours);
  };
  check("layers", std::ssize(info.layers), ptrdiff_t{n_layers});
  check("KV heads", info.layout.kv_heads, layout.kv_heads);
  check("dimensions of a head", info.layout.head_dim, layout.head_dim);
  check("type of keys and values", DTypeName(info.layout.dtype), DTypeName(layout.dtype));
  check("tokens of a page", info.layout.slots, layout.slots);
}

}  // namespace

KvFileBytes SaveKvFile(const std::string& path, const SequenceKv& kv, const KvFileHeader& header) {
  const PageLayout& layout = kv.pool().layout();
  const std::string head = MakeHead(kv, header);
  const int64_t page_bytes = PayloadBytes(layout);
  KvFileBytes bytes;
  FileWriter file(path);
  file.Write(head.data(), std::ssize(head));
  Hash128 hash;
  for (int layer = 0; layer < kv.n_layers(); ++layer) {
    const PagedKv view = kv.View(layer);
    for (int64_t first = kv.first_resident(layer); first < view.n_tokens; first += layout.slots) {
      const std::byte* page = view.Keys(first / layout.slots, 0);
      std::vector<std::byte> copy;
      if (view.n_tokens - first < layout.slots) {
        copy = WithoutTail(layout, page, view.n_tokens - first);
        page = copy.data();
      }
      file.Write(page, page_bytes);
      hash = HashBytes({page, static_cast<size_t>(page_bytes)}, hash);
      ++bytes.pages;
    }
  }
  const std::array<uint64_t, 2> words{hash.high, hash.low};
  file.Write(words.data(), kHashBytes);
  file.Finish();
  bytes.payload = bytes.pages * page_bytes;
  bytes.metadata = std::ssize(head) + kHashBytes;
  return bytes;
}

KvFileInfo InspectKvFile(const std::string& path) {
  FileReader file(path);
  return HeadReader(&file).Parse();
}

KvFileInfo InspectKvFile(const std::string& path, const Hash128& model, int n_layers,
                         const PageLayout& layout) {
  FileReader file(path);
  KvFileInfo info = HeadReader(&file).Parse();
  CheckMatches(file, info, model, n_layers, layout);
  return info;
}

LoadedKv LoadKvFile(const std::string& path, const Hash128& model, int n_layers, PagePool* pool) {
  FileReader file(path);
  KvFileInfo info = HeadReader(&file).Parse();
  const PageLayout& layout = pool->layout();
  CheckMatches(file, info, model, n_layers, layout);
  if (info.bytes.pages > pool->free_pages()) {
    Throw(ErrorKind::kResource, "the KV file {} has {} pages, and {} are free", path,
          info.bytes.pages, pool->free_pages());
  }
  SequenceKv kv(pool, n_layers);
  const int64_t page_bytes = PayloadBytes(layout);
  Hash128 hash;
  for (int layer = 0; layer < n_layers; ++layer) {
    const KvFileInfo::Layer& from = info.layers[layer];
    kv.AdoptPages(layer, std::vector<PageId>(from.n_released / layout.slots, kNoPage));
    WINNOW_CHECK(kv.Append(layer, from.positions));
    for (int64_t first = from.n_released; first < from.n_tokens; first += layout.slots) {
      std::byte* const page = kv.WritablePage(layer, first);
      file.Read(page, page_bytes);
      hash = HashBytes({page, static_cast<size_t>(page_bytes)}, hash);
    }
  }
  std::array<uint64_t, 2> words{};
  file.Read(words.data(), kHashBytes);
  if (hash != Hash128{words[0], words[1]}) file.Refuse("its pages are damaged");
  return {.kv = std::move(kv), .header = std::move(info.header), .bytes = info.bytes};
}

}  // namespace winnow
