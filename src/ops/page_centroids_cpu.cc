#include "ops/page_centroids_cpu.h"

#include "ops/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/page_centroids_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "ops/fast_exp-inl.h"
#include "ops/rows_cpu-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow {
namespace HWY_NAMESPACE {

// Pages that are scored together, and from those to the ones that are fetched.
constexpr size_t kPagesAtOnce = 4;

HWY_INLINE void Prefetch(const std::byte* row, size_t n_bytes) {
  for (size_t i = 0; i < n_bytes; i += 64) __builtin_prefetch(row + i);
}

// scores[i] = q·k̄ of page i; up to kPagesAtOnce − 1 numbers past the last are overwritten.
void ScoreMeans(const CentroidTask& task, const float* q, float* scores) {
  const F32 f32;
  const PagedKv& kv = *task.kv;
  const auto dim = static_cast<size_t>(kv.layout->padded_dim);
  const size_t n = task.pages.size();
  const auto row_of = [&](Plane plane, size_t i) {
    return kv.PlaneOf(plane, task.pages[std::min(i, n - 1)], task.kv_head);
  };
  for (size_t i = 0; i < n; i += kPagesAtOnce) {
    const std::byte* mean[kPagesAtOnce];
    VF32 sum[kPagesAtOnce];
    for (size_t j = 0; j < kPagesAtOnce; ++j) {
      Prefetch(row_of(Plane::kKeyMean, i + kPagesAtOnce + j), kv.layout->KeyRowBytes());
      Prefetch(row_of(Plane::kValueMean, i + j), dim * sizeof(float));
      mean[j] = row_of(Plane::kKeyMean, i + j);
      sum[j] = hn::Zero(f32);
    }
    for (size_t c = 0; c < dim; c += kLanes) {
      const VF32 query = hn::LoadU(f32, q + c);
      HWY_UNROLL(4)
      for (size_t j = 0; j < kPagesAtOnce; ++j) {
        sum[j] = hn::MulAdd(query, F16Row::Load(mean[j], c), sum[j]);
      }
    }
    StoreSums4(f32, sum[0], sum[1], sum[2], sum[3], scores + i);
  }
}

// out[c..] = Σ_i p[i]·v̄_i[c..], kVectors vectors.
template <size_t kVectors>
HWY_INLINE void SumValues(const CentroidTask& task, const float* p, size_t c, float* out) {
  const F32 f32;
  VF32 sum[kVectors];
  HWY_UNROLL(4)
  for (VF32& s : sum) s = hn::Zero(f32);
  for (size_t i = 0; i < task.pages.size(); ++i) {
    const auto* value = reinterpret_cast<const float*>(
        task.kv->PlaneOf(Plane::kValueMean, task.pages[i], task.kv_head));
    const VF32 weight = hn::Set(f32, p[i]);
    HWY_UNROLL(4)
    for (size_t j = 0; j < kVectors; ++j) {
      sum[j] = hn::MulAdd(weight, hn::LoadU(f32, value + c + j * kLanes), sum[j]);
    }
  }
  HWY_UNROLL(4)
  for (size_t j = 0; j < kVectors; ++j) hn::StoreU(sum[j], f32, out + c + j * kLanes);
}

void Centroids(const CentroidTask& task, float* workspace) {
  const F32 f32;
  const auto dim = static_cast<size_t>(task.kv->layout->padded_dim);
  const auto head_dim = static_cast<size_t>(task.kv->layout->head_dim);
  const size_t n = task.pages.size();
  const size_t padded_n = (n + 15) / 16 * 16;  // whole vectors
  float* q = workspace;
  float* sums = q + dim;
  float* p = sums + dim;
  std::copy_n(task.q, head_dim, q);
  std::fill(q + head_dim, q + dim, 0.0f);
  ScoreMeans(task, q, p);
  std::fill(p + n, p + padded_n, -std::numeric_limits<float>::infinity());

  const float largest = *std::max_element(p, p + n);
  const VF32 reference = hn::Set(f32, largest);
  const VF32 unit = hn::Set(f32, task.scale * std::numbers::log2e_v<float>);
  VF32 total_lanes = hn::Zero(f32);
  for (size_t i = 0; i < padded_n; i += kLanes) {
    const VF32 above = hn::Sub(hn::LoadU(f32, p + i), reference);
    const VF32 weight = FastExp2(f32, hn::Mul(above, unit));
    hn::StoreU(weight, f32, p + i);
    total_lanes = hn::Add(total_lanes, weight);
  }
  const float total = hn::GetLane(hn::SumOfLanes(f32, total_lanes));

  size_t c = 0;
  for (; c + 4 * kLanes <= dim; c += 4 * kLanes) SumValues<4>(task, p, c, sums);
  for (; c < dim; c += kLanes) SumValues<1>(task, p, c, sums);
  for (c = 0; c < head_dim; ++c) task.out[c] = sums[c] / total;
  *task.log_mass =
      task.scale * largest + std::log(total * static_cast<float>(task.kv->layout->slots));
}

}  // namespace HWY_NAMESPACE
}  // namespace winnow
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow {

HWY_EXPORT(Centroids);

void PageCentroidsCpu(const CentroidTask& task, float* workspace) {
  HWY_DYNAMIC_DISPATCH(Centroids)(task, workspace);
}

}  // namespace winnow
#endif  // HWY_ONCE
