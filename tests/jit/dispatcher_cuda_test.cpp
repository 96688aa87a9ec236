// SPDX-License-Identifier: Apache-2.0
// The ten stages with CUDA's toolchain beside the CPU's: routing, captures, devices, what fails.
#include "tests/jit/dispatcher_cuda_fixture.hpp"

namespace rlk::jit {
namespace {

using test::fake_call;
using test::fake_cuda_call;
using test::what;

TEST_F(DispatcherCudaTest, EachDeviceKindHasItsToolchain) {
  auto dispatcher = make();
  auto on_gpu = fake_cuda_call(7);
  dispatcher->run(on_gpu);
  EXPECT_EQ(on_gpu.launched, "linear_logp.fwd[size=7]@sm_90a");
  EXPECT_EQ(compiler_->num_compiles, 1);
  EXPECT_EQ(loader_->num_loads, 1);
  EXPECT_EQ(cpu_compiler_->num_compiles, 0);
  EXPECT_EQ(cpu_loader_->num_loads, 0);

  RLK_NEEDS_CPU_TEMPLATES();
  auto on_cpu = fake_call(7);
  dispatcher->run(on_cpu);
  EXPECT_TRUE(on_cpu.launched.starts_with("linear_logp.fwd[size=7]@x86-64-v")) << on_cpu.launched;
  EXPECT_EQ(compiler_->num_compiles, 1);
  EXPECT_EQ(cpu_compiler_->num_compiles, 1);
  EXPECT_EQ(cpu_loader_->num_loads, 1);
}

TEST_F(DispatcherCudaTest, OtherDevicesAreUnsupported) {
  auto call = fake_cuda_call(7);
  call.device.kind = Device::Kind::other;
  EXPECT_EQ(what<Unsupported>([&] { make()->run(call); }),
            "linear_logp: device: expected cpu, or cuda of compute capability 8.0 or later, got a "
            "device that is neither cpu nor cuda");
}

TEST_F(DispatcherCudaTest, DevicesOfOneTargetShareAKernel) {
  auto dispatcher = make();
  for (const int device : {0, 1, 0, 1}) dispatcher->run(fake_cuda_call(7, device));
  EXPECT_EQ(compiler_->num_compiles, 1);
  EXPECT_EQ(loader_->num_loads, 1);
  EXPECT_EQ(dispatcher->cache_info().memory_hits, 3);
  auto other = fake_cuda_call(7, 2);
  dispatcher->run(other);
  EXPECT_EQ(other.launched, "linear_logp.fwd[size=7]@sm_80");
  EXPECT_EQ(compiler_->num_compiles, 2);
}

// Else the device's first launch would load, which a capture does not survive.
TEST_F(DispatcherCudaTest, AKernelIsPreparedForTheDeviceOfItsCall) {
  make_builtin_layer(Target::sm_90a);
  make()->run(fake_cuda_call(7, 1));
  make()->run(fake_cuda_call(7, 2));
  make()->run(fake_cuda_call(7, 0));  // from the cache
  compiler_->fails = true;
  make()->run(fake_cuda_call(8, 1));  // a generic one
  EXPECT_EQ(loader_->prepared,
            (std::vector<std::pair<std::string, int>>{{"linear_logp.fwd[size=7]@sm_90a", 1},
                                                      {"linear_logp.fwd[size=7]@sm_80", 2},
                                                      {"linear_logp.fwd[size=7]@sm_90a", 0},
                                                      {"linear_logp.fwd[ generic]@sm_90a", 1}}));
}

TEST_F(DispatcherCudaTest, AFirstCallInsideACaptureIsUnsupportedAndTouchesNothing) {
  make_builtin_layer(Target::sm_90a);
  auto dispatcher = make();
  loader_->captures = true;
  auto call = fake_cuda_call(7);
  int stream = 0;
  call.stream = &stream;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(what<Unsupported>([&] { dispatcher->run(call); }),
              "linear_logp: stream: expected a kernel that is loaded, got the first call of "
              "linear_logp.fwd[size=7]@sm_90a inside a CUDA graph capture; call once before "
              "capture, or rlk.jit.preload()");
  }
  EXPECT_EQ(loader_->asked_stream, &stream);
  EXPECT_EQ(compiler_->num_compiles, 0);
  EXPECT_EQ(loader_->num_loads, 0);
  EXPECT_EQ(call.num_launches, 0);
  EXPECT_TRUE(cache_is_empty());
  EXPECT_EQ(log_.num_lines(), 0) << log_.text();

  loader_->captures = false;
  dispatcher->run(call);
  EXPECT_EQ(call.launched, "linear_logp.fwd[size=7]@sm_90a");
  EXPECT_EQ(dispatcher->cache_info().fallbacks, 0);
}

// Nothing may be loaded in a capture, so what lies in the cache does not help either.
TEST_F(DispatcherCudaTest, ACachedKernelIsNotLoadedInACapture) {
  make()->run(fake_cuda_call(7));
  loader_->captures = true;
  EXPECT_THROW(make()->run(fake_cuda_call(7)), Unsupported);
  EXPECT_EQ(loader_->num_loads, 1);
}

TEST_F(DispatcherCudaTest, ALoadedKernelLaunchesInACapture) {
  make_builtin_layer(Target::sm_90a);
  auto dispatcher = make();
  dispatcher->run(fake_cuda_call(7));
  compiler_->fails = true;
  dispatcher->run(fake_cuda_call(8));
  loader_->captures = true;
  auto specialized = fake_cuda_call(7), fallen_back = fake_cuda_call(8);
  dispatcher->run(specialized);
  dispatcher->run(fallen_back);
  EXPECT_EQ(specialized.launched, "linear_logp.fwd[size=7]@sm_90a");
  EXPECT_EQ(fallen_back.launched, "linear_logp.fwd[ generic]@sm_90a");
}

TEST_F(DispatcherCudaTest, ACpuCallAsksNoStream) {
  RLK_NEEDS_CPU_TEMPLATES();
  loader_->captures = true;
  auto call = fake_call(7);
  make()->run(call);
  EXPECT_EQ(call.num_launches, 1);
}

// The generic kernel would meet it too, and it may be gone at the next call.
TEST_F(DispatcherCudaTest, AFailureOfTheDeviceIsThrownAndNotRemembered) {
  make_builtin_layer(Target::sm_90a);
  for (std::atomic<bool>* fails : {&loader_->load_fails, &loader_->prepare_fails}) {
    const std::int64_t size = fails == &loader_->load_fails ? 7 : 8;
    auto dispatcher = make();
    auto call = fake_cuda_call(size);
    // When just compiled, and from the cache.
    for (int i = 0; i < 2; ++i) {
      *fails = true;
      EXPECT_NE(what<DriverError>([&] { dispatcher->run(call); }), "");
      EXPECT_NE(what<DriverError>([&] { dispatcher->run(call); }), "");
      *fails = false;
      EXPECT_EQ(call.num_launches, i);
      dispatcher->run(call);
      EXPECT_EQ(call.launched, Specialization({call.op, call.pass, Target::sm_90a, {size}}).text());
      EXPECT_EQ(dispatcher->cache_info().fallbacks, 0);
      EXPECT_EQ(dispatcher->cache_info().compiles, i == 0 ? 1 : 0);
      dispatcher = make();
    }
  }
  EXPECT_FALSE(log_.contains("generic")) << log_.text();
}

TEST_F(DispatcherCudaTest, CodeThatDoesNotLoadRunsTheGenericAndIsRemembered) {
  make_builtin_layer(Target::sm_90a);
  loader_->refused = "size=";
  auto dispatcher = make();
  auto call = fake_cuda_call(7);
  dispatcher->run(call);
  dispatcher->run(call);
  EXPECT_EQ(call.launched, "linear_logp.fwd[ generic]@sm_90a");
  EXPECT_EQ(compiler_->num_compiles, 1);
  EXPECT_EQ(loader_->num_loads, 2) << "the refused one and the generic one, once";
  EXPECT_EQ(dispatcher->cache_info().fallbacks, 2);
  EXPECT_EQ(log_.num_lines(), 1) << log_.text();
  EXPECT_TRUE(log_.contains("the generic kernel runs instead")) << log_.text();
  EXPECT_NE(dispatcher->explain(call).reason.find("no code for this device"), std::string::npos);
}

TEST_F(DispatcherCudaTest, CodeThatDoesNotLoadWithoutAGenericIsUnsupported) {
  loader_->refused = "linear_logp";
  auto dispatcher = make();
  for (int i = 0; i < 2; ++i) {
    const auto text = what<Unsupported>([&] { dispatcher->run(fake_cuda_call(7)); });
    EXPECT_NE(text.find("linear_logp: kernel: expected one for"), text.npos) << text;
    EXPECT_NE(text.find("@sm_90a"), text.npos) << text;
    EXPECT_NE(text.find("no code for this device"), text.npos) << text;
  }
}

TEST_F(DispatcherCudaTest, WithoutNvrtcTheGenericRunsWithOneWarning) {
  make_builtin_layer(Target::sm_90a);
  make_builtin_layer(Target::sm_80);
  compiler_->missing = "no NVRTC found: install nvidia-cuda-nvrtc-cu12 or set RLK_NVRTC";
  auto dispatcher = make();
  for (const int device : {0, 1, 2}) {
    for (const int size : {7, 8, 9}) dispatcher->run(fake_cuda_call(size, device));
  }
  EXPECT_EQ(dispatcher->cache_info().fallbacks, 9);
  EXPECT_EQ(compiler_->num_compiles, 0);
  EXPECT_EQ(log_.num_lines(), 1) << log_.text();
  EXPECT_TRUE(log_.contains("install nvidia-cuda-nvrtc-cu12")) << log_.text();
  RLK_NEEDS_CPU_TEMPLATES();
  // The CPU's compiler is another matter.
  dispatcher->run(fake_call(7));
  EXPECT_EQ(cpu_compiler_->num_compiles, 1);
}

TEST_F(DispatcherCudaTest, WithoutNvrtcAWarmCacheIsEnough) {
  make()->run(fake_cuda_call(7));
  compiler_->missing = "no NVRTC found";
  compiler_->id = "nvrtc-none";
  auto call = fake_cuda_call(7);
  auto dispatcher = make();
  dispatcher->run(call);
  EXPECT_EQ(call.launched, "linear_logp.fwd[size=7]@sm_90a");
  EXPECT_EQ(dispatcher->cache_info().disk_hits, 1);
  EXPECT_EQ(log_.num_lines(), 0) << log_.text();
}

TEST_F(DispatcherCudaTest, PolicyOffNeverCompiles) {
  make_builtin_layer(Target::sm_90a);
  auto dispatcher = make(config(Policy::off));
  auto call = fake_cuda_call(7);
  dispatcher->run(call);
  EXPECT_EQ(call.launched, "linear_logp.fwd[ generic]@sm_90a");
  EXPECT_EQ(compiler_->num_compiles, 0);
  EXPECT_EQ(dispatcher->cache_info().fallbacks, 1);
  const auto text = what<Unsupported>([&] { dispatcher->run(fake_cuda_call(7, 2)); });
  EXPECT_NE(text.find("@sm_80"), text.npos) << text;
  EXPECT_NE(text.find("RLK_JIT=off"), text.npos) << text;
}

TEST_F(DispatcherCudaTest, AnArchForcesEveryDevicesTarget) {
  Config forced = config();
  forced.settings.arch.cuda = Target::compute_80;
  auto dispatcher = make(forced);
  for (const int device : {0, 2}) {
    auto call = fake_cuda_call(7, device);
    dispatcher->run(call);
    EXPECT_EQ(call.launched, "linear_logp.fwd[size=7]@compute_80");
  }
  dispatcher->configure(config());
  auto call = fake_cuda_call(7);
  dispatcher->run(call);
  EXPECT_EQ(call.launched, "linear_logp.fwd[size=7]@sm_90a");

  RLK_NEEDS_CPU_TEMPLATES();
  dispatcher->configure(forced);
  auto on_cpu = fake_call(7);
  dispatcher->run(on_cpu);
  EXPECT_NE(on_cpu.launched.find("@x86-64-v"), std::string::npos) << "it binds CUDA alone";
}

TEST_F(DispatcherCudaTest, SettingsReachTheLaunch) {
  Config config = this->config();
  config.settings.workspace_mib = 3;
  config.settings.validate_sync = true;
  auto dispatcher = make(config);
  auto call = fake_cuda_call(7);
  dispatcher->run(call);
  EXPECT_EQ(call.settings.workspace_bytes, 3 << 20);
  EXPECT_TRUE(call.settings.validate_sync);
  config.settings.workspace_mib = 1 << 20;
  config.settings.validate_sync = false;
  dispatcher->configure(config);
  dispatcher->run(call);
  EXPECT_EQ(call.settings.workspace_bytes, std::int64_t{1} << 40);
  EXPECT_FALSE(call.settings.validate_sync);
}

TEST_F(DispatcherCudaTest, ExplainLoadsNothing) {
  loader_->captures = true;  // it may be asked at any time
  const auto explanation = make()->explain(fake_cuda_call(7));
  EXPECT_EQ(explanation.kernel, "linear_logp.fwd[size=7]@sm_90a");
  EXPECT_EQ(explanation.source, "compile");
  EXPECT_EQ(loader_->num_loads, 0);
  EXPECT_TRUE(cache_is_empty());
}

// A cubin of a newer toolkit than the driver's, in an image without a compiler.
TEST_F(DispatcherCudaTest, WhereTheNewestEntryDoesNotLoadTheNextOneDoes) {
  compiler_->id = "nvrtc-12.9-a";
  make()->run(fake_cuda_call(7));
  compiler_->id = "nvrtc-13.0-b";
  compiler_->emit = [](const CompileRequest&) { return std::string("newer"); };
  loader_->accepts = "newer";
  make()->run(fake_cuda_call(7));
  loader_->accepts.clear();
  auto dispatcher = make(config(Policy::off));
  const auto call = fake_cuda_call(7);
  dispatcher->run(call);
  EXPECT_EQ(call.launched, "linear_logp.fwd[size=7]@sm_90a");
  EXPECT_EQ(dispatcher->cache_info().fallbacks, 0);
  EXPECT_EQ(log_.num_lines(), 1) << log_.text();
  EXPECT_TRUE(log_.contains("made by nvrtc-13.0-b, is passed over: it does not load"));
}

TEST_F(DispatcherCudaTest, WhereTheGenericCubinDoesNotLoadThePtxDoes) {
  make_builtin_layer(Target::sm_90a, "newer");
  make_builtin_layer(Target::compute_80);
  auto dispatcher = make(config(Policy::off));
  const auto call = fake_cuda_call(7);
  dispatcher->run(call);
  EXPECT_EQ(call.launched, "linear_logp.fwd[ generic]@compute_80");
  EXPECT_EQ(dispatcher->cache_info().fallbacks, 1);
}

// Else each process would find the entry, refuse it, and compile it again.
TEST_F(DispatcherCudaTest, WhatDoesNotLoadIsNotStored) {
  make_builtin_layer(Target::sm_90a);
  loader_->refused = "size=7";
  auto call = fake_cuda_call(7);
  make()->run(call);
  EXPECT_EQ(call.launched, "linear_logp.fwd[ generic]@sm_90a");
  EXPECT_TRUE(log_.contains("no code for this device"));
  EXPECT_EQ(make()->explain(fake_cuda_call(7)).source, "compile");
}

TEST_F(DispatcherCudaTest, KernelsStayLoaded) {
  auto dispatcher = make();
  for (int round = 0; round < 2; ++round) {
    for (int size = 0; size < 300; ++size) dispatcher->run(fake_cuda_call(size));
  }
  EXPECT_EQ(loader_->num_loads, 300);
  EXPECT_EQ(loader_->num_loaded, 300);
  EXPECT_EQ(dispatcher->cache_info().loaded, 300);
  EXPECT_EQ(dispatcher->cache_info().memory_hits, 300);
}

}  // namespace
}  // namespace rlk::jit
