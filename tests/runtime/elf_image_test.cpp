// SPDX-License-Identifier: Apache-2.0
// Objects that load, objects that must not, and damage in every byte.
#include "runtime/elf_image.hpp"

#include "runtime/error.hpp"

#include <elf.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>

namespace rlk::runtime {
namespace {

std::vector<std::byte> object(const std::string& variant) {
  std::ifstream file(std::string(RLK_TOY_OBJECTS) + "/" + variant + ".o", std::ios::binary);
  EXPECT_TRUE(file) << variant;
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return {bytes, bytes + text.size()};
}

template <class Function>
Function* function(const ElfImage& image, const char* name) {
  return reinterpret_cast<Function*>(image.symbol(name));
}

std::string why(const std::vector<std::byte>& bytes) {
  try {
    ElfImage::load(bytes);
  } catch (const LoadError& error) {
    return error.what();
  }
  return "";
}

// The line of /proc/self/maps that holds an address: "7f..-7f.. r-xp ...", or nothing.
std::string protection_at(const void* address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::string rights;
    std::istringstream(line) >> std::hex >> begin >> dash >> end >> rights;
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    if (begin <= at && at < end) return rights;
  }
  return "";
}

TEST(ElfImageTest, RunsCodeThatReadsDataAndCallsItsOwn) {
  const auto bytes = object("good");
  const ElfImage image = ElfImage::load(bytes);
  EXPECT_EQ(function<int(int, int)>(image, "rlk_toy_add")(40, 2), 42);
  EXPECT_EQ(function<float(int)>(image, "rlk_toy_table")(2), 4.25f);
  EXPECT_EQ(function<float(int)>(image, "rlk_toy_table")(3), 8.125f);
  EXPECT_EQ(function<int(int)>(image, "rlk_toy_square_plus_one")(7), 50);
}

TEST(ElfImageTest, NoAlignmentOfTheBytesIsAssumed) {
  auto bytes = object("good");
  bytes.insert(bytes.begin(), std::byte{0});
  const ElfImage image = ElfImage::load(std::span(bytes).subspan(1));
  EXPECT_EQ(function<int(int)>(image, "rlk_toy_square_plus_one")(3), 10);
}

TEST(ElfImageTest, NamesTheMissingFunction) {
  const ElfImage image = ElfImage::load(object("good"));
  try {
    image.symbol("rlk_toy_absent");
    FAIL();
  } catch (const LoadError& error) {
    EXPECT_NE(std::string(error.what()).find("rlk_toy_absent"), std::string::npos);
  }
}

TEST(ElfImageTest, NoPageIsWritable) {
  const ElfImage image = ElfImage::load(object("good"));
  const auto* code = static_cast<const std::byte*>(image.symbol("rlk_toy_add"));
  EXPECT_EQ(protection_at(code), "r-xp");
  const auto* last =
      code - reinterpret_cast<std::uintptr_t>(code) % 4096 + image.mapped_bytes() - 1;
  EXPECT_EQ(protection_at(last), "r--p");
}

TEST(ElfImageTest, MovesAndUnmaps) {
  ElfImage first = ElfImage::load(object("good"));
  const void* code = first.symbol("rlk_toy_add");
  {
    const ElfImage second = std::move(first);
    EXPECT_EQ(second.symbol("rlk_toy_add"), code);
    EXPECT_EQ(protection_at(code), "r-xp");
    first = ElfImage::load(object("good"));
    EXPECT_EQ(function<int(int, int)>(first, "rlk_toy_add")(1, 2), 3);
  }
  EXPECT_NE(protection_at(code), "r-xp");
}

TEST(ElfImageTest, RefusesWhatIsNotSelfContained) {
  EXPECT_NE(why(object("undefined")).find("undefined symbol"), std::string::npos);
  EXPECT_NE(why(object("writable")).find("writable data"), std::string::npos);
  EXPECT_NE(why(object("zeroed")).find("writable data"), std::string::npos);
}

TEST(ElfImageTest, RefusesOtherFiles) {
  EXPECT_NE(why({}), "");
  EXPECT_NE(why(std::vector<std::byte>(4096)), "");
  auto bytes = object("good");
  auto* header = reinterpret_cast<Elf64_Ehdr*>(bytes.data());
  header->e_machine = EM_S390;
  EXPECT_NE(why(bytes).find("another machine"), std::string::npos);
  bytes = object("good");
  reinterpret_cast<Elf64_Ehdr*>(bytes.data())->e_type = ET_DYN;
  EXPECT_NE(why(bytes).find("relocatable"), std::string::npos);
}

TEST(ElfImageTest, RefusesAnUnknownRelocation) {
  auto bytes = object("good");
  const auto header = *reinterpret_cast<const Elf64_Ehdr*>(bytes.data());
  auto* sections = reinterpret_cast<Elf64_Shdr*>(bytes.data() + header.e_shoff);
  int num_changed = 0;
  for (int i = 0; i < header.e_shnum; ++i) {
    const bool of_code = sections[i].sh_type == SHT_RELA &&
                         (sections[sections[i].sh_info].sh_flags & SHF_EXECINSTR) != 0;
    if (!of_code) continue;
    auto* relocation = reinterpret_cast<Elf64_Rela*>(bytes.data() + sections[i].sh_offset);
    relocation->r_info = ELF64_R_INFO(ELF64_R_SYM(relocation->r_info), 0xbad);
    ++num_changed;
  }
  ASSERT_GT(num_changed, 0);
  EXPECT_NE(why(bytes).find("relocation type"), std::string::npos);
}

// Loads or throws LoadError: nothing else may come of any bytes.
void load_damaged(const std::vector<std::byte>& bytes) {
  try {
    ElfImage::load(bytes);
  } catch (const LoadError&) {
  }
}

TEST(ElfImageTest, TruncatedAtEveryLength) {
  const auto bytes = object("good");
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    // A copy of its own size, so that the address sanitizer sees a read past the end.
    const std::vector<std::byte> head(bytes.begin(),
                                      bytes.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_NE(why(head), "") << length;
  }
}

TEST(ElfImageTest, EveryByteDamaged) {
  auto bytes = object("good");
  for (auto& byte : bytes) {
    const std::byte before = byte;
    for (int damage : {0x01, 0x80, 0xff, -1}) {
      byte = damage < 0 ? std::byte{0} : before ^ static_cast<std::byte>(damage);
      load_damaged(bytes);
    }
    byte = before;
  }
}

TEST(ElfImageTest, ManyBytesDamaged) {
  const auto bytes = object("good");
  std::mt19937 random(7);
  for (int repeat = 0; repeat < 2000; ++repeat) {
    auto damaged = bytes;
    for (int i = 0; i < 8; ++i)
      damaged[random() % damaged.size()] = static_cast<std::byte>(random());
    load_damaged(damaged);
  }
}

}  // namespace
}  // namespace rlk::runtime
