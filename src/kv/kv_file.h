// A file of one sequence's pages, by which a prefill process hands its keys and values, pruned or
// not, to a decode process.
//
// Little-endian, without padding:
//   head     "WINNOWKV", u32 version (1), u32 0, u64 bytes of the head;
//            the model's hash as two u64 (high, low); u32 KV heads, slots of a page, head
//            dimension, dtype (0 f32, 1 f16, 2 q8_0), layers; u64 token IDs, u64 bytes of the note;
//            each layer's tokens and released tokens, u64; token IDs, i32; the note;
//            each layer's positions of its resident tokens, i32;
//            the hash of all that
//   payload  each layer's resident pages in order, as they lie in memory ([K][k|v][G][D]), slots
//            after the last token zero
//   the hash of the payload, chained page by page
// Hashes are HashBytes (core/hash.h), high and low. Planes are not stored: they follow from the
// pages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/hash.h"
#include "kv/sequence_kv.h"

namespace winnow {

struct KvFileHeader {
  Hash128 model;                // HashModelFile of the weights that made the keys and values
  std::vector<int32_t> tokens;  // of the sequence; a slot's position is an index of them
  std::string note;             // what the writer wants to tell the reader; any bytes
  bool operator==(const KvFileHeader&) const = default;
};

// What the file takes. The unit is a page of one layer with all its KV heads, full or not.
struct KvFileBytes {
  int64_t pages = 0;
  int64_t payload = 0;   // of the pages' keys and values, scales of q8_0 included
  int64_t metadata = 0;  // all else
  int64_t total() const { return payload + metadata; }
};

struct KvFileInfo {
  KvFileHeader header;
  PageLayout layout;  // without planes
  struct Layer {
    int64_t n_tokens = 0;  // released ones included
    int64_t n_released = 0;
    std::vector<int32_t> positions;  // of the others
  };
  std::vector<Layer> layers;
  KvFileBytes bytes;
};

// Writes all layers of `kv` to `path`, of which nothing is seen before it is complete (it is
// written beside it and renamed). CHECKs that positions are indices of the header's tokens and that
// no layer has more tokens than these. Throws Error(kResource) if it cannot be written.
KvFileBytes SaveKvFile(const std::string& path, const SequenceKv& kv, const KvFileHeader& header);

// Reads the head, checked, and the length of the file, but not the pages. Throws Error(kInput) that
// names the file and what is wrong with it.
KvFileInfo InspectKvFile(const std::string& path);
// The same, and refuses, as LoadKvFile does, a file that is not of this model and these pages.
KvFileInfo InspectKvFile(const std::string& path, const Hash128& model, int n_layers,
                         const PageLayout& layout);

struct LoadedKv {
  SequenceKv kv;
  KvFileHeader header;
  KvFileBytes bytes;
};

// Reads a file into pages of `pool`, which outlives the sequence; planes are not written
// (UpdatePlanes of each layer does that). Throws Error(kInput) that names the file and what is
// wrong with it: it is no such file, cut or damaged, of another model than `model` with `n_layers`,
// or of other pages than the pool's; Error(kResource) if the pool has too few pages free
// (KvFileBytes:: pages). Then no page is taken.
LoadedKv LoadKvFile(const std::string& path, const Hash128& model, int n_layers, PagePool* pool);

}  // namespace winnow
