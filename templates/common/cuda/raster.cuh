// SPDX-License-Identifier: Apache-2.0
// The order in which tiles of a product are taken.
#pragma once

#include "common/cuda/base.cuh"

namespace rlk {

struct TilePosition {
  Int64 row, col;
};

// Rows fastest within groups of group_rows rows of tiles, then columns, then groups: what a group
// reads of the first operand stays in the L2 cache while each tile of the second passes once.
struct Raster {
  unsigned rows, cols;  // tiles; 32 bits hold their product
  unsigned group_rows;

  Raster() = default;
  RLK_DEVICE Raster(Int64 rows, Int64 cols, int group_rows)
      : rows(static_cast<unsigned>(rows)),
        cols(static_cast<unsigned>(cols)),
        group_rows(static_cast<unsigned>(group_rows)) {}

  RLK_DEVICE unsigned num_tiles() const { return rows * cols; }
  RLK_DEVICE TilePosition at(unsigned index) const {
    const unsigned full = min(group_rows, rows);
    const unsigned group = index / (full * cols);
    const unsigned within = index - group * (full * cols);
    const unsigned height = min(full, rows - group * full);
    const unsigned col = within / height;
    return {Int64{group * full + (within - col * height)}, Int64{col}};
  }
};

}  // namespace rlk
