// SPDX-License-Identifier: Apache-2.0
// Reads the environment once and checks each value.
#include "runtime/settings.hpp"

#include "runtime/error.hpp"

#include <dlfcn.h>

#include <cctype>
#include <charconv>
#include <cstdlib>

namespace rlk {
namespace {

int number(const char* variable, const std::string& text, int most) {
  int value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) value = 0;
  if (value >= 1 && value <= most) return value;
  throw InvalidArgument("{}: expected a whole number from 1 to {}, got \"{}\"", variable, most,
                        text);
}

std::vector<std::string> cache_path_named(const std::string& list) {
  std::vector<std::string> folders;
  for (std::size_t begin = 0; begin <= list.size();) {
    const auto end = std::min(list.find(':', begin), list.size());
    const auto folder = list.substr(begin, end - begin);
    begin = end + 1;
    if (folder.empty()) continue;  // as "$RLK_CACHE_PATH:/more" gives where it was unset
    // Relative to where? Code would be taken from whatever folder a program is started in.
    if (folder.front() != '/') {
      throw InvalidArgument(
          "RLK_CACHE_PATH: expected absolute folders separated by colons, got \"{}\"", folder);
    }
    folders.push_back(folder);
  }
  return folders;
}

bool shared_by_group_named(const std::string& text) {
  if (text == "group" || text == "owner") return text == "group";
  throw InvalidArgument("RLK_CACHE_SHARED: expected owner or group, got \"{}\"", text);
}

// The folder of the library or program that this code was linked into; rlk-jit lies in its bin/.
std::filesystem::path folder_of_this_code() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&folder_of_this_code), &info) == 0) return {};
  std::error_code error;
  auto file = std::filesystem::canonical(info.dli_fname, error);
  if (error) file = std::filesystem::read_symlink("/proc/self/exe", error);
  auto folder = file.parent_path();
  return folder.filename() == "bin" ? folder.parent_path() : folder;
}

}  // namespace

Policy policy_named(const std::string& text, std::string_view source) {
  if (text == "sync") return Policy::sync;
  if (text == "async") return Policy::async;
  if (text == "off") return Policy::off;
  throw InvalidArgument("{}: expected sync, async or off, got \"{}\"", source, text);
}

bool validate_sync_named(const std::string& text, std::string_view source) {
  if (text == "sync" || text == "async") return text == "sync";
  throw InvalidArgument("{}: expected async or sync, got \"{}\"", source, text);
}

std::string_view name(Policy policy) {
  return policy == Policy::sync ? "sync" : policy == Policy::async ? "async" : "off";
}

std::uint64_t bytes_named(const std::string& text, std::string_view source) {
  std::uint64_t number = 0;
  const char* text_end = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), text_end, number);
  std::string unit(end, text_end);
  for (char& c : unit) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::uint64_t factor = unit.empty() || unit == "b" ? 1 : 0;
  std::uint64_t of_1024 = 1, of_1000 = 1;
  for (const std::string letter : {"k", "m", "g", "t"}) {
    of_1024 *= 1024;
    of_1000 *= 1000;
    if (unit == letter || unit == letter + "ib") factor = of_1024;
    if (unit == letter + "b") factor = of_1000;
  }
  std::uint64_t bytes = 0;
  if (error == std::errc{} && factor != 0 && !__builtin_mul_overflow(number, factor, &bytes)) {
    return bytes;
  }
  throw InvalidArgument("{}: expected a size such as 500M, 1GiB or 0 (no limit), got \"{}\"",
                        source, text);
}

void set_arch(Settings& settings, const std::string& list, std::string_view source) {
  settings.cpu_target = settings.cuda_target = std::nullopt;
  for (std::size_t begin = 0; begin <= list.size();) {
    const auto end = std::min(list.find(',', begin), list.size());
    const auto word = list.substr(begin, end - begin);
    begin = end + 1;
    const auto target = target_named(word);
    if (!target) {
      throw InvalidArgument("{}: expected a target such as x86-64-v3 or sm_90a, got \"{}\"", source,
                            word);
    }
    auto& bound = backend(*target) == Backend::cpu ? settings.cpu_target : settings.cuda_target;
    if (bound) {
      throw InvalidArgument("{}: expected one target a backend, got {} and {}", source,
                            name(*bound), word);
    }
    if (backend(*target) == Backend::cpu) {
      const auto host = host_cpu_target();
      if (!host || *target > *host) {
        throw InvalidArgument("{}: expected a level that this processor runs, at most {}, got {}",
                              source, host ? name(*host) : "none", word);
      }
    }
    bound = target;
  }
}

Settings read_settings(const Lookup& environment) {
  Settings settings;
  settings.package_folder = folder_of_this_code();
  if (auto text = environment("RLK_JIT")) settings.policy = policy_named(*text);
  if (auto text = environment("RLK_LOG")) settings.log_level = *text;
  if (auto text = environment("RLK_ARCH")) set_arch(settings, *text);
  if (auto text = environment("RLK_NUM_THREADS")) {
    settings.num_threads = number("RLK_NUM_THREADS", *text, k_max_threads);
  }
  if (auto text = environment("RLK_VALIDATE")) settings.validate_sync = validate_sync_named(*text);
  if (auto text = environment("RLK_WORKSPACE_MIB")) {
    settings.workspace_mib = number("RLK_WORKSPACE_MIB", *text, k_max_workspace_mib);
  }
  if (auto text = environment("RLK_MAX_KERNELS")) {
    settings.max_kernels = number("RLK_MAX_KERNELS", *text, k_max_max_kernels);
  }
  settings.cache_dir = environment("RLK_CACHE_DIR");
  if (auto text = environment("RLK_CACHE_PATH")) settings.cache_path = cache_path_named(*text);
  if (auto text = environment("RLK_CACHE_SHARED")) {
    settings.cache_shared_by_group = shared_by_group_named(*text);
  }
  if (auto text = environment("RLK_CACHE_SIZE")) settings.cache_size_bytes = bytes_named(*text);
  settings.trace_file = environment("RLK_TRACE");
  settings.dump_dir = environment("RLK_DUMP_DIR");
  return settings;
}

std::optional<std::string> process_environment(const char* variable) {
  const char* value = std::getenv(variable);
  // An empty variable counts as unset, as in most tools.
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

Settings read_settings() { return read_settings(process_environment); }

}  // namespace rlk
