#include "policy/registry.h"

#include "policy/certify/certifier.h"

namespace winnow {
namespace {

using MakeFn = std::unique_ptr<Certifier>(int key_bits, Params& params);

std::unique_ptr<Certifier> MakeNothing(int /*key_bits*/, Params& /*params*/) { return nullptr; }

}  // namespace

std::unique_ptr<Certifier> MakeCertifier(std::string_view name, int key_bits, Params& params) {
  static const Registry<MakeFn> kCertifiers("certificate",
                                            {{"none", MakeNothing},
                                             {"estimate", MakeNothing},
                                             {"deterministic", MakeDeterministicCertifier},
                                             {"sketch", MakeSketchCertifier},
                                             {"sample", MakeSampleCertifier}});
  return kCertifiers.Find(name)(key_bits, params);
}

}  // namespace winnow
