#include "cli/auto_profile.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace winnow {
namespace {

MeasurementKey Key() {
  return {.folder = "break-even",
          .model_hash = "0123",
          .processor = "a processor",
          .threads = 2,
          .kv_type = "f16",
          .subject = "select=sketch",
          .version = "1.2.3"};
}

TEST(BreakEvenFile, IsReadAsItWasWritten) {
  BreakEven measured{.tokens = 1856, .times = {{1024, 3e-5, 4e-5}, {4096, 1.5e-4, 9e-5}}};
  const auto known = ParseBreakEven(FormatBreakEven(Key(), measured), Key());
  ASSERT_TRUE(known.has_value());
  EXPECT_EQ(*known, measured);
  measured.tokens = kNeverPays;
  EXPECT_EQ(ParseBreakEven(FormatBreakEven(Key(), measured), Key()), measured);
}

TEST(BreakEvenFile, OfSomethingElseIsNotRead) {
  const std::string text = FormatBreakEven(Key(), {.tokens = 1856});
  MeasurementKey other = Key();
  other.processor = "another";
  EXPECT_FALSE(ParseBreakEven(text, other).has_value());
  EXPECT_NE(other.FileName(), Key().FileName());
  other = Key();
  other.threads = 4;
  EXPECT_FALSE(ParseBreakEven(text, other).has_value());
  EXPECT_NE(other.FileName(), Key().FileName());
}

TEST(BreakEvenFile, DamageIsNotRead) {
  const std::string text = FormatBreakEven(Key(), {.tokens = 1856});
  for (size_t n = 0; n + 2 < text.size(); ++n) {
    EXPECT_FALSE(ParseBreakEven(text.substr(0, n), Key()).has_value()) << n;
  }
  const nlohmann::json good = nlohmann::json::parse(text);
  const auto refused = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json bad = good;
    bad[key] = value;
    return !ParseBreakEven(bad.dump(), Key()).has_value();
  };
  EXPECT_TRUE(refused("tokens", "many"));
  EXPECT_TRUE(refused("tokens", -1));
  EXPECT_TRUE(refused("tokens", 0));
  EXPECT_TRUE(refused("schema", "winnow.break_even/2"));
  EXPECT_TRUE(refused("schema", 1));
  EXPECT_TRUE(refused("seconds_a_layer", {1, 2}));
  EXPECT_FALSE(ParseBreakEven("[]", Key()).has_value());
}

}  // namespace
}  // namespace winnow
