// SPDX-License-Identifier: Apache-2.0
// From settings to the store's options: which layers, in which order, with which rules.
#include "jit/layers.hpp"

#include <gtest/gtest.h>

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
  settings.cache_shared_by_group = true;
  settings.cache_size_bytes = 12345;
  EXPECT_EQ(choose_layers(settings).options.sharing, cache::Sharing::group);
  EXPECT_EQ(choose_layers(settings).options.budget_bytes, 12345u);
}

}  // namespace
}  // namespace rlk::jit
