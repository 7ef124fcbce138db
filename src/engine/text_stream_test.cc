#include "engine/text_stream.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

TEST(TextStream, PassesTextThrough) {
  TextStream stream({});
  EXPECT_EQ(stream.Push("Hello"), "Hello");
  EXPECT_EQ(stream.Push(", world"), ", world");
  EXPECT_EQ(stream.Finish(), "");
  EXPECT_EQ(stream.text(), "Hello, world");
  EXPECT_FALSE(stream.stopped());
}

TEST(TextStream, HoldsBackWhatMayBecomeAStopString) {
  TextStream stream({"\n\nEND", "##"});
  EXPECT_EQ(stream.Push("a#"), "a");
  EXPECT_EQ(stream.Push("b\n"), "#b");
  EXPECT_EQ(stream.Push("\nEN"), "");
  EXPECT_EQ(stream.Push("X"), "\n\nENX");
  EXPECT_EQ(stream.Push("\n\nE"), "");
  EXPECT_EQ(stream.Finish(), "\n\nE");
  EXPECT_EQ(stream.text(), "a#b\n\nENX\n\nE");
}

TEST(TextStream, StopsAtTheEarliestStopStringAndDropsTheRest) {
  TextStream stream({"stop", "to"});
  EXPECT_EQ(stream.Push("please s"), "please ");
  EXPECT_EQ(stream.Push("top now"), "");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.Push("more"), "");
  EXPECT_EQ(stream.Finish(), "");
  EXPECT_EQ(stream.text(), "please ");
}

TEST(TextStream, SplitsNoCharacter) {
  TextStream stream({});
  EXPECT_EQ(stream.Push("\xe2\x82"), "");
  EXPECT_EQ(stream.Push("\xac!"), "\xe2\x82\xac!");
  EXPECT_EQ(stream.Push("\xc3"), "");
  EXPECT_EQ(stream.Finish(), "\xef\xbf\xbd");
}

TEST(TextStream, IgnoresEmptyStopStrings) {
  TextStream stream({""});
  EXPECT_EQ(stream.Push("x"), "x");
  EXPECT_FALSE(stream.stopped());
}

}  // namespace
}  // namespace winnow
