// Reading the unread parts that matter most until an error bound meets a tolerance.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/function_ref.h"
#include "policy/certify/error_bounds.h"

namespace winnow {

enum class RefineGoal {
  kDropped,    // of attention over what was read alone
  kCompleted,  // of attention completed by the estimates
};

struct RefineOptions {
  RefineGoal goal = RefineGoal::kCompleted;
  double tolerance = 0;    // of the bound
  int64_t max_opened = 0;  // parts; a deadline
};

struct RefineResult {
  std::vector<int64_t> opened;  // indices of parts in the order of reading
  double bound = 0;
  bool met = false;  // bound <= tolerance
  Statement statement;
};

// Opens, one after another, the part with the largest term of the bound (ties to the lower index).
// `open` reads a part exactly; what it returns is copied before the next call. out [E] gets the
// output that the bound is of. Stops at the tolerance, at `max_opened`, when all is read, or when
// something is not finite, which is reported and never a bound.
RefineResult Refine(const RefineOptions& options, const ReadPart& read,
                    std::span<const UnreadPart> parts, FunctionRef<ReadPart(int64_t part)> open,
                    std::span<double> out);

}  // namespace winnow
