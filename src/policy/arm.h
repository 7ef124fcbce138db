// An arm says how a request reads its context: "dense", "auto", or policies by name with
// parameters. The same string everywhere: command line, JSON, plots.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace winnow {

struct Arm {
  std::string text;      // as given
  std::string resolved;  // what runs: "auto" resolves to "dense" while no policy is installed
  // Part of the prefix hash: pages written under different fingerprints are never mixed. 0 is
  // dense.
  uint64_t fingerprint = 0;
};

// Throws Error(kUsage) for an unknown arm, policy or key, offering the nearest known name.
Arm ParseArm(std::string_view text);

// The names that ParseArm knows, for help texts.
std::vector<std::string> KnownArms();

// The candidate with the smallest edit distance to `name`, or "" if none is near (more than a third
// of its letters differ).
std::string NearestName(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace winnow
