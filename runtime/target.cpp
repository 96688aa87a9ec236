// SPDX-License-Identifier: Apache-2.0
// Target names, and the CPU level of this host.
#include "runtime/target.hpp"

#include <iterator>

namespace rlk {
namespace {

constexpr std::string_view k_names[] = {"x86-64-v2", "x86-64-v3", "x86-64-v4", "sm_80",
                                        "sm_86",     "sm_89",     "sm_90a",    "sm_100",
                                        "sm_120",    "compute_80"};
constexpr Target k_cpu_targets[] = {Target::x86_64_v2, Target::x86_64_v3, Target::x86_64_v4};
constexpr Target k_cuda_targets[] = {Target::sm_80,     Target::sm_86,  Target::sm_89,
                                     Target::sm_90a,    Target::sm_100, Target::sm_120,
                                     Target::compute_80};

}  // namespace

std::string_view name(Target target) { return k_names[static_cast<int>(target)]; }

Backend backend(Target target) {
  return target <= Target::x86_64_v4 ? Backend::cpu : Backend::cuda;
}

std::optional<Target> target_named(std::string_view wanted) {
  for (std::size_t i = 0; i < std::size(k_names); ++i) {
    if (k_names[i] == wanted) return static_cast<Target>(i);
  }
  return std::nullopt;
}

std::span<const Target> cpu_targets() { return k_cpu_targets; }

std::optional<Target> host_cpu_target() {
  __builtin_cpu_init();
  // The builtin asks cpuid and, for the wide registers, the operating system (xgetbv).
  if (__builtin_cpu_supports("x86-64-v4")) return Target::x86_64_v4;
  if (__builtin_cpu_supports("x86-64-v3")) return Target::x86_64_v3;
  if (__builtin_cpu_supports("x86-64-v2")) return Target::x86_64_v2;
  return std::nullopt;
}

std::span<const Target> cuda_targets() { return k_cuda_targets; }

std::optional<Target> cuda_target(int major, int minor) {
  if (major < 8) return std::nullopt;
  switch (major * 10 + minor) {
    case 80:
      return Target::sm_80;
    case 86:
      return Target::sm_86;
    case 89:
      return Target::sm_89;
    case 90:
      return Target::sm_90a;
    case 100:
    case 103:
      return Target::sm_100;
    case 120:
    case 121:
      return Target::sm_120;
    default:
      return Target::compute_80;  // 8.7, 11.0 and later ones: the driver compiles the PTX
  }
}

int shared_limit_bytes(Target target) {
  switch (target) {
    case Target::sm_80:
      return 163 << 10;
    case Target::sm_90a:
    case Target::sm_100:
      return 227 << 10;
    default:
      return 99 << 10;  // compute_80 too: it runs on the smallest
  }
}

}  // namespace rlk
