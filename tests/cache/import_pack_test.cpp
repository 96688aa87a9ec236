// SPDX-License-Identifier: Apache-2.0
// All of a pack is stored or, if a byte of it is wrong, nothing.
#include "cache/import_pack.hpp"

#include "tests/cache/store_fixture.hpp"
#include "tests/support/faulty_file_system.hpp"

#include <fcntl.h>
#include <unistd.h>

namespace rlk::cache {
namespace {

class ImportPackTest : public StoreTest {
 protected:
  ImportPackTest() { write_pack(5); }

  void write_pack(int count, std::string_view fill = "payload") {
    std::vector<std::pair<std::string, std::string>> items;
    for (int i = 0; i < count; ++i) {
      items.emplace_back(entry_file_name(key_of(i).digest(), compiler_a),
                         encode_entry(entry_of(i, fill)));
    }
    std::ranges::sort(items);
    std::string bytes;
    PackWriter writer([&](std::string_view more) {
      bytes.append(more);
      return 0;
    });
    writer.start();
    for (const auto& [name, entry] : items) writer.add(name, entry, name.front() < '8');
    writer.finish();
    test::write_file(pack_, bytes);
  }

  Imported import(FileSystem& files = posix_file_system(),
                  std::optional<std::string> sha256 = std::nullopt) {
    num_judged_ = num_kept_ = 0;
    const PackToImport pack{.path = pack_,
                            .sha256 = std::move(sha256),
                            .judge =
                                [this](const PackMember&) {
                                  ++num_judged_;
                                  return judgement_;
                                },
                            .kept = [this](const PackMember&) { ++num_kept_; }};
    return import_pack({.read_write = folder_}, pack, files);
  }

  bool is_stored(int number) {
    const auto found = store().get(key_of(number), compiler_a);
    return found && *found == entry_of(number);
  }

  std::string pack_ = temp_ / "pack";
  std::string judgement_;
  int num_judged_ = 0, num_kept_ = 0;
};

TEST_F(ImportPackTest, StoresAllAndThenFindsAllPresent) {
  const Imported first = import();
  EXPECT_EQ(first.problem, "");
  EXPECT_EQ(first.num_entries, 5u);
  EXPECT_EQ(first.num_stored, 5u);
  EXPECT_EQ(first.num_present, 0u);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(is_stored(i)) << i;
  EXPECT_EQ(num_judged_, 5);
  EXPECT_EQ(num_kept_, 5);
  EXPECT_EQ(mode_of(path_of(0)), 0600u);

  store().put(entry_of(2, "other bytes"), compiler_a);
  test::write_file(path_of(3), "damage");
  const Imported second = import();
  EXPECT_EQ(second.problem, "");
  EXPECT_EQ(second.num_stored, 2u) << "what differs is replaced";
  EXPECT_EQ(second.num_present, 3u);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(is_stored(i)) << i;
}

TEST_F(ImportPackTest, AWrongSha256StoresNothing) {
  const std::string right = import().sha256;
  std::filesystem::remove_all(folder_);
  std::string wrong = right;
  wrong[0] = wrong[0] == '0' ? '1' : '0';
  EXPECT_EQ(import(posix_file_system(), wrong).problem,
            "SHA-256: expected " + wrong + ", got " + right);
  EXPECT_FALSE(std::filesystem::exists(folder_));
  EXPECT_EQ(import(posix_file_system(), right).num_stored, 5u);
}

TEST_F(ImportPackTest, OneWrongByteStoresNothing) {
  const std::string bytes = test::read_file(pack_);
  for (std::size_t at = 0; at < bytes.size(); at += 5) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    test::write_file(pack_, flipped);
    ASSERT_NE(import().problem, "") << at;
    test::write_file(pack_, bytes.substr(0, at));
    ASSERT_NE(import().problem, "") << at;
    ASSERT_FALSE(std::filesystem::exists(folder_)) << at;
  }
}

TEST_F(ImportPackTest, WhatTheJudgeRefusesStoresNothing) {
  judgement_ = "guilty";
  EXPECT_NE(import().problem.find("guilty"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

TEST_F(ImportPackTest, WhatIsNoFileIsNamed) {
  std::filesystem::remove(pack_);
  EXPECT_EQ(import().problem, "open: " + error_text(ENOENT));
  std::filesystem::create_directories(pack_);
  EXPECT_EQ(import().problem, "expected a regular file, got something else");
  std::filesystem::remove(pack_);
  ASSERT_EQ(::mkfifo(pack_.c_str(), 0600), 0);
  EXPECT_EQ(import().problem, "expected a regular file, got something else") << "and never hangs";
}

// Verified is what is stored: another pack in its place, sound in itself, is found out.
TEST_F(ImportPackTest, APackThatIsReplacedInBetweenIsNotBelieved) {
  const std::string sha256 = import().sha256;
  const auto import_replaced = [&](int count, std::string_view fill) {
    std::filesystem::remove_all(folder_);
    write_pack(5);
    test::FaultyFileSystem files;
    files.set_observer([&, num_opened = 0](std::string_view verb) mutable {
      if (verb == "open" && ++num_opened == 2) write_pack(count, fill);
    });
    return import(files, sha256);
  };
  const Imported forged = import_replaced(5, "other bytes");
  EXPECT_NE(forged.problem.find("it has changed while it was read"), std::string::npos)
      << forged.problem;
  EXPECT_FALSE(std::filesystem::exists(folder_));
  for (const int count : {0, 4, 6}) {
    EXPECT_NE(import_replaced(count, "payload").problem, "") << count;
  }
  EXPECT_EQ(import_replaced(5, "payload").problem, "");
}

TEST_F(ImportPackTest, AnyFailingCallOfTheDiskIsNoCrashAndNoHalfEntry) {
  test::FaultyFileSystem counting;
  ASSERT_EQ(import(counting).num_stored, 5u);
  for (int call = 1; call <= counting.num_calls(); ++call) {
    std::filesystem::remove_all(folder_);
    test::FaultyFileSystem files;
    files.fail_from(call, EIO);
    const Imported done = import(files);
    EXPECT_TRUE(!done.problem.empty() || done.num_stored + done.num_present + done.num_failed == 5u)
        << call;
    std::uint64_t num_there = 0;
    for (int i = 0; i < 5; ++i) num_there += is_stored(i) ? 1 : 0;
    EXPECT_GE(num_there, done.num_stored) << call;
  }
}

TEST_F(ImportPackTest, AFullAndAReadOnlyDiskAreCounted) {
  test::FaultyFileSystem full;
  full.set_space_bytes(2 * encode_entry(entry_of(0)).size());
  const Imported some = import(full);
  EXPECT_EQ(some.problem, "");
  EXPECT_EQ(some.num_stored, 2u);
  EXPECT_EQ(some.num_failed, 3u);
  EXPECT_EQ(num_kept_, 2);
  EXPECT_NE(log_.text().find(error_text(ENOSPC)), std::string::npos);

  std::filesystem::remove_all(folder_);
  test::FaultyFileSystem read_only;
  read_only.set_read_only();
  const Imported none = import(read_only);
  EXPECT_EQ(none.num_failed, 5u);
  EXPECT_EQ(num_kept_, 0);
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

}  // namespace
}  // namespace rlk::cache
