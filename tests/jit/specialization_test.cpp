// SPDX-License-Identifier: Apache-2.0
#include "jit/specialization.hpp"

#include "jit/build_key.hpp"
#include "templates/linear_logp/op.hpp"
#include "tests/support/fake_toolchain.hpp"

#include <gtest/gtest.h>

#include <set>

namespace rlk::jit {
namespace {

Specialization linear_logp(std::int64_t type, std::int64_t vocab, std::int64_t dim,
                           Pass pass = Pass::fwd, Target target = Target::x86_64_v3) {
  return {&templates::linear_logp_op, pass, target, {type, vocab, dim, k_run_time}};
}

TEST(Specialization, TextNamesWhatIsConstant) {
  EXPECT_EQ(linear_logp(2, 128256, 4096).text(),
            "linear_logp.fwd[x=bf16 V=128256 D=4096]@x86-64-v3");
  EXPECT_EQ(linear_logp(1, 2, 3, Pass::bwd).generic().text(),
            "linear_logp.bwd[x=f32 generic]@x86-64-v3");
}

TEST(Specialization, NeighboursOfOneLabelAreJoined) {
  static constexpr ConstantDef constants[] = {{"tile", "kM"}, {"tile", "kN"}, {"V", "kV"}};
  Op op = test::fake_op();
  op.constants = constants;
  EXPECT_EQ((Specialization{&op, Pass::fwd, Target::sm_90a, {128, 192, 7}}.text()),
            "linear_logp.fwd[tile=128x192 V=7]@sm_90a");
}

TEST(Specialization, GenericKeepsWhatMustBeConstant) {
  const auto spec = linear_logp(2, 128256, 4096);
  EXPECT_FALSE(spec.is_generic());
  EXPECT_TRUE(spec.generic().is_generic());
  EXPECT_EQ(spec.generic(), linear_logp(2, 5, 6).generic());
  EXPECT_NE(spec.generic(), linear_logp(3, 128256, 4096).generic());
}

TEST(Specialization, EachFieldChangesTheKey) {
  RLK_NEEDS_CPU_TEMPLATES();
  const Specialization specs[] = {
      linear_logp(1, 100, 200),
      linear_logp(2, 100, 200),
      linear_logp(1, 101, 200),
      linear_logp(1, 100, 201),
      linear_logp(1, 200, 100),
      linear_logp(1, 100, 200, Pass::bwd),
      linear_logp(1, 100, 200, Pass::fwd, Target::x86_64_v4),
      linear_logp(1, 100, 200).generic(),
  };
  std::set<std::string> digests;
  for (const auto& spec : specs) digests.insert(build_key(spec).digest());
  EXPECT_EQ(digests.size(), std::size(specs));
}

TEST(Specialization, KeyHoldsNoPath) {
  RLK_NEEDS_CPU_TEMPLATES();
  const auto bytes = build_key(linear_logp(1, 100, 200)).bytes;
  EXPECT_EQ(bytes.find(std::filesystem::current_path().string()), std::string::npos);
  EXPECT_EQ(bytes.find("/"), std::string::npos);
}

}  // namespace
}  // namespace rlk::jit
