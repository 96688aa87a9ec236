// SPDX-License-Identifier: Apache-2.0
// The bytes of packs: what is written is read, whatever else is refused before it is believed.
#include "cache/pack.hpp"

#include "cache/files/new_file.hpp"
#include "tests/cache/store_fixture.hpp"
#include "tests/support/faulty_file_system.hpp"

#include <cstring>

namespace rlk::cache {
namespace {

std::string name_of(int number) { return entry_file_name(key_of(number).digest(), compiler_a); }

struct Item {
  std::string name;
  std::string entry;
  bool is_listed = false;
};

// Entries 0 to count - 1 in the order of a pack; even ones are listed.
std::vector<Item> items_of(int count) {
  std::vector<Item> items;
  for (int i = 0; i < count; ++i) {
    items.push_back({name_of(i), encode_entry(entry_of(i)), i % 2 == 0});
  }
  std::ranges::sort(items, {}, &Item::name);
  return items;
}

std::string pack_of(const std::vector<Item>& items) {
  std::string bytes;
  PackWriter writer([&](std::string_view more) {
    bytes.append(more);
    return 0;
  });
  EXPECT_EQ(writer.start(), 0);
  for (const Item& item : items) EXPECT_EQ(writer.add(item.name, item.entry, item.is_listed), 0);
  EXPECT_EQ(writer.finish(), 0);
  EXPECT_EQ(writer.num_bytes(), bytes.size());
  EXPECT_EQ(writer.num_entries(), items.size());
  Sha256 sum;
  sum.update(bytes);
  EXPECT_EQ(writer.sha256(), hex(sum.digest())) << "that of the file, as sha256sum prints it";
  return bytes;
}

// Gives the bytes in order and remembers the largest request.
class Source {
 public:
  explicit Source(std::string bytes) : bytes_(std::move(bytes)) {}

  PackRead read(std::uint64_t num_bytes, const TakeMember& take) {
    return read_pack(
        [this](void* to, std::size_t num_asked) -> Outcome<std::size_t> {
          most_asked_ = std::max(most_asked_, num_asked);
          const std::size_t num_given = std::min(num_asked, bytes_.size() - at_);
          std::memcpy(to, bytes_.data() + at_, num_given);
          at_ += num_given;
          return {num_given};
        },
        num_bytes, take);
  }

  std::size_t most_asked() const { return most_asked_; }

 private:
  std::string bytes_;
  std::size_t at_ = 0;
  std::size_t most_asked_ = 0;
};

std::string problem_of(const std::string& bytes) {
  return Source(bytes).read(bytes.size(), [](const PackMember&) { return ""; }).problem;
}

// The bytes with a checksum that fits: what a forger writes, not what a disk spoils.
std::string resealed(std::string bytes) {
  bytes.resize(bytes.size() - 16);
  const auto sum = checksum(bytes.data(), bytes.size());
  return bytes.append(reinterpret_cast<const char*>(sum.digest), sizeof(sum.digest));
}

constexpr std::size_t k_head_bytes = 12;

TEST(PackTest, WhatIsWrittenIsRead) {
  for (const int count : {0, 1, 5}) {
    const auto items = items_of(count);
    const std::string bytes = pack_of(items);
    std::size_t index = 0;
    Source source(bytes);
    const PackRead read = source.read(bytes.size(), [&](const PackMember& member) -> std::string {
      EXPECT_EQ(member.name, items.at(index).name);
      EXPECT_EQ(member.is_listed, items[index].is_listed);
      EXPECT_EQ(encode_entry(member.entry), items[index].entry);
      ++index;
      return {};
    });
    EXPECT_EQ(read.problem, "");
    EXPECT_EQ(index, items.size());
    EXPECT_EQ(read.num_entries, items.size());
    Sha256 sum;
    sum.update(bytes);
    EXPECT_EQ(read.sha256, hex(sum.digest()));
  }
}

// docs/cache-format.md, byte by byte.
TEST(PackTest, TheFormatIsTheDocumentedOne) {
  const Item item = items_of(1).front();
  std::string expected("\x89RLP\r\n\x1a\n", 8);
  append_little_endian(expected, std::uint32_t{1});
  expected.push_back(2);
  append_little_endian(expected, static_cast<std::uint32_t>(item.name.size()));
  append_little_endian(expected, std::uint64_t{item.entry.size()});
  expected += item.name + item.entry;
  expected.push_back(0);
  append_little_endian(expected, std::uint64_t{1});
  EXPECT_EQ(pack_of({item}), resealed(expected + std::string(16, 'x')));
}

TEST(PackTest, WhoTakesAMemberMayRefuseThePack) {
  const std::string bytes = pack_of(items_of(3));
  int num_taken = 0;
  const PackRead read = Source(bytes).read(
      bytes.size(), [&](const PackMember&) { return ++num_taken == 2 ? "no" : ""; });
  EXPECT_EQ(num_taken, 2);
  EXPECT_NE(read.problem.find("entry 1 ("), std::string::npos) << read.problem;
  EXPECT_NE(read.problem.find("): no"), std::string::npos) << read.problem;
}

TEST(PackTest, EveryTruncationIsRefused) {
  const std::string bytes = pack_of(items_of(2));
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(problem_of(bytes.substr(0, size)), "") << size;
  }
  EXPECT_NE(problem_of(bytes + '\0'), "");
  // One that becomes shorter than it was when it was opened.
  for (std::size_t size = 0; size < bytes.size(); size += 7) {
    Source source(bytes.substr(0, size));
    EXPECT_NE(source.read(bytes.size(), [](const PackMember&) { return ""; }).problem, "") << size;
  }
}

TEST(PackTest, EveryBitFlipIsRefused) {
  std::string bytes = pack_of(items_of(2));
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
      ASSERT_NE(problem_of(bytes), "") << at << '.' << bit;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
    }
  }
  EXPECT_EQ(problem_of(bytes), "");
}

TEST(PackTest, MessagesNameWhatIsWrong) {
  const auto items = items_of(2);
  const std::string bytes = pack_of(items);
  const auto with = [&](std::size_t at, std::string_view patch) {
    std::string patched = bytes;
    patched.replace(at, patch.size(), patch);
    return problem_of(resealed(patched));
  };
  const std::string most("\xff\xff\xff\xff\xff\xff\xff\xff", 8);
  const std::size_t name_at = k_head_bytes + 13;
  const std::size_t end_at = bytes.size() - 16 - 9;
  const struct {
    std::string problem, part;
  } cases[] = {
      {problem_of(""), "not a pack"},
      {problem_of("PK\x03\x04 of another kind"), "not a pack"},
      {problem_of(items[0].entry), "not a pack"},
      {problem_of(bytes.substr(0, 5)), "torn"},
      {problem_of(bytes.substr(0, bytes.size() - 1)), "torn"},
      {with(8, std::string("\x02\0\0\0", 4)), "format version 2 is newer than 1"},
      {with(8, std::string("\0\0\0\0", 4)), "expected format version 1, got 0"},
      {with(k_head_bytes, "\x03"), "mark: expected 0, 1 or 2, got 3"},
      {with(k_head_bytes + 1, most.substr(0, 4)),
       "name: expected at most 255 bytes, got 4294967295"},
      {with(k_head_bytes + 5, most),
       "size: expected at most 1091567664 bytes, got 18446744073709551615"},
      {with(k_head_bytes + 5, most.substr(0, 7) + '\x7f'), "size: expected at most"},
      {with(name_at, "/"), "name: expected an entry's"},
      {with(name_at + 40, "/"), "without a path, got"},
      {with(name_at + 4, std::string("\x1b", 1)), "\\x1b"},
      {with(name_at + items[0].name.size(), "X"), "wrong magic"},
      {with(end_at + 1, "\x03"), "expected 3 entries, got 2"},
      {with(end_at + 1, most), "expected 18446744073709551615 entries, got 2"},
      {problem_of(bytes.substr(0, bytes.size() - 1) + char(bytes.back() ^ 1)), "wrong checksum"},
      {problem_of(bytes + "more"), "expected nothing after the checksum, got 4 bytes"},
  };
  for (const auto& one : cases) {
    EXPECT_NE(one.problem.find(one.part), std::string::npos) << one.problem << "\n" << one.part;
    EXPECT_EQ(one.problem.find('\n'), std::string::npos) << one.problem;
    EXPECT_EQ(one.problem.find('\x1b'), std::string::npos) << one.problem;
  }
}

TEST(PackTest, NamesThatAreNoEntrysOwnAreRefused) {
  const std::string digest = key_of(0).digest();
  const std::string entry = encode_entry(entry_of(0));
  for (const std::string& name : {std::string("../") + name_of(0),
                                  std::string("/") + name_of(0),
                                  "x/" + name_of(0),
                                  digest + "./../../evil.rlk",
                                  digest + ".a/b.rlk",
                                  digest + ".a\\b%5c.rlk",
                                  digest + ".a%2fb.rlk",
                                  digest + ".%2E%2E.rlk",
                                  digest + "..rlk",
                                  digest + ".rlk",
                                  digest + ".a.rlk\n",
                                  digest + ".a.rlk" + std::string(1, '\0'),
                                  std::string(".."),
                                  std::string("."),
                                  std::string(),
                                  std::string("manifest.json"),
                                  std::string(".lock"),
                                  '.' + digest + ".0123456789abcdef.tmp",
                                  name_of(0).substr(0, 10),
                                  digest + ".a b.rlk"}) {
    EXPECT_NE(problem_of(pack_of({{name, entry}})).find("name: expected"), std::string::npos)
        << name << ": " << problem_of(pack_of({{name, entry}}));
  }
  EXPECT_NE(problem_of(pack_of({{name_of(1), entry}})).find("another key"), std::string::npos);
  // Escaped, a slash is no path: the name of an identity that has one.
  EXPECT_EQ(problem_of(pack_of({{digest + ".a%2Fb.rlk", entry}})), "");
}

TEST(PackTest, DuplicatesAndDisorderAreRefused) {
  auto items = items_of(2);
  std::swap(items[0], items[1]);
  EXPECT_NE(problem_of(pack_of(items)).find("name: expected one after"), std::string::npos);
  EXPECT_NE(problem_of(pack_of({items[0], items[0]})).find("name: expected one after"),
            std::string::npos);
}

// Sizes that lie cost no memory: nothing is asked for that the file cannot have.
TEST(PackTest, NothingIsAllocatedBeforeSizesAgree) {
  const std::string bytes = pack_of(items_of(1));
  const std::uint64_t claims[] = {1,
                                  31,
                                  32,
                                  bytes.size(),
                                  std::uint64_t{1} << 30,
                                  std::uint64_t{1} << 40,
                                  ~std::uint64_t{0} - 16,
                                  ~std::uint64_t{0}};
  for (const std::uint64_t claim : claims) {
    std::string patched = bytes;
    std::string size;
    append_little_endian(size, claim);
    patched.replace(k_head_bytes + 5, size.size(), size);
    patched = resealed(patched);
    for (const std::uint64_t file_bytes : {std::uint64_t{patched.size()}, ~std::uint64_t{0}}) {
      Source source(patched);
      EXPECT_NE(source.read(file_bytes, [](const PackMember&) { return ""; }).problem, "") << claim;
      EXPECT_LE(source.most_asked(), bytes.size()) << claim;
    }
  }
  // Both heads agree on what the file does not have.
  const Item item = items_of(1).front();
  const EntrySizes sizes{key_of(0).bytes.size(), 14, std::uint64_t{1} << 29};
  std::string entry = item.entry;
  std::string payload_size;
  append_little_endian(payload_size, sizes.payload_bytes);
  entry.replace(24, payload_size.size(), payload_size);
  std::string patched = pack_of({{item.name, entry}});
  std::string entry_size;
  append_little_endian(entry_size, sizes.file_bytes());
  patched = resealed(patched.replace(k_head_bytes + 5, entry_size.size(), entry_size));
  Source source(patched);
  const auto read = source.read(patched.size(), [](const PackMember&) { return ""; });
  EXPECT_NE(read.problem.find("torn: expected 5368"), std::string::npos) << read.problem;
  EXPECT_LE(source.most_asked(), bytes.size());
}

TEST(PackTest, AnErrorOfTheDiskIsNamed) {
  const PackRead read =
      read_pack([](void*, std::size_t) -> Outcome<std::size_t> { return {0, EIO}; }, 1000,
                [](const PackMember&) { return ""; });
  EXPECT_EQ(read.problem, "read: " + error_text(EIO));
}

class NewPackTest : public StoreTest {
 protected:
  // As export does it.
  int write(FileSystem& files, const std::string& path) {
    NewFile file(files, name_beside(path), std::nullopt);
    PackWriter writer([&](std::string_view bytes) { return file.write(bytes); });
    writer.start();
    for (const Item& item : items_of(3)) writer.add(item.name, item.entry, item.is_listed);
    writer.finish();
    return file.publish(path);
  }
};

// Whatever call fails: the old file or the new one, whole, and nothing beside it.
TEST_F(NewPackTest, IsThereWholeOrNotAtAll) {
  std::filesystem::create_directories(folder_);
  const std::string path = folder_ + "/pack";
  const std::string whole = pack_of(items_of(3));
  test::FaultyFileSystem counting;
  ASSERT_EQ(write(counting, path), 0);
  ASSERT_EQ(test::read_file(path), whole);
  int num_failed = 0;
  for (int call = 1; call <= counting.num_calls(); ++call) {
    test::write_file(path, "old");
    test::FaultyFileSystem files;
    files.fail_call(call, EIO);
    const int error = write(files, path);
    num_failed += error == EIO ? 1 : 0;
    EXPECT_EQ(test::read_file(path), error == 0 ? whole : "old") << call;
    const auto names = names_in(folder_);
    EXPECT_EQ(names.size(), 1u) << call;
    if (names.size() != 1) break;
  }
  EXPECT_GE(num_failed, 10) << "open, writes, fsync, close, rename";
}

TEST_F(NewPackTest, FullAndReadOnlyDisksAndShortWrites) {
  std::filesystem::create_directories(folder_);
  const std::string path = folder_ + "/pack";
  const std::string whole = pack_of(items_of(3));
  for (std::size_t space = 0; space < whole.size(); space += 13) {
    test::FaultyFileSystem files;
    files.set_space_bytes(space);
    EXPECT_EQ(write(files, path), ENOSPC) << space;
    EXPECT_TRUE(names_in(folder_).empty()) << space;
  }
  test::FaultyFileSystem read_only;
  read_only.set_read_only();
  EXPECT_EQ(write(read_only, path), EROFS);
  test::FaultyFileSystem slow;
  slow.set_most_bytes_a_call(3);
  EXPECT_EQ(write(slow, path), 0);
  EXPECT_EQ(test::read_file(path), whole);
  test::FaultyFileSystem cut;
  EXPECT_EQ(write(cut, path), 0);
  cut.cut_power();
  EXPECT_EQ(test::read_file(path), whole) << "synced before it had its name";
}

}  // namespace
}  // namespace rlk::cache
