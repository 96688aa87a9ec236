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

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace rlk::cli {
namespace {

// Numbers of rows that are measured, two a class.
constexpr std::int64_t k_rows[] = {1, 64, 128, 256, 1024, 4096};
constexpr double k_burst_ms = 5;
constexpr int k_most_runs = 100;
// Heads of models, where none is named.
const jit::ModelShape k_usual_shapes[] = {{128256, 4096}, {151936, 2048}};

std::vector<jit::ModelShape> shapes_of(const TuneCommand& asked) {
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
  if (shapes.empty()) shapes.assign(std::begin(k_usual_shapes), std::end(k_usual_shapes));
  return shapes;
}

std::vector<DType> dtypes_of(const TuneCommand& asked) {
  auto dtypes = named_dtypes(asked.dtypes);
  if (std::ranges::find(dtypes, DType::f32) != dtypes.end()) {
    throw InvalidArgument("--dtype: expected bf16, fp16: fp32 has one tile, got fp32");
  }
  return dtypes;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

class Tuner {
 public:
  Tuner(const Context& context, const TuneMachine& machine, jit::Dispatcher& dispatcher, int device)
      : context_(context), driver_(*machine.driver), dispatcher_(dispatcher), device_(device) {}

  std::vector<TuneCase> run(const std::vector<jit::ModelShape>& shapes,
                            const std::vector<DType>& dtypes) {
    std::vector<TuneCase> cases;
    const std::size_t num_cases = shapes.size() * dtypes.size() * std::size(k_rows);
    Progress progress(context_, num_cases * (tuned_op().tile_names.size() + k_num_rounds));
    for (const jit::ModelShape& shape : shapes) {
      for (const DType dtype : dtypes) {
        TuneBench bench(driver_, device_, shape, dtype, std::ranges::max(k_rows));
        for (const std::int64_t num_rows : k_rows) {
          TuneCase measured{shape, dtype, num_rows};
          expect_same_bits(bench, measured, progress);
          measure(bench, measured, progress);
          cases.push_back(std::move(measured));
        }
      }
    }
    progress.finish();
    return cases;
  }

 private:
  static int num_tiles() { return static_cast<int>(tuned_op().tile_names.size()); }

  // The first run of each: compiles it too.
  void expect_same_bits(TuneBench& bench, const TuneCase& of, Progress& progress) {
    std::vector<std::byte> first;
    for (int tile = 0; tile < num_tiles(); ++tile) {
      const LinearLogpCall call = bench.call(of.num_rows, tile);
      const jit::CacheInfo before = dispatcher_.cache_info();
      const auto bits =
          bench.results(call, [&](const LinearLogpCall& one) { dispatcher_.run(one); });
      const jit::CacheInfo after = dispatcher_.cache_info();
      const auto name = dispatcher_.explain(call).kernel;
      if (after.fallbacks != before.fallbacks || after.alternatives != before.alternatives) {
        throw Unsupported("{}: tile {} does not run: {}", of.text(), tile_name(tile),
                          dispatcher_.explain(call).reason);
      }
      if (tile == 0) first = bits;
      if (bits != first) {
        throw Error(fmt::format("{}: tiles {} and {} do not give the same bits; nothing is stored",
                                of.text(), tile_name(0), tile_name(tile)));
      }
      progress.step(after.compiles == before.compiles ? "" : "compiled " + name);
    }
  }

  // In turns, since the card's clock changes by the second.
  void measure(TuneBench& bench, TuneCase& of, Progress& progress) {
    const auto run = [&](const LinearLogpCall& call) { dispatcher_.run(call); };
    std::vector<std::vector<double>> rounds(static_cast<std::size_t>(num_tiles()));
    std::vector<int> num_runs;
    for (int tile = 0; tile < num_tiles(); ++tile) {
      const double ms = bench.time_ms(bench.call(of.num_rows, tile), 1, run);
      num_runs.push_back(static_cast<int>(
          std::clamp(k_burst_ms / std::max(ms, 1e-3), 1.0, static_cast<double>(k_most_runs))));
    }
    for (int round = 0; round < k_num_rounds; ++round) {
      for (int turn = 0; turn < num_tiles(); ++turn) {
        const int tile = (turn + round) % num_tiles();  // each has each place
        const auto i = static_cast<std::size_t>(tile);
        rounds[i].push_back(bench.time_ms(bench.call(of.num_rows, tile), num_runs[i], run));
      }
      progress.step("");
    }
    for (const auto& times : rounds) of.ms.push_back(median(times));
  }

  static std::string_view tile_name(int tile) {
    return tuned_op().tile_names[static_cast<std::size_t>(tile)];
  }

  const Context& context_;
  runtime::cuda::Driver& driver_;
  jit::Dispatcher& dispatcher_;
  int device_;
};

TuneChoice choose(const std::vector<TuneCase>& cases, std::size_t row_class) {
  TuneChoice chosen;
  for (std::size_t tile = 0; tile < tuned_op().tile_names.size(); ++tile) {
    double sum = 0, count = 0;
    for (const TuneCase& one : cases) {
      if (jit::row_class(one.num_rows) != row_class) continue;
      sum += std::log(std::max(one.ms[tile], 1e-9) / std::max(one.ms[one.best()], 1e-9));
      ++count;
    }
    const double ratio = std::exp(sum / count);
    if (tile == 0 || ratio < chosen.ratio) chosen = {tile, ratio};
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
  std::vector<jit::ModelShape> shapes;
  std::vector<DType> dtypes;
  try {
    shapes = shapes_of(asked);
    dtypes = dtypes_of(asked);
  } catch (const InvalidArgument& error) {
    return tell(context, error.what(), wrong_usage);
  }
  if (const auto why = problem_of(context, machine); !why.empty()) return tell(context, why);
  const jit::Layers layers = layers_of(context);
  if (!has_read_write(context, layers)) return failed;

  const Device device{Device::Kind::cuda, asked.device};
  const runtime::cuda::DeviceInfo& info = machine.driver->device(asked.device);
  jit::Dispatcher dispatcher(config_of(context), {}, machine.cuda);
  const Target target = dispatcher.target(device);
  const auto kernel =
      tuned_op().model_variants(shapes[0], dtypes[0], jit::Pass::fwd, target, jit::Tuning()).at(0);
  if (tuned_op().alternatives(kernel).empty()) {
    return tell(context, fmt::format("{} ({}): nothing to tune: its kernels, of {}, have one tile",
                                     text(device), info.name, name(target)));
  }
  const auto cases = Tuner(context, machine, dispatcher, asked.device).run(shapes, dtypes);
  TuneChoices choices;
  jit::TuningRecord record{.op = std::string(tuned_op().name),
                           .pass = jit::Pass::fwd,
                           .target = target,
                           .device = machine.cuda.loader->model(asked.device),
                           .tiles = {}};
  for (std::size_t i = 0; i < choices.size(); ++i) {
    choices[i] = choose(cases, i);
    record.tiles[i] = tuned_op().tile_names[choices[i].tile];
  }
  jit::store_tuning(layers.options, record);
  report(context, {.device = record.device,
                   .target = target,
                   .cases = cases,
                   .choices = choices,
                   .file = *layers.options.read_write + '/' + jit::k_tuning_name});
  return ok;
}

int tune(const Context& context, const TuneCommand& asked) {
  TuneMachine machine;
  machine.driver = runtime::cuda::Driver::find(&machine.why_no_driver);
  machine.cuda = {jit::make_nvrtc_compiler(context.settings), runtime::cuda::make_cuda_loader()};
  return tune_on(context, asked, machine);
}

}  // namespace rlk::cli
