// SPDX-License-Identifier: Apache-2.0
// The linear layers of a model besides its head.
#pragma once

#include "jit/warm/config_file.hpp"
#include "jit/warm/model_shape.hpp"

#include <vector>

namespace rlk::jit {

// Those of attention and of the dense MLP of the usual decoders, each size once. Sizes that the
// configuration does not give are left out: it may be of another architecture.
std::vector<LinearShape> read_linears(const ConfigFile& file);

}  // namespace rlk::jit
