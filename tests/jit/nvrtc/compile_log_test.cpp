// SPDX-License-Identifier: Apache-2.0
// Spills in ptxas's report, and PTX's version line.
#include "jit/nvrtc/compile_log.hpp"

#include <gtest/gtest.h>

namespace rlk::jit {
namespace {

std::vector<std::byte> bytes(std::string_view text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

std::string text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(CompileLogTest, TheMostThatAnyFunctionSpills) {
  EXPECT_EQ(
      spilled_bytes("ptxas info    : Compiling entry function 'a' for 'sm_90a'\n"
                    "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
                    "    168 bytes stack frame, 188 bytes spill stores, 192 bytes spill loads\n"
                    "    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads"),
      192);
  EXPECT_EQ(spilled_bytes(" 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"), 0);
}

TEST(CompileLog, TellsSerializedWgmma) {
  EXPECT_TRUE(serializes_wgmma(
      "ptxas info    : (C7514) Potential Performance Loss: wgmma.mma_async instructions are "
      "serialized due to non wgmma instructions reading accumulator registers of  a wgmma between "
      "start and end of the pipeline stage in the function 'gemm'\n"));
  EXPECT_FALSE(serializes_wgmma("ptxas info    : Used 168 registers, used 16 barriers\n"));
  EXPECT_FALSE(serializes_wgmma(""));
}

TEST(CompileLogTest, ALogWithoutSpillsSaysNothing) {
  EXPECT_EQ(spilled_bytes(""), -1);
  EXPECT_EQ(spilled_bytes("ptxas info    : Used 12 registers"), -1);
  EXPECT_EQ(spilled_bytes(" bytes spill stores"), -1);
  EXPECT_EQ(spilled_bytes("99999999999999999999999 bytes spill stores"), -1);
}

TEST(CompileLogTest, PtxGetsItsVersionAndLosesWhatSaysNothing) {
  auto ptx = bytes(
      "//\n// release 13.0\n\n.version 9.0\n.target sm_80\n\n\t// begin inline asm\n"
      "\tneg.f32 \t%f1, %f2;\n\t// end inline asm\n \n}\n");
  EXPECT_TRUE(pack_ptx(ptx));
  EXPECT_EQ(text(ptx), ".version 7.4\n.target sm_80\nneg.f32 \t%f1, %f2;\n}\n");
  const std::string_view with_zero("//\n.version 8.8\n.x\0", 19);
  ptx = bytes(with_zero);
  EXPECT_TRUE(pack_ptx(ptx));
  EXPECT_EQ(text(ptx), std::string(".version 7.4\n.x\0", 16));
}

TEST(CompileLogTest, AHintOfLaterVersionsIsTakenOut) {
  auto ptx = bytes(
      "//\n.version 8.8\n\t.pragma \"nounroll\";\n\t.pragma \"used_bytes_mask 0xff\";\n"
      "\tld.v2.u64 {%r1, %r2}, [%r3];\n.pragma \"used_bytes_mask 15\";");
  EXPECT_TRUE(pack_ptx(ptx));
  EXPECT_EQ(text(ptx), ".version 7.4\n.pragma \"nounroll\";\nld.v2.u64 {%r1, %r2}, [%r3];\n");
}

TEST(CompileLogTest, WithoutAVersionLineNothingChanges) {
  for (const auto* given : {"", "no.version 8.8\n", "//.version 8.8\n"}) {
    auto ptx = bytes(given);
    EXPECT_FALSE(pack_ptx(ptx)) << given;
    EXPECT_EQ(text(ptx), given);
  }
}

TEST(CompileLogTest, EntriesAreFoundByTheirWholeName) {
  const std::string_view ptx = ".visible .entry rlk_ab(\n)\n.entry rlk_c\n.func rlk_d(";
  EXPECT_TRUE(ptx_has_entry(ptx, "rlk_ab"));
  EXPECT_TRUE(ptx_has_entry(ptx, "rlk_c"));
  EXPECT_FALSE(ptx_has_entry(ptx, "rlk_a"));
  EXPECT_FALSE(ptx_has_entry(ptx, "rlk_d"));
}

}  // namespace
}  // namespace rlk::jit
