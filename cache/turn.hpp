// SPDX-License-Identifier: Apache-2.0
// What comes of waiting for one's turn to compile a key: one process at a time does, the others
// take what it has stored.
#pragma once

#include "cache/entry.hpp"
#include "cache/files/file_lock.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

namespace rlk::cache {

// Longer than any kernel compiles; whoever still waits then compiles for itself.
inline constexpr std::chrono::milliseconds k_turn_timeout{120'000};

enum class TurnOutcome {
  compile,    // compile and put; others wait while the Turn lives
  stored,     // another process was faster: take `entry`. Where it is of no use, compile and put
  timed_out,  // compile, do not put: whoever has the turn does
  cancelled,  // the caller's Pause said so
};

// How one waits between two looks: returns after about that time; false: wait no longer. A caller
// that holds what others need, such as a lock that a fork waits for, lets go of it meanwhile.
using Pause = std::function<bool(std::chrono::milliseconds)>;
bool sleep_for(std::chrono::milliseconds time);

struct Turn {
  TurnOutcome outcome = TurnOutcome::compile;
  std::optional<Entry> entry = {};
  std::unique_ptr<FileLock> lock = {};  // null too where no lock can be had: then nobody waits

  bool may_put() const { return outcome != TurnOutcome::timed_out; }
};

}  // namespace rlk::cache
