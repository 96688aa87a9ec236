// SPDX-License-Identifier: Apache-2.0
// The two ops that tune knows.
#include "cli/tune/subject.hpp"

#include "jit/tuning_file.hpp"
#include "templates/det_gemm/op.hpp"
#include "templates/linear_logp/op.hpp"

#include <algorithm>

namespace rlk::cli {

std::vector<const jit::Op*> ops_with_tiles() {
  return {&templates::linear_logp_op, &templates::det_gemm_op};
}

bool tunes_layers(const jit::Op& op) { return &op == &templates::det_gemm_op; }

std::array<TuneSize, 2> sizes_of(const jit::Op& op, const jit::ModelShape& shape) {
  if (!tunes_layers(op)) return {{{"vocab", "V", shape.vocab}, {"hidden", "D", shape.hidden}}};
  const jit::LinearShape& layer = shape.linears.at(0);
  return {{{"inputs", "K", layer.inputs}, {"outputs", "N", layer.outputs}}};
}

std::vector<int> tune_tiles(const jit::Op& op, const jit::ModelShape& shape, DType dtype,
                            Target target) {
  const auto kernel = op.model_variants(shape, dtype, jit::Pass::fwd, target, jit::Tuning()).at(0);
  const auto constant = static_cast<std::size_t>(
      std::ranges::find(op.constants, "tile", &jit::ConstantDef::label) - op.constants.begin());
  std::vector<int> tiles;
  for (const auto& other : op.alternatives(kernel)) {
    tiles.push_back(static_cast<int>(other.values[constant]));
  }
  if (tiles.empty()) return {};
  tiles.push_back(static_cast<int>(kernel.values[constant]));
  std::ranges::sort(tiles);
  if (tunes_layers(op)) tiles.insert(tiles.begin(), jit::Tuning::k_own);
  return tiles;
}

std::string_view tile_name(const jit::Op& op, int tile) {
  return tile == jit::Tuning::k_own ? jit::k_own_tile
                                    : op.tile_names[static_cast<std::size_t>(tile)];
}

}  // namespace rlk::cli
