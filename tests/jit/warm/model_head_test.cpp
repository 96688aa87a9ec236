// SPDX-License-Identifier: Apache-2.0
// Heads of models by their type: rows, columns, cap and scale, and what is said of them.
#include "jit/warm/model_head.hpp"

#include "runtime/error.hpp"
#include "tests/support/captured_log.hpp"
#include "tests/support/temp_dir.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

namespace rlk::jit {
namespace {

class ModelHeadTest : public ::testing::Test {
 protected:
  ModelShape read(const std::string& text, const std::optional<std::int64_t>& vocab = {}) {
    log_.clear();
    // A name of its own, because what was said of a file is not said again.
    const std::string file = folder_ / (std::to_string(num_files_++) + ".json");
    std::ofstream(file) << text;
    return read_head(read_config_file(file), vocab);
  }
  // Whether one line says each of these.
  bool says(const std::string& first, const std::string& second = "") const {
    return log_.num_lines() == 1 && log_.contains(first) && log_.contains(second) &&
           log_.contains("V=..,D=..,softcap=..,logit_scale=.. says otherwise");
  }

  test::TempDir folder_;
  test::CapturedLog log_;
  int num_files_ = 0;
};

ModelShape with_options(ModelShape shape, std::optional<double> logit_scale,
                        std::optional<double> softcap = {}) {
  if (logit_scale) shape.numbers["logit_scale"] = *logit_scale;
  if (softcap) shape.numbers["softcap"] = *softcap;
  return shape;
}

TEST_F(ModelHeadTest, RowsThatArePadded) {
  EXPECT_EQ(read(R"({"d_model": 768, "vocab_size": 50277, "ssm_cfg": {},
                     "pad_vocab_size_multiple": 8})"),
            (ModelShape{50280, 768}));
  EXPECT_TRUE(says("V=50280", "vocab_size=50277")) << log_.text();
  EXPECT_EQ(read(R"({"d_model": 768, "vocab_size": 50277, "ssm_cfg": {}})"),
            (ModelShape{50280, 768}));  // as its class does by default
  EXPECT_EQ(read(R"({"hidden_size": 64, "vocab_size": 1000, "make_vocab_size_divisible_by": 128})"),
            (ModelShape{1024, 64}));
  EXPECT_EQ(read(R"({"hidden_size": 64, "vocab_size": 1000, "pad_vocab_size_to_multiple_of": 8})"),
            (ModelShape{1000, 64}));
  EXPECT_EQ(log_.text(), "");  // padded already
  EXPECT_EQ(read(R"({"hidden_size": 8, "vocab_size": 9, "pad_vocab_size_multiple": 8})", 10),
            (ModelShape{10, 8}));
  EXPECT_EQ(log_.text(), "");  // the caller has said how many
}

TEST_F(ModelHeadTest, NumbersWithoutDigitsAreSaid) {
  EXPECT_EQ(read(R"({"model_type": "gemma2", "hidden_size": 64, "vocab_size": 70,
                     "final_logit_softcapping": Infinity})"),
            (ModelShape{70, 64}));
  EXPECT_TRUE(says("final_logit_softcapping=\"Infinity\"", "passed over")) << log_.text();
  EXPECT_EQ(read(R"({"model_type": "cohere", "hidden_size": 64, "vocab_size": 70,
                     "logit_scale": NaN, "initializer_range": NaN})"),
            (ModelShape{70, 64}));
  EXPECT_TRUE(says("logit_scale=\"NaN\"", "passed over")) << log_.text();
  EXPECT_EQ(read(R"({"hidden_size": 64, "vocab_size": 70, "pad_vocab_size_multiple": NaN})"),
            (ModelShape{70, 64}));
  EXPECT_TRUE(says("V=70", "pad_vocab_size_multiple=\"NaN\"")) << log_.text();
  EXPECT_THROW(read(R"({"hidden_size": 64, "vocab_size": NaN})"), InvalidArgument);
}

TEST_F(ModelHeadTest, RowsByOtherNames) {
  // OLMo's own code: rows by a name that others give columns.
  EXPECT_EQ(read(R"({"model_type": "hf_olmo", "d_model": 4096, "vocab_size": 50280,
                     "embedding_size": 50304})"),
            (ModelShape{50304, 4096}));
  EXPECT_EQ(read(R"({"model_type": "albert", "hidden_size": 768, "vocab_size": 30000,
                     "embedding_size": 128})"),
            (ModelShape{30000, 128}));
  EXPECT_EQ(read(R"({"model_type": "idefics", "hidden_size": 4096, "vocab_size": 32000,
                     "additional_vocab_size": 2})"),
            (ModelShape{32002, 4096}));
  EXPECT_EQ(read(R"({"model_type": "fsmt", "d_model": 1024, "src_vocab_size": 9,
                     "tgt_vocab_size": 42024})"),
            (ModelShape{42024, 1024}));
  EXPECT_EQ(read(R"({"model_type": "inkling_text", "hidden_size": 6144, "vocab_size": 201024,
                     "unpadded_vocab_size": 200058, "logits_mup_width_multiplier": 24})"),
            with_options({200058, 6144}, 1.0 / 24));
  EXPECT_EQ(log_.text(), "");
  EXPECT_EQ(read(R"({"model_type": "new", "hidden_size": 8, "vocab_size": 9,
                     "extra_vocab_size": 3})"),
            (ModelShape{9, 8}));
  EXPECT_TRUE(says("V=9", "extra_vocab_size=3")) << log_.text();
  EXPECT_EQ(read(R"({"hidden_size": 8, "vocab_size": 9, "embedding_size": 4})"),
            (ModelShape{9, 8}));
  EXPECT_TRUE(says("D=8", "embedding_size=4")) << log_.text();
}

TEST_F(ModelHeadTest, SizesOfBothLevels) {
  EXPECT_EQ(read(R"({"vocab_size": 7, "text_config": {"vocab_size": 9, "hidden_size": 8}})"),
            (ModelShape{9, 8}));
  EXPECT_TRUE(says("V=9 of the language model", "7 of the whole")) << log_.text();
  EXPECT_EQ(read(R"({"vocab_size": 9, "text_config": {"vocab_size": 9, "hidden_size": 8}})"),
            (ModelShape{9, 8}));
  EXPECT_EQ(log_.text(), "");
  EXPECT_EQ(read(R"({"vocab_size": 9, "hidden_size": 8, "text_config": {"model_type": "qwen2"}})"),
            (ModelShape{9, 8}));
  EXPECT_TRUE(says("V=9, D=8 of the whole", "text_config")) << log_.text();
}

TEST_F(ModelHeadTest, SizesThatAClassSets) {
  EXPECT_EQ(read(R"({"model_type": "gemma3",
                     "text_config": {"model_type": "gemma3_text", "hidden_size": 2560}})"),
            (ModelShape{262208, 2560}));
  EXPECT_TRUE(says("V=262208", "vocab_size of a gemma3_text")) << log_.text();
  const ModelShape llava{32064, 4096};
  EXPECT_EQ(read(R"({"model_type": "llava",
                     "text_config": {"model_type": "llama", "vocab_size": 32064}})"),
            llava);
  EXPECT_TRUE(says("D=4096", "hidden_size of a llama")) << log_.text();
  EXPECT_EQ(read(R"({"model_type": "llava", "text_config": {"vocab_size": 32064}})"), llava);
}

TEST_F(ModelHeadTest, Caps) {
  const std::string sizes = R"("hidden_size": 64, "vocab_size": 70)";
  const ModelShape capped = with_options({70, 64}, {}, 30);
  for (const char* name :
       {"logits_soft_cap", "final_logit_softcapping", "final_logits_soft_cap",
        "output_logit_soft_cap", "logit_softcap", "logits_softcapping", "lm_head_soft_cap"}) {
    EXPECT_EQ(read("{" + sizes + R"(, ")" + name + R"(": 30})"), capped) << name;
    EXPECT_EQ(log_.text(), "");
  }
  for (const char* name :
       {"attn_logit_softcapping", "attention_logit_cap", "router_logit_softcapping",
        "moe_router_logit_softcapping", "gate_soft_cap", "mlp_up_softcap", "logit_scale_init_value",
        "attention_multiplier", "embedding_multiplier", "num_logits_to_keep"}) {
    EXPECT_EQ(read("{" + sizes + R"(, ")" + name + R"(": 30})"), (ModelShape{70, 64})) << name;
    EXPECT_EQ(log_.text(), "") << name;
  }
}

TEST_F(ModelHeadTest, CapsThatAClassSets) {
  const auto capped = [&](const std::string& type, const std::string& more = "") {
    return read(R"({"hidden_size": 64, "vocab_size": 70, "model_type": ")" + type + "\"" + more +
                "}");
  };
  for (const char* type : {"gemma2", "gemma3n", "gemma3n_text", "recurrent_gemma", "vaultgemma"}) {
    EXPECT_EQ(capped(type), with_options({70, 64}, {}, 30)) << type;
    EXPECT_TRUE(says("=30", type)) << log_.text();
  }
  EXPECT_EQ(capped("nanochat"), with_options({70, 64}, {}, 15));
  EXPECT_EQ(capped("gemma3_text"), (ModelShape{70, 64}));
  EXPECT_EQ(capped("gemma2", R"(, "final_logit_softcapping": null)"), (ModelShape{70, 64}));
  EXPECT_EQ(capped("gemma2", R"(, "final_logit_softcapping": 20)"), with_options({70, 64}, {}, 20));
  EXPECT_EQ(log_.text(), "");
  EXPECT_EQ(read(R"({"model_type": "gemma3n", "text_config": {"model_type": "gemma3n_text",
                     "hidden_size": 3072, "vocab_size": 262400}})"),
            with_options({262400, 3072}, {}, 30));
}

TEST_F(ModelHeadTest, Scales) {
  const auto scaled = [&](const std::string& more) {
    const auto shape = read(R"({"hidden_size": 64, "vocab_size": 70, "model_type": )" + more + "}");
    return shape.numbers.contains("logit_scale") ? shape.numbers.at("logit_scale") : 1;
  };
  EXPECT_EQ(scaled(R"("cohere")"), 0.0625);
  EXPECT_EQ(scaled(R"("cohere2", "logit_scale": 0.25)"), 0.25);
  EXPECT_EQ(scaled(R"("granite_docling_text")"), 0.25);
  EXPECT_EQ(scaled(R"("minicpm", "dim_model_base": 16)"), 0.25);
  EXPECT_EQ(scaled(R"("minicpm3")"), 4);  // 256 / 64
  EXPECT_EQ(scaled(R"("t5")"), 0.125);
  EXPECT_EQ(scaled(R"("t5", "tie_word_embeddings": false)"), 1);
  EXPECT_EQ(scaled(R"("umt5", "scale_decoder_outputs": false)"), 1);
  EXPECT_EQ(scaled(R"("phi3small", "mup_width_multiplier": 8, "mup_use_scaling": true)"), 0.125);
  EXPECT_EQ(scaled(R"("btlm", "mup_output_alpha": 2, "mup_width_scale": 0.125)"), 0.25);
  EXPECT_EQ(scaled(R"("hf_olmo", "scale_logits": true)"), 0.125);
  EXPECT_EQ(scaled(R"("muse_spark_text", "final_logit_softcapping": 20, "output_multiplier": 0.5)"),
            0.5);
  EXPECT_EQ(log_.text(), "");
  EXPECT_EQ(scaled(R"("new", "logits_scaling": 8)"), 0.125);
  EXPECT_TRUE(says("logits_scaling=8 divides the logits")) << log_.text();
}

TEST_F(ModelHeadTest, KeysThatAreNotKnownAreNamed) {
  for (const char* name : {"final_cap", "output_logits_multiplier", "lm_head_scale",
                           "logit_temperature", "width_scale", "output_multiplier",
                           "unembedding_scale", "mup_width_multiplier", "lm_head_mult"}) {
    EXPECT_EQ(read(R"({"hidden_size": 64, "vocab_size": 70, ")" + std::string(name) + R"(": 5})"),
              (ModelShape{70, 64}));
    EXPECT_TRUE(says(name, "=5 may cap or scale the logits")) << name << log_.text();
  }
  EXPECT_EQ(read(R"({"text_config": {"hidden_size": 64, "vocab_size": 70}, "logit_scale": 5})"),
            (ModelShape{70, 64}));
  EXPECT_TRUE(says("logit_scale=5 stands outside")) << log_.text();
}

}  // namespace
}  // namespace rlk::jit
