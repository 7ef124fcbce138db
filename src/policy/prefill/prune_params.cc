#include "policy/prefill/prune_params.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

#include "core/error.h"

namespace winnow {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 30;
// The largest number below 1, of half-open ranges.
constexpr double kBelowOne = 1 - 0x1.0p-53;

// A number that a profile sets unless the arm does; without profile its default holds.
std::optional<double> Overriding(Params& params, std::string_view key, double value, double max,
                                 bool uncalibrated) {
  if (uncalibrated || params.Has(key)) return params.Number(key, value, 0, max);
  params.Text(key);  // so that it is known
  return std::nullopt;
}

std::vector<int> ParseLayers(const Params& params, std::string_view text) {
  std::vector<int> layers;
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t plus = rest.find('+');
    const std::string_view part = rest.substr(0, plus);
    int layer = 0;
    const auto [at, error] = std::from_chars(part.data(), part.data() + part.size(), layer);
    if (error != std::errc() || at != part.data() + part.size() || layer < 1 || layer > 4096 ||
        (!layers.empty() && layer <= layers.back())) {
      Throw(ErrorKind::kUsage,
            "{}: layers takes layers from 1 in rising order, joined by '+', such as 18+19+21, not "
            "'{}'",
            params.policy(), text);
    }
    layers.push_back(layer);
    if (plus == std::string_view::npos) break;
    rest.remove_prefix(plus + 1);
  }
  return layers;
}

void ReadProfileOrNone(Params& params, PruneParams& out) {
  out.profile = params.Text("profile");
  out.uncalibrated = params.Int("uncalibrated", 0, 0, 1) == 1;
  out.layers = ParseLayers(params, params.Text("layers"));
  if (out.uncalibrated && !out.profile.empty()) {
    Throw(ErrorKind::kUsage, "{}: profile and uncalibrated=1 contradict each other: one of them",
          params.policy());
  }
  if (!out.layers.empty() && !out.uncalibrated) {
    Throw(ErrorKind::kUsage,
          "{}: which layers look is the profile's to say: layers goes with uncalibrated=1",
          params.policy());
  }
}

void ReadTarget(Params& params, PruneParams& out) {
  if (params.Has("target_tokens")) {
    if (params.Has("keep")) {
      Throw(ErrorKind::kUsage, "{}: keep and target_tokens contradict each other: one of them",
            params.policy());
    }
    params.Text("keep");
    out.target_tokens = params.Int("target_tokens", 0, 0, kMostTokens);
    return;
  }
  out.keep = Overriding(params, "keep", 0.25, 1, out.uncalibrated);
  params.Text("target_tokens");
}

void ReadAudit(Params& params, PruneParams& out) {
  const std::string mode = params.Choice("audit", "exact", {"exact", "hoeffding", "kl"});
  out.audit = mode == "exact"       ? AuditMode::kExact
              : mode == "hoeffding" ? AuditMode::kHoeffding
                                    : AuditMode::kKl;
  out.delta = params.Number("delta", 0.05, 1e-12, 1 - 1e-12);
  out.n_draws = params.Int("m_a", 1600, 1, 100'000'000);
  out.seed = static_cast<uint64_t>(params.Int("seed", 0, 0, int64_t{1} << 62));
}

}  // namespace

PruneParams PruneParams::FromParams(Params& params) {
  PruneParams out;
  ReadProfileOrNone(params, out);
  ReadTarget(params, out);
  out.chunk_tokens = params.Int("chunk", 96, 1, kMostTokens);
  out.max_change = Overriding(params, "theta", 0.5, 1, out.uncalibrated);
  if (out.uncalibrated || params.Has("v")) {
    out.min_streak = static_cast<int>(params.Int("v", 1, 0, 4096));
  } else {
    params.Text("v");
  }
  out.eps = Overriding(params, "eps", 0.5, kBelowOne, out.uncalibrated);
  out.eps_audit = Overriding(params, "eps_audit", 0.3, kBelowOne, out.uncalibrated);
  out.z_min = params.Number("z_min", 0.05, 1e-12, 1);
  out.min_mass = params.Number("Z_min", 0.02, 1e-12, 1);
  out.eps_s = params.Number("eps_s", 1e-3, 1e-12, 1000);
  out.min_chunks = params.Int("m0", 1, 0, kMostTokens);
  ReadAudit(params, out);
  out.linear_program = params.Choice("dual", "single", {"single", "lp"}) == "lp";
  out.sinks = params.Int("sinks", 4, 0, kMostTokens);
  out.observers = params.Int("observers", 64, 1, kMostTokens);
  out.must_pay = params.Int("must_pay", 1, 0, 1) == 1;
  out.drop_kv = params.Choice("pruned_kv", "keep", {"keep", "drop"}) == "drop";
  return out;
}

int64_t PruneParams::TargetSaving(int64_t n_candidates, double profile_keep) const {
  const int64_t kept = target_tokens.has_value()
                           ? *target_tokens
                           : static_cast<int64_t>(std::floor(keep.value_or(profile_keep) *
                                                             static_cast<double>(n_candidates)));
  return std::max<int64_t>(0, n_candidates - kept);
}

const char* Name(AuditMode mode) {
  switch (mode) {
    case AuditMode::kExact:
      return "exact";
    case AuditMode::kHoeffding:
      return "hoeffding";
    case AuditMode::kKl:
      return "kl";
  }
  return "";
}

}  // namespace winnow
