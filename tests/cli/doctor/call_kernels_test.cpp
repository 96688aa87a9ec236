// SPDX-License-Identifier: Apache-2.0
// What doctor says of a call, over a fake card that gives what a test wants.
#include "cli/doctor/findings.hpp"
#include "jit/build_key.hpp"
#include "templates/logp/cuda_args.h"
#include "templates/logp/op.hpp"
#include "tests/cli/cli_fixture.hpp"
#include "tests/support/fake_cuda.hpp"

#include <cstring>

namespace rlk::cli {
namespace {

class CallKernelsTest : public CliTest {
 protected:
  CallKernelsTest() {
    fake_ = test::FakeCuda{};
    test::fake_cuda();
    fake_.contexts()->clear();
    fake_.argument_bytes = [](const std::string&) { return sizeof(LogpCudaArgs); };
    fake_.on_launch = [this](const test::FakeCuda::Launch& launch) {
      LogpCudaArgs args;
      std::memcpy(&args, launch.first_argument.data(), sizeof(args));
      if (launch.kernel.ends_with("_main")) args.logp[0] = logp_;
    };
    settings_.package_folder = package_;
    std::string code;
    for (const auto* entry : logp_entries(jit::Pass::fwd, Backend::cuda)) {
      code += std::string(".entry ") + entry + "( ";
    }
    code += '\0';
    const auto* bytes = reinterpret_cast<const std::byte*>(code.data());
    cache::DiskStore store({.read_write = builtin_});
    for (const auto& spec : generic_variants(Target::sm_90a)) {
      store.put({jit::build_key(spec).bytes, "{}", {bytes, bytes + code.size()}}, "nvrtc-12.9-ab");
    }
  }

  Finding call() {
    std::ostringstream unused;
    const Context context{settings_, {}, false, false, false, unused, unused};
    cache::DiskStore store({.read_only = {builtin_}});
    runtime::cuda::Driver driver(RLK_FAKE_CUDA);
    jit::NvrtcCompiler nvrtc(
        {.search = [] { return jit::NvrtcSearch(); }, .major = {}, .dump_dir = {}});
    Findings findings{{"cuda calls", State::warn, "found", {{"target", "sm_90a"}}}};
    call_kernels(context, store, {&driver, "", true, nvrtc}, findings);
    return findings[0];
  }

  test::FakeCuda& fake_ = test::fake_cuda();
  Settings settings_;
  float logp_ = -4.458339f;  // log of exp(3) / (exp(0) + ... + exp(7))
};

TEST_F(CallKernelsTest, EachCardIsCalled) {
  const Finding finding = call();
  EXPECT_EQ(finding.state, State::warn) << "as before";
  EXPECT_EQ(finding.text, "found; one was called on cuda:0; one was called on cuda:1");
}

TEST_F(CallKernelsTest, AWrongResultIsAFault) {
  logp_ = -4.4573f;
  const Finding finding = call();
  EXPECT_EQ(finding.state, State::fail);
  EXPECT_NE(finding.text.find("a call on cuda:1 fails: expected log p -4.458340, got -4.457300"),
            std::string::npos)
      << finding.text;
}

TEST_F(CallKernelsTest, WhatTheDriverRefusesIsToldWithItsCause) {
  fake_.fail_call = "cuMemAlloc";
  fake_.fail_at = 1;
  fake_.fail_code = 2;
  const Finding finding = call();
  EXPECT_EQ(finding.state, State::fail);
  EXPECT_NE(finding.text.find("a call on cuda:0 fails: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY"),
            std::string::npos)
      << finding.text;
  EXPECT_NE(finding.text.find("; one was called on cuda:1"), std::string::npos) << finding.text;
}

}  // namespace
}  // namespace rlk::cli
