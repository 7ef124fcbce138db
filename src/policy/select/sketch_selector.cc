#include "ops/page_planes.h"
#include "ops/sketch_scan.h"
#include "policy/select/selectors.h"

namespace winnow {

namespace {

// log Σ exp(q·k̂) over every token of every page, from the low-bit copy of the keys.
class SketchSelector : public ScanningSelector {
 public:
  explicit SketchSelector(int bits) : bits_(bits) {}
  PlaneSet planes() const override { return {KeySketchPlane(bits_)}; }
  int weight_bits() const override { return bits_; }

 protected:
  void Scan(const LayerStep& step, int64_t* bytes_read) override {
    SketchScan(*step.pool, queries_, step.params, bits_, workspace_, bytes_read);
  }

 private:
  int bits_;
};

}  // namespace

std::unique_ptr<Selector> MakeSketchSelector(Params& params) {
  return std::make_unique<SketchSelector>(std::stoi(params.Choice("bits", "4", {"2", "4", "8"})));
}

}  // namespace winnow
