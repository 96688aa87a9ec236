// SPDX-License-Identifier: Apache-2.0
// Reads "V=..,D=.." and config.json as Hugging Face writes it.
#include "jit/warm/model_shape.hpp"

#include "jit/op.hpp"
#include "runtime/error.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <utility>

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
constexpr const char* k_softcap_name = "final_logit_softcapping";  // Gemma, Grok
// Factors of the logits: Cohere and MPT, Falcon-H1, Grok.
constexpr const char* k_factor_names[] = {"logit_scale", "lm_head_multiplier",
                                          "output_multiplier_scale"};
// Granite's divisor. HyperCLOVA X multiplies by it, MiniCPM's code does not read it.
constexpr const char* k_divisor_name = "logits_scaling";

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
    ModelShape shape{vocab ? *vocab : size(*found, "vocab_size", k_most_vocab),
                     size(*hidden, "hidden_size", k_most_hidden)};
    if (const auto cap = number(text, k_softcap_name); cap && *cap != 0) {
      if (*cap < 0)
        fail(fmt::format("{}: expected a number above 0, got {}", k_softcap_name, *cap));
      shape.numbers["softcap"] = *cap;
    }
    const double scale = logit_scale(text, shape.hidden);
    if (scale != 1) shape.numbers["logit_scale"] = scale;
    return shape;
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

  // A number; nothing where it is absent or null.
  std::optional<double> number(const Json& object, const char* name) const {
    const auto value = object.find(name);
    if (value == object.end() || value->is_null()) return std::nullopt;
    if (value->is_number()) return value->get<double>();
    fail(fmt::format("{}: expected a number, got {}", name, text_of(*value)));
  }

  double logit_scale(const Json& text, std::int64_t hidden) const {
    double scale = 1;
    for (const char* name : k_factor_names) {
      const auto value = text.find(name);
      const bool is_word = value != text.end() && *value == "inv_sqrt_d_model";  // of MPT
      scale *=
          is_word ? 1 / std::sqrt(static_cast<double>(hidden)) : number(text, name).value_or(1);
    }
    const auto type = text.find("model_type");
    const std::string model =
        type != text.end() && type->is_string() ? type->get<std::string>() : "";
    const double divisor = number(text, k_divisor_name).value_or(1);
    if (model.starts_with("minicpm")) return scale;
    if (divisor == 0) fail(fmt::format("{}: expected a number but 0, got 0", k_divisor_name));
    return model == "hyperclovax" ? scale * divisor : scale / divisor;
  }

  // What is nested may be so deep that printing it would run out of stack.
  static std::string text_of(const Json& value) {
    if (value.is_structured()) return std::string("an ") + value.type_name();
    return value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 40);
  }

  std::int64_t size(const Json& value, const char* name, std::int64_t most) const {
    if (value.is_number_integer()) {
      const auto number = value.get<std::int64_t>();
      if (number >= 1 && number <= most) return number;
    }
    fail(fmt::format("{}: expected a whole number from 1 to {}, got {}", name, most,
                     text_of(value)));
  }

  const std::string& word_;
  const fs::path file_;
};

// The value of "name=value", for another name or anything but a value above 0 nothing.
template <class Number>
std::optional<Number> value_of(std::string_view part, std::string_view name) {
  if (!part.starts_with(name)) return std::nullopt;
  Number number = 0;
  const auto [end, error] = std::from_chars(part.data() + name.size(), part.end(), number);
  if (error != std::errc{} || end != part.end()) return std::nullopt;
  return number;
}

// One part of "V=128256,D=4096,softcap=30"; false where it is none, or one too many.
bool take_part(std::string_view part, std::span<const Op* const> ops, ModelShape& shape) {
  if (const auto vocab = value_of<std::int64_t>(part, "V=")) {
    return std::exchange(shape.vocab, *vocab) == 0 && *vocab >= 1 && *vocab <= k_most_vocab;
  }
  if (const auto hidden = value_of<std::int64_t>(part, "D=")) {
    return std::exchange(shape.hidden, *hidden) == 0 && *hidden >= 1 && *hidden <= k_most_hidden;
  }
  const auto name = part.substr(0, part.find('='));
  const auto parameters = model_parameters(ops);
  const auto found = std::ranges::find(parameters, name, &Parameter::name);
  if (found == parameters.end()) return false;
  const Parameter* const parameter = *found;
  const auto number = value_of<double>(part, std::string(name) + "=");
  if (!number || !std::isfinite(*number)) return false;  // its range is a call's to check
  if (!shape.numbers.try_emplace(std::string(name), *number).second) return false;
  // The default changes nothing: kernels are those of calls that do not pass it.
  if (parameter->kind == Kind::number && *number == parameter->by_default) {
    shape.numbers.erase(std::string(name));
  }
  return true;
}

// "V=128256,D=4096" in any order.
std::optional<ModelShape> parse_sizes(const std::string& word, std::span<const Op* const> ops) {
  if (!word.starts_with("V=") && !word.starts_with("D=")) return std::nullopt;
  ModelShape shape;
  for (std::size_t begin = 0; begin <= word.size();) {
    const auto part = std::string_view(word).substr(begin, word.find(',', begin) - begin);
    begin += part.size() + 1;
    if (!take_part(part, ops, shape)) {
      throw InvalidArgument("model: {}: expected V=128256,D=4096, got \"{}\"", word, part);
    }
  }
  if (shape.vocab == 0 || shape.hidden == 0) {
    throw InvalidArgument("model: {}: expected V=128256,D=4096, {} is missing", word,
                          shape.vocab == 0 ? "V" : "D");
  }
  return shape;
}

ModelShape read_whole_shape(const std::string& word, std::span<const Op* const> ops,
                            const ShapeOptions& options) {
  if (auto shape = parse_sizes(word, ops)) {
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

std::vector<const Parameter*> model_parameters(std::span<const Op* const> ops) {
  std::vector<const Parameter*> all;
  for (const Op* op : ops) {
    for (const Parameter& parameter : op->parameters) {
      const bool is_given = parameter.range != nullptr && parameter.constant.symbol != nullptr;
      if (is_given && std::ranges::find(all, parameter.name, &Parameter::name) == all.end()) {
        all.push_back(&parameter);
      }
    }
  }
  return all;
}

ModelShape read_model_shape(const std::string& word, std::span<const Op* const> ops,
                            const ShapeOptions& options) {
  ModelShape shape = read_whole_shape(word, ops, options);
  if (shape.vocab % options.num_shards != 0) {
    throw InvalidArgument(
        "model: {}: expected a vocabulary that {} shards divide, got {}; give the padded size by "
        "--vocab",
        word, options.num_shards, shape.vocab);
  }
  shape.vocab /= options.num_shards;
  shape.entropy = options.entropy;
  return shape;
}

}  // namespace rlk::jit
