// An arm says how a request reads its context: "dense", "auto", or policies by name with
// parameters, such as "select=sketch,bits=4,budget=256,residual=sketch" or
// "prefill=entroprefill,keep=0.25". The same string everywhere: command line, JSON, plots.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "policy/decode_policy.h"
#include "policy/prefill/prefill_policy.h"

namespace winnow {

struct Arm {
  std::string text;      // as given
  std::string resolved;  // what runs, with every parameter
  // Part of the prefix hash of what sparse decode wrote. 0 is dense.
  uint64_t fingerprint = 0;
  // Of the pruning of documents in prefill, apart from how decode reads. 0: none. What a profile
  // adds to it is PruneProfile::Fingerprint.
  uint64_t prefill_fingerprint = 0;
};

// Commas join policies and their parameters; a key belongs to the policy named before it:
// select=sketch,bits=4,residual=sketch,bits=2. Throws Error(kUsage) for an unknown arm, policy or
// key, offering the nearest known name, for values out of range and for contradictions.
Arm ParseArm(std::string_view text);

// The policies of an arm; null for dense. Throws as ParseArm.
std::unique_ptr<DecodePolicy> MakeDecodePolicy(std::string_view text);

// How an arm prunes documents; null if it does not. Throws as ParseArm.
std::unique_ptr<PrefillPolicy> MakePrefillPolicy(std::string_view text);

// What an engine's pages have to keep for these arms. Throws as ParseArm.
PlaneSet ArmPlanes(const std::vector<std::string>& arms);

// Tokens of the chunks that a prompt for these arms is cut into: what the first that prunes asks
// for; 0: none does. Throws as ParseArm.
int ArmChunkTokens(const std::vector<std::string>& arms);

// The names that ParseArm knows, for help texts.
std::vector<std::string> KnownArms();

}  // namespace winnow
