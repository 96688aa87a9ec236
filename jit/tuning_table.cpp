// SPDX-License-Identifier: Apache-2.0
// Rows are never changed: a longer copy takes their place.
#include "jit/tuning_table.hpp"

#include <utility>

namespace rlk::jit {

const Tuning* TuningTable::find(const Op& op, Pass pass, int device) const {
  const Rows* rows = current_.load(std::memory_order_acquire);
  if (rows == nullptr) return nullptr;
  for (const Row& row : *rows) {
    if (row.op == &op && row.pass == pass && row.device == device) return &row.tuning;
  }
  return nullptr;
}

Tuning TuningTable::add(const Op& op, Pass pass, int device, const Tuning& tuning) {
  if (const Tuning* found = find(op, pass, device)) return *found;
  const Rows* before = current_.load(std::memory_order_relaxed);
  Rows rows = before == nullptr ? Rows() : *before;
  rows.push_back({&op, pass, device, tuning});
  publish(std::move(rows));
  return tuning;
}

void TuningTable::clear() { current_.store(nullptr, std::memory_order_release); }

void TuningTable::publish(Rows rows) {
  all_.push_back(std::make_unique<const Rows>(std::move(rows)));
  current_.store(all_.back().get(), std::memory_order_release);
}

}  // namespace rlk::jit
