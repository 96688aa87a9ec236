// SPDX-License-Identifier: Apache-2.0
// The Tunings that calls have asked for: read on every call, without a lock or an allocation.
#pragma once

#include "jit/specialization.hpp"
#include "jit/tuning.hpp"

#include <atomic>
#include <memory>
#include <vector>

namespace rlk::jit {

class TuningTable {
 public:
  // Any thread.
  const Tuning* find(const Op& op, Pass pass, int device) const;

  // One thread at a time. What is there already stays.
  Tuning add(const Op& op, Pass pass, int device, const Tuning& tuning);
  void clear();

 private:
  struct Row {
    const Op* op;
    Pass pass;
    int device;
    Tuning tuning;
  };
  using Rows = std::vector<Row>;  // an op, pass and device that were called: a few

  void publish(Rows rows);

  std::atomic<const Rows*> current_{nullptr};
  std::vector<std::unique_ptr<const Rows>> all_;  // a reader may still be in an old one
};

}  // namespace rlk::jit
