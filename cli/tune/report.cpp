// SPDX-License-Identifier: Apache-2.0
// A line a case and a column a tile.
#include "cli/tune/report.hpp"

#include "cli/query/cached_kernel.hpp"
#include "cli/text/table.hpp"

namespace rlk::cli {
namespace {

std::string rows_text(std::size_t row_class) {
  if (row_class < jit::k_row_class_limits.size()) {
    return fmt::format("up to {} rows", jit::k_row_class_limits[row_class]);
  }
  return "more rows";
}

void print_for_people(const Context& context, const TuneResult& result) {
  std::vector<Column> columns = {
      {"vocab", Align::right}, {"hidden", Align::right}, {"dtype"}, {"rows", Align::right}};
  for (const std::string_view tile : tuned_op().tile_names) {
    columns.push_back({std::string(tile), Align::right});
  }
  Table table(columns);
  for (const TuneCase& one : result.cases) {
    std::vector<Cell> row = {{std::to_string(one.shape.vocab)},
                             {std::to_string(one.shape.hidden)},
                             {TuneCase::name(one.dtype)},
                             {std::to_string(one.num_rows)}};
    for (std::size_t tile = 0; tile < one.ms.size(); ++tile) {
      const bool is_best = tile == one.best();
      row.push_back({fmt::format("{}{:.4f}", is_best ? "*" : "", one.ms[tile]),
                     is_best ? Colour::green : Colour::none});
    }
    table.add(std::move(row));
  }
  context.out << "ms of a forward, median of " << k_num_rounds << " rounds; * the best\n";
  table.print(context.out, context.colour);
  for (std::size_t i = 0; i < result.choices.size(); ++i) {
    context.out << fmt::format("{}: {}, {:.3f} x the best\n", rows_text(i),
                               tuned_op().tile_names[result.choices[i].tile],
                               result.choices[i].ratio);
  }
  context.out << "stored in " << printable(result.file) << '\n';
}

Json json_of(const std::vector<TuneCase>& cases) {
  Json all = Json::array();
  for (const TuneCase& one : cases) {
    Json tiles = Json::array();
    for (std::size_t tile = 0; tile < one.ms.size(); ++tile) {
      tiles.push_back({{"tile", tuned_op().tile_names[tile]},
                       {"ms", one.ms[tile]},
                       {"best", tile == one.best()}});
    }
    all.push_back({{"op", tuned_op().name},
                   {"vocab", one.shape.vocab},
                   {"hidden", one.shape.hidden},
                   {"dtype", TuneCase::name(one.dtype)},
                   {"rows", one.num_rows},
                   {"tiles", tiles}});
  }
  return all;
}

Json json_of(const TuneChoices& choices) {
  Json all = Json::array();
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const bool is_last = i == jit::k_row_class_limits.size();
    all.push_back({{"most_rows", is_last ? Json() : Json(jit::k_row_class_limits[i])},
                   {"tile", tuned_op().tile_names[choices[i].tile]},
                   {"ratio", choices[i].ratio}});
  }
  return all;
}

}  // namespace

void report(const Context& context, const TuneResult& result) {
  if (!context.json) {
    print_for_people(context, result);
    return;
  }
  print_json(context.out, {{"device", result.device.name},
                           {"driver", result.device.driver},
                           {"target", name(result.target)},
                           {"measured", json_of(result.cases)},
                           {"chosen", json_of(result.choices)},
                           {"file", result.file}});
}

}  // namespace rlk::cli
