// Expectations on the Errors that bad input throws.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/error.h"

namespace winnow::testing {

// `f` throws Error(kInput) with `part` in its message.
template <typename F>
void ExpectInputError(const F& f, const std::string& part) {
  try {
    f();
    ADD_FAILURE() << "nothing was thrown; expected: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    EXPECT_THAT(error.what(), ::testing::HasSubstr(part));
  }
}

}  // namespace winnow::testing
