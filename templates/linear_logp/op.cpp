// SPDX-License-Identifier: Apache-2.0
// linear_logp for the dispatcher: its parameters, constants, entry points and variants.
#include "templates/linear_logp/op.hpp"

#include "templates/linear_logp/cuda_args.h"
#include "templates/linear_logp/launch_cpu.hpp"
#include "templates/registry.hpp"

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

constexpr jit::Parameter k_matrices[] = {
    {"hidden", jit::Kind::tensor, jit::field_of<&LinearLogpCall::hidden>},
    {"weight", jit::Kind::tensor, jit::field_of<&LinearLogpCall::weight>},
    {"bias", jit::Kind::tensor, jit::field_of<&LinearLogpCall::bias>},
};
constexpr jit::Parameter k_own_parameters[] = {
    {"saved_mib",
     jit::Kind::optional_index,
     jit::field_of<&LinearLogpCall::saved_mib>,
     jit::k_no_index,
     nullptr,
     {"keep", "kKeep", k_off_on},
     [](const jit::OpCall& base) {
       const auto& call = static_cast<const LinearLogpCall&>(base);
       return call.pass == jit::Pass::fwd && call.kept.present();
     }},
    {"entropy_grad", jit::Kind::flag, jit::field_of<&LinearLogpCall::entropy_grad>},
    {"accumulate_into", jit::Kind::tensor, jit::field_of<&LinearLogpCall::accumulate_into>},
};
constexpr auto k_parameters =
    jit::joined(k_matrices, k_row_parameters, k_output_parameters, k_own_parameters);

constexpr auto k_constants =
    logits_constants({{"V", "kV"}, {"D", "kD"}, k_segment_constant}, k_parameters,
                     {{"tile", "kTile", k_tile_words}});  // of the loop of sm_90a; 0 elsewhere

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
  const Tensor& weight = call.weight;
  auto spec = logits_specialization(
      call, target, weight.dtype,
      {weight.shape[0], weight.shape[1], segment_constant(call, weight.shape[0])});
  if (has_tiles(spec.values[0], call.pass, target)) {
    spec.values[k_linear_logp_tile] =
        call.tile ? *call.tile : tile_of(jit::row_class(call.target.num_elements()), tuning);
  } else {
    spec.values[k_linear_logp_keep] = 0;  // another kernel on sm_90a alone
  }
  return spec;
}

int dynamic_shared_bytes(const jit::Specialization& spec) {
  if (backend(spec.target) == Backend::cpu) return 0;
  const int x = static_cast<int>(spec.values[0]);
  const auto tile = static_cast<int>(spec.values[k_linear_logp_tile]);
  return linear_logp_cuda_shared_bytes(x, spec.target, spec.pass, tile,
                                       spec.values[k_linear_logp_keep] != 0);
}

std::vector<jit::Specialization> generic_variants(Target target) {
  return generic_logits_variants(templates::linear_logp_op, target);
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
  if (shape.vocab == 0) return {};
  LinearLogpCall call;
  const std::int64_t sizes[] = {shape.vocab, shape.hidden};
  call.weight = dense_tensor(nullptr, dtype, {}, sizes);
  call.segment = segment_of_shard(shape);
  const Tensor given = dense_tensor(nullptr, dtype, {}, sizes);
  std::vector<jit::Specialization> variants;
  const auto add = [&] {
    for (std::size_t rows = 0; rows < jit::k_num_row_classes; ++rows) {
      const bool tiled = has_tiles(type_code(dtype), pass, target);
      if (tiled) call.tile = static_cast<int>(tile_of(rows, tuning));
      const auto spec = specialize(call, target, tuning);
      if (std::ranges::find(variants, spec) == variants.end()) variants.push_back(spec);
    }
  };
  for_model_calls(call, templates::linear_logp_op, shape, pass, [&] {
    add();
    if (!shape.keep || call.softcap) return;
    call.kept = given;
    add();
    call.kept = {};
  });
  return variants;
}

std::vector<jit::Specialization> gradients(const jit::OpCall& base, Target target,
                                           const jit::Tuning& tuning) {
  auto call = static_cast<const LinearLogpCall&>(base);
  set_gradients_of(call, call.entropy_grad);
  return {specialize(call, target, tuning)};
}

}  // namespace

constexpr std::size_t index_of(std::string_view label) {
  return static_cast<std::size_t>(
      std::ranges::find(k_constants.span(), label, &jit::ConstantDef::label) -
      k_constants.span().begin());
}
constinit const std::size_t k_linear_logp_tile = index_of("tile");
constinit const std::size_t k_linear_logp_softcap = index_of("softcap");
constinit const std::size_t k_linear_logp_entropy = index_of("entropy");
constinit const std::size_t k_linear_logp_keep = index_of("keep");

namespace templates {
const jit::Op linear_logp_op{
    .name = "linear_logp",
    .constants = k_constants.span(),
    .check = check_linear_logp,
    .specialize = specialize,
    .launch = launch_linear_logp,
    .entries = entries,
    .dynamic_shared_bytes = dynamic_shared_bytes,
    .generic_variants = generic_variants,
    .model_variants = model_variants,
    .find_source = find_source,
    .alternatives = alternatives,
    .gradients = gradients,
    .tile_names = k_tile_names,
    .parameters = k_parameters,
};
}  // namespace templates

}  // namespace rlk
