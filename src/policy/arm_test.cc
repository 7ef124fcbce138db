#include "policy/arm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "policy/nearest_name.h"

namespace winnow {
namespace {

TEST(Arm, KnownArmsResolveToDense) {
  for (const std::string& name : KnownArms()) {
    const Arm arm = ParseArm(name);
    EXPECT_EQ(arm.text, name);
    EXPECT_EQ(arm.resolved, "dense");
    EXPECT_EQ(arm.fingerprint, 0u);
  }
}

TEST(Arm, UnknownArmOffersTheNearestName) {
  try {
    ParseArm("dence");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.what(), testing::HasSubstr("did you mean 'dense'?"));
  }
  EXPECT_THROW(ParseArm(""), Error);
  EXPECT_THROW(ParseArm("select=sketch"), Error);
}

TEST(NearestName, OffersOnlyWhatIsNear) {
  EXPECT_EQ(NearestName("--tread", {"--threads", "--temp"}), "--threads");
  EXPECT_EQ(NearestName("zzzz", {"dense", "auto"}), "");
  EXPECT_EQ(NearestName("x", {}), "");
}

}  // namespace
}  // namespace winnow
