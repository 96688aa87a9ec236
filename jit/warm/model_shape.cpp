// SPDX-License-Identifier: Apache-2.0
// Reads "V=..,D=.." and config.json as Hugging Face writes it.
#include "jit/warm/model_shape.hpp"

#include "runtime/error.hpp"

#include <nlohmann/json.hpp>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

namespace rlk::jit {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// A configuration has some kilobytes; what is larger is a tokenizer or weights.
constexpr std::uintmax_t k_most_bytes = std::uintmax_t{4} << 20;
constexpr std::int64_t k_most_vocab = std::int64_t{1} << 31;
constexpr std::int64_t k_most_hidden = std::int64_t{1} << 24;

// Names of the same thing, the one to prefer first. The head of OPT and of ChatGLM is not of the
// size that the usual name gives.
constexpr const char* k_vocab_names[] = {"padded_vocab_size", "vocab_size", "n_vocab"};
constexpr const char* k_hidden_names[] = {
    "word_embed_proj_dim", "hidden_size", "n_embd", "d_model", "n_embed", "dim"};
// Where multimodal models keep their language model.
constexpr const char* k_nested_names[] = {"text_config",      "llm_config",     "language_config",
                                          "language_model",   "thinker_config", "decoder",
                                          "text_model_config"};

class Config {
 public:
  Config(const std::string& word, const fs::path& file) : word_(word), file_(file) {}

  ModelShape shape(const std::optional<std::int64_t>& vocab) {
    const Json root = parse(read());
    refuse_adapter(root);
    const Json& text = language_model(root);
    const Json* hidden = find(text, k_hidden_names);
    // Some keep the vocabulary's size outside.
    const Json* found = find(text, k_vocab_names);
    if (found == nullptr) found = find(root, k_vocab_names);
    if (hidden == nullptr) fail("expected a hidden_size (or n_embd, d_model), found none");
    if (found == nullptr && !vocab) {
      fail("expected a vocab_size, found none; --vocab gives it");
    }
    return {vocab ? *vocab : size(*found, "vocab_size", k_most_vocab),
            size(*hidden, "hidden_size", k_most_hidden)};
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InvalidArgument("model: {}: {}", file_.string(), what);
  }

  std::string read() const {
    std::error_code error;
    const auto status = fs::status(file_, error);
    if (!fs::exists(status)) {
      throw InvalidArgument(
          "model: {}: expected a config.json, a folder that holds one, or V=128256,D=4096; there "
          "is no {}",
          word_, file_.string());
    }
    if (!fs::is_regular_file(status)) fail("expected a file, got something else");
    const auto bytes = fs::file_size(file_, error);
    if (bytes > k_most_bytes) {
      fail(fmt::format("expected a model's configuration of some kilobytes, got {} MiB",
                       bytes >> 20));
    }
    std::ifstream in(file_, std::ios::binary);
    if (!in) fail(fmt::format("not readable: {}", std::strerror(errno)));
    return {std::istreambuf_iterator<char>(in), {}};
  }

  Json parse(const std::string& text) const {
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) fail("the file is empty");
    Json root;
    try {
      root = Json::parse(text);
    } catch (const Json::parse_error& error) {
      fail(fmt::format("expected JSON, got something else at byte {}", error.byte));
    } catch (const Json::exception&) {
      fail("expected JSON with numbers that a double can hold");
    }
    if (!root.is_object()) {
      fail(fmt::format("expected a JSON object, got one of type {}", root.type_name()));
    }
    return root;
  }

  void refuse_adapter(const Json& root) const {
    if (!root.contains("peft_type")) return;
    const auto base = root.find("base_model_name_or_path");
    fail(fmt::format(
        "expected a model's config.json, got a LoRA adapter's; give that of its base "
        "model{}",
        base != root.end() && base->is_string() ? ", " + base->get<std::string>() : ""));
  }

  // The part with a hidden size: the whole, or what lies in it under one of the names.
  static const Json& language_model(const Json& root, int depth = 0) {
    if (depth == 3) return root;  // no model nests deeper
    for (const char* name : k_nested_names) {
      const auto nested = root.find(name);
      if (nested == root.end() || !nested->is_object()) continue;
      const Json& inner = language_model(*nested, depth + 1);
      if (find(inner, k_hidden_names) != nullptr) return inner;
    }
    return root;
  }

  template <std::size_t count>
  static const Json* find(const Json& object, const char* const (&names)[count]) {
    for (const char* name : names) {
      const auto value = object.find(name);
      if (value != object.end() && !value->is_null()) return &*value;
    }
    return nullptr;
  }

  std::int64_t size(const Json& value, const char* name, std::int64_t most) const {
    if (value.is_number_integer()) {
      const auto number = value.get<std::int64_t>();
      if (number >= 1 && number <= most) return number;
    }
    // What is nested may be so deep that printing it would run out of stack.
    const std::string got = value.is_structured()
                                ? std::string("an ") + value.type_name()
                                : value.dump(-1, ' ', true, Json::error_handler_t::replace);
    fail(fmt::format("{}: expected a whole number from 1 to {}, got {}", name, most,
                     got.substr(0, 40)));
  }

  const std::string& word_;
  const fs::path file_;
};

// "V=128256,D=4096" in either order.
std::optional<ModelShape> parse_sizes(const std::string& word) {
  if (!word.starts_with("V=") && !word.starts_with("D=")) return std::nullopt;
  ModelShape shape;
  for (std::size_t begin = 0; begin <= word.size();) {
    const auto part = std::string_view(word).substr(begin, word.find(',', begin) - begin);
    begin += part.size() + 1;
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(part.data() + std::min<std::size_t>(2, part.size()),
                                              part.data() + part.size(), number);
    const bool is_vocab = part.starts_with("V=");
    std::int64_t& size = is_vocab ? shape.vocab : shape.hidden;
    const bool is_sound = error == std::errc{} && end == part.data() + part.size() && number >= 1 &&
                          number <= (is_vocab ? k_most_vocab : k_most_hidden);
    if ((!is_vocab && !part.starts_with("D=")) || !is_sound || size != 0) {
      throw InvalidArgument("model: {}: expected V=128256,D=4096, got \"{}\"", word, part);
    }
    size = number;
  }
  if (shape.vocab == 0 || shape.hidden == 0) {
    throw InvalidArgument("model: {}: expected V=128256,D=4096, {} is missing", word,
                          shape.vocab == 0 ? "V" : "D");
  }
  return shape;
}

ModelShape read_whole_shape(const std::string& word, const ShapeOptions& options) {
  if (auto shape = parse_sizes(word)) {
    if (options.vocab) shape->vocab = *options.vocab;
    return *shape;
  }
  fs::path file = word;
  std::error_code error;
  if (fs::is_directory(file, error)) {
    // A folder of an adapter alone has no config.json.
    const bool is_adapter =
        !fs::exists(file / "config.json", error) && fs::exists(file / "adapter_config.json", error);
    file /= is_adapter ? "adapter_config.json" : "config.json";
  }
  return Config(word, file).shape(options.vocab);
}

}  // namespace

ModelShape read_model_shape(const std::string& word, const ShapeOptions& options) {
  ModelShape shape = read_whole_shape(word, options);
  if (shape.vocab % options.num_shards != 0) {
    throw InvalidArgument(
        "model: {}: expected a vocabulary that {} shards divide, got {}; give the padded size by "
        "--vocab",
        word, options.num_shards, shape.vocab);
  }
  shape.vocab /= options.num_shards;
  return shape;
}

}  // namespace rlk::jit
