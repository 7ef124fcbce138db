// The best removal under (14) by trying all: what the dual bound and the scan are held against.
#pragma once

#include <cstdint>

#include "policy/prefill/dual_bound.h"

namespace winnow {

// D* of (14) in tokens, without a target. Takes 2^k steps: throws Error(kInput) for k > 24.
int64_t BestSaving(const ScreeningProblem& problem);

}  // namespace winnow
