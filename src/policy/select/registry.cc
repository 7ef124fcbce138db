#include "policy/registry.h"

#include "policy/select/selector.h"
#include "policy/select/selectors.h"

namespace winnow {
namespace {

using MakeFn = std::unique_ptr<Selector>(Params& params);

const Registry<MakeFn>& Selectors() {
  static const Registry<MakeFn> kSelectors("selector", {{"sketch", MakeSketchSelector},
                                                        {"cascade", MakeCascadeSelector},
                                                        {"vashista", MakeVashista},
                                                        {"meanstd", MakeMeanStdSelector},
                                                        {"quest", MakeQuestSelector},
                                                        {"entrokv", MakeEntroKvSelector},
                                                        {"exact", MakeExactSelector},
                                                        {"oracle", MakeOracleSelector},
                                                        {"recent", MakeRecentSelector},
                                                        {"random", MakeRandomSelector},
                                                        {"all", MakeAllSelector}});
  return kSelectors;
}

}  // namespace

std::vector<std::string> SelectorNames() { return Selectors().Names(); }

std::unique_ptr<Selector> MakeSelector(std::string_view name, Params& params) {
  return Selectors().Find(name)(params);
}

}  // namespace winnow
