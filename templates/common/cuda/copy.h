// SPDX-License-Identifier: Apache-2.0
// What the copy of an operand is told. Shared by host and kernels, so it includes nothing.
#pragma once

namespace rlk {

// Copies rows of any strides into aligned, zero-padded ones. Element
// (r, c) of the copy is at `to + r * pitch + c`; r counts the leading axes in row-major order.
constexpr int kCudaCopyAxes = 8;
constexpr int kCopyTileRows = 128;
struct CudaCopy {
  const void* from;
  void* to;
  long long num_rows, num_cols, pitch;  // pitch >= num_cols; what lies between becomes 0
  long long col_stride;
  int num_axes;  // leading axes; sizes[i] and strides[i], outermost first
  long long sizes[kCudaCopyAxes], strides[kCudaCopyAxes];
  int element_bytes;  // 1, 2, 4, 8, or 16 of aligned rows
  // Copy row rows[i] to row i, i < *num_active, and zeros up to whole tiles, within num_rows; null:
  // every row.
  const long long* rows;
  const long long* num_active;  // null with rows
  int skipped_if_all;           // nothing is copied where all rows are active
};

}  // namespace rlk
