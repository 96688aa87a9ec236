// SPDX-License-Identifier: Apache-2.0
// The compiler over a fake NVRTC: what it is given, what comes out, and every failure.
#include "jit/nvrtc/nvrtc_compiler.hpp"

#include "runtime/cpu_count.hpp"
#include "runtime/error.hpp"
#include "tests/jit/nvrtc/elf_writer.hpp"
#include "tests/jit/nvrtc/fake_nvrtc.hpp"
#include "tests/support/child_processes.hpp"
#include "tests/support/temp_dir.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

namespace rlk::jit {
namespace {

namespace fs = std::filesystem;

const std::string k_source = "extern \"C\" __global__ void rlk_a() {}\n";

std::string cubin_of(const std::string& kernel) {
  return test::elf_with_sections({{".text." + kernel, std::string(256, 'x')}}, 190);
}

class NvrtcCompilerTest : public ::testing::Test {
 protected:
  NvrtcCompilerTest() {
    fake_ = {};
    fake_.cubin = cubin_of("rlk_a");
    fake_.ptx = "//\n.version 9.0\n.target sm_80\n.visible .entry rlk_a(\n";
  }

  NvrtcCompiler::Options options() {
    NvrtcCompiler::Options options;
    options.search = [this] {
      ++num_searches_;
      NvrtcSearch search;
      search.loader_folders = {fs::path(RLK_FAKE_NVRTC).parent_path()};
      return search;
    };
    options.dump_dir = folder_ / "dump";
    return options;
  }

  static CompileRequest request(Target target) {
    CompileRequest request;
    request.name = "toy.fwd[V=7 x=bf16]@sm_90a";
    request.target = name(target);
    request.source = std::as_bytes(std::span(k_source));
    request.constants = {{"kV", 128256}, {"kD", -1}};
    request.entries = {"rlk_a"};
    request.options = nvrtc_options(target);
    return request;
  }

  template <class Kind>
  std::string why(NvrtcCompiler& compiler, const CompileRequest& request) {
    try {
      compiler.compile(request);
    } catch (const Kind& error) {
      return error.what();
    }
    return "";
  }

  std::vector<fs::path> dumped() const {
    std::vector<fs::path> files;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder_ / "dump", none)) {
      files.push_back(entry.path());
    }
    return files;
  }

  test::FakeNvrtc& fake_ = test::fake_nvrtc();
  test::TempDir folder_;
  int num_searches_ = 0;
};

TEST_F(NvrtcCompilerTest, NothingIsSearchedUntilAskedAndThenOnce) {
  NvrtcCompiler compiler(options());
  EXPECT_EQ(num_searches_, 0);
  EXPECT_EQ(compiler.identity(), "nvrtc-12.99-0011223344556677");
  EXPECT_TRUE(compiler.available());
  EXPECT_EQ(compiler.why_not(), "");
  compiler.compile(request(Target::sm_90a));
  EXPECT_EQ(num_searches_, 1);
  EXPECT_EQ(compiler.found().size(), 1u);
  EXPECT_EQ(compiler.chosen(), &compiler.found()[0]);
}

TEST_F(NvrtcCompilerTest, ConstantsStandBeforeTheSource) {
  NvrtcCompiler compiler(options());
  compiler.compile(request(Target::sm_90a));
  EXPECT_EQ(fake_.source,
            "constexpr long long kV = 128256;\nconstexpr long long kD = -1;\n" + k_source);
  EXPECT_EQ(fake_.name, "rlk_kernel.cu");
  EXPECT_EQ(fake_.num_programs, 0);
}

TEST_F(NvrtcCompilerTest, OptionsInOrder) {
  const auto with_switches = [](std::vector<std::string> options) {
    options.push_back("--no-cache");
    if (const int cpus = std::min(runtime::usable_cpus(), 4); cpus > 1) {
      options.push_back(fmt::format("--split-compile={}", cpus));
    }
    options.push_back("--modify-stack-limit=false");
    return options;
  };
  NvrtcCompiler compiler(options());
  compiler.compile(request(Target::sm_90a));
  EXPECT_EQ(fake_.options,
            with_switches({"--gpu-architecture=sm_90a", "-std=c++20", "--fmad=false",
                           "--device-as-default-execution-space", "--ptxas-options=-v"}));
  compiler.compile(request(Target::compute_80));
  EXPECT_EQ(fake_.options, with_switches({"--gpu-architecture=compute_80", "-std=c++20",
                                          "--fmad=false", "--device-as-default-execution-space"}));
}

// Threads make other code of the same program from run to run there, some of which spills.
TEST_F(NvrtcCompilerTest, CodeOfBlackwellIsMadeByOneThread) {
  NvrtcCompiler compiler(options());
  for (const Target target : {Target::sm_100, Target::sm_120}) {
    compiler.compile(request(target));
    EXPECT_EQ(fake_.options,
              (std::vector<std::string>{fmt::format("--gpu-architecture={}", name(target)),
                                        "-std=c++20", "--fmad=false",
                                        "--device-as-default-execution-space", "--ptxas-options=-v",
                                        "--no-cache", "--modify-stack-limit=false"}));
  }
}

// NVRTC would end the process where it is refused a thread.
TEST_F(NvrtcCompilerTest, WithoutRoomForThreadsItGetsNone) {
  const auto splits = [&] {
    return std::ranges::any_of(
        fake_.options, [](const auto& option) { return option.starts_with("--split-compile"); });
  };
  const pid_t child = test::start_child([&] {
    if (::setuid(65534) != 0) return true;  // root is refused nothing, and others need no such step
    NvrtcCompiler compiler(options());
    rlimit limit{};
    ::getrlimit(RLIMIT_NPROC, &limit);
    limit.rlim_cur = 1;
    ::setrlimit(RLIMIT_NPROC, &limit);
    compiler.compile(request(Target::sm_90a));
    return !splits();
  });
  EXPECT_EQ(test::wait_for_child(child), "passed");
}

TEST_F(NvrtcCompilerTest, ACubinComesWithItsNumbers) {
  fake_.log = " 16 bytes stack frame, 24 bytes spill stores, 20 bytes spill loads\n";
  NvrtcCompiler compiler(options());
  const auto compiled = compiler.compile(request(Target::sm_90a));
  const auto* bytes = reinterpret_cast<const char*>(compiled.code.data());
  EXPECT_EQ(std::string(bytes, compiled.code.size()), fake_.cubin);
  EXPECT_EQ(compiled.stats.code_bytes, 256);
  EXPECT_EQ(compiled.stats.shared_bytes, 0);
  EXPECT_EQ(compiled.stats.registers, -1);
  EXPECT_EQ(compiled.stats.spilled_bytes, 24);
  EXPECT_EQ(compiled.stats.num_spills, -1);
  EXPECT_GE(compiled.stats.compile_ms, 0);
  EXPECT_TRUE(dumped().empty());
}

TEST_F(NvrtcCompilerTest, PtxIsOfVersion74AndEndsInZero) {
  NvrtcCompiler compiler(options());
  const auto compiled = compiler.compile(request(Target::compute_80));
  const std::string text(reinterpret_cast<const char*>(compiled.code.data()), compiled.code.size());
  EXPECT_EQ(text, std::string(".version 7.4\n.target sm_80\n.visible .entry rlk_a(\n") + '\0');
  EXPECT_EQ(compiled.stats.registers, -1);
  EXPECT_EQ(compiled.stats.spilled_bytes, -1);
}

TEST_F(NvrtcCompilerTest, ARefusedSourceIsDumpedAndNamed) {
  fake_.fail_call = "nvrtcCompileProgram";
  fake_.log = "rlk_kernel.cu(3): error: expected a \";\"";
  NvrtcCompiler compiler(options());
  const auto text = why<CompileError>(compiler, request(Target::sm_90a));
  ASSERT_EQ(dumped().size(), 1u);
  EXPECT_EQ(text,
            "toy.fwd[V=7 x=bf16]@sm_90a: NVRTC 12.99: NVRTC_ERROR_COMPILATION (6): "
            "rlk_kernel.cu(3): error: expected a \";\"\nsource: " +
                dumped()[0].string());
  EXPECT_EQ(test::read_file(dumped()[0]), fake_.source);
  EXPECT_EQ(fs::status(dumped()[0]).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_TRUE(dumped()[0].filename().string().starts_with("rlk-toy.fwd-V-7-x-bf16--sm_90a-"));
  EXPECT_EQ(fake_.num_programs, 0);
  EXPECT_TRUE(compiler.available()) << "the next kernel may compile";
}

TEST_F(NvrtcCompilerTest, AProbeThatIsRefusedLeavesNothing) {
  fake_.fail_call = "nvrtcCompileProgram";
  fake_.log = "the log";
  NvrtcCompiler compiler(options());
  auto probe = request(Target::sm_90a);
  probe.keep_refused = false;
  EXPECT_TRUE(why<CompileError>(compiler, probe).ends_with("(6): the log"));
  EXPECT_TRUE(dumped().empty());
}

// One long-running process and ever new shapes.
TEST_F(NvrtcCompilerTest, TheTempFolderTakesTheFirstFewRefusedSourcesAlone) {
  const std::string before = std::getenv("TMPDIR") != nullptr ? std::getenv("TMPDIR") : "";
  fs::create_directory(folder_ / "dump");
  ::setenv("TMPDIR", (folder_ / "dump").c_str(), 1);
  fake_.fail_call = "nvrtcCompileProgram";
  auto with = options();
  with.dump_dir.reset();
  NvrtcCompiler compiler(with);
  std::string text;
  for (int i = 0; i < 40; ++i) text = why<CompileError>(compiler, request(Target::sm_90a));
  before.empty() ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", before.c_str(), 1);
  EXPECT_EQ(dumped().size(), 16u);
  EXPECT_TRUE(text.ends_with("source: not written after 16 others; set RLK_DUMP_DIR")) << text;

  NvrtcCompiler asked(options());
  for (int i = 0; i < 20; ++i) why<CompileError>(asked, request(Target::sm_90a));
  EXPECT_EQ(dumped().size(), 36u) << "as RLK_DUMP_DIR asks";
}

TEST_F(NvrtcCompilerTest, AFolderThatCannotBeWrittenHidesNoError) {
  fake_.fail_call = "nvrtcCompileProgram";
  fake_.log = "the log";
  auto with = options();
  with.dump_dir = "/proc/none";
  NvrtcCompiler compiler(with);
  const auto text = why<CompileError>(compiler, request(Target::sm_90a));
  EXPECT_NE(text.find("the log\nsource: not written: /proc/none"), text.npos) << text;
}

TEST_F(NvrtcCompilerTest, WhateverCallFailsIsACompileErrorAndFreesTheProgram) {
  NvrtcCompiler compiler(options());
  for (const char* call : {"nvrtcCreateProgram", "nvrtcGetProgramLogSize", "nvrtcGetProgramLog",
                           "nvrtcGetCUBINSize", "nvrtcGetCUBIN"}) {
    fake_.fail_call = call;
    fake_.log = "x";
    const auto text = why<CompileError>(compiler, request(Target::sm_90a));
    EXPECT_NE(text.find("toy.fwd[V=7 x=bf16]@sm_90a"), text.npos) << call << ": " << text;
    EXPECT_EQ(fake_.num_programs, 0) << call;
  }
}

TEST_F(NvrtcCompilerTest, CodeWithoutAnEntryIsACompileError) {
  NvrtcCompiler compiler(options());
  fake_.cubin = cubin_of("rlk_ab");
  auto text = why<CompileError>(compiler, request(Target::sm_90a));
  EXPECT_NE(text.find("expected a kernel rlk_a, the code has none"), text.npos) << text;
  fake_.ptx = ".version\n.version 9.0\n.entry rlk_ab(\n";
  text = why<CompileError>(compiler, request(Target::compute_80));
  EXPECT_NE(text.find("expected a kernel rlk_a, the code has none"), text.npos) << text;
  fake_.ptx = ".entry rlk_a(\n";
  text = why<CompileError>(compiler, request(Target::compute_80));
  EXPECT_NE(text.find("expected a .version line"), text.npos) << text;
}

TEST_F(NvrtcCompilerTest, ACubinOfUnknownFormHasUnknownNumbers) {
  NvrtcCompiler compiler(options());
  fake_.cubin = "something new";
  const auto compiled = compiler.compile(request(Target::sm_90a));
  EXPECT_EQ(compiled.code.size(), fake_.cubin.size());
  EXPECT_EQ(compiled.stats.registers, -1);
  EXPECT_EQ(compiled.stats.code_bytes, -1);
}

TEST_F(NvrtcCompilerTest, ALibraryOfAnotherVersionIsRefusedForGood) {
  fake_.minor = 8;
  NvrtcCompiler compiler(options());
  EXPECT_TRUE(compiler.available());
  const auto text = why<LoadError>(compiler, request(Target::sm_90a));
  EXPECT_NE(text.find("expected NVRTC 12.99, got 12.8"), text.npos) << text;
  EXPECT_FALSE(compiler.available());
  EXPECT_EQ(compiler.why_not(), text);
  fake_.minor = 99;
  EXPECT_EQ(why<LoadError>(compiler, request(Target::sm_90a)), text);
}

TEST_F(NvrtcCompilerTest, AFileThatDoesNotOpenIsALoadError) {
  test::write_file(folder_ / "libnvrtc.so.12", test::elf_with_build_id("abcd"));
  fs::copy(fs::path(RLK_FAKE_NVRTC).parent_path() / "libnvrtc-builtins.so.12.99", folder_.path());
  auto with = options();
  with.search = [&] {
    NvrtcSearch search;
    search.named = folder_ / "libnvrtc.so.12";
    return search;
  };
  NvrtcCompiler compiler(with);
  EXPECT_EQ(compiler.identity(), "nvrtc-12.99-61626364");
  const auto text = why<LoadError>(compiler, request(Target::sm_90a));
  EXPECT_NE(text.find("libnvrtc.so.12"), text.npos) << text;
  EXPECT_EQ(compiler.why_not(), text);
}

TEST_F(NvrtcCompilerTest, WithoutNvrtcItSaysSo) {
  auto with = options();
  with.search = [] { return NvrtcSearch{}; };
  NvrtcCompiler compiler(with);
  EXPECT_FALSE(compiler.available());
  EXPECT_EQ(compiler.identity(), "nvrtc-none");
  EXPECT_NE(compiler.why_not().find("no NVRTC found"), std::string::npos);
  EXPECT_EQ(why<LoadError>(compiler, request(Target::sm_90a)), compiler.why_not());
}

TEST_F(NvrtcCompilerTest, TheDriversMajorAndTheMajorAskedForLimitTheChoice) {
  auto with = options();
  with.driver_version = [] { return 11080; };
  EXPECT_FALSE(NvrtcCompiler(with).available());
  with.driver_version = [] { return 12020; };
  EXPECT_TRUE(NvrtcCompiler(with).available());
  with.major = 13;
  EXPECT_FALSE(NvrtcCompiler(with).available());
}

TEST_F(NvrtcCompilerTest, ManyThreadsShareOneSearchAndOneOpening) {
  NvrtcCompiler compiler(options());
  std::vector<std::jthread> threads;
  std::atomic<int> num_good{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] { num_good += compiler.identity().starts_with("nvrtc-12.99-"); });
  }
  threads.clear();
  EXPECT_EQ(num_good, 8);
  EXPECT_EQ(num_searches_, 1);
}

}  // namespace
}  // namespace rlk::jit
