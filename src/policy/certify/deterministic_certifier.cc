#include <cmath>
#include <limits>

#include "policy/certify/page_shapes.h"
#include "policy/certify/read_mass.h"

namespace winnow {
namespace {

// From summaries of the unread pages alone: sound whatever they hold, and vacuous as soon as logits
// spread by more than about 0.3 inside a page.
class DeterministicCertifier : public Certifier {
 public:
  PlaneSet planes() const override { return PageShapePlanes(); }

  void Certify(const LayerStep& step, std::span<const ReadHead> heads,
               std::span<ShareInterval> shares, int64_t* bytes_read) override {
    if (scratch_.size() < heads.size()) scratch_.resize(heads.size());
    for (Scratch& scratch : scratch_) scratch.bytes = 0;
    ForEachCertified(step, heads, shares, [&](int64_t h, std::span<ShareInterval> of_head) {
      Scratch& scratch = scratch_[h];
      scratch.bytes = scratch.pages.Load(step, heads[h]);
      const auto n_unread = heads[h].unread.size();
      for (size_t r = 0; r < of_head.size(); ++r) {
        const std::span<const LogitShape> shapes(scratch.pages.shapes.data() + r * n_unread,
                                                 n_unread);
        of_head[r] =
            BoundShare(ReadLogMass(step, heads[h], static_cast<int>(r), scratch.pages.magnitude[r]),
                       SumOfPages(shapes));
      }
    });
    for (const Scratch& scratch : scratch_) *bytes_read += scratch.bytes;
  }

 private:
  struct Scratch {
    PageShapes pages;
    int64_t bytes = 0;
  };

  static LogInterval SumOfPages(std::span<const LogitShape> shapes) {
    LogInterval sum = LogInterval::Empty();
    for (const LogitShape& shape : shapes) sum.Add(BoundLogMass(shape));
    return sum;
  }

  std::vector<Scratch> scratch_;  // [heads]
};

}  // namespace

std::unique_ptr<Certifier> MakeDeterministicCertifier(int /*key_bits*/, Params& /*params*/) {
  return std::make_unique<DeterministicCertifier>();
}

}  // namespace winnow
