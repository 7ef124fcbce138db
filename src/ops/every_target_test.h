// Runs a check of kernels under every instruction set that they are compiled for.
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstdint>
#include <initializer_list>

namespace winnow::testing {

// Calls `check` under those of `targets` that this machine has; HWY_SCALAR is everywhere.
template <typename Check>
void OnTargets(std::initializer_list<int64_t> targets, const Check& check) {
  for (const int64_t target : targets) {
    if (target != HWY_SCALAR && (hwy::SupportedTargets() & target) == 0) continue;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    check();
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  }
}

// Under every instruction set that the kernels are compiled for.
template <typename Check>
void OnEveryTarget(const Check& check) {
  OnTargets({HWY_AVX3, HWY_AVX2, HWY_SCALAR}, check);
}
// The same of kernels that multiply bytes (ops/simd_targets.h).
template <typename Check>
void OnEveryByteTarget(const Check& check) {
  OnTargets({HWY_AVX3_DL, HWY_AVX3, HWY_AVX2, HWY_SCALAR}, check);
}

}  // namespace winnow::testing
