// SPDX-License-Identifier: Apache-2.0
// What a kernel is compiled for: a CPU psABI level or a CUDA architecture.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace rlk {

enum class Backend : std::uint8_t { cpu, cuda };

enum class Target : std::uint8_t {
  x86_64_v2,
  x86_64_v3,
  x86_64_v4,
  sm_80,
  sm_86,
  sm_89,
  sm_90a,
  sm_100,
  sm_120,
  compute_80,
};

std::string_view name(Target target);
Backend backend(Target target);
std::optional<Target> target_named(std::string_view name);
std::span<const Target> cpu_targets();  // rising: each runs on every host of a later one

// The highest level that this processor and operating system run, found without LLVM; nothing on
// a processor below x86-64-v2 or of another architecture.
std::optional<Target> host_cpu_target();

std::span<const Target> cuda_targets();

// What a device of this compute capability runs; nothing below 8.0.
std::optional<Target> cuda_target(int major, int minor);

// Shared memory that a block may use on every device of a CUDA target, static and dynamic.
int shared_limit_bytes(Target target);

}  // namespace rlk
