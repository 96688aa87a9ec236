// SPDX-License-Identifier: Apache-2.0
// Threads with a stack of a given size, whatever `ulimit -s` or the caller's own thread has.
#pragma once

#include "runtime/function_ref.hpp"

#include <pthread.h>

#include <cstddef>
#include <functional>
#include <utility>

namespace rlk::runtime {

// For a thread that compiles: LLVM was seen to take 90 KiB, and it recurses with its input.
inline constexpr std::size_t k_compile_stack_bytes = std::size_t{8} << 20;

class Thread {
 public:
  // Throws Refused where the system gives no thread. The body must not throw. It gets no signal but
  // those of its own faults: the others stay the caller's.
  Thread(std::size_t stack_bytes, std::function<void()> body);
  Thread(Thread&& other) noexcept : thread_(std::exchange(other.thread_, 0)) {}
  Thread& operator=(Thread&& other) noexcept {
    std::swap(thread_, other.thread_);
    return *this;
  }
  ~Thread();  // waits until the body has returned

 private:
  pthread_t thread_ = 0;
};

// Calls body with a stack of k_compile_stack_bytes: here if this is a Thread that has one, else in
// a new one, while the caller waits. If there can be none, in the caller's, where that has a
// megabyte left. Throws what body throws, and Refused.
void with_compile_stack(FunctionRef<void()> body);

// Whether so many threads of the default kind can run at once, for a library that makes its own.
bool grants_threads(int count);

}  // namespace rlk::runtime
