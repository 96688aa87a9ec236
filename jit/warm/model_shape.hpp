// SPDX-License-Identifier: Apache-2.0
// What kernels are specialized for, read from a model's configuration.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace rlk::jit {

struct ModelShape {
  std::int64_t vocab = 0;   // rows of the head's weight; of one shard of it
  std::int64_t hidden = 0;  // its columns
  // What the model does to the head's product, in this order.
  double logit_scale = 1;
  std::optional<double> softcap = {};
  bool entropy = false;  // kernels of calls that ask for the entropy are wanted too

  bool operator==(const ModelShape&) const = default;
};

struct ShapeOptions {
  int num_shards = 1;                 // tensor parallel over the vocabulary: --tp
  std::optional<std::int64_t> vocab;  // of the head as it is, where it was resized: --vocab
  bool entropy = false;               // --entropy
};

// `word` is a Hugging Face config.json, a folder that holds one, or "V=128256,D=4096", to which
// ",softcap=30" and ",logit_scale=0.0625" may be added. Throws InvalidArgument with one line that
// names the word and what is missing or wrong in it.
ModelShape read_model_shape(const std::string& word, const ShapeOptions& options = {});

}  // namespace rlk::jit
