// SPDX-License-Identifier: Apache-2.0
// Matrix products of 16-bit operands on sm_90a: C[rows][cols] = sum over k of A[row][k] *
// B[col][k], by tensor map copies and wgmma m64nNk16 with fp32 accumulators, for all tiles of a
// call.
//
// Every element of C is one chain of instructions over k ascending, 16 terms each, and an element's
// place in its thread follows from its column alone: bits never depend on the rows of a tile, the
// stages, the schedule, the cluster or the grid.
//
// A block is one warpgroup that copies and two that multiply. It stays for many tiles. In ping-pong
// each tile belongs to one of the two, so that one works on what it has while the other multiplies;
// else both take half of the rows of each tile. Where tiles are small one alone multiplies, and a
// stage has several boxes of 64 terms, since a stage costs its barriers. Tiles are dealt out by the
// copying thread, from a counter in memory or at a fixed distance, and passed on through a ring.
//
// The blocks of a cluster have tiles one below the other: each copies its part of B's panel to all
// of them, so that B is read once for twice the rows. A stage is free when all have read it. A tile
// below the last row is multiplied too, and nobody stores it.
//
// A kernel calls run() with an epilogue: source(position), where a tile's operands begin;
// num_cols(position), B's lanes of a tile, of which the product is made at least (192 columns;
// others are multiplied whole; what lies beyond the product is 0), and functions called by the
// warpgroup of a tile: begin(tile, position) before its product, end(tile, position) with the
// accumulators, which it reads through row(), col() and at() as those of LoopSm80; and, where the
// constant kLoads says so, load(tile, position), which gives 1 where it has set the accumulators
// that the product is added to, else 0. kTailCols: num_cols of most tiles that are not whole, or -1
// where that is not known.
#pragma once

#include "common/cuda/element.cuh"
#include "common/cuda/ptx_sm90.cuh"
#include "common/cuda/raster.cuh"

namespace rlk {

// How an operand runs in memory: [lane][k] or [k][lane]; lanes are rows of A or columns of B.
enum class Major { kTerms, kLanes };

// The first lane and the first term of a tile's operands, in their tensor maps.
struct TileSource {
  int lane_a, lane_b;
  int term_a = 0, term_b = 0;
};

// 64 terms of one operand in a stage, swizzled in rows of 128 bytes as the copies and wgmma agree
// on. Tensor maps have boxes of 64 x kBoxRows elements.
template <int kLanes, int kK, Major kMajor>
struct PanelSm90 {
  static constexpr int kBytes = kLanes * kK * 2;
  static constexpr int kAlongLanes = kMajor == Major::kLanes;
  static constexpr int kBoxRows = kAlongLanes ? kK : kLanes;
  static_assert(kK == 64 && kLanes % (kAlongLanes ? 64 : 8) == 0);
  // Between descriptors, in units of 16 bytes: 64 lanes, 16 terms.
  static constexpr int kNext64Lanes = 512;
  static constexpr int kNext16Terms = kAlongLanes ? 128 : 2;

  // Lanes [lane0, lane0 + kLanes), terms [k0, k0 + kK).
  static RLK_DEVICE void copy(unsigned to, const TensorMap& map, int lane0, int k0,
                              unsigned barrier) {
    if constexpr (kAlongLanes) {
#pragma unroll
      for (int i = 0; i < kLanes / 64; ++i) {
        cp_async_bulk_tensor_2d(to + i * (64 * kK * 2), map, lane0 + i * 64, k0, barrier);
      }
    } else {
      cp_async_bulk_tensor_2d(to, map, k0, lane0, barrier);
    }
  }
  // This block's part of it, to all blocks of a cluster: boxes of 64 x kBoxRows / kCluster.
  template <int kCluster>
  static RLK_DEVICE void copy_part(unsigned to, const TensorMap& map, int lane0, int k0,
                                   unsigned barrier) {
    constexpr int kRows = kBoxRows / kCluster, kAll = (1 << kCluster) - 1;
    static_assert(kRows % 8 == 0 && kBoxRows % kCluster == 0);
    const int row0 = static_cast<int>(cluster_ctarank()) * kRows;
    const unsigned part = to + row0 * 128;
    if constexpr (kAlongLanes) {
#pragma unroll
      for (int i = 0; i < kLanes / 64; ++i) {
        cp_async_bulk_tensor_2d_multicast(part + i * (64 * kK * 2), map, lane0 + i * 64, k0 + row0,
                                          barrier, kAll);
      }
    } else {
      cp_async_bulk_tensor_2d_multicast(part, map, k0, lane0 + row0, barrier, kAll);
    }
  }
  // Groups of 8 rows of 128 bytes follow each other; along the lanes, so do those of 64 lanes.
  static RLK_DEVICE unsigned long long descriptor(unsigned panel) {
    constexpr unsigned long long kSwizzle128 = 1ull << 62, kGroup = 1024 >> 4;
    constexpr unsigned long long kLeading = kAlongLanes ? 64 * kK * 2 >> 4 : 1;
    return (panel & 0x3ffff) >> 4 | kLeading << 16 | kGroup << 32 | kSwizzle128;
  }
};

template <int kX>
struct Wgmma;
template <>
struct Wgmma<kBfloat16> {
  template <int kN, int kLanesA, int kLanesB, int kSums>
  static RLK_DEVICE void run(float (&c)[kSums], unsigned long long a, unsigned long long b,
                             int add) {
    wgmma_m64k16_bf16<kN, kLanesA, kLanesB>(c, a, b, add);
  }
};
template <>
struct Wgmma<kFloat16> {
  template <int kN, int kLanesA, int kLanesB, int kSums>
  static RLK_DEVICE void run(float (&c)[kSums], unsigned long long a, unsigned long long b,
                             int add) {
    wgmma_m64k16_f16<kN, kLanesA, kLanesB>(c, a, b, add);
  }
};

template <int kX, class Shape, Major kMajorA = Major::kTerms, Major kMajorB = Major::kTerms>
class LoopSm90 {
 public:
  static constexpr int kRows = Shape::kRows, kCols = Shape::kCols, kStages = Shape::kStages;
  static constexpr int kBoxK = 64, kBoxes = Shape::kBoxes, kK = kBoxK * kBoxes;  // of a stage
  static constexpr bool kPingPong = Shape::kPingPong, kDynamic = Shape::kDynamic;
  static constexpr int kGroups = Shape::kGroups;    // warpgroups that multiply
  static constexpr int kCluster = Shape::kCluster;  // blocks of a cluster, 1 or 2
  static constexpr int kRowsOfCluster = kCluster * kRows;
  static constexpr int kThreads = 128 * (1 + kGroups);
  // Of a warpgroup in a tile.
  static constexpr int kRowsOfGroup = kPingPong ? kRows : kRows / kGroups;
  using PanelA = PanelSm90<kRows, kBoxK, kMajorA>;
  using PanelB = PanelSm90<kCols, kBoxK, kMajorB>;
  static constexpr int kPanelsBytes = PanelA::kBytes + PanelB::kBytes;
  static constexpr int kStageBytes = kBoxes * kPanelsBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes;

  // See LoopSm80. A row lies in one warp.
  static constexpr int kRowsOfThread = kRowsOfGroup / 32;
  static constexpr int kPairsOfThread = kCols / 8;
  static constexpr int kRowLanes = 4;
  RLK_DEVICE int row(int i) const { return row0_ + i / 2 * 64 + i % 2 * 8; }
  RLK_DEVICE int col(int j) const { return j * 8 + thread_index() % 4 * 2; }
  RLK_DEVICE int element(int col) const {
    const unsigned from_first = col - this->col(0);
    const bool has = from_first < kCols && from_first % 8 < 2;
    return has ? from_first / 8 * 2 + from_first % 8 : -1;
  }
  RLK_DEVICE float& at(int i, int j, int e) { return c_[i / 2][j * 4 + i % 2 * 2 + e]; }

  // Puts the rows from the 64th on in the place of those before them.
  RLK_DEVICE void next_rows() {
    row0_ += 64;
#pragma unroll
    for (int m = 1; m < kRowsOfGroup / 64; ++m) {
#pragma unroll
      for (int i = 0; i < kCols / 2; ++i) c_[m - 1][i] = c_[m][i];
    }
  }

  // Row of the tile that is the warpgroup's first.
  static RLK_DEVICE int first_row() { return kPingPong ? 0 : group() * kRowsOfGroup; }
  // The warpgroup that this thread multiplies in, 0 or 1, its thread, and a barrier of its own.
  static RLK_DEVICE int group() { return thread_index() / 128 - 1; }
  RLK_DEVICE int thread_of_group() const { return thread_index() % 128; }
  RLK_DEVICE void sync_group() const { bar_sync(3 + group(), 128); }

  struct Work {
    const TensorMap& a;
    const TensorMap& b;
    int num_k;          // at least 1
    Raster raster;      // of tiles of kRowsOfCluster rows; the grid is whole clusters
    unsigned* counter;  // kDynamic: 0 before the launch; not read where a block each is enough
    // Of A's boxes along the terms: fewer than a tile's where the matrix has no more. The rest of a
    // stage then holds anything, and so do the rows of the tile that nobody asked for.
    int box_rows = kRows;
  };

  // Barriers of a block; a static one of the kernel.
  struct Shared {
    unsigned long long full[kStages], empty[kStages], tile_full[4], tile_empty[4];
    int tile_row[4], tile_col[4];  // the row kNoTile: no more
  };

  // All threads of the block. stages: kSharedBytes of dynamic shared memory, 1024-byte aligned.
  template <class Epilogue>
  static RLK_DEVICE void run(const Work& work, Shared& shared, void* stages, Epilogue& epilogue) {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i) {
        mbarrier_init(shared_address(&shared.full[i]), 1);
        mbarrier_init(shared_address(&shared.empty[i]), kReaders * kCluster);
      }
      for (int i = 0; i < 4; ++i) {
        mbarrier_init(shared_address(&shared.tile_full[i]), 1);
        mbarrier_init(shared_address(&shared.tile_empty[i]), kReaders);
      }
      fence_mbarrier_init();
    }
    sync_cluster();
    if (threadIdx.x < 128) {
      if constexpr (kGroups == 2) setmaxnreg_dec<24>();
      if (threadIdx.x == 0) produce(work, shared, shared_address(stages), epilogue);
    } else {
      if constexpr (kGroups == 2) setmaxnreg_inc<240>();
      consume(work, shared, shared_address(stages), epilogue);
    }
    // The shared memory of a block that has ended is nobody's to write or to arrive at.
    if constexpr (kCluster > 1) sync_cluster();
  }

 private:
  // Warps that read a stage, or a tile's number.
  static constexpr int kReaders = kPingPong ? 4 : 4 * kGroups;
  static constexpr int kNoTile = -1;
  static_assert(kRowsOfGroup % 64 == 0 && kStages >= 2 && kGroups <= 2);
  static_assert(kCluster == 1 || (kCluster == 2 && !kDynamic), "the blocks agree on their tiles");

  static RLK_DEVICE void sync_cluster() {
    if constexpr (kCluster > 1) {
      barrier_cluster();
    } else {
      __syncthreads();
    }
  }
  // Of this block's tile.
  static RLK_DEVICE TilePosition position_of(const Work& work, unsigned index) {
    TilePosition at = work.raster.at(index);
    if constexpr (kCluster > 1) at.row = at.row * kCluster + cluster_ctarank();
    return at;
  }

  // A place in a ring of n barriers, and how often it came round.
  template <int n>
  struct Turn {
    int index = 0;
    unsigned parity = 0;
    RLK_DEVICE void advance(int steps) {
      const int sum = index + steps;
      parity ^= (sum / n) & 1;
      index = sum % n;
    }
    RLK_DEVICE void next() {
      if (++index == n) index = 0, parity ^= 1;
    }
  };

  template <class Epilogue>
  static RLK_DEVICE void produce(const Work& work, Shared& shared, unsigned stages,
                                 const Epilogue& epilogue) {
    prefetch_tensormap(work.a);
    prefetch_tensormap(work.b);
    Turn<kStages> stage;
    unsigned num_published = 0;
    const auto publish = [&](TilePosition at) {
      const unsigned slot = num_published % 4, parity = num_published / 4 % 2;
      mbarrier_wait(shared_address(&shared.tile_empty[slot]), parity ^ 1);
      *const_cast<volatile int*>(&shared.tile_row[slot]) = static_cast<int>(at.row);
      *const_cast<volatile int*>(&shared.tile_col[slot]) = static_cast<int>(at.col);
      mbarrier_arrive(shared_address(&shared.tile_full[slot]));
      ++num_published;
    };
    const unsigned num_tiles = work.raster.num_tiles();
    const unsigned num_clusters = gridDim.x / kCluster;
    const bool counts = kDynamic && num_clusters < num_tiles;
    unsigned tile = blockIdx.x / kCluster;
#pragma unroll 1
    while (tile < num_tiles) {
      const TilePosition at = position_of(work, tile);
      publish(at);
      // Asked for now, needed when this tile is copied.
      tile = num_clusters + (counts ? atomicAdd(work.counter, 1u) : tile);
      const TileSource from = epilogue.source(at);
#pragma unroll 1
      for (int k = 0; k < work.num_k; k += kK) {
        const unsigned full = shared_address(&shared.full[stage.index]);
        const unsigned to = stages + stage.index * kStageBytes;
        mbarrier_wait(shared_address(&shared.empty[stage.index]), stage.parity ^ 1);
        mbarrier_arrive_expect_tx(full, kStageBytes - (kRows - work.box_rows) * (kK * 2));
#pragma unroll
        for (int box = 0; box < kBoxes; ++box) {
          const unsigned panels = to + box * kPanelsBytes;
          PanelA::copy(panels, work.a, from.lane_a, from.term_a + k + box * kBoxK, full);
          if constexpr (kCluster > 1) {
            PanelB::template copy_part<kCluster>(panels + PanelA::kBytes, work.b, from.lane_b,
                                                 from.term_b + k + box * kBoxK, full);
          } else {
            PanelB::copy(panels + PanelA::kBytes, work.b, from.lane_b,
                         from.term_b + k + box * kBoxK, full);
          }
        }
        stage.next();
      }
    }
    publish({kNoTile, 0});
    if (kPingPong) publish({kNoTile, 0});
  }

  // Whether a kernel has the product of `cols` columns beside that of all: each is a loop of its
  // own, which takes an eighth of a kernel's compile.
  template <class Epilogue>
  static constexpr bool has_product(int cols) {
    constexpr int kTail = Epilogue::kTailCols;
    return kCols == 192 && (kTail < 0 || (cols - 64 < kTail && kTail <= cols));
  }

  template <class Epilogue>
  static RLK_DEVICE void consume(const Work& work, Shared& shared, unsigned stages,
                                 Epilogue& epilogue) {
    const int row0 = first_row() + thread_index() % 128 / 32 * 16 + thread_index() % 32 / 4;
    const int num_steps = (work.num_k + kK - 1) / kK;
    Turn<kStages> stage;
    unsigned number = kPingPong ? group() : 0;  // of the tile, among those published
    if (kPingPong && group() == 1) {
      stage.advance(num_steps);
      bar_arrive(1, 256);  // the other one may begin
    }
#pragma unroll 1
    for (;;) {
      const unsigned slot = number % 4, parity = number / 4 % 2;
      mbarrier_wait(shared_address(&shared.tile_full[slot]), parity);
      const TilePosition position = {*const_cast<volatile int*>(&shared.tile_row[slot]),
                                     *const_cast<volatile int*>(&shared.tile_col[slot])};
      release(shared.tile_empty[slot]);
      number += kPingPong ? 2 : 1;
      if (position.row == kNoTile) break;
      LoopSm90 tile;  // a new one: else the compiler would carry accumulators from tile to tile
      tile.row0_ = row0;
      epilogue.begin(tile, position);
      int adds = 0;  // a constant where the epilogue always or never loads
      if constexpr (Epilogue::kLoads) adds = epilogue.load(tile, position);
      // In ping-pong the tensor cores are one warpgroup's at a time, in the order of the copies.
      if (kPingPong) bar_sync(1 + tile.group(), 256);
      const int num_cols = epilogue.num_cols(position);
      const auto multiply = [&]<int kN>(Constant<kN>) {
        tile.template multiply<kN>(shared, stages, num_steps, stage, adds);
      };
      constexpr Constant<has_product<Epilogue>(64) ? 64 : kCols> kLeast;
      constexpr Constant<has_product<Epilogue>(128) ? 128 : kCols> kMiddle;
      if (kLeast < kCols && num_cols <= kLeast) {
        multiply(kLeast);
      } else if (kMiddle < kCols && num_cols <= kMiddle) {
        multiply(kMiddle);
      } else {
        multiply(Constant<kCols>());
      }
      if (kPingPong) stage.advance(num_steps);
      epilogue.end(tile, position);
    }
  }

  // By all threads of a warp, which have read.
  static RLK_DEVICE void release(unsigned long long& barrier) {
    __syncwarp();
    if (thread_index() % 32 == 0) mbarrier_arrive(shared_address(&barrier));
  }
  static RLK_DEVICE void release_stage(unsigned long long& barrier) {
    if constexpr (kCluster > 1) {
      __syncwarp();
      const unsigned lane = thread_index() % 32;
      if (lane < kCluster) mbarrier_arrive_cluster(shared_address(&barrier), lane);
    } else {
      release(barrier);
    }
  }

  // Of the tile's first kN columns; others become 0. adds: 1 adds to what the accumulators are.
  template <int kN>
  RLK_DEVICE void multiply(Shared& shared, unsigned stages, int num_steps, Turn<kStages>& stage,
                           int adds) {
    constexpr int kBlocks = kRowsOfGroup / 64;
#pragma unroll
    for (int i = kN / 2; i < kCols / 2; ++i) {
      for (int m = 0; m < kBlocks; ++m) c_[m][i] = 0.0f;
    }
    const unsigned offset_a = (kPingPong ? 0 : group()) * (kRowsOfGroup * kBoxK * 2);
    int before = stage.index;
    int step = opaque(0);  // the compiler serializes wgmma where it knows of one step alone
#pragma unroll 1
    do {  // there is a first step: without it accumulators would have values of two origins
      mbarrier_wait(shared_address(&shared.full[stage.index]), stage.parity);
      if (kPingPong && step + 1 == num_steps) bar_arrive(1 + (group() ^ 1), 256);
      wgmma_fence();
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
        const unsigned panel = stages + stage.index * kStageBytes + box * kPanelsBytes;
        const unsigned long long a = PanelA::descriptor(panel + offset_a);
        const unsigned long long b = PanelB::descriptor(panel + PanelA::kBytes);
#pragma unroll
        for (int k = 0; k < kBoxK / 16; ++k) {
#pragma unroll
          for (int m = 0; m < kBlocks; ++m) {
            Wgmma<kX>::template run<kN, PanelA::kAlongLanes, PanelB::kAlongLanes>(
                c_[m], a + m * PanelA::kNext64Lanes + k * PanelA::kNext16Terms,
                b + k * PanelB::kNext16Terms, adds | (step + box + k));
          }
        }
      }
      wgmma_commit_group();
      wgmma_wait_group<1>();
      if (step > 0) release_stage(shared.empty[before]);
      before = stage.index;
      stage.next();
    } while (++step < num_steps);
    wgmma_wait_group<0>();
    release_stage(shared.empty[before]);
  }

  int row0_;
  float c_[kRowsOfGroup / 64][kCols / 2];
};

}  // namespace rlk
