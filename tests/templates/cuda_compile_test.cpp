// SPDX-License-Identifier: Apache-2.0
// Compiles every CUDA template for every target, one test a target and op. Nothing may spill.
// - Generic: each (pass, dtype), read from the built-in layer, for which the build compiled it.
// - Specialized: three shapes, two of them by each NVRTC of RLK_TEST_NVRTC, with other tiles. For
//   bf16 on sm_90a all of them, each by one NVRTC. Each other target compiles one of them for every
//   third (pass, dtype), its neighbours others for others. With RLK_LONG_TESTS all are compiled for
//   all.
// What was compiled is kept in the build folder, so that a run compiles only what changed since the
// last one; all that can be read from the code is checked in each run.
#include "jit/nvrtc/compile_log.hpp"
#include "jit/nvrtc/cubin_info.hpp"
#include "jit/nvrtc/nvrtc_compiler.hpp"
#include "jit/op.hpp"
#include "jit/ship_kernel.hpp"
#include "runtime/error.hpp"
#include "templates/common/types.hpp"
#include "templates/det_gemm/op.hpp"
#include "templates/linear_logp/cuda_args.h"
#include "templates/linear_logp/op.hpp"
#include "templates/registry.hpp"
#include "tests/support/long_tests.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

namespace rlk {
namespace {

// Of a folder that outlives what its entries were made from: about three times what one run makes.
constexpr std::uint64_t k_cache_budget_bytes = std::uint64_t{256} << 20;

// Values by the label of the constant, for all ops. Of sizes: the bench's shape, an odd vocabulary,
// and one below every tile whose rows are not aligned. Of options: few, all, some.
using Shape = std::map<std::string_view, std::int64_t>;
const Shape k_shapes[] = {
    {{"V", 131072},       {"D", 2048}, {"softcap", 0}, {"logit_scale", 0}, {"entropy", 0},
     {"stats", 0},        {"keep", 0}, {"loss", 0},    {"ratio", 0},       {"advantage", 0},
     {"rejected", 0},     {"tis", 1},  {"kl", 0},      {"dual_clip", 1},   {"tis_level", 0},
     {"normalize", 0},    {"a", 0},    {"b", 0},       {"out", 0},         {"tile", 0},
     {"det_gemm tile", 0}},
    {{"V", 50257},
     {"D", 4096},
     {"softcap", 1},
     {"logit_scale", 1},
     {"entropy", 1},
     {"stats", 1},
     {"keep", 0},
     {"loss", 1},
     {"dual_clip", 2},
     {"tis", 3},
     {"kl", 4},
     {"kl_gradient", 1},
     {"tis_level", 2},
     {"normalize", 3},
     {"a", 0},
     {"b", 1},
     {"out", 1},
     {"tile", 0},
     {"det_gemm tile", 1}},
    {{"V", 193},
     {"D", 33},
     {"softcap", 0},
     {"logit_scale", 0},
     {"entropy", 1},
     {"stats", 0},
     {"keep", 0},
     {"loss", 3},
     {"tis", 2},
     {"kl", 2},
     {"kl_weight", 1},
     {"tis_level", 1},
     {"normalize", 2},
     {"a", 1},
     {"b", 1},
     {"out", 2},
     {"tile", 0},
     {"det_gemm tile", 2}}};

using Compilers = std::vector<std::unique_ptr<jit::NvrtcCompiler>>;

Compilers find_compilers() {
  Compilers made;
  const char* list = std::getenv("RLK_TEST_NVRTC");
  std::istringstream paths(list != nullptr ? list : "");
  for (std::string path; std::getline(paths, path, ':');) {
    jit::NvrtcCompiler::Options options;
    options.search = [path] {
      jit::NvrtcSearch search;
      search.named = path;
      return search;
    };
    made.push_back(std::make_unique<jit::NvrtcCompiler>(options));
  }
  return made;
}

// The first, second or third of the tiles that the kernel may have.
void set_det_gemm_tile(const Shape& shape, jit::Specialization& spec) {
  if (spec.op->name != "det_gemm") return;
  const DetGemmLoop loop = det_gemm_loop(static_cast<int>(spec.values[0]), spec.target);
  std::vector<int> tiles;
  for (int tile = 0; tile < kDetGemmNumTiles; ++tile) {
    if (det_gemm_has_tile(loop, tile, spec.value_of("b") == 1)) tiles.push_back(tile);
  }
  const auto nth = static_cast<std::size_t>(shape.at("det_gemm tile"));
  spec.values[k_det_gemm_tile] = tiles[nth % tiles.size()];
}

// A forward that keeps exponentials, where one can; with a softcap none does.
std::optional<jit::Specialization> keeping(jit::Specialization spec) {
  if (spec.op->name != "linear_logp" || spec.pass != jit::Pass::fwd) return {};
  if (!linear_logp_uses_sm90_loop(static_cast<int>(spec.values[0]), spec.target)) return {};
  spec.values[k_linear_logp_keep] = 1;
  spec.values[k_linear_logp_softcap] = 0;
  return spec;
}

struct Variant {
  jit::Specialization spec;
  jit::NvrtcCompiler* compiler;
};

// By the first NVRTC alone the least shape, whose code is no larger than that of the second, and
// other tiles.
std::vector<Variant> specialized_variants(const jit::Specialization& generic,
                                          const Compilers& compilers) {
  std::vector<Variant> all;
  for (const Shape& shape : k_shapes) {
    jit::Specialization spec = generic;
    for (std::size_t i = 0; i < spec.op->constants.size(); ++i) {
      const auto found = shape.find(spec.op->constants[i].label);
      if (found != shape.end()) spec.values[i] = found->second;
    }
    set_det_gemm_tile(shape, spec);
    // A new op's constant would silently stay run-time here.
    EXPECT_NE(spec, generic) << "no shape has a constant of " << generic.text();
    const bool is_least = &shape == std::end(k_shapes) - 1;
    const auto add = [&](const jit::Specialization& made) {
      for (const auto& compiler : std::span(compilers).first(is_least ? 1 : compilers.size())) {
        all.push_back({made, compiler.get()});
      }
      if (is_least) return;
      for (const auto& other : generic.op->alternatives(made)) {
        all.push_back({other, compilers.front().get()});
      }
    };
    add(spec);
    if (const auto keeps = keeping(spec)) add(*keeps);
  }
  return all;
}

// Those of every third (pass, dtype), and of these one.
std::vector<Variant> one_of(std::vector<Variant> all, std::size_t nth, std::size_t num_generic,
                            Target target) {
  const auto turn =
      static_cast<std::size_t>(std::ranges::find(cuda_targets(), target) - cuda_targets().begin());
  const std::size_t every = std::min<std::size_t>(3, num_generic);
  if (nth % every != turn % every) return {};
  return {all[(nth + turn) % all.size()]};
}

// Each specialization by one of the compilers, which take turns.
std::vector<Variant> by_one_compiler(const std::vector<Variant>& all) {
  std::map<std::string, std::vector<Variant>> by_text;
  for (const auto& variant : all) by_text[variant.spec.text()].push_back(variant);
  std::vector<Variant> chosen;
  for (const auto& [text, same] : by_text) chosen.push_back(same[chosen.size() % same.size()]);
  return chosen;
}

// The nth of the (pass, dtype) of an op.
std::vector<Variant> variants(const jit::Specialization& generic, std::size_t nth,
                              std::size_t num_generic, const Compilers& compilers) {
  const bool is_long = test::amount(0, 1) == 1;
  std::vector<Variant> all = specialized_variants(generic, compilers);
  if (!is_long) {
    const bool is_main = generic.target == Target::sm_90a && generic.values[0] == kBfloat16;
    all = is_main ? by_one_compiler(all) : one_of(all, nth, num_generic, generic.target);
  }
  // The last one made the built-in layer. By another one none is shipped.
  for (const auto& compiler : std::span(compilers).last(is_long ? compilers.size() : 1)) {
    all.push_back({generic, compiler.get()});
  }
  return all;
}

// What the launch of an entry asks for. An op knows the largest alone, which may be of another
// entry than the largest static size.
int dynamic_shared_bytes(const jit::Specialization& spec, std::string_view entry) {
  const int x = static_cast<int>(spec.values[0]);
  const int element_bytes = x == 1 ? 4 : 2;
  const int limit = shared_limit_bytes(spec.target);
  if (spec.op->name == "linear_logp" && linear_logp_uses_sm90_loop(x, spec.target)) {
    if (entry == "rlk_linear_logp_fwd_main") {
      const bool keeps = spec.values[k_linear_logp_keep] != 0;
      const auto tile = static_cast<int>(spec.values[k_linear_logp_tile]);
      return linear_logp_sm90_tile(tile, keeps).shared_bytes() +
             (keeps ? kLinearLogpSm90StoreBytes : 0);
    }
    if (entry == "rlk_linear_logp_bwd_dz") {
      const bool takes_logits =
          spec.values[k_linear_logp_softcap] != 0 || spec.values[k_linear_logp_entropy] != 0;
      return linear_logp_sm90_grad_tile(takes_logits).shared_bytes() + kLinearLogpSm90StoreBytes;
    }
    if (entry == "rlk_linear_logp_bwd_dh") return kLinearLogpSm90HiddenTile.shared_bytes();
    return entry == "rlk_linear_logp_bwd_dw" ? kLinearLogpSm90WeightTile.shared_bytes() : 0;
  }
  if (entry == "rlk_linear_logp_fwd_main" || entry == "rlk_linear_logp_bwd_dz") {
    return linear_logp_cuda_logits_tile(x, limit).shared_bytes(element_bytes);
  }
  if (entry.starts_with("rlk_det_gemm_") && entry.find("_main_") != entry.npos) {
    return spec.op->dynamic_shared_bytes(spec);
  }
  if (entry == "rlk_logp_fwd_main" || entry == "rlk_grpo_loss_bwd_main") {
    return spec.op->dynamic_shared_bytes(spec);
  }
  if (entry == "rlk_linear_logp_bwd_dh" || entry == "rlk_linear_logp_bwd_dw") {
    return linear_logp_cuda_gradient_tile(x, limit).shared_bytes(element_bytes);
  }
  return 0;
}

void check_shared(const jit::Specialization& spec, const std::vector<jit::CubinKernel>& kernels) {
  int most = 0;
  for (const auto& kernel : kernels) {
    const int dynamic = dynamic_shared_bytes(spec, kernel.name);
    EXPECT_LE(kernel.shared_bytes + dynamic, shared_limit_bytes(spec.target)) << kernel.name;
    most = std::max(most, dynamic);
  }
  EXPECT_EQ(most, spec.op->dynamic_shared_bytes(spec)) << "the table above is out of date";
}

void check_ptx(const std::string& ptx, std::span<const char* const> entries) {
  // The oldest driver that rlk speaks to takes no newer one.
  EXPECT_TRUE(ptx.starts_with(".version 7.4\n.target sm_80\n")) << ptx.substr(0, 80);
  for (const char* entry : entries) EXPECT_TRUE(jit::ptx_has_entry(ptx, entry)) << entry;
}

void check_cubin(const jit::Specialization& spec, const std::vector<std::byte>& code,
                 std::span<const char* const> entries) {
  const auto kernels = jit::read_cubin(code);
  ASSERT_TRUE(kernels);
  for (const auto& kernel : *kernels) {
    EXPECT_EQ(kernel.local_bytes, 0) << kernel.name;
    EXPECT_GT(kernel.registers, 0) << kernel.name;
  }
  for (const char* entry : entries) {
    EXPECT_NE(std::ranges::find(*kernels, entry, &jit::CubinKernel::name), kernels->end()) << entry;
  }
  check_shared(spec, *kernels);
}

// That code neither spills nor serializes wgmma, ship_kernel has seen to: it stores no other.
void check(const jit::Specialization& spec, const std::vector<std::byte>& code) {
  const auto entries = spec.op->entries(spec.pass, Backend::cuda);
  if (spec.target == Target::compute_80) {
    check_ptx({reinterpret_cast<const char*>(code.data()), code.size()}, entries);
  } else {
    check_cubin(spec, code, entries);
  }
}

using OpOfTarget = std::tuple<Target, const jit::Op*>;
class CudaCompileTest : public ::testing::TestWithParam<OpOfTarget> {};

TEST_P(CudaCompileTest, NothingSpills) {
  const Compilers compilers = find_compilers();
  if (compilers.empty()) {
    GTEST_SKIP() << "RLK_TEST_NVRTC names no NVRTC: nothing to compile with";
  }
  cache::DiskStore store({.read_write = RLK_TEST_KERNEL_CACHE,
                          .read_only = {RLK_TEST_BUILTIN_LAYER},
                          .budget_bytes = k_cache_budget_bytes});
  int num_checked = 0, num_new = 0;
  std::size_t nth = 0;
  const auto& [target, op] = GetParam();
  const auto generics = op->generic_variants(target);
  for (const auto& generic : generics) {
    for (const auto& [spec, compiler] : variants(generic, nth++, generics.size(), compilers)) {
      SCOPED_TRACE(spec.text() + " by " + compiler->identity());
      try {
        const auto kernel = jit::ship_kernel(spec, *compiler, store);
        check(spec, kernel.entry.payload);
        num_new += kernel.is_new ? 1 : 0;
        ++num_checked;
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }
  EXPECT_GT(num_checked, 0);
  std::printf("%d kernels, %d of them compiled now\n", num_checked, num_new);
}

std::string test_name(const ::testing::TestParamInfo<OpOfTarget>& info) {
  const auto& [target, op] = info.param;
  return std::string(name(target)) + "_" + std::string(op->name);
}

INSTANTIATE_TEST_SUITE_P(
    Targets, CudaCompileTest,
    ::testing::Combine(::testing::ValuesIn(cuda_targets().begin(), cuda_targets().end()),
                       ::testing::ValuesIn(templates::ops().begin(), templates::ops().end())),
    test_name);

}  // namespace
}  // namespace rlk
