// SPDX-License-Identifier: Apache-2.0
// rlk-jit explain: would a call find this kernel, and if not, why not and what then.
#include "cli/commands.hpp"
#include "cli/query/kernel_query.hpp"
#include "cli/query/nearest.hpp"
#include "cli/text/table.hpp"
#include "jit/build_key.hpp"
#include "jit/layer_places.hpp"
#include "jit/llvm_compiler.hpp"
#include "jit/nvrtc/make_nvrtc_compiler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace rlk::cli {
namespace {

jit::CompilerAtHand compiler_for(const Context& context, Target target) {
  const Settings& settings = context.settings;
  if (backend(target) == Backend::cpu) {
    return jit::compiler_at_hand(settings.policy, jit::LlvmCompiler(settings.package_folder));
  }
  return jit::compiler_at_hand(settings.policy, *jit::make_nvrtc_compiler(settings));
}

// A kernel of the same bits, and its file.
struct Found {
  std::string name;
  cache::Candidate file;
};

// All that is told of a kernel.
struct Answer {
  std::string name;
  std::string digest;
  bool is_generic = false;
  std::string compiler;  // "": nothing is compiled
  std::vector<cache::Candidate> candidates;
  std::optional<Difference> difference = {};  // of the nearest, where no file has the key
  std::optional<Found> alternative = {};      // of a miss: what runs before the generic kernel
  std::optional<Found> generic = {};          // of a miss
  std::string does = {};                      // one of the words below
  std::string text = {};                      // the same for people
};

// Words for --json: load, compile, compile-in-background, run-alternative, run-generic, fail.
void tell(const jit::Decision& decision, Answer& answer) {
  const bool is_alternative = decision.fallback == jit::Fallback::alternative;
  const std::string fallback = is_alternative ? decision.kernel.text() : "the generic kernel";
  if (decision.in_background) {
    answer.does = "compile-in-background";
    answer.text = fmt::format("runs {}, compiles with {} meanwhile", fallback, answer.compiler);
  } else if (decision.origin == jit::Origin::compile) {
    answer.does = "compile";
    answer.text = "compiles with " + answer.compiler;
  } else if (decision.origin == jit::Origin::none) {
    answer.does = "fail";
    answer.text = fmt::format("raises Unsupported: no kernel{} ({})",
                              answer.is_generic ? "" : ", nor a generic one", decision.reason);
  } else if (decision.fallback == jit::Fallback::none) {
    answer.does = "load";
    answer.text = "loads that file";
  } else {
    answer.does = is_alternative ? "run-alternative" : "run-generic";
    answer.text = fmt::format("runs {} ({})", fallback, decision.reason);
  }
}

std::optional<Found> found(const jit::Decision& decision, jit::LayerPlaces& places) {
  if (decision.origin == jit::Origin::none) return std::nullopt;
  return Found{decision.kernel.text(), places.trace(decision.kernel).back()};
}

Answer answer_for(const Context& context, const KernelQuery& query,
                  const std::vector<CachedKernel>& kernels) {
  const cache::Key key = jit::build_key(query.spec);
  const jit::CompilerAtHand compiler = compiler_for(context, query.spec.target);
  cache::DiskStore store(layers_of(context).options);
  jit::LayerPlaces places(store, compiler.identity);
  Answer answer{query.spec.text(), key.digest(), query.spec.is_generic(), compiler.identity,
                places.trace(query.spec)};
  if (!is_hit(answer.candidates)) {
    // The one that was asked for; else, where no file has the key, the nearest.
    const bool has_files = std::ranges::any_of(
        answer.candidates, [](const auto& one) { return !one.compiler.empty(); });
    const CachedKernel* other = query.kernel ? &*query.kernel
                                : has_files  ? nullptr
                                             : nearest(key, kernels);
    if (other != nullptr) answer.difference = difference(key, *other);
    answer.alternative = found(jit::find_alternative(query.spec, places), places);
    answer.generic = found(jit::find_generic(query.spec, places), places);
  }
  tell(jit::decide(query.spec, compiler, places), answer);
  return answer;
}

std::string or_nothing(const std::string& value) {
  return value.empty() ? "nothing" : printable(value);
}

void print_for_people(const Context& context, const Answer& answer) {
  const bool hit = is_hit(answer.candidates);
  context.out << painted(printable(answer.name), Colour::bold, context.colour) << ": "
              << painted(hit ? "hit" : "miss", hit ? Colour::green : Colour::yellow, context.colour)
              << '\n';
  Table table({{}, {}, {}});
  const auto line = [&](const char* label, const std::string& value) {
    table.add({{""}, {label, Colour::dim}, {value}});
  };
  line("key", answer.digest);
  for (const cache::Candidate& candidate : answer.candidates) {
    if (candidate.problem.empty()) {
      line("file", printable(candidate.path));
      line("layer", printable(layer_name(context, candidate.layer)));
      line("compiler", printable(candidate.compiler));
    } else {
      line("passed over", printable(candidate.path + ": " + candidate.problem));
    }
  }
  if (!hit && answer.candidates.empty()) line("files", "no layer has a file of this key");
  if (const auto& differs = answer.difference) {
    line("nearest", printable(differs->kernel->entry.path));
    line("", shown_name(*differs->kernel));
    line("differs in", printable(differs->field));
    line("  wanted", or_nothing(differs->wanted));
    line("  found", or_nothing(differs->found));
  }
  if (const auto& other = answer.alternative) {
    line("same bits", fmt::format("{} ({})", printable(other->file.path),
                                  printable(layer_name(context, other->file.layer))));
  }
  if (answer.generic) {
    line("generic", fmt::format("{} ({})", printable(answer.generic->file.path),
                                printable(layer_name(context, answer.generic->file.layer))));
  } else if (!hit && !answer.is_generic) {
    line("generic", "in no layer");
  }
  line("a call", printable(answer.text));
  table.print(context.out, context.colour);
}

Json json_of(const Context& context, const cache::Candidate& candidate) {
  return {{"path", candidate.path},
          {"layer", layer_name(context, candidate.layer)},
          {"compiler", candidate.compiler},
          {"problem", candidate.problem.empty() ? Json() : Json(candidate.problem)}};
}

Json json_of(const Context& context, const Answer& answer) {
  const bool hit = is_hit(answer.candidates);
  Json json = {{"name", answer.name},         {"key", answer.digest}, {"hit", hit},
               {"does", answer.does},         {"text", answer.text},  {"file", nullptr},
               {"passed_over", Json::array()}};
  for (const cache::Candidate& candidate : answer.candidates) {
    if (candidate.problem.empty()) {
      json["file"] = json_of(context, candidate);
    } else {
      json["passed_over"].push_back(json_of(context, candidate));
    }
  }
  json["nearest"] = nullptr;
  if (const auto& differs = answer.difference) {
    json["nearest"] = {{"name", differs->kernel->name()},
                       {"path", differs->kernel->entry.path},
                       {"field", differs->field},
                       {"wanted", differs->wanted},
                       {"found", differs->found}};
  }
  json["alternative"] = nullptr;
  if (const auto& other = answer.alternative) {
    json["alternative"] = {{"name", other->name}, {"file", json_of(context, other->file)}};
  }
  json["generic"] = answer.generic ? json_of(context, answer.generic->file) : Json();
  json["compiler"] = answer.compiler.empty() ? Json() : Json(answer.compiler);
  return json;
}

}  // namespace

int explain(const Context& context, const std::string& word) {
  const auto query = parse_kernel_query(context, word);
  if (!query) return wrong_usage;
  const std::vector<CachedKernel> kernels = all_kernels(context);
  const Answer answer = answer_for(context, *query, kernels);
  if (!is_hit(answer.candidates)) tell_layers(context);  // that may be why
  if (context.json) {
    print_json(context.out, json_of(context, answer));
  } else {
    print_for_people(context, answer);
  }
  return is_hit(answer.candidates) ? ok : failed;
}

}  // namespace rlk::cli
