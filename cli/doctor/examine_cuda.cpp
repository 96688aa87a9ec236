// SPDX-License-Identifier: Apache-2.0
// CUDA: driver, devices, and NVRTC by compiling an empty kernel.
#include "cli/doctor/findings.hpp"
#include "cli/text/text.hpp"
#include "runtime/error.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace rlk::cli {
namespace {

using runtime::cuda::CallError;
using runtime::cuda::DeviceInfo;
using runtime::cuda::Driver;

class CudaExamination {
 public:
  CudaExamination(const Context& context, cache::DiskStore& store, const CudaMachine& machine,
                  Findings& findings)
      : context_(context), store_(store), machine_(machine), findings_(findings) {}

  void run() {
    if (examine_driver()) examine_devices();
    examine_nvrtc();
    if (targets_.empty()) {
      find("cuda calls", num_devices_ > 0 ? State::warn : State::good,
           "cannot run here: " + why_not_);
    }
    for (const Target target : targets_) {
      const auto compiler = can_compile(target) ? &machine_.compiler : nullptr;
      findings_.push_back(examine_calls(context_, store_, "cuda calls", target, compiler));
    }
  }

 private:
  void find(const char* subject, State state, std::string text, Json details = {}) {
    findings_.push_back({subject, state, std::move(text), std::move(details)});
  }

  // No driver at all is no fault of the machine; one that cannot be used is.
  bool examine_driver() {
    if (machine_.driver == nullptr) {
      why_not_ = "no CUDA driver";
      find("driver", machine_.has_library ? State::warn : State::good, why_no_driver(),
           {{"cuda", nullptr}});
      return false;
    }
    const int version = machine_.driver->version();
    const std::string cuda = fmt::format("{}.{}", version / 1000, version % 1000 / 10);
    find("driver", State::good, "CUDA " + cuda, {{"cuda", cuda}});
    return true;
  }

  std::string why_no_driver() const {
    constexpr std::string_view subject = "CUDA driver: ";
    const std::string& why = machine_.why_no_driver;
    return "none: " + (why.starts_with(subject) ? why.substr(subject.size()) : why);
  }

  void examine_devices() {
    why_not_ = "no CUDA device";
    try {
      for (const DeviceInfo& device : machine_.driver->devices()) examine(device);
    } catch (const CallError& error) {
      const bool has_none = error.code() == runtime::cuda::result::no_device;
      find("device", has_none ? State::good : State::warn, fmt::format("none: {}", error.what()));
    }
  }

  void examine(const DeviceInfo& device) {
    ++num_devices_;
    std::string text = fmt::format("cuda:{} {}, compute capability {}.{}", device.ordinal,
                                   device.name, device.major, device.minor);
    Json details = {{"ordinal", device.ordinal},
                    {"name", device.name},
                    {"capability", fmt::format("{}.{}", device.major, device.minor)},
                    {"target", nullptr},
                    {"sms", device.num_sms},
                    {"memory_bytes", device.memory_bytes},
                    {"shared_bytes", device.shared_bytes_optin}};
    if (!device.target) {
      why_not_ = "no CUDA device of compute capability 8.0 or later";
      find("device", State::warn, text + "; expected 8.0 or later", details);
      return;
    }
    const Target target = context_.settings.arch.cuda.value_or(*device.target);
    details["target"] = rlk::name(target);
    text += fmt::format(", target {}", rlk::name(target));
    if (target != *device.target) {
      text += fmt::format(" (could be {}; RLK_ARCH says another)", rlk::name(*device.target));
    }
    text += fmt::format(", {} SMs, {}, {} shared memory a block", device.num_sms,
                        bytes_text(device.memory_bytes),
                        bytes_text(static_cast<std::uint64_t>(device.shared_bytes_optin)));
    find("device", State::good, text, details);
    if (std::ranges::find(targets_, target) == targets_.end()) targets_.push_back(target);
  }

  void examine_nvrtc() {
    const auto* chosen = machine_.compiler.chosen();
    for (const jit::NvrtcLibrary& library : machine_.compiler.found()) {
      const bool is_chosen = &library == chosen;
      const std::string version = library.major == 0
                                      ? "unknown version"
                                      : fmt::format("{}.{}", library.major, library.minor);
      std::string text = fmt::format("{} in {}", version, library.path.string());
      if (!library.build_id.empty()) text += ", build " + library.build_id.substr(0, 16);
      text += fmt::format(", {}; {}", name(library.origin),
                          is_chosen ? why_chosen(library) : why_passed_over(library));
      State state = State::good;
      if (is_chosen) {
        try_compiles(text, state);
      } else if (!library.problem.empty() && chosen == nullptr && wants_compiler()) {
        state = State::warn;
      }
      find("nvrtc", state, text,
           {{"version", version},
            {"path", library.path.string()},
            {"build_id", library.build_id},
            {"origin", name(library.origin)},
            {"problem", library.problem.empty() ? Json() : Json(library.problem)},
            {"chosen", is_chosen}});
    }
    if (chosen != nullptr) return;
    const bool is_missed = !targets_.empty() && wants_compiler();
    find("nvrtc", is_missed ? State::warn : State::good,
         "none chosen: " + machine_.compiler.why_not());
  }

  std::string why_chosen(const jit::NvrtcLibrary& library) const {
    if (is_named(library)) return "chosen";
    if (machine_.driver == nullptr) return "chosen, the newest";
    return fmt::format("chosen, the newest that a driver of CUDA {} takes",
                       machine_.driver->version() / 1000);
  }

  std::string why_passed_over(const jit::NvrtcLibrary& library) const {
    if (!library.problem.empty()) return "not usable: " + library.problem;
    // It comes first, usable or not.
    if (is_named(machine_.compiler.found().front())) {
      return "not chosen, because RLK_NVRTC names another";
    }
    if (machine_.driver != nullptr && library.major > machine_.driver->version() / 1000) {
      return fmt::format("not chosen, too new for a driver of CUDA {}",
                         machine_.driver->version() / 1000);
    }
    return "not chosen, another comes first";
  }

  static bool is_named(const jit::NvrtcLibrary& library) {
    return library.origin == jit::NvrtcOrigin::named;
  }

  // A library that is there may still not open, or be too old for a device.
  void try_compiles(std::string& text, State& state) {
    const bool is_wanted = wants_compiler();
    for (const Target target : targets_.empty() ? std::vector{Target::sm_80} : targets_) {
      constexpr std::string_view source = "extern \"C\" __global__ void rlk_doctor() {}\n";
      jit::CompileRequest request;
      request.name = fmt::format("doctor@{}", rlk::name(target));
      request.target = rlk::name(target);
      request.source = std::as_bytes(std::span(source));
      request.entries = {"rlk_doctor"};
      request.options = jit::nvrtc_options(target);
      request.keep_refused = false;
      try {
        const auto compiled = machine_.compiler.compile(request);
        text += fmt::format(", tried for {} in {}", rlk::name(target),
                            milliseconds_text(compiled.stats.compile_ms));
        compiles_for_.push_back(target);
      } catch (const std::exception& error) {
        text += fmt::format(", fails for {}: {}", rlk::name(target), error.what());
        state = !is_wanted || targets_.empty() ? State::warn : State::fail;
      }
    }
  }

  bool wants_compiler() const { return context_.settings.policy != Policy::off; }

  bool can_compile(Target target) const {
    return std::ranges::find(compiles_for_, target) != compiles_for_.end();
  }

  const Context& context_;
  cache::DiskStore& store_;
  const CudaMachine& machine_;
  Findings& findings_;
  int num_devices_ = 0;
  std::string why_not_;
  std::vector<Target> targets_;       // of the devices, each once
  std::vector<Target> compiles_for_;  // those that NVRTC was tried for
};

}  // namespace

void examine_cuda(const Context& context, cache::DiskStore& store, const CudaMachine& machine,
                  Findings& findings) {
  CudaExamination(context, store, machine, findings).run();
}

}  // namespace rlk::cli
