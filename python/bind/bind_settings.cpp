// SPDX-License-Identifier: Apache-2.0
// configure, cache_info and what the dispatcher is made of.
#include "jit/dispatcher.hpp"
#include "jit/nvrtc/make_nvrtc_compiler.hpp"
#include "python/bind/call_arguments.hpp"
#include "python/bind/module.hpp"
#include "python/bind/without_gil.hpp"
#include "runtime/error.hpp"
#include "runtime/given_text.hpp"
#include "runtime/thread_pool.hpp"
#include "templates/common/device_errors.hpp"
#include "templates/registry.hpp"

#include <fmt/ranges.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>

namespace rlk::bind {
namespace {

void expect_tile(const std::string& word) {
  std::vector<std::string_view> names = {k_tuned};
  for (const jit::Op* op : templates::ops()) {
    names.insert(names.end(), op->tile_names.begin(), op->tile_names.end());
  }
  if (std::ranges::find(names, word) != names.end()) return;
  throw InvalidArgument(Fault{"configure", "tile", fmt::format("one of {}", fmt::join(names, ", ")),
                              in_quotes(word)});
}

// The text of a value that configure() was given.
std::string text_of(const Setting& setting, const py::object& value) {
  const auto expect = [&](bool holds, const char* type) {
    if (holds) return;
    throw py::type_error(
        fmt::format("configure: {}: expected {}, got {}", setting.name, type, shown(value)));
  };
  switch (kind(setting)) {
    case SettingKind::flag:
      expect(is_bool(value), "bool");
      break;
    case SettingKind::number:
      expect(PyLong_Check(value.ptr()) && !is_bool(value), "int");
      return shown(value);
    case SettingKind::text:
      expect(PyUnicode_Check(value.ptr()), "str");
      break;
    case SettingKind::path: {
      // Not by pybind11's caster, for which a path with a NUL is of a wrong type.
      auto path = py::reinterpret_steal<py::object>(PyOS_FSPath(value.ptr()));
      if (!path) PyErr_Clear();
      expect(bool(path), "str or os.PathLike");
      if (PyUnicode_Check(path.ptr())) {
        path = py::reinterpret_steal<py::object>(PyUnicode_EncodeFSDefault(path.ptr()));
        if (!path) throw py::error_already_set();
      }
      return py::bytes(path);
    }
  }
  return py::str(value);
}

// The other way round.
py::object value_of(const Setting& setting, const std::string& text) {
  switch (kind(setting)) {
    case SettingKind::flag:
      return py::bool_(text == "True");
    case SettingKind::number:
      return py::int_(std::stoi(text));
    case SettingKind::text:
      return py::str(text);
    case SettingKind::path:
      break;  // any bytes, as os.fsdecode takes them
  }
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeFSDefaultAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
}

void configure(const py::dict& values) {
  auto& dispatcher = jit::Dispatcher::instance();
  jit::Config config = dispatcher.config();
  for (const Setting& setting : all_settings()) {
    if (setting.name.empty()) continue;
    const py::object value = values[py::cast(setting.name)];
    if (value.is_none()) continue;
    const std::string text = text_of(setting, value);
    if (setting.name == "tile") expect_tile(text);
    set_value(config.settings, setting, text, fmt::format("configure: {}", setting.name));
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
      using Seconds = std::chrono::duration<double>;
      const Seconds left = Seconds(*timeout_s) - (Clock::now() - start);
      // Within bounds first: an int of milliseconds does not hold all that a double does.
      slice = std::chrono::ceil<std::chrono::milliseconds>(std::clamp<Seconds>(left, {}, slice));
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

// Those in force: a setting that nothing has set has a value too.
py::dict settings() {
  Settings settings = jit::Dispatcher::instance().config().settings;
  if (!settings.arch.cpu) settings.arch.cpu = host_cpu_target();
  settings.num_threads = runtime::ThreadPool::instance().num_threads();
  settings.cache_dir.reset();
  for (const auto& layer : jit::Dispatcher::instance().store()->layers()) {
    if (layer.layer.read_write) settings.cache_dir = layer.layer.folder;
  }
  py::dict result;
  for (const Setting& setting : all_settings()) {
    const auto text = value_text(settings, setting);
    if (setting.name.empty() || !text) continue;
    result[py::cast(setting.name)] = value_of(setting, *text);
  }
  return result;
}

// For the tests that compare the table with what is written by hand.
py::list settings_table() {
  py::list table;
  for (const Setting& setting : all_settings()) {
    constexpr const char* types[] = {"str", "str | os.PathLike[str]", "int", "bool"};
    py::dict row;
    row["name"] = setting.name;
    row["variable"] = setting.variable != nullptr ? setting.variable : "";
    row["type"] = types[static_cast<int>(kind(setting))];
    row["values"] = expected(setting);
    row["default"] = value_text({}, setting).value_or(std::string(setting.values.unset));
    row["meaning"] = setting.meaning;
    table.append(row);
  }
  return table;
}

}  // namespace

void bind_settings(py::module_& module) {
  module.def("configure", configure, py::arg("values"));
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
  // One of them, as every call over ranks asks for it.
  module.def("validates_sync", [] { return jit::Dispatcher::instance().validates_sync(); });
  module.def("settings_table", settings_table);
}

}  // namespace rlk::bind
