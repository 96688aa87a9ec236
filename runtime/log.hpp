// SPDX-License-Identifier: Apache-2.0
// The one logger, `rlk`, on stderr. Level warn unless RLK_LOG says otherwise.
#pragma once

#include <spdlog/spdlog.h>

#include <string_view>

namespace rlk {

spdlog::logger& log();

// Level names: trace, debug, info, warn, error, off. Throws InvalidArgument on any other,
// naming where it came from.
void set_log_level(std::string_view name, std::string_view source = "RLK_LOG");

}  // namespace rlk
