// SPDX-License-Identifier: Apache-2.0
// rlk-jit doctor: tries what a first call would need and says what it found.
#include "cli/commands.hpp"
#include "cli/findings.hpp"
#include "cli/table.hpp"
#include "jit/build_key.hpp"
#include "jit/nvrtc/make_nvrtc_compiler.hpp"
#include "jit/op.hpp"
#include "runtime/error.hpp"
#include "runtime/shared_library.hpp"
#include "templates/registry.hpp"

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
  examine_readiness(context, layers, store, machine, options.choice, findings);
  excuse_cpu(findings, options.strict);
  return findings;
}

}  // namespace

void examine_settings(const Context& context, Findings& findings) {
  const Settings& settings = context.settings;
  std::string text;
  Json details = Json::object();
  const auto show = [&](const char* variable, const std::string& value) {
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", variable, value);
    details[variable] = value;
  };
  const auto show_if = [&](const char* variable, const std::optional<std::string>& value) {
    if (value) show(variable, *value);
  };
  show("RLK_JIT", std::string(rlk::name(settings.policy)));
  show("RLK_LOG", settings.log_level);
  show("RLK_VALIDATE", settings.validate_sync ? "sync" : "async");
  show("RLK_WORKSPACE_MIB", std::to_string(settings.workspace_mib));
  show("RLK_MAX_KERNELS", std::to_string(settings.max_kernels));
  std::string arch;
  for (const auto& target : {settings.cpu_target, settings.cuda_target}) {
    if (target) arch += fmt::format("{}{}", arch.empty() ? "" : ",", rlk::name(*target));
  }
  if (!arch.empty()) show("RLK_ARCH", arch);
  if (settings.num_threads) show("RLK_NUM_THREADS", std::to_string(*settings.num_threads));
  show_if("RLK_CACHE_DIR", settings.cache_dir);
  show_if("RLK_NVRTC", process_environment("RLK_NVRTC"));
  show_if("RLK_TRACE", settings.trace_file);
  show_if("RLK_DUMP_DIR", settings.dump_dir);
  findings.push_back({"settings", State::good, text, details});
}

std::vector<jit::Specialization> generic_variants(Target target) {
  std::vector<jit::Specialization> all;
  for (const jit::Op* op : templates::ops()) {
    for (const auto& spec : op->generic_variants(target)) all.push_back(spec);
  }
  return all;
}

Finding examine_calls(const Context& context, cache::DiskStore& store, std::string subject,
                      Target target, const std::optional<std::string>& compiler) {
  const bool is_off = context.settings.policy == Policy::off;
  const bool compiles = compiler && !is_off;
  std::size_t num_found = 0;
  const auto specs = generic_variants(target);
  for (const auto& spec : specs) {
    try {
      num_found += store.get(jit::build_key(spec), compiles ? *compiler : "") ? 1 : 0;
    } catch (const Error&) {
      // No template for this target in this build: not found.
    }
  }
  const std::string generic = fmt::format("{} of {} generic kernels for {} found", num_found,
                                          specs.size(), rlk::name(target));
  const bool has_all = num_found == specs.size() && !specs.empty();
  Finding finding{std::move(subject), State::good, "", Json::object()};
  finding.details["target"] = rlk::name(target);
  finding.details["compiles"] = compiles;
  finding.details["generic_found"] = num_found;
  finding.details["generic_known"] = specs.size();
  if (compiles) {
    finding.text = "run specialized kernels, compiled at first use; " + generic;
  } else if (is_off) {
    finding.state = has_all ? State::good : State::fail;
    finding.text = "run only what is cached (RLK_JIT=off); " + generic;
  } else if (has_all) {
    finding.state = State::warn;
    finding.text = "run cached kernels, else generic ones; " + generic;
  } else {
    finding.state = State::fail;
    finding.text = "cannot run without a compiler; " + generic;
  }
  return finding;
}

int doctor(const Context& context, const DoctorOptions& options) {
  Findings findings;
  try {
    findings = examine(context, options);
  } catch (const InvalidArgument& error) {
    context.err << "rlk-jit: " << printable(error.what()) << '\n';
    return wrong_usage;
  }
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
