// SPDX-License-Identifier: Apache-2.0
// Makes and joins POSIX threads: std::thread has the stack of `ulimit -s`.
#include "runtime/thread.hpp"

#include "runtime/refused.hpp"

#include <csignal>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

namespace rlk::runtime {
namespace {

thread_local std::size_t own_stack_bytes = 0;  // of a Thread

struct Start {
  std::size_t stack_bytes;
  std::function<void()> body;
};

void* begin(void* argument) {
  const std::unique_ptr<Start> start(static_cast<Start*>(argument));
  own_stack_bytes = start->stack_bytes;
  start->body();
  return nullptr;
}

// Of the calling thread; 0 where nobody knows.
std::size_t stack_bytes_left() {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return 0;
  void* lowest = nullptr;
  std::size_t bytes = 0;
  pthread_attr_getstack(&attributes, &lowest, &bytes);
  pthread_attr_destroy(&attributes);
  return reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0)) -
         reinterpret_cast<std::uintptr_t>(lowest);
}

}  // namespace

Thread::Thread(std::size_t stack_bytes, std::function<void()> body) {
  auto start = std::make_unique<Start>(stack_bytes, std::move(body));
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, stack_bytes);
  // A thread is born with the mask of its maker.
  sigset_t all, before;
  sigfillset(&all);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&all, fault);  // its own
  pthread_sigmask(SIG_BLOCK, &all, &before);
  const int error = pthread_create(&thread_, &attributes, begin, start.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  if (error != 0) {
    thread_ = 0;
    throw Refused("threads: expected one more, got: {} (see ulimit -u and -v, and pids.max)",
                  std::strerror(error));
  }
  std::ignore = start.release();  // the thread's
}

Thread::~Thread() {
  if (thread_ != 0) pthread_join(thread_, nullptr);
}

void with_compile_stack(FunctionRef<void()> body) {
  constexpr std::size_t k_least_bytes = std::size_t{1} << 20;
  if (own_stack_bytes >= k_compile_stack_bytes) return body();
  std::exception_ptr thrown;
  try {
    const Thread thread(k_compile_stack_bytes, [&] {
      try {
        body();
      } catch (...) {
        thrown = std::current_exception();
      }
    });
  } catch (const Refused& refused) {
    const std::size_t left = stack_bytes_left();
    if (left < k_least_bytes) {
      throw Refused("stack: expected {} KiB for the compiler, got {} KiB in this thread; {}",
                    k_least_bytes >> 10, left >> 10, refused.what());
    }
    return body();
  }
  if (thrown) std::rethrow_exception(thrown);
}

bool grants_threads(int count) {
  std::mutex gate;
  std::vector<std::thread> threads;
  bool granted = true;
  {
    const std::lock_guard closed(gate);
    try {
      for (int i = 0; i < count; ++i) {
        threads.emplace_back([&] { const std::lock_guard passed(gate); });
      }
    } catch (const std::exception&) {
      granted = false;
    }
  }
  for (std::thread& thread : threads) thread.join();
  return granted;
}

}  // namespace rlk::runtime
