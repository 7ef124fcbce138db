// Says how far the output of a sparse layer can be from attention over everything that is resident.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/certify/certifier.h"

namespace winnow {

// One KV head after its certificate, and with what stands for the unread merged.
struct OutputHead {
  const ReadHead* read = nullptr;         // with its bounds
  std::span<const ShareInterval> shares;  // [R] of the unread mass
  const float* read_out = nullptr;        // [R, D] o_E, as DecodeAttention gives it
  const float* out = nullptr;             // [R, D] ô, with whatever stands for the rest
};

struct OutputError {
  double bound = 0;  // >= ‖o − ô‖
  double norm = 0;   // ‖ô‖
  Statement statement{StatementKind::kExact};

  // Infinite for an output of norm zero that may be wrong.
  double relative() const { return bound == 0 ? 0 : bound / norm; }
};

// BoundOutput with the pages' masses by a certificate and their values by mean, radius and
// deviation as they are stored, and with the rounding of the kernels that read. Keeps its scratch;
// not for several threads.
class OutputErrors {
 public:
  // What the pages have to keep beside what the certifier asks for.
  static PlaneSet Planes() { return {Plane::kValueMean, Plane::kValueSpread}; }

  // Writes errors [heads, R]: of ô against o under the keys and values as they are stored. Exact
  // and zero, as the share, where nothing is unread: what is left is the rounding that reading
  // everything has too. Vacuous where the values alone say as much, whatever the masses; not finite
  // where a value of the layer is not. Adds the bytes read to `bytes_read`.
  void Bound(const LayerStep& step, std::span<const OutputHead> heads,
             std::span<OutputError> errors, int64_t* bytes_read);

 private:
  struct Scratch {
    std::vector<double> means;           // [unread, D]
    std::vector<PageSummaryView> pages;  // [unread]
    std::vector<UnreadPart> parts;       // [unread]
    std::vector<double> read_out, out;   // [D]
    std::vector<float> token;            // [2, D], a key and a value
    BoundScratch bounds;
  };
  static double LoadValues(const LayerStep& step, const ReadHead& head, Scratch* scratch);
  static OutputError BoundHead(const OutputHead& head, int r, double largest, Scratch* scratch);

  std::vector<Scratch> scratch_;  // [heads]
};

}  // namespace winnow
