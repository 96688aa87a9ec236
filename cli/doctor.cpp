// SPDX-License-Identifier: Apache-2.0
// rlk-jit doctor: tries what a first call would need and says what it found.
#include "cli/commands.hpp"
#include "cli/kernel.hpp"
#include "cli/table.hpp"
#include "jit/build_key.hpp"
#include "jit/llvm_compiler.hpp"
#include "jit/op.hpp"
#include "runtime/error.hpp"
#include "templates/registry.hpp"

#include <fmt/format.h>

#include <map>

namespace rlk::cli {
namespace {

// warn: works, but not as well as it could. fail: does not work.
enum class State { ok, warn, fail };

struct Finding {
  std::string subject;
  State state = State::ok;
  std::string text;
};

std::string_view name(State state) {
  return state == State::ok ? "ok" : state == State::warn ? "warn" : "fail";
}

class Examination {
 public:
  explicit Examination(const Context& context)
      : context_(context),
        layers_(layers_of(context)),
        store_(layers_.options),
        compiler_(context.settings.package_folder) {}

  std::vector<Finding> findings() {
    find("rlk", State::ok,
         fmt::format("{} in {}", RLK_VERSION, context_.settings.package_folder.string()));
    examine_processor();
    examine_compiler();
    examine_layers();
    examine_kernels();
    return std::move(findings_);
  }

 private:
  void find(const std::string& subject, State state, const std::string& text) {
    findings_.push_back({subject, state, text});
  }

  void examine_processor() {
    const auto host = host_cpu_target();
    target_ = context_.settings.cpu_target ? context_.settings.cpu_target : host;
    if (!target_) {
      find("processor", State::fail, "expected x86-64-v2 or later, got an older or another one");
    } else if (target_ == host) {
      find("processor", State::ok, std::string(rlk::name(*target_)));
    } else {
      find("processor", State::ok,
           fmt::format("{} (could be {}; RLK_ARCH says less)", rlk::name(*target_),
                       rlk::name(*host)));
    }
  }

  // Compiles the first generic kernel: a library that is there may still not open.
  void examine_compiler() {
    const std::string where = compiler_.library().string();
    const bool is_wanted = context_.settings.policy != Policy::off;
    const State absent = is_wanted ? State::warn : State::ok;
    if (!compiler_.available()) {
      find("compiler", absent, compiler_.why_not());
      return;
    }
    if (!target_) return;
    try {
      const auto specs = generic_variants();
      if (specs.empty()) return;
      const auto compiled = compiler_.compile(jit::compile_request(specs.front()));
      can_compile_ = true;
      find("compiler", State::ok,
           fmt::format("{} in {}, tried in {}", compiler_.identity(), where,
                       milliseconds_text(compiled.stats.compile_ms)));
    } catch (const std::exception& error) {
      const std::string problem = error.what();
      const bool names_library = problem.find(where) != std::string::npos;
      find("compiler", is_wanted ? State::fail : State::warn,
           names_library ? problem : where + ": " + problem);
    }
  }

  void examine_layers() {
    if (!layers_.note.empty()) find("cache", State::warn, layers_.note);
    std::map<std::string, std::pair<int, std::uint64_t>> totals;  // entries and bytes by folder
    int num_damaged = 0;
    for (const cache::ListedEntry& entry : store_.list()) {
      auto& [num_entries, num_bytes] = totals[entry.layer.folder];
      ++num_entries;
      num_bytes += entry.file_bytes;
      num_damaged += entry.problem.empty() ? 0 : 1;
    }
    for (const cache::LayerState& state : store_.layers()) {
      const auto& [num_entries, num_bytes] = totals[state.layer.folder];
      const std::string text = fmt::format("{}: {}{} entries, {}", state.layer.folder,
                                           rights_text(state), num_entries, bytes_text(num_bytes));
      const std::string subject = state.layer.read_write ? "cache" : "layer";
      if (!state.problem.empty()) {
        find(subject, State::fail, state.problem);
      } else if (state.layer.read_write && !state.writable) {
        find(subject, context_.settings.policy == Policy::off ? State::ok : State::warn, text);
      } else if (!state.layer.read_write && !state.exists) {
        find(subject, State::warn, fmt::format("{}: no such folder", state.layer.folder));
      } else {
        find(subject, State::ok, text);
      }
    }
    if (num_damaged > 0) {
      find("entries", State::warn,
           fmt::format("{} of no use; see rlk-jit list; a call that needs one compiles it anew",
                       num_damaged));
    }
  }

  static std::string rights_text(const cache::LayerState& state) {
    if (!state.layer.read_write) return "read-only, ";
    if (!state.exists) return state.writable ? "made at the first compile, " : "cannot be made, ";
    const auto stat = cache::posix_file_system().stat(state.layer.folder, cache::Links::follow);
    return fmt::format("{}, mode {:04o}, owner {}, ", state.writable ? "writable" : "not writable",
                       stat.value.mode, stat.value.owner);
  }

  std::vector<jit::Specialization> generic_variants() const {
    std::vector<jit::Specialization> all;
    for (const jit::Op* op : templates::ops()) {
      for (auto& spec : op->generic_variants(*target_)) all.push_back(std::move(spec));
    }
    return all;
  }

  // What a call would run: a specialized kernel, a generic one, or nothing.
  void examine_kernels() {
    if (!target_) return;
    const bool compiles = can_compile_ && context_.settings.policy != Policy::off;
    const std::string compiler = compiles ? compiler_.identity() : "";
    std::size_t num_found = 0;
    const auto specs = generic_variants();
    for (const auto& spec : specs) {
      try {
        num_found += store_.get(jit::build_key(spec), compiler) ? 1 : 0;
      } catch (const Error&) {
        // No template for this target in this build: not found.
      }
    }
    const std::string generic = fmt::format("{} of {} generic kernels for {} found", num_found,
                                            specs.size(), rlk::name(*target_));
    const bool has_all = num_found == specs.size() && !specs.empty();
    if (compiles) {
      find("calls", State::ok, "run specialized kernels, compiled at first use; " + generic);
    } else if (context_.settings.policy == Policy::off) {
      find("calls", has_all ? State::ok : State::fail,
           "run only what is cached (RLK_JIT=off); " + generic);
    } else if (has_all) {
      find("calls", State::warn, "run cached kernels, else generic ones; " + generic);
    } else {
      find("calls", State::fail, "cannot run without a compiler; " + generic);
    }
  }

  const Context& context_;
  jit::Layers layers_;
  cache::DiskStore store_;
  jit::LlvmCompiler compiler_;
  std::optional<Target> target_;
  bool can_compile_ = false;
  std::vector<Finding> findings_;
};

}  // namespace

int doctor(const Context& context) {
  const std::vector<Finding> findings = Examination(context).findings();
  bool is_healthy = true;
  Json json = Json::array();
  Table table({{}, {}, {}});
  for (const Finding& finding : findings) {
    is_healthy = is_healthy && finding.state != State::fail;
    json.push_back(
        {{"subject", finding.subject}, {"state", name(finding.state)}, {"text", finding.text}});
    table.add({{std::string(name(finding.state)), finding.state == State::ok     ? Colour::green
                                                  : finding.state == State::warn ? Colour::yellow
                                                                                 : Colour::red},
               {finding.subject},
               {printable(finding.text)}});
  }
  if (context.json) {
    print_json(context.out, {{"healthy", is_healthy}, {"findings", json}});
  } else {
    table.print(context.out, context.colour);
  }
  return is_healthy ? ok : failed;
}

}  // namespace rlk::cli
