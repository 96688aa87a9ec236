// SPDX-License-Identifier: Apache-2.0
// Numbers of cubins written here, and damage in every byte. Real ones: nvrtc_targets_test.
#include "jit/nvrtc/cubin_info.hpp"

#include "tests/jit/nvrtc/elf_writer.hpp"

#include <gtest/gtest.h>

#include <random>

namespace rlk::jit {
namespace {

using test::Section;

auto read(const std::string& bytes) { return read_cubin(std::as_bytes(std::span(bytes))); }

std::string record(std::uint8_t attribute, std::uint32_t symbol, std::uint32_t value) {
  return std::string{'\x04', static_cast<char>(attribute), '\x08', '\0'} + test::bytes_of(symbol) +
         test::bytes_of(value);
}

Elf64_Sym symbol(Elf64_Word name) {
  Elf64_Sym symbol{};
  symbol.st_name = name;
  return symbol;
}

// Two kernels, a (symbol 1) and b (symbol 2); sections 2 and 3 are names and symbols.
std::vector<Section> sections() {
  const std::string strings("\0rlk_a\0rlk_b\0", 13);
  const std::string symbols =
      test::bytes_of(symbol(0)) + test::bytes_of(symbol(1)) + test::bytes_of(symbol(7));
  const std::string unsized("\x03\x1b\xff\x00\x01\x02\x00\x00", 8);  // records of no size
  const std::string other("\x04\x99\x05\x00hello", 9);
  return {{".strtab", strings},
          {".symtab", symbols, SHT_SYMTAB, 2},
          {".nv.info",
           unsized + record(0x2f, 1, 168) + other + record(0x2f, 2, 255) + record(0x11, 1, 0) +
               record(0x11, 2, 64),
           SHT_LOPROC, 3},
          {".text.rlk_a", std::string(256, 'x')},
          {".text.rlk_b", std::string(128, 'x')},
          {".nv.shared.rlk_a", "", SHT_NOBITS, 0, 3072}};
}

std::string cubin(const std::vector<Section>& sections) {
  return test::elf_with_sections(sections, 190);
}

TEST(CubinInfoTest, NumbersOfEachKernel) {
  const auto kernels = read(cubin(sections()));
  ASSERT_TRUE(kernels);
  ASSERT_EQ(kernels->size(), 2u);
  const auto& a = (*kernels)[0];
  EXPECT_EQ(a.name, "rlk_a");
  EXPECT_EQ(a.registers, 168);
  EXPECT_EQ(a.local_bytes, 0);
  EXPECT_EQ(a.shared_bytes, 3072);
  EXPECT_EQ(a.code_bytes, 256);
  const auto& b = (*kernels)[1];
  EXPECT_EQ(b.name, "rlk_b");
  EXPECT_EQ(b.registers, 255);
  EXPECT_EQ(b.local_bytes, 64);
  EXPECT_EQ(b.shared_bytes, 0);
  EXPECT_EQ(b.code_bytes, 128);
}

TEST(CubinInfoTest, WhatTheSystemReservesIsNotCounted) {
  auto with = sections();
  with.push_back({".nv.shared.reserved.0", "", SHT_NOBITS, 0, 64});
  const auto kernels = read(cubin(with));
  ASSERT_TRUE(kernels);
  EXPECT_EQ(kernels->size(), 2u);
  EXPECT_EQ((*kernels)[0].shared_bytes, 2048);
  EXPECT_EQ((*kernels)[1].shared_bytes, 0);
}

TEST(CubinInfoTest, WithoutRecordsTheNumbersAreUnknown) {
  auto without = sections();
  without[2].name = ".nv.other";
  const auto kernels = read(cubin(without));
  ASSERT_TRUE(kernels);
  EXPECT_EQ((*kernels)[0].registers, -1);
  EXPECT_EQ((*kernels)[0].local_bytes, -1);
}

TEST(CubinInfoTest, OtherFilesGiveNothing) {
  EXPECT_FALSE(read(""));
  EXPECT_FALSE(read(".version 7.4\n"));
  EXPECT_FALSE(read(test::elf_with_sections(sections(), EM_X86_64)));
  auto bad_symbol = sections();
  bad_symbol[2].data = record(0x2f, 99, 1);
  EXPECT_FALSE(read(cubin(bad_symbol)));
  auto bad_link = sections();
  bad_link[2].link = 77;
  EXPECT_FALSE(read(cubin(bad_link)));
  auto cut_record = sections();
  cut_record[2].data.resize(cut_record[2].data.size() - 1);
  EXPECT_FALSE(read(cubin(cut_record)));
}

TEST(CubinInfoTest, ACubinCutAnywhereGivesNothing) {
  const auto whole = cubin(sections());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(read(whole.substr(0, size))) << size;
  }
}

TEST(CubinInfoTest, DamageDoesNoHarm) {
  std::mt19937 random(1);
  const auto whole = cubin(sections());
  int num_read = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const int value : {0, 1, 0x7f, 0x80, 0xff}) {
      auto bytes = whole;
      bytes[at] = static_cast<char>(value);
      num_read += read(bytes).has_value();
    }
  }
  EXPECT_GT(num_read, 0);
  for (int round = 0; round < 20000; ++round) {
    auto bytes = whole;
    for (int i = 0; i < 4; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    read(bytes);
  }
}

}  // namespace
}  // namespace rlk::jit
