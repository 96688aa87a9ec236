// SPDX-License-Identifier: Apache-2.0
// rlk-jit doctor: tries what a first call would need and says what it found.
#include "cli/commands.hpp"
#include "cli/doctor/findings.hpp"
#include "cli/text/table.hpp"
#include "jit/nvrtc/make_nvrtc_compiler.hpp"
#include "runtime/error.hpp"
#include "runtime/shared_library.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace rlk::cli {
namespace {

std::string_view name(State state) {
  return state == State::good ? "ok" : state == State::warn ? "warn" : "fail";
}

Colour colour(State state) {
  return state == State::good ? Colour::green : state == State::warn ? Colour::yellow : Colour::red;
}

bool has_libcuda() {
  try {
    runtime::SharedLibrary::open("libcuda.so.1");
    return true;
  } catch (const LoadError&) {
    return false;
  }
}

// A machine that runs one of the backends is healthy, if nothing of the other is broken.
void excuse_cpu(Findings& findings, bool strict) {
  const auto runs = [](const Finding& finding) {
    return finding.subject == "cuda calls" && finding.details.contains("target") &&
           finding.state != State::fail;
  };
  if (std::ranges::none_of(findings, runs)) return;
  for (Finding& finding : findings) {
    const bool excused = finding.subject == "processor" || finding.subject == "cpu calls";
    // A health check of a GPU image is not about the processor.
    if (excused && finding.state != State::good) finding.state = strict ? State::good : State::warn;
  }
}

Findings examine(const Context& context, const DoctorOptions& options) {
  const jit::Layers layers = layers_of(context);
  cache::DiskStore store(layers.options);
  Findings findings;
  findings.push_back(
      {"rlk",
       State::good,
       fmt::format("{} in {}", RLK_VERSION, context.settings.package_folder.string()),
       {{"version", RLK_VERSION}}});
  examine_settings(context, findings);
  examine_layers(layers, store, context.settings.policy, findings);
  examine_cpu(context, store, findings);

  const auto compiler = jit::make_nvrtc_compiler(context.settings);
  CudaMachine machine{nullptr, "", false, *compiler};
  machine.driver = runtime::cuda::Driver::find(&machine.why_no_driver);
  machine.has_library = machine.driver != nullptr || has_libcuda();
  examine_cuda(context, store, machine, findings);
  call_kernels(context, store, machine, findings);
  examine_readiness(context, layers, store, machine, options.choice, findings);
  excuse_cpu(findings, options.strict);
  return findings;
}

}  // namespace

int doctor(const Context& context, const DoctorOptions& options) {
  const Findings findings = examine(context, options);
  const State worst = options.strict ? State::warn : State::fail;
  const bool is_healthy =
      std::ranges::none_of(findings, [&](const Finding& one) { return one.state >= worst; });
  if (context.json) {
    Json all = Json::array();
    for (const Finding& finding : findings) {
      Json& json = all.emplace_back();
      json["subject"] = finding.subject;
      json["state"] = name(finding.state);
      json["text"] = finding.text;
      if (!finding.details.is_null()) json["details"] = finding.details;
    }
    print_json(context.out, {{"healthy", is_healthy}, {"findings", all}});
  } else {
    Table table({{}, {}, {}});
    for (const Finding& finding : findings) {
      table.add({{std::string(name(finding.state)), colour(finding.state)},
                 {finding.subject},
                 {printable(finding.text)}});
    }
    table.print(context.out, context.colour);
  }
  return is_healthy ? ok : failed;
}

}  // namespace rlk::cli
