// SPDX-License-Identifier: Apache-2.0
// Names are read back as they were written; a wrong one is told where it is wrong.
#include "jit/parse_specialization.hpp"

#include "jit/op.hpp"
#include "runtime/error.hpp"
#include "templates/registry.hpp"
#include "tests/support/fake_toolchain.hpp"
#include "tests/support/what.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace rlk::jit {
namespace {

using test::what;

std::vector<Target> all_targets() {
  std::vector<Target> all(cpu_targets().begin(), cpu_targets().end());
  all.insert(all.end(), cuda_targets().begin(), cuda_targets().end());
  return all;
}

TEST(ParseSpecialization, EveryOpsGenericsAndSpecializedFormsAreReadBack) {
  ASSERT_FALSE(templates::ops().empty());
  for (const Target target : all_targets()) {
    for (const Op* op : templates::ops()) {
      // An op may be of CUDA alone.
      ASSERT_FALSE(backend(target) == Backend::cuda && op->generic_variants(target).empty());
      for (const Specialization& generic : op->generic_variants(target)) {
        EXPECT_EQ(parse_specialization(generic.text(), templates::ops()), generic)
            << generic.text();
        // Each constant alone, and all of them.
        Specialization all = generic;
        for (std::size_t i = 0; i < op->constants.size(); ++i) {
          if (!op->constants[i].may_be_run_time) continue;
          Specialization one = generic;
          const std::int64_t value = op->constants[i].words.empty() ? 128256 + std::int64_t(i) : 1;
          one.values[i] = all.values[i] = value;
          EXPECT_EQ(parse_specialization(one.text(), templates::ops()), one) << one.text();
        }
        EXPECT_EQ(parse_specialization(all.text(), templates::ops()), all) << all.text();
      }
    }
  }
}

class ParseTest : public ::testing::Test {
 protected:
  static constexpr std::string_view words[] = {"none", "f32", "bf16"};
  static constexpr ConstantDef constants[] = {
      {"x", "kX", words, false}, {"tile", "kM"}, {"tile", "kN"}, {"tile", "kK"}, {"V", "kV"}};

  ParseTest() { op_.constants = constants; }

  Specialization parse(std::string_view name) const {
    const Op* ops[] = {&op_};
    return parse_specialization(name, ops);
  }
  std::string why(std::string_view name) const {
    return what<InvalidArgument>([&] { parse(name); });
  }

  Op op_ = test::fake_op();
};

TEST_F(ParseTest, NeighboursOfOneLabelAreTakenApart) {
  const Specialization spec{&op_, Pass::bwd, Target::sm_90a, {2, 128, 192, 64, 7}};
  EXPECT_EQ(spec.text(), "linear_logp.bwd[x=bf16 tile=128x192x64 V=7]@sm_90a");
  EXPECT_EQ(parse(spec.text()), spec);
  EXPECT_EQ(parse(spec.generic().text()), spec.generic());
  const Specialization partly{&op_, Pass::fwd, Target::sm_80, {0, 1, 0, 2, k_run_time}};
  EXPECT_EQ(parse(partly.text()), partly);
  const Specialization largest{&op_, Pass::fwd, Target::sm_80, {1, 1, 1, 1, INT64_MAX}};
  EXPECT_EQ(parse(largest.text()), largest);
}

TEST_F(ParseTest, AnOpWhoseConstantsMayAllBeArguments) {
  const Specialization spec{&test::fake_op(), Pass::fwd, Target::sm_80, {k_run_time}};
  const Op* ops[] = {&test::fake_op()};
  EXPECT_EQ(spec.text(), "linear_logp.fwd[ generic]@sm_80");
  EXPECT_EQ(parse_specialization(spec.text(), ops), spec);
}

TEST_F(ParseTest, AnErrorNamesThePartAndWhatWasExpected) {
  for (const auto& [name, error] : std::vector<std::pair<std::string, std::string>>{
           {"", "form: expected op.pass[constants]@target, got \"\""},
           {"linear_logp", "form: expected op.pass[constants]@target, got \"linear_logp\""},
           {"linear_logp[V=7]@sm_80",
            "form: expected op.pass[constants]@target, got \"linear_logp[V=7]@sm_80\""},
           {"linear_logp.fwd[x=f32", "form: expected op.pass[constants]@target"},
           {"]@.[", "form: expected op.pass[constants]@target"},
           {"linear.fwd[x=f32 generic]@sm_80", "op: expected linear_logp, got \"linear\""},
           {"linear_logp.both[x=f32 generic]@sm_80", "pass: expected fwd or bwd, got \"both\""},
           {"linear_logp.fwd[x=f32 generic]@sm_81", "target: expected sm_80, sm_86, "},
           {"linear_logp.fwd[x=f32 generic]@sm_81", "x86-64-v4, got \"sm_81\""},
           {"linear_logp.fwd[x=f8 generic]@sm_80", "x: expected none, f32, bf16, got \"f8\""},
           {"linear_logp.fwd[generic]@sm_80", "x: expected a value, got \"none\""},
           {"linear_logp.fwd[x=f32 W=7]@sm_80",
            "constant: expected x, tile, V = a value, got \"W=7\""},
           {"linear_logp.fwd[x=f32 V]@sm_80", "V = a value, got \"V\""},
           {"linear_logp.fwd[x=f32 V=]@sm_80", "V: expected a number from 0 up, got \"\""},
           {"linear_logp.fwd[x=f32 V=-1]@sm_80", "V: expected a number from 0 up, got \"-1\""},
           {"linear_logp.fwd[x=f32 V=7k]@sm_80", "V: expected a number from 0 up, got \"7k\""},
           {"linear_logp.fwd[x=f32 V=99999999999999999999]@sm_80",
            "V: expected a number from 0 up"},
           {"linear_logp.fwd[x=f32 tile=1x2]@sm_80",
            "tile: expected 3 values with an x between them, got \"1x2\""},
           {"linear_logp.fwd[x=f32 tile=1x2xy]@sm_80",
            "tile: expected a number from 0 up, got \"y\""},
           {"linear_logp.fwd[V=7 x=f32]@sm_80",
            "form: expected linear_logp.fwd[x=f32 V=7]@sm_80, got \"linear_logp.fwd[V=7 "
            "x=f32]@sm_80\""},
           {"linear_logp.fwd[x=f32 V=7 V=7]@sm_80",
            "form: expected linear_logp.fwd[x=f32 V=7]@sm_80"},
           {"linear_logp.fwd[x=f32 V=7 ]@sm_80", "form: expected linear_logp.fwd[x=f32 V=7]@sm_80"},
           {"linear_logp.fwd[x=f32 V=007]@sm_80",
            "form: expected linear_logp.fwd[x=f32 V=7]@sm_80"},
           {"linear_logp.fwd[x=f32]@sm_80", "form: expected linear_logp.fwd[x=f32 generic]@sm_80"},
           {"linear_logp.fwd[x=f32 V=7 generic]@sm_80",
            "form: expected linear_logp.fwd[x=f32 V=7]@sm_80"}}) {
    const std::string told = why(name);
    EXPECT_TRUE(told.starts_with("kernel name: ")) << told;
    EXPECT_NE(told.find(error), std::string::npos) << name << '\n' << told;
  }
}

}  // namespace
}  // namespace rlk::jit
