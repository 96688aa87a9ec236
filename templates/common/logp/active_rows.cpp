// SPDX-License-Identifier: Apache-2.0
// Compacts the rows of a call: mask and ignore_index are gone after this.
#include "runtime/error.hpp"
#include "runtime/read_values.hpp"
#include "templates/common/logp/host.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

namespace rlk {
namespace {

// Row numbers kept by mask and ignore_index; nothing where all are.
std::optional<std::vector<std::int64_t>> kept_rows(const LogpCallBase& call,
                                                   const std::vector<std::int64_t>& target) {
  std::vector<bool> keep(target.size(), true);
  if (call.ignore_index) {
    for (std::size_t row = 0; row < target.size(); ++row)
      keep[row] = target[row] != *call.ignore_index;
  }
  const auto apply = [&](const auto& mask) {
    for (std::size_t row = 0; row < mask.size(); ++row) {
      if (mask[row] != 0 && mask[row] != 1) {
        throw InvalidArgument(Fault{std::string(call.op->name), "mask", "0 or 1",
                                    fmt::format("{} in row {}", mask[row], row)});
      }
      if (mask[row] == 0) keep[row] = false;
    }
  };
  if (call.mask.present()) {
    if (is_floating(call.mask.dtype)) {
      apply(read_floats(call.mask));
    } else {
      apply(read_integers(call.mask));
    }
  }
  std::vector<std::int64_t> rows;
  for (std::size_t row = 0; row < keep.size(); ++row) {
    if (keep[row]) rows.push_back(static_cast<std::int64_t>(row));
  }
  if (rows.size() == keep.size()) return std::nullopt;
  return rows;
}

// Leaves out of `active` the rows whose upstream gradients are all 0; `kept` as of kept_rows.
void drop_rows_of_no_gradient(ActiveRows& active, std::optional<std::vector<std::int64_t>>& kept) {
  const auto num_before =
      kept ? std::ssize(*kept) : static_cast<std::ptrdiff_t>(active.target.size());
  std::vector<std::int64_t> rows, places;
  for (std::int64_t i = 0; i < num_before; ++i) {
    const auto row = kept ? (*kept)[static_cast<std::size_t>(i)] : i;
    const auto has = [&](const std::vector<float>& grad) {
      return !grad.empty() && grad[static_cast<std::size_t>(row)] != 0.0f;
    };
    if (!has(active.grad) && !has(active.grad_entropy) && !has(active.grad_lse)) continue;
    rows.push_back(row);
    places.push_back(i);
  }
  if (std::ssize(rows) == num_before) return;
  kept = std::move(rows);
  active.places = std::move(places);
}

template <class T>
void gather(std::vector<T>& values, const std::vector<std::int64_t>& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) values[i] = values[rows[i]];
  values.resize(rows.size());
}

void expect_targets_in_range(const LogpCallBase& call, const ActiveRows& active,
                             std::int64_t vocab) {
  for (std::size_t i = 0; i < active.target.size(); ++i) {
    const auto id = active.target[i];
    if (id >= 0 && id < vocab) continue;
    const auto row = active.rows.empty() ? static_cast<std::int64_t>(i) : active.rows[i];
    throw InvalidArgument(Fault{std::string(call.op->name), "target",
                                fmt::format("ids in [0, {})", vocab),
                                fmt::format("{} in row {}", id, row)});
  }
}

}  // namespace

ActiveRows active_rows(const LogpCallBase& call, const Tensor& matrix, std::int64_t vocab,
                       bool drops_zero_gradients) {
  ActiveRows active;
  active.target = read_integers(call.target);
  if (call.target.dtype == DType::u64) {
    // Ids above 2^63 wrapped below zero, where one of them would be ignore_index.
    for (auto& id : active.target) id = id < 0 ? std::numeric_limits<std::int64_t>::max() : id;
  }
  active.num_rows = static_cast<std::int64_t>(active.target.size());
  auto kept = kept_rows(call, active.target);
  active.num_places = kept ? std::ssize(*kept) : active.num_rows;
  if (call.pass == jit::Pass::bwd) {
    const auto read = [](const Tensor& grad) {
      return grad.present() ? read_floats(grad) : std::vector<float>();
    };
    active.grad = read(call.grad_output);
    active.grad_entropy = read(call.grad_entropy);
    active.grad_lse = read(call.grad_lse);
    if (drops_zero_gradients) drop_rows_of_no_gradient(active, kept);
  }
  if (kept) {
    for (auto* grad : {&active.grad, &active.grad_entropy, &active.grad_lse}) {
      if (!grad->empty()) gather(*grad, *kept);
    }
    active.rows = *kept;
    gather(active.target, *kept);
  }
  active.num_active = static_cast<std::int64_t>(active.target.size());
  expect_targets_in_range(call, active, call.num_ids > 0 ? call.num_ids : vocab);
  for (auto& id : active.target) {
    const std::int64_t column = id - call.first_id;
    id = column >= 0 && column < vocab ? column : -1;
  }

  const auto leading = static_cast<std::size_t>(matrix.rank - 1);
  const auto stride = flat_stride(matrix.dims().first(leading), matrix.steps().first(leading));
  if (stride && !kept) {
    active.row_stride = *stride;
  } else {
    active.offsets = read_offsets(matrix, matrix.rank - 1);
    if (kept) gather(active.offsets, *kept);
  }

  if (call.temperature.present()) {
    active.inverse_temperature = read_floats(call.temperature);
    if (kept) gather(active.inverse_temperature, *kept);
    for (float& value : active.inverse_temperature) value = inverse_of(call, value, "temperature");
  } else if (call.temperature.value != 1.0) {
    active.inverse_temperature.assign(active.target.size(),
                                      inverse_of(call, call.temperature.value, "temperature"));
  }
  return active;
}

void zero(const Tensor& dense) {
  if (!dense.present()) return;
  std::memset(dense.data, 0,
              static_cast<std::size_t>(dense.num_elements()) * size_bytes(dense.dtype));
}

void zero_results(const LogpCallBase& call) {
  if (call.part.present()) return zero(call.part);
  for (const Tensor* result : {&call.log_prob, &call.row_max, &call.row_log_sum, &call.entropy,
                               &call.lse, &call.max_logit, &call.mean_logit, &call.sum_p2}) {
    zero(*result);
  }
  if (!call.argmax.present()) return;
  std::fill_n(static_cast<std::int64_t*>(call.argmax.data), call.argmax.num_elements(), -1);
}

std::int64_t vector_lanes(Target level) {
  return level == Target::x86_64_v4 ? 16 : level == Target::x86_64_v3 ? 8 : 4;
}

}  // namespace rlk
