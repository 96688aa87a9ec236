// SPDX-License-Identifier: Apache-2.0
// Matrix product of a tile for fp32 operands: as LoopSm80, by fused multiply-adds in real fp32.
//
// Terms are cut into blocks of kBlock from term 0 on. A block is one chain from zero over k
// ascending, and blocks join the element in order: this keeps long sums of one sign accurate. 256
// threads, each with kRows / 16 rows and kCols / 16 columns. Shared memory: kStages stages of both
// panels.
//
// Every instruction that is no multiply-add takes one's place, and two warps are all that a
// scheduler has. So a thread reads four terms of what it multiplies next while it multiplies, and
// copies of later stages lie between the products of a stage.
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

  // What a thread copies: of every stage the same places. Opaque values stay in registers, where
  // the compiler would work them out anew for every copy.
  class Copier {
   public:
    RLK_DEVICE Copier(const Source& source, int num_k) : num_k_(num_k) {
      const int chunk = threadIdx.x % 8, lane = threadIdx.x / 8;
      table_ = opaque(shared_address(source.lanes + lane));
      place_ = opaque(lane * 128 + ((chunk ^ (lane >> 2 & 7)) << 4));
      k_ = opaque(chunk * 4);
    }
    // Copy i of kCopies of the stage at `to`, whose first term is k0.
    RLK_DEVICE void copy(int i, unsigned to, int k0) {
      static_assert(kThreads / 8 % 32 == 0);  // the swizzle of copy 0
      const int lane = i * (kThreads / 8), k = k_ + k0;
      const char* const from = ld_shared_pointer(table_ + lane * 8);
      cp_async_cg(to + place_ + lane * 128, from + Int64{k} * 4, k < num_k_ ? 16 : 0);
    }

   private:
    unsigned table_, place_;
    int k_, num_k_;
  };

  // Where a thread's lanes begin, of which `lane` is the first; a multiple of 4.
  static RLK_DEVICE unsigned start(int lane) { return lane * 128 + ((lane >> 2 & 7) << 4); }
  // x[i][t]: lane + from + i, term k + t, in the panel that was added to start(lane); from and k
  // are multiples of 4, and from / 4 has no bit below 8 that lane / 4 has.
  static RLK_DEVICE void read(float (&x)[4][4], unsigned start, int from, int k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 v =
          ld_shared_v4_f32((start ^ ((k >> 2 ^ (from >> 2 & 7)) << 4)) + (from + i) * 128);
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
  static_assert(kThreads % kChunks == 0 && kK * kChunks % kThreads == 0);

  class Copier {
   public:
    RLK_DEVICE Copier(const Source& source, int num_k) {
      const int chunk = threadIdx.x % kChunks, k = threadIdx.x / kChunks;
      from_ = opaque(static_cast<const char*>(source.first) + k * source.pitch_bytes + chunk * 16);
      step_ = kTerms * source.pitch_bytes;
      place_ = opaque(k * (kLanes * 4) + chunk * 16);
      num_k_ = opaque(chunk * 4 < source.num_lanes ? num_k - k : 0);
    }
    // In the order of the stages, and in each of i.
    RLK_DEVICE void copy(int i, unsigned to, int k0) {
      const int k = i * kTerms;
      cp_async_cg(to + place_ + k * (kLanes * 4), from_, k0 + k < num_k_ ? 16 : 0);
      from_ += step_;
    }

   private:
    static constexpr int kTerms = kThreads / kChunks;  // that all threads copy at once
    const char* from_;
    Int64 step_;
    unsigned place_;
    int num_k_;  // that are left from the thread's first one on
  };

  static RLK_DEVICE unsigned start(int lane) { return lane * 4; }
  static RLK_DEVICE void read(float (&x)[4][4], unsigned start, int from, int k) {
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const float4 v = ld_shared_v4_f32(start + ((k + t) * kLanes + from) * 4);
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

  // See LoopSm80. A thread has four rows of every 8 of its warp, and four columns of every 64.
  // Threads side by side share their columns: so shared memory serves 16 of them at once, where
  // reads of 16 bytes by 16 different columns would be two of 8.
  static constexpr int kRowsOfThread = kRows / 16;
  static constexpr int kPairsOfThread = kCols / 32;
  static constexpr int kRowLanes = 16, kRowLanesApart = 2;
  static constexpr int kRowsOfWarp = 2 * kRowsOfThread;
  static constexpr int kWarpCols = 1;
  RLK_DEVICE int warp_col() const { return 0; }
  RLK_DEVICE int row(int i) const {
    return threadIdx.x / 32 * kRowsOfWarp + threadIdx.x % 2 * 4 + i / 4 * 8 + i % 4;
  }
  RLK_DEVICE int col(int j) const { return j / 2 * 64 + threadIdx.x / 2 % 16 * 4 + j % 2 * 2; }
  RLK_DEVICE int element(int col) const {
    const unsigned from_first = col - this->col(0);
    const bool has = from_first < kCols && from_first % 64 < 4;
    return has ? from_first / 64 * 4 + from_first % 64 : -1;
  }
  RLK_DEVICE float& at(int i, int j, int e) { return sum_[i][2 * j + e]; }

  RLK_DEVICE void zero() { set_zero(sum_); }

  RLK_DEVICE void run(const typename PanelA::Source& a, const typename PanelB::Source& b, int num_k,
                      void* shared) {
    const unsigned first = opaque(shared_address(shared));
    const int num_steps = (num_k + kK - 1) / kK;
    typename PanelA::Copier copy_a(a, num_k);
    typename PanelB::Copier copy_b(b, num_k);
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) {
      if (stage < num_steps) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          copy(first + stage * kStageBytes, copy_a, copy_b, part, stage * kK);
        }
      }
      cp_async_commit_group();
    }
    float part[kRowsOfThread][kColsOfThread];
    set_zero(part);
    cp_async_wait_group<kStages - 2>();
    __syncthreads();
    Fragments next(*this, first);
    next.template read_a<0>(0);
    next.template read_b<0>(0, 0);
    unsigned stage = 0, free = (kStages - 1) * kStageBytes;
    int left = kBlock / kK;  // steps of the block
#pragma unroll 1
    for (int step = 0; step < num_steps; ++step) {
      const int k0 = (step + kStages - 1) * kK;
      const unsigned to = first + free;
      free = stage;
      stage = stage == (kStages - 1) * kStageBytes ? 0 : stage + kStageBytes;
#pragma unroll kTurns
      for (int k = 0; k < kK; k += 8) {
        if (k0 < num_k) copy(to, copy_a, copy_b, k / 8, k0);
        // Four terms of four columns at once, which are read in the turn before.
        unrolled<2 * kChunks>([&](auto turn) {
          constexpr int kFour = turn / kChunks, kChunk = turn % kChunks;
          constexpr bool kLast = kChunk == kChunks - 1;
          if constexpr (kLast && kFour == 1) {
            if (k == kK - 8) {  // this stage has been read
              cp_async_commit_group();
              cp_async_wait_group<kStages - 2>();
              __syncthreads();
              next.start(first + stage);
            }
          }
          const int next_k = (k + 4 * (kFour + kLast)) % kK;
          if constexpr (kLast) next.template read_a<1 - kFour>(next_k);
          next.template read_b<1 - turn % 2>(kLast ? 0 : kChunk + 1, next_k);
          multiply<kChunk>(part, next.a[kFour], next.b[turn % 2]);
        });
      }
      if (--left == 0 || step + 1 == num_steps) {
        left = kBlock / kK;
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
  static constexpr int kTurns = Shape::kUnrolled ? kK / 8 : 1;  // of 8 terms, written out
  static constexpr int kColsOfThread = kCols / 16, kChunks = kColsOfThread / 4;
  // A stage is copied in so many parts; at once where the next step reads it.
  static constexpr int kParts = kStages > 2 ? kK / 8 : 1;
  static_assert(kRows % 64 == 0 && kCols % 64 == 0 && kBlock % kK == 0 && kStages >= 2);

  // Four terms of the thread's rows, and of four of its columns: of each those that are multiplied
  // and those that are read meanwhile.
  struct Fragments {
    unsigned own_a, own_b;    // in a stage
    unsigned from_a, from_b;  // of the stage that is read
    float a[2][kRowsOfThread / 4][4][4];
    float b[2][4][4];

    RLK_DEVICE Fragments(const LoopFp32& tile, unsigned stage)
        : own_a(opaque(PanelA::start(tile.row(0)))),
          own_b(opaque(PanelA::kBytes + PanelB::start(tile.col(0)))) {
      start(stage);
    }
    RLK_DEVICE void start(unsigned stage) {
      from_a = stage + own_a;
      from_b = stage + own_b;
    }
    template <int kTo>
    RLK_DEVICE void read_a(int k) {
#pragma unroll
      for (int i = 0; i < kRowsOfThread / 4; ++i) PanelA::read(a[kTo][i], from_a, 8 * i, k);
    }
    template <int kTo>
    RLK_DEVICE void read_b(int chunk, int k) {
      PanelB::read(b[kTo], from_b, chunk * 64, k);
    }
  };

  template <int kChunk>
  static RLK_DEVICE void multiply(float (&part)[kRowsOfThread][kColsOfThread],
                                  const float (&a)[kRowsOfThread / 4][4][4],
                                  const float (&b)[4][4]) {
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
      for (int i = 0; i < kRowsOfThread; ++i) {
#pragma unroll
        for (int l = 0; l < 4; ++l) {
          float& to = part[i][4 * kChunk + l];
          to = fma_rn(a[i / 4][i % 4][t], b[l][t], to);
        }
      }
    }
  }

  static RLK_DEVICE void set_zero(float (&x)[kRowsOfThread][kColsOfThread]) {
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) {
#pragma unroll
      for (int j = 0; j < kColsOfThread; ++j) x[i][j] = 0.0f;
    }
  }

  // Part `part` of a stage.
  static RLK_DEVICE void copy(unsigned to, PanelA::Copier& a, PanelB::Copier& b, int part, int k0) {
    copy_part<PanelA::kCopies>(to, a, part, k0);
    copy_part<PanelB::kCopies>(to + PanelA::kBytes, b, part, k0);
  }
  template <int kCopies, class Copier>
  static RLK_DEVICE void copy_part(unsigned to, Copier& copier, int part, int k0) {
    constexpr int kOfPart = (kCopies + kParts - 1) / kParts;
#pragma unroll
    for (int i = 0; i < kOfPart; ++i) {
      const int copy = part * kOfPart + i;
      if (copy < kCopies) copier.copy(copy, to, k0);
    }
  }

  float sum_[kRowsOfThread][kColsOfThread];
};

}  // namespace rlk
