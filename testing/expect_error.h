// Expectations on the Errors that bad input throws.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/error.h"

namespace winnow::testing {

// `f` throws Error of that kind with `part` in its message.
template <typename F>
void ExpectError(const F& f, ErrorKind kind, const std::string& part) {
  try {
    f();
    ADD_FAILURE() << "nothing was thrown; expected: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    EXPECT_THAT(error.what(), ::testing::HasSubstr(part));
  }
}

template <typename F>
void ExpectInputError(const F& f, const std::string& part) {
  ExpectError(f, ErrorKind::kInput, part);
}

}  // namespace winnow::testing
