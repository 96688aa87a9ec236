// SPDX-License-Identifier: Apache-2.0
// rlk-jit tune: runs every tile on the card and stores the fastest for each class of rows.
#include "cli/text/progress.hpp"
#include "cli/text/text.hpp"
#include "cli/tune/bench.hpp"
#include "cli/tune/machine.hpp"
#include "cli/tune/report.hpp"
#include "jit/nvrtc/make_nvrtc_compiler.hpp"
#include "runtime/cuda/cuda_loader.hpp"
#include "runtime/error.hpp"
#include "templates/registry.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace rlk::cli {
namespace {

// Numbers of rows that are measured, two a class.
constexpr std::int64_t k_rows[] = {1, 64, 128, 256, 1024, 4096};
constexpr double k_burst_ms = 5;
constexpr int k_most_runs = 100;
// A tile takes the place of a choice that heeds the size of a product where it saves more than
// this.
constexpr double k_least_gain = 0.02;
// Heads of models, and layers, where none is named.
const jit::ModelShape k_usual_heads[] = {{128256, 4096}, {151936, 2048}};
const jit::LinearShape k_usual_layers[] = {{4096, 4096}, {4096, 14336}, {14336, 4096}};

const jit::Op& op_of(const TuneCommand& asked) {
  for (const jit::Op* op : ops_with_tiles()) {
    if (op->name == asked.op) return *op;
  }
  std::vector<std::string_view> names;
  for (const jit::Op* op : ops_with_tiles()) names.push_back(op->name);
  throw InvalidArgument("--op: expected one of {}, got {}", fmt::join(names, ", "), asked.op);
}

// One of each layer.
std::vector<jit::ModelShape> layers_asked(const TuneCommand& asked) {
  if (asked.vocab || asked.hidden) {
    throw InvalidArgument("--vocab, --hidden: expected with --op linear_logp, got det_gemm");
  }
  jit::ShapeOptions options;
  options.linears = true;
  std::vector<jit::LinearShape> layers;
  for (const std::string& model : asked.models) {
    const auto shape = jit::read_model_shape(model, templates::ops(), options);
    if (shape.linears.empty()) {
      throw InvalidArgument("--model: expected linear layers, got {}", model);
    }
    for (const jit::LinearShape& layer : shape.linears) {
      if (std::ranges::find(layers, layer) == layers.end()) layers.push_back(layer);
    }
  }
  if (asked.models.empty()) layers.assign(std::begin(k_usual_layers), std::end(k_usual_layers));
  std::vector<jit::ModelShape> shapes;
  for (const jit::LinearShape& layer : layers) shapes.emplace_back().linears = {layer};
  return shapes;
}

std::vector<jit::ModelShape> shapes_of(const jit::Op& op, const TuneCommand& asked) {
  if (tunes_layers(op)) return layers_asked(asked);
  std::vector<jit::ModelShape> shapes;
  for (const std::string& model : asked.models) {
    shapes.push_back(jit::read_model_shape(model, templates::ops(), {.vocab = asked.vocab}));
  }
  if (!shapes.empty() && asked.hidden) {
    throw InvalidArgument("--hidden: expected without --model, got both");
  }
  if (shapes.empty() && asked.vocab.has_value() != asked.hidden.has_value()) {
    throw InvalidArgument("--vocab, --hidden: expected both or none, got one");
  }
  if (shapes.empty() && asked.vocab) shapes.push_back({*asked.vocab, *asked.hidden});
  if (shapes.empty()) shapes.assign(std::begin(k_usual_heads), std::end(k_usual_heads));
  return shapes;
}

std::vector<DType> dtypes_of(const TuneCommand& asked) {
  auto dtypes = named_dtypes(asked.dtypes);
  if (std::ranges::find(dtypes, DType::f32) != dtypes.end()) {
    throw InvalidArgument("--dtype: expected bf16, fp16: fp32 is not tuned, got fp32");
  }
  return dtypes;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

class Tuner {
 public:
  Tuner(const Context& context, const TuneMachine& machine, jit::Dispatcher& dispatcher, int device,
        const jit::Op& op, std::vector<int> tiles)
      : context_(context),
        driver_(*machine.driver),
        dispatcher_(dispatcher),
        device_(device),
        op_(op),
        tiles_(std::move(tiles)) {}

  std::vector<TuneCase> run(const std::vector<jit::ModelShape>& shapes,
                            const std::vector<DType>& dtypes) {
    std::vector<TuneCase> cases;
    const std::size_t num_cases = shapes.size() * dtypes.size() * std::size(k_rows);
    Progress progress(context_, num_cases * (tiles_.size() + k_num_rounds));
    for (const jit::ModelShape& shape : shapes) {
      for (const DType dtype : dtypes) {
        const auto bench =
            make_tune_bench(driver_, device_, op_, shape, dtype, std::ranges::max(k_rows));
        for (const std::int64_t num_rows : k_rows) {
          TuneCase measured{&op_, shape, dtype, num_rows, tiles_};
          expect_same_bits(*bench, measured, progress);
          measure(*bench, measured, progress);
          cases.push_back(std::move(measured));
        }
      }
    }
    progress.finish();
    return cases;
  }

 private:
  // The first run of each: compiles it too.
  void expect_same_bits(TuneBench& bench, const TuneCase& of, Progress& progress) {
    std::vector<std::byte> first;
    for (const int tile : tiles_) {
      const jit::CacheInfo before = dispatcher_.cache_info();
      const auto bits = bench.results(of.num_rows, tile, [&](const auto& one) { run_one(one); });
      const jit::CacheInfo after = dispatcher_.cache_info();
      const auto explained = dispatcher_.explain(bench.call(of.num_rows, tile));
      if (after.fallbacks != before.fallbacks || after.alternatives != before.alternatives) {
        throw Unsupported("{}: tile {} does not run: {}", of.text(), tile_name(op_, tile),
                          explained.reason);
      }
      if (tile == tiles_[0]) first = bits;
      if (bits != first) {
        throw Error(fmt::format("{}: tiles {} and {} do not give the same bits; nothing is stored",
                                of.text(), tile_name(op_, tiles_[0]), tile_name(op_, tile)));
      }
      progress.step(after.compiles == before.compiles ? "" : "compiled " + explained.kernel);
    }
  }

  // In turns, since the card's clock changes by the second.
  void measure(TuneBench& bench, TuneCase& of, Progress& progress) {
    const auto run = [&](const jit::OpCall& call) { run_one(call); };
    std::vector<std::vector<double>> rounds(tiles_.size());
    std::vector<int> num_runs;
    for (const int tile : tiles_) {
      const double ms = bench.time_ms(of.num_rows, tile, 1, run);
      num_runs.push_back(static_cast<int>(
          std::clamp(k_burst_ms / std::max(ms, 1e-3), 1.0, static_cast<double>(k_most_runs))));
    }
    for (std::size_t round = 0; round < k_num_rounds; ++round) {
      for (std::size_t turn = 0; turn < tiles_.size(); ++turn) {
        const std::size_t i = (turn + round) % tiles_.size();  // each has each place
        rounds[i].push_back(bench.time_ms(of.num_rows, tiles_[i], num_runs[i], run));
      }
      progress.step("");
    }
    for (const auto& times : rounds) of.ms.push_back(median(times));
  }

  void run_one(const jit::OpCall& call) { dispatcher_.run(call); }

  const Context& context_;
  runtime::cuda::Driver& driver_;
  jit::Dispatcher& dispatcher_;
  int device_;
  const jit::Op& op_;
  std::vector<int> tiles_;
};

TuneChoice choose(const std::vector<TuneCase>& cases, const std::vector<int>& tiles,
                  std::size_t row_class) {
  TuneChoice chosen;
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    double sum = 0, count = 0;
    for (const TuneCase& one : cases) {
      if (jit::row_class(one.num_rows) != row_class) continue;
      sum += std::log(std::max(one.ms[i], 1e-9) / std::max(one.ms[one.best()], 1e-9));
      ++count;
    }
    const double ratio = std::exp(sum / count);
    const double gain = chosen.tile == jit::Tuning::k_own ? k_least_gain : 0;
    if (i == 0 || ratio < chosen.ratio * (1 - gain)) chosen = {tiles[i], ratio};
  }
  return chosen;
}

jit::Config config_of(const Context& context) {
  jit::Config config{context.settings};
  auto& settings = config.settings;
  settings.policy = Policy::sync;
  settings.cache_path.insert(settings.cache_path.end(), context.extra_layers.begin(),
                             context.extra_layers.end());
  return config;
}

// Why there is nothing to run on or by; "" if there is.
std::string problem_of(const Context& context, const TuneMachine& machine) {
  if (machine.driver == nullptr) {
    return fmt::format("tune: expected a CUDA device, got none: {}", machine.why_no_driver);
  }
  if (context.settings.policy == Policy::off) {
    return "tune: expected RLK_JIT=sync, got off: every tile must be compiled";
  }
  const std::string why_not = machine.cuda.compiler->why_not();
  return why_not.empty() ? "" : "tune: no tile can be compiled: " + why_not;
}

}  // namespace

int tune_on(const Context& context, const TuneCommand& asked, const TuneMachine& machine) {
  const jit::Op* asked_op = nullptr;
  std::vector<jit::ModelShape> shapes;
  std::vector<DType> dtypes;
  try {
    asked_op = &op_of(asked);
    shapes = shapes_of(*asked_op, asked);
    dtypes = dtypes_of(asked);
  } catch (const InvalidArgument& error) {
    return tell(context, error.what(), wrong_usage);
  }
  const jit::Op& op = *asked_op;
  if (const auto why = problem_of(context, machine); !why.empty()) return tell(context, why);
  const jit::Layers layers = layers_of(context);
  if (!has_read_write(context, layers)) return failed;

  const Device device{Device::Kind::cuda, asked.device};
  const runtime::cuda::DeviceInfo& info = machine.driver->device(asked.device);
  jit::Dispatcher dispatcher(config_of(context), {}, machine.cuda);
  const Target target = dispatcher.target(device);
  const std::vector<int> tiles = tune_tiles(op, shapes[0], dtypes[0], target);
  if (tiles.empty()) {
    return tell(context, fmt::format("{} ({}): nothing to tune: its kernels, of {}, have one tile",
                                     text(device), info.name, name(target)));
  }
  const auto cases =
      Tuner(context, machine, dispatcher, asked.device, op, tiles).run(shapes, dtypes);
  TuneChoices choices;
  jit::TuningRecord record{.op = std::string(op.name),
                           .pass = jit::Pass::fwd,
                           .target = target,
                           .device = machine.cuda.loader->model(asked.device),
                           .tiles = {}};
  for (std::size_t i = 0; i < choices.size(); ++i) {
    choices[i] = choose(cases, tiles, i);
    record.tiles[i] = tile_name(op, choices[i].tile);
  }
  const std::string file = *layers.options.read_write + '/' + jit::k_tuning_name;
  report(context, {.op = op,
                   .tiles = tiles,
                   .device = record.device,
                   .target = target,
                   .cases = cases,
                   .choices = choices,
                   .file = file});
  // What was measured, for minutes, is told even if this cannot be written.
  jit::store_tuning(layers.options, record);
  if (!context.json) context.out << "stored in " << printable(file) << '\n';
  return ok;
}

int tune(const Context& context, const TuneCommand& asked) {
  TuneMachine machine;
  machine.driver = runtime::cuda::Driver::find(&machine.why_no_driver);
  machine.cuda = {jit::make_nvrtc_compiler(context.settings), runtime::cuda::make_cuda_loader()};
  return tune_on(context, asked, machine);
}

}  // namespace rlk::cli
