// SPDX-License-Identifier: Apache-2.0
// A dispatcher of two toolchains, both fakes: two devices of sm_90a and one of sm_80.
#pragma once

#include "jit/build_key.hpp"
#include "jit/dispatcher.hpp"
#include "tests/support/captured_log.hpp"
#include "tests/support/fake_toolchain.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/what.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

namespace rlk::jit {

// Kernels of the fake toolchain.
inline constexpr auto k_specialized = "linear_logp.fwd[size=7]@sm_90a";
inline constexpr auto k_generic = "linear_logp.fwd[ generic]@sm_90a";

class DispatcherCudaTest : public ::testing::Test {
 protected:
  DispatcherCudaTest() { loader_->targets = {Target::sm_90a, Target::sm_90a, Target::sm_80}; }

  Config config(Policy policy = Policy::sync) const {
    Config config;
    config.settings.policy = policy;
    config.settings.cache_dir = folder_ / "cache";
    config.settings.package_folder = folder_ / "package";
    return config;
  }
  std::unique_ptr<Dispatcher> make(const Config& config) {
    return std::make_unique<Dispatcher>(config, Toolchain{cpu_compiler_, cpu_loader_},
                                        Toolchain{compiler_, loader_});
  }
  std::unique_ptr<Dispatcher> make() { return make(config()); }

  void make_builtin_layer(Target target, const std::string& code = "") {
    const auto spec = Specialization{&test::fake_op(), Pass::fwd, target, {}}.generic();
    const auto bytes = code.empty() ? spec.text() : code;
    std::filesystem::create_directories(folder_ / "package");
    cache::DiskStore store({(folder_ / "package/builtin"), {}, cache::Sharing::owner});
    const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
    store.put({build_key(spec).bytes, "{}", {begin, begin + bytes.size()}}, "fake-0");
  }
  bool cache_is_empty() const {
    return !std::filesystem::exists(folder_ / "cache") ||
           std::filesystem::is_empty(folder_ / "cache");
  }

  test::TempDir folder_;
  test::CapturedLog log_;
  std::shared_ptr<test::FakeCompiler> cpu_compiler_ = std::make_shared<test::FakeCompiler>();
  std::shared_ptr<test::FakeLoader> cpu_loader_ = std::make_shared<test::FakeLoader>();
  std::shared_ptr<test::FakeCompiler> compiler_ = std::make_shared<test::FakeCompiler>();
  std::shared_ptr<test::FakeLoader> loader_ = std::make_shared<test::FakeLoader>();
};

}  // namespace rlk::jit
