// The summary of a page as its planes hold it.
#pragma once

#include <cstdint>

#include "kv/sequence_kv.h"
#include "policy/certify/summary.h"

namespace winnow {

// The planes that it is read from.
PlaneSet StoredSummaryPlanes();

// Mean, deviation and box of a full page's keys, with the rounding of the stored figures. Radii,
// and all of the values, are not kept.
void LoadStoredSummary(const PagedKv& kv, int64_t page, int kv_head, PageSummary* summary);

}  // namespace winnow
