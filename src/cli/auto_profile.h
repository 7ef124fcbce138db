// What `auto` stands for: the profile of a model and the measured break-even, looked up where the
// user keeps them.
#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>

#include "cli/command.h"
#include "cli/measurement.h"
#include "cli/user_cache.h"
#include "core/parallel.h"
#include "engine/break_even.h"
#include "model/config.h"
#include "policy/auto_arm.h"
#include "policy/profile.h"

namespace winnow {

// Adds --profile and --break-even.
void AddAutoFlags(CLI::App& command, ModelFlags& flags);

struct FoundProfile {
  ModelProfile profile;
  std::string source;  // "the built-in profile", "the profile FILE"
};

// The profile of the model in `path`: of --profile, else the user's cache folder, else built in.
// Throws Error(kInput) for a file of --profile that cannot be read, is damaged, or of another
// model; one in the cache folder is then passed over, with a note on stderr.
std::optional<FoundProfile> FindProfile(const std::string& profile_flag, const std::string& path,
                                        const ModelConfig& config, const UserCache& cache);

// Under which name calibrate keeps a profile in the cache folder.
std::string CachedProfileName(const std::string& model_hash);

// What a break-even was measured for.
MeasurementKey MakeBreakEvenKey(const ModelProfile& profile, const ModelFlags& flags);

std::string FormatBreakEven(const MeasurementKey& key, const BreakEven& measured);
// Nothing if the text is damaged, of another version, or of another key.
std::optional<BreakEven> ParseBreakEven(const std::string& text, const MeasurementKey& key);

// The one in the cache folder; nothing if there is none. A damaged one is passed over with a note.
std::optional<BreakEven> ReadBreakEven(const UserCache& cache, const MeasurementKey& key);

// What `auto` stands for. Measures the break-even where it is not known yet, and keeps it. Throws
// what FindProfile throws.
AutoArm ResolveAutoArm(const ModelFlags& flags, const std::string& path, const ModelConfig& config,
                       ThreadPool* pool);

}  // namespace winnow
