// SPDX-License-Identifier: Apache-2.0
// The ops of this build and the kernel sources embedded in it. Filled in by the build: each folder
// under templates/ with an op.cpp is an op and defines `const jit::Op <folder>_op`.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace rlk::jit {
struct Op;
}

namespace rlk::templates {

// A kernel_cpu.cpp, compiled to bitcode for one level.
struct CpuSource {
  std::string_view op;
  std::string_view level;
  std::span<const std::byte> bitcode;
  std::string_view digest;  // SHA-256 of the bitcode, in hex
};

std::span<const CpuSource> cpu_sources();
const CpuSource* find_cpu_source(std::string_view op, std::string_view level);

std::span<const jit::Op* const> ops();
const jit::Op* find_op(std::string_view name);

}  // namespace rlk::templates
