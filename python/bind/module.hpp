// SPDX-License-Identifier: Apache-2.0
// The parts of the Python module rlk._core, one file each.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace rlk::bind {

namespace py = pybind11;

// A Python object in a message. An int of thousands of digits has no decimal form: its type then.
std::string shown(py::handle object);

void bind_errors(py::module_& module);
void bind_settings(py::module_& module);
void bind_preload(py::module_& module);
void bind_model_head(py::module_& module);
void bind_device_array(py::module_& module);
void bind_parameter_tables(py::module_& module);
void bind_logp(py::module_& module);
void bind_loss_options(py::module_& module);
void bind_ratio_kl(py::module_& module);
void bind_ppo_loss(py::module_& module);
void bind_grpo_loss(py::module_& module);
void bind_group_advantages(py::module_& module);
void bind_det_gemm(py::module_& module);

}  // namespace rlk::bind
