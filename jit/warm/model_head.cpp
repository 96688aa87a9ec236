// SPDX-License-Identifier: Apache-2.0
// The head of a model, as its configuration has it.
#include "jit/warm/model_head.hpp"

#include "jit/warm/model_facts.hpp"
#include "runtime/log.hpp"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <set>
#include <span>
#include <vector>

namespace rlk::jit {
namespace {

using Json = nlohmann::json;
using Names = std::span<const char* const>;

// Names of the same thing, the one to prefer first. The rows of the head as they are: of ChatGLM,
// Inkling, Apertus, FSMT.
constexpr const char* k_rows_names[] = {"padded_vocab_size", "unpadded_vocab_size",
                                        "output_vocab_size", "tgt_vocab_size"};
constexpr const char* k_vocab_names[] = {"vocab_size", "n_vocab"};
// OPT, RemBERT, NeoMME, then the usual ones.
constexpr const char* k_hidden_names[] = {"word_embed_proj_dim",
                                          "output_embedding_size",
                                          "embedding_rank",
                                          "hidden_size",
                                          "n_embd",
                                          "d_model",
                                          "n_embed",
                                          "dim",
                                          "embed_dim",
                                          "emb_dim",
                                          "model_dim",
                                          "embedding_dim"};
// Of models that embed into fewer columns than their layers have.
constexpr const char* k_embedding_names[] = {"embedding_size"};
constexpr const char* k_narrow_types = "albert electra convbert roformer deberta";

// Where multimodal models and pairs of an encoder and a decoder keep their language model.
constexpr const char* k_nested_names[] = {"text_config",       "llm_config",     "language_config",
                                          "language_model",    "thinker_config", "decoder",
                                          "text_model_config", "decoder_config", "llm"};

const Json* find(const Json& object, Names names) {
  for (const char* name : names) {
    const auto value = object.find(name);
    if (value != object.end() && !value->is_null()) return &*value;
  }
  return nullptr;
}

std::string type_of(const Json& object) {
  const auto type = object.find("model_type");
  return type != object.end() && type->is_string() ? type->get<std::string>() : "";
}

// From the whole to the part with the language model, which lies in it under some of the names.
std::vector<const Json*> path_to_text(const Json& object, int depth = 0) {
  for (const char* name : k_nested_names) {
    const auto nested = object.find(name);
    if (depth == 3 || nested == object.end() || !nested->is_object()) continue;  // none is deeper
    auto path = path_to_text(*nested, depth + 1);
    const Json& inner = *path.back();
    const std::string type = type_of(inner).empty() ? type_of(object) : type_of(inner);
    const bool has_default = find(object, k_hidden_names) == nullptr && find_facts(type) != nullptr;
    if (has_default || find(inner, k_hidden_names) != nullptr) {
      path.insert(path.begin(), &object);
      return path;
    }
  }
  return {&object};
}

// What is nested may be so deep that printing it would run out of stack.
std::string text_of(const Json& value) {
  if (value.is_structured()) return std::string("an ") + value.type_name();
  return value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 40);
}

// As the file's reader gives what Python writes of a float without digits.
bool is_without_digits(const Json& value) {
  return value == "NaN" || value == "Infinity" || value == "-Infinity";
}

class Head {
 public:
  explicit Head(const ConfigFile& file) : file_(file), path_(path_to_text(file.root)) {
    for (auto part = path_.rbegin(); part != path_.rend(); ++part) {
      if (type_.empty()) type_ = type_of(**part);
    }
    facts_ = find_facts(type_);
  }

  ModelShape read(const std::optional<std::int64_t>& vocab) {
    shape_.hidden = hidden();
    shape_.vocab = vocab ? *vocab : rows();
    for (const auto& [name, value] : text().items()) take(name, value);
    if (facts_ != nullptr) take_defaults();
    tell_of_what_is_outside();
    if (path_.size() == 1) tell_of_what_is_inside();
    if (scale_ != 1) shape_.numbers["logit_scale"] = scale_;
    return shape_;
  }

 private:
  const Json& text() const { return *path_.back(); }

  // A command reads a model more than once.
  template <class... Args>
  void note(fmt::format_string<Args...> format, Args&&... args) const {
    static std::mutex mutex;
    static std::set<std::string> told;
    const std::string line =
        fmt::format("model: {}: {}; V=..,D=..,softcap=..,logit_scale=.. says otherwise",
                    file_.path.string(), fmt::format(format, std::forward<Args>(args)...));
    const std::lock_guard lock(mutex);
    if (told.insert(line).second) log().warn("{}", line);
  }

  std::int64_t size(const Json& value, const char* name, std::int64_t most) const {
    if (value.is_number_integer()) {
      const auto number = value.get<std::int64_t>();
      if (number >= 1 && number <= most) return number;
    }
    file_.fail(fmt::format("{}: expected a whole number from 1 to {}, got {}", name, most,
                           text_of(value)));
  }

  std::int64_t by_default(std::int64_t number, const char* letter, const char* name) const {
    note("assumed {}={}, the {} of a {} whose configuration gives none", letter, number, name,
         type_);
    return number;
  }

  std::int64_t hidden() const {
    const bool is_narrow = is_of(type_, k_narrow_types);
    const Json* found = is_narrow ? find(text(), k_embedding_names) : nullptr;
    if (found == nullptr && !(is_narrow && facts_ != nullptr)) {
      found = find(text(), k_hidden_names);
    }
    if (found == nullptr && facts_ != nullptr) {
      return by_default(facts_->hidden, "D", is_narrow ? "embedding_size" : "hidden_size");
    }
    if (found == nullptr) file_.fail("expected a hidden_size (or n_embd, d_model), found none");
    const auto columns = size(*found, "hidden_size", k_most_hidden);
    return type_ == "reformer" ? 2 * columns : columns;  // it joins two streams
  }

  std::int64_t rows() const {
    const Json* found = nullptr;
    for (auto part = path_.rbegin(); part != path_.rend(); ++part) {  // some keep it outside
      if (const Json* rows = find(**part, k_rows_names))
        return size(*rows, "vocab_size", k_most_vocab);
      const Json* here = find(**part, k_vocab_names);
      if (found == nullptr) {
        found = here;
      } else if (here != nullptr && *here != *found) {
        note("assumed V={} of the language model, not {} of the whole", text_of(*found),
             text_of(*here));
      }
    }
    if (found == nullptr && facts_ != nullptr) return by_default(facts_->vocab, "V", "vocab_size");
    if (found == nullptr) file_.fail("expected a vocab_size, found none; --vocab gives it");
    const auto vocab = size(*found, "vocab_size", k_most_vocab);
    if (type_ == "imagegpt") return std::max<std::int64_t>(vocab - 1, 1);  // no start of a picture
    return with_more_rows(vocab);
  }

  // What other keys make of the vocabulary's rows.
  std::int64_t with_more_rows(const std::int64_t vocab) const {
    std::int64_t multiple = text().contains("ssm_cfg") ? 8 : 1;  // what Mamba's own code pads to
    std::int64_t rows = vocab;
    for (const auto& [name, value] : text().items()) {
      if (is_without_digits(value) && (pads_vocab(name) || sounds_like_rows(name, type_))) {
        note("assumed V={}, whatever {}={} says", vocab, name, text_of(value));
      }
      if (!value.is_number_integer()) continue;
      const auto number = std::clamp<std::int64_t>(value.get<std::int64_t>(), 0, k_most_vocab);
      if (pads_vocab(name)) {
        multiple = std::max<std::int64_t>(number, 1);
      } else if (name == "embedding_size" && number >= vocab) {  // of OLMo's and Molmo's code
        rows = number;
      } else if (name == "additional_vocab_size" && type_ == "idefics") {
        rows += number;
      } else if (name == "embedding_size" && number != shape_.hidden) {
        note("assumed D={}, whatever {}={} says", shape_.hidden, name, number);
      } else if (sounds_like_rows(name, type_) && number != 0 && number != vocab) {
        note("assumed V={}, whatever {}={} says", vocab, name, number);
      }
    }
    rows = (rows + multiple - 1) / multiple * multiple;
    if (rows != vocab) note("assumed V={}, with rows beyond vocab_size={}", rows, vocab);
    return rows;
  }

  // The value of a key as a number: flags and MPT's word are some too. Nothing where it is null.
  std::optional<double> number(const std::string& name, const Json& value, Use use) const {
    if (value.is_null()) return std::nullopt;
    if (is_without_digits(value)) {
      note("{}={} is passed over, as if it were null", name, text_of(value));
      return std::nullopt;
    }
    if (value.is_number()) return value.get<double>();
    const bool is_flag = use == Use::sqrt || use == Use::nothing;
    if (is_flag && value.is_boolean()) return value.get<bool>() ? 1 : 0;
    if (use == Use::factor && value == "inv_sqrt_d_model") {  // of MPT
      return 1 / std::sqrt(static_cast<double>(shape_.hidden));
    }
    file_.fail(fmt::format("{}: expected a number, got {}", name, text_of(value)));
  }

  void take(const std::string& name, const Json& value) {
    if (const LogitsKey* key = find_logits_key(name, type_)) {
      if (const auto given = number(name, value, key->use)) apply(*key, name, *given);
    } else if (sounds_like_logits(name) && !value.is_null() && value != false) {
      note("{}={} may cap or scale the logits, and is not known: assumed that it does not", name,
           text_of(value));
    }
  }

  void apply(const LogitsKey& key, std::string_view name, double number) {
    const auto hidden = static_cast<double>(shape_.hidden);
    switch (key.use) {
      case Use::softcap:
        if (number < 0) {
          file_.fail(fmt::format("{}: expected a number above 0, got {}", name, number));
        }
        if (number != 0) shape_.numbers["softcap"] = number;
        return;
      case Use::factor:
        scale_ *= number;
        return;
      case Use::divisor:
        if (number == 0) file_.fail(fmt::format("{}: expected a number but 0, got 0", name));
        if (!key.is_sure && number != 1 && !type_.empty()) {
          note("assumed that {}={} divides the logits", name, number);
        }
        scale_ /= number;
        return;
      case Use::width:
        scale_ *= number / hidden;
        return;
      case Use::sqrt:
        if (number != 0) scale_ /= std::sqrt(hidden);
        return;
      case Use::nothing:
        return;
    }
  }

  // A class sets what the file leaves out; null is not left out.
  void take_defaults() {
    for (const auto& [name, number] : facts_->logits) {
      const auto is_here = [&](const auto& item) { return plain(item.key()) == plain(name); };
      const auto items = text().items();
      if (name.empty() || std::any_of(items.begin(), items.end(), is_here)) continue;
      const LogitsKey& key = *find_logits_key(name, type_);
      // T5 scales what it multiplies by its embeddings.
      if (key.use == Use::sqrt && text().value("tie_word_embeddings", Json(true)) == false)
        continue;
      apply(key, name, number);
      note("assumed {}={}, which a {} has whose configuration does not say", name, number, type_);
    }
  }

  // A part with a type alone may mean that class's own sizes.
  void tell_of_what_is_inside() const {
    for (const char* name : k_nested_names) {
      const auto nested = text().find(name);
      if (nested == text().end() || !nested->is_object() || !find_facts(type_of(*nested))) continue;
      note("assumed V={}, D={} of the whole, because {} gives none", shape_.vocab, shape_.hidden,
           name);
    }
  }

  void tell_of_what_is_outside() const {
    for (const Json* part : std::span(path_).first(path_.size() - 1)) {
      for (const auto& [name, value] : part->items()) {
        const LogitsKey* key = find_logits_key(name, type_);
        if (key == nullptr ? !sounds_like_logits(name) : key->use == Use::nothing) continue;
        const auto inside = text().find(name);
        if (value.is_null() || value == false || (inside != text().end() && *inside == value))
          continue;
        note("{}={} stands outside of the language model's part: assumed that it does nothing",
             name, text_of(value));
      }
    }
  }

  const ConfigFile& file_;
  const std::vector<const Json*> path_;
  std::string type_;
  const ModelFacts* facts_ = nullptr;
  ModelShape shape_;
  double scale_ = 1;
};

}  // namespace

const nlohmann::json& text_part(const ConfigFile& file) { return *path_to_text(file.root).back(); }

ModelShape read_head(const ConfigFile& file, const std::optional<std::int64_t>& vocab) {
  return Head(file).read(vocab);
}

}  // namespace rlk::jit
