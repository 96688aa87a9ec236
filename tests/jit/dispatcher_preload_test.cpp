// SPDX-License-Identifier: Apache-2.0
// Loading ahead: what is there is loaded, what is not is named, nothing is compiled.
#include "tests/jit/dispatcher_cuda_fixture.hpp"

#include <fstream>

namespace rlk::jit {
namespace {

using test::fake_cuda_call;
using Names = std::vector<std::string>;

constexpr Device k_cuda{Device::Kind::cuda, 0};

Specialization kernel(std::int64_t size, Target target = Target::sm_90a) {
  return {&test::fake_op(), Pass::fwd, target, {size}};
}

class DispatcherPreloadTest : public DispatcherCudaTest {
 protected:
  DispatcherPreloadTest() {
    for (const int size : {7, 8}) make()->run(fake_cuda_call(size));
    compiler_->num_compiles = 0;
    loader_->num_loads = 0;
    loader_->prepared.clear();
  }
};

TEST_F(DispatcherPreloadTest, WhatIsInTheCacheIsLoadedTheRestIsNamed) {
  auto dispatcher = make();
  const auto found = dispatcher->preload({kernel(7), kernel(9), kernel(8)}, k_cuda);
  EXPECT_EQ(found.loaded, (Names{kernel(7).text(), kernel(8).text()}));
  EXPECT_EQ(found.missing, Names{kernel(9).text()});
  EXPECT_EQ(compiler_->num_compiles, 0);
  EXPECT_EQ(loader_->num_loads, 2);
  // A miss is not remembered: a call compiles.
  dispatcher->run(fake_cuda_call(9));
  EXPECT_EQ(compiler_->num_compiles, 1);
  EXPECT_EQ(dispatcher->preload({kernel(9)}, k_cuda).missing, Names());
}

TEST_F(DispatcherPreloadTest, AfterItCallsWorkUnderOffAndInACapture) {
  auto dispatcher = make(config(Policy::off));
  dispatcher->preload({kernel(7)}, k_cuda);
  loader_->captures = true;
  const auto call = fake_cuda_call(7);
  dispatcher->run(call);
  EXPECT_EQ(call.launched, kernel(7).text());
  EXPECT_EQ(dispatcher->cache_info().fallbacks, 0);
}

TEST_F(DispatcherPreloadTest, AKernelIsPreparedForEachDeviceThatAsks) {
  auto dispatcher = make();
  dispatcher->preload({kernel(7)}, k_cuda);
  dispatcher->preload({kernel(7)}, {Device::Kind::cuda, 1});
  EXPECT_EQ(loader_->num_loads, 1);
  EXPECT_EQ(loader_->prepared, (std::vector<std::pair<std::string, int>>{{kernel(7).text(), 0},
                                                                         {kernel(7).text(), 1}}));
  // Device 2 is of another target.
  EXPECT_EQ(dispatcher->preload({kernel(7)}, {Device::Kind::cuda, 2}).missing,
            Names{kernel(7).text()});
}

TEST_F(DispatcherPreloadTest, ItTakesTheGenericKernelsPlace) {
  make_builtin_layer(Target::sm_90a);
  auto dispatcher = make(config(Policy::off));
  const auto call = fake_cuda_call(9);
  dispatcher->run(call);
  EXPECT_EQ(call.launched, "linear_logp.fwd[ generic]@sm_90a");
  EXPECT_EQ(dispatcher->preload({kernel(9)}, k_cuda).loaded, Names());
  make()->run(fake_cuda_call(9));  // somebody compiles it
  EXPECT_EQ(dispatcher->preload({kernel(9)}, k_cuda).missing, Names());
  dispatcher->run(call);
  EXPECT_EQ(call.launched, kernel(9).text());
}

TEST_F(DispatcherPreloadTest, WhatDoesNotLoadIsMissing) {
  loader_->refused = "size=7";
  EXPECT_EQ(make()->preload({kernel(7), kernel(8)}, k_cuda).missing, Names{kernel(7).text()});
}

TEST_F(DispatcherPreloadTest, FirstCallsAreTraced) {
  Config traced = config(Policy::off);
  traced.settings.trace_file = folder_ / "trace";
  make_builtin_layer(Target::sm_90a);
  auto dispatcher = make(traced);
  for (const int size : {7, 5, 7}) dispatcher->run(fake_cuda_call(size));
  std::ifstream in(folder_ / "trace");
  const std::string text(std::istreambuf_iterator<char>(in), {});
  EXPECT_EQ(text, kernel(7).text() + '\n' + kernel(5).text() + '\n');
}

}  // namespace
}  // namespace rlk::jit
