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
}

TEST(NearestName, OffersOnlyWhatIsNear) {
  EXPECT_EQ(NearestName("--tread", {"--threads", "--temp"}), "--threads");
  EXPECT_EQ(NearestName("zzzz", {"dense", "auto"}), "");
  EXPECT_EQ(NearestName("x", {}), "");
  EXPECT_EQ(NearestName("3", {"2", "4", "34"}), "");
  EXPECT_EQ(NearestName("llama", {"vllm", "llama.cpp"}), "llama.cpp");
  EXPECT_EQ(NearestName("--no", {"--no-template", "--no-reuse"}), "");
}

std::string UsageError(const std::string& arm) {
  try {
    ParseArm(arm);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  ADD_FAILURE() << arm << " was accepted";
  return "";
}

TEST(Arm, ResolvedNamesEveryParameterAndIsAFixedPoint) {
  for (const std::string arm : {"select=sketch",
                                "select=sketch,bits=2,budget=64,residual=sketch,bits=2,tail=0",
                                "residual=sketch",
                                "select=cascade,P=8,summary=mean",
                                "select=vashista,mass=0.5,cap=512",
                                "select=quest,residual=centroid,certify=none",
                                "select=recent,tol=0.1,fallback=cap,certify=sketch",
                                "select=sketch,tol_error=0.2,fallback=dense,certify=sketch",
                                "certify=deterministic",
                                "select=sketch,gap=0.5,certify=sample,n=9,delta=0.01,seed=4",
                                "select=random,seed=7",
                                "select=all",
                                "select=vashista,P=8,Kc=64",
                                "select=vashista,Kc=0,super=0",
                                "select=vashista,Kc=0,certify=sketch",
                                "select=vashista,gap=0.1",
                                "select=exact,budget=12",
                                "select=exact,residual=centroid",
                                "select=exact,fraction=0.01",
                                "select=entrokv,bits=2,quota=20,tau=0.5",
                                "select=entrokv,residual=sketch",
                                "select=entrokv,tol=0.1,certify=sketch",
                                "select=cascade,super=3",
                                "solver=fw",
                                "select=vashista,solver=eg,eps=0.5,iters=3",
                                "solver=eg,leakage=0.05",
                                "select=sketch,prefill=entroprefill,keep=0.125"}) {
    const std::string resolved = ParseArm(arm).resolved;
    EXPECT_EQ(ParseArm(resolved).resolved, resolved) << arm;
    EXPECT_NE(ParseArm(arm).fingerprint, 0u);
  }
  EXPECT_THAT(ParseArm("residual=sketch").resolved,
              testing::HasSubstr("select=sketch,bits=4,budget=128"));
  EXPECT_NE(ParseArm("select=sketch").fingerprint,
            ParseArm("select=sketch,budget=128").fingerprint);
  EXPECT_EQ(ParseArm("select=vashista,P=8").fingerprint,
            ParseArm("select=vashista,budget=256").fingerprint);
  EXPECT_EQ(ParseArm("select=sketch,budget=256").fingerprint,
            ParseArm("select=sketch,bits=4").fingerprint);
}

TEST(Arm, TheFirstLayersAreDenseWhereNothingElseProtectsThem) {
  EXPECT_THAT(ParseArm("select=sketch").resolved, testing::HasSubstr("dense_layers=2"));
  EXPECT_THAT(ParseArm("select=sketch,residual=centroid").resolved,
              testing::HasSubstr("dense_layers=2"));
  EXPECT_THAT(ParseArm("select=sketch,residual=sketch").resolved,
              testing::HasSubstr("dense_layers=0"));
  EXPECT_THAT(ParseArm("select=sketch,mass=0.9").resolved, testing::HasSubstr("dense_layers=0"));
  EXPECT_THAT(ParseArm("select=sketch,mass=0.9,cap=512").resolved,
              testing::HasSubstr("dense_layers=2"));
}

TEST(Arm, WrongPoliciesAndParametersOfferTheNearest) {
  EXPECT_THAT(UsageError("select=sketsh"), testing::HasSubstr("did you mean 'sketch'?"));
  EXPECT_THAT(UsageError("select=sketch,residual=centroit"),
              testing::HasSubstr("did you mean 'centroid'?"));
  EXPECT_THAT(UsageError("select=sketch,budgat=3"), testing::HasSubstr("did you mean 'budget'?"));
  EXPECT_THAT(UsageError("select=sketch,certify=estimat"), testing::HasSubstr("'estimate'"));
  EXPECT_THAT(UsageError("certify=sketsh"), testing::HasSubstr("did you mean 'sketch'?"));
  EXPECT_THAT(UsageError("certify=sketch,bit=8"), testing::HasSubstr("did you mean 'bits'?"));
  EXPECT_THAT(UsageError("select=sketch,fallback=widn"), testing::HasSubstr("'widen'"));
  EXPECT_THAT(UsageError("selct=sketch"), testing::HasSubstr("did you mean 'select'?"));
  EXPECT_THAT(UsageError("select=sketch,bits=3"), testing::HasSubstr("2, 4, 8"));
  EXPECT_THAT(UsageError("select=sketch,budget"), testing::HasSubstr("'budget' is no"));
  EXPECT_THAT(UsageError("dense,select=sketch"), testing::HasSubstr("'dense' is no"));
  EXPECT_THAT(UsageError("select=sketch,"), testing::HasSubstr("'' is no"));
}

TEST(Arm, WhatReadsEverythingTakesNoLimit) {
  EXPECT_EQ(ParseArm("select=all").resolved,
            "select=all,dense_layers=2,solver=softmax,residual=none,certify=estimate");
  for (const std::string parameter : {"budget=64", "mass=0.9", "cap=5", "recent=1", "tol=0.1"}) {
    EXPECT_THAT(UsageError("select=all," + parameter), testing::HasSubstr("has no parameter"));
  }
}

TEST(Arm, ValuesOutOfRangeAndContradictionsAreRefused) {
  for (const std::string arm : {"select=sketch,budget=0",
                                "select=sketch,budget=-5",
                                "select=sketch,budget=1e3",
                                "select=sketch,budget=",
                                "select=sketch,budget=nan",
                                "select=sketch,mass=1.5",
                                "select=sketch,mass=nan",
                                "select=sketch,recent=0",
                                "select=sketch,budget=9,budget=9",
                                "select=sketch,select=quest",
                                "select=sketch,,budget=9",
                                "select",
                                "=sketch",
                                ",",
                                "select=sketch,budget=256,mass=0.9",
                                "select=sketch,mass=0.9,floor=64,cap=32",
                                "select=quest,residual=sketch",
                                "select=recent,mass=0.9",
                                "select=random,tol=0.1",
                                "select=quest,mass=0.9",
                                "select=vashista,P=0",
                                "select=vashista,P=8,budget=256",
                                "select=vashista,P=8,mass=0.9",
                                "select=vashista,Kc=-1",
                                "select=meanstd,Kc=5",
                                "select=exact,mass=0.9",
                                "select=exact,tol=0.1",
                                "select=exact,residual=sketch",
                                "select=entrokv,mass=0.9",
                                "select=entrokv,quota=0",
                                "select=entrokv,quota=8,budget=9",
                                "solver=newton",
                                "solver=softmax,eps=1",
                                "solver=fw,eps=1",
                                "solver=eg,eps=1,leakage=0.1",
                                "solver=fw,residual=centroid",
                                "residual=sketch,solver=eg",
                                "select=sketch,tol=0.1,solver=fw",
                                "solver=fw,certify=estimate",
                                "solver=fw,certify=sketch",
                                "solver=fw,residual=cumulant",
                                "select=sketch,gap=0.5,solver=fw",
                                "select=sketch,tol=0.1,solver=eg,certify=sketch",
                                "select=vashista,certify=sketch",
                                "select=vashista,Kc=9,certify=deterministic",
                                "select=exact,certify=sample",
                                "select=exact,gap=0.5",
                                "select=exact,budget=9,fraction=0.1",
                                "select=vashista,P=8,fraction=0.1",
                                "select=entrokv,tol=0.1",
                                "select=entrokv,gap=0.5",
                                "select=entrokv,quota=8,fraction=0.1",
                                "select=random,gap=1",
                                "select=sketch,gap=-1",
                                "select=recent,tol=0.1,certify=estimate",
                                "select=sketch,tol_error=0.1",
                                "select=sketch,tol_error=-1,certify=sketch",
                                "select=all,tol_error=1,certify=sketch",
                                "certify=sketch,tol_error=0.1",
                                "select=sketch,tol_error=1,solver=fw",
                                "certify=estimate,bits=8",
                                "certify=sketch,bits=5",
                                "certify=sample,n=-1",
                                "certify=sample,delta=0",
                                "certify=sample,delta=1",
                                "select=sketch,fraction=0.1,budget=64",
                                "select=sketch,fraction=0.1,mass=0.9",
                                "select=sketch,fraction=0",
                                "select=sketch,fraction=1.5",
                                "residual=phi",
                                "residual=phi_nosub,file=",
                                "residual=sample,n=0",
                                "residual=sample,strata=tokens",
                                "residual=centroid,from_layer=0",
                                "residual=centroid,off=0",
                                "residual=none,from_layer=3",
                                "dense,budget=3"}) {
    EXPECT_FALSE(UsageError(arm).empty()) << arm;
  }
}

TEST(Arm, CandidatesThatAreLeftOutNeedMeanValues) {
  EXPECT_TRUE(ArmPlanes({"select=vashista"}).Contains({Plane::kKeyMean, Plane::kValueMean}));
  EXPECT_TRUE(ArmPlanes({"select=vashista,Kc=0"}) == PlaneSet({Plane::kKeyMean}));
  EXPECT_TRUE(ArmPlanes({"select=exact"}).empty());
  EXPECT_TRUE(ArmPlanes({"select=exact,residual=centroid"}).Has(Plane::kValueMean));
}

TEST(Arm, ASolverOfItsOwnWritesDownNoMass) {
  EXPECT_TRUE(MakeDecodePolicy("select=sketch")->certify);
  EXPECT_FALSE(MakeDecodePolicy("select=sketch,solver=fw")->certify);
  EXPECT_THAT(ParseArm("solver=eg").resolved,
              testing::HasSubstr("solver=eg,iters=12,eps=1,residual=none,certify=none"));
}

TEST(Arm, PlanesOfSeveralArmsAreTheirUnion) {
  EXPECT_TRUE(ArmPlanes({"dense", "auto", "select=recent"}).empty());
  const PlaneSet planes =
      ArmPlanes({"select=sketch,bits=2", "residual=sketch", "select=quest,residual=centroid"});
  EXPECT_TRUE(planes.Contains({Plane::kKeys2, Plane::kKeys4, Plane::kValues4, Plane::kKeyBox,
                               Plane::kKeyMean, Plane::kValueMean}));
  EXPECT_FALSE(planes.Has(Plane::kKeys8));
  // A certificate bounds the output's error by the spread of values.
  EXPECT_EQ(ArmPlanes({"select=recent,certify=sketch"}),
            PlaneSet({Plane::kKeys8, Plane::kValueMean, Plane::kValueSpread}));
  EXPECT_FALSE(ArmPlanes({"select=sketch", "select=sketch,certify=none", "select=vashista"})
                   .Has(Plane::kValueSpread));
  EXPECT_EQ(ArmPlanes({"select=recent,certify=deterministic"}),
            ArmPlanes({"select=recent,certify=sample"}));
}

TEST(Arm, PruningStandsBesideDecodeInAnyOrder) {
  const Arm both = ParseArm("prefill=entroprefill,keep=0.5,select=sketch,bits=2");
  EXPECT_EQ(both.fingerprint, ParseArm("select=sketch,bits=2").fingerprint);
  EXPECT_EQ(both.prefill_fingerprint,
            ParseArm("prefill=entroprefill,keep=0.5").prefill_fingerprint);
  EXPECT_EQ(both.resolved, ParseArm("select=sketch,bits=2,prefill=entroprefill,keep=0.5").resolved);
  const Arm alone = ParseArm("prefill=mass,target_tokens=100");
  EXPECT_EQ(alone.fingerprint, 0u);
  EXPECT_NE(alone.prefill_fingerprint, 0u);
  EXPECT_EQ(MakeDecodePolicy("prefill=mass"), nullptr);
  EXPECT_NE(MakePrefillPolicy("select=sketch,prefill=mass"), nullptr);
  EXPECT_EQ(MakePrefillPolicy("select=sketch"), nullptr);
  EXPECT_EQ(ParseArm("prefill=none").resolved, "dense");
  EXPECT_EQ(ParseArm("prefill=none").prefill_fingerprint, 0u);
  EXPECT_EQ(ParseArm("prefill=none,select=all").resolved, ParseArm("select=all").resolved);
}

TEST(Arm, ResolvedPruningIsAFixedPoint) {
  for (const std::string arm :
       {"prefill=entroprefill", "prefill=mass,tau=0.5,audit=kl,seed=3,dual=lp",
        "prefill=uniform,uncalibrated=1,layers=18+19", "prefill=random,seed=9,m0=3",
        "prefill=recency,target_tokens=512,pruned_kv=drop,profile=early",
        "prefill=entroprefill,uncalibrated=1", "prefill=entroprefill,theta=0.1,v=0,eps=0"}) {
    const Arm parsed = ParseArm(arm);
    EXPECT_EQ(ParseArm(parsed.resolved).resolved, parsed.resolved) << arm;
    EXPECT_EQ(ParseArm(parsed.resolved).prefill_fingerprint, parsed.prefill_fingerprint) << arm;
  }
  // What the profile says is not overridden by a default.
  EXPECT_THAT(ParseArm("prefill=entroprefill").resolved, testing::Not(testing::HasSubstr("keep=")));
  EXPECT_THAT(ParseArm("prefill=entroprefill,uncalibrated=1").resolved,
              testing::HasSubstr("keep=0.25"));
}

TEST(Arm, PruningOutOfRangeIsRefused) {
  EXPECT_THAT(UsageError("prefill=entropefill"), testing::HasSubstr("'entroprefill'?"));
  EXPECT_THAT(UsageError("prefill=entroprefill,eps=1"), testing::HasSubstr("eps takes a number"));
  EXPECT_THAT(UsageError("prefill=entroprefill,eps_audit=-0.1"), testing::HasSubstr("eps_audit"));
  EXPECT_THAT(UsageError("prefill=entroprefill,delta=0"), testing::HasSubstr("delta takes"));
  EXPECT_THAT(UsageError("prefill=entroprefill,delta=1"), testing::HasSubstr("delta takes"));
  EXPECT_THAT(UsageError("prefill=entroprefill,m0=-1"), testing::HasSubstr("m0 takes"));
  EXPECT_THAT(UsageError("prefill=entroprefill,zeta=0"), testing::HasSubstr("zeta takes"));
  EXPECT_THAT(UsageError("prefill=entroprefill,tau=nan"), testing::HasSubstr("tau takes"));
  EXPECT_THAT(UsageError("prefill=entroprefill,layers=3"), testing::HasSubstr("uncalibrated=1"));
  EXPECT_THAT(UsageError("prefill=entroprefill,uncalibrated=1,layers=4+3"),
              testing::HasSubstr("rising order"));
  EXPECT_THAT(UsageError("prefill=entroprefill,uncalibrated=1,profile=late"),
              testing::HasSubstr("contradict"));
  EXPECT_THAT(UsageError("prefill=entroprefill,keep=0.5,target_tokens=9"),
              testing::HasSubstr("contradict"));
  EXPECT_THAT(UsageError("prefill=mass,lambda=1"), testing::HasSubstr("no parameter 'lambda'"));
  EXPECT_THAT(UsageError("prefill=uniform,zeta=1"), testing::HasSubstr("no parameter 'zeta'"));
  EXPECT_THAT(UsageError("prefill=none,keep=0.5"), testing::HasSubstr("no parameter 'keep'"));
}

}  // namespace
}  // namespace winnow
