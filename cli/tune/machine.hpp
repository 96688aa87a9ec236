// SPDX-License-Identifier: Apache-2.0
// What tune runs on, apart from what it was asked for, so that tests can put fakes in its place.
#pragma once

#include "cli/commands.hpp"
#include "jit/dispatcher.hpp"
#include "runtime/cuda/driver.hpp"

namespace rlk::cli {

struct TuneMachine {
  runtime::cuda::Driver* driver = nullptr;
  std::string why_no_driver;
  jit::Toolchain cuda;
};

int tune_on(const Context& context, const TuneCommand& asked, const TuneMachine& machine);

}  // namespace rlk::cli
