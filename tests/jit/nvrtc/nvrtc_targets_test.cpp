// SPDX-License-Identifier: Apache-2.0
// Toy kernels through real NVRTCs, for every target. RLK_TEST_NVRTC lists libraries,
// colon-separated; the machine's own CUDA is not looked for.
#include "jit/nvrtc/cubin_info.hpp"
#include "jit/nvrtc/nvrtc_compiler.hpp"
#include "runtime/error.hpp"
#include "tests/support/temp_dir.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <regex>
#include <string>
#include <thread>

namespace rlk::jit {
namespace {

// Two kernels with all that is counted: shared memory, a frame, and (with kSpills) spills.
constexpr std::string_view k_source_of_targets = R"(
__device__ inline float twice(float x) { return 2.0f * x; }

extern "C" __global__ void rlk_toy_shared(float* out, int n) {
  __shared__ float values[512];
  const int count = kN >= 0 ? static_cast<int>(kN) : n;
  values[threadIdx.x] = out[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = twice(values[count - 1 - threadIdx.x]) + 1.0f;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
static_assert(__CUDA_ARCH__ == 900);
#endif

extern "C" __global__ void __launch_bounds__(1024, kSpills ? 2 : 1)
rlk_toy_frame(float* out, const float* in, int n) {
  float a[64];
  for (int k = 0; k < (kSpills ? 64 : 8); ++k) a[k] = in[k * n];
  for (int k = 0; k < (kSpills ? 64 : 8); ++k) out[k] = a[k] * a[(kSpills ? 63 : 7) - k];
  if constexpr (kSpills) {
    float b[9];
    for (int k = 0; k < 9; ++k) b[k] = a[k];
    out[99] = b[n];
  }
}
)";

CompileRequest request(Target target, std::int64_t n, bool spills) {
  CompileRequest request;
  request.name = "toy";
  request.target = name(target);
  request.source = std::as_bytes(std::span(k_source_of_targets));
  request.constants = {{"kN", n}, {"kSpills", spills}};
  request.entries = {"rlk_toy_shared", "rlk_toy_frame"};
  request.options = nvrtc_options(target);
  return request;
}

class NvrtcTargetsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* list = std::getenv("RLK_TEST_NVRTC");
    if (list == nullptr || *list == '\0') {
      GTEST_SKIP() << "RLK_TEST_NVRTC names no NVRTC: nothing to compile with";
    }
    const std::string text = list;
    for (std::size_t begin = 0; begin < text.size();) {
      const auto end = std::min(text.find(':', begin), text.size());
      NvrtcCompiler::Options options;
      options.search = [path = text.substr(begin, end - begin)] {
        NvrtcSearch search;
        search.named = path;
        return search;
      };
      options.dump_dir = folder_.path();
      compilers_.push_back(std::make_unique<NvrtcCompiler>(options));
      begin = end + 1;
    }
  }

  test::TempDir folder_;
  std::vector<std::unique_ptr<NvrtcCompiler>> compilers_;
};

TEST_F(NvrtcTargetsTest, EveryTargetCompiles) {
  for (const auto& compiler : compilers_) {
    ASSERT_EQ(compiler->why_not(), "");
    for (const Target target : cuda_targets()) {
      SCOPED_TRACE(std::string(name(target)) + " by " + compiler->identity());
      for (const std::int64_t n : {512, -1}) {
        const auto compiled = compiler->compile(request(target, n, false));
        if (target == Target::compute_80) {
          const std::string ptx(reinterpret_cast<const char*>(compiled.code.data()),
                                compiled.code.size());
          EXPECT_TRUE(ptx.starts_with(".version 7.4\n.target sm_80\n"));
          EXPECT_EQ(ptx.back(), '\0');
          EXPECT_EQ(ptx.find("fma"), ptx.npos) << "contracted";
          EXPECT_EQ(compiled.stats.registers, -1);
          continue;
        }
        EXPECT_GT(compiled.stats.registers, 0);
        EXPECT_EQ(compiled.stats.shared_bytes, 2048);
        EXPECT_EQ(compiled.stats.local_bytes, 0);
        EXPECT_EQ(compiled.stats.spilled_bytes, 0);
        EXPECT_GT(compiled.stats.code_bytes, 0);
      }
    }
  }
}

TEST_F(NvrtcTargetsTest, SpillsAndFramesAreSeen) {
  for (const auto& compiler : compilers_) {
    for (const Target target : {Target::sm_80, Target::sm_90a, Target::sm_120}) {
      SCOPED_TRACE(std::string(name(target)) + " by " + compiler->identity());
      const auto stats = compiler->compile(request(target, 512, true)).stats;
      EXPECT_GT(stats.spilled_bytes, 0);
      EXPECT_GT(stats.local_bytes, 0);
      EXPECT_GE(stats.registers, 32);
    }
  }
}

// The cubin's numbers against what ptxas says of the same kernels.
TEST_F(NvrtcTargetsTest, TheCubinAgreesWithPtxas) {
  const std::regex report(
      "Compiling entry function '(\\w+)'[^]*?(\\d+) bytes stack frame[^]*?Used (\\d+) "
      "registers([^\\n]*)");
  for (const auto& compiler : compilers_) {
    const NvrtcTable nvrtc = open_nvrtc(*compiler->chosen());
    for (const Target target : cuda_targets()) {
      if (target == Target::compute_80) continue;
      SCOPED_TRACE(std::string(name(target)) + " by " + compiler->identity());
      const auto what = request(target, -1, true);
      const auto output = run_nvrtc(nvrtc, nvrtc_source(what), what.options, false);
      ASSERT_EQ(output.code, 0) << output.log;
      const auto kernels = read_cubin(output.binary);
      ASSERT_TRUE(kernels);
      int num_reports = 0;
      for (std::sregex_iterator at(output.log.begin(), output.log.end(), report), end; at != end;
           ++at, ++num_reports) {
        const auto found = std::ranges::find(*kernels, (*at)[1].str(), &CubinKernel::name);
        ASSERT_NE(found, kernels->end()) << (*at)[1];
        EXPECT_EQ(found->local_bytes, std::stoi((*at)[2])) << found->name;
        EXPECT_EQ(found->registers, std::stoi((*at)[3])) << found->name;
        std::smatch shared;
        const std::string rest = (*at)[4];
        const bool has = std::regex_search(rest, shared, std::regex("(\\d+) bytes smem"));
        EXPECT_EQ(found->shared_bytes, has ? std::stoi(shared[1]) : 0) << found->name;
      }
      EXPECT_EQ(num_reports, 2);
    }
  }
}

TEST_F(NvrtcTargetsTest, TheSameRequestGivesTheSameBytes) {
  for (const auto& compiler : compilers_) {
    const auto what = request(Target::sm_90a, 512, false);
    EXPECT_EQ(compiler->compile(what).code, compiler->compile(what).code);
    EXPECT_NE(compiler->compile(what).code,
              compiler->compile(request(Target::sm_90a, 511, false)).code);
  }
}

TEST_F(NvrtcTargetsTest, AnErrorHasLogAndSource) {
  for (const auto& compiler : compilers_) {
    auto what = request(Target::sm_90a, 512, false);
    const std::string_view wrong = "extern \"C\" __global__ void rlk_a() { mistake(); }\n";
    what.source = std::as_bytes(std::span(wrong));
    try {
      compiler->compile(what);
      FAIL();
    } catch (const CompileError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("rlk_kernel.cu(3): error: identifier \"mistake\" is undefined"),
                text.npos)
          << text;
      EXPECT_NE(text.find("\nsource: " + folder_.path()), text.npos) << text;
    }
  }
}

// NVRTC's own cache would initialize the driver, and no fork is safe after that. ctest runs this
// once more where a libcuda.so.1 can be found.
TEST_F(NvrtcTargetsTest, ACompileLeavesTheDriverAlone) {
  for (const auto& compiler : compilers_) {
    compiler->compile(request(Target::sm_80, 512, false));
    compiler->compile(request(Target::compute_80, 512, false));
    EXPECT_EQ(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), nullptr) << compiler->identity();
  }
}

TEST_F(NvrtcTargetsTest, ThreadsCompileAtOnceOverAllLibraries) {
  std::atomic<int> num_good{0};
  std::vector<std::jthread> threads;
  for (const auto& compiler : compilers_) {
    for (const std::int64_t n : {3, 4}) {
      threads.emplace_back([&, n] {
        num_good += !compiler->compile(request(Target::sm_80, n, false)).code.empty();
      });
    }
  }
  threads.clear();
  EXPECT_EQ(num_good, 2 * static_cast<int>(compilers_.size()));
}

}  // namespace
}  // namespace rlk::jit
