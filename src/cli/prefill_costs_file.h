// What prefill costs on this machine, measured once a model and kept in the user's cache folder.
#pragma once

#include <optional>
#include <string>

#include "cli/command.h"
#include "cli/measurement.h"
#include "core/parallel.h"
#include "model/backbone.h"
#include "policy/prefill/prune_forecast.h"

namespace winnow {

MeasurementKey MakePrefillCostsKey(std::string model_hash, const ModelFlags& flags);

std::string FormatPrefillCosts(const MeasurementKey& key, const PrefillCosts& costs);
// Nothing if the text is damaged, of another version, or of another key.
std::optional<PrefillCosts> ParsePrefillCosts(const std::string& text, const MeasurementKey& key);

// Those in the cache folder, else measured now, which is said on stderr, and kept. Unknown where
// the machine is too busy to tell, and for models that cannot be pruned.
PrefillCosts ResolvePrefillCosts(const ModelFlags& flags, const std::string& path,
                                 Backbone* backbone, ThreadPool* pool);

}  // namespace winnow
