// Says in which interval the share of the attention mass lies that a decode step did not read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policy/certify/error_bounds.h"
#include "policy/params.h"
#include "policy/select/selector.h"

namespace winnow {

// What a certificate knows of one unread page under one query head.
struct PageBound {
  double log_lo = 0;  // log Z_p lies in between; not finite where a key of the page is not
  double log_hi = 0;
  WeightSpread weights;  // of its tokens
};

// What it rests on, for who bounds the error of the output.
struct PageBounds {
  std::vector<PageBound> pages;        // [R, unread]
  std::vector<double> log_mass_error;  // [R] >= |log_mass − log Z_E| of what was read
};

// One KV head of one of a step's queries, once its pages were read.
struct ReadHead {
  int64_t query = 0;  // of step.queries
  int kv_head = 0;
  std::span<const int32_t> unread;  // full pages, ascending
  int64_t tokens_read = 0;
  const float* log_mass = nullptr;  // [R] of what was read, as DecodeAttention gives it
  PageBounds* bounds = nullptr;     // written where something is unread, if not null
};

// Called once a layer and step, and again for heads that read more. Keeps its scratch; not for
// several threads.
class Certifier {
 public:
  virtual ~Certifier() = default;
  // What the pages have to keep.
  virtual PlaneSet planes() const = 0;
  // Writes the interval of the unread share of every query head, shares [heads, R]. It is the share
  // under the scores scale·q·k of the keys as they are stored, and holds for the masses as the
  // kernels computed them, rounding included. Exact where nothing is unread; not finite where a key
  // is not. Adds the bytes read to `bytes_read`.
  virtual void Certify(const LayerStep& step, std::span<const ReadHead> heads,
                       std::span<ShareInterval> shares, int64_t* bytes_read) = 0;
};

// Null for `none` and `estimate`, which bound nothing. `key_bits`: of the selector's sketch, whose
// masses are then in step.masses; 0 if it has none. Throws Error(kUsage) for an unknown name
// (nearest offered) or parameter.
std::unique_ptr<Certifier> MakeCertifier(std::string_view name, int key_bits, Params& params);

// One file each, one line in the registry.
std::unique_ptr<Certifier> MakeDeterministicCertifier(int key_bits, Params& params);
std::unique_ptr<Certifier> MakeSketchCertifier(int key_bits, Params& params);  // bits=8
std::unique_ptr<Certifier> MakeSampleCertifier(int key_bits,
                                               Params& params);  // n=64, delta=0.05, seed=0

}  // namespace winnow
