// SPDX-License-Identifier: Apache-2.0
// Which target a CUDA device takes.
#include "runtime/target.hpp"

#include <gtest/gtest.h>

namespace rlk {
namespace {

TEST(TargetTest, ADeviceTakesTheTargetOfItsCapability) {
  struct Row {
    int major, minor;
    std::optional<Target> target;
  };
  for (const auto& [major, minor, target] : {
           Row{7, 5, std::nullopt},
           Row{8, 0, Target::sm_80},
           Row{8, 6, Target::sm_86},
           Row{8, 7, Target::compute_80},
           Row{8, 9, Target::sm_89},
           Row{9, 0, Target::sm_90a},
           Row{10, 0, Target::sm_100},
           Row{10, 3, Target::sm_100},
           Row{11, 0, Target::compute_80},
           Row{12, 0, Target::sm_120},
           Row{12, 1, Target::sm_120},
           Row{13, 0, Target::compute_80},
       }) {
    EXPECT_EQ(cuda_target(major, minor), target) << major << "." << minor;
  }
}

TEST(TargetTest, EveryCudaTargetIsListedOnceAndHasALimit) {
  EXPECT_EQ(cuda_targets().size(), 7u);
  for (const Target target : cuda_targets()) {
    EXPECT_EQ(backend(target), Backend::cuda) << name(target);
    EXPECT_EQ(target_named(name(target)), target);
  }
  EXPECT_EQ(shared_limit_bytes(Target::sm_80), 163 << 10);
  EXPECT_EQ(shared_limit_bytes(Target::sm_90a), 227 << 10);
  EXPECT_EQ(shared_limit_bytes(Target::sm_100), 227 << 10);
  for (const Target target : {Target::sm_86, Target::sm_89, Target::sm_120, Target::compute_80}) {
    EXPECT_EQ(shared_limit_bytes(target), 99 << 10) << name(target);
  }
}

}  // namespace
}  // namespace rlk
