// SPDX-License-Identifier: Apache-2.0
// Build-ids of good and of damaged files.
#include "jit/nvrtc/build_id.hpp"

#include "tests/jit/nvrtc/elf_writer.hpp"
#include "tests/support/temp_dir.hpp"

#include <gtest/gtest.h>

#include <random>

namespace rlk::jit {
namespace {

std::optional<std::string> id_of(const std::string& bytes) {
  static const test::TempDir folder;
  test::write_file(folder / "lib", bytes);
  return read_build_id(folder / "lib");
}

TEST(BuildIdTest, IsReadInHex) {
  EXPECT_EQ(id_of(test::elf_with_build_id("\x01\xfe\x20")), "01fe20");
  EXPECT_EQ(id_of(test::elf_with_build_id("0123456789abcdef0123")),
            "3031323334353637383961626364656630313233");
}

TEST(BuildIdTest, ARealLibraryHasOne) {
  const auto id = read_build_id(RLK_FAKE_NVRTC);
  EXPECT_EQ(id, "00112233445566778899aabbccddeeff00112233");
}

TEST(BuildIdTest, OtherFilesHaveNone) {
  EXPECT_EQ(read_build_id("/nowhere/lib"), std::nullopt);
  EXPECT_EQ(read_build_id("/tmp"), std::nullopt);
  EXPECT_EQ(id_of(""), std::nullopt);
  EXPECT_EQ(id_of("INPUT(libnvrtc.so.12) and the rest of a linker script, long enough to hold..."),
            std::nullopt);
  EXPECT_EQ(id_of(test::elf_with_build_id("abcd", EM_PPC64)), std::nullopt);
  EXPECT_EQ(id_of(test::elf_with_build_id("")), std::nullopt);
}

TEST(BuildIdTest, AFileCutAnywhereHasNone) {
  const auto whole = test::elf_with_build_id("abcdefgh");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_EQ(id_of(whole.substr(0, size)), std::nullopt) << size;
  }
}

TEST(BuildIdTest, DamageDoesNoHarm) {
  std::mt19937 random(1);
  const auto whole = test::elf_with_build_id("abcdefgh");
  for (int round = 0; round < 200; ++round) {
    auto bytes = whole;
    for (int i = 0; i < 3; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (const auto id = id_of(bytes)) {
      EXPECT_LE(id->size(), 2 * bytes.size());
    }
  }
}

}  // namespace
}  // namespace rlk::jit
