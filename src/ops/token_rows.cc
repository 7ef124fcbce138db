#include "ops/token_rows.h"

#include "core/check.h"
#include "ops/token_rows_cpu.h"

namespace winnow {
namespace {

size_t RowOffset(const PageLayout& layout, int64_t token) {
  return static_cast<size_t>(token % layout.slots) * layout.row_bytes;
}

}  // namespace

void ScoreTokens(const TokenRows& rows, const float* q, float* scores, int64_t stride) {
  const PagedKv& kv = *rows.kv;
  const PageLayout& layout = *kv.layout;
  WINNOW_CHECK(stride >= kv.n_tokens);
  for (int64_t token = 0; token < kv.n_tokens; ++token) {
    const std::byte* key = kv.Keys(token / layout.slots, rows.head) + RowOffset(layout, token);
    RowDotsCpu(layout.dtype, key, q, layout.head_dim, rows.group_heads, scores + token, stride);
  }
}

int64_t AddWeightedTokens(const TokenRows& rows, const float* weights, int64_t stride, float* out) {
  const PagedKv& kv = *rows.kv;
  const PageLayout& layout = *kv.layout;
  WINNOW_CHECK(stride >= kv.n_tokens);
  int64_t n_read = 0;
  for (int64_t token = 0; token < kv.n_tokens; ++token) {
    const float* weight = weights + token;
    bool any = false;
    for (int r = 0; r < rows.group_heads; ++r) any = any || weight[r * stride] != 0;
    if (!any) continue;
    const std::byte* value = kv.Values(token / layout.slots, rows.head) + RowOffset(layout, token);
    AddRowCpu(layout.dtype, value, weight, stride, layout.head_dim, rows.group_heads, out);
    ++n_read;
  }
  return n_read;
}

}  // namespace winnow
