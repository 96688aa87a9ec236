// SPDX-License-Identifier: Apache-2.0
// What tune has measured and chosen, and how it tells that.
#pragma once

#include "cli/context.hpp"
#include "cli/tune/subject.hpp"
#include "jit/tuning_file.hpp"
#include "jit/warm/model_shape.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace rlk::cli {

inline constexpr int k_num_rounds = 9;  // of which a time is the median

struct TuneCase {
  const jit::Op* op;
  jit::ModelShape shape;
  DType dtype;
  std::int64_t num_rows;
  std::vector<int> tiles;
  std::vector<double> ms = {};  // of each of them

  std::size_t best() const {
    return static_cast<std::size_t>(std::ranges::min_element(ms) - ms.begin());
  }
  std::string text() const {
    const auto sizes = sizes_of(*op, shape);
    return fmt::format("{}={} {}={} {}, {} rows", sizes[0].symbol, sizes[0].value, sizes[1].symbol,
                       sizes[1].value, name(dtype), num_rows);
  }
  static std::string name(DType dtype) { return dtype == DType::bf16 ? "bf16" : "fp16"; }
};

// Of a class of rows: the tile whose times, as ratios to the best, have the least mean.
struct TuneChoice {
  int tile = 0;
  double ratio = 0;
};

using TuneChoices = std::array<TuneChoice, jit::k_num_row_classes>;

struct TuneResult {
  const jit::Op& op;
  std::vector<int> tiles;
  runtime::DeviceModel device;
  Target target;
  const std::vector<TuneCase>& cases;
  TuneChoices choices;
  std::string file;  // that the choice is for
};

// A table, or one object.
void report(const Context& context, const TuneResult& result);

}  // namespace rlk::cli
