#include "core/error.h"
#include "policy/certify/certifier.h"
#include "policy/nearest_name.h"

namespace winnow {
namespace {

std::unique_ptr<Certifier> MakeNothing(int /*key_bits*/, Params& /*params*/) { return nullptr; }

struct Entry {
  std::string name;
  std::unique_ptr<Certifier> (*make)(int key_bits, Params& params);
};

const std::vector<Entry>& Registry() {
  static const std::vector<Entry> kEntries = {{"none", MakeNothing},
                                              {"estimate", MakeNothing},
                                              {"deterministic", MakeDeterministicCertifier},
                                              {"sketch", MakeSketchCertifier},
                                              {"sample", MakeSampleCertifier}};
  return kEntries;
}

}  // namespace

std::vector<std::string> CertifierNames() {
  std::vector<std::string> names;
  for (const Entry& entry : Registry()) names.push_back(entry.name);
  return names;
}

std::unique_ptr<Certifier> MakeCertifier(std::string_view name, int key_bits, Params& params) {
  for (const Entry& entry : Registry()) {
    if (entry.name == name) return entry.make(key_bits, params);
  }
  Throw(ErrorKind::kUsage, "{}", UnknownName("certificate", name, CertifierNames()));
}

}  // namespace winnow
