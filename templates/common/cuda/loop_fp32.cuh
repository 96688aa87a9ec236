// SPDX-License-Identifier: Apache-2.0
// Matrix product of a tile for fp32 operands: as LoopSm80, by fused multiply-adds in real fp32.
//
// Terms are cut into blocks of kBlock from term 0 on. A block is one chain from zero over k
// ascending, and blocks join the element in order: this keeps long sums of one sign accurate. 256
// threads, each with kRows / 16 rows and kCols / 16 columns. Shared memory: kStages stages of both
// panels.
#pragma once

#include "common/cuda/element.cuh"

namespace rlk {

// [lane][k], rows of 128 bytes, chunks of four terms swizzled by lane / 4: threads side by side
// read every fourth lane.
template <int kLanes, int kK, int kThreads>
struct PanelFp32AlongK {
  struct Source {
    const void* const* lanes;  // table in shared memory of where each lane starts
  };
  static constexpr int kBytes = kLanes * kK * 4;
  static constexpr int kCopies = kLanes * 8 / kThreads;
  static_assert(kK == 32);

  static RLK_DEVICE void copy(int i, unsigned to, const Source& source, int k0, int num_k) {
    const int chunk = threadIdx.x % 8;
    const int lane = threadIdx.x / 8 + i * (kThreads / 8);
    const int k = k0 + chunk * 4;
    const char* const from = static_cast<const char*>(source.lanes[lane]) + Int64{k} * 4;
    cp_async_cg(to + lane * 128 + ((chunk ^ (lane >> 2 & 7)) << 4), from, k < num_k ? 16 : 0);
  }
  // x[i][t]: lane + i, term k + t; both multiples of 4.
  static RLK_DEVICE void read(float (&x)[4][4], const char* panel, int lane, int k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 v = *reinterpret_cast<const float4*>(panel + (lane + i) * 128 +
                                                        ((k >> 2 ^ (lane >> 2 & 7)) << 4));
      x[i][0] = v.x, x[i][1] = v.y, x[i][2] = v.z, x[i][3] = v.w;
    }
  }
};

// [k][lane].
template <int kLanes, int kK, int kThreads>
struct PanelFp32AlongLanes {
  struct Source {
    const void* first;  // the first lane's term 0
    Int64 pitch_bytes;
    int num_lanes;  // a multiple of 4; lanes from here on are 0
  };
  static constexpr int kBytes = kLanes * kK * 4;
  static constexpr int kChunks = kLanes / 4;
  static constexpr int kCopies = kK * kChunks / kThreads;
  static_assert(kK * kChunks % kThreads == 0);

  static RLK_DEVICE void copy(int i, unsigned to, const Source& source, int k0, int num_k) {
    const int item = threadIdx.x + i * kThreads;
    const int chunk = item % kChunks;
    const int k = item / kChunks;
    const char* const from =
        static_cast<const char*>(source.first) + (k0 + k) * source.pitch_bytes + chunk * 16;
    const bool real = k0 + k < num_k && chunk * 4 < source.num_lanes;
    cp_async_cg(to + k * (kLanes * 4) + chunk * 16, from, real ? 16 : 0);
  }
  static RLK_DEVICE void read(float (&x)[4][4], const char* panel, int lane, int k) {
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const float4 v = *reinterpret_cast<const float4*>(panel + ((k + t) * kLanes + lane) * 4);
      x[0][t] = v.x, x[1][t] = v.y, x[2][t] = v.z, x[3][t] = v.w;
    }
  }
};

template <class Shape, template <int, int, int> class PanelOfA,
          template <int, int, int> class PanelOfB>
class LoopFp32 {
 public:
  static constexpr int kRows = Shape::kRows, kCols = Shape::kCols, kK = Shape::kK;
  static constexpr int kThreads = 256;
  static constexpr int kBlock = 192;
  using PanelA = PanelOfA<kRows, kK, kThreads>;
  using PanelB = PanelOfB<kCols, kK, kThreads>;
  static constexpr int kStageBytes = PanelA::kBytes + PanelB::kBytes;
  static constexpr int kSharedBytes = Shape::kStages * kStageBytes;

  // See LoopSm80.
  static constexpr int kRowsOfThread = kRows / 16;
  static constexpr int kPairsOfThread = kCols / 32;
  static constexpr int kRowLanes = 16;
  static constexpr int kRowsOfWarp = 2 * kRowsOfThread;
  static constexpr int kWarpCols = 1;
  RLK_DEVICE int warp_col() const { return 0; }
  RLK_DEVICE int row(int i) const { return threadIdx.x / 16 * kRowsOfThread + i; }
  RLK_DEVICE int col(int j) const { return j / 2 * 64 + threadIdx.x % 16 * 4 + j % 2 * 2; }
  RLK_DEVICE int element(int col) const {
    const unsigned from_first = col - this->col(0);
    const bool has = from_first < kCols && from_first % 64 < 4;
    return has ? from_first / 64 * 4 + from_first % 64 : -1;
  }
  RLK_DEVICE float& at(int i, int j, int e) { return sum_[i][2 * j + e]; }

  RLK_DEVICE void zero() { set_zero(sum_); }

  RLK_DEVICE void run(const typename PanelA::Source& a, const typename PanelB::Source& b, int num_k,
                      void* shared) {
    const unsigned first = shared_address(shared);
    const int num_steps = (num_k + kK - 1) / kK;
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) {
      if (stage < num_steps) copy(first + stage * kStageBytes, a, b, stage * kK, num_k);
      cp_async_commit_group();
    }
    float part[kRowsOfThread][kColsOfThread];
    set_zero(part);
#pragma unroll 1
    for (int step = 0; step < num_steps; ++step) {
      cp_async_wait_group<kStages - 2>();
      __syncthreads();
      const int next = step + kStages - 1;
      if (next < num_steps) copy(first + next % kStages * kStageBytes, a, b, next * kK, num_k);
      cp_async_commit_group();
      multiply(part, static_cast<const char*>(shared) + step % kStages * kStageBytes);
      if ((step + 1) % (kBlock / kK) == 0 || step + 1 == num_steps) {
#pragma unroll
        for (int i = 0; i < kRowsOfThread; ++i) {
#pragma unroll
          for (int j = 0; j < kColsOfThread; ++j) sum_[i][j] = sum_[i][j] + part[i][j];
        }
        set_zero(part);
      }
    }
    cp_async_wait_group<0>();
    __syncthreads();
  }

 private:
  static constexpr int kStages = Shape::kStages;
  static constexpr int kColsOfThread = kCols / 16;
  static_assert(kRows % 64 == 0 && kCols % 64 == 0 && kBlock % kK == 0 && kStages >= 2);

  static RLK_DEVICE void set_zero(float (&x)[kRowsOfThread][kColsOfThread]) {
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) {
#pragma unroll
      for (int j = 0; j < kColsOfThread; ++j) x[i][j] = 0.0f;
    }
  }

  static RLK_DEVICE void copy(unsigned to, const typename PanelA::Source& a,
                              const typename PanelB::Source& b, int k0, int num_k) {
#pragma unroll
    for (int i = 0; i < PanelA::kCopies; ++i) PanelA::copy(i, to, a, k0, num_k);
#pragma unroll
    for (int i = 0; i < PanelB::kCopies; ++i) {
      PanelB::copy(i, to + PanelA::kBytes, b, k0, num_k);
    }
  }

  RLK_DEVICE void multiply(float (&part)[kRowsOfThread][kColsOfThread], const char* stage) const {
#pragma unroll 1
    for (int k = 0; k < kK; k += 4) {
      float a[kRowsOfThread / 4][4][4];
#pragma unroll
      for (int i = 0; i < kRowsOfThread / 4; ++i) PanelA::read(a[i], stage, row(4 * i), k);
#pragma unroll
      for (int j = 0; j < kColsOfThread; j += 4) {
        float b[4][4];
        PanelB::read(b, stage + PanelA::kBytes, col(j / 2), k);
#pragma unroll
        for (int t = 0; t < 4; ++t) {
#pragma unroll
          for (int i = 0; i < kRowsOfThread; ++i) {
#pragma unroll
            for (int l = 0; l < 4; ++l) {
              part[i][j + l] = fma_rn(a[i / 4][i % 4][t], b[l][t], part[i][j + l]);
            }
          }
        }
      }
    }
  }

  float sum_[kRowsOfThread][kColsOfThread];
};

}  // namespace rlk
