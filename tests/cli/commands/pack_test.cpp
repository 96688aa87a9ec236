// SPDX-License-Identifier: Apache-2.0
// rlk-jit export and import.
#include "cache/pack.hpp"

#include "jit/warm/manifest.hpp"
#include "tests/cli/cli_fixture.hpp"

#include <sys/stat.h>
#include <utime.h>

#include <atomic>
#include <thread>
#include <utility>

namespace rlk::cli {
namespace {

class PackCommandTest : public CliTest {
 protected:
  // The names of a pack's kernels, in its order; a "!" before those that a manifest listed.
  std::vector<std::string> names_in_pack() const {
    const std::string bytes = test::read_file(pack_);
    std::vector<std::string> names;
    std::size_t at = 0;
    const auto read = cache::read_pack(
        [&](void* to, std::size_t num_bytes) -> cache::Outcome<std::size_t> {
          bytes.copy(static_cast<char*>(to), num_bytes, at);
          at += num_bytes;
          return {num_bytes};
        },
        bytes.size(),
        [&](const cache::PackMember& member) {
          const auto metadata = nlohmann::json::parse(member.entry.metadata);
          names.push_back((member.is_listed ? "!" : "") + metadata["name"].get<std::string>());
          return "";
        });
    EXPECT_EQ(read.problem, "");
    std::ranges::sort(names);
    return names;
  }

  Ran export_all(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"export", pack_});
    return run(more);
  }

  Ran run_in(const std::string& folder, std::vector<std::string> words) {
    const std::string before = std::exchange(folder_, folder);
    const Ran ran = run(std::move(words));
    folder_ = before;
    return ran;
  }

  // Into another folder than the one that was exported.
  Ran import_elsewhere(std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"import", pack_});
    return run_in(other_, more);
  }

  bool is_hit_elsewhere(const std::string& name) const {
    cache::DiskStore store({.read_write = other_});
    return store.get(key_of(name), compiler).has_value();
  }

  std::string pack_ = temp_ / "a pack.rlkpack";
  std::string other_ = temp_ / "another/place/cache";
};

using Names = std::vector<std::string>;

TEST_F(PackCommandTest, WhatIsExportedIsAHitElsewhere) {
  put(folder_, "a");
  put(folder_, "b");
  const Ran exported = export_all();
  EXPECT_EQ(exported.code, 0) << exported.err;
  EXPECT_EQ(exported.err, "");
  const auto lines = lines_of(exported.out);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(lines[0].starts_with("2 entries, ")) << lines[0];
  EXPECT_TRUE(lines[0].ends_with(": " + pack_)) << lines[0];
  ASSERT_TRUE(lines[1].starts_with("sha256 ")) << lines[1];
  const std::string sha256 = lines[1].substr(7);

  std::string upper = sha256;
  for (char& c : upper) c = static_cast<char>(std::toupper(c));
  const Ran imported = import_elsewhere({"--sha256", upper});
  EXPECT_EQ(imported.code, 0) << imported.err;
  EXPECT_EQ(imported.out, "2 stored, 0 present: " + other_ + '\n');
  EXPECT_TRUE(is_hit_elsewhere("a"));
  EXPECT_TRUE(is_hit_elsewhere("b"));
  EXPECT_EQ(import_elsewhere().out, "0 stored, 2 present: " + other_ + '\n');
  EXPECT_EQ(run_in(other_, {"verify"}).code, 0);
  EXPECT_FALSE(std::filesystem::exists(other_ + "/manifest.json")) << "nothing was listed";
}

TEST_F(PackCommandTest, JsonHasTheSameFacts) {
  put(folder_, "a");
  test::write_file(put(folder_, "b"), "damage");
  const auto exported = run_json({"export", pack_});
  EXPECT_EQ(exported["path"], pack_);
  EXPECT_EQ(exported["entries"], 1);
  EXPECT_EQ(exported["bytes"], std::filesystem::file_size(pack_));
  EXPECT_EQ(exported["left_out"].size(), 1u);
  const auto imported = nlohmann::json::parse(import_elsewhere({"--json"}).out);
  EXPECT_EQ(imported["sha256"], exported["sha256"]);
  EXPECT_EQ(imported["folder"], other_);
  EXPECT_EQ(imported["entries"], 1);
  EXPECT_EQ(imported["stored"], 1);
  EXPECT_EQ(imported["present"], 0);
  EXPECT_EQ(imported["failed"], 0);
}

TEST_F(PackCommandTest, SameEntriesGiveSameBytes) {
  const Names names = {"a", "b", "c", "d"};
  std::map<std::string, std::string> files;
  for (const auto& name : names) {
    const std::string path = put(folder_, name);
    files[path.substr(path.rfind('/'))] = test::read_file(path);
  }
  jit::add_to_manifest({.read_write = folder_}, {"b", "elsewhere"});
  ASSERT_EQ(export_all().code, 0);
  const std::string first = test::read_file(pack_);

  // In another order, at another time, partly in another layer, in the folder of another name.
  const std::string again = temp_ / "again";
  const std::string layer = temp_ / "layer";
  std::filesystem::create_directories(layer);
  std::filesystem::create_directories(again);
  ASSERT_EQ(::chmod(again.c_str(), 0700), 0);
  int age_s = 0;
  for (auto at = files.rbegin(); at != files.rend(); ++at) {
    const std::string path = (age_s % 2 == 0 ? again : layer) + at->first;
    test::write_file(path, at->second);
    ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
    const utimbuf times{1000 + age_s, 1000 + age_s};
    ASSERT_EQ(::utime(path.c_str(), &times), 0);
    ++age_s;
  }
  jit::add_to_manifest({.read_write = again}, {"b"});
  ASSERT_EQ(run_in(again, {"export", pack_, "--layer", layer}).code, 0);
  EXPECT_EQ(test::read_file(pack_), first);
}

TEST_F(PackCommandTest, EachEntryOnceAndNoneOfTheBuiltInLayer) {
  put(folder_, "a");
  put(folder_, "a", "llvm-20.1.0");
  put(temp_ / "layer", "a");
  put(temp_ / "layer", "b");
  put(builtin_, "generic");
  EXPECT_EQ(export_all({"--layer", temp_ / "layer"}).code, 0);
  EXPECT_EQ(names_in_pack(), (Names{"a", "a", "b"}));
}

TEST_F(PackCommandTest, DamageIsLeftOutAndNamed) {
  put(folder_, "good");
  const std::string bad = put(folder_, "bad");
  std::string bytes = test::read_file(bad);
  bytes[bytes.size() - 100] = 'x';  // in the payload: a listing does not see it
  test::write_file(bad, bytes);
  const std::string renamed = put(folder_, "renamed");
  std::filesystem::rename(renamed, folder_ + '/' + digest_of("renamed") + ".llvm-2.rlk");
  const Ran ran = export_all();
  EXPECT_EQ(ran.code, 0);
  EXPECT_NE(ran.err.find("left out: " + bad + ": wrong checksum"), std::string::npos) << ran.err;
  EXPECT_NE(ran.err.find("metadata: compiler: expected"), std::string::npos) << ran.err;
  EXPECT_EQ(names_in_pack(), Names{"good"});
  // A sound one of a lower layer stands in.
  put(temp_ / "layer", "bad");
  EXPECT_EQ(export_all({"--layer", temp_ / "layer"}).code, 0);
  EXPECT_EQ(names_in_pack(), (Names{"bad", "good"}));
}

TEST_F(PackCommandTest, ARefusedFolderIsLeftOut) {
  put(folder_, "a");
  put(temp_ / "layer", "b");
  ASSERT_EQ(::chmod(folder_.c_str(), 0777), 0);
  const Ran ran = export_all({"--layer", temp_ / "layer"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_NE(ran.err.find("chmod go-w"), std::string::npos) << ran.err;
  EXPECT_EQ(names_in_pack(), Names{"b"});
}

TEST_F(PackCommandTest, ChoosesByTargetOpUseAndName) {
  put(folder_, "one");
  const std::string old = put(folder_, "two");
  const utimbuf times{std::time(nullptr) - 7200, std::time(nullptr) - 7200};
  ASSERT_EQ(::utime(old.c_str(), &times), 0);
  const auto chosen = [&](std::vector<std::string> more) {
    const Ran ran = export_all(std::move(more));
    EXPECT_EQ(ran.code, 0) << ran.err;
    return names_in_pack();
  };
  EXPECT_EQ(chosen({"--arch", "x86-64-v3"}), (Names{"one", "two"}));
  EXPECT_EQ(chosen({"--op", "toy"}), (Names{"one", "two"}));
  EXPECT_EQ(chosen({"--since", "1h"}), Names{"one"});
  EXPECT_EQ(chosen({"--since", "3h"}), (Names{"one", "two"}));
  EXPECT_EQ(chosen({"two"}), Names{"two"});
  EXPECT_EQ(chosen({digest_of("one").substr(0, 12), "two"}), (Names{"one", "two"}));
}

// A pack that lacks what it was made for would be found out late.
TEST_F(PackCommandTest, WhatFitsNothingIsAnErrorAndWritesNothing) {
  test::write_file(pack_, "before");
  EXPECT_EQ(export_all().code, 1) << "an empty cache";
  put(folder_, "one");
  const struct {
    std::vector<std::string> words;
    int code;
    std::string part;
  } cases[] = {
      {{"--arch", "sm_90a"}, 1, "--arch sm_90a: no entry is of it"},
      {{"--arch", "x86-64-v3", "--arch", "sm_80"}, 1, "--arch sm_80"},
      {{"--op", "other"}, 1, "--op other: no entry"},
      {{"lost"}, 1, "\"lost\": no entry has this name or key"},
      {{"--since", "0s"}, 1, "no sound entry"},
      {{"--since", "soon"}, 2, "--since: expected an age"},
  };
  const utimbuf times{1000, 1000};
  ASSERT_EQ(
      ::utime((folder_ + '/' + cache::entry_file_name(digest_of("one"), compiler)).c_str(), &times),
      0);
  for (const auto& one : cases) {
    const Ran ran = export_all(one.words);
    EXPECT_EQ(ran.code, one.code) << one.part;
    EXPECT_NE(ran.err.find(one.part), std::string::npos) << ran.err;
    EXPECT_EQ(lines_of(ran.err).size(), 1u) << ran.err;
    EXPECT_EQ(test::read_file(pack_), "before");
  }
  EXPECT_EQ(run({"export"}).code, 2);
  EXPECT_EQ(run({"import"}).code, 2);
}

TEST_F(PackCommandTest, TheManifestTravels) {
  put(folder_, "a");
  put(folder_, "b");
  jit::add_to_manifest({.read_write = folder_}, {"b", "not exported"});
  ASSERT_EQ(export_all().code, 0);
  EXPECT_EQ(names_in_pack(), (Names{"!b", "a"}));
  ASSERT_EQ(import_elsewhere().code, 0);
  EXPECT_EQ(jit::read_manifest(other_), Names{"b"});
  jit::add_to_manifest({.read_write = other_}, {"c"});
  ASSERT_EQ(import_elsewhere().code, 0);
  EXPECT_EQ(jit::read_manifest(other_), (Names{"b", "c"}));
}

TEST_F(PackCommandTest, ABadPackIsRefusedInOneLine) {
  put(folder_, "a");
  ASSERT_EQ(export_all().code, 0);
  const std::string sound = test::read_file(pack_);
  const auto expect_refused = [&](const std::string& bytes, const std::string& part,
                                  std::vector<std::string> more = {}, int code = 1) {
    test::write_file(pack_, bytes);
    const Ran ran = import_elsewhere(std::move(more));
    EXPECT_EQ(ran.code, code) << part;
    EXPECT_EQ(ran.out, "");
    EXPECT_EQ(lines_of(ran.err).size(), 1u) << ran.err;
    EXPECT_NE(ran.err.find(part), std::string::npos) << ran.err;
    EXPECT_FALSE(std::filesystem::exists(other_));
  };
  expect_refused(sound.substr(0, sound.size() / 2), "torn");
  std::string newer = sound;
  newer[8] = 9;
  expect_refused(newer, "format version 9 is newer");
  expect_refused(sound, "SHA-256: expected 000", {"--sha256", std::string(64, '0')});
  expect_refused(sound, "--sha256: expected 64 hex digits", {"--sha256", "abc"}, 2);
  expect_refused("", "not a pack");
}

// Sound by every checksum, but the metadata is another kernel's.
TEST_F(PackCommandTest, AnEntryThatBeliesItsKeyIsRefused) {
  const auto pack_with = [&](const std::string& metadata) {
    std::string bytes;
    cache::PackWriter writer([&](std::string_view more) {
      bytes.append(more);
      return 0;
    });
    writer.start();
    writer.add(cache::entry_file_name(digest_of("a"), compiler),
               cache::encode_entry({key_of("a").bytes, metadata, {}}), true);
    writer.finish();
    test::write_file(pack_, bytes);
    return import_elsewhere();
  };
  for (const char* metadata :
       {R"({"name": "b", "compiler": "llvm-19.1.7"})", R"({"name": "a", "compiler": "llvm-1"})",
        R"({"name": "a"})", "[]", "", "not json", R"({"name": 1, "compiler": "llvm-19.1.7"})"}) {
    const Ran ran = pack_with(metadata);
    EXPECT_EQ(ran.code, 1) << metadata;
    EXPECT_NE(ran.err.find("metadata: "), std::string::npos) << ran.err;
    EXPECT_FALSE(std::filesystem::exists(other_)) << metadata;
  }
  EXPECT_EQ(pack_with(R"({"name": "a", "compiler": "llvm-19.1.7"})").code, 0);
}

TEST_F(PackCommandTest, WritesWhereAFileMayBe) {
  put(folder_, "a");
  for (const char* place : {"/dev/null", "/"}) {
    const Ran ran = run({"export", place});
    EXPECT_EQ(ran.code, 1);
    EXPECT_NE(ran.err.find("expected a regular file or none"), std::string::npos) << ran.err;
  }
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_NE(run({"export", temp_ / "no/such/folder/pack"}).err.find("not written: "),
            std::string::npos);
  // As cp does: what a link points to is replaced, not the link.
  const std::string link = temp_ / "link";
  test::write_file(temp_ / "target", "before");
  std::filesystem::create_symlink("target", link);
  EXPECT_EQ(run({"export", link}).code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_NE(test::read_file(temp_ / "target"), "before");
  for (const auto& one : std::filesystem::directory_iterator(temp_.path())) {
    EXPECT_FALSE(one.path().string().ends_with(".tmp")) << one.path();
  }
}

TEST_F(PackCommandTest, WhatCannotBeStoredIsCounted) {
  put(folder_, "a");
  ASSERT_EQ(export_all().code, 0);
  test::write_file(temp_ / "file", "");
  const Ran ran = run_in(temp_ / "file/cache", {"import", pack_});
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.out.find("0 stored, 0 present, 1 could not be stored"), std::string::npos)
      << ran.out;
}

TEST_F(PackCommandTest, ACacheThatChangesMeanwhileGivesASoundPack) {
  for (int i = 0; i < 20; ++i) put(folder_, "stays" + std::to_string(i));
  std::atomic<bool> is_done = false;
  std::thread changing([&] {
    for (int i = 0; !is_done; ++i) {
      const std::string path = put(folder_, "comes and goes" + std::to_string(i % 40));
      if (i % 3 != 0) std::filesystem::remove(path);
      put(folder_, "stays" + std::to_string(i % 20));
    }
  });
  for (int i = 0; i < 10; ++i) {
    const Ran ran = export_all();
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(ran.err, "");
    Names names = names_in_pack();
    std::erase_if(names, [](const std::string& name) { return !name.starts_with("stays"); });
    EXPECT_EQ(names.size(), 20u);
  }
  is_done = true;
  changing.join();
}

}  // namespace
}  // namespace rlk::cli
