// SPDX-License-Identifier: Apache-2.0
// What the operating system did not grant: a thread, memory, a file descriptor, executable pages.
#pragma once

#include "runtime/error.hpp"

#include <cstddef>
#include <new>

namespace rlk {

// It may be granted at the next call, so nobody remembers it as he does a kernel that does not
// compile or load.
class Refused : public LoadError {
 public:
  using LoadError::LoadError;
};

// The same of any exception: where memory is short, whatever asked first has thrown.
inline bool is_refusal(const std::exception& error) {
  return dynamic_cast<const Refused*>(&error) != nullptr ||
         dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
}

namespace runtime {

// Each throws Refused where the system would not grant it now. Asked before a library is used that
// cannot go on without it, or says only that it failed.
void expect_memory(std::size_t bytes);
void expect_descriptor();

}  // namespace runtime
}  // namespace rlk
