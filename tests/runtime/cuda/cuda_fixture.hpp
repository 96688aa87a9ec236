// SPDX-License-Identifier: Apache-2.0
// A fresh driver over the fake libcuda for each test.
#pragma once

#include "runtime/cuda/cuda_loader.hpp"
#include "tests/support/fake_cuda.hpp"
#include "tests/support/what.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace rlk::test {

class CudaTest : public ::testing::Test {
 protected:
  CudaTest() {
    fake_ = FakeCuda{};
    fake_cuda();
    fake_.contexts()->clear();
  }

  runtime::cuda::Driver& driver() {
    if (!driver_) driver_ = std::make_unique<runtime::cuda::Driver>(RLK_FAKE_CUDA);
    return *driver_;
  }

  // A kernel of the entries named, loaded by the real loader.
  LoadedKernel load(const std::string& code, std::vector<const char*> entries) {
    LoadedKernel kernel;
    const auto loader =
        runtime::cuda::make_cuda_loader([this]() -> runtime::cuda::Driver& { return driver(); });
    // The final zero is part of PTX.
    loader->load(kernel, std::as_bytes(std::span(code.c_str(), code.size() + 1)), entries);
    return kernel;
  }

  FakeCuda& fake_ = fake_cuda();

 private:
  std::unique_ptr<runtime::cuda::Driver> driver_;
};

}  // namespace rlk::test
