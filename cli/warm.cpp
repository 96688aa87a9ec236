// SPDX-License-Identifier: Apache-2.0
// rlk-jit warm: compiles what a model's calls would ask for, before anybody calls.
#include "jit/warm/warm.hpp"

#include "cli/commands.hpp"
#include "cli/kernel.hpp"
#include "cli/progress.hpp"
#include "cli/table.hpp"
#include "jit/warm/trace.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/error.hpp"
#include "templates/registry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <map>

namespace rlk::cli {
namespace {

volatile std::sig_atomic_t signal_seen = 0;

// SIGINT and SIGTERM mean: stop, and keep what is done.
class HeardSignals {
 public:
  HeardSignals() {
    signal_seen = 0;
    struct sigaction action = {};
    action.sa_handler = [](int number) { signal_seen = number; };
    ::sigaction(SIGINT, &action, &before_int_);
    ::sigaction(SIGTERM, &action, &before_term_);
  }
  HeardSignals(const HeardSignals&) = delete;
  HeardSignals& operator=(const HeardSignals&) = delete;
  ~HeardSignals() {
    ::sigaction(SIGINT, &before_int_, nullptr);
    ::sigaction(SIGTERM, &before_term_, nullptr);
  }

 private:
  struct sigaction before_int_ = {}, before_term_ = {};
};

std::vector<std::string> split(const std::vector<std::string>& words) {
  std::vector<std::string> parts;
  for (const std::string& word : words) {
    for (std::size_t begin = 0; begin <= word.size();) {
      const std::size_t end = std::min(word.find(',', begin), word.size());
      parts.push_back(word.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return parts;
}

// Each word by its name in the table; throws InvalidArgument that lists the names.
template <class Value>
std::vector<Value> named(const std::vector<std::string>& words, const char* option,
                         const std::vector<std::pair<std::string, Value>>& table) {
  std::vector<Value> values;
  for (const std::string& word : split(words)) {
    const auto found = std::ranges::find(table, word, &std::pair<std::string, Value>::first);
    if (found == table.end()) {
      std::string names;
      for (const auto& [name, value] : table) names += (names.empty() ? "" : ", ") + name;
      throw InvalidArgument("{}: expected {}, got \"{}\"", option, names, word);
    }
    if (std::ranges::find(values, found->second) == values.end()) values.push_back(found->second);
  }
  return values;
}

std::vector<std::pair<std::string, Target>> target_names() {
  std::vector<std::pair<std::string, Target>> names;
  for (const auto targets : {cuda_targets(), cpu_targets()}) {
    for (const Target target : targets) names.emplace_back(name(target), target);
  }
  return names;
}

std::vector<std::pair<std::string, const jit::Op*>> op_names() {
  std::vector<std::pair<std::string, const jit::Op*>> names;
  for (const jit::Op* op : templates::ops()) names.emplace_back(op->name, op);
  return names;
}

const std::vector<std::pair<std::string, DType>> k_dtypes = {
    {"bf16", DType::bf16},     {"fp16", DType::f16},    {"fp32", DType::f32},
    {"bfloat16", DType::bf16}, {"float16", DType::f16}, {"float32", DType::f32}};

const std::vector<std::pair<std::string, jit::Pass>> k_passes = {{"fwd", jit::Pass::fwd},
                                                                 {"bwd", jit::Pass::bwd}};

// What runs here: the cards' targets, else the processor's.
std::vector<Target> own_targets() {
  std::vector<Target> targets;
  if (auto* driver = runtime::cuda::Driver::find()) {
    try {
      for (const auto& device : driver->devices()) {
        if (device.target) targets.push_back(*device.target);
      }
    } catch (const DriverError&) {
      // A driver without a card.
    }
  }
  if (const auto host = host_cpu_target(); targets.empty() && host) targets.push_back(*host);
  return targets;
}

std::vector<jit::Specialization> kernels_of(const Context& context, const WarmCommand& asked) {
  const auto targets = named(asked.archs, "--arch", target_names());
  jit::WarmPlan plan{.shapes = {},
                     .ops = named(asked.ops, "--op", op_names()),
                     .passes = named(asked.passes, "--pass", k_passes),
                     .dtypes = named(asked.dtypes, "--dtype", k_dtypes),
                     .targets = targets.empty() ? own_targets() : targets};
  if (plan.ops.empty()) plan.ops.assign(templates::ops().begin(), templates::ops().end());
  for (const std::string& model : asked.models) {
    plan.shapes.push_back(jit::read_model_shape(model, asked.shape));
  }
  auto kernels = jit::kernels_of(plan);
  for (const std::string& file : asked.traces) {
    const jit::TraceRead read = jit::read_trace(file);
    for (const std::string& problem : read.problems) {
      context.err << "rlk-jit: left out: " << printable(problem) << '\n';
    }
    for (const auto& kernel : read.kernels) {
      const bool is_asked =
          targets.empty() || std::ranges::find(targets, kernel.target) != targets.end();
      if (is_asked && std::ranges::find(kernels, kernel) == kernels.end()) {
        kernels.push_back(kernel);
      }
    }
  }
  if (asked.models.empty() && asked.traces.empty()) {
    throw InvalidArgument(
        "model: expected a config.json, a folder, V=..,D=.. or --trace, got none");
  }
  return kernels;
}

class Report {
 public:
  Report(const Context& context, std::size_t num_kernels)
      : context_(context), progress_(context, num_kernels) {}

  void add(const jit::WarmResult& result) {
    ++counts_[result.outcome];
    std::string line;
    if (result.outcome == jit::WarmOutcome::compiled) {
      line = fmt::format("compiled {} in {}", result.kernel.text(),
                         milliseconds_text(result.compile_ms));
    } else if (result.outcome == jit::WarmOutcome::failed) {
      context_.err << fmt::format("rlk-jit: {}: {}\n", result.kernel.text(),
                                  printable(result.problem));
    }
    progress_.step(line);
  }

  void finish(const std::vector<jit::WarmResult>& results, const std::string& folder) {
    progress_.finish();
    const std::chrono::duration<double> seconds = Clock::now() - start_;
    const auto count = [&](jit::WarmOutcome outcome) { return counts_[outcome]; };
    const std::size_t num_cancelled = results.size() - count(jit::WarmOutcome::compiled) -
                                      count(jit::WarmOutcome::present) -
                                      count(jit::WarmOutcome::failed);
    if (!context_.json) {
      context_.out << fmt::format(
          "{} compiled, {} present, {} failed{} in {:.1f} s: {}\n",
          count(jit::WarmOutcome::compiled), count(jit::WarmOutcome::present),
          count(jit::WarmOutcome::failed),
          num_cancelled == 0 ? "" : fmt::format(", {} not done", num_cancelled), seconds.count(),
          folder);
      return;
    }
    Json json;
    json["folder"] = folder;
    json["seconds"] = seconds.count();
    json["kernels"] = Json::array();
    for (const auto& result : results) {
      json["kernels"].push_back(
          {{"name", result.kernel.text()},
           {"outcome", name(result.outcome)},
           {"compile_ms", result.compile_ms},
           {"problem", result.problem.empty() ? Json() : Json(result.problem)}});
    }
    print_json(context_.out, json);
  }

  bool has_failures() { return counts_[jit::WarmOutcome::failed] != 0; }

 private:
  using Clock = std::chrono::steady_clock;
  const Context& context_;
  Progress progress_;
  std::map<jit::WarmOutcome, std::size_t> counts_;
  const Clock::time_point start_ = Clock::now();
};

}  // namespace

int warm(const Context& context, const WarmCommand& asked) {
  const jit::Layers layers = layers_of(context);
  if (!has_read_write(context, layers)) return failed;
  std::vector<jit::Specialization> kernels;
  try {
    kernels = kernels_of(context, asked);
  } catch (const InvalidArgument& error) {
    context.err << "rlk-jit: " << printable(error.what()) << '\n';
    return wrong_usage;
  }
  const jit::WarmOptions options{.settings = context.settings,
                                 .store = layers.options,
                                 .cuda_major = asked.cuda_major,
                                 .num_processes = asked.num_jobs};
  const HeardSignals signals;
  Report report(context, kernels.size());
  const auto results = jit::warm(
      kernels, options, [&](const jit::WarmResult& result) { report.add(result); },
      [] { return signal_seen != 0; });
  report.finish(results, *layers.options.read_write);
  if (signal_seen != 0) return 128 + signal_seen;
  return report.has_failures() ? failed : ok;
}

}  // namespace rlk::cli
