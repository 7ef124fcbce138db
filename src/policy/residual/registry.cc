#include "core/error.h"
#include "policy/nearest_name.h"
#include "policy/residual/residual.h"

namespace winnow {
namespace {

std::unique_ptr<ResidualEstimator> MakeNone(int /*key_bits*/, Params& /*params*/) {
  return nullptr;
}

struct Entry {
  std::string name;
  std::unique_ptr<ResidualEstimator> (*make)(int key_bits, Params& params);
};

const std::vector<Entry>& Registry() {
  static const std::vector<Entry> kEntries = {{"none", MakeNone},
                                              {"centroid", MakeCentroidResidual},
                                              {"cumulant", MakeCumulantResidual},
                                              {"phi", MakePhiResidual},
                                              {"phi_nosub", MakePhiNoSubResidual},
                                              {"resa", MakeResaResidual},
                                              {"sample", MakeSampleResidual},
                                              {"sketch", MakeSketchResidual}};
  return kEntries;
}

}  // namespace

std::vector<std::string> ResidualNames() {
  std::vector<std::string> names;
  for (const Entry& entry : Registry()) names.push_back(entry.name);
  return names;
}

std::unique_ptr<ResidualEstimator> MakeResidual(std::string_view name, int key_bits,
                                                Params& params) {
  for (const Entry& entry : Registry()) {
    if (entry.name == name) return entry.make(key_bits, params);
  }
  Throw(ErrorKind::kUsage, "{}", UnknownName("residual estimator", name, ResidualNames()));
}

}  // namespace winnow
