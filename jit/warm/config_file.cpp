// SPDX-License-Identifier: Apache-2.0
// Reads a config.json as Hugging Face writes it.
#include "jit/warm/config_file.hpp"

#include "runtime/error.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string_view>

namespace rlk::jit {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// A configuration has some kilobytes; what is larger is a tokenizer or weights.
constexpr std::uintmax_t k_most_config_bytes = std::uintmax_t{4} << 20;

std::string read(const ConfigFile& file, const std::string& word) {
  std::error_code error;
  const auto status = fs::status(file.path, error);
  if (status.type() == fs::file_type::none) file.fail(error.message());  // it may be there
  if (!fs::exists(status)) {
    throw InvalidArgument(
        "model: {}: expected a config.json, a folder that holds one, or V=128256,D=4096; there "
        "is no {}",
        word, file.path.string());
  }
  if (!fs::is_regular_file(status)) file.fail("expected a file, got something else");
  const auto bytes = fs::file_size(file.path, error);
  if (bytes > k_most_config_bytes) {
    file.fail(
        fmt::format("expected a model's configuration of some kilobytes, got {} MiB", bytes >> 20));
  }
  std::ifstream in(file.path, std::ios::binary);
  if (!in) file.fail(fmt::format("not readable: {}", std::strerror(errno)));
  return {std::istreambuf_iterator<char>(in), {}};
}

// A half of a pair in UTF-16, by the letters after "\\u".
bool is_surrogate(std::string_view digits) {
  return digits.size() >= 4 && (digits[0] == 'd' || digits[0] == 'D') &&
         std::string_view("89abcdefABCDEF").find(digits[1]) != std::string_view::npos;
}

// What Python writes and JSON has not: numbers without digits, for each of which its name stands as
// a string, and in strings halves of pairs, which nobody looks at here.
std::string as_json(std::string_view text) {
  std::string json;
  json.reserve(text.size());
  bool is_string = false;
  while (!text.empty()) {
    std::size_t length = 1;
    std::string in_place;
    if (is_string && text.starts_with("\\u") && is_surrogate(text.substr(2))) {
      length = 6;
      in_place = "\\ufffd";
    } else if (is_string) {
      length = text.front() == '\\' && text.size() > 1 ? 2 : 1;
    } else {
      for (const std::string_view number : {"-Infinity", "Infinity", "NaN"}) {
        if (!text.starts_with(number)) continue;
        length = number.size();
        in_place = fmt::format("\"{}\"", number);
      }
    }
    if (text.front() == '"') is_string = !is_string;
    json += in_place.empty() ? std::string(text.substr(0, length)) : in_place;
    text.remove_prefix(length);
  }
  return json;
}

Json parse(const ConfigFile& file, const std::string& text) {
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) file.fail("the file is empty");
  Json root;
  try {
    root = Json::parse(as_json(text));  // which passes over a byte order mark
  } catch (const Json::parse_error& error) {
    file.fail(fmt::format("expected JSON, got something else at byte {}", error.byte));
  } catch (const Json::exception&) {
    file.fail("expected JSON with numbers that a double can hold");
  }
  if (!root.is_object()) {
    file.fail(fmt::format("expected a JSON object, got one of type {}", root.type_name()));
  }
  return root;
}

void refuse_adapter(const ConfigFile& file) {
  if (!file.root.contains("peft_type")) return;
  const auto base = file.root.find("base_model_name_or_path");
  file.fail(fmt::format(
      "expected a model's config.json, got a LoRA adapter's; give that of its base "
      "model{}",
      base != file.root.end() && base->is_string() ? ", " + base->get<std::string>() : ""));
}

}  // namespace

void ConfigFile::fail(const std::string& what) const {
  throw InvalidArgument("model: {}: {}", path.string(), what);
}

ConfigFile read_config_file(const std::string& word) {
  ConfigFile file{word, {}};
  std::error_code error;
  if (fs::is_directory(file.path, error)) {
    // A folder of an adapter alone has no config.json.
    const bool is_adapter = !fs::exists(file.path / "config.json", error) &&
                            fs::exists(file.path / "adapter_config.json", error);
    file.path /= is_adapter ? "adapter_config.json" : "config.json";
  }
  file.root = parse(file, read(file, word));
  refuse_adapter(file);
  return file;
}

ConfigFile parse_config(const std::string& name, const std::string& text) {
  ConfigFile file{name, {}};
  file.root = parse(file, text);
  return file;
}

}  // namespace rlk::jit
