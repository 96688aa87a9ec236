// SPDX-License-Identifier: Apache-2.0
// The ops of this build and the kernel sources embedded in it. Filled in by the build: each folder
// under templates/ with an op.cpp is an op and defines `const jit::Op <folder>_op`.
#pragma once

#include "runtime/target.hpp"

#include <cstddef>
#include <span>
#include <string_view>

namespace rlk::jit {
struct Op;
}

namespace rlk::templates {

// What a compiler is given: for a CPU level, kernel_cpu.cpp as bitcode; for every CUDA target,
// kernel.cuh with its headers as one text.
struct KernelSource {
  std::string_view op;
  std::string_view family;  // "x86-64-v3", or "cuda"
  std::span<const std::byte> code;
  std::string_view digest;  // SHA-256 of the code, in hex
};

std::span<const KernelSource> kernel_sources();
const KernelSource* find_source(std::string_view op, Target target);

std::span<const jit::Op* const> ops();
const jit::Op* find_op(std::string_view name);

}  // namespace rlk::templates
