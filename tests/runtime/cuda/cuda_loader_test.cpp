// SPDX-License-Identifier: Apache-2.0
// Loading, what refuses to load, and unloading.
#include "runtime/cuda/cuda_loader.hpp"

#include "tests/runtime/cuda/cuda_fixture.hpp"

#include <algorithm>

namespace rlk::runtime::cuda {
namespace {

using test::what;

const std::string k_code = ".entry rlk_a( .entry rlk_b(";

class CudaLoaderTest : public test::CudaTest {};

TEST_F(CudaLoaderTest, EntriesComeInOrderAndTheImageUnloads) {
  {
    const LoadedKernel kernel = load(k_code, {"rlk_b", "rlk_a"});
    EXPECT_EQ(entry(kernel, 0).name(), "rlk_b");
    EXPECT_EQ(entry(kernel, 1).name(), "rlk_a");
    EXPECT_EQ(kernel.entries[2], nullptr);
    EXPECT_EQ(fake_.num_loaded, 1);
  }
  EXPECT_EQ(fake_.num_loaded, 0);
}

TEST_F(CudaLoaderTest, MakingALoaderOpensNothing) {
  int num_asked = 0;
  const auto loader = make_cuda_loader([&]() -> Driver& {
    ++num_asked;
    throw LoadError("no driver");
  });
  EXPECT_EQ(num_asked, 0);
  LoadedKernel kernel;
  EXPECT_THROW(loader->load(kernel, std::as_bytes(std::span("x")), {}), LoadError);
  EXPECT_EQ(num_asked, 1);
}

TEST_F(CudaLoaderTest, LoadingAndUnloadingAreRelaxed) {
  load(k_code, {"rlk_a"});
  ASSERT_EQ(fake_.load_modes.size(), 2u);
  for (const auto mode : fake_.load_modes) EXPECT_EQ(mode, CaptureMode::relaxed);
  CaptureMode mode = CaptureMode::global;
  driver().table().exchange_capture_mode(&mode);
  EXPECT_EQ(mode, CaptureMode::global);
}

TEST_F(CudaLoaderTest, AMissingEntryIsALoadErrorAndLeavesNothing) {
  EXPECT_EQ(what<LoadError>([&] { load(k_code, {"rlk_a", "rlk_c"}); }),
            "CUDA code: expected an entry rlk_c, found none");
  EXPECT_EQ(fake_.num_loaded, 0);
}

TEST_F(CudaLoaderTest, RefusedCodeIsALoadErrorWithTheDriversLog) {
  fake_.version = 12020;
  fake_.fail_call = "cuLibraryLoadData";
  fake_.fail_code = result::unsupported_ptx_version;
  fake_.load_log = "ptxas fatal: Unsupported .version 8.8";
  EXPECT_EQ(what<LoadError>([&] { load(k_code, {}); }),
            "CUDA code: the driver, of CUDA 12.2, refuses it: CUDA_ERROR_UNSUPPORTED_PTX_VERSION "
            "(222): ptxas fatal: Unsupported .version 8.8");
}

// Not the code's fault: rebuilding it would not help.
TEST_F(CudaLoaderTest, OtherFailuresAreDriverErrors) {
  for (const char* call :
       {"cuLibraryLoadData", "cuLibraryGetKernel", "cuInit", "cuThreadExchangeStreamCaptureMode"}) {
    fake_.fail_call = call;
    fake_.fail_at = 1;
    fake_.fail_code = result::out_of_memory;
    Driver fresh(RLK_FAKE_CUDA);
    const auto loader = make_cuda_loader([&]() -> Driver& { return fresh; });
    LoadedKernel kernel;
    const char* names[] = {"rlk_a"};
    const auto text = what<CallError>([&] {
      loader->load(kernel, std::as_bytes(std::span(k_code.c_str(), k_code.size() + 1)), names);
    });
    EXPECT_TRUE(text.starts_with(std::string(call) + ": CUDA_ERROR_OUT_OF_MEMORY (2)")) << text;
    EXPECT_EQ(fake_.num_loaded, 0) << call;
  }
}

// The driver is given no size and reads on.
TEST_F(CudaLoaderTest, BytesWithoutAnEndNeverReachTheDriver) {
  LoadedKernel kernel;
  const auto loader = make_cuda_loader([&]() -> Driver& { return driver(); });
  const auto refuse = [&](std::string_view bytes) {
    EXPECT_THROW(loader->load(kernel, std::as_bytes(std::span(bytes)), {}), LoadError) << bytes;
  };
  refuse("");
  refuse(".version 7.4");
  refuse("\177ELF");
  std::string elf(64, '\0');
  elf.replace(0, 4, "\177ELF");
  elf[0x28] = 64;  // section headers begin at the end of the file
  elf[0x3a] = 64;  // bytes of one
  elf[0x3c] = 1;   // how many
  refuse(elf);
  EXPECT_EQ(fake_.num_calls["cuLibraryLoadData"], 0);
  elf.resize(128);
  loader->load(kernel, std::as_bytes(std::span(elf)), {});
  EXPECT_EQ(fake_.num_calls["cuLibraryLoadData"], 1);
}

}  // namespace
}  // namespace rlk::runtime::cuda
