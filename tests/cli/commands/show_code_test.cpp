// SPDX-License-Identifier: Apache-2.0
// show --source, --ptx and --sass, with scripts in the place of nvdisasm and objdump.
#include "jit/build_key.hpp"
#include "jit/nvrtc/nvrtc_compiler.hpp"
#include "jit/parse_specialization.hpp"
#include "templates/registry.hpp"
#include "tests/cli/cli_fixture.hpp"
#include "tests/cli/fake_tool.hpp"
#include "tests/jit/nvrtc/elf_writer.hpp"
#include "tests/support/fake_toolchain.hpp"

namespace rlk::cli {
namespace {

const std::string k_cuda_name = "linear_logp.fwd[x=bf16 V=10 D=20]@sm_90a";
const std::string k_cpu_name = "linear_logp.bwd[x=f32 V=10 D=20]@x86-64-v2";

class ShowCodeTest : public CliTest {
 protected:
  void put_payload(const std::string& name, const std::string& payload) const {
    std::vector<std::byte> bytes(payload.size());
    std::memcpy(bytes.data(), payload.data(), payload.size());
    const nlohmann::json metadata = {{"name", name}};
    cache::DiskStore({.read_write = folder_})
        .put({key_of(name).bytes, metadata.dump(), bytes}, compiler);
  }
  static std::string elf(Elf64_Half machine) {
    return test::elf_with_sections({{".text.k", "code"}}, machine);
  }
  // Prints its name, its arguments but for the file, and the size of that.
  std::string make_tool(const std::string& path) const {
    return test::fake_tool(path,
                           "echo \"$0\"; while [ $# -gt 1 ]; do echo \"$1\"; shift; done\n"
                           "/usr/bin/wc -c < \"$1\"");
  }

  std::string bin_ = temp_ / "bin";
  test::Variable path_{"PATH", bin_};
};

TEST_F(ShowCodeTest, TheSourceOfCudaIsWhatNvrtcIsGiven) {
  const auto request =
      jit::compile_request(jit::parse_specialization(k_cuda_name, templates::ops()));
  const Ran ran = run({"show", k_cuda_name, "--source"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  const auto lines = lines_of(ran.out);
  EXPECT_EQ(lines[0], "// " + k_cuda_name);
  EXPECT_TRUE(lines[1].starts_with("// template, SHA-256: ")) << lines[1];
  EXPECT_TRUE(lines[2].starts_with("// options: --gpu-architecture=sm_90a -std=c++20 "));
  EXPECT_TRUE(lines[2].find("-DRLK_BACKWARD=0") != std::string::npos) << lines[2];
  EXPECT_EQ(lines[4], "constexpr long long kV = 10;");
  EXPECT_TRUE(ran.out.ends_with(jit::nvrtc_source(request)));
}

TEST_F(ShowCodeTest, TheSourceOfTheCpuIsItsConstantsAndWhereItsTextLies) {
  RLK_NEEDS_CPU_TEMPLATES();
  const Ran ran = run({"show", "--source", k_cpu_name});
  EXPECT_EQ(ran.code, 0) << ran.err;
  for (const char* part : {"templates/linear_logp/kernel_cpu.cpp", "LLVM bitcode",
                           "extern const long long kV = 10;\n", "x86-64-v2"}) {
    EXPECT_NE(ran.out.find(part), std::string::npos) << part << '\n' << ran.out;
  }
}

// An entry of an older rlk: what is shown is not what it was made from.
TEST_F(ShowCodeTest, AnEntryOfAnotherTemplateIsTold) {
  const auto key = cache::KeyBuilder().field("op", "toy").field("template", "0ld").finish();
  const nlohmann::json metadata = {{"name", k_cuda_name}};
  cache::DiskStore({.read_write = folder_}).put({key.bytes, metadata.dump(), {}}, compiler);
  const std::string told = "// The entry was made from another one: 0ld\n";
  EXPECT_NE(run({"show", key.digest(), "--source"}).out.find(told), std::string::npos);
  EXPECT_EQ(run({"show", k_cuda_name, "--source"}).out.find(told), std::string::npos);
}

TEST_F(ShowCodeTest, AWrongNameIsToldWithThePartThatIsWrong) {
  const Ran ran = run({"show", "--source", "linear_logp.fwd[x=f8 generic]@sm_90a"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_EQ(ran.out, "");
  EXPECT_NE(ran.err.find("x: expected none, f32, bf16, f16, got \"f8\""), std::string::npos)
      << ran.err;
}

TEST_F(ShowCodeTest, PtxIsPrintedWithoutItsFinalZeroAndWithoutControlBytes) {
  put_payload("toy@compute_80", std::string(".version 7.4\n\t.reg\n\x1b[2J\n") + '\0');
  const Ran ran = run({"show", "toy", "--ptx"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.out, ".version 7.4\n\t.reg\n\\x1b[2J\n");
}

TEST_F(ShowCodeTest, WhatAnEntryDoesNotHoldIsSaid) {
  put_payload("cubin", elf(EM_CUDA));
  put_payload("object", elf(EM_X86_64));
  put_payload("text", "ptx");
  for (const auto& [name, flag, told] :
       {std::tuple{"cubin", "--ptx", "--ptx: expected PTX, got a cubin; --sass shows it"},
        std::tuple{"object", "--ptx", "got an object for the CPU; --sass shows it"},
        std::tuple{"text", "--sass", "--sass: expected machine code, got PTX; --ptx shows it"}}) {
    const Ran ran = run({"show", name, flag});
    EXPECT_EQ(ran.code, 1);
    EXPECT_EQ(ran.out, "");
    EXPECT_NE(ran.err.find(told), std::string::npos) << ran.err;
  }
}

TEST_F(ShowCodeTest, SassIsWhatTheToolPrints) {
  put_payload("cubin", elf(EM_CUDA));
  put_payload("object", elf(EM_X86_64));
  const std::string size = std::to_string(elf(EM_CUDA).size());
  const auto nvdisasm = make_tool(bin_ + "/nvdisasm");
  const auto objdump = make_tool(bin_ + "/objdump");
  EXPECT_EQ(run({"show", "cubin", "--sass"}).out, nvdisasm + "\n--print-code\n" + size + '\n');
  EXPECT_EQ(run({"show", "object", "--sass"}).out,
            objdump + "\n--disassemble\n--demangle\n" + size + '\n');
  // Names in an object come from whoever made it.
  test::fake_tool(bin_ + "/objdump", "printf 'a\\033[2J\\n\\tb'");
  EXPECT_EQ(run({"show", "object", "--sass"}).out, "a\\x1b[2J\n\tb");
}

TEST_F(ShowCodeTest, NvdisasmOfCudaHomeIsFound) {
  put_payload("cubin", elf(EM_CUDA));
  const auto nvdisasm = make_tool(temp_ / "cuda/bin/nvdisasm");
  const test::Variable home("CUDA_HOME", temp_ / "cuda");
  EXPECT_EQ(lines_of(run({"show", "cubin", "--sass"}).out).at(0), nvdisasm);
}

TEST_F(ShowCodeTest, AMissingToolIsNamed) {
  put_payload("object", elf(EM_X86_64));
  const Ran ran = run({"show", "object", "--sass"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_EQ(ran.out, "");
  EXPECT_EQ(ran.err, "rlk-jit: --sass: expected objdump in PATH; it comes with GNU binutils\n");
}

TEST_F(ShowCodeTest, AToolThatFailsPrintsNothing) {
  put_payload("object", elf(EM_X86_64));
  test::fake_tool(bin_ + "/objdump", "echo half; exit 1");
  const Ran ran = run({"show", "object", "--sass"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_EQ(ran.out, "");
  EXPECT_NE(ran.err.find("objdump: expected exit status 0, got 1"), std::string::npos) << ran.err;
}

TEST_F(ShowCodeTest, DamageIsNotShown) {
  put_payload("text", "ptx");
  const std::string file = lines_of(run({"path", "text"}).out).at(0);
  std::string bytes = test::read_file(file);
  bytes.back() ^= 1;
  test::write_file(file, bytes);
  const Ran ran = run({"show", "text", "--ptx"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.err.find("wrong checksum"), std::string::npos) << ran.err;
}

TEST_F(ShowCodeTest, OneTextAtATimeAndNoJson) {
  put_payload("text", "ptx");
  EXPECT_EQ(run({"show", "text", "--ptx", "--sass"}).code, 2);
  EXPECT_EQ(run({"show", "text", "--ptx", "--source"}).code, 2);
  EXPECT_EQ(run({"show", "text", "--ptx", "--json"}).code, 2);
}

}  // namespace
}  // namespace rlk::cli
