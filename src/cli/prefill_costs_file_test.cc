#include "cli/prefill_costs_file.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace winnow {
namespace {

MeasurementKey Key() {
  return {.folder = "prefill-costs",
          .model_hash = "0123",
          .processor = "a processor",
          .threads = 2,
          .kv_type = "f16",
          .subject = "chunks of 512 tokens",
          .version = "1.2.3"};
}

constexpr PrefillCosts kCosts = {.layer = {.linear = 1.0 / 3e5, .quadratic = 1.0 / 7e9},
                                 .last_linear = 1e-6,
                                 .score = 3e-9,
                                 .remove = 5e-9,
                                 .copy = 1e-10};

TEST(PrefillCostsFile, IsReadAsItWasWritten) {
  EXPECT_EQ(ParsePrefillCosts(FormatPrefillCosts(Key(), kCosts), Key()), kCosts);
}

TEST(PrefillCostsFile, OfSomethingElseIsNotRead) {
  const std::string text = FormatPrefillCosts(Key(), kCosts);
  MeasurementKey other = Key();
  other.subject = "chunks of 64 tokens";
  EXPECT_FALSE(ParsePrefillCosts(text, other).has_value());
  EXPECT_NE(other.FileName(), Key().FileName());
  other = Key();
  other.model_hash = "4567";
  EXPECT_FALSE(ParsePrefillCosts(text, other).has_value());
  EXPECT_NE(other.FileName(), Key().FileName());
}

TEST(PrefillCostsFile, TheKeyIsOfWhatIsMeasured) {
  ModelFlags flags;
  flags.threads = 2;
  const std::string name = MakePrefillCostsKey("0123", flags).FileName();
  EXPECT_TRUE(name.starts_with("prefill-costs/"));
  flags.prefill_chunk = 64;
  EXPECT_NE(MakePrefillCostsKey("0123", flags).FileName(), name);
}

TEST(PrefillCostsFile, DamageIsNotRead) {
  const std::string text = FormatPrefillCosts(Key(), kCosts);
  for (size_t n = 0; n + 2 < text.size(); ++n) {
    EXPECT_FALSE(ParsePrefillCosts(text.substr(0, n), Key()).has_value()) << n;
  }
  const nlohmann::json good = nlohmann::json::parse(text);
  const auto refused = [&](const char* name, const nlohmann::json& value) {
    nlohmann::json bad = good;
    bad["seconds"][name] = value;
    return !ParsePrefillCosts(bad.dump(), Key()).has_value();
  };
  EXPECT_TRUE(refused("linear", -1e-6));
  EXPECT_TRUE(refused("quadratic", nullptr));
  EXPECT_TRUE(refused("score", "much"));
  EXPECT_TRUE(refused("copy", -1));
  nlohmann::json zero = good;
  zero["seconds"]["linear"] = 0;
  EXPECT_TRUE(ParsePrefillCosts(zero.dump(), Key()).has_value());
  zero["seconds"]["quadratic"] = 0;
  EXPECT_FALSE(ParsePrefillCosts(zero.dump(), Key()).has_value());
}

}  // namespace
}  // namespace winnow
