// SPDX-License-Identifier: Apache-2.0
// Recording from threads and processes, and reading what is there.
#include "jit/warm/trace.hpp"

#include "runtime/error.hpp"
#include "templates/linear_logp/op.hpp"
#include "templates/registry.hpp"
#include "tests/support/captured_log.hpp"
#include "tests/support/child_processes.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/what.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <set>
#include <thread>

namespace rlk::jit {
namespace {

Specialization kernel(std::int64_t vocab) {
  return {&templates::linear_logp_op, Pass::fwd, Target::sm_90a, {2, vocab, 64, k_run_time}};
}

class TraceTest : public ::testing::Test {
 protected:
  test::TempDir folder_;
  test::CapturedLog log_;
  std::string file_ = folder_ / "trace";
};

TEST_F(TraceTest, WhatIsRecordedIsReadBackOnceAndInOrder) {
  Trace trace(file_);
  for (const int vocab : {5, 3, 5, 4, 3}) trace.record(kernel(vocab));
  Trace(file_).record(kernel(4));  // another process, later
  const TraceRead read = read_trace(file_, templates::ops());
  EXPECT_EQ(read.kernels, (std::vector{kernel(5), kernel(3), kernel(4)}));
  EXPECT_TRUE(read.problems.empty());
  std::ifstream in(file_);
  EXPECT_EQ(std::distance(std::istreambuf_iterator<char>(in), {}),
            3 * static_cast<std::ptrdiff_t>(kernel(5).text().size() + 1));
}

TEST_F(TraceTest, WithoutAFileNothingIsRecorded) {
  Trace(std::nullopt).record(kernel(5));
  EXPECT_FALSE(std::filesystem::exists(file_));
}

TEST_F(TraceTest, ProcessesAndThreadsLoseAndSpoilNothing) {
  std::vector<pid_t> children;
  for (int child = 0; child < 8; ++child) {
    children.push_back(test::start_child([&] {
      Trace trace(file_);
      std::vector<std::jthread> threads;
      for (int thread = 0; thread < 3; ++thread) {
        threads.emplace_back([&, thread] {
          for (int i = 1; i <= 40; ++i) trace.record(kernel(1000 * child + 40 * thread + i));
        });
      }
      return true;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(test::wait_for_child(child), "passed");
  const TraceRead read = read_trace(file_, templates::ops());
  EXPECT_EQ(read.kernels.size(), 8u * 3u * 40u);
  EXPECT_TRUE(read.problems.empty());
}

TEST_F(TraceTest, AFileThatCannotBeWrittenIsSaidOnce) {
  Trace trace(folder_ / "no/such/trace");
  for (const int vocab : {1, 2, 3}) trace.record(kernel(vocab));
  EXPECT_EQ(log_.num_lines(), 1) << log_.text();
  EXPECT_TRUE(log_.contains("RLK_TRACE"));
}

// They would be waited for, or read for ever.
TEST_F(TraceTest, WhatIsNoFileIsRefused) {
  ASSERT_EQ(::mkfifo(file_.c_str(), 0600), 0);
  for (const std::string& file : {file_, folder_.path(), std::string("/dev/zero")}) {
    log_.clear();
    Trace trace(file);
    for (const int vocab : {1, 2}) trace.record(kernel(vocab));
    EXPECT_EQ(log_.num_lines(), 1) << log_.text();
    EXPECT_NE(test::what<InvalidArgument>([&] {
                read_trace(file, templates::ops());
              }).find("regular file"),
              std::string::npos);
  }
}

// An editor of Windows leaves a mark at the front and a carriage return in each line.
TEST_F(TraceTest, WhatAnotherSystemsEditorAddsIsNoPartOfAName) {
  const std::string text =
      "\xef\xbb\xbf" + kernel(5).text() + "\r\n\r\n  " + kernel(3).text() + " \r\n";
  test::write_file(file_, text + kernel(4).text());
  const TraceRead read = read_trace(file_, templates::ops());
  EXPECT_EQ(read.kernels, (std::vector{kernel(5), kernel(3), kernel(4)}));
  EXPECT_TRUE(read.problems.empty());
  Trace trace(file_);
  trace.record(kernel(3));  // known already
  EXPECT_EQ(test::read_file(file_), text + kernel(4).text());
  for (const int vocab : {8, 9}) trace.record(kernel(vocab));
  EXPECT_EQ(read_trace(file_, templates::ops()).kernels.size(), 5u);
  EXPECT_EQ(test::read_file(file_).find("\n\n"), std::string::npos);
}

TEST_F(TraceTest, LinesOfNoKernelAreLeftOutAndNamed) {
  std::ofstream(file_) << kernel(5).text() << "\n\nnonsense\n" << kernel(6).text();
  const TraceRead read = read_trace(file_, templates::ops());
  EXPECT_EQ(read.kernels, (std::vector{kernel(5), kernel(6)}));
  ASSERT_EQ(read.problems.size(), 1u);
  EXPECT_TRUE(read.problems[0].starts_with(file_ + ": line 3: ")) << read.problems[0];
  EXPECT_NE(test::what<InvalidArgument>([] { read_trace("no/such", templates::ops()); }), "");
}

}  // namespace
}  // namespace rlk::jit
