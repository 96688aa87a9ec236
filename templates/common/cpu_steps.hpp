// SPDX-License-Identifier: Apache-2.0
// How host code runs the steps of CPU kernels.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rlk::templates {

// The caller's thread may flush subnormals to zero or round otherwise, and then its rows would
// differ from those of the pool's threads.
class DefaultFloatMode {
 public:
#if defined(__x86_64__)
  DefaultFloatMode() : before_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~DefaultFloatMode() { _mm_setcsr(before_); }
#else
  DefaultFloatMode() = default;
#endif
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

#if defined(__x86_64__)
 private:
  unsigned before_;
#endif
};

}  // namespace rlk::templates
