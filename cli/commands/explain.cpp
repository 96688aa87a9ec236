// SPDX-License-Identifier: Apache-2.0
// rlk-jit explain: would a call find this kernel, and if not, why not and what then.
#include "cli/commands.hpp"
#include "cli/query/kernel_query.hpp"
#include "cli/query/trace.hpp"
#include "cli/text/table.hpp"
#include "jit/build_key.hpp"
#include "jit/llvm_compiler.hpp"
#include "jit/nvrtc/make_nvrtc_compiler.hpp"
#include "jit/op.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

namespace rlk::cli {
namespace {

// Who compiles for a target here, as the dispatcher decides it.
struct CompilerAtHand {
  std::string identity;  // "": nothing is compiled
  std::string why_not;
};

CompilerAtHand compiler_at_hand(const Context& context, Target target) {
  const Settings& settings = context.settings;
  if (settings.policy == Policy::off) return {"", "RLK_JIT=off, nothing is compiled"};
  std::shared_ptr<jit::Compiler> compiler;
  if (backend(target) == Backend::cpu) {
    compiler = std::make_shared<jit::LlvmCompiler>(settings.package_folder);
  } else {
    compiler = jit::make_nvrtc_compiler(settings);
  }
  const std::string why_not = compiler->why_not();
  return {why_not.empty() ? compiler->identity() : "", why_not};
}

// A kernel of the same bits, for another tile, and its file.
struct Alternative {
  std::string name;
  Candidate file;
};

// All that is told of a kernel.
struct Answer {
  std::string name;
  std::string digest;
  bool is_generic = false;
  CompilerAtHand compiler;
  std::vector<Candidate> candidates;
  std::optional<Difference> difference = {};    // of the nearest, where no file has the key
  std::optional<Alternative> alternative = {};  // of a miss: what runs before the generic kernel
  std::optional<Candidate> generic = {};        // of a miss: the generic kernel's file
  std::string does = {};                        // one of the words below
  std::string text = {};                        // the same for people
};

// Words for --json: load, compile, compile-in-background, run-alternative, run-generic, fail.
void decide(const Context& context, Answer& answer) {
  const std::string& compiler = answer.compiler.identity;
  const bool has_fallback = answer.alternative || answer.generic;
  const std::string fallback = answer.alternative ? answer.alternative->name : "the generic kernel";
  if (is_hit(answer.candidates)) {
    answer.does = "load";
    answer.text = "loads that file";
  } else if (!compiler.empty() && context.settings.policy == Policy::async && has_fallback) {
    answer.does = "compile-in-background";
    answer.text = fmt::format("runs {}, compiles with {} meanwhile", fallback, compiler);
  } else if (!compiler.empty()) {
    answer.does = "compile";
    answer.text = "compiles with " + compiler;
  } else if (has_fallback) {
    answer.does = answer.alternative ? "run-alternative" : "run-generic";
    answer.text = fmt::format("runs {} ({})", fallback, answer.compiler.why_not);
  } else {
    answer.does = "fail";
    answer.text =
        fmt::format("raises Unsupported: no kernel{} ({})",
                    answer.is_generic ? "" : ", nor a generic one", answer.compiler.why_not);
  }
}

Answer answer_for(const Context& context, const KernelQuery& query,
                  const std::vector<CachedKernel>& kernels) {
  const cache::Key key = jit::build_key(query.spec);
  const CompilerAtHand compiler = compiler_at_hand(context, query.spec.target);
  Answer answer{query.spec.text(), key.digest(), query.spec.is_generic(), compiler,
                trace_get(context, kernels, key, compiler.identity)};
  if (!is_hit(answer.candidates)) {
    // The one that was asked for; else, where no file has the key, the nearest.
    const bool has_files = std::ranges::any_of(
        answer.candidates, [](const Candidate& one) { return !one.compiler.empty(); });
    const CachedKernel* other = query.kernel ? &*query.kernel
                                : has_files  ? nullptr
                                             : nearest(key, kernels);
    if (other != nullptr) answer.difference = difference(key, *other);
    for (const auto& alternative : query.spec.op->alternatives(query.spec)) {
      const auto files =
          trace_get(context, kernels, jit::build_key(alternative), compiler.identity);
      if (!is_hit(files)) continue;
      answer.alternative = {alternative.text(), files.back()};
      break;
    }
    if (!answer.is_generic) {
      const auto generic =
          trace_get(context, kernels, jit::build_key(query.spec.generic()), compiler.identity);
      if (is_hit(generic)) answer.generic = generic.back();
    }
  }
  decide(context, answer);
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
  for (const Candidate& candidate : answer.candidates) {
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
    line("generic", fmt::format("{} ({})", printable(answer.generic->path),
                                printable(layer_name(context, answer.generic->layer))));
  } else if (!hit && !answer.is_generic) {
    line("generic", "in no layer");
  }
  line("a call", printable(answer.text));
  table.print(context.out, context.colour);
}

Json json_of(const Context& context, const Candidate& candidate) {
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
  for (const Candidate& candidate : answer.candidates) {
    if (candidate.problem.empty()) {
      json["file"] = json_of(context, candidate);
    } else {
      json["passed_over"].push_back(json_of(context, candidate));
    }
  }
  json["nearest"] = nullptr;
  if (const auto& differs = answer.difference) {
    json["nearest"] = {{"name", differs->kernel->name},
                       {"path", differs->kernel->entry.path},
                       {"field", differs->field},
                       {"wanted", differs->wanted},
                       {"found", differs->found}};
  }
  json["alternative"] = nullptr;
  if (const auto& other = answer.alternative) {
    json["alternative"] = {{"name", other->name}, {"file", json_of(context, other->file)}};
  }
  json["generic"] = answer.generic ? json_of(context, *answer.generic) : Json();
  json["compiler"] = answer.compiler.identity.empty() ? Json() : Json(answer.compiler.identity);
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
