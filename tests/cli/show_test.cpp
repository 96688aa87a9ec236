// SPDX-License-Identifier: Apache-2.0
// show and path.
#include "tests/cli/cli_fixture.hpp"

namespace rlk::cli {
namespace {

const std::string name = "toy.fwd[V=10]@x86-64-v3";

TEST_F(CliTest, ShowTellsAllOfAKernelByItsName) {
  const std::string file = put(folder_, name);
  const Ran ran = run({"show", name});
  EXPECT_EQ(ran.code, 0) << ran.err;
  for (const std::string& part :
       {name, file, std::string("sound"), std::string(R"({"kV":4711,"name":"inner"})"),
        std::string("specialization  toy.fwd[V=10]"), std::string("compile_ms"), digest_of(name)}) {
    EXPECT_NE(ran.out.find(part), std::string::npos) << part << '\n' << ran.out;
  }
}

TEST_F(CliTest, ShowFindsByTheFrontOfTheKeyOrAPartOfTheName) {
  put(folder_, name);
  put(folder_, "other");
  EXPECT_EQ(run({"show", digest_of(name).substr(0, 8)}).code, 0);
  EXPECT_EQ(run({"show", digest_of(name)}).code, 0);
  EXPECT_EQ(run({"show", digest_of(name) + '.' + compiler}).code, 0);
  EXPECT_EQ(run({"show", "fwd[V=10"}).code, 0);
}

TEST_F(CliTest, ShowAsJsonHasMetadataAndDecodedKey) {
  put(folder_, name);
  const auto shown = run_json({"show", name});
  EXPECT_EQ(shown["metadata"]["constants"]["kV"], 4711);
  EXPECT_EQ(shown["key_fields"][0]["tag"], "op");
  EXPECT_EQ(shown["key_fields"][1]["value"], name);
  EXPECT_EQ(shown["payload_bytes"], 5000);
  EXPECT_TRUE(shown["problem"].is_null());
}

TEST_F(CliTest, AnExactNameWinsOverLongerOnes) {
  put(folder_, "toy");
  put(folder_, "toy2");
  EXPECT_EQ(run({"show", "toy"}).code, 0);
}

TEST_F(CliTest, SeveralMatchesAreListed) {
  put(folder_, "toy.fwd[V=1]");
  put(folder_, "toy.fwd[V=2]");
  const Ran ran = run({"show", "toy.fwd"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_EQ(ran.out, "");
  for (const std::string& part : {std::string("2 entries match"), digest_of("toy.fwd[V=1]"),
                                  digest_of("toy.fwd[V=2]"), std::string("toy.fwd[V=2]")}) {
    EXPECT_NE(ran.err.find(part), std::string::npos) << part << '\n' << ran.err;
  }
}

TEST_F(CliTest, OneKeyOfTwoCompilersIsToldApartByTheCompiler) {
  put(folder_, name, "llvm-19");
  put(folder_, name, "llvm-20");
  EXPECT_EQ(run({"show", name}).code, 1);
  EXPECT_EQ(run({"show", digest_of(name)}).code, 1);
  EXPECT_EQ(run({"show", digest_of(name) + ".llvm-20"}).code, 0);
}

TEST_F(CliTest, AnUpperLayerHidesTheSameEntryBelow) {
  const std::string file = put(folder_, name);
  put(builtin_, name);
  EXPECT_EQ(run({"path", name}).out, file + '\n');
}

TEST_F(CliTest, NoMatchIsAnError) {
  put(folder_, name);
  const Ran ran = run({"show", "nothing"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.err.find("\"nothing\""), std::string::npos);
}

TEST_F(CliTest, ShowVerifiesTheChecksum) {
  const std::string file = put(folder_, name);
  std::string bytes = test::read_file(file);
  bytes[bytes.size() - 100] ^= 1;
  test::write_file(file, bytes);
  const Ran ran = run({"show", name});
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.out.find("wrong checksum"), std::string::npos) << ran.out;
  EXPECT_EQ(run_json({"show", name})["problem"], "wrong checksum");
}

TEST_F(CliTest, ShowOfDamageSaysWhatIsWrong) {
  test::write_file(put(folder_, name), "damage");
  const Ran ran = run({"show", digest_of(name)});
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.out.find("expected at least 32 bytes"), std::string::npos) << ran.out;
}

TEST_F(CliTest, PathIsTheFolderOrAFile) {
  EXPECT_EQ(run({"path"}).out, folder_ + '\n');
  const std::string file = put(folder_, name);
  EXPECT_EQ(run({"path", name}).out, file + '\n');
  EXPECT_EQ(run({"path", "nothing"}).code, 1);
}

}  // namespace
}  // namespace rlk::cli
