// SPDX-License-Identifier: Apache-2.0
// show and path.
#include "tests/cli/cli_fixture.hpp"

namespace rlk::cli {
namespace {

const std::string k_name_shown = "toy.fwd[V=10]@x86-64-v3";

TEST_F(CliTest, ShowTellsAllOfAKernelByItsName) {
  const std::string file = put(folder_, k_name_shown);
  const Ran ran = run({"show", k_name_shown});
  EXPECT_EQ(ran.code, 0) << ran.err;
  for (const std::string& part :
       {k_name_shown, file, std::string("sound"), std::string(R"({"kV":4711,"name":"inner"})"),
        std::string("specialization  toy.fwd[V=10]"), std::string("compile_ms"),
        digest_of(k_name_shown)}) {
    EXPECT_NE(ran.out.find(part), std::string::npos) << part << '\n' << ran.out;
  }
}

TEST_F(CliTest, ShowFindsByTheFrontOfTheKeyOrAPartOfTheName) {
  put(folder_, k_name_shown);
  put(folder_, "other");
  EXPECT_EQ(run({"show", digest_of(k_name_shown).substr(0, 8)}).code, 0);
  EXPECT_EQ(run({"show", digest_of(k_name_shown)}).code, 0);
  EXPECT_EQ(run({"show", digest_of(k_name_shown) + '.' + compiler}).code, 0);
  EXPECT_EQ(run({"show", "fwd[V=10"}).code, 0);
}

TEST_F(CliTest, ShowAsJsonHasMetadataAndDecodedKey) {
  put(folder_, k_name_shown);
  const auto shown = run_json({"show", k_name_shown});
  EXPECT_EQ(shown["metadata"]["constants"]["kV"], 4711);
  EXPECT_EQ(shown["key_fields"][0]["tag"], "op");
  EXPECT_EQ(shown["key_fields"][1]["value"], k_name_shown);
  EXPECT_EQ(shown["payload_bytes"], 5000);
  EXPECT_TRUE(shown["problem"].is_null());
}

// A kernel of CUDA as rlk's compiler describes it.
std::string put_cuda(const std::string& folder, const std::string& target,
                     const std::string& made_by) {
  const std::string kernel = "toy.fwd[V=10]@" + target;
  const nlohmann::ordered_json metadata = {
      {"name", kernel},
      {"target", target},
      {"options", {"--gpu-architecture=" + target, "--fmad=false"}},
      {"entries", {"rlk_toy_fwd_rows", "rlk_toy_fwd_main"}},
      {"constants", {{"kX", 2}}},
      {"compile_ms", 5138.824373},
      {"registers", 255},
      {"shared_bytes", 96},
      {"dynamic_shared_bytes", 196608},
      {"spilled_bytes", 0}};
  cache::DiskStore({.read_write = folder})
      .put({cache::KeyBuilder().field("op", "toy").field("specialization", kernel).finish().bytes,
            metadata.dump(), std::vector<std::byte>(10)},
           made_by);
  return kernel;
}

TEST_F(CliTest, ShowTellsWhatACudaKernelTakes) {
  const std::string kernel = put_cuda(folder_, "sm_90a", "nvrtc-12.9-31f50d4d7c1c475a");
  const Ran ran = run({"show", kernel});
  EXPECT_EQ(ran.code, 0) << ran.err;
  for (const char* part :
       {"  driver     CUDA 12.0 or later\n", "  options               --gpu-architecture=sm_90a\n",
        "                        --fmad=false\n", "  entries               rlk_toy_fwd_rows\n",
        "                        rlk_toy_fwd_main\n", "  constants             {\"kX\":2}\n",
        "  compile_ms            5138.8\n", "  registers             255\n",
        "  shared_bytes          96\n", "  dynamic_shared_bytes  196608 (192.0 KiB)\n",
        "  spilled_bytes         0\n"}) {
    EXPECT_NE(ran.out.find(part), std::string::npos) << part << '\n' << ran.out;
  }
  const Ran list = run({"list"});
  EXPECT_NE(list.out.find(" sm_90a  nvrtc-12.9-31f50d4d7c1c475a  user "), std::string::npos)
      << list.out;
}

// A driver takes what any NVRTC of its major made, once it knows the card; our PTX is older than
// all of them.
TEST_F(CliTest, ShowTellsTheDriverThatACudaKernelNeeds) {
  for (const auto& [target, made_by, cuda] :
       {std::tuple{"sm_80", "nvrtc-12.9-ab", "12.0"}, std::tuple{"sm_100", "nvrtc-12.9-ab", "12.8"},
        std::tuple{"sm_120", "nvrtc-12.8-ab", "12.8"},
        std::tuple{"sm_120", "nvrtc-13.0-ab", "13.0"},
        std::tuple{"sm_90a", "nvrtc-13.0-ab", "13.0"},
        std::tuple{"compute_80", "nvrtc-13.0-ab", "12.0"}}) {
    const std::string kernel = put_cuda(folder_, target, made_by);
    const std::string file = digest_of(kernel) + '.' + made_by;
    EXPECT_EQ(run_json({"show", file})["driver_needed"], cuda) << target << ' ' << made_by;
  }
  put(folder_, k_name_shown);
  EXPECT_TRUE(run_json({"show", k_name_shown})["driver_needed"].is_null());
  EXPECT_EQ(run({"show", k_name_shown}).out.find("driver"), std::string::npos);
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
  put(folder_, k_name_shown, "llvm-19");
  put(folder_, k_name_shown, "llvm-20");
  EXPECT_EQ(run({"show", k_name_shown}).code, 1);
  EXPECT_EQ(run({"show", digest_of(k_name_shown)}).code, 1);
  EXPECT_EQ(run({"show", digest_of(k_name_shown) + ".llvm-20"}).code, 0);
}

// A key of two compilers can not be told apart by more of it.
TEST_F(CliTest, CandidatesAreShownAsWhatNamesThem) {
  const std::string older = put(folder_, k_name_shown, "llvm-2");
  put(folder_, k_name_shown, "llvm-20");
  const std::string word = digest_of(k_name_shown) + ".llvm-2";  // the front of the other, too
  const Ran ran = run({"path", k_name_shown});
  EXPECT_NE(ran.err.find("KEY.COMPILER"), std::string::npos) << ran.err;
  EXPECT_NE(ran.err.find(word + "   toy.fwd"), std::string::npos) << ran.err;
  EXPECT_NE(ran.err.find(word + "0  toy.fwd"), std::string::npos) << ran.err;
  const std::string relative = std::filesystem::relative(older).string();
  for (const std::string& one : {word, word + ".rlk", older, relative}) {
    EXPECT_EQ(run({"path", one}).out, older + '\n') << one;
  }
  EXPECT_EQ(run({"remove", older}).code, 0);
  EXPECT_FALSE(std::filesystem::exists(older));
  EXPECT_EQ(run({"show", k_name_shown}).code, 0) << "the other is there";
}

TEST_F(CliTest, APathNamesTheEntryOfItsLayer) {
  put(folder_, k_name_shown);
  const std::string below = put(builtin_, k_name_shown);
  EXPECT_EQ(run({"path", below}).out, below + '\n');
  EXPECT_EQ(run({"path", temp_ / "elsewhere.rlk"}).code, 1);
}

TEST_F(CliTest, AnUpperLayerHidesTheSameEntryBelow) {
  const std::string file = put(folder_, k_name_shown);
  put(builtin_, k_name_shown);
  EXPECT_EQ(run({"path", k_name_shown}).out, file + '\n');
}

TEST_F(CliTest, NoMatchIsAnError) {
  put(folder_, k_name_shown);
  const Ran ran = run({"show", "nothing"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.err.find("\"nothing\""), std::string::npos);
}

TEST_F(CliTest, ShowVerifiesTheChecksum) {
  const std::string file = put(folder_, k_name_shown);
  std::string bytes = test::read_file(file);
  bytes[bytes.size() - 100] ^= 1;
  test::write_file(file, bytes);
  const Ran ran = run({"show", k_name_shown});
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.out.find("wrong checksum"), std::string::npos) << ran.out;
  EXPECT_EQ(run_json({"show", k_name_shown})["problem"], "wrong checksum");
}

TEST_F(CliTest, ShowTakesAGroupsEntryWhereTheCacheIsShared) {
  ::setenv("RLK_CACHE_SHARED", "group", 1);
  cache::DiskStore({.read_write = folder_, .sharing = cache::Sharing::group})
      .put({key_of(k_name_shown).bytes, R"({"name":"toy"})", {}}, compiler);
  const Ran ran = run({"show", "toy"});
  ::unsetenv("RLK_CACHE_SHARED");
  EXPECT_EQ(ran.code, 0) << ran.out;
  EXPECT_NE(ran.out.find("sound"), std::string::npos) << ran.out;
}

TEST_F(CliTest, ShowOfDamageSaysWhatIsWrong) {
  test::write_file(put(folder_, k_name_shown), "damage");
  const Ran ran = run({"show", digest_of(k_name_shown)});
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.out.find("expected at least 32 bytes"), std::string::npos) << ran.out;
}

TEST_F(CliTest, PathIsTheFolderOrAFile) {
  EXPECT_EQ(run({"path"}).out, folder_ + '\n');
  const std::string file = put(folder_, k_name_shown);
  EXPECT_EQ(run({"path", k_name_shown}).out, file + '\n');
  EXPECT_EQ(run({"path", "nothing"}).code, 1);
  EXPECT_EQ(run_json({"path"}), nlohmann::json({{"path", folder_}}));
  EXPECT_EQ(run_json({"path", k_name_shown}), nlohmann::json({{"path", file}}));
}

}  // namespace
}  // namespace rlk::cli
