// What every certifier needs of the part that was read: the query in double, and an interval of
// log Z_E around what the kernel computed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/certify/certifier.h"

namespace winnow {

// scale·q of query head `r` of the KV head's group, [D].
void LoadScaledQuery(const LayerStep& step, const ReadHead& head, int r, std::vector<double>* q);

// max |k_c| of each channel over the tokens of the last page if it is not full, [D]; else zeros.
void LargestOfShortPage(const PagedKv& kv, int kv_head, std::vector<double>* largest);

// log Z_E of query head `r`; `magnitude` >= Σ_c |scale·q_c·k_c| for every key of the layer. Writes
// its error to the head's bounds, which then have room for R of them.
LogInterval ReadLogMass(const LayerStep& step, const ReadHead& head, int r, double magnitude);

// Runs bound(h) for each head on all threads; heads with nothing unread get the exact share, zero.
template <class Bound>
void ForEachCertified(const LayerStep& step, std::span<const ReadHead> heads,
                      std::span<ShareInterval> shares, Bound bound) {
  if (heads.empty()) return;
  const int64_t group = step.params.query_heads / step.queries[0].kv.layout->kv_heads;
  step.pool->ForEach(std::ssize(heads), [&](int64_t h, int /*thread*/) {
    const std::span<ShareInterval> of_head = shares.subspan(h * group, group);
    if (PageBounds* bounds = heads[h].bounds; bounds != nullptr) {
      bounds->pages.resize(group * heads[h].unread.size());
      bounds->log_mass_error.resize(group);
    }
    if (heads[h].unread.empty()) {
      for (ShareInterval& share : of_head) share = {0, 0, {StatementKind::kExact}};
    } else {
      bound(h, of_head);
    }
  });
}

}  // namespace winnow
