// SPDX-License-Identifier: Apache-2.0
// What every op that takes log-probs of target ids has in its call, beside the matrices that the
// logits come from: its parameters, their checks, the constants that they are, and how they get
// into the arguments of kernels.
#pragma once

#include "jit/op.hpp"
#include "templates/common/logp/leaves.h"
#include "templates/common/logp/shard.h"
#include "templates/common/types.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace rlk {

// Tensors with one value per row have the shape [...] of the leading axes.
struct LogpCallBase : jit::OpCall {
  Tensor target;                  // any integer type
  jit::NumberPerRow temperature;  // above 0
  std::optional<double> softcap;  // above 0
  double logit_scale = 1.0;
  Tensor mask;  // optional; bool, integer or float of 0 and 1
  std::optional<std::int64_t> ignore_index = -100;
  // Which outputs a caller is given.
  bool return_entropy = false, return_lse = false, return_stats = false;

  // Forward: written. Backward: read, log_prob by linear_logp alone. float32 [...]. row_max and
  // row_log_sum may be absent in the forward.
  Tensor log_prob, row_max, row_log_sum;
  // Forward: written where present. Backward: entropy is read with grad_entropy. float32 [...].
  Tensor entropy, lse;
  // Forward: written where present, all or none: stats.h. float32 [...], argmax int64.
  Tensor max_logit, argmax, mean_logit, sum_p2;

  // Of a rank that has some columns of a vocabulary; num_ids 0: all of it. Targets are ids of all
  // ranks. `segment`: columns of a segment of the whole, where this rank's columns begin with one;
  // 0: they are cut as a vocabulary of their own.
  std::int64_t first_id = 0, num_ids = 0, segment = 0;
  // Forward: written in place of the results where present, [values][rows] as shard.h says. The
  // results of a row then point into it, the argmax's to nothing that is read.
  Tensor part;
  Tensor parts;  // forward: [ranks][values][rows]; where present they are joined, and no more

  // Backward: upstream gradients, floats [...]; those absent are 0.
  Tensor grad_output, grad_entropy, grad_lse;

  // Forward: entropy is asked for. Backward: it has a gradient.
  bool needs_entropy() const {
    return pass == jit::Pass::fwd ? entropy.present() : grad_entropy.present();
  }
  bool needs_stats() const { return pass == jit::Pass::fwd && argmax.present(); }
};

// Numbers whose inverse the kernels take, in fp32.
inline constexpr jit::Range k_invertible = {
    "a finite number above 0 (3e-39 to 8e37)", [](double number) {
      const float rounded = static_cast<float>(number);
      return rounded > 0.0f && std::isfinite(rounded) && std::isnormal(1.0f / rounded);
    }};
inline constexpr jit::Range k_finite = {"a finite number of float32", [](double number) {
                                          return std::isfinite(static_cast<float>(number));
                                        }};

inline constexpr std::string_view k_off_on[] = {"", "yes"};

inline int segment_of(const LogpCallBase& call, std::int64_t columns) {
  return call.segment > 0 ? static_cast<int>(call.segment) : logp_segment(columns);
}

inline constexpr jit::ConstantDef k_segment_constant{"segment", "kSegment"};
// Its value for a call of `columns`: -1 where these are cut as a vocabulary of their own.
inline std::int64_t segment_constant(const LogpCallBase& call, std::int64_t columns) {
  const int segment = segment_of(call, columns);
  return segment == logp_segment(columns) ? jit::k_run_time : segment;
}

// What all of them take.
inline constexpr jit::Parameter k_row_parameters[] = {
    {"target", jit::Kind::tensor, jit::field_of<&LogpCallBase::target>},
    {"temperature", jit::Kind::number_per_row, jit::field_of<&LogpCallBase::temperature>, 1.0,
     &k_invertible},
    {"softcap",
     jit::Kind::optional_number,
     jit::field_of<&LogpCallBase::softcap>,
     0,
     &k_invertible,
     {"softcap", "kSoftcap", k_off_on}},
    {"logit_scale",
     jit::Kind::number,
     jit::field_of<&LogpCallBase::logit_scale>,
     1.0,
     &k_finite,
     {"logit_scale", "kLogitScale", k_off_on}},
    {"mask", jit::Kind::tensor, jit::field_of<&LogpCallBase::mask>},
    {"ignore_index", jit::Kind::optional_index, jit::field_of<&LogpCallBase::ignore_index>, -100},
};

// What those take besides that give the entropy, the log-sum-exp and the statistics.
inline constexpr jit::Parameter k_output_parameters[] = {
    {"return_entropy",
     jit::Kind::flag,
     jit::field_of<&LogpCallBase::return_entropy>,
     0,
     nullptr,
     {"entropy", "kEntropy", k_off_on},
     [](const jit::OpCall& call) {
       return static_cast<const LogpCallBase&>(call).needs_entropy();
     }},
    {"return_lse", jit::Kind::flag, jit::field_of<&LogpCallBase::return_lse>},
    {"return_stats",
     jit::Kind::flag,
     jit::field_of<&LogpCallBase::return_stats>,
     0,
     nullptr,
     {"stats", "kStats", k_off_on},
     [](const jit::OpCall& call) { return static_cast<const LogpCallBase&>(call).needs_stats(); }},
};

// What a backward takes besides: upstream gradients, and what the forward has saved.
inline constexpr jit::Parameter k_gradient_parameters[] = {
    {"grad_output", jit::Kind::tensor, jit::field_of<&LogpCallBase::grad_output>},
    {"grad_entropy", jit::Kind::tensor, jit::field_of<&LogpCallBase::grad_entropy>},
    {"grad_lse", jit::Kind::tensor, jit::field_of<&LogpCallBase::grad_lse>},
    {"row_max", jit::Kind::tensor, jit::field_of<&LogpCallBase::row_max>},
    {"row_log_sum", jit::Kind::tensor, jit::field_of<&LogpCallBase::row_log_sum>},
    {"entropy", jit::Kind::tensor, jit::field_of<&LogpCallBase::entropy>},
    {"log_prob", jit::Kind::tensor, jit::field_of<&LogpCallBase::log_prob>},
};

// The constants of kernels that read logits: their type, sizes, then each option of the table that
// is one, then those of an op's own.
struct LogitsConstants {
  std::array<jit::ConstantDef, k_max_constants> all{};
  std::size_t size = 0;

  constexpr std::span<const jit::ConstantDef> span() const { return {all.data(), size}; }
};
constexpr LogitsConstants logits_constants(std::initializer_list<jit::ConstantDef> sizes,
                                           std::span<const jit::Parameter> parameters,
                                           std::initializer_list<jit::ConstantDef> own = {}) {
  LogitsConstants found;
  found.all[found.size++] = k_type_constant;
  for (const auto& constant : sizes) found.all[found.size++] = constant;
  for (const auto& parameter : parameters) {
    if (parameter.constant.symbol != nullptr) found.all[found.size++] = parameter.constant;
  }
  for (const auto& constant : own) found.all[found.size++] = constant;
  return found;
}

// Their values for a call. An op's further constants follow, 0.
inline jit::Specialization logits_specialization(const LogpCallBase& call, Target target,
                                                 DType dtype,
                                                 std::initializer_list<std::int64_t> sizes) {
  jit::Specialization spec{call.op, call.pass, target, {type_code(dtype)}};
  std::size_t next = 1;
  for (const std::int64_t size : sizes) spec.values[next++] = size;
  for (const auto& parameter : call.op->parameters) {
    if (parameter.constant.symbol == nullptr) continue;
    spec.values[next++] = has_option(parameter, call) ? 1 : 0;
  }
  return spec;
}

// One generic variant per pass and storage type.
std::vector<jit::Specialization> generic_logits_variants(const jit::Op& op, Target target);

// The numbers of a model, as its calls pass them; the call has its op. Throws InvalidArgument.
inline void set_model_numbers(LogpCallBase& call, const jit::ModelShape& shape) {
  for (const auto& [name, number] : shape.numbers) {
    set_number(*jit::find_parameter(call.op->parameters, name), call, number);
  }
}

// Columns of a segment of the whole vocabulary where each shard has whole ones, else 0.
inline std::int64_t segment_of_shard(const jit::ModelShape& shape) {
  const std::int64_t vocab = shape.vocab * shape.num_shards;
  const bool has_whole = kLogpSegments % shape.num_shards == 0 && vocab % kLogpSegments == 0;
  return shape.num_shards > 1 && has_whole ? vocab / kLogpSegments : 0;
}

// Makes `call`, whose matrices are set, one that a model's head asks for, and calls visit() for it:
// plain, and with each set of the outputs that the shape names and the op has. A backward has
// nothing of the statistics. Throws InvalidArgument, as such a call would.
template <class Visit>
void for_model_calls(LogpCallBase& call, const jit::Op& op, const jit::ModelShape& shape,
                     jit::Pass pass, const Visit& visit) {
  call.op = &op;
  call.pass = pass;
  set_model_numbers(call, shape);
  const auto has = [&](bool named, std::string_view name) {
    return named && jit::find_parameter(op.parameters, name) != nullptr;
  };
  const bool entropy = has(shape.entropy, "return_entropy");
  const bool stats = pass == jit::Pass::fwd && has(shape.stats, "return_stats");
  const Tensor given = dense_tensor(nullptr, DType::f32, {}, {});
  for (int with_stats = 0; with_stats <= int{stats}; ++with_stats) {
    call.argmax = with_stats ? given : Tensor{};
    for (int with_entropy = 0; with_entropy <= int{entropy}; ++with_entropy) {
      call.entropy = call.grad_entropy = with_entropy ? given : Tensor{};
      visit();
    }
  }
}

// Makes a forward's call that of its gradients, as far as constants tell. `of_entropy`: where the
// forward gives it, it will have a gradient.
inline void set_gradients_of(LogpCallBase& call, bool of_entropy) {
  call.pass = jit::Pass::bwd;
  if (of_entropy && call.entropy.present()) call.grad_entropy = call.entropy;
}

// `matrix` [..., columns] gives the shape of tensors with one value per row, and the device; `name`
// is its name. Throws InvalidArgument.
void check_logp_rows(const LogpCallBase& call, const Tensor& matrix, const char* name);
// The shard of a call that has `columns` of its vocabulary, and the parts that are joined.
void check_logp_shard(const LogpCallBase& call, std::int64_t columns);
// The backward's upstream gradients, and what they need.
void check_logp_gradients(const LogpCallBase& call, const Tensor& matrix, const char* name);

// One fp32 division of 1 by the number, which is rounded to fp32 first. Throws InvalidArgument
// outside k_invertible.
float inverse_of(const LogpCallBase& call, double number, const char* argument);

// The fields that the arguments of all kernels of logits have by the same names; `vocab` is set.
template <class Args>
void set_logit_options(Args& args, const LogpCallBase& call) {
  args.shard = {call.first_id,
                call.num_ids > 0 ? call.num_ids : args.vocab,
                segment_of(call, args.vocab),
                call.part.present() ? 1 : 0,
                call.parts.present() ? static_cast<const float*>(call.parts.data) : nullptr,
                call.parts.present() ? static_cast<int>(call.parts.shape[0]) : 0,
                call.target.num_elements()};
  if (call.softcap) {
    args.softcap = static_cast<float>(*call.softcap);
    args.inverse_softcap = inverse_of(call, *call.softcap, "softcap");
  }
  args.logit_scale = static_cast<float>(call.logit_scale);
  const auto floats = [](const Tensor& tensor) {
    return tensor.present() ? static_cast<float*>(tensor.data) : nullptr;
  };
  args.logp = floats(call.log_prob);
  args.row_max = floats(call.row_max);
  args.row_log_sum = floats(call.row_log_sum);
  args.entropy = floats(call.entropy);
  args.lse = floats(call.lse);
  args.stats = {floats(call.max_logit),
                call.argmax.present() ? static_cast<long long*>(call.argmax.data) : nullptr,
                floats(call.mean_logit), floats(call.sum_p2)};
}

}  // namespace rlk
