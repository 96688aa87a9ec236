// SPDX-License-Identifier: Apache-2.0
// From manifests, traces, names and models to kernels.
#include "jit/warm/preload_list.hpp"

#include "jit/op.hpp"
#include "jit/parse_specialization.hpp"
#include "jit/warm/manifest.hpp"
#include "jit/warm/trace.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"

#include <algorithm>
#include <filesystem>

namespace rlk::jit {
namespace {

namespace fs = std::filesystem;

bool is_model(const std::string& word) {
  std::error_code error;
  return word.starts_with("V=") || word.starts_with("D=") || word.starts_with("K=") ||
         word.starts_with("N=") || word.ends_with(".json") || fs::is_directory(word, error);
}

std::vector<Wanted> wanted_of_model(const std::string& word, Target target, TuningOf tuning_of,
                                    Ops ops, bool keep) {
  ModelShape shape = read_model_shape(word, ops);
  shape.keep = keep;
  std::vector<Wanted> all;
  for (const Op* op : ops) {
    for (const Pass pass : {Pass::fwd, Pass::bwd}) {
      Wanted wanted;
      for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
        auto variants = op->model_variants(shape, dtype, pass, target, tuning_of(*op, pass));
        if (!variants.empty()) wanted.any_of.push_back(std::move(variants));
      }
      if (!wanted.any_of.empty()) all.push_back(std::move(wanted));
    }
  }
  return all;
}

}  // namespace

std::vector<Specialization> manifest_kernels(std::span<const std::string> folders, Target target,
                                             Ops ops) {
  std::vector<Specialization> kernels;
  for (const std::string& folder : folders) {
    for (const std::string& name : read_manifest(folder)) {
      try {
        const Specialization kernel = parse_specialization(name, ops);
        if (kernel.target != target || std::ranges::find(kernels, kernel) != kernels.end())
          continue;
        kernels.push_back(kernel);
      } catch (const InvalidArgument& error) {
        // Of a newer rlk, or an older one.
        log().info("preload: {}: left out: {}", folder, error.what());
      }
    }
  }
  return kernels;
}

std::vector<Wanted> wanted_kernels(const std::string& word, Target target, TuningOf tuning_of,
                                   Ops ops, bool keep) {
  if (word.find("]@") != std::string::npos) return {{{{parse_specialization(word, ops)}}}};
  if (is_model(word)) return wanted_of_model(word, target, tuning_of, ops, keep);
  std::error_code error;
  if (!fs::exists(word, error)) {
    throw InvalidArgument(
        "preload: names: expected a kernel's name, a trace, a config.json, a folder with one, or "
        "V=128256,D=4096, got \"{}\"{}",
        word, error ? fmt::format(" ({})", error.message()) : "");
  }
  std::vector<Wanted> all;
  for (const auto& kernel : read_trace(word, ops).kernels) {
    if (kernel.target == target) all.push_back({{{kernel}}});
  }
  return all;
}

}  // namespace rlk::jit
