#include "policy/certify/page_shapes.h"
#include "policy/certify/stored_summary.h"

namespace winnow {
namespace {

// From summaries of the unread pages alone: sound whatever they hold, and vacuous as soon as logits
// spread by more than about 0.3 inside a page.
class DeterministicCertifier : public Certifier {
 public:
  PlaneSet planes() const override { return StoredSummaryPlanes(); }

  void Certify(const LayerStep& step, std::span<const ReadHead> heads,
               std::span<ShareInterval> shares, int64_t* bytes_read) override {
    CertifyByShapes(step, heads, shares, scratch_, bytes_read,
                    [](const ReadHead& head, size_t r, const ShapedHead& shaped) {
                      const size_t n_unread = head.unread.size();
                      const std::span<const LogitShape> shapes(shaped.pages.shapes);
                      return SumOfPages(shapes.subspan(r * n_unread, n_unread));
                    });
  }

 private:
  static LogInterval SumOfPages(std::span<const LogitShape> shapes) {
    LogInterval sum = LogInterval::Empty();
    for (const LogitShape& shape : shapes) sum.Add(BoundLogMass(shape));
    return sum;
  }

  std::vector<ShapedHead> scratch_;  // [heads]
};

}  // namespace

std::unique_ptr<Certifier> MakeDeterministicCertifier(int /*key_bits*/, Params& /*params*/) {
  return std::make_unique<DeterministicCertifier>();
}

}  // namespace winnow
