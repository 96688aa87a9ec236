// SPDX-License-Identifier: Apache-2.0
// The settings in force, by the names of their variables.
#include "cli/doctor/findings.hpp"

#include <fmt/format.h>

namespace rlk::cli {

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

}  // namespace rlk::cli
