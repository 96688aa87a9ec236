// SPDX-License-Identifier: Apache-2.0
// configure, cache_info and what the dispatcher is made of.
#include "jit/dispatcher.hpp"
#include "jit/nvrtc/make_nvrtc_compiler.hpp"
#include "python/bind/module.hpp"
#include "python/bind/without_gil.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"
#include "runtime/thread_pool.hpp"
#include "templates/common/device_errors.hpp"
#include "templates/registry.hpp"

#include <fmt/ranges.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <algorithm>
#include <chrono>

namespace rlk::bind {
namespace {

int number(const char* name, int value, int most, int least = 1) {
  if (value >= least && value <= most) return value;
  throw InvalidArgument("configure: {}: expected a whole number from {} to {}, got {}", name, least,
                        most, value);
}

constexpr const char* k_tuned = "tuned";

// Empty: as tuned.
std::string tile_named(const std::string& word) {
  if (word == k_tuned) return "";
  std::vector<std::string_view> names = {k_tuned};
  for (const jit::Op* op : templates::ops()) {
    names.insert(names.end(), op->tile_names.begin(), op->tile_names.end());
  }
  if (std::ranges::find(names, word) != names.end()) return word;
  throw InvalidArgument("configure: tile: expected one of {}, got \"{}\"", fmt::join(names, ", "),
                        word);
}

void configure(const std::optional<std::string>& policy, const std::optional<std::string>& arch,
               const std::optional<std::filesystem::path>& cache_dir,
               const std::optional<int>& num_threads, const std::optional<std::string>& log,
               const std::optional<bool>& specialize, const std::optional<std::string>& validate,
               const std::optional<int>& workspace_mib, const std::optional<int>& max_kernels,
               const std::optional<int>& max_sms, const std::optional<std::string>& tile) {
  auto& dispatcher = jit::Dispatcher::instance();
  jit::Config config = dispatcher.config();
  if (policy) config.settings.policy = policy_named(*policy, "configure: policy");
  if (arch) set_arch(config.settings, *arch, "configure: arch");
  if (cache_dir) config.settings.cache_dir = cache_dir->string();
  auto& settings = config.settings;
  if (num_threads) settings.num_threads = number("num_threads", *num_threads, k_max_threads);
  if (specialize) config.specialize = *specialize;
  if (validate)
    config.settings.validate_sync = validate_sync_named(*validate, "configure: validate");
  if (workspace_mib) {
    settings.workspace_mib = number("workspace_mib", *workspace_mib, k_max_workspace_mib);
  }
  if (max_kernels) settings.max_kernels = number("max_kernels", *max_kernels, k_max_max_kernels);
  if (max_sms) settings.max_sms = number("max_sms", *max_sms, k_max_max_sms, 0);
  if (tile) settings.tile = tile_named(*tile);
  if (log) {  // last, for it takes effect here
    set_log_level(*log, "configure: log");
    config.settings.log_level = *log;
  }
  without_gil([&] { dispatcher.configure(std::move(config)); });
}

// Waits in slices, so that Ctrl-C is heard.
bool wait(const std::optional<double>& timeout_s) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  while (true) {
    std::chrono::milliseconds slice(50);
    if (timeout_s) {
      const std::chrono::duration<double> left =
          std::chrono::duration<double>(*timeout_s) - (Clock::now() - start);
      slice = std::clamp(std::chrono::ceil<std::chrono::milliseconds>(left),
                         std::chrono::milliseconds(0), slice);
    }
    bool done = false;
    without_gil([&] { done = jit::Dispatcher::instance().wait_for(slice); });
    if (done || slice.count() == 0) return done;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

void stop() {
  without_gil([] { jit::Dispatcher::stop_instance(); });
}

void check_errors(const std::optional<int>& device) {
  without_gil([&] { templates::check_device_errors(device); });
}

py::tuple cache_info() {
  const auto info = jit::Dispatcher::instance().cache_info();
  return py::make_tuple(info.memory_hits, info.disk_hits, info.compiles, info.fallbacks,
                        info.loaded, info.alternatives);
}

py::dict settings() {
  const auto config = jit::Dispatcher::instance().config();
  const auto target = config.settings.cpu_target ? config.settings.cpu_target : host_cpu_target();
  py::dict result;
  result["policy"] = std::string(name(config.settings.policy));
  std::string arch(target ? name(*target) : "");
  if (const auto forced = config.settings.cuda_target) {
    arch += arch.empty() ? "" : ",";
    arch += name(*forced);
  }
  result["arch"] = arch;
  result["num_threads"] = runtime::ThreadPool::instance().num_threads();
  result["log"] = config.settings.log_level;
  result["specialize"] = config.specialize;
  result["validate"] = config.settings.validate_sync ? "sync" : "async";
  result["workspace_mib"] = config.settings.workspace_mib;
  result["max_kernels"] = config.settings.max_kernels;
  result["max_sms"] = config.settings.max_sms;
  result["tile"] = config.settings.tile.empty() ? k_tuned : config.settings.tile;
  for (const auto& layer : jit::Dispatcher::instance().store()->layers()) {
    if (!layer.layer.read_write) continue;
    const std::string& folder = layer.layer.folder;  // any bytes, as os.fsdecode takes them
    result["cache_dir"] = py::reinterpret_steal<py::object>(
        PyUnicode_DecodeFSDefaultAndSize(folder.data(), static_cast<Py_ssize_t>(folder.size())));
  }
  return result;
}

}  // namespace

void bind_settings(py::module_& module) {
  module.def("configure", configure, py::arg("policy"), py::arg("arch"), py::arg("cache_dir"),
             py::arg("num_threads"), py::arg("log"), py::arg("specialize"), py::arg("validate"),
             py::arg("workspace_mib"), py::arg("max_kernels"), py::arg("max_sms"), py::arg("tile"));
  module.def("check_errors", check_errors);
  module.def("wait", wait);
  // Before the interpreter ends: libraries that a compile uses are destroyed after that.
  py::module_::import("atexit").attr("register")(py::cpp_function(stop));
  // Wheels of NVRTC lie in one of them.
  std::vector<std::filesystem::path> folders;
  for (const auto& folder : py::module_::import("sys").attr("path")) {
    if (py::isinstance<py::str>(folder)) folders.emplace_back(py::cast<std::string>(folder));
  }
  jit::set_python_folders(std::move(folders));
  module.def("cache_info", cache_info);
  module.def("settings", settings);
}

}  // namespace rlk::bind
