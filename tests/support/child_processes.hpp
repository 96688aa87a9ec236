// SPDX-License-Identifier: Apache-2.0
// Forked children for tests of what several processes do at once, and memory that they share.
#pragma once

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

namespace rlk::test {

// One value in memory that children share with the parent; for atomics.
template <class T>
class SharedMemory {
 public:
  SharedMemory() {
    void* memory =
        ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("mmap");
    value_ = new (memory) T;
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory() { ::munmap(value_, sizeof(T)); }

  T& operator*() const { return *value_; }
  T* operator->() const { return value_; }

 private:
  T* value_ = nullptr;
};

// A child that runs `body` and exits with 0 if that is true. It never returns to the test.
inline pid_t start_child(const std::function<bool()>& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("fork");
  if (child > 0) return child;
  bool passed = false;
  try {
    passed = body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "child: %s\n", error.what());
  }
  ::_exit(passed ? 0 : 1);
}

// "passed", "exit 1", "signal 9".
inline std::string wait_for_child(pid_t child) {
  int status = 0;
  if (::waitpid(child, &status, 0) != child) return "not waited for";
  if (WIFSIGNALED(status)) return "signal " + std::to_string(WTERMSIG(status));
  const int code = WEXITSTATUS(status);
  return code == 0 ? "passed" : "exit " + std::to_string(code);
}

inline std::string kill_child(pid_t child) {
  ::kill(child, SIGKILL);
  return wait_for_child(child);
}

}  // namespace rlk::test
