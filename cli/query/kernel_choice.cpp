// SPDX-License-Identifier: Apache-2.0
// From words to kernels.
#include "cli/query/kernel_choice.hpp"

#include "jit/op.hpp"
#include "jit/warm/warm.hpp"
#include "runtime/error.hpp"
#include "templates/registry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace rlk::cli {
namespace {

std::vector<std::string> split(const std::vector<std::string>& words) {
  std::vector<std::string> parts;
  for (const std::string& word : words) {
    for (std::size_t begin = 0; begin <= word.size();) {
      const std::size_t end = std::min(word.find(',', begin), word.size());
      parts.push_back(word.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return parts;
}

// Each word by its name in the table; throws InvalidArgument that lists the names.
template <class Value>
std::vector<Value> named(const std::vector<std::string>& words, const char* option,
                         const std::vector<std::pair<std::string, Value>>& table) {
  std::vector<Value> values;
  for (const std::string& word : split(words)) {
    const auto found = std::ranges::find(table, word, &std::pair<std::string, Value>::first);
    if (found == table.end()) {
      std::string names;
      for (const auto& [name, value] : table) names += (names.empty() ? "" : ", ") + name;
      throw InvalidArgument("{}: expected {}, got \"{}\"", option, names, word);
    }
    if (std::ranges::find(values, found->second) == values.end()) values.push_back(found->second);
  }
  return values;
}

std::vector<std::pair<std::string, Target>> target_names() {
  std::vector<std::pair<std::string, Target>> names;
  for (const auto targets : {cuda_targets(), cpu_targets()}) {
    for (const Target target : targets) names.emplace_back(name(target), target);
  }
  return names;
}

// Losses from hidden states have the kernels of their head; those of ppo_loss follow from options.
constexpr std::array k_losses_of_a_head = {"linear_ppo_loss", "linear_grpo_loss",
                                           "linear_cross_entropy"};

std::vector<std::pair<std::string, const jit::Op*>> op_names() {
  std::vector<std::pair<std::string, const jit::Op*>> names;
  for (const jit::Op* op : templates::ops()) {
    names.emplace_back(op->name, op);
    if (op->name != "linear_logp") continue;
    for (const char* loss : k_losses_of_a_head) names.emplace_back(loss, op);
  }
  return names;
}

const std::vector<std::pair<std::string, DType>> k_dtypes = {
    {"bf16", DType::bf16},     {"fp16", DType::f16},    {"fp32", DType::f32},
    {"bfloat16", DType::bf16}, {"float16", DType::f16}, {"float32", DType::f32}};

const std::vector<std::pair<std::string, jit::Pass>> k_passes = {{"fwd", jit::Pass::fwd},
                                                                 {"bwd", jit::Pass::bwd}};

bool has_kernels(jit::WarmPlan plan, const jit::ModelShape& shape) {
  plan.shapes = {shape};
  return !jit::kernels_of(plan).empty();
}

// A model says nothing of some ops' kernels, and not each model of all others'. Asked for by name,
// they would be left out unsaid.
void expect_kernels_of_each_op(const jit::WarmPlan& plan, const std::vector<std::string>& models) {
  for (const jit::Op* op : plan.ops) {
    jit::WarmPlan alone = plan;
    alone.ops = {op};
    if (!jit::kernels_of(alone).empty()) continue;
    alone.targets.assign(cuda_targets().begin(), cuda_targets().end());
    alone.passes = {jit::Pass::fwd, jit::Pass::bwd};
    const bool has_some = !jit::kernels_of(alone).empty();
    if (!has_some && has_kernels(alone, {.linears = {{1, 1}}})) {
      throw InvalidArgument(
          "--op: expected with {} a model with linear layers, a config.json or K=4096,N=12288, got "
          "{}",
          op->name, fmt::join(models, ", "));
    }
    if (!has_some && has_kernels(alone, {.vocab = 1, .hidden = 1})) {
      throw InvalidArgument(
          "--op: expected with {} a model with a head, a config.json or V=128256,D=4096, got {}",
          op->name, fmt::join(models, ", "));
    }
    if (has_some) {
      throw InvalidArgument(
          "--op: expected an op with kernels for {} and this --pass, got {}, which has them for "
          "others: --arch sm_90a, for example",
          names_of(plan.targets), op->name);
    }
    throw InvalidArgument(
        "--op: expected an op whose kernels follow from a model, got {}, whose kernels follow from "
        "a call's options: its generic ones are built in, --trace takes what RLK_TRACE has "
        "recorded",
        op->name);
  }
}

// Each model, and each option that says more of it, must have a part in the kernels.
void expect_use_of_each_word(const jit::WarmPlan& plan, const KernelChoice& choice) {
  const auto expect = [&](bool is_used, std::string_view option, std::string_view expected) {
    if (is_used) return;
    throw InvalidArgument("{}: expected {}, got {}{}{} --pass {}", option, expected,
                          fmt::join(choice.models, ", "), choice.ops.empty() ? "" : " --op ",
                          fmt::join(choice.ops, ","), fmt::join(choice.passes, ","));
  };
  for (std::size_t i = 0; i < plan.shapes.size(); ++i) {
    if (has_kernels(plan, plan.shapes[i])) continue;
    throw InvalidArgument(
        "model: {}: expected one that kernels of {} follow from, got none of them",
        choice.models[i],
        choice.ops.empty() ? "an op" : fmt::format("{}", fmt::join(choice.ops, ", ")));
  }
  const auto without = [&](auto change) {
    jit::WarmPlan changed = plan;
    for (jit::ModelShape& shape : changed.shapes) change(shape);
    return jit::kernels_of(changed).size();
  };
  const std::size_t all = jit::kernels_of(plan).size();
  if (choice.shape.entropy) {
    expect(without([](auto& shape) { shape.entropy = false; }) < all, "--entropy",
           "an op whose kernels differ with the entropy (linear_logp, logp)");
  }
  if (choice.shape.stats) {
    expect(without([](auto& shape) { shape.stats = false; }) < all, "--stats",
           "a forward whose kernels differ with the statistics (linear_logp, logp)");
  }
  const bool of_head = without([](auto& shape) { shape.vocab = 0; }) < all;
  if (choice.shape.num_shards != 1) expect(of_head, "--tp", "kernels of a head");
  if (choice.shape.vocab) expect(of_head, "--vocab", "kernels of a head");
}

// What says more of a model means nothing where there is none.
void expect_no_word_of_a_model(const KernelChoice& choice) {
  const auto expect = [](bool is_given, const char* option) {
    if (!is_given) return;
    throw InvalidArgument("{}: expected a model that it says more of, got none", option);
  };
  expect(!choice.ops.empty(), "--op");
  expect(choice.shape.entropy, "--entropy");
  expect(choice.shape.stats, "--stats");
  expect(choice.shape.num_shards != 1, "--tp");
  expect(choice.shape.vocab.has_value(), "--vocab");
}

}  // namespace

std::vector<Target> named_targets(const KernelChoice& choice) {
  return named(choice.archs, "--arch", target_names());
}

std::vector<DType> named_dtypes(const std::vector<std::string>& words) {
  return named(words, "--dtype", k_dtypes);
}

std::vector<Target> card_targets(const Settings& settings, runtime::cuda::Driver* driver) {
  std::vector<Target> targets;
  if (driver == nullptr) return targets;
  try {
    for (const auto& device : driver->devices()) {
      if (device.target) targets.push_back(settings.arch.cuda.value_or(*device.target));
    }
  } catch (const DriverError&) {
    // A driver without a card, or one that does not work.
  }
  return targets;
}

std::vector<Target> own_targets(const Settings& settings) {
  if (settings.arch.cuda) return {*settings.arch.cuda};
  auto targets = card_targets(settings, runtime::cuda::Driver::find());
  const auto cpu = settings.arch.cpu ? settings.arch.cpu : host_cpu_target();
  if (targets.empty() && cpu) targets.push_back(*cpu);
  return targets;
}

std::string names_of(const std::vector<Target>& targets) {
  std::string names;
  for (const Target target : targets) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", rlk::name(target));
  }
  return names;
}

std::vector<jit::ModelShape> chosen_shapes(const KernelChoice& choice) {
  std::vector<jit::ModelShape> shapes;
  jit::ShapeOptions options = choice.shape;
  options.linears = !choice.ops.empty();  // few want det_gemm's kernels, which are many
  for (const std::string& model : choice.models) {
    shapes.push_back(jit::read_model_shape(model, templates::ops(), options));
  }
  return shapes;
}

std::vector<jit::Specialization> chosen_kernels(const Context& context, const KernelChoice& choice,
                                                const std::vector<Target>& targets) {
  const auto asked = named_targets(choice);
  jit::WarmPlan plan{.shapes = chosen_shapes(choice),
                     .ops = named(choice.ops, "--op", op_names()),
                     .passes = named(choice.passes, "--pass", k_passes),
                     .dtypes = named_dtypes(choice.dtypes),
                     .targets = asked.empty() ? targets : asked,
                     .keep = context.settings.saved_mib > 0,
                     .tunings = jit::read_tunings(layers_of(context).options)};
  if (plan.shapes.empty()) {
    expect_no_word_of_a_model(choice);
    return {};
  }
  expect_kernels_of_each_op(plan, choice.models);
  if (plan.ops.empty()) plan.ops.assign(templates::ops().begin(), templates::ops().end());
  expect_use_of_each_word(plan, choice);
  return jit::kernels_of(plan);
}

}  // namespace rlk::cli
