// SPDX-License-Identifier: Apache-2.0
// rlk-jit warm: compiles what a model's calls would ask for, before anybody calls.
#include "jit/warm/warm.hpp"

#include "cli/commands.hpp"
#include "cli/query/cached_kernel.hpp"
#include "cli/text/progress.hpp"
#include "cli/text/table.hpp"
#include "jit/build_key.hpp"
#include "jit/warm/trace.hpp"
#include "runtime/error.hpp"
#include "templates/registry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
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

std::vector<jit::Specialization> kernels_of(const Context& context, const WarmCommand& asked) {
  auto kernels = chosen_kernels(context, asked.choice, own_targets(context.settings));
  const auto targets = named_targets(asked.choice);
  for (const std::string& file : asked.traces) {
    const jit::TraceRead read = jit::read_trace(file, templates::ops());
    for (const std::string& problem : read.problems) {
      tell(context, "left out: " + problem);
    }
    for (const auto& kernel : read.kernels) {
      const bool is_asked =
          targets.empty() || std::ranges::find(targets, kernel.target) != targets.end();
      if (is_asked && std::ranges::find(kernels, kernel) == kernels.end()) {
        kernels.push_back(kernel);
      }
    }
  }
  if (asked.choice.models.empty() && asked.traces.empty()) {
    throw InvalidArgument(
        "model: expected a config.json, a folder, V=..,D=.. or --trace, got none");
  }
  if (kernels.empty()) {  // an image would be shipped that was never warmed
    throw InvalidArgument("trace: expected the name of a kernel{}, found none",
                          targets.empty() ? "" : " for the targets of --arch");
  }
  const auto is_of_cuda = [](const auto& kernel) {
    return backend(kernel.target) == Backend::cuda;
  };
  if (asked.cuda_major && std::ranges::none_of(kernels, is_of_cuda)) {
    throw InvalidArgument(
        "--cuda: expected a kernel that NVRTC compiles (--arch sm_90a, for example), "
        "got CPU kernels alone");
  }
  return kernels;
}

// Of the models whose logits are more than a product: what calls must pass to run these kernels.
void tell_options(const Context& context, const KernelChoice& choice) {
  const auto shapes = chosen_shapes(choice);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    std::string options;
    for (const auto& [name, number] : shapes[i].numbers) {
      options += fmt::format(" {}={:.9g}", name, number);
    }
    if (options.empty()) continue;
    context.out << fmt::format("{}: calls with{}\n", printable(choice.models[i]), options);
  }
}

Json json_of(const KernelChoice& choice) {
  Json models = Json::array();
  const auto shapes = chosen_shapes(choice);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const auto& shape = shapes[i];
    Json model = {{"model", choice.models[i]}, {"vocab", shape.vocab}, {"hidden", shape.hidden}};
    for (const jit::Parameter* parameter : jit::model_parameters(templates::ops())) {
      const auto given = shape.numbers.find(parameter->name);
      const bool has_default = parameter->kind == jit::Kind::number;
      Json& number = model[std::string(parameter->name)];
      if (given != shape.numbers.end()) {
        number = given->second;
      } else if (has_default) {
        number = parameter->by_default;
      }
    }
    models.push_back(std::move(model));
  }
  return models;
}

int note_in_manifest(const Context& context, const cache::StoreOptions& store,
                     const std::vector<jit::WarmResult>& results) {
  std::vector<std::string> names;
  bool has_news = false;
  for (const auto& result : results) {
    const bool is_new = result.outcome == jit::WarmOutcome::compiled;
    has_news = has_news || is_new;
    if (is_new || result.outcome == jit::WarmOutcome::present) {
      names.push_back(result.kernel.text());
    }
  }
  return list_in_manifest(context, store, names, has_news);
}

class Report {
 public:
  Report(const Context& context, const KernelChoice& choice, std::size_t num_kernels)
      : context_(context), choice_(choice), progress_(context, num_kernels) {}

  void add(const jit::WarmResult& result) {
    ++counts_[result.outcome];
    std::string line;
    if (result.outcome == jit::WarmOutcome::compiled) {
      line = fmt::format("compiled {} in {}", result.kernel.text(),
                         milliseconds_text(result.compile_ms));
    } else if (result.outcome == jit::WarmOutcome::failed) {
      tell(context_, fmt::format("{}: {}", result.kernel.text(), result.problem));
    }
    progress_.step(line);
  }

  void finish(const std::vector<jit::WarmResult>& results,
              const std::optional<std::string>& folder) {
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
          folder.value_or("no folder"));
      return;
    }
    Json json;
    json["folder"] = folder ? Json(*folder) : Json();
    json["seconds"] = seconds.count();
    json["models"] = json_of(choice_);
    json["kernels"] = Json::array();
    for (const auto& result : results) {
      json["kernels"].push_back({{"name", result.kernel.text()},
                                 {"key", jit::build_key(result.kernel).digest()},
                                 {"outcome", name(result.outcome)},
                                 {"compile_ms", result.compile_ms},
                                 {"problem", or_null(result.problem)}});
    }
    print_json(context_.out, json);
  }

  bool has_failures() { return counts_[jit::WarmOutcome::failed] != 0; }

 private:
  using Clock = std::chrono::steady_clock;
  const Context& context_;
  const KernelChoice& choice_;
  Progress progress_;
  std::map<jit::WarmOutcome, std::size_t> counts_;
  const Clock::time_point start_ = Clock::now();
};

}  // namespace

int warm(const Context& context, const WarmCommand& asked) {
  const jit::Layers layers = layers_of(context);
  const bool has_folder = has_read_write(context, layers);  // what is there needs none
  const auto kernels = kernels_of(context, asked);
  const jit::WarmOptions options{.settings = context.settings,
                                 .store = layers.options,
                                 .cuda_major = asked.cuda_major,
                                 .num_processes = asked.num_jobs,
                                 .is_reproducible = asked.is_reproducible};
  if (asked.choice.archs.empty() && !asked.choice.models.empty() && !context.json) {
    tell(context, fmt::format("for {}, as here; --arch names others",
                              names_of(own_targets(context.settings))));
  }
  const HeardSignals signals;
  if (!context.json) tell_options(context, asked.choice);
  Report report(context, asked.choice, kernels.size());
  const auto results = jit::warm(
      kernels, options, [&](const jit::WarmResult& result) { report.add(result); },
      [] { return signal_seen != 0; });
  report.finish(results, layers.options.read_write);
  const int noted = has_folder ? note_in_manifest(context, layers.options, results) : ok;
  if (signal_seen != 0) {
    return tell(
        context,
        fmt::format("interrupted by SIG{}; what is done is kept", ::sigabbrev_np(signal_seen)),
        128 + signal_seen);
  }
  return report.has_failures() ? failed : noted;
}

}  // namespace rlk::cli
