// SPDX-License-Identifier: Apache-2.0
// Finds a tool, writes its input, spawns it and takes what it prints.
#include "cli/run_tool.hpp"

#include "cache/files/file_system.hpp"
#include "cache/files/new_file.hpp"
#include "cache/files/open_file.hpp"
#include "runtime/error.hpp"
#include "runtime/settings.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>

namespace rlk::cli {
namespace {

namespace fs = std::filesystem;

void expect_no_error(const std::string& what, int error) {
  if (error != 0) throw LoadError("{}: {}", what, cache::error_text(error));
}

std::string temp_path() {
  std::error_code error;
  const fs::path folder = fs::temp_directory_path(error);
  expect_no_error("TMPDIR", error.value());
  return cache::name_beside((folder / "rlk-payload").string());
}

class PrivateFile {
 public:
  explicit PrivateFile(std::span<const std::byte> bytes) : path_(temp_path()) {
    cache::OpenFile file(cache::posix_file_system(), path_, O_WRONLY | O_CREAT | O_EXCL, 0600);
    expect_no_error(path_, file.error());
    const int error = file.write(bytes.data(), bytes.size());
    if (error != 0) ::unlink(path_.c_str());
    expect_no_error(path_, error);
  }
  PrivateFile(const PrivateFile&) = delete;
  PrivateFile& operator=(const PrivateFile&) = delete;
  ~PrivateFile() { ::unlink(path_.c_str()); }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A child whose stdout is a pipe to us.
class Child {
 public:
  Child(const std::string& program, const std::vector<std::string>& words) : program_(program) {
    std::array<int, 2> ends{};
    expect_no_error("pipe", ::pipe2(ends.data(), O_CLOEXEC) == 0 ? 0 : errno);
    output_ = ends[0];
    std::vector<char*> argv;
    argv.reserve(words.size() + 1);
    for (const auto& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    const int error =
        ::posix_spawn(&process_, program.c_str(), &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    if (error == 0) return;
    ::close(output_);
    expect_no_error(program_, error);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { ::close(output_); }

  std::string read_all() const {
    std::string text;
    std::array<char, 1 << 16> bytes{};
    for (ssize_t step = 1; step != 0;) {
      step = ::read(output_, bytes.data(), bytes.size());
      if (step < 0 && errno != EINTR) expect_no_error(program_, errno);
      if (step > 0) text.append(bytes.data(), static_cast<std::size_t>(step));
    }
    return text;
  }

  void expect_success() const {
    int status = 0;
    while (::waitpid(process_, &status, 0) < 0) {
      if (errno != EINTR) expect_no_error(program_, errno);
    }
    if (WIFSIGNALED(status)) throw LoadError("{}: ended by signal {}", program_, WTERMSIG(status));
    if (WEXITSTATUS(status) != 0) {
      throw LoadError("{}: expected exit status 0, got {}", program_, WEXITSTATUS(status));
    }
  }

 private:
  std::string program_;
  pid_t process_ = 0;
  int output_ = -1;
};

bool is_program(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::optional<fs::path> find_tool(const std::string& name,
                                  const std::vector<std::string>& more_folders) {
  std::vector<std::string> folders;
  std::string rest = process_environment("PATH").value_or("") + ':';
  for (std::size_t end = rest.find(':'); end != rest.npos; end = rest.find(':')) {
    folders.push_back(rest.substr(0, end));
    rest.erase(0, end + 1);
  }
  folders.insert(folders.end(), more_folders.begin(), more_folders.end());
  for (const auto& folder : folders) {
    if (folder.starts_with('/') && is_program(fs::path(folder) / name)) {
      return fs::path(folder) / name;
    }
  }
  return std::nullopt;
}

std::string run_tool(const fs::path& tool, std::vector<std::string> arguments,
                     std::span<const std::byte> bytes) {
  const PrivateFile input(bytes);
  arguments.insert(arguments.begin(), tool.string());
  arguments.push_back(input.path());
  const Child child(tool.string(), arguments);
  std::string printed = child.read_all();
  child.expect_success();
  return printed;
}

}  // namespace rlk::cli
