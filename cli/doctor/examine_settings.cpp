// SPDX-License-Identifier: Apache-2.0
// The settings in force, by the names of their variables, and variables that are none.
#include "cli/doctor/findings.hpp"

#include <fmt/ranges.h>

namespace rlk::cli {

void examine_settings(const Context& context, Findings& findings) {
  std::string text;
  Json details = Json::object();
  for (const Setting& setting : all_settings()) {
    const auto value = value_text(context.settings, setting);
    if (setting.variable == nullptr || !value) continue;
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", setting.variable, *value);
    details[setting.variable] = *value;
  }
  findings.push_back({"settings", State::good, text, details});
  const auto ignored = ignored_variables();
  if (ignored.empty()) return;
  findings.push_back({"environment",
                      State::warn,
                      fmt::format("{} ignored: there is no such setting; those that there are: {}",
                                  fmt::join(ignored, ", "), variable_names()),
                      {{"ignored", ignored}}});
}

}  // namespace rlk::cli
