// SPDX-License-Identifier: Apache-2.0
// linear_logp for the dispatcher: its constants, entry points and stages.
#include "templates/linear_logp/op.hpp"

#include "templates/common/logp/check.hpp"
#include "templates/common/logp/variants.hpp"
#include "templates/linear_logp/check.hpp"
#include "templates/linear_logp/cuda_args.h"
#include "templates/linear_logp/launch.hpp"
#include "templates/linear_logp/launch_cpu.hpp"
#include "templates/linear_logp/launch_cuda.hpp"

#include <algorithm>
#include <array>

namespace rlk {
namespace {

constexpr auto k_tile_names = [] {
  std::array<std::string_view, std::size(kLinearLogpSm90Tiles)> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kLinearLogpSm90Tiles[i].name;
  return names;
}();

// In the text form the first is left out.
constexpr auto k_tile_words = [] {
  auto words = k_tile_names;
  words[0] = "";
  return words;
}();

// Of the row classes, where nothing was measured.
constexpr std::array<std::int64_t, jit::k_num_row_classes> k_own_tiles = {1, 2, 0};

constexpr jit::ConstantDef k_constants[] = {
    {"x", "kX", k_type_words, /*may_be_run_time=*/false},
    {"V", "kV"},
    {"D", "kD"},
    {"softcap", "kSoftcap", k_off_on},
    {"logit_scale", "kLogitScale", k_off_on},
    {"entropy", "kEntropy", k_off_on},
    {"tile", "kTile", k_tile_words},  // of the loop of sm_90a; 0 elsewhere
};
static_assert(std::string_view(k_constants[k_linear_logp_tile].label) == "tile");

// Whether kTile has a meaning.
bool has_tiles(std::int64_t x, jit::Pass pass, Target target) {
  return pass == jit::Pass::fwd && linear_logp_uses_sm90_loop(static_cast<int>(x), target);
}

std::int64_t tile_of(std::size_t row_class, const jit::Tuning& tuning) {
  const std::int64_t chosen = tuning.tiles[row_class];
  return chosen == jit::Tuning::k_own ? k_own_tiles[row_class] : chosen;
}

std::span<const char* const> entries(jit::Pass pass, Backend backend) {
  if (backend == Backend::cuda) return linear_logp_cuda_entries(pass);
  if (pass == jit::Pass::fwd) return LinearLogpFwdSteps::entries;
  return LinearLogpBwdSteps::entries;
}

jit::Specialization specialize(const jit::OpCall& base, Target target, const jit::Tuning& tuning) {
  const auto& call = static_cast<const LinearLogpCall&>(base);
  const auto x = cpu_type(call.weight.dtype);
  std::int64_t tile = 0;
  if (has_tiles(x, call.pass, target)) {
    tile = call.tile ? *call.tile : tile_of(jit::row_class(call.target.num_elements()), tuning);
  }
  return {call.op,
          call.pass,
          target,
          {x, call.weight.shape[0], call.weight.shape[1], call.softcap.has_value(),
           call.logit_scale != 1.0, call.needs_entropy(), tile}};
}

int dynamic_shared_bytes(const jit::Specialization& spec) {
  if (backend(spec.target) == Backend::cpu) return 0;
  const int x = static_cast<int>(spec.values[0]);
  const auto tile = static_cast<int>(spec.values[k_linear_logp_tile]);
  return linear_logp_cuda_shared_bytes(x, spec.target, spec.pass, tile);
}

std::vector<jit::Specialization> generic_variants(Target target) {
  std::vector<jit::Specialization> variants;
  for (auto pass : {jit::Pass::fwd, jit::Pass::bwd}) {
    for (auto type : {kTypeFloat32, kTypeBfloat16, kTypeFloat16}) {
      variants.push_back(
          jit::Specialization{&templates::linear_logp_op, pass, target, {type}}.generic());
    }
  }
  return variants;
}

std::vector<jit::Specialization> alternatives(const jit::Specialization& spec) {
  std::vector<jit::Specialization> others;
  const std::int64_t own = spec.values[k_linear_logp_tile];
  if (!has_tiles(spec.values[0], spec.pass, spec.target) || own == jit::k_run_time) return others;
  for (std::int64_t tile = 0; tile < std::ssize(k_tile_names); ++tile) {
    if (tile == own) continue;
    others.push_back(spec);
    others.back().values[k_linear_logp_tile] = tile;
  }
  return others;
}

std::vector<jit::Specialization> model_variants(const jit::ModelShape& shape, DType dtype,
                                                jit::Pass pass, Target target,
                                                const jit::Tuning& tuning) {
  check_logp_model(templates::linear_logp_op, shape);
  std::vector<jit::Specialization> variants;
  for (const bool entropy : {false, true}) {
    if (entropy && !shape.entropy) continue;
    jit::Specialization spec{&templates::linear_logp_op,
                             pass,
                             target,
                             {cpu_type(dtype), shape.vocab, shape.hidden, shape.softcap.has_value(),
                              shape.logit_scale != 1, entropy}};
    for (std::size_t rows = 0; rows < jit::k_num_row_classes; ++rows) {
      if (has_tiles(spec.values[0], pass, target)) {
        spec.values[k_linear_logp_tile] = tile_of(rows, tuning);
      }
      if (std::ranges::find(variants, spec) == variants.end()) variants.push_back(spec);
    }
  }
  return variants;
}

}  // namespace

namespace templates {
const jit::Op linear_logp_op{
    "linear_logp",      k_constants,  check_linear_logp,    specialize,
    launch_linear_logp, entries,      dynamic_shared_bytes, generic_variants,
    model_variants,     alternatives, k_tile_names,
};
}  // namespace templates

}  // namespace rlk
