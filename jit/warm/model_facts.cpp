// SPDX-License-Identifier: Apache-2.0
// The tables of model types. Facts are those of transformers 5.24 and, where a type is not in it,
// of the code that its checkpoints come with.
#include "jit/warm/model_facts.hpp"

#include <algorithm>
#include <initializer_list>
#include <ranges>
#include <string>

namespace rlk::jit {
namespace {

constexpr LogitsKey k_logits_keys[] = {
    {"final_logit_softcapping", Use::softcap, ""},  // Gemma, Grok 2
    {"logits_soft_cap", Use::softcap, ""},          // RecurrentGemma
    {"output_logit_soft_cap", Use::softcap, ""},    // xLSTM
    {"lm_head_softcap", Use::softcap, ""},
    {"logit_scale", Use::factor, ""},              // Cohere, MPT
    {"lm_head_multiplier", Use::factor, ""},       // Falcon-H1
    {"output_multiplier_scale", Use::factor, ""},  // Grok 1
    {"output_multiplier", Use::factor, "muse_"},
    {"width_scale", Use::factor, "jais"},
    {"mup_width_scale", Use::factor, "jais btlm"},
    {"mup_output_alpha", Use::factor, "jais btlm"},
    {"mup_width_multiplier", Use::divisor, "phi3small"},
    {"mup_use_scaling", Use::nothing, "phi3small"},     // goes with the one above
    {"logits_mup_width_multiplier", Use::divisor, ""},  // Inkling
    {"logits_scaling", Use::factor, "hyperclovax"},
    {"logits_scaling", Use::nothing, "minicpm"},  // whose code takes the next one
    {"dim_model_base", Use::width, "minicpm"},
    {"logits_scaling", Use::divisor, "granite"},
    {"logits_scaling", Use::divisor, "", false},
    {"scale_logits", Use::sqrt, "hf_olmo olmo molmo llada"},
    {"scale_decoder_outputs", Use::sqrt, "t5 umt5 longt5 pop2piano udop switch_transformers"},
};

constexpr ModelFacts k_facts[] = {
    {"llama llava llava_next llava_next_video video_llava vipllava idefics3 smolvlm janus", 32000,
     4096},
    {"mistral mixtral idefics2 aria", 32000, 4096},
    {"mistral3 pixtral", 131072, 5120},
    {"mistral4", 131072, 4096},
    {"llama4", 202048, 5120},
    {"mllama", 128256, 4096},
    {"qwen2 qwen3 qwen3_vl llava_onevision internvl", 151936, 4096},
    {"qwen2_moe qwen3_moe qwen3_next qwen3_vl_moe", 151936, 2048},
    {"qwen2_vl qwen2_5_vl", 152064, 8192},
    {"qwen2_5_omni qwen2_5_omni_thinker", 152064, 3584},
    {"qwen3_5", 248320, 4096},
    {"qwen3_5_moe", 248320, 2048},
    {"gemma", 256000, 3072},
    {"paligemma", 257152, 2048},
    {"gemma2 vaultgemma t5gemma t5_gemma_module",
     256000,
     2304,
     {{{"final_logit_softcapping", 30}}}},
    {"gemma3 shieldgemma2 t5gemma2 t5gemma2_decoder", 262208, 2304},
    {"gemma3n", 262400, 2048, {{{"final_logit_softcapping", 30}}}},
    {"gemma4 gemma4_unified", 262144, 2304},
    {"diffusion_gemma", 262144, 2304, {{{"final_logit_softcapping", 30}}}},
    {"recurrent_gemma", 256000, 2560, {{{"logits_soft_cap", 30}}}},
    {"mistral_large4", 204800, 6144, {{{"final_logit_softcapping", 30}}}},
    {"nanochat", 50304, 768, {{{"final_logit_softcapping", 15}}}},
    {"beam", 151936, 5120, {{{"final_logit_softcapping", 30}}}},
    {"inkling2", 200058, 4608, {{{"final_logit_softcapping", 30}}}},
    {"inkling2_loop", 200058, 2304, {{{"final_logit_softcapping", 30}}}},
    {"inkling inkling_mm_model", 201024, 6144, {{{"logits_mup_width_multiplier", 24}}}},
    {"muse_glimmer",
     202048,
     6656,
     {{{"final_logit_softcapping", 20}, {"output_multiplier", 0.19611613513818404}}}},
    {"muse_spark",
     202048,
     8192,
     {{{"final_logit_softcapping", 20}, {"output_multiplier", 0.1767766952966369}}}},
    {"xlstm", 50304, 4096, {{{"output_logit_soft_cap", 30}}}},
    {"cohere cohere2 cohere2_moe aya_vision cohere2_vision",
     256000,
     8192,
     {{{"logit_scale", 0.0625}}}},
    {"granite granitemoe granitemoeshared granitemoehybrid granite_speech", 32000, 4096},
    {"granite_docling", 133800, 1024, {{{"logits_scaling", 4}}}},
    {"minicpm3", 73448, 2560, {{{"dim_model_base", 256}}}},
    {"t5 longt5", 32128, 512, {{{"scale_decoder_outputs", 1}}}},
    {"switch_transformers", 32128, 768, {{{"scale_decoder_outputs", 1}}}},
    {"umt5", 250112, 512, {{{"scale_decoder_outputs", 1}}}},
    {"pop2piano", 2400, 512, {{{"scale_decoder_outputs", 1}}}},
    {"udop", 33201, 1024, {{{"scale_decoder_outputs", 1}}}},
    {"mt5", 250112, 512},
    {"hyperclovax", 32000, 4096},
    {"falcon_h1", 128000, 4096},
    {"phi3", 32064, 3072},
    {"phi4_multimodal", 200064, 3072},
    {"opt blip-2 instructblip", 50272, 768},
    {"gpt2", 50257, 768},
    {"gpt_neox", 50432, 6144},
    {"gpt_oss", 201088, 2880},
    {"deepseek_v2", 102400, 4096},
    {"deepseek_v3", 129280, 7168},
    {"glm4v", 151552, 4096},
    {"glm4v_moe", 151424, 4096},
    {"lfm2 lfm2_vl", 65536, 2560},
    {"exaone4 exaone4_5", 102400, 4096},
    {"nemotron_h", 131072, 4096},
    {"mamba", 50280, 768},
    {"mamba2", 32768, 4096},
    {"albert", 30000, 128},
    {"electra", 30522, 128},
};

auto words(std::string_view text) {
  return text | std::views::split(' ') | std::views::transform([](auto word) {
           return std::string_view(word.begin(), word.end());
         });
}

bool has_any(std::string_view text, std::initializer_list<std::string_view> parts) {
  return std::ranges::any_of(
      parts, [&](std::string_view part) { return text.find(part) != std::string_view::npos; });
}

void replace(std::string& text, std::string_view part, std::string_view by) {
  if (const auto at = text.find(part); at != std::string::npos) text.replace(at, part.size(), by);
}

}  // namespace

std::string plain(std::string_view name) {
  std::string plain(name);
  replace(plain, "logits", "logit");
  std::erase(plain, '_');
  replace(plain, "softcapping", "softcap");
  return plain;
}

bool is_of(std::string_view model_type, std::string_view types) {
  return std::ranges::any_of(words(types), [&](auto type) { return model_type.starts_with(type); });
}

const LogitsKey* find_logits_key(std::string_view name, std::string_view model_type) {
  const auto found = std::ranges::find_if(k_logits_keys, [&](const LogitsKey& key) {
    return plain(key.name) == plain(name) && (key.types.empty() || is_of(model_type, key.types));
  });
  return found == std::end(k_logits_keys) ? nullptr : &*found;
}

const ModelFacts* find_facts(std::string_view model_type) {
  for (const std::string_view end : {"_text_model", "_text"}) {
    if (model_type.ends_with(end)) model_type.remove_suffix(end.size());
  }
  const auto found = std::ranges::find_if(k_facts, [&](const ModelFacts& facts) {
    return std::ranges::any_of(words(facts.types), [&](auto type) { return type == model_type; });
  });
  return found == std::end(k_facts) ? nullptr : &*found;
}

bool sounds_like_logits(std::string_view name) {
  std::string word = plain(name);
  replace(word, "unemb", "lmhead");
  const bool is_one = word.ends_with("cap") || word.ends_with("mult");
  return (is_one || has_any(word, {"softcap", "scal", "multipl", "divi", "alpha", "temper"})) &&
         has_any(word, {"logit", "lmhead", "output", "final", "head", "mup", "width", "softcap"}) &&
         !has_any(word, {"att", "rout", "gate", "moe", "expert", "mlp", "query", "key", "qk",
                         "vision", "image", "audio", "init", "emb", "residual", "layer", "norm"});
}

bool pads_vocab(std::string_view name) {
  return has_any(name, {"vocab"}) && has_any(name, {"multiple", "divisible"}) &&
         !has_any(name, {"ngram"});
}

bool sounds_like_rows(std::string_view name, std::string_view model_type) {
  // Molmo has them in its input alone.
  if (name == "additional_vocab_size") return !is_of(model_type, "molmo");
  return has_any(name, {"vocab"}) &&
         has_any(name, {"pad", "extra", "add", "output", "head", "decoder", "target", "resized"});
}

}  // namespace rlk::jit
