// SPDX-License-Identifier: Apache-2.0
// Children take job numbers from shared memory and write what came of them into one pipe.
#include "jit/warm/fork_pool.hpp"

#include "cache/files/file_system.hpp"
#include "runtime/error.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <set>
#include <vector>

namespace rlk::jit {

struct ForkPool::Shared {
  std::atomic<std::size_t> next{0};
  std::atomic<bool> stopped{false};
};

namespace {

constexpr int k_poll_ms = 100;

// One line a message, written at once: so lines of several children do not mix.
void send(int pipe, std::string line) {
  std::ranges::replace(line, '\n', ' ');
  line.resize(std::min<std::size_t>(line.size(), PIPE_BUF - 1));
  line += '\n';
  while (::write(pipe, line.data(), line.size()) < 0 && errno == EINTR) {
  }
}

struct Pipe {
  int read_end = -1, write_end = -1;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(fmt::format("pipe: {}", std::strerror(errno)));
    read_end = cache::above_standard(ends[0]).value;
    write_end = cache::above_standard(ends[1]).value;
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close_write_end();
    ::close(read_end);
  }
  void close_write_end() {
    if (write_end >= 0) ::close(write_end);
    write_end = -1;
  }
};

}  // namespace

ForkPool::ForkPool() {
  void* memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Error(fmt::format("mmap: {}", std::strerror(errno)));
  shared_ = new (memory) Shared;
}

ForkPool::~ForkPool() { ::munmap(shared_, sizeof(Shared)); }

bool ForkPool::is_stopped() const { return shared_->stopped; }

void ForkPool::run(std::size_t count, int num_processes,
                   runtime::FunctionRef<std::string(std::size_t)> job,
                   runtime::FunctionRef<void(std::size_t, const std::optional<std::string>&)> tell,
                   runtime::FunctionRef<bool()> should_stop) {
  if (count == 0) return;
  shared_->next = 0;
  shared_->stopped = false;
  Pipe pipe;
  const pid_t parent = ::getpid();
  const auto work = [&] {
    // The terminal's Ctrl-C reaches all, as does what ends a batch job; the parent decides what it
    // means.
    std::signal(SIGINT, SIG_IGN);
    std::signal(SIGTERM, SIG_IGN);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) return;
    for (std::size_t i = shared_->next++; i < count && !is_stopped(); i = shared_->next++) {
      send(pipe.write_end, fmt::format("begin {}", i));
      send(pipe.write_end, fmt::format("end {} {}", i, job(i)));
    }
  };
  std::vector<pid_t> children;
  const auto num_children = std::min(count, static_cast<std::size_t>(std::max(num_processes, 1)));
  for (std::size_t i = 0; i < num_children; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      work();
      ::_exit(0);  // what is to be written at exit is the parent's
    }
    if (child > 0) children.push_back(child);
  }
  pipe.close_write_end();
  if (children.empty()) throw Error(fmt::format("fork: {}", std::strerror(errno)));

  std::set<std::size_t> begun;
  std::string text;
  while (true) {
    if (should_stop()) shared_->stopped = true;
    pollfd waited{.fd = pipe.read_end, .events = POLLIN, .revents = 0};
    if (::poll(&waited, 1, k_poll_ms) <= 0) continue;
    char bytes[PIPE_BUF];
    const ssize_t num_read = ::read(pipe.read_end, bytes, sizeof(bytes));
    if (num_read < 0 && errno == EINTR) continue;
    if (num_read <= 0) break;  // every child has ended
    text.append(bytes, static_cast<std::size_t>(num_read));
    for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n')) {
      const std::string line = text.substr(0, end);
      text.erase(0, end + 1);
      const std::size_t number_at = line.find(' ') + 1;
      const std::size_t number = std::strtoull(line.c_str() + number_at, nullptr, 10);
      if (line.starts_with("begin ")) {
        begun.insert(number);
      } else if (begun.erase(number) != 0) {
        const std::size_t text_at = line.find(' ', number_at);
        tell(number, line.substr(std::min(text_at, line.size() - 1) + 1));
      }
    }
  }
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
  for (const std::size_t number : begun) tell(number, std::nullopt);
}

}  // namespace rlk::jit
