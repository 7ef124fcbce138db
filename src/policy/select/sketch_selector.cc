#include "ops/page_planes.h"
#include "ops/sketch_scan.h"
#include "policy/select/selectors.h"

namespace winnow {

void ScanAllPages(const LayerStep& step, std::vector<PageScanQuery>* queries) {
  queries->clear();
  for (size_t i = 0; i < step.queries.size(); ++i) {
    queries->push_back(
        {.q = step.queries[i].q, .kv = step.queries[i].kv, .masses = step.masses[i]});
  }
}

namespace {

// log Σ exp(q·k̂) over every token of every page, from the low-bit copy of the keys.
class SketchSelector : public Selector {
 public:
  explicit SketchSelector(int bits) : bits_(bits) {}
  PlaneSet planes() const override { return {KeySketchPlane(bits_)}; }
  int weight_bits() const override { return bits_; }
  void Score(const LayerStep& step, int64_t* bytes_read) override {
    ScanAllPages(step, &queries_);
    SketchScan(*step.pool, queries_, step.params, bits_, workspace_, bytes_read);
  }

 private:
  int bits_;
  std::vector<PageScanQuery> queries_;
  PageScanWorkspace workspace_;
};

}  // namespace

std::unique_ptr<Selector> MakeSketchSelector(Params& params) {
  return std::make_unique<SketchSelector>(std::stoi(params.Choice("bits", "4", {"2", "4", "8"})));
}

}  // namespace winnow
