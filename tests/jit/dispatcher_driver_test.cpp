// SPDX-License-Identifier: Apache-2.0
// The dispatcher with the real CUDA loader over fake drivers of several versions.
#include "runtime/cuda/cuda_loader.hpp"
#include "tests/jit/dispatcher_cuda_fixture.hpp"
#include "tests/support/fake_cuda.hpp"

namespace rlk::jit {
namespace {

using test::fake_cuda_call;
using test::what;

// The real loader over a fake driver, and code that is text.
class DispatcherDriverTest : public DispatcherCudaTest {
 protected:
  DispatcherDriverTest() {
    fake_ = test::FakeCuda{};
    test::fake_cuda();
    compiler_->emit = [this](const CompileRequest&) {
      return ".version " + ptx_ + "\n.entry rlk_fake()" + '\0';
    };
  }
  std::unique_ptr<Dispatcher> make_over_driver(int version) {
    fake_.version = version;
    driver_ = std::make_unique<runtime::cuda::Driver>(RLK_FAKE_CUDA);
    auto loader = runtime::cuda::make_cuda_loader([this]() -> auto& { return *driver_; });
    return std::make_unique<Dispatcher>(config(), Toolchain{cpu_compiler_, cpu_loader_},
                                        Toolchain{compiler_, std::move(loader)});
  }

  test::FakeCuda& fake_ = test::fake_cuda();
  std::string ptx_ = "7.4";
  std::unique_ptr<runtime::cuda::Driver> driver_;
};

TEST_F(DispatcherDriverTest, EveryDriverFrom12OnTakesOurPtx) {
  for (const int version : {12000, 12020, 12080, 13000}) {
    auto call = fake_cuda_call(version);
    make_over_driver(version)->run(call);
    EXPECT_EQ(call.num_launches, 1) << version;
  }
  EXPECT_EQ(log_.num_lines(), 0) << log_.text();
}

TEST_F(DispatcherDriverTest, AnOldDriverRefusesNewerCodeAndRunsTheGeneric) {
  make_builtin_layer(Target::sm_90a, std::string(".version 7.4\n.entry rlk_fake()") + '\0');
  ptx_ = "8.7";  // CUDA 12.8's
  for (const auto& [version, is_old] :
       {std::pair{12020, true}, std::pair{12080, false}, std::pair{13000, false}}) {
    log_.clear();
    auto call = fake_cuda_call(version);
    auto dispatcher = make_over_driver(version);
    dispatcher->run(call);
    dispatcher->run(call);
    EXPECT_EQ(call.launched.find("generic") != std::string::npos, is_old) << call.launched;
    EXPECT_EQ(log_.num_lines(), is_old ? 1 : 0) << log_.text();
    EXPECT_EQ(log_.contains("of CUDA 12.2, refuses it"), is_old) << log_.text();
  }
}

TEST_F(DispatcherDriverTest, ADeviceThatIsTooOldIsUnsupported) {
  fake_.capabilities = {{7, 5}, {9, 0}};
  auto dispatcher = make_over_driver(12080);
  EXPECT_EQ(what<Unsupported>([&] { dispatcher->run(fake_cuda_call(7)); }),
            "device: expected compute capability 8.0 or later, got 7.5 (Fake H100 number 0)");
  dispatcher->run(fake_cuda_call(7, 1));
}

TEST_F(DispatcherDriverTest, ACaptureIsSeenOnTheCallsDeviceAndNothingIsLoaded) {
  auto dispatcher = make_over_driver(12080);
  fake_.capture = runtime::cuda::CaptureStatus::active;
  EXPECT_THROW(dispatcher->run(fake_cuda_call(7, 1)), Unsupported);
  EXPECT_EQ(fake_.num_calls["cuLibraryLoadData"], 0);
  EXPECT_TRUE(fake_.contexts()->empty());
  fake_.capture = runtime::cuda::CaptureStatus::none;
  dispatcher->run(fake_cuda_call(7, 1));
  EXPECT_EQ(fake_.attributes.size(), 1u);
  EXPECT_EQ(fake_.attributes[0].device, 1);
}

TEST_F(DispatcherDriverTest, OutOfMemoryIsTheDriversErrorAndPasses) {
  make_builtin_layer(Target::sm_90a);
  auto dispatcher = make_over_driver(12080);
  for (const char* call : {"cuLibraryLoadData", "cuKernelGetFunction"}) {
    fake_.fail_call = call;
    fake_.fail_at = 1;
    fake_.fail_code = runtime::cuda::result::out_of_memory;
    const auto text = what<DriverError>([&] { dispatcher->run(fake_cuda_call(7)); });
    EXPECT_NE(text.find("CUDA_ERROR_OUT_OF_MEMORY (2)"), text.npos) << text;
    EXPECT_EQ(fake_.num_loaded, 0) << "what was loaded is unloaded";
  }
  dispatcher->run(fake_cuda_call(7));
  EXPECT_EQ(fake_.num_loaded, 1);
  EXPECT_EQ(log_.num_lines(), 0) << log_.text();
}

}  // namespace
}  // namespace rlk::jit
