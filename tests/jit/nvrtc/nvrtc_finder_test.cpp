// SPDX-License-Identifier: Apache-2.0
// Finding and choosing over folders of libraries made here.
#include "jit/nvrtc/nvrtc_finder.hpp"

#include "tests/jit/nvrtc/elf_writer.hpp"
#include "tests/support/temp_dir.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <map>

namespace rlk::jit {
namespace {

namespace fs = std::filesystem;

class NvrtcFinderTest : public ::testing::Test {
 protected:
  // A library and its builtins in a folder below root.
  fs::path add(const std::string& folder, const std::string& version, const std::string& id) {
    const auto major = version.substr(0, version.find('.'));
    add_file(folder, "libnvrtc-builtins.so." + version, "");
    return add_file(folder, "libnvrtc.so." + major, test::elf_with_build_id(id));
  }

  fs::path add_file(const std::string& folder, const std::string& file, const std::string& bytes) {
    fs::create_directories(root() / folder);
    test::write_file(root() / folder / file, bytes);
    return root() / folder / file;
  }

  const NvrtcLibrary* choose(std::optional<int> most_major = {}, std::optional<int> major = {}) {
    found_ = find_nvrtc(search_);
    return choose_nvrtc(found_, most_major, major, why_);
  }

  fs::path root() const { return fs::canonical(folder_.path()); }

  test::TempDir folder_;
  NvrtcSearch search_;
  std::vector<NvrtcLibrary> found_;
  std::string why_;
};

const std::string k_wheel_12 = "site/nvidia/cuda_nvrtc/lib", k_wheel_13 = "site/nvidia/cu13/lib";

TEST_F(NvrtcFinderTest, BothWheelLayoutsAreFoundAndTheNewestIsChosen) {
  const auto old = add(k_wheel_12, "12.9", "abcdefghij");
  const auto fresh = add(k_wheel_13, "13.0", "klmnopqrst");
  search_.site_packages = {root() / "site"};
  const auto* chosen = choose();
  ASSERT_NE(chosen, nullptr) << why_;
  EXPECT_EQ(why_, "");
  EXPECT_EQ(chosen->path, fresh);
  EXPECT_EQ(chosen->identity(), "nvrtc-13.0-6b6c6d6e6f707172");
  EXPECT_EQ(chosen->builtins, fresh.parent_path() / "libnvrtc-builtins.so.13.0");
  ASSERT_EQ(found_.size(), 2u);
  EXPECT_EQ(found_[1].path, old);
  EXPECT_EQ(found_[1].identity(), "nvrtc-12.9-6162636465666768");
}

TEST_F(NvrtcFinderTest, NoMajorAboveTheDrivers) {
  const auto old = add(k_wheel_12, "12.9", "a");
  add(k_wheel_13, "13.0", "b");
  search_.site_packages = {root() / "site"};
  EXPECT_EQ(choose(12)->path, old);
  EXPECT_EQ(choose(13)->major, 13);
  EXPECT_EQ(choose(14)->major, 13);
  EXPECT_EQ(choose({}, 12)->path, old);
  EXPECT_EQ(choose(11), nullptr);
  EXPECT_NE(why_.find("NVRTC 12.9 is too new for a driver of CUDA 11"), why_.npos) << why_;
  EXPECT_EQ(choose({}, 11), nullptr);
  EXPECT_NE(why_.find("no NVRTC 11 found"), why_.npos) << why_;
}

TEST_F(NvrtcFinderTest, ANewerMinorWinsOverAnEarlierPlace) {
  add(k_wheel_12, "12.4", "a");
  const auto fresh = add("home/lib64", "12.9", "b");
  search_.site_packages = {root() / "site"};
  search_.cuda_home_folders = {root() / "home/lib64"};
  EXPECT_EQ(choose()->path, fresh);
}

TEST_F(NvrtcFinderTest, AmongEqualsThePlaceDecidesThenThePath) {
  const std::map<NvrtcOrigin, fs::path> places = {
      {NvrtcOrigin::loaded, add("b/loaded", "12.9", "a")},
      {NvrtcOrigin::wheel, add(k_wheel_12, "12.9", "b")},
      {NvrtcOrigin::conda, add("a/conda", "12.9", "c")},
      {NvrtcOrigin::loader, add("a/loader", "12.9", "d")},
      {NvrtcOrigin::cuda_home, add("a/home", "12.9", "e")},
  };
  add("b/home", "12.9", "f");
  search_.loaded = {places.at(NvrtcOrigin::loaded)};
  search_.site_packages = {root() / "site"};
  search_.conda_folders = {root() / "a/conda"};
  search_.loader_folders = {root() / "a/loader"};
  search_.cuda_home_folders = {root() / "b/home", root() / "a/home"};
  for (const auto& [origin, path] : places) {
    const auto* chosen = choose();
    ASSERT_NE(chosen, nullptr);
    EXPECT_EQ(chosen->path, path) << name(origin);
    EXPECT_EQ(chosen->origin, origin);
    fs::remove(path);
  }
  EXPECT_EQ(choose()->path, root() / "b/home/libnvrtc.so.12");
}

TEST_F(NvrtcFinderTest, OneFileUnderManyNamesIsOneLibrary) {
  const auto real = add(k_wheel_12, "12.9", "a");
  fs::create_directories(root() / "links");
  fs::create_symlink(real, root() / "links/libnvrtc.so.12");
  fs::create_directory_symlink(root() / "site", root() / "site2");
  search_.site_packages = {root() / "site", root() / "site2"};
  search_.loader_folders = {root() / "links"};
  ASSERT_NE(choose(), nullptr);
  EXPECT_EQ(found_.size(), 1u);
}

// A system's package: the link says 12, the file 12.4.127, and builtins of two versions lie there.
TEST_F(NvrtcFinderTest, AFullVersionInTheNameIsBelieved) {
  add_file("lib", "libnvrtc-builtins.so.12.4", "");
  add_file("lib", "libnvrtc-builtins.so.12.6", "");
  const auto real = add_file("lib", "libnvrtc.so.12.4.127", test::elf_with_build_id("a"));
  fs::create_symlink("libnvrtc.so.12.4.127", root() / "lib/libnvrtc.so.12");
  search_.loader_folders = {root() / "lib"};
  const auto* chosen = choose();
  ASSERT_NE(chosen, nullptr) << why_;
  EXPECT_EQ(chosen->path, real);
  EXPECT_EQ(chosen->minor, 4);
  EXPECT_EQ(chosen->builtins.filename(), "libnvrtc-builtins.so.12.4");
}

TEST_F(NvrtcFinderTest, BuiltinsMustLieBeside) {
  add(k_wheel_12, "12.9", "a");
  add_file(k_wheel_13, "libnvrtc.so.13", test::elf_with_build_id("b"));
  add_file(k_wheel_13, "libnvrtc-builtins.so.12.9", "");
  search_.site_packages = {root() / "site"};
  const auto* chosen = choose();
  ASSERT_NE(chosen, nullptr);
  EXPECT_EQ(chosen->major, 12);
  ASSERT_EQ(found_.size(), 2u);
  EXPECT_EQ(found_[1].major, 13);
  EXPECT_EQ(found_[1].problem, "no libnvrtc-builtins of its version beside it");
  fs::remove(chosen->path);
  EXPECT_EQ(choose(), nullptr);
  EXPECT_NE(why_.find("no libnvrtc-builtins of its version"), why_.npos) << why_;
}

TEST_F(NvrtcFinderTest, WhatIsNoLibraryOfThisMachineIsShownAndNotUsed) {
  add(k_wheel_12, "12.9", "a");
  add_file(k_wheel_12, "libnvrtc.so.12", test::elf_with_build_id("a", EM_PPC64));
  search_.site_packages = {root() / "site"};
  EXPECT_EQ(choose(), nullptr);
  EXPECT_NE(why_.find("no library of this machine's kind with a GNU build-id"), why_.npos);
}

TEST_F(NvrtcFinderTest, NothingAnywhereSaysWhatToInstall) {
  search_.site_packages = {root() / "site"};
  EXPECT_EQ(choose(), nullptr);
  EXPECT_EQ(why_, "no NVRTC found: install nvidia-cuda-nvrtc-cu12 or set RLK_NVRTC");
}

TEST_F(NvrtcFinderTest, TheNamedFileIsTakenAndNothingInItsPlace) {
  add(k_wheel_13, "13.0", "a");
  search_.named = add("mine", "12.6", "b");
  search_.site_packages = {root() / "site"};
  EXPECT_EQ(choose()->path, *search_.named);
  EXPECT_EQ(choose(11)->path, *search_.named);
  EXPECT_EQ(found_.size(), 2u);
  fs::remove(root() / "mine/libnvrtc-builtins.so.12.6");
  EXPECT_EQ(choose(), nullptr);
  fs::remove(*search_.named);
  EXPECT_EQ(choose(), nullptr);
  EXPECT_NE(why_.find("RLK_NVRTC names no file that can be read"), why_.npos) << why_;
}

TEST_F(NvrtcFinderTest, TheEnvironmentNamesThePlaces) {
  fs::create_directories(root() / "venv/lib/python3.11/site-packages");
  const std::map<std::string, std::string> variables = {
      {"VIRTUAL_ENV", root() / "venv"},
      {"CONDA_PREFIX", "/conda"},
      {"LD_LIBRARY_PATH", "/one::/two"},
      {"CUDA_HOME", "/home/cuda"},
  };
  const auto search = nvrtc_search(
      [&](const char* variable) -> std::optional<std::string> {
        const auto found = variables.find(variable);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
      },
      {"/site"});
  EXPECT_EQ(search.site_packages,
            (std::vector<fs::path>{"/site", root() / "venv/lib/python3.11/site-packages"}));
  EXPECT_EQ(search.conda_folders, std::vector<fs::path>{"/conda/lib"});
  ASSERT_GE(search.loader_folders.size(), 2u);
  EXPECT_EQ(search.loader_folders[0], "/one");
  EXPECT_EQ(search.loader_folders[1], "/two");
  EXPECT_EQ(search.cuda_home_folders[0], "/home/cuda/lib64");
}

TEST_F(NvrtcFinderTest, ALoadedLibraryIsSeen) {
  ASSERT_NE(dlopen(RLK_FAKE_NVRTC, RTLD_NOW | RTLD_LOCAL), nullptr);
  const auto search = nvrtc_search([](const char*) { return std::nullopt; }, {});
  ASSERT_EQ(search.loaded.size(), 1u);
  EXPECT_EQ(fs::canonical(search.loaded[0]), fs::canonical(RLK_FAKE_NVRTC));
}

TEST_F(NvrtcFinderTest, TheLoadersConfigurationIsFollowed) {
  add_file("etc", "ld.so.conf", "# first\ninclude conf.d/*.conf\n/last # why\n\ninclude none/*\n");
  add_file("etc/conf.d", "a.conf", "/first\n  /second  \n");
  add_file("etc/conf.d", "b.conf", "hwcap 0 nosegneg\ninclude b.conf\n/third\n");
  const auto folders = read_loader_folders(root() / "etc/ld.so.conf");
  ASSERT_GE(folders.size(), 4u);
  EXPECT_EQ(folders[0], "/first");
  EXPECT_EQ(folders[1], "/second");
  EXPECT_EQ(folders[2], "/third");
  EXPECT_EQ(folders.back(), "/last");
}

}  // namespace
}  // namespace rlk::jit
