// SPDX-License-Identifier: Apache-2.0
// The words of the losses' options, and options that Python has resolved.
#include "python/bind/call_arguments.hpp"
#include "python/bind/module.hpp"
#include "templates/common/loss/options.hpp"
#include "templates/group_advantages/op.hpp"

#include <cmath>
#include <limits>

namespace rlk::bind {
namespace {

py::tuple words_of(std::span<const jit::Word> words) {
  py::tuple found(words.size());
  for (std::size_t i = 0; i < words.size(); ++i) found[i] = py::str(std::string(words[i].word));
  return found;
}

// The words of each option, by the option's name.
py::dict vocabularies() {
  py::dict found;
  const auto add = [&](std::string_view name, std::span<const jit::Word> words) {
    found[py::str(std::string(name))] = words_of(words);
  };
  for (const LossChoice& choice : k_loss_choices) add(choice.name, choice.words);
  add("loss_reduction", k_reductions);
  add("tis_overflow", k_tis_overflows);
  for (const jit::Parameter& parameter : templates::group_advantages_op.parameters) {
    if (parameter.kind == jit::Kind::word) add(parameter.name, parameter.words);
  }
  return found;
}

// Numbers that fp32 does not hold are infinite.
float single(double number) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  if (std::abs(number) > 3.4e38)
    return std::copysign(infinity, static_cast<float>(number > 0 ? 1 : -1));
  return static_cast<float>(number);
}

// By the names of templates/common/loss/options.hpp; what is not given keeps its default.
LossOptions make_options(const py::dict& given) {
  LossOptions options;
  std::size_t num_read = 0;
  const auto read = [&](std::string_view name, const auto& set) {
    PyObject* const value = PyDict_GetItemString(given.ptr(), std::string(name).c_str());
    if (value == nullptr) return;
    ++num_read;
    set(py::handle(value));
  };
  const auto read_word = [&](auto& code, std::string_view name, std::span<const jit::Word> words) {
    read(name, [&](py::handle word) { code = bind_word(word, words, {"ppo_loss", name}); });
  };
  for (const LossChoice& choice : k_loss_choices) {
    read_word(options.choices.*choice.field, choice.name, choice.words);
  }
  for (const LossNumber& number : k_loss_numbers) {
    read(number.name,
         [&](py::handle value) { options.values.*number.field = single(value.cast<double>()); });
  }
  read_word(options.reduction, "loss_reduction", k_reductions);
  read_word(options.kl_reduction, "kl_reduction", k_reductions);
  read("max_seq_len", [&](py::handle length) { options.length = length.cast<double>(); });
  read("samples_per_prompt",
       [&](py::handle size) { options.group_size = size.cast<std::int64_t>(); });
  if (num_read != given.size()) throw py::key_error("LossOptions: a name that no option has");
  return options;
}

}  // namespace

void bind_loss_options(py::module_& module) {
  py::class_<LossOptions>(module, "LossOptions").def(py::init(&make_options), py::arg("options"));
  module.def("vocabularies", vocabularies);
}

}  // namespace rlk::bind
