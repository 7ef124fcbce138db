// Requests whose unread tokens are estimated from something kept of their sequence: batches,
// prefixes, failed steps and models.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/rng.h"
#include "engine/answer_test.h"
#include "engine/engine.h"
#include "policy/arm.h"
#include "policy/residual/residual_layer_test.h"
#include "testing/fake_backbone.h"

namespace winnow {
namespace {

using testing::Answer;
using testing::FakeBackbone;
using testing::Generate;
using testing::MappedModel;
using testing::NewMappedModel;
using testing::NewRequest;
using testing::RandomTokens;

class ResidualEngine : public ::testing::Test {
 protected:
  static constexpr int kLayers = 3;

  std::unique_ptr<Engine> NewEngine(bool prefix_reuse = true) {
    EngineOptions options;
    options.kv_dtype = DType::kF32;
    options.prefill_chunk = 64;
    options.prefix_reuse = prefix_reuse;
    options.planes = ArmPlanes(Arms());
    options.model_path = model_.identity.path;
    return std::make_unique<Engine>(&backbone_, nullptr, &pool_, options);
  }

  std::vector<std::string> Arms() const {
    const std::string select = "select=meanstd,budget=64,dense_layers=0,residual=";
    return {select + "cumulant", select + "sample,n=20", select + "resa",
            select + "phi,file=" + model_.maps_path, select + "phi_nosub,file=" + model_.maps_path};
  }

  ThreadPool pool_{2};
  FakeBackbone backbone_{{.n_layers = kLayers, .context_length = 1024}};
  MappedModel model_ =
      NewMappedModel({.n_layers = kLayers, .query_heads = 4, .kv_heads = 2, .head_dim = 32});
};

TEST_F(ResidualEngine, TheLedgerShowsEveryEstimateAndItsCost) {
  const auto engine = NewEngine();
  for (const std::string& arm : Arms()) {
    const RequestResult result = Generate(engine.get(), RandomTokens(500, 1), arm).result;
    ASSERT_EQ(result.finish_reason, FinishReason::kMaxTokens) << result.error;
    const PhaseLedger& decode = result.ledger.decode;
    EXPECT_LT(decode.attention.tokens_read, decode.attention.tokens_resident / 2) << arm;
    EXPECT_GT(decode.attention.bytes_estimated, 0) << arm;
    EXPECT_GT(decode.attention.mass_estimated, 0) << arm;
    EXPECT_GT(decode.seconds.estimate, 0) << arm;
  }
}

TEST_F(ResidualEngine, SequencesOfOneBatchGiveWhatTheyGiveAlone) {
  const std::vector<std::string> arms = Arms();
  std::vector<std::string> twice = arms;
  twice.insert(twice.end(), arms.begin(), arms.end());
  const auto together = NewEngine();
  std::vector<Answer> answers(twice.size());
  for (size_t i = 0; i < twice.size(); ++i) {
    together->Submit(
        NewRequest(RandomTokens(300 + 20 * static_cast<int64_t>(i), i), twice[i], 40, &answers[i]));
  }
  while (together->Step()) {
  }
  for (size_t i = 0; i < twice.size(); ++i) {
    const Answer alone =
        Generate(NewEngine().get(), RandomTokens(300 + 20 * static_cast<int64_t>(i), i), twice[i]);
    EXPECT_EQ(answers[i].logits, alone.logits) << twice[i];
  }
}

// Resident pages or not, the same bits; the arm that needs the prompt's queries computes all of it.
TEST_F(ResidualEngine, AReusedPrefixChangesNothing) {
  const std::vector<TokenId> tokens = RandomTokens(400, 2);
  for (const std::string& arm : Arms()) {
    const auto engine = NewEngine();
    Generate(engine.get(), tokens, "dense", 2);
    const Answer again = Generate(engine.get(), tokens, arm);
    const bool whole_prompt = arm.find("resa") != std::string::npos;
    EXPECT_EQ(again.result.reused_tokens, whole_prompt ? 0 : 384) << arm;
    EXPECT_EQ(again.logits, Generate(NewEngine(false).get(), tokens, arm).logits) << arm;
    // Others may reuse its pages.
    EXPECT_EQ(Generate(engine.get(), tokens, "dense", 2).result.reused_tokens, 384);
  }
}

TEST_F(ResidualEngine, AStepThatIsRolledBackChangesNothing) {
  const std::vector<TokenId> tokens = RandomTokens(310, 3);
  for (const std::string& arm : Arms()) {
    const Answer alone = Generate(NewEngine().get(), tokens, arm, 60);
    const auto engine = NewEngine();
    Answer answer;
    Answer failed;
    const RequestId id = engine->Submit(NewRequest(tokens, arm, 60, &answer));
    engine->Submit(NewRequest(RandomTokens(300, 4), arm, 60, &failed));
    // In the middle of a step of both: the first layers have it already.
    backbone_.on_attention_input = [&](int layer, int64_t n_tokens, int32_t position) {
      if (layer == 2 && n_tokens == 2 && position == 340) throw std::runtime_error("played");
    };
    while (engine->Step()) {
    }
    backbone_.on_attention_input = nullptr;
    EXPECT_LT(failed.logits.size(), 60U) << arm;
    EXPECT_EQ(engine->TakeResult(id)->finish_reason, FinishReason::kMaxTokens);
    EXPECT_EQ(answer.logits, alone.logits) << arm;
    engine->CheckInvariants();
  }
}

TEST_F(ResidualEngine, FeatureMapsOfAnotherModelAreRefused) {
  const auto submit = [&](const std::string& maps) {
    Answer answer;
    NewEngine()->Submit(
        NewRequest({1, 2, 3}, "select=recent,residual=phi,file=" + maps, 4, &answer));
  };
  const auto kind_of = [&](const std::string& maps) {
    try {
      submit(maps);
    } catch (const Error& error) {
      return error.kind();
    }
    ADD_FAILURE() << maps << " was accepted";
    return ErrorKind::kUsage;
  };
  const MappedModel other =
      NewMappedModel({.n_layers = kLayers, .query_heads = 4, .kv_heads = 2, .head_dim = 32});
  EXPECT_EQ(kind_of(other.maps_path), ErrorKind::kInput);
  EXPECT_EQ(kind_of("/nowhere"), ErrorKind::kInput);
}

}  // namespace
}  // namespace winnow
