// SPDX-License-Identifier: Apache-2.0
// Which kernels the command line means by models, targets, ops, dtypes and passes.
#pragma once

#include "cli/context.hpp"
#include "jit/specialization.hpp"
#include "jit/warm/model_shape.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/dtype.hpp"
#include "runtime/settings.hpp"

#include <string>
#include <vector>

namespace rlk::cli {

struct KernelChoice {
  std::vector<std::string> models;      // what read_model_shape() takes
  std::vector<std::string> archs, ops;  // none: this machine's, all
  std::vector<std::string> dtypes = {"bf16"}, passes = {"fwd", "bwd"};
  jit::ShapeOptions shape;
};

// The targets that are named; none where none is. Throws InvalidArgument.
std::vector<Target> named_targets(const KernelChoice& choice);

// "bf16", "fp16,fp32". Throws InvalidArgument, which names --dtype.
std::vector<DType> named_dtypes(const std::vector<std::string>& words);

// What the cards run, one a card; none without a driver.
std::vector<Target> card_targets(const Settings& settings, runtime::cuda::Driver* driver);

// What runs here: the cards' targets, else the processor's; what RLK_ARCH says goes before either.
std::vector<Target> own_targets(const Settings& settings);

std::string names_of(const std::vector<Target>& targets);  // "sm_80, sm_90a"

// The models in their order. Throws InvalidArgument.
std::vector<jit::ModelShape> chosen_shapes(const KernelChoice& choice);

// What calls of the models would ask for; `targets` where none is named. Throws InvalidArgument,
// which names the option.
std::vector<jit::Specialization> chosen_kernels(const Context& context, const KernelChoice& choice,
                                                const std::vector<Target>& targets);

}  // namespace rlk::cli
