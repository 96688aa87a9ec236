// SPDX-License-Identifier: Apache-2.0
// Compiles toy_kernel_cpu.cpp: what comes out runs, and what must be refused is refused in words.
#include "jit/llvm_compiler.hpp"

#include "jit/llvm/rlk_llvm.h"
#include "runtime/elf_image.hpp"
#include "runtime/error.hpp"
#include "runtime/target.hpp"
#include "tests/support/child_processes.hpp"
#include "tests/support/temp_dir.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <thread>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace rlk::jit {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> k_levels = {"x86-64-v2", "x86-64-v3", "x86-64-v4"};

std::span<const std::byte> bitcode(const std::string& level) {
  static std::map<std::string, std::string> files;
  std::string& bytes = files[level];
  if (bytes.empty()) {
    std::ifstream file(std::string(RLK_TOY_BITCODE) + "/" + level + ".bc", std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
    EXPECT_FALSE(bytes.empty()) << level;
  }
  return std::as_bytes(std::span(bytes));
}

LlvmCompiler& llvm() {
  static LlvmCompiler compiler(RLK_LLVM_FOLDER);
  return compiler;
}

CompileRequest request(const std::string& level, std::vector<std::string> entries,
                       std::vector<NamedConstant> constants = {}) {
  return {"toy.fwd[]@" + level, level, bitcode(level), std::move(constants),
          std::move(entries),   {}};
}

CompileRequest outer(const std::string& level, std::int64_t n, std::int64_t rows,
                     std::int64_t width, bool twice) {
  return request(level, {"rlk_toy_outer"},
                 {{"kN", n}, {"kRows", rows}, {"kWidth", width}, {"kTwice", twice}});
}

std::string failure(const CompileRequest& asked) {
  try {
    llvm().compile(asked);
  } catch (const CompileError& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// As in toy_kernel_cpu.cpp.
struct ToyArgs {
  const float* a;
  const float* b;
  float* out;
  long n;
};

int num_lanes(const std::string& level) {
  return level == "x86-64-v4" ? 16 : level == "x86-64-v3" ? 8 : 4;
}

std::vector<float> run_outer(const std::string& level, const CompileRequest& asked, long n,
                             int rows, int width) {
  const auto columns = static_cast<std::size_t>(width * num_lanes(level));
  std::vector<float> a(static_cast<std::size_t>(n * rows)),
      b(static_cast<std::size_t>(n) * columns);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i % 7) - 3.0f;
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i % 5) + 0.5f;
  std::vector<float> out(static_cast<std::size_t>(rows) * columns, -1.0f);
  const auto image = runtime::ElfImage::load(llvm().compile(asked).code);
  const ToyArgs args{a.data(), b.data(), out.data(), n};
  reinterpret_cast<void (*)(const ToyArgs*)>(image.symbol("rlk_toy_outer"))(&args);
  for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
    for (std::size_t c = 0; c < columns; ++c) {
      float sum = 0;  // small whole and half numbers: exact in any order
      for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
        sum += a[i * static_cast<std::size_t>(rows) + r] * b[i * columns + c];
      }
      EXPECT_EQ(out[r * columns + c], sum) << level << " row " << r << " column " << c;
    }
  }
  return out;
}

std::vector<std::string> host_levels() {
  std::vector<std::string> levels;
  const auto host = host_cpu_target();
  for (const Target target : cpu_targets()) {
    if (host && target <= *host) levels.emplace_back(name(target));
  }
  return levels;
}

TEST(LlvmCompilerTest, RunsOnEveryLevelOfThisHost) {
  ASSERT_FALSE(host_levels().empty());
  for (const auto& level : host_levels()) {
    run_outer(level, outer(level, 13, 6, 2, false), 13, 6, 2);
    run_outer(level, outer(level, -1, 6, 2, false), 13, 6, 2);
    run_outer(level, outer(level, -1, 3, 1, false), 1, 3, 1);
  }
}

TEST(LlvmCompilerTest, SeveralEntriesAndReadOnlyData) {
  for (const auto& level : host_levels()) {
    const auto compiled = llvm().compile(request(level, {"rlk_toy_lanes", "rlk_toy_table"}));
    const auto image = runtime::ElfImage::load(compiled.code);
    EXPECT_EQ(reinterpret_cast<int (*)()>(image.symbol("rlk_toy_lanes"))(), num_lanes(level));
    EXPECT_EQ(reinterpret_cast<float (*)(int)>(image.symbol("rlk_toy_table"))(3), 8.125f);
    EXPECT_THROW(image.symbol("rlk_toy_outer"), LoadError);
  }
}

TEST(LlvmCompilerTest, ConstantsAreGoneFromTheCode) {
  const std::string text = llvm().assembly(outer("x86-64-v4", 13, 14, 2, false));
  EXPECT_TRUE(contains(text, "rlk_toy_outer"));
  EXPECT_FALSE(contains(text, "kRows"));
  // The tile lives in registers of the full width: 28 sums, no stack.
  EXPECT_TRUE(contains(text, "%zmm27"));
  EXPECT_FALSE(contains(text, "%rsp"));
  EXPECT_FALSE(contains(llvm().assembly(outer("x86-64-v3", 13, 6, 2, false)), "zmm"));
  EXPECT_FALSE(contains(llvm().assembly(outer("x86-64-v2", 13, 6, 2, false)), "ymm"));
}

TEST(LlvmCompilerTest, NothingIsContracted) {
  for (const auto& level : k_levels) {
    EXPECT_FALSE(contains(llvm().assembly(outer(level, -1, 6, 2, false)), "vfmadd")) << level;
  }
}

TEST(LlvmCompilerTest, LoopThatIsDeadOnceAConstantIsKnown) {
  struct {
    const double* x;
    float* out;
    long size, num_groups;
  } args{};
  const double x[] = {1.0, 3.0, 5.0, 5.0};
  for (const auto& level : host_levels()) {
    for (const bool twice : {true, false}) {
      const auto image = runtime::ElfImage::load(
          llvm().compile(request(level, {"rlk_toy_groups"}, {{"kTwice", twice}})).code);
      float out[4] = {};
      args = {x, out, 2, 2};
      reinterpret_cast<void (*)(const void*)>(image.symbol("rlk_toy_groups"))(&args);
      EXPECT_EQ(out[0], twice ? -1.0f : -0.5f) << level;
      EXPECT_EQ(out[1], twice ? 1.0f : 0.5f) << level;
      EXPECT_EQ(out[2], 0.0f) << level;
    }
  }
}

TEST(LlvmCompilerTest, Stats) {
  const auto small = llvm().compile(outer("x86-64-v4", -1, 14, 2, false)).stats;
  EXPECT_GT(small.code_bytes, 100);
  EXPECT_EQ(small.num_spills, 0);
  EXPECT_EQ(small.local_bytes, 0);
  EXPECT_GT(small.compile_ms, 0.0);
  // 4 x 14 sums do not fit into 16 registers.
  const auto large = llvm().compile(outer("x86-64-v2", -1, 14, 4, false)).stats;
  EXPECT_GT(large.num_spills, 0);
  EXPECT_GT(large.local_bytes, 0);
}

TEST(LlvmCompilerTest, SameBytesEachTimeAndInEveryThread) {
  const auto code = llvm().compile(outer("x86-64-v4", 64, 14, 2, true)).code;
  std::vector<std::vector<std::byte>> others(4);
  {
    std::vector<std::jthread> threads;
    for (auto& other : others) {
      threads.emplace_back([&other] {
        for (int repeat = 0; repeat < 3; ++repeat) {
          other = llvm().compile(outer("x86-64-v4", 64, 14, 2, true)).code;
        }
      });
    }
  }
  for (const auto& other : others) EXPECT_EQ(other, code);
  EXPECT_NE(llvm().compile(outer("x86-64-v4", 65, 14, 2, true)).code, code);
}

TEST(LlvmCompilerTest, NoPathInTheObject) {
  const auto code = llvm().compile(outer("x86-64-v4", 64, 14, 2, true)).code;
  const std::string text(reinterpret_cast<const char*>(code.data()), code.size());
  EXPECT_FALSE(contains(text, "toy_kernel_cpu"));
}

TEST(LlvmCompilerTest, RefusesConstants) {
  const std::vector<std::string> entry = {"rlk_toy_outer"};
  EXPECT_TRUE(contains(failure(request("x86-64-v4", entry, {{"rlk_toy_state_value", 1}})),
                       "has a value in the template"));
  EXPECT_TRUE(
      contains(failure(request("x86-64-v4", entry, {{"kN", 1}, {"kN", 2}})), "has a value"));
  EXPECT_TRUE(contains(failure(request("x86-64-v4", {"rlk_toy_floating"}, {{"kFloating", 1}})),
                       "kFloating is not of an integer type"));
  EXPECT_TRUE(
      contains(failure(request("x86-64-v4", entry, {{"kN", 1}, {"kRows", 1}, {"kTwice", 0}})),
               "kWidth has no value"));
  EXPECT_TRUE(contains(failure(outer("x86-64-v4", 1, std::int64_t{1} << 31, 1, false)), "kRows"));
  EXPECT_TRUE(contains(failure(request("x86-64-v4", entry, {{"kTwice", 2000}})), "kTwice"));
}

TEST(LlvmCompilerTest, PassesOverAConstantOfTheOtherBackend) {
  auto asked = outer("x86-64-v4", 1, 1, 1, false);
  const auto without = llvm().compile(asked);
  asked.constants.push_back({"kAbsent", 1});
  EXPECT_EQ(llvm().compile(asked).code, without.code);
}

TEST(LlvmCompilerTest, RefusesRequests) {
  auto asked = outer("x86-64-v4", 1, 1, 1, false);
  asked.target = "x86-64-v9";
  EXPECT_TRUE(contains(failure(asked), "x86-64-v9"));
  asked = outer("x86-64-v4", 1, 1, 1, false);
  asked.options = {"fast-math"};
  EXPECT_TRUE(contains(failure(asked), "fast-math"));
  EXPECT_TRUE(contains(failure(request("x86-64-v4", {"rlk_toy_absent"})), "rlk_toy_absent"));
  // Declared only, and a constant in place of a function.
  EXPECT_TRUE(contains(failure(request("x86-64-v4", {"rlk_not_there"})), "rlk_not_there"));
  EXPECT_TRUE(contains(failure(request("x86-64-v4", {"kN"})), "kN"));
}

TEST(LlvmCompilerTest, MessagesNameTheKernel) {
  EXPECT_TRUE(contains(failure(request("x86-64-v4", {"rlk_toy_absent"})), "toy.fwd[]@x86-64-v4"));
}

TEST(LlvmCompilerTest, LoopThatCannotBeUnrolledIsAnError) {
  auto asked = request("x86-64-v4", {"rlk_toy_not_unrolled"});
  const std::string message = failure(asked);
  EXPECT_TRUE(contains(message, "rlk_toy_not_unrolled: ")) << message;
  EXPECT_TRUE(contains(message, "not unrolled")) << message;
  asked.options = {"allow-missed-transforms"};
  EXPECT_EQ(failure(asked), "");
}

TEST(LlvmCompilerTest, RefusesWhatTheLoaderWouldRefuse) {
  EXPECT_TRUE(contains(failure(request("x86-64-v4", {"rlk_toy_calls_out"})), "rlk_not_there"));
  EXPECT_TRUE(contains(failure(request("x86-64-v4", {"rlk_toy_state"})), "writable"));
}

TEST(LlvmCompilerTest, FatalErrorOfLlvmFailsThisCompileOnly) {
#if defined(__SANITIZE_ADDRESS__)
  const __lsan::ScopedDisabler leaks_by_design;  // the way out of LLVM runs no destructor
#endif
  testing::internal::CaptureStderr();
  for (int repeat = 0; repeat < 3; ++repeat) {
    EXPECT_NE(failure(request("x86-64-v2", {"rlk_toy_fatal"})), "");
  }
  run_outer("x86-64-v2", outer("x86-64-v2", 13, 3, 2, false), 13, 3, 2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(failure(request("x86-64-v4", {"rlk_toy_fatal"})), "");
}

// The library itself: LlvmCompiler does not let it begin with so little.
TEST(LlvmCompilerTest, WithoutMemoryItFailsAndGoesOnAfterwards) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer takes what address space it likes";
#endif
  const auto asked = outer("x86-64-v2", 13, 3, 2, false);
  llvm().compile(asked);  // from now on LLVM is initialized
  void* library = dlopen((fs::path(RLK_LLVM_FOLDER) / "librlk_llvm.so").c_str(), RTLD_NOW);
  ASSERT_NE(library, nullptr);
  const auto compile =
      reinterpret_cast<decltype(&rlk_llvm_compile)>(dlsym(library, "rlk_llvm_compile"));
  std::vector<rlk_llvm_constant> constants;
  for (const auto& [name, value] : asked.constants) constants.push_back({name.c_str(), value});
  const char* entries[] = {"rlk_toy_outer"};
  const rlk_llvm_request request{asked.source.data(),
                                 asked.source.size(),
                                 "x86-64-v2",
                                 constants.data(),
                                 constants.size(),
                                 entries,
                                 1,
                                 nullptr,
                                 0,
                                 rlk_llvm_object};
  // LLVM ran in a thread with a larger stack: the first use of the library's thread-local data in
  // this one takes memory from glibc, which aborts where there is none.
  rlk_llvm_result first{};
  ASSERT_EQ(compile(&request, &first), 0);
  for (std::size_t num_free = 0; num_free < 256; num_free += 16) {
    const pid_t child = test::start_child([&] {
      ::alarm(60);
      rlimit limit{};
      ::getrlimit(RLIMIT_AS, &limit);
      const rlimit none{0, limit.rlim_max};
      ::setrlimit(RLIMIT_AS, &none);
      constexpr std::size_t k_most = 1 << 20;
      static void* pieces[k_most];
      std::size_t num_pieces = 0;
      for (const std::size_t bytes : {4096, 512, 64, 16}) {
        while (num_pieces < k_most && (pieces[num_pieces] = std::malloc(bytes)) != nullptr) {
          ++num_pieces;
        }
      }
      for (std::size_t i = 0; i < std::min(num_free, num_pieces); ++i) std::free(pieces[i]);
      rlk_llvm_result result{};
      const bool failed = compile(&request, &result) != 0;
      ::setrlimit(RLIMIT_AS, &limit);
      return failed && compile(&request, &result) == 0;
    });
    EXPECT_EQ(test::wait_for_child(child), "passed") << num_free;
  }
}

TEST(LlvmCompilerTest, DamagedBitcode) {
  testing::internal::CaptureStderr();
  auto asked = outer("x86-64-v4", 1, 1, 1, false);
  const auto whole = asked.source;
  for (const std::size_t length : {std::size_t{0}, std::size_t{4}, whole.size() / 2}) {
    asked.source = whole.first(length);
    EXPECT_NE(failure(asked), "") << length;
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(LlvmCompilerTest, IdentityIsKnownWithoutTheLibrary) {
  const LlvmCompiler compiler("/nonexistent");
  const std::string identity = compiler.identity();
  EXPECT_EQ(identity.substr(0, 8), "llvm-19.");
  EXPECT_TRUE(std::ranges::all_of(identity, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-';
  })) << identity;
}

TEST(LlvmCompilerTest, LibraryThatIsMissing) {
  LlvmCompiler compiler("/nonexistent");
  EXPECT_FALSE(compiler.available());
  EXPECT_TRUE(contains(compiler.why_not(), "/nonexistent/librlk_llvm.so"));
  EXPECT_THROW(compiler.compile(outer("x86-64-v4", 1, 1, 1, false)), LoadError);
}

// A library of this name that is no library, or another one.
void expect_refused(const fs::path& folder, const std::string& part) {
  LlvmCompiler compiler(folder);
  EXPECT_TRUE(compiler.available());
  EXPECT_EQ(compiler.why_not(), "");
  for (int repeat = 0; repeat < 2; ++repeat) {
    EXPECT_THROW(compiler.compile(outer("x86-64-v4", 1, 1, 1, false)), LoadError);
  }
  EXPECT_FALSE(compiler.available());
  EXPECT_TRUE(contains(compiler.why_not(), part)) << compiler.why_not();
}

TEST(LlvmCompilerTest, LibraryThatIsNone) {
  const test::TempDir folder;
  std::ofstream(fs::path(folder.path()) / "librlk_llvm.so") << "not a library";
  expect_refused(folder.path(), "librlk_llvm.so");
}

TEST(LlvmCompilerTest, LibraryOfAnotherBuild) {
  Dl_info info{};
  ASSERT_NE(dladdr(reinterpret_cast<const void*>(&std::puts), &info), 0);
  const test::TempDir folder;
  fs::create_symlink(fs::canonical(info.dli_fname), fs::path(folder.path()) / "librlk_llvm.so");
  expect_refused(folder.path(), "expected llvm-19");
}

}  // namespace
}  // namespace rlk::jit
