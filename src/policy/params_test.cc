#include "policy/params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/error.h"

namespace winnow {
namespace {

Params With(const std::string& key, const std::string& value) {
  Params params("select=x");
  params.Set(key, value);
  return params;
}

// The message of the Error(kUsage) that `f` throws.
template <typename F>
std::string UsageError(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

TEST(Params, GivesWhatWasSetOrTheDefault) {
  EXPECT_EQ(With("n", "12").Int("n", 3, 0, 20), 12);
  EXPECT_EQ(With("n", "-12").Int("n", 3, -20, 20), -12);
  EXPECT_EQ(With("m", "12").Int("n", 3, 0, 20), 3);
  EXPECT_EQ(With("x", "2.5e-1").Number("x", 1, 0, 1), 0.25);
  EXPECT_EQ(With("y", "0").Number("x", 0.75, 0, 1), 0.75);
  EXPECT_EQ(With("c", "b").Choice("c", "a", {"a", "b"}), "b");
  EXPECT_EQ(With("d", "b").Choice("c", "a", {"a", "b"}), "a");
  EXPECT_TRUE(With("n", "1").Has("n"));
  EXPECT_FALSE(With("n", "1").Has("N"));
}

TEST(Params, WhatIsNoNumberOrOutOfRangeNamesPolicyKeyAndRange) {
  for (const char* value : {"", " 1", "1 ", "+1", "1.0", "1e1", "0x1", "x", "nan", "-1", "21",
                            "9223372036854775808", "1,2"}) {
    const std::string message = UsageError([&] { With("n", value).Int("n", 3, 0, 20); });
    for (const char* part : {"select=x", "n takes", "0 to 20"}) {
      EXPECT_THAT(message, ::testing::HasSubstr(part)) << value;
    }
  }
  for (const char* value :
       {"", ".", "nan", "-nan", "inf", "-inf", "1.1", "-0.1", "1e400", "0.5x", "0,5", "half"}) {
    EXPECT_THAT(UsageError([&] { With("x", value).Number("x", 1, 0, 1); }),
                ::testing::HasSubstr("x takes a number from 0 to 1"))
        << value;
  }
  EXPECT_THAT(UsageError([] {
                With("c", "meen").Choice("c", "mean", {"mean", "box"});
              }),
              ::testing::HasSubstr("did you mean 'mean'?"));
}

TEST(Params, AKeyIsSetOnceAndMustBeAskedFor) {
  Params params = With("budget", "3");
  EXPECT_THAT(UsageError([&] { params.Set("budget", "3"); }), ::testing::HasSubstr("given twice"));
  EXPECT_THAT(UsageError([&] { params.Finish(); }), ::testing::HasSubstr("it has none"));
  params.Int("budgets", 1, 0, 9);
  EXPECT_THAT(UsageError([&] { params.Finish(); }),
              ::testing::HasSubstr("did you mean 'budgets'?"));
  params.Int("budget", 1, 0, 9);
  EXPECT_NO_THROW(params.Finish());
}

TEST(Params, CanonicalTextSaysEachNumberOneWayAndLosesNoBit) {
  Params params("select=x");
  EXPECT_EQ(params.Canonical(), "");
  params.Set("x", "0.10");
  params.Set("n", "007");
  params.Int("n", 1, 0, 9);
  params.Number("x", 1, 0, 1);
  params.Number("third", 1.0 / 3, 0, 1);
  params.Choice("c", "a", {"a"});
  EXPECT_EQ(params.Canonical(), ",n=7,x=0.1,third=0.3333333333333333,c=a");
  EXPECT_EQ(With("third", "0.3333333333333333").Number("third", 0, 0, 1), 1.0 / 3);
}

}  // namespace
}  // namespace winnow
