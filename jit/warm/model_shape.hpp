// SPDX-License-Identifier: Apache-2.0
// What kernels are specialized for, read from a model's configuration.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace rlk::jit {

struct Op;
struct Parameter;

// A layer y = x * weight^T, weight [outputs, inputs].
struct LinearShape {
  std::int64_t inputs = 0, outputs = 0;

  bool operator==(const LinearShape&) const = default;
};

struct ModelShape {
  std::int64_t vocab = 0;   // rows of the head's weight; of one shard of it
  std::int64_t hidden = 0;  // its columns
  int num_shards = 1;       // of the vocabulary, of like size
  // What the model does to the logits: numbers of parameters that its calls pass, by name.
  std::map<std::string, double, std::less<>> numbers = {};
  // Kernels of calls that ask for the entropy, or the statistics, are wanted too.
  bool entropy = false, stats = false;
  // So are those of forwards that keep something for a backward.
  bool keep = false;
  // Layers besides the head. With "K=..,N=.." there is one of these alone, and no vocabulary.
  std::vector<LinearShape> linears = {};

  bool operator==(const ModelShape&) const = default;
};

struct ShapeOptions {
  int num_shards = 1;                 // tensor parallel over the vocabulary: --tp
  std::optional<std::int64_t> vocab;  // of the head as it is, where it was resized: --vocab
  bool entropy = false;               // --entropy
  bool stats = false;                 // --stats
  bool linears = false;               // the layers besides the head are wanted too
};

// Numbers of the ops' parameters whose presence is a constant: those that a model gives, each name
// once.
std::vector<const Parameter*> model_parameters(std::span<const Op* const> ops);

// `word` is a Hugging Face config.json, a folder that holds one, or "V=128256,D=4096", to which
// numbers of model_parameters() may be added: ",logit_scale=0.5"; or "K=4096,N=12288", one linear
// layer. Throws
// InvalidArgument with one line that names the word and what is missing or wrong in it.
ModelShape read_model_shape(const std::string& word, std::span<const Op* const> ops,
                            const ShapeOptions& options = {});

}  // namespace rlk::jit
