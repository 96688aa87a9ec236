// SPDX-License-Identifier: Apache-2.0
// Stands in for the one function that LLVM takes from a C library newer than 2.34 (arc4random, of
// 2.36), so that the wheel runs on RHEL 9 and Ubuntu 22.04. LLVM names temporary files with it.

#include <unistd.h>

#include <cstdint>

extern "C" std::uint32_t arc4random() noexcept {
  std::uint32_t value = 0;
  // Cannot fail for so few bytes where the kernel has getrandom (3.17).
  static_cast<void>(::getentropy(&value, sizeof value));
  return value;
}
