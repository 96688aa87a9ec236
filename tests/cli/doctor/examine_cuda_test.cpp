// SPDX-License-Identifier: Apache-2.0
// What doctor says of drivers, devices and NVRTCs, over fakes of them.
#include "cli/doctor/findings.hpp"
#include "jit/build_key.hpp"
#include "tests/cli/cli_fixture.hpp"
#include "tests/jit/nvrtc/elf_writer.hpp"
#include "tests/jit/nvrtc/fake_nvrtc.hpp"
#include "tests/support/fake_cuda.hpp"

namespace rlk::cli {
namespace {

namespace fs = std::filesystem;
using runtime::cuda::Driver;

class ExamineCudaTest : public CliTest {
 protected:
  ExamineCudaTest() {
    fake_ = test::FakeCuda{};
    test::fake_cuda();
    nvrtc_ = test::FakeNvrtc{};
    nvrtc_.cubin = "cubin";
    nvrtc_.ptx = ".version 7.4\n.visible .entry rlk_doctor()";
    settings_.package_folder = package_;
    settings_.cache_dir = folder_;
  }

  // A library with its builtins that looks right and does not open.
  std::string add_nvrtc(const std::string& folder, const std::string& version) {
    const auto place = fs::canonical(temp_.path()) / folder;
    fs::create_directories(place);
    test::write_file(place / ("libnvrtc-builtins.so." + version), "");
    const auto file = place / ("libnvrtc.so." + version.substr(0, 2));
    test::write_file(file, test::elf_with_build_id("abcdefghij"));
    search_.loader_folders.push_back(place);
    return file;
  }
  // The fake, 12.99, which compiles.
  void add_fake_nvrtc() {
    search_.loader_folders.push_back(fs::path(RLK_FAKE_NVRTC).parent_path());
  }
  void make_builtin_layer(Target target) { make_layer(builtin_, target); }
  void make_layer(const std::string& folder, Target target) {
    cache::DiskStore store({.read_write = folder});
    for (const auto& spec : generic_variants(target)) {
      store.put({jit::build_key(spec).bytes, "{}", std::vector<std::byte>(10)}, "nvrtc-12.9-ab");
    }
  }

  Findings examine(Driver* driver, const std::string& why = "", bool has_library = true) {
    jit::NvrtcCompiler nvrtc({.search = [this] { return search_; },
                              .driver_version = [&]() -> std::optional<int> {
                                if (driver == nullptr) return std::nullopt;
                                return driver->version();
                              },
                              .major = {},
                              .dump_dir = {}});
    std::ostringstream unused;
    const Context context{settings_, {}, false, false, false, unused, unused};
    cache::DiskStore store(layers_of(context).options);
    Findings findings;
    examine_cuda(context, store, {driver, why, has_library, nvrtc}, findings);
    return findings;
  }
  Findings examine(int version = 12080) {
    fake_.version = version;
    Driver driver(RLK_FAKE_CUDA);
    return examine(&driver);
  }

  // Every target has as many generic kernels.
  const std::string num_generic_ = std::to_string(generic_variants(Target::sm_90a).size());
  const std::string none_of_all_ = "0 of " + num_generic_,
                    all_of_all_ = num_generic_ + " of " + num_generic_;

  static std::vector<Finding> of(const Findings& findings, const std::string& subject) {
    std::vector<Finding> some;
    for (const Finding& finding : findings) {
      if (finding.subject == subject) some.push_back(finding);
    }
    return some;
  }
  static void expect(const Finding& finding, State state, const std::string& text) {
    EXPECT_EQ(finding.state, state) << finding.text;
    EXPECT_EQ(finding.text, text);
  }
  static void expect_part(const Finding& finding, State state, const std::string& part) {
    EXPECT_EQ(finding.state, state) << finding.text;
    EXPECT_NE(finding.text.find(part), std::string::npos) << finding.text;
  }

  test::FakeCuda& fake_ = test::fake_cuda();
  test::FakeNvrtc& nvrtc_ = test::fake_nvrtc();
  jit::NvrtcSearch search_;
  Settings settings_;
};

TEST_F(ExamineCudaTest, AMachineWithoutADriverHasNoFault) {
  const auto findings = examine(nullptr, "CUDA driver: libcuda.so.1: cannot open", false);
  ASSERT_EQ(findings.size(), 3u);
  expect(findings[0], State::good, "none: libcuda.so.1: cannot open");
  EXPECT_EQ(findings[0].details["cuda"], nullptr);
  expect(findings[1], State::good,
         "none chosen: no NVRTC found: install nvidia-cuda-nvrtc-cu12 or set RLK_NVRTC");
  expect(findings[2], State::good, "cannot run here: no CUDA driver");
}

TEST_F(ExamineCudaTest, ADriverThatIsRefusedIsTold) {
  const auto findings = examine(nullptr, "CUDA driver: libcuda.so.1: expected CUDA 12.0", true);
  expect(findings[0], State::warn, "none: libcuda.so.1: expected CUDA 12.0");
}

TEST_F(ExamineCudaTest, DriverAndDevicesAreTold) {
  add_fake_nvrtc();
  for (const auto& [version, text] : {std::pair{12020, "CUDA 12.2"}, std::pair{12080, "CUDA 12.8"},
                                      std::pair{13000, "CUDA 13.0"}}) {
    const auto findings = examine(version);
    expect(of(findings, "driver")[0], State::good, text);
    const auto devices = of(findings, "device");
    ASSERT_EQ(devices.size(), 2u);
    expect(devices[1], State::good,
           "cuda:1 Fake H100 number 1, compute capability 9.0, target sm_90a, 132 SMs, 80.0 GiB, "
           "227.0 KiB shared memory a block");
    const Json& details = devices[1].details;
    EXPECT_EQ(details["ordinal"], 1);
    EXPECT_EQ(details["capability"], "9.0");
    EXPECT_EQ(details["target"], "sm_90a");
    EXPECT_EQ(details["sms"], 132);
    EXPECT_EQ(details["memory_bytes"], std::uint64_t{80} << 30);
    EXPECT_EQ(details["shared_bytes"], 227 << 10);
    EXPECT_EQ(of(findings, "cuda calls").size(), 1u) << "one a target";
  }
  // It is a look: no context, no load.
  EXPECT_EQ(fake_.num_calls["cuDevicePrimaryCtxRetain"], 0);
  EXPECT_EQ(fake_.num_calls["cuLibraryLoadData"], 0);
}

TEST_F(ExamineCudaTest, EachTargetIsTriedAndDevicesThatAreTooOldAreTold) {
  add_fake_nvrtc();
  fake_.capabilities = {{9, 0}, {7, 5}, {8, 0}, {9, 0}};
  const auto findings = examine();
  expect_part(of(findings, "device")[1], State::warn, "capability 7.5; expected 8.0 or later");
  const auto calls = of(findings, "cuda calls");
  ASSERT_EQ(calls.size(), 2u);
  expect(calls[0], State::good,
         "run specialized kernels, compiled at first use; " + none_of_all_ +
             " generic kernels for sm_90a found");
  EXPECT_EQ(calls[1].details["target"], "sm_80");
  EXPECT_EQ(nvrtc_.num_compiles, 2);
  expect_part(of(findings, "nvrtc")[0], State::good, "tried for sm_90a");
  expect_part(of(findings, "nvrtc")[0], State::good, "tried for sm_80");
}

TEST_F(ExamineCudaTest, NoDeviceOfUse) {
  fake_.capabilities = {{7, 5}};
  expect(of(examine(), "cuda calls")[0], State::warn,
         "cannot run here: no CUDA device of compute capability 8.0 or later");
  fake_.capabilities = {};
  expect(of(examine(), "cuda calls")[0], State::good, "cannot run here: no CUDA device");
  for (const auto& [code, state] : {std::pair{100, State::good}, std::pair{3, State::warn}}) {
    fake_.fail_call = "cuInit";
    fake_.fail_at = 1;
    fake_.fail_code = code;
    const auto findings = examine();
    expect_part(of(findings, "device")[0], state, "none: cuInit: CUDA_ERROR_NO");
    expect(of(findings, "cuda calls")[0], State::good, "cannot run here: no CUDA device");
  }
}

TEST_F(ExamineCudaTest, AnArchIsTold) {
  add_fake_nvrtc();
  settings_.arch.cuda = Target::compute_80;
  const auto findings = examine();
  expect_part(of(findings, "device")[0], State::good,
              "target compute_80 (could be sm_90a; RLK_ARCH says another)");
  ASSERT_EQ(of(findings, "cuda calls").size(), 1u);
  EXPECT_EQ(of(findings, "cuda calls")[0].details["target"], "compute_80");
}

TEST_F(ExamineCudaTest, EveryNvrtcIsToldAndWhyOneIsChosen) {
  const auto newer = add_nvrtc("newer", "13.0");
  const auto older = add_nvrtc("older", "12.4");
  const auto lone = add_nvrtc("lone", "12.8");
  fs::remove(fs::path(lone).parent_path() / "libnvrtc-builtins.so.12.8");
  add_fake_nvrtc();
  const auto all = of(examine(12080), "nvrtc");
  ASSERT_EQ(all.size(), 4u);
  expect(all[0], State::good,
         "13.0 in " + newer +
             ", build 6162636465666768, system's loader; not chosen, too new for a "
             "driver of CUDA 12");
  expect_part(all[1], State::good,
              ", build 0011223344556677, system's loader; chosen, the newest that a driver of CUDA "
              "12 takes, tried for sm_90a in ");
  EXPECT_EQ(all[1].details["version"], "12.99");
  EXPECT_EQ(all[1].details["path"], fs::canonical(RLK_FAKE_NVRTC).string());
  EXPECT_EQ(all[1].details["build_id"], "00112233445566778899aabbccddeeff00112233");
  EXPECT_EQ(all[1].details["chosen"], true);
  expect(all[2], State::good,
         "12.4 in " + older +
             ", build 6162636465666768, system's loader; not chosen, another comes "
             "first");
  expect_part(all[3], State::good, "; not usable: no libnvrtc-builtins");
  EXPECT_EQ(all[3].details["chosen"], false);

  // Without a driver nothing bounds it; it is tried all the same.
  const auto without = of(examine(nullptr), "nvrtc");
  expect_part(without[0], State::warn, "; chosen, the newest, fails for sm_80: ");
}

TEST_F(ExamineCudaTest, TheOneThatRlkNvrtcNamesIsTold) {
  add_nvrtc("newer", "13.0");
  search_.named = RLK_FAKE_NVRTC;
  auto all = of(examine(12080), "nvrtc");
  expect_part(all[0], State::good, ", RLK_NVRTC; chosen, tried for sm_90a");
  expect_part(all[1], State::good, "; not chosen, because RLK_NVRTC names another");
  search_.named = temp_ / "nothing";
  all = of(examine(12080), "nvrtc");
  ASSERT_EQ(all.size(), 3u);
  expect(all[0], State::warn,
         "unknown version in " + temp_ / "nothing" +
             ", RLK_NVRTC; not usable: RLK_NVRTC names no file that can be read");
  expect_part(all[1], State::good, "; not chosen, because RLK_NVRTC names another");
  expect_part(all[2], State::warn, "none chosen: ");
}

// What is there may not open, or not know the device.
TEST_F(ExamineCudaTest, AnNvrtcThatDoesNotCompileIsAFault) {
  add_nvrtc("newer", "13.0");
  auto findings = examine(13000);
  expect_part(of(findings, "nvrtc")[0], State::fail, "fails for sm_90a: ");
  expect(of(findings, "cuda calls")[0], State::fail,
         "cannot run without a compiler; " + none_of_all_ + " generic kernels for sm_90a found");

  add_fake_nvrtc();
  nvrtc_.fail_call = "nvrtcCompileProgram";
  nvrtc_.log = "sm_90a is not known";
  findings = examine(12080);
  expect_part(of(findings, "nvrtc")[1], State::fail, "sm_90a is not known");
  make_builtin_layer(Target::sm_90a);
  expect_part(of(examine(12080), "cuda calls")[0], State::warn,
              "else generic ones; " + all_of_all_);
}

TEST_F(ExamineCudaTest, ATrialThatFailsLeavesNothing) {
  const auto num_files = [&] {
    return std::distance(fs::directory_iterator(temp_.path()), fs::directory_iterator());
  };
  add_fake_nvrtc();
  nvrtc_.fail_call = "nvrtcCompileProgram";
  const auto before = num_files();
  ::setenv("TMPDIR", temp_.path().c_str(), 1);
  const auto findings = examine();
  ::unsetenv("TMPDIR");
  expect_part(of(findings, "nvrtc")[0], State::fail, "fails for sm_90a: ");
  EXPECT_EQ(of(findings, "nvrtc")[0].text.find("source:"), std::string::npos);
  EXPECT_EQ(num_files(), before);
}

TEST_F(ExamineCudaTest, WithoutNvrtcTheBuiltInKernelsRun) {
  auto findings = examine();
  expect_part(of(findings, "nvrtc")[0], State::warn, "none chosen: no NVRTC found");
  expect_part(of(findings, "cuda calls")[0], State::fail,
              "cannot run without a compiler; " + none_of_all_);
  make_builtin_layer(Target::sm_90a);
  expect(of(examine(), "cuda calls")[0], State::warn,
         "run cached kernels, else generic ones; " + all_of_all_ +
             " generic kernels for sm_90a found");
}

TEST_F(ExamineCudaTest, PolicyOffNeedsNoNvrtc) {
  settings_.policy = Policy::off;
  make_builtin_layer(Target::sm_90a);
  const auto findings = examine();
  expect_part(of(findings, "nvrtc")[0], State::good, "none chosen");
  expect(of(findings, "cuda calls")[0], State::good,
         "run only what is cached (RLK_JIT=off); " + all_of_all_ +
             " generic kernels for sm_90a found");
  fake_.capabilities = {{8, 0}};
  expect_part(of(examine(), "cuda calls")[0], State::fail,
              none_of_all_ + " generic kernels for sm_80");
}

// Of the user's layer: with a compiler at hand another compiler's entries are not asked for.
TEST_F(ExamineCudaTest, EntriesOfAnotherCompilerCountWhereNothingIsCompiled) {
  add_fake_nvrtc();
  make_layer(folder_, Target::sm_90a);
  expect_part(of(examine(), "cuda calls")[0], State::good, none_of_all_);
  settings_.policy = Policy::off;
  expect_part(of(examine(), "cuda calls")[0], State::good, all_of_all_);
}

}  // namespace
}  // namespace rlk::cli
