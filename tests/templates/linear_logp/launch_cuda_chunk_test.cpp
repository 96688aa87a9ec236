// SPDX-License-Identifier: Apache-2.0
// A backward over a chunk of rows on sm_90a: its memory, what its steps read of the chunks before,
// and what it leaves to the next.
#include "tests/templates/linear_logp/launch_cuda_fixture.hpp"

#include <algorithm>
#include <cstddef>

namespace rlk::test {
namespace {

constexpr Int64 k_carried = kLinearLogpCarriedRows;

class LaunchCudaChunkTest : public LaunchCudaTest {
 protected:
  // Memory for 512 rows; the call has those of wanted_.
  LinearLogpCall make_chunk(bool is_first, bool is_last) {
    LinearLogpCall call = make(wanted_);
    const auto memory = linear_logp_chunk_memory(call, Target::sm_90a, 512);
    EXPECT_TRUE(memory);
    const auto with_memory = [&](const Tensor& like) {
      return tensor(like.dtype, {like.dims().begin(), like.dims().end()});
    };
    kept_ = with_memory(memory->kept);
    chunk_.hidden = with_memory(memory->chunk.hidden);
    chunk_.state = with_memory(memory->chunk.state);
    chunk_.weight_sums = with_memory(memory->chunk.weight_sums);
    chunk_.bias_sums = with_memory(memory->chunk.bias_sums);
    chunk_.is_first = is_first;
    chunk_.is_last = is_last;
    call.kept = linear_logp_kept_of_chunk(call, Target::sm_90a, kept_, &chunk_);
    call.may_overwrite_kept = true;
    call.chunk = &chunk_;
    if (!is_last) {
      call.grad_weight = chunk_.weight_sums;
      call.grad_bias = {};
    }
    return call;
  }

  const CudaCase wanted_{.rows = 384,
                         .vocab = 2000,
                         .dim = 64,
                         .pass = jit::Pass::bwd,
                         .has_bias = true,
                         .needs_bias = true,
                         .target = Target::sm_90a};
  Tensor kept_;
  LinearLogpChunk chunk_;
};

const void* behind_carried(const Tensor& memory) {
  return static_cast<const std::byte*>(memory.data) + k_carried * memory.shape[1] * 2;
}

TEST_F(LaunchCudaChunkTest, OwnRowsLieBehindThoseThatWait) {
  for (const bool is_first : {true, false}) {
    for (const bool is_last : {true, false}) {
      SCOPED_TRACE(testing::Message() << is_first << is_last);
      const LinearLogpCall call = make_chunk(is_first, is_last);
      EXPECT_EQ(call.kept.data, behind_carried(kept_));
      EXPECT_EQ(call.kept.shape[0], 384);
      const auto all = run(call, wanted_);
      EXPECT_EQ(names(), is_last ? "rows pack grads turn dh join dw db"
                                 : "rows pack grads turn dh join dw db carry");
      EXPECT_EQ(all[1].copy.to, behind_carried(chunk_.hidden));
      EXPECT_EQ(all[1].copy.skipped_if_all, 0);
      for (std::size_t i = 2; i < all.size(); ++i) {
        const LinearLogpCudaArgs& args = all[i].args;
        EXPECT_NE(args.chunk.terms, nullptr);
        EXPECT_EQ(args.chunk.state, chunk_.state.data);
        EXPECT_EQ(args.chunk.is_first, is_first ? 1 : 0);
        EXPECT_EQ(args.chunk.is_last, is_last ? 1 : 0);
        EXPECT_EQ(args.chunk.weight_sums, chunk_.weight_sums.data);
        EXPECT_EQ(args.chunk.bias_sums, chunk_.bias_sums.data);
        EXPECT_EQ(args.gathered, behind_carried(chunk_.hidden));
        EXPECT_EQ(args.gathered_pitch, 64);
        EXPECT_EQ(args.wave.grad_logits, call.kept.data);
        EXPECT_EQ(args.grad_weight, is_last ? call.grad_weight.data : chunk_.weight_sums.data);
        EXPECT_EQ(args.grad_weight_type == kFloat32, !is_last);
        EXPECT_EQ(args.grad_bias, call.grad_bias.data);
      }
      if (is_last) continue;
      EXPECT_EQ(Int64{all.back().blocks}, ceil_div((kept_.shape[1] + 64) / 8, 256));
    }
  }
}

// Sums over rows begin with those that wait; the product over columns has the chunk's own.
TEST_F(LaunchCudaChunkTest, TensorMaps) {
  const LinearLogpCall call = make_chunk(false, false);
  run(call, wanted_);
  const auto rows_of = [&](const void* data, unsigned box_rows) {
    const auto found = std::ranges::find_if(fake_.tensor_maps, [&](const auto& map) {
      return map.data == data && map.box_rows == box_rows;
    });
    return found == fake_.tensor_maps.end() ? Int64{-1} : static_cast<Int64>(found->num_rows);
  };
  EXPECT_EQ(rows_of(call.kept.data, 128), 384);
  EXPECT_EQ(rows_of(kept_.data, 64), k_carried + 384);
  EXPECT_EQ(rows_of(chunk_.hidden.data, 64), k_carried + 384);
}

TEST_F(LaunchCudaChunkTest, WhereThereAreNoChunks) {
  LinearLogpCall call = make(wanted_);
  const auto has = [&](Target target) {
    return linear_logp_chunk_memory(call, target, 128).has_value();
  };
  EXPECT_TRUE(has(Target::sm_90a));
  for (const Target target : {Target::sm_80, Target::sm_100, Target::sm_120, Target::compute_80}) {
    EXPECT_FALSE(has(target));
  }
  EXPECT_FALSE(linear_logp_chunk_memory(call, Target::sm_90a, 0));
  call.softcap = 3.0;
  EXPECT_FALSE(has(Target::sm_90a));
  call.softcap.reset();
  call.num_ids = 4000;
  EXPECT_FALSE(has(Target::sm_90a));
  call.num_ids = 0;
  call.hidden.dtype = call.weight.dtype = DType::f16;
  EXPECT_FALSE(has(Target::sm_90a));
}

}  // namespace
}  // namespace rlk::test
