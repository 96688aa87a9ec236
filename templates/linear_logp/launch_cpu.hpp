// SPDX-License-Identifier: Apache-2.0
// Runs the steps of a loaded CPU kernel of linear_logp: strips, workspace, threads.
#pragma once

#include "runtime/thread_pool.hpp"
#include "templates/linear_logp/cpu_args.h"

namespace rlk {

// Entry points of the forward's artifact.
struct LinearLogpFwdSteps {
  static constexpr const char* entries[] = {"rlk_linear_logp_fwd_pack", "rlk_linear_logp_fwd_main",
                                            "rlk_linear_logp_fwd_merge",
                                            "rlk_linear_logp_fwd_join"};
  LinearLogpCpuStep pack, main, merge, join;
};

// Entry points of the backward's artifact.
struct LinearLogpBwdSteps {
  static constexpr const char* entries[] = {
      "rlk_linear_logp_bwd_pack_weight", "rlk_linear_logp_bwd_pack_hidden",
      "rlk_linear_logp_bwd_load_sums",   "rlk_linear_logp_bwd_dz",
      "rlk_linear_logp_bwd_dh",          "rlk_linear_logp_bwd_fold_dh",
      "rlk_linear_logp_bwd_dw",          "rlk_linear_logp_bwd_db",
      "rlk_linear_logp_bwd_store_dh",    "rlk_linear_logp_bwd_store_dw",
      "rlk_linear_logp_bwd_store_db"};
  LinearLogpCpuStep pack_weight, pack_hidden, load_sums, dz, dh, fold_dh, dw, db, store_dh,
      store_dw, store_db;
};

// Writes logp, and row_max, row_log_sum, entropy and lse where set, of the active rows; other rows
// are the caller's to fill. `tile` is that of the level the steps were compiled for. Throws
// std::bad_alloc.
void launch_linear_logp_fwd(const LinearLogpFwdSteps& steps, const LinearLogpCpuTile& tile,
                            const LinearLogpCpuOperands& operands, runtime::ThreadPool& pool);

// Writes the same from the parts of all ranks (common/logp/shard.h).
void join_linear_logp_fwd(const LinearLogpFwdSteps& steps, const LinearLogpCpuTile& tile,
                          const LinearLogpCpuOperands& operands, runtime::ThreadPool& pool);

// Writes the gradients whose pointers are set: all of grad_weight and grad_bias (also where no row
// is active), and the active rows of grad_hidden; and bias_lanes where set.
void launch_linear_logp_bwd(const LinearLogpBwdSteps& steps, const LinearLogpCpuTile& tile,
                            const LinearLogpCpuOperands& operands, runtime::ThreadPool& pool);

}  // namespace rlk
