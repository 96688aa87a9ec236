// SPDX-License-Identifier: Apache-2.0
// What the system's own calls would not do for us.
#include "cache/files/file_system.hpp"

#include "tests/support/child_processes.hpp"
#include "tests/support/temp_dir.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>

namespace rlk::cache {
namespace {

// Else what is printed or logged goes into the file.
TEST(FileSystem, NoFileGetsTheNumberOfAStreamThatTheCallerHasClosed) {
  test::TempDir temp;
  FileSystem& files = posix_file_system();
  EXPECT_EQ(test::wait_for_child(test::start_child([&] {
              for (const int stream : {0, 1, 2}) ::close(stream);
              const auto made = files.open(temp / "file", O_RDWR | O_CREAT, 0600);
              const bool passed = made && made.value > 2 &&
                                  (::fcntl(made.value, F_GETFD) & FD_CLOEXEC) != 0 &&
                                  ::fcntl(0, F_GETFD) == -1;
              return passed && files.close(made.value) == 0;
            })),
            "passed");
  EXPECT_EQ(files.open(temp / "none", O_RDONLY).error, ENOENT);
}

}  // namespace
}  // namespace rlk::cache
