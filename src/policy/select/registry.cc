#include <algorithm>

#include "core/error.h"
#include "policy/nearest_name.h"
#include "policy/select/selector.h"
#include "policy/select/selectors.h"

namespace winnow {
namespace {

struct Entry {
  std::string name;
  std::unique_ptr<Selector> (*make)(Params& params);
};

const std::vector<Entry>& Registry() {
  static const std::vector<Entry> kEntries = {
      {"sketch", MakeSketchSelector}, {"cascade", MakeCascadeSelector},
      {"vashista", MakeVashista},     {"meanstd", MakeMeanStdSelector},
      {"quest", MakeQuestSelector},   {"entrokv", MakeEntroKvSelector},
      {"exact", MakeExactSelector},   {"oracle", MakeOracleSelector},
      {"recent", MakeRecentSelector}, {"random", MakeRandomSelector},
      {"all", MakeAllSelector},
  };
  return kEntries;
}

}  // namespace

std::vector<std::string> SelectorNames() {
  std::vector<std::string> names;
  for (const Entry& entry : Registry()) names.push_back(entry.name);
  return names;
}

std::unique_ptr<Selector> MakeSelector(std::string_view name, Params& params) {
  for (const Entry& entry : Registry()) {
    if (entry.name == name) return entry.make(params);
  }
  Throw(ErrorKind::kUsage, "{}", UnknownName("selector", name, SelectorNames()));
}

}  // namespace winnow
