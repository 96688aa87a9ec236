// SPDX-License-Identifier: Apache-2.0
// What is known of models by their type: what their classes do to the logits, and by default.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace rlk::jit {

// What a key of a configuration does to the head's product.
enum class Use {
  softcap,  // caps it by this number
  factor,   // multiplies it
  divisor,  // divides it
  width,    // multiplies it by this number over the hidden size
  sqrt,     // a flag: divides it by the square root of the hidden size
  nothing,
};

struct LogitsKey {
  std::string_view name;  // as plain() gives it
  Use use;
  std::string_view types;  // of models, the beginnings of their names; empty: all
  bool is_sure = true;     // else a line says what was assumed
};

// A class of Hugging Face's, and what its configuration has where the file leaves it out.
struct ModelFacts {
  struct Default {
    std::string_view name;
    double number = 0;
  };

  std::string_view types;  // the whole names, without "_text" at their ends
  std::int64_t vocab = 0, hidden = 0;
  std::array<Default, 2> logits{};  // of names of LogitsKey
};

// The name without what spellings differ in: "final_logits_softcapping" is "finallogitsoftcap".
std::string plain(std::string_view name);

// Nothing where a model of this type has no such key.
const LogitsKey* find_logits_key(std::string_view name, std::string_view model_type);

// Nothing where the type is not known.
const ModelFacts* find_facts(std::string_view model_type);

// Whether the type is one of those in `types`, a list of beginnings with blanks between.
bool is_of(std::string_view model_type, std::string_view types);

// Whether a key that is not known may cap or scale the logits of the head: not those of attention,
// of routers or of what is not text.
bool sounds_like_logits(std::string_view name);

// Whether the key pads the rows of the vocabulary to a multiple of its number.
bool pads_vocab(std::string_view name);

// Whether a key that is not known may say how many rows the head has.
bool sounds_like_rows(std::string_view name, std::string_view model_type);

}  // namespace rlk::jit
