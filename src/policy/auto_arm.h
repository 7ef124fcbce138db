// What the arm `auto` stands for on one model and machine: the profile's arm where a prompt is long
// enough for it to pay, dense elsewhere.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "kv/page_layout.h"

namespace winnow {

inline constexpr char kAutoArm[] = "auto";
// A break-even that no prompt reaches.
inline constexpr int64_t kNeverPays = std::numeric_limits<int64_t>::max();

struct AutoArm {
  std::string arm = "dense";
  // Says where `arm` comes from: "the built-in profile", or why it is dense.
  std::string source = "no profile of this model: `winnow calibrate` makes one";
  int64_t break_even_tokens = 0;  // prompts of so many tokens, or more, run `arm`

  // Whether any prompt of a context of so many tokens leaves dense.
  bool MayBeSparse(int64_t context_tokens) const {
    return arm != "dense" && break_even_tokens < context_tokens;
  }
  // What the pages of such a context have to keep for it. Throws as ParseArm.
  PlaneSet planes(int64_t context_tokens) const;

  struct Choice {
    std::string arm;
    std::string reason;
  };
  // One request keeps one arm: an answer that grows past the break-even stays dense, so that its
  // record, its pages and its repetition speak of one thing. (What it generates is read in full for
  // the first thousand tokens anyway, and the next turn of a chat is a request of its own.)
  Choice For(int64_t prompt_tokens) const;
};

}  // namespace winnow
