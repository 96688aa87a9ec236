// SPDX-License-Identifier: Apache-2.0
// The head of a model, as its configuration has it.
#pragma once

#include "jit/warm/config_file.hpp"
#include "jit/warm/model_shape.hpp"

#include <cstdint>
#include <optional>

namespace rlk::jit {

constexpr std::int64_t k_most_vocab = std::int64_t{1} << 31;
constexpr std::int64_t k_most_hidden = std::int64_t{1} << 24;

// `vocab`: the head's rows, whatever the configuration says. What is assumed, and what is not
// heeded, is logged once. Throws InvalidArgument.
// The part of the file that describes the language model.
const nlohmann::json& text_part(const ConfigFile& file);

ModelShape read_head(const ConfigFile& file, const std::optional<std::int64_t>& vocab);

}  // namespace rlk::jit
