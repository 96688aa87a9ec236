// SPDX-License-Identifier: Apache-2.0
// Panels of 16-bit operands in shared memory: copied there by cp.async, read by ldmatrix.
//
// A panel holds kLanes lanes (rows of A, or columns of B) of kK terms of the sum. Global memory may
// run along the terms ([lane][k], PanelAlongK) or along the lanes ([k][lane], PanelAlongLanes);
// both keep that direction in shared memory, swizzled in chunks of 16 bytes so that eight chunks
// which one ldmatrix reads lie in different banks, and ldmatrix transposes the second kind.
#pragma once

#include "common/cuda/ptx.cuh"

namespace rlk {

// Which operand a fragment is for: they order the four 8 x 8 matrices of ldmatrix.x4 differently.
enum class Side { kA, kB };

template <int kLanes, int kK, int kThreads>
struct PanelAlongK {
  // lanes: a table in shared memory of where each lane starts, so that any rows can be gathered.
  struct Source {
    const void* const* lanes;
  };
  static constexpr int kBytes = kLanes * kK * 2;
  static constexpr int kChunks = kK / 8;
  static constexpr int kCopies = kLanes * kChunks / kThreads;  // of a thread
  static_assert((kK == 32 || kK == 64) && kLanes * kChunks % kThreads == 0 && kThreads % 64 == 0);

  static RLK_DEVICE int swizzle(int lane) { return kChunks == 8 ? lane & 7 : (lane >> 1) & 3; }

  // Copy i of this thread, of the panel with terms [k0, k0 + kK); terms from num_k on are 0.
  static RLK_DEVICE void copy(int i, unsigned to, const Source& source, int k0, int num_k) {
    const int chunk = threadIdx.x % kChunks;
    const int lane = threadIdx.x / kChunks + i * (kThreads / kChunks);
    const int k = k0 + chunk * 8;
    const char* const from = static_cast<const char*>(source.lanes[lane]) + Int64{k} * 2;
    cp_async_cg(to + lane * (kK * 2) + ((chunk ^ swizzle(lane)) << 4), from, k < num_k ? 16 : 0);
  }

  // Offset of this thread's ldmatrix address; first_lane is the first one of the warp.
  template <Side kSide>
  static RLK_DEVICE unsigned offset(int first_lane) {
    const int t = threadIdx.x % 32;
    const int lane = first_lane + (t & 7) + (kSide == Side::kA ? (t >> 3) & 1 : t >> 4) * 8;
    const int chunk = kSide == Side::kA ? t >> 4 : (t >> 3) & 1;
    return lane * (kK * 2) + ((chunk ^ swizzle(lane)) << 4);
  }
  // Fragment of lanes [16 block, 16 block + 16) of the warp, terms [16 step, 16 step + 16).
  static RLK_DEVICE void read(unsigned (&d)[4], unsigned panel, unsigned offset, int block,
                              int step) {
    ldmatrix_x4(d, panel + (offset ^ (step << 5)) + block * (16 * kK * 2));
  }
};

template <int kLanes, int kK, int kThreads>
struct PanelAlongLanes {
  // first: the first lane's term 0. Lanes from num_lanes on are 0; num_lanes is a multiple of 8.
  struct Source {
    const void* first;
    Int64 pitch_bytes;
    int num_lanes;
  };
  static constexpr int kBytes = kLanes * kK * 2;
  static constexpr int kChunks = kLanes / 8;
  static constexpr int kCopies = kK * kChunks / kThreads;
  static constexpr int kSlice = kK * 128;  // bytes of 64 lanes: [k][64]
  static_assert(kLanes % 64 == 0 && kK % 16 == 0 && kThreads % kChunks == 0 &&
                kK * kChunks % kThreads == 0);

  static RLK_DEVICE void copy(int i, unsigned to, const Source& source, int k0, int num_k) {
    const int chunk = threadIdx.x % kChunks;
    const int k = threadIdx.x / kChunks + i * (kThreads / kChunks);
    const char* const from =
        static_cast<const char*>(source.first) + (k0 + k) * source.pitch_bytes + chunk * 16;
    const bool real = k0 + k < num_k && chunk * 8 < source.num_lanes;
    cp_async_cg(to + chunk / 8 * kSlice + k * 128 + ((chunk % 8 ^ (k & 7)) << 4), from,
                real ? 16 : 0);
  }

  // first_lane: a multiple of the warp's lanes, which are 64, 128 and so on, or 32.
  template <Side kSide>
  static RLK_DEVICE unsigned offset(int first_lane) {
    const int t = threadIdx.x % 32;
    const int k = (t & 7) + (kSide == Side::kA ? t >> 4 : (t >> 3) & 1) * 8;
    const int chunk = first_lane % 64 / 8 + (kSide == Side::kA ? (t >> 3) & 1 : t >> 4);
    return first_lane / 64 * kSlice + k * 128 + ((chunk ^ (k & 7)) << 4);
  }
  static RLK_DEVICE void read(unsigned (&d)[4], unsigned panel, unsigned offset, int block,
                              int step) {
    ldmatrix_x4_trans(d,
                      panel + (offset ^ (block % 4 << 5)) + block / 4 * kSlice + step * 16 * 128);
  }
};

}  // namespace rlk
