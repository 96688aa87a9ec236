// SPDX-License-Identifier: Apache-2.0
// How host code of the ops deals out workspace.
#pragma once

#include "templates/common/types.hpp"

#include <cstddef>
#include <cstdint>

namespace rlk {

using Int64 = std::int64_t;

constexpr Int64 ceil_div(Int64 a, Int64 b) { return (a + b - 1) / b; }
constexpr Int64 round_up(Int64 a, Int64 unit) { return ceil_div(a, unit) * unit; }

// Deals out a workspace in order. With no memory behind it, only counts the bytes.
class Arena {
 public:
  explicit Arena(void* memory) : memory_(static_cast<std::byte*>(memory)) {}

  template <class T>
  T* take(Int64 count) {
    return static_cast<T*>(take_bytes(count * static_cast<Int64>(sizeof(T))));
  }
  void* take_bytes(Int64 bytes) {
    void* const at = memory_ == nullptr ? nullptr : memory_ + bytes_;
    bytes_ += static_cast<std::size_t>(round_up(bytes, 256));
    return at;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  std::size_t bytes_ = 0;
};

}  // namespace rlk
