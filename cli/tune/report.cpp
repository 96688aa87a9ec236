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
  std::vector<Column> columns;
  for (const TuneSize& size : sizes_of(result.op, result.cases.at(0).shape)) {
    columns.push_back({std::string(size.name), Align::right});
  }
  columns.push_back({"dtype"});
  columns.push_back({"rows", Align::right});
  for (const int tile : result.tiles) {
    columns.push_back({std::string(tile_name(result.op, tile)), Align::right});
  }
  Table table(columns);
  for (const TuneCase& one : result.cases) {
    std::vector<Cell> row;
    for (const TuneSize& size : sizes_of(*one.op, one.shape)) {
      row.push_back({std::to_string(size.value)});
    }
    row.push_back({TuneCase::name(one.dtype)});
    row.push_back({std::to_string(one.num_rows)});
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
                               tile_name(result.op, result.choices[i].tile),
                               result.choices[i].ratio);
  }
}

Json json_of(const std::vector<TuneCase>& cases) {
  Json all = Json::array();
  for (const TuneCase& one : cases) {
    Json tiles = Json::array();
    for (std::size_t i = 0; i < one.ms.size(); ++i) {
      tiles.push_back({{"tile", tile_name(*one.op, one.tiles[i])},
                       {"ms", one.ms[i]},
                       {"best", i == one.best()}});
    }
    Json measured = {{"op", one.op->name}};
    for (const TuneSize& size : sizes_of(*one.op, one.shape)) measured[size.name] = size.value;
    measured["dtype"] = TuneCase::name(one.dtype);
    measured["rows"] = one.num_rows;
    measured["tiles"] = tiles;
    all.push_back(std::move(measured));
  }
  return all;
}

Json json_of(const jit::Op& op, const TuneChoices& choices) {
  Json all = Json::array();
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const bool is_last = i == jit::k_row_class_limits.size();
    all.push_back({{"most_rows", is_last ? Json() : Json(jit::k_row_class_limits[i])},
                   {"tile", tile_name(op, choices[i].tile)},
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
                           {"chosen", json_of(result.op, result.choices)},
                           {"file", result.file}});
}

}  // namespace rlk::cli
