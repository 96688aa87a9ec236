// SPDX-License-Identifier: Apache-2.0
// What tune measures: an op on the sizes of a head or of a layer.
#pragma once

#include "jit/op.hpp"
#include "jit/warm/model_shape.hpp"

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace rlk::cli {

// The ops that have tiles on some card; the first is tuned where none is named.
std::vector<const jit::Op*> ops_with_tiles();

// A size of the weight: a head's vocab and hidden, or a layer's inputs and outputs.
struct TuneSize {
  std::string_view name;    // "vocab"
  std::string_view symbol;  // "V"
  std::int64_t value;
};

// Of one head, or of one layer, the only one of linears.
std::array<TuneSize, 2> sizes_of(const jit::Op& op, const jit::ModelShape& shape);

// Whether the op multiplies with layers, and chooses a tile by the size of the product.
bool tunes_layers(const jit::Op& op);

// Tiles that a call may take, by their index in tile_names; first the op's own choice where that
// depends on more than the class of rows. Fewer than two: there is nothing to tune.
std::vector<int> tune_tiles(const jit::Op& op, const jit::ModelShape& shape, DType dtype,
                            Target target);

std::string_view tile_name(const jit::Op& op, int tile);

}  // namespace rlk::cli
