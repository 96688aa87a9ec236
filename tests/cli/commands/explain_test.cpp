// SPDX-License-Identifier: Apache-2.0
// explain: hits, every kind of miss and what follows, for kernels of CUDA.
#include "jit/build_key.hpp"
#include "jit/parse_specialization.hpp"
#include "templates/registry.hpp"
#include "tests/cli/cli_fixture.hpp"
#include "tests/cli/fake_tool.hpp"

#include <sys/stat.h>
#include <utime.h>

namespace rlk::cli {
namespace {

const std::string k_kernel_name = "linear_logp.fwd[x=bf16 V=10 D=20]@sm_90a";
const std::string k_generic_name = "linear_logp.fwd[x=bf16 generic]@sm_90a";
const std::string k_nvrtc = "nvrtc-12.99-0011223344556677";  // the fake's
const std::string k_other_nvrtc = "nvrtc-12.8-ab";

class ExplainTest : public CliTest {
 protected:
  ExplainTest() { ::setenv("RLK_NVRTC", RLK_FAKE_NVRTC, 1); }

  static cache::Key real_key(const std::string& kernel) {
    return jit::build_key(jit::parse_specialization(kernel, templates::ops()));
  }
  static std::string put_key(const std::string& folder, const cache::Key& key,
                             const std::string& kernel, const std::string& made_by) {
    const nlohmann::json metadata = {{"name", kernel}, {"target", "sm_90a"}};
    cache::DiskStore({.read_write = folder})
        .put({key.bytes, metadata.dump(), std::vector<std::byte>(10)}, made_by);
    return folder + '/' + cache::entry_file_name(key.digest(), made_by);
  }
  static std::string put_kernel(const std::string& folder, const std::string& kernel,
                                const std::string& made_by = k_nvrtc) {
    return put_key(folder, real_key(kernel), kernel, made_by);
  }
  // As another version of rlk would have made it.
  static cache::Key changed_key(const std::string& kernel, const std::string& tag,
                                const std::string& value) {
    cache::KeyBuilder changed;
    const auto fields = cache::decode_key(real_key(kernel).bytes).value();
    for (const auto& field : fields) {
      changed.field(field.tag, field.tag == tag ? value : field.value);
    }
    return changed.finish();
  }
  nlohmann::json explained(const std::string& word, int code = 1) const {
    const Ran ran = run({"explain", word, "--json"});
    EXPECT_EQ(ran.code, code) << ran.err << ran.out;
    return nlohmann::json::parse(ran.out);
  }
};

TEST_F(ExplainTest, AHitTellsLayerFileAndCompiler) {
  const std::string file = put_kernel(folder_, k_kernel_name);
  const auto told = explained(k_kernel_name, 0);
  EXPECT_EQ(told["hit"], true);
  EXPECT_EQ(told["does"], "load");
  EXPECT_EQ(told["key"], real_key(k_kernel_name).digest());
  EXPECT_EQ(told["file"]["path"], file);
  EXPECT_EQ(told["file"]["layer"], "user");
  EXPECT_EQ(told["file"]["compiler"], k_nvrtc);
  EXPECT_TRUE(told["nearest"].is_null());
  const Ran ran = run({"explain", k_kernel_name});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(lines_of(ran.out)[0], k_kernel_name + ": hit");
  EXPECT_NE(ran.out.find("a call    loads that file\n"), std::string::npos) << ran.out;
}

TEST_F(ExplainTest, AReadOnlyLayerServesWhatAnyCompilerMade) {
  const std::string file = put_kernel(builtin_, k_kernel_name, k_other_nvrtc);
  const auto told = explained(k_kernel_name, 0);
  EXPECT_EQ(told["file"]["path"], file);
  EXPECT_EQ(told["file"]["layer"], "built-in");
}

TEST_F(ExplainTest, AnotherTileRunsBeforeTheGenericKernel) {
  const std::string other = "linear_logp.fwd[x=bf16 V=10 D=20 tile=64-static]@sm_90a";
  const std::string file = put_kernel(folder_, other);
  put_kernel(builtin_, k_generic_name);
  EXPECT_EQ(explained(k_kernel_name)["does"], "compile");
  {
    const test::Variable background("RLK_JIT", "async");
    EXPECT_EQ(explained(k_kernel_name)["text"],
              "runs " + other + ", compiles with " + k_nvrtc + " meanwhile");
  }
  const test::Variable off("RLK_JIT", "off");
  const auto told = explained(k_kernel_name);
  EXPECT_EQ(told["does"], "run-alternative");
  EXPECT_EQ(told["text"], "runs " + other + " (RLK_JIT=off, nothing is compiled)");
  EXPECT_EQ(told["alternative"]["name"], other);
  EXPECT_EQ(told["alternative"]["file"]["path"], file);
  EXPECT_FALSE(told["generic"].is_null());
  EXPECT_NE(run({"explain", k_kernel_name}).out.find("same bits"), std::string::npos);
}

TEST_F(ExplainTest, AnotherCompilersEntryIsPassedOver) {
  const std::string file = put_kernel(folder_, k_kernel_name, k_other_nvrtc);
  const auto told = explained(k_kernel_name);
  ASSERT_EQ(told["passed_over"].size(), 1u);
  EXPECT_EQ(told["passed_over"][0]["path"], file);
  EXPECT_EQ(told["passed_over"][0]["problem"],
            "made by " + k_other_nvrtc + "; the read-write layer wants " + k_nvrtc);
  EXPECT_EQ(told["does"], "compile");
  EXPECT_EQ(told["text"], "compiles with " + k_nvrtc);
  EXPECT_TRUE(told["nearest"].is_null()) << "the key is there";
  // With nothing to compile it serves.
  const test::Variable off("RLK_JIT", "off");
  EXPECT_EQ(explained(k_kernel_name, 0)["file"]["path"], file);
}

TEST_F(ExplainTest, DamageAndRightsArePassedOver) {
  const std::string file = put_kernel(folder_, k_kernel_name);
  std::string bytes = test::read_file(file);
  bytes.back() ^= 1;
  test::write_file(file, bytes);
  EXPECT_EQ(explained(k_kernel_name)["passed_over"][0]["problem"], "wrong checksum");
  test::write_file(file, "short");
  EXPECT_NE(explained(k_kernel_name)["passed_over"][0]["problem"], nullptr);
  put_kernel(folder_, k_kernel_name);
  ASSERT_EQ(::chmod(file.c_str(), 0666), 0);
  const std::string refused = explained(k_kernel_name)["passed_over"][0]["problem"];
  EXPECT_NE(refused.find("chmod go-w"), std::string::npos) << refused;
  ASSERT_EQ(::chmod(file.c_str(), 0600), 0);
  ASSERT_EQ(::chmod(folder_.c_str(), 0777), 0);
  const auto told = explained(k_kernel_name);
  EXPECT_EQ(told["passed_over"][0]["path"], folder_);
  EXPECT_NE(told["passed_over"][0]["problem"].get<std::string>().find("chmod go-w"),
            std::string::npos);
}

TEST_F(ExplainTest, TheFirstFieldThatDiffersFromTheNearestEntryIsTold) {
  const std::string far = put_kernel(folder_, "linear_logp.bwd[x=bf16 V=10 D=20]@sm_90a");
  auto told = explained(k_kernel_name);
  EXPECT_EQ(told["nearest"]["path"], far);
  EXPECT_EQ(told["nearest"]["field"], "pass");
  EXPECT_EQ(told["nearest"]["wanted"], "fwd");
  EXPECT_EQ(told["nearest"]["found"], "bwd");

  const std::string near = put_kernel(folder_, "linear_logp.fwd[x=f16 V=10 D=21]@sm_90a");
  EXPECT_EQ(explained(k_kernel_name)["nearest"]["path"], near);
  const std::string nearer = put_kernel(folder_, "linear_logp.fwd[x=bf16 V=10 D=21]@sm_90a");
  told = explained(k_kernel_name);
  EXPECT_EQ(told["nearest"]["path"], nearer);
  EXPECT_EQ(told["nearest"]["field"], "specialization");
  EXPECT_EQ(told["nearest"]["found"], "linear_logp.fwd[x=bf16 V=10 D=21]@sm_90a");

  // The same kernel of an older rlk is nearer than any other of this one.
  const std::string older =
      put_key(folder_, changed_key(k_kernel_name, "template", "0ld"), k_kernel_name, k_other_nvrtc);
  told = explained(k_kernel_name);
  EXPECT_EQ(told["nearest"]["path"], older);
  EXPECT_EQ(told["nearest"]["field"], "template");
  EXPECT_EQ(told["nearest"]["found"], "0ld");
  const Ran ran = run({"explain", k_kernel_name});
  EXPECT_EQ(ran.code, 1);
  for (const std::string& part :
       {k_kernel_name + ": miss\n", "nearest     " + older + "\n",
        std::string("differs in  template\n"), std::string("    found     0ld\n"),
        "a call      compiles with " + k_nvrtc + "\n"}) {
    EXPECT_NE(ran.out.find(part), std::string::npos) << part << ran.out;
  }
}

TEST_F(ExplainTest, AFieldMoreOrLessIsADifference) {
  auto fields = cache::decode_key(real_key(k_kernel_name).bytes).value();
  fields.pop_back();
  cache::KeyBuilder shorter;
  for (const auto& field : fields) shorter.field(field.tag, field.value);
  put_key(folder_, shorter.finish(), k_kernel_name, k_nvrtc);
  const auto told = explained(k_kernel_name)["nearest"];
  EXPECT_EQ(told["field"], "option");
  EXPECT_TRUE(told["wanted"].get<std::string>().starts_with("-DRLK_SHARED_LIMIT="));
  EXPECT_EQ(told["found"], "");
}

TEST_F(ExplainTest, EntriesOfOtherOpsAndWithoutAKeyAreNotNear) {
  put(folder_, "toy.fwd[V=10]@sm_90a");
  test::write_file(put(folder_, "toy2"), "damage");
  EXPECT_TRUE(explained(k_kernel_name)["nearest"].is_null());
  EXPECT_NE(run({"explain", k_kernel_name}).out.find("no layer has a file of this key"),
            std::string::npos);
}

TEST_F(ExplainTest, WhatACallDoesOfAMiss) {
  const auto does = [&] { return explained(k_kernel_name)["does"].get<std::string>(); };
  EXPECT_EQ(does(), "compile");
  {
    const test::Variable async("RLK_JIT", "async");
    EXPECT_EQ(does(), "compile") << "there is nothing to run meanwhile";
  }
  {
    const test::Variable off("RLK_JIT", "off");
    EXPECT_EQ(does(), "fail");
  }
  const std::string file = put_kernel(builtin_, k_generic_name);
  {
    const test::Variable async("RLK_JIT", "async");
    EXPECT_EQ(does(), "compile-in-background");
  }
  {
    const test::Variable off("RLK_JIT", "off");
    const auto told = explained(k_kernel_name);
    EXPECT_EQ(told["does"], "run-generic");
    EXPECT_EQ(told["text"], "runs the generic kernel (RLK_JIT=off, nothing is compiled)");
    EXPECT_EQ(told["generic"]["path"], file);
    EXPECT_EQ(told["generic"]["layer"], "built-in");
    EXPECT_TRUE(told["compiler"].is_null());
  }
  const test::Variable none("RLK_NVRTC", temp_ / "nothing");
  const auto told = explained(k_kernel_name);
  EXPECT_EQ(told["does"], "run-generic");
  EXPECT_NE(told["text"].get<std::string>().find("RLK_NVRTC names no file"), std::string::npos);
}

TEST_F(ExplainTest, AGenericKernelHasNoOtherToRun) {
  const test::Variable off("RLK_JIT", "off");
  const auto told = explained(k_generic_name);
  EXPECT_EQ(told["does"], "fail");
  EXPECT_EQ(told["text"], "raises Unsupported: no kernel (RLK_JIT=off, nothing is compiled)");
  EXPECT_EQ(run({"explain", k_generic_name}).out.find("generic  "), std::string::npos);
}

// What names one entry: that one is compared, though another may be nearer.
TEST_F(ExplainTest, AnEntrysKernelIsExplained) {
  const std::string older =
      put_key(folder_, changed_key(k_kernel_name, "abi", "0"), k_kernel_name, k_nvrtc);
  put_kernel(folder_, k_generic_name);
  const auto told = explained("V=10");
  EXPECT_EQ(told["name"], k_kernel_name);
  EXPECT_EQ(told["nearest"]["path"], older);
  EXPECT_EQ(told["nearest"]["field"], "abi");
  EXPECT_EQ(told["nearest"]["wanted"], "1");
  EXPECT_EQ(told["nearest"]["found"], "0");
  EXPECT_EQ(told["generic"]["layer"], "user");
  EXPECT_EQ(explained(real_key(k_generic_name).digest().substr(0, 10), 0)["name"], k_generic_name);
}

TEST_F(ExplainTest, WhatIsNoKernelIsWrongUsage) {
  const Ran wrong = run({"explain", "linear_logp.fwd[x=bf16 V=ten D=20]@sm_90a"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_EQ(wrong.out, "");
  EXPECT_NE(wrong.err.find("kernel name: V: expected a number from 0 up, got \"ten\""),
            std::string::npos)
      << wrong.err;
  const Ran nothing = run({"explain", "nothing"});
  EXPECT_EQ(nothing.code, 2);
  EXPECT_EQ(nothing.err, "rlk-jit: \"nothing\": no entry has this name or key; see rlk-jit list\n");
  put(folder_, "toy.fwd[V=10]@sm_90a");
  const Ran unknown = run({"explain", "toy"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.err.find("this build has no such kernel: kernel name: op: expected "),
            std::string::npos)
      << unknown.err;
}

TEST_F(ExplainTest, NothingIsMadeOrTouched) {
  run({"explain", k_kernel_name});
  EXPECT_FALSE(std::filesystem::exists(folder_));
  const std::string file = put_kernel(folder_, k_kernel_name);
  const utimbuf times{1000, 1000};
  ASSERT_EQ(::utime(file.c_str(), &times), 0);
  EXPECT_EQ(run({"explain", k_kernel_name}).code, 0);
  EXPECT_EQ(cache::posix_file_system().stat(file, cache::Links::keep).value.modified_s, 1000);
}

}  // namespace
}  // namespace rlk::cli
