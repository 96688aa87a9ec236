// SPDX-License-Identifier: Apache-2.0
// rlk._core: lists its parts.
#include "python/bind/module.hpp"

PYBIND11_MODULE(_core, module) {
  module.doc() = "rlk's compiled core; use rlk.jit.";
  rlk::bind::bind_errors(module);
  rlk::bind::bind_settings(module);
  rlk::bind::bind_preload(module);
  rlk::bind::bind_model_head(module);
  rlk::bind::bind_device_array(module);
  rlk::bind::bind_parameter_tables(module);
  rlk::bind::bind_logp(module);
  rlk::bind::bind_loss_options(module);
  rlk::bind::bind_ratio_kl(module);
  rlk::bind::bind_ppo_loss(module);
  rlk::bind::bind_grpo_loss(module);
  rlk::bind::bind_group_advantages(module);
  rlk::bind::bind_det_gemm(module);
}
