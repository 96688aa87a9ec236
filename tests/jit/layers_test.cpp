// SPDX-License-Identifier: Apache-2.0
// From settings to the store's options: which layers, in which order, with which rules.
#include "jit/layers.hpp"

#include "runtime/error.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/what.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace rlk::jit {
namespace {

Settings settings_of_a_package() {
  Settings settings;
  settings.package_folder = "/package";
  settings.cache_dir = "/cache";
  return settings;
}

TEST(Layers, TheBuiltInLayerIsTheLast) {
  Settings settings = settings_of_a_package();
  EXPECT_EQ(choose_layers(settings).options.read_only,
            std::vector<std::string>{"/package/builtin"});
  settings.cache_path = {"/image", "/team"};
  const auto layers = choose_layers(settings);
  EXPECT_EQ(layers.options.read_write, "/cache");
  EXPECT_EQ(layers.options.read_only,
            (std::vector<std::string>{"/image", "/team", "/package/builtin"}));
  EXPECT_EQ(layers.note, "");
}

TEST(Layers, SharingAndBudgetAreTheSettings) {
  Settings settings = settings_of_a_package();
  EXPECT_EQ(choose_layers(settings).options.sharing, cache::Sharing::owner);
  EXPECT_EQ(choose_layers(settings).options.budget_bytes, 1u << 30);
  settings.cache_shared = CacheShared::group;
  settings.cache_size_bytes = 12345;
  EXPECT_EQ(choose_layers(settings).options.sharing, cache::Sharing::group);
  EXPECT_EQ(choose_layers(settings).options.budget_bytes, 12345u);
  settings.cache_shared = CacheShared::all;
  EXPECT_EQ(choose_layers(settings).options.sharing, cache::Sharing::all);
}

class LayersEnvironmentTest : public testing::Test {
 protected:
  LayersEnvironmentTest() {
    settings_.cache_dir.reset();
    settings_.cache_shared = CacheShared::all;
    ::unsetenv("XDG_CACHE_HOME");
    ::setenv("HOME", temp_.path().c_str(), 1);
    ::setenv("TMPDIR", temp_.path().c_str(), 1);
  }

  test::TempDir temp_;
  Settings settings_ = settings_of_a_package();
};

// Whom the owner trusts with the folder that he names is not who may write to /tmp.
TEST_F(LayersEnvironmentTest, TheTempFolderIsPrivateWhateverIsShared) {
  EXPECT_EQ(choose_layers(settings_).options.sharing, cache::Sharing::all);
  ::unsetenv("HOME");
  const Layers layers = choose_layers(settings_);
  EXPECT_TRUE(layers.options.read_write->starts_with(temp_.path()));
  EXPECT_EQ(layers.options.sharing, cache::Sharing::owner);
}

TEST_F(LayersEnvironmentTest, APathThatNobodyCanHaveMeantIsAnError) {
  for (const std::string variable : {"XDG_CACHE_HOME", "HOME", "TMPDIR"}) {
    const std::string before = ::getenv(variable.c_str()) ? ::getenv(variable.c_str()) : "";
    for (const std::string path : {"~/x", "/x\r", "$HOME"}) {
      ::setenv(variable.c_str(), path.c_str(), 1);
      const std::string said = test::what<InvalidArgument>([&] { choose_layers(settings_); });
      EXPECT_TRUE(said.starts_with(variable + ": expected a path ")) << said;
      settings_.cache_dir = "/cache";
      EXPECT_EQ(choose_layers(settings_).options.read_write, "/cache") << "not read then";
      settings_.cache_dir.reset();
    }
    ::setenv(variable.c_str(), before.c_str(), 1);
  }
}

}  // namespace
}  // namespace rlk::jit
