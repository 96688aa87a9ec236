// SPDX-License-Identifier: Apache-2.0
// tuning.json: what is written is read, what is strange is left out, what is another's stays.
#include "jit/tuning_file.hpp"

#include "runtime/error.hpp"
#include "templates/linear_logp/op.hpp"
#include "tests/support/captured_log.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/what.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <thread>
#include <vector>

namespace rlk::jit {
namespace {

TuningRecord record(const std::string& device, const std::array<std::string, 3>& tiles) {
  return {"linear_logp", Pass::fwd, Target::sm_90a, {device, "12.8"}, tiles};
}

class TuningFileTest : public testing::Test {
 protected:
  std::vector<std::array<std::string, 3>> tiles() const {
    std::vector<std::array<std::string, 3>> all;
    for (const TuningRecord& one : read_tunings(store_)) all.push_back(one.tiles);
    return all;
  }
  nlohmann::json json() const { return nlohmann::json::parse(test::read_file(file_)); }
  void write(const nlohmann::json& json) const { test::write_file(file_, json.dump()); }

  test::TempDir folder_;
  cache::StoreOptions store_{.read_write = folder_ / "cache"};
  std::string file_ = folder_ / "cache/tuning.json";
  test::CapturedLog log_;
};

TEST(RowClass, HasThree) {
  EXPECT_EQ(row_class(0), 0u);
  EXPECT_EQ(row_class(64), 0u);
  EXPECT_EQ(row_class(65), 1u);
  EXPECT_EQ(row_class(256), 1u);
  EXPECT_EQ(row_class(257), 2u);
  EXPECT_EQ(row_class(std::int64_t{1} << 40), 2u);
}

TEST_F(TuningFileTest, IsReadAsWritten) {
  EXPECT_TRUE(read_tunings(store_).empty());
  EXPECT_FALSE(std::filesystem::exists(folder_ / "cache"));
  const TuningRecord written = record("H100", {"64-dynamic", "64-static", "128-static"});
  store_tuning(store_, written);
  const auto read = read_tunings(store_);
  ASSERT_EQ(read.size(), 1u);
  EXPECT_TRUE(is_of(read[0], templates::linear_logp_op, Pass::fwd));
  EXPECT_FALSE(is_of(read[0], templates::linear_logp_op, Pass::bwd));
  EXPECT_EQ(read[0].target, Target::sm_90a);
  EXPECT_EQ(read[0].device, written.device);
  EXPECT_EQ(read[0].tiles, written.tiles);
  EXPECT_EQ(tuning_of(read[0], templates::linear_logp_op).tiles,
            (std::array<std::int8_t, 3>{1, 2, 3}));
  EXPECT_EQ(log_.text(), "");
}

TEST_F(TuningFileTest, AChoiceReplacesThatOfTheSameDevice) {
  store_tuning(store_, record("H100", {"a", "a", "a"}));
  store_tuning(store_, record("H200", {"b", "b", "b"}));
  store_tuning(store_, record("H100", {"c", "c", "c"}));
  EXPECT_EQ(tiles(), (std::vector<std::array<std::string, 3>>{{"b", "b", "b"}, {"c", "c", "c"}}));
}

TEST_F(TuningFileTest, AnotherVersionsChoicesStayAndAreNotUsed) {
  store_tuning(store_, record("H100", {"a", "a", "a"}));
  auto changed = json();
  changed["choices"][0]["rlk"] = "0.0.0";
  changed["choices"][0]["tiles"] = {"of", "another", "form", "too"};
  write(changed);
  EXPECT_TRUE(read_tunings(store_).empty());
  store_tuning(store_, record("H100", {"b", "b", "b"}));
  EXPECT_EQ(json()["choices"].size(), 2u);
  EXPECT_EQ(tiles(), (std::vector<std::array<std::string, 3>>{{"b", "b", "b"}}));
  EXPECT_EQ(log_.text(), "");
}

TEST_F(TuningFileTest, WhatIsNoSuchFileIsLeftOutWithOneWarning) {
  store_tuning(store_, record("H100", {"a", "a", "a"}));
  const auto sound = json();
  const auto broken = [&](const char* field, const nlohmann::json& value) {
    auto changed = sound;
    changed["choices"][0][field] = value;
    return changed.dump();
  };
  for (const std::string& text :
       {std::string(), std::string("{}"), std::string("[1]"), sound.dump().substr(0, 40),
        std::string(R"({"format": 2, "choices": []})"),
        std::string(R"({"format": 1, "choices": {"a": 1}})"), broken("rlk", 7), broken("op", 7),
        broken("pass", "sideways"), broken("target", "sm_1"), broken("device", nullptr),
        broken("driver", 12), broken("tiles", {"a", "a"}), broken("tiles", "aaa"),
        broken("tiles", {1, 2, 3}), std::string(2 << 20, ' ')}) {
    log_.clear();
    test::write_file(file_, text);
    const bool is_of_another_version = text == broken("rlk", 7);
    EXPECT_TRUE(read_tunings(store_).empty()) << text.substr(0, 200);
    EXPECT_EQ(log_.num_lines(), is_of_another_version ? 0 : 1) << text.substr(0, 200);
  }
  // Nor does it stand in the way of a new one.
  store_tuning(store_, record("H100", {"b", "b", "b"}));
  EXPECT_EQ(tiles(), (std::vector<std::array<std::string, 3>>{{"b", "b", "b"}}));
}

TEST_F(TuningFileTest, ManyWritersLoseNothing) {
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back(
        [&, i] { store_tuning(store_, record(std::to_string(i), {"a", "a", "a"})); });
  }
  threads.clear();
  EXPECT_EQ(tiles().size(), 8u);
}

TEST_F(TuningFileTest, AFolderThatCannotBeMadeIsAnError) {
  test::write_file(folder_ / "file", "");
  store_.read_write = folder_ / "file/cache";
  const auto text = test::what<Error>([&] { store_tuning(store_, record("H100", {})); });
  EXPECT_NE(text.find("file/cache/tuning.json: not written: "), text.npos) << text;
}

TEST_F(TuningFileTest, WhatToWarmIsEveryChoiceForTheTargetElseTheOps) {
  const jit::Op& op = templates::linear_logp_op;
  EXPECT_EQ(tunings_for({}, op, Pass::fwd, Target::sm_90a), std::vector{Tuning()});
  const std::vector<TuningRecord> records = {
      record("H100", {"64-static", "64-static", "64-static"}),
      record("H200", {"128-static", "128-static", "128-static"})};
  EXPECT_EQ(tunings_for(records, op, Pass::fwd, Target::sm_90a),
            (std::vector<Tuning>{{{2, 2, 2}}, {{3, 3, 3}}}));
  EXPECT_EQ(tunings_for(records, op, Pass::bwd, Target::sm_90a), std::vector{Tuning()});
  EXPECT_EQ(tunings_for(records, op, Pass::fwd, Target::sm_100), std::vector{Tuning()});
}

}  // namespace
}  // namespace rlk::jit
