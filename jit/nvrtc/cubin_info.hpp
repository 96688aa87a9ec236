// SPDX-License-Identifier: Apache-2.0
// What a cubin says of its kernels: registers, shared and local memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace rlk::jit {

struct CubinKernel {
  std::string name;
  int registers = -1;             // a thread; -1 where the cubin does not say
  std::int64_t shared_bytes = 0;  // static, of a block, without what the system reserves
  std::int64_t local_bytes = -1;  // stack frame of a thread
  std::int64_t code_bytes = 0;
};

// The kernels in the order of their code. Safe on any bytes: nothing on those that are no cubin or
// are damaged where it looks.
std::optional<std::vector<CubinKernel>> read_cubin(std::span<const std::byte> cubin);

}  // namespace rlk::jit
