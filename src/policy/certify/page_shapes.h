// What the summaries of a layer's pages, as their planes hold them, say of the logits of what was
// not read.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/certify/certifier.h"
#include "policy/certify/mgf_bounds.h"
#include "policy/certify/read_mass.h"
#include "policy/certify/summary.h"

namespace winnow {

// Of one KV head; the rounding of the stored figures is part of them.
struct PageShapes {
  std::vector<std::vector<double>> q;  // [R][D], scaled
  std::vector<double> magnitude;       // [R] >= Σ_c |q_c·k_c| for every key of the layer
  std::vector<LogitShape> shapes;      // [R, unread]

  // Returns the bytes read.
  int64_t Load(const LayerStep& step, const ReadHead& head);
  // Writes what the shapes say, [R, unread].
  void Describe(std::span<PageBound> pages) const;

 private:
  PageSummary summary_;
  std::vector<double> largest_;  // [D]
};

// What a certifier that works on page shapes keeps of a KV head.
struct ShapedHead {
  PageShapes pages;
  int64_t bytes = 0;  // read
};

// Writes shares [heads, R] from bound(head, r, scratch), the interval of log Z of what query head r
// of a KV head left unread, from any thread. Scratch: derived from ShapedHead, [heads] and more.
template <class Scratch, class Bound>
void CertifyByShapes(const LayerStep& step, std::span<const ReadHead> heads,
                     std::span<ShareInterval> shares, std::vector<Scratch>& scratch,
                     int64_t* bytes_read, Bound bound) {
  if (scratch.size() < heads.size()) scratch.resize(heads.size());
  for (Scratch& of_head : scratch) of_head.bytes = 0;
  ForEachCertified(step, heads, shares, [&](int64_t h, std::span<ShareInterval> of_head) {
    ShapedHead& shaped = scratch[h];
    shaped.bytes = shaped.pages.Load(step, heads[h]);
    if (heads[h].bounds != nullptr) shaped.pages.Describe(heads[h].bounds->pages);
    for (size_t r = 0; r < of_head.size(); ++r) {
      of_head[r] =
          BoundShare(ReadLogMass(step, heads[h], static_cast<int>(r), shaped.pages.magnitude[r]),
                     bound(heads[h], r, scratch[h]));
    }
  });
  for (const Scratch& of_head : scratch) *bytes_read += of_head.bytes;
}

}  // namespace winnow
