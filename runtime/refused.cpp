// SPDX-License-Identifier: Apache-2.0
// Asks the system for a resource and gives it back.
#include "runtime/refused.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace rlk::runtime {

void expect_memory(std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw Refused("memory: expected {} MiB for the compiler, got: {} (see ulimit -v and -d)",
                  bytes >> 20, std::strerror(errno));
  }
  ::munmap(memory, bytes);
}

void expect_descriptor() {
  const int file = ::open("/", O_PATH | O_CLOEXEC);
  if (file < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
    throw Refused("files: expected room for one more open file, got: {} (see ulimit -n)",
                  std::strerror(errno));
  }
  if (file >= 0) ::close(file);
}

}  // namespace rlk::runtime
