// SPDX-License-Identifier: Apache-2.0
// The cache's promise not to throw, kept even where there is no memory for a message.
#pragma once

#include "runtime/log.hpp"

#include <exception>

namespace rlk::cache {

template <class Call>
void never_throwing(const char* verb, Call&& call) noexcept {
  try {
    call();
  } catch (const std::exception& error) {
    log().warn("cache: {}: {}", verb, error.what());
  } catch (...) {
  }
}

}  // namespace rlk::cache
