#include "policy/registry.h"

#include "policy/residual/residual.h"

namespace winnow {
namespace {

using MakeFn = std::unique_ptr<ResidualEstimator>(int key_bits, Params& params);

std::unique_ptr<ResidualEstimator> MakeNone(int /*key_bits*/, Params& /*params*/) {
  return nullptr;
}

}  // namespace

std::unique_ptr<ResidualEstimator> MakeResidual(std::string_view name, int key_bits,
                                                Params& params) {
  static const Registry<MakeFn> kEstimators("residual estimator",
                                            {{"none", MakeNone},
                                             {"centroid", MakeCentroidResidual},
                                             {"cumulant", MakeCumulantResidual},
                                             {"phi", MakePhiResidual},
                                             {"phi_nosub", MakePhiNoSubResidual},
                                             {"resa", MakeResaResidual},
                                             {"sample", MakeSampleResidual},
                                             {"sketch", MakeSketchResidual}});
  return kEstimators.Find(name)(key_bits, params);
}

}  // namespace winnow
