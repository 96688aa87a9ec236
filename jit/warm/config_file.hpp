// SPDX-License-Identifier: Apache-2.0
// Reads a config.json as Hugging Face writes it.
#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>

namespace rlk::jit {

// A model's configuration, as it stands in its file. Its errors name the file.
struct ConfigFile {
  std::filesystem::path path;
  nlohmann::json root;

  [[noreturn]] void fail(const std::string& what) const;
};

// `word` is the file, or a folder that holds it. Throws InvalidArgument.
ConfigFile read_config_file(const std::string& word);

// A configuration that is in memory; errors name it so. Throws InvalidArgument.
ConfigFile parse_config(const std::string& name, const std::string& text);

}  // namespace rlk::jit
