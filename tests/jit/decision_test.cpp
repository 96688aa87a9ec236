// SPDX-License-Identifier: Apache-2.0
// The order of the choices of a call whose kernel is not loaded.
#include "jit/decision.hpp"

#include "tests/support/fake_toolchain.hpp"

#include <gtest/gtest.h>

#include <set>

namespace rlk::jit {
namespace {

const Op& op() { return test::fake_tiled_op(); }

Specialization tile(std::int64_t number) { return {&op(), Pass::fwd, Target::sm_90a, {7, number}}; }

Specialization generic(Target target = Target::sm_90a) {
  Specialization spec = tile(0).generic();
  spec.target = target;
  return spec;
}

struct FakePlaces final : Places {
  std::set<std::string> loaded, cached;

  bool is_loaded(const Specialization& spec) override { return loaded.contains(spec.text()); }
  bool is_cached(const Specialization& spec) override { return cached.contains(spec.text()); }
};

struct DecisionTest : testing::Test {
  FakePlaces places_;
  const CompilerAtHand sync_{"fake-1", ""}, async_{"fake-1", "", true}, none_{"", "none here"};

  // "compile linear_logp.fwd[..]", and what else there is to it.
  std::string decided(const CompilerAtHand& compiler, const Specialization& spec = tile(0)) {
    const Decision decision = decide(spec, compiler, places_);
    const char* fallbacks[] = {"", " alternative", " generic"};
    return std::string(name(decision.origin)) + fallbacks[static_cast<int>(decision.fallback)] +
           (decision.in_background ? " meanwhile " : " ") + decision.kernel.text();
  }
};

TEST_F(DecisionTest, ItsOwnKernelComesFirst) {
  places_.loaded = {tile(1).text(), generic().text()};
  places_.cached = {tile(0).text()};
  for (const auto& compiler : {sync_, async_, none_}) {
    EXPECT_EQ(decided(compiler), "cache " + tile(0).text());
  }
}

TEST_F(DecisionTest, AMissCompilesWhereSomethingDoes) {
  EXPECT_EQ(decided(sync_), "compile " + tile(0).text());
  EXPECT_EQ(decided(async_), "compile " + tile(0).text()) << "nothing could run meanwhile";
  EXPECT_EQ(decided(none_), "none " + generic().text());
  places_.cached = {generic().text()};
  EXPECT_EQ(decided(sync_), "compile " + tile(0).text());
  EXPECT_EQ(decided(async_), "cache generic meanwhile " + generic().text());
  EXPECT_EQ(decided(none_), "cache generic " + generic().text());
}

TEST_F(DecisionTest, AnotherTileComesBeforeTheGenericKernelAndALoadedOneBeforeACachedOne) {
  places_.loaded = {generic().text()};
  places_.cached = {tile(1).text(), tile(2).text()};
  EXPECT_EQ(decided(none_), "cache alternative " + tile(1).text());
  places_.loaded.insert(tile(2).text());
  EXPECT_EQ(decided(none_), "loaded alternative " + tile(2).text());
  EXPECT_EQ(decided(async_), "loaded alternative meanwhile " + tile(2).text());
}

TEST_F(DecisionTest, PtxIsTheLastResort) {
  places_.cached = {generic(Target::compute_80).text()};
  EXPECT_EQ(decided(none_), "cache generic " + generic(Target::compute_80).text());
  EXPECT_EQ(decided(none_, generic()), "cache generic " + generic(Target::compute_80).text());
  places_.cached.insert(generic().text());
  EXPECT_EQ(decided(none_), "cache generic " + generic().text());
}

TEST_F(DecisionTest, TheReasonIsTold) {
  EXPECT_EQ(decide(tile(0), none_, places_).reason, "none here");
  EXPECT_EQ(decide_fallback(tile(0), "refused", places_).reason, "refused");
}

TEST(CompilerAtHand, FollowsThePolicyAndTheCompiler) {
  test::FakeCompiler compiler;
  EXPECT_EQ(compiler_at_hand(Policy::off, compiler).why_not, "RLK_JIT=off, nothing is compiled");
  EXPECT_EQ(compiler_at_hand(Policy::sync, compiler).identity, "fake-1");
  EXPECT_FALSE(compiler_at_hand(Policy::sync, compiler).in_background);
  EXPECT_TRUE(compiler_at_hand(Policy::async, compiler).in_background);
  compiler.missing = "not there";
  EXPECT_EQ(compiler_at_hand(Policy::sync, compiler).why_not, "not there");
  EXPECT_EQ(compiler_at_hand(Policy::sync, compiler).identity, "");
}

}  // namespace
}  // namespace rlk::jit
