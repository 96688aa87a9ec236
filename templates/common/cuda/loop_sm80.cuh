// SPDX-License-Identifier: Apache-2.0
// Matrix product of a tile for 16-bit operands: C[rows][cols] += sum over k of A[row][k] *
// B[col][k], by cp.async, ldmatrix and mma.sync m16n8k16 with fp32 accumulators.
//
// Every element of C is one chain of instructions over k ascending, 16 terms each, so its bits
// depend on its own row, column and terms alone: never on the tile's shape, the stages or the
// block. A block runs kWarpRows x kWarpCols warps. Shared memory: kStages stages of both panels.
//
// A kernel calls run() and then reads the accumulators in its epilogue through row(), col() and
// at(); a loop made of other instructions takes this one's place by giving the same names.
#pragma once

#include "common/cuda/element.cuh"
#include "common/cuda/panel.cuh"

namespace rlk {

template <int kX, class Shape, template <int, int, int> class PanelOfA,
          template <int, int, int> class PanelOfB>
class LoopSm80 {
 public:
  static constexpr int kRows = Shape::kRows, kCols = Shape::kCols, kK = Shape::kK;
  static constexpr int kWarpRows = Shape::kWarpRows, kWarpCols = Shape::kWarpCols;
  static constexpr int kThreads = 32 * kWarpRows * kWarpCols;
  using PanelA = PanelOfA<kRows, kK, kThreads>;
  using PanelB = PanelOfB<kCols, kK, kThreads>;
  static constexpr int kStageBytes = PanelA::kBytes + PanelB::kBytes;
  static constexpr int kSharedBytes = Shape::kStages * kStageBytes;

  // A thread has elements at(i, j, 0) and at(i, j, 1) in row(i) and columns col(j), col(j) + 1 of
  // the tile. A row is shared by kRowLanes lanes of a warp, each kRowLanesApart after the one
  // before; it is spread over kWarpCols warps, this thread's being warp_col().
  static constexpr int kRowsOfThread = kRows / kWarpRows / 8;
  static constexpr int kPairsOfThread = kCols / kWarpCols / 8;
  static constexpr int kRowLanes = 4, kRowLanesApart = 1;
  static constexpr int kRowsOfWarp = kRows / kWarpRows;
  RLK_DEVICE int warp_row() const { return thread_ / 32 / kWarpCols; }
  RLK_DEVICE int warp_col() const { return thread_ / 32 % kWarpCols; }
  RLK_DEVICE int row(int i) const {
    return warp_row() * (kRows / kWarpRows) + i * 8 + thread_ % 32 / 4;
  }
  RLK_DEVICE int col(int j) const {
    return warp_col() * (kCols / kWarpCols) + j * 8 + thread_ % 4 * 2;
  }
  // 2 * j + e where this thread has column `col` of the tile; below 0 where it has not.
  RLK_DEVICE int element(int col) const {
    const unsigned from_first = col - this->col(0);
    const bool has = from_first < kPairsOfThread * 8 && from_first % 8 < 2;
    return has ? from_first / 8 * 2 + from_first % 8 : -1;
  }
  RLK_DEVICE float& at(int i, int j, int e) { return c_[i / 2][j][i % 2 * 2 + e]; }

  RLK_DEVICE void zero() {
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) {
#pragma unroll
      for (int j = 0; j < kPairsOfThread; ++j) at(i, j, 0) = at(i, j, 1) = 0.0f;
    }
  }

  // Adds the terms [0, num_k). All threads of the block; shared memory is free again afterwards.
  RLK_DEVICE void run(const typename PanelA::Source& a, const typename PanelB::Source& b, int num_k,
                      void* shared) {
    const unsigned first = shared_address(shared);
    const unsigned end = first + kStages * kStageBytes;
    const int num_stages = (num_k + kK - 1) / kK;
#pragma unroll 1
    for (int stage = 0; stage < kStages - 1; ++stage) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        copy(i, first + stage * kStageBytes, a, b, stage * kK, num_k);
      }
      cp_async_commit_group();
    }
    const unsigned offset_a = PanelA::template offset<Side::kA>(warp_row() * (kRows / kWarpRows));
    const unsigned offset_b = PanelB::template offset<Side::kB>(warp_col() * (kCols / kWarpCols));
    cp_async_wait_group<kStages - 2>();
    __syncthreads();
#pragma unroll
    for (int m = 0; m < kBlocksA; ++m) PanelA::read(fragment_a_[m], first, offset_a, m, 0);
    PanelB::read(fragment_b_[0], first + PanelA::kBytes, offset_b, 0, 0);

    unsigned reading = first;
    unsigned writing = first + (kStages - 1) * kStageBytes;
#pragma unroll 1
    for (int stage = 0; stage < num_stages; ++stage) {
      const unsigned after = reading + kStageBytes == end ? first : reading + kStageBytes;
      // Copies of stages beyond the last one write zeros, which nothing reads: no branch here.
      multiply(reading, after, offset_a, offset_b, writing, a, b, (stage + kStages - 1) * kK,
               num_k);
      writing = reading;
      reading = after;
    }
    cp_async_wait_group<0>();
    __syncthreads();
    thread_ = thread_index();
  }

 private:
  static constexpr int kStages = Shape::kStages;
  static constexpr int kSteps = kK / 16;
  static constexpr int kBlocksA = kRows / kWarpRows / 16;
  static constexpr int kBlocksB = kCols / kWarpCols / 16;
  static constexpr int kCopies = PanelA::kCopies + PanelB::kCopies;  // of a thread and stage
  static_assert(kRows % (kWarpRows * 16) == 0 && kCols % (kWarpCols * 16) == 0 && kStages >= 2);
  static_assert(kBlocksB % 2 == 0);

  // Copies are spread evenly over the places of a stage but the last one, which follows the wait.
  static constexpr int kCopyPlaces = kSteps * kBlocksB - 1;
  static RLK_DEVICE constexpr int first_copy(int place) {
    return min(kCopies, (place * kCopies + kCopyPlaces - 1) / kCopyPlaces);
  }
  static RLK_DEVICE void copy(int i, unsigned to, const typename PanelA::Source& a,
                              const typename PanelB::Source& b, int k0, int num_k) {
    if (i < PanelA::kCopies) {
      PanelA::copy(i, to, a, k0, num_k);
    } else {
      PanelB::copy(i - PanelA::kCopies, to + PanelA::kBytes, b, k0, num_k);
    }
  }

  // The instructions of one stage, block by block of B in each step of 16 terms. Between them:
  // copies of a later stage, the fragment of the next block of B, and in the last block of a step
  // the fragments of the next step's A, each into the registers that were just used for the last
  // time. Before the stage's last block the warp has read all of the stage and waits for the next
  // one. One loop over all places: NVRTC spends less on it than on nested ones.
  RLK_DEVICE void multiply(unsigned reading, unsigned after, unsigned offset_a, unsigned offset_b,
                           unsigned writing, const typename PanelA::Source& a,
                           const typename PanelB::Source& b, int next_k, int num_k) {
#pragma unroll
    for (int place = 0; place <= kCopyPlaces; ++place) {
      const int step = place / kBlocksB, n = place % kBlocksB;
      const bool last_step = step == kSteps - 1, last_block = n == kBlocksB - 1;
      const int next_step = last_step ? 0 : step + 1;
      const unsigned next_stage = last_step ? after : reading;
      if (last_step && last_block) {
        cp_async_commit_group();
        cp_async_wait_group<kStages - 2>();
        __syncthreads();
      }
      if (last_block) {
        PanelB::read(fragment_b_[0], next_stage + PanelA::kBytes, offset_b, 0, next_step);
      } else {
        PanelB::read(fragment_b_[(n + 1) % 2], reading + PanelA::kBytes, offset_b, n + 1, step);
      }
#pragma unroll
      for (int i = first_copy(place); i < first_copy(place + 1); ++i) {
        copy(i, writing, a, b, next_k, num_k);
      }
#pragma unroll
      for (int m = 0; m < kBlocksA; ++m) {
        const auto& b_now = fragment_b_[n % 2];
        Element<kX>::mma(c_[m][2 * n], fragment_a_[m], b_now[0], b_now[1]);
        Element<kX>::mma(c_[m][2 * n + 1], fragment_a_[m], b_now[2], b_now[3]);
        if (last_block) PanelA::read(fragment_a_[m], next_stage, offset_a, m, next_step);
      }
    }
  }

  int thread_ = thread_index();
  float c_[kBlocksA][2 * kBlocksB][4];
  unsigned fragment_a_[kBlocksA][4];
  unsigned fragment_b_[2][4];
};

}  // namespace rlk
