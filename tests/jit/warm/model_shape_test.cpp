// SPDX-License-Identifier: Apache-2.0
// Configurations as models have them, and files that are none.
#include "jit/warm/model_shape.hpp"

#include "runtime/error.hpp"
#include "templates/registry.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/what.hpp"

#include <gtest/gtest.h>

#include <fstream>

namespace rlk::jit {
namespace {

using test::what;

class ModelShapeTest : public ::testing::Test {
 protected:
  std::string write(const std::string& text, const std::string& name = "config.json") const {
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }
  ModelShape read(const std::string& text, const ShapeOptions& options = {}) const {
    return read_model_shape(write(text), templates::ops(), options);
  }
  // The message without the file's name in front.
  std::string refused(const std::string& text) const {
    const std::string file = write(text);
    const std::string message =
        what<InvalidArgument>([&] { read_model_shape(file, templates::ops()); });
    const std::string front = "model: " + file + ": ";
    EXPECT_TRUE(message.starts_with(front)) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
    return message.substr(std::min(front.size(), message.size()));
  }

  test::TempDir folder_;
};

TEST_F(ModelShapeTest, Sizes) {
  EXPECT_EQ(read_model_shape("V=128256,D=4096", templates::ops()), (ModelShape{128256, 4096}));
  EXPECT_EQ(read_model_shape("D=64,V=7", templates::ops()), (ModelShape{7, 64}));
  for (const char* word : {"V=", "V=1", "D=4", "V=0,D=1", "V=1,D=-1", "V=1,D=2,V=3", "V=1,D=2x",
                           "V=1,,D=2", "V=1,D=2,", "V=1,X=2", "V=99999999999,D=1", "V=1,D=1e3"}) {
    const auto message = what<InvalidArgument>([&] { read_model_shape(word, templates::ops()); });
    EXPECT_TRUE(message.starts_with("model: " + std::string(word) + ": expected V=128256,D=4096"))
        << message;
  }
}

TEST_F(ModelShapeTest, AFileOrItsFolder) {
  const auto file = write(R"({"vocab_size": 128256, "hidden_size": 4096})");
  EXPECT_EQ(read_model_shape(file, templates::ops()), (ModelShape{128256, 4096}));
  EXPECT_EQ(read_model_shape(folder_.path(), templates::ops()), (ModelShape{128256, 4096}));
}

TEST_F(ModelShapeTest, OldNames) {
  EXPECT_EQ(read(R"({"vocab_size": 50257, "n_embd": 768})"), (ModelShape{50257, 768}));
  EXPECT_EQ(read(R"({"vocab_size": 32128, "d_model": 512})"), (ModelShape{32128, 512}));
  EXPECT_EQ(read(R"({"vocab_size": 250880, "n_embed": 4096})"), (ModelShape{250880, 4096}));
  // The head's width where it differs from the layers'; the head's rows where they are padded.
  EXPECT_EQ(read(R"({"vocab_size": 50272, "hidden_size": 1024, "word_embed_proj_dim": 512})"),
            (ModelShape{50272, 512}));
  EXPECT_EQ(read(R"({"padded_vocab_size": 65024, "vocab_size": 65000, "hidden_size": 4096})"),
            (ModelShape{65024, 4096}));
}

TEST_F(ModelShapeTest, NestedTextModels) {
  EXPECT_EQ(read(R"({"text_config": {"vocab_size": 151936, "hidden_size": 2048},
                     "vision_config": {"hidden_size": 1280}})"),
            (ModelShape{151936, 2048}));
  EXPECT_EQ(read(R"({"hidden_size": 99, "vocab_size": 5,
                     "llm_config": {"vocab_size": 92553, "hidden_size": 6144}})"),
            (ModelShape{92553, 6144}));
  EXPECT_EQ(
      read(R"({"thinker_config": {"text_config": {"vocab_size": 152064, "hidden_size": 3584}}})"),
      (ModelShape{152064, 3584}));
  // The vocabulary's size stands outside; a nested part says nothing of a text model.
  EXPECT_EQ(read(R"({"vocab_size": 32064, "text_config": {"hidden_size": 4096}})"),
            (ModelShape{32064, 4096}));
  EXPECT_EQ(read(R"({"vocab_size": 7, "hidden_size": 8, "text_config": {"model_type": "llama"}})"),
            (ModelShape{7, 8}));
  EXPECT_EQ(read(R"({"vocab_size": 7, "hidden_size": 8, "text_config": null})"),
            (ModelShape{7, 8}));
}

ModelShape with(ModelShape shape, double logit_scale, std::optional<double> softcap = {}) {
  if (logit_scale != 1) shape.numbers["logit_scale"] = logit_scale;
  if (softcap) shape.numbers["softcap"] = *softcap;
  return shape;
}

TEST_F(ModelShapeTest, WhatModelsDoToTheirLogits) {
  const auto read_more = [&](const std::string& more) {
    return read(R"({"vocab_size": 70, "hidden_size": 64, )" + more + "}");
  };
  const ModelShape plain{70, 64};
  // Gemma 2; 3 writes null; 0 is off.
  EXPECT_EQ(read_more(R"("final_logit_softcapping": 30.0)"), with(plain, 1, 30));
  EXPECT_EQ(read_more(R"("final_logit_softcapping": null)"), plain);
  EXPECT_EQ(read_more(R"("final_logit_softcapping": 0)"), plain);
  EXPECT_EQ(read_more(R"("attn_logit_softcapping": 50.0)"), plain);
  // Cohere and MPT.
  EXPECT_EQ(read_more(R"("model_type": "cohere", "logit_scale": 0.0625)"), with(plain, 0.0625));
  EXPECT_EQ(read_more(R"("logit_scale": "inv_sqrt_d_model")"), with(plain, 0.125));
  EXPECT_EQ(read_more(R"("logit_scale": null)"), plain);
  // Granite divides, HyperCLOVA X multiplies, MiniCPM takes another key.
  EXPECT_EQ(read_more(R"("model_type": "granite", "logits_scaling": 8)"), with(plain, 0.125));
  EXPECT_EQ(read_more(R"("model_type": "granitemoehybrid", "logits_scaling": 1)"), plain);
  EXPECT_EQ(read_more(R"("model_type": "hyperclovax", "logits_scaling": 8)"), with(plain, 8));
  EXPECT_EQ(read_more(R"("model_type": "minicpm", "logits_scaling": 8)"), plain);
  // Falcon-H1, Grok.
  EXPECT_EQ(read_more(R"("lm_head_multiplier": 0.5)"), with(plain, 0.5));
  EXPECT_EQ(read_more(R"("output_multiplier_scale": 0.5, "final_logit_softcapping": 50)"),
            with(plain, 0.5, 50));
}

TEST_F(ModelShapeTest, LogitsOfTheNestedTextModel) {
  EXPECT_EQ(read(R"({"text_config": {"vocab_size": 70, "hidden_size": 64,
                                     "final_logit_softcapping": 30.0},
                     "vision_config": {"hidden_size": 9, "logit_scale": 4}, "logit_scale": 5})"),
            with({70, 64}, 1, 30));
}

TEST_F(ModelShapeTest, LogitsThatMeanNothing) {
  const auto refused_more = [&](const std::string& more) {
    return refused(R"({"vocab_size": 70, "hidden_size": 64, )" + more + "}");
  };
  EXPECT_EQ(refused_more(R"("final_logit_softcapping": -1)"),
            "final_logit_softcapping: expected a number above 0, got -1");
  EXPECT_EQ(refused_more(R"("final_logit_softcapping": true)"),
            "final_logit_softcapping: expected a number, got true");
  EXPECT_EQ(refused_more(R"("logit_scale": "large")"),
            "logit_scale: expected a number, got \"large\"");
  EXPECT_EQ(refused_more(R"("logit_scale": [1])"), "logit_scale: expected a number, got an array");
  EXPECT_EQ(refused_more(R"("logits_scaling": 0)"),
            "logits_scaling: expected a number but 0, got 0");
}

TEST_F(ModelShapeTest, LogitsWithoutAFile) {
  EXPECT_EQ(read_model_shape("V=7,D=64,softcap=30", templates::ops()), with({7, 64}, 1, 30));
  EXPECT_EQ(read_model_shape("V=7,softcap=2.5,logit_scale=-0.0625,D=64", templates::ops()),
            with({7, 64}, -0.0625, 2.5));
  for (const char* word : {"V=7,D=8,softcap=", "V=7,D=8,softcap=inf", "V=7,D=8,softcap=1,softcap=2",
                           "V=7,D=8,logit_scale=x"}) {
    EXPECT_NE(what<InvalidArgument>([&] { read_model_shape(word, templates::ops()); }), "") << word;
  }
}

// In the model's words: no call of an op has been made.
TEST_F(ModelShapeTest, NumbersThatNoCallTakesAreRefused) {
  const auto refused = [](const std::string& word) {
    return what<InvalidArgument>([&] { read_model_shape(word, templates::ops()); });
  };
  EXPECT_EQ(refused("V=7,D=8,softcap=-3"),
            "model: V=7,D=8,softcap=-3: softcap: expected a finite number above 0 (3e-39 to 8e37), "
            "got -3");
  EXPECT_EQ(
      refused("V=7,D=8,logit_scale=1e39"),
      "model: V=7,D=8,logit_scale=1e39: logit_scale: expected a finite number of float32, got "
      "1e+39");
}

TEST_F(ModelShapeTest, EntropyAndStatisticsAreOptions) {
  for (const bool entropy : {false, true}) {
    for (const bool stats : {false, true}) {
      const auto shape =
          read_model_shape("V=7,D=8", templates::ops(),
                           {.num_shards = 1, .vocab = {}, .entropy = entropy, .stats = stats});
      EXPECT_EQ(shape.entropy, entropy);
      EXPECT_EQ(shape.stats, stats);
    }
  }
}

TEST_F(ModelShapeTest, ShardsAndResizedVocabularies) {
  const std::string text = R"({"vocab_size": 128256, "hidden_size": 4096})";
  EXPECT_EQ(read(text, {.num_shards = 8, .vocab = {}}), (ModelShape{16032, 4096, 8}));
  EXPECT_EQ(read(text, {.num_shards = 1, .vocab = 128264}), (ModelShape{128264, 4096}));
  EXPECT_EQ(read(R"({"hidden_size": 4096})", {.num_shards = 2, .vocab = 100}),
            (ModelShape{50, 4096, 2}));
  EXPECT_EQ(read_model_shape("V=10,D=2", templates::ops(), {.num_shards = 1, .vocab = 12}),
            (ModelShape{12, 2}));
  EXPECT_EQ(what<InvalidArgument>([] {
              read_model_shape("V=50257,D=768", templates::ops(), {.num_shards = 8, .vocab = {}});
            }),
            "model: V=50257,D=768: expected a vocabulary that 8 shards divide, got 50257; give the "
            "padded size by --vocab");
}

TEST_F(ModelShapeTest, WhatIsMissingIsNamed) {
  EXPECT_EQ(refused("{}"), "expected a hidden_size (or n_embd, d_model), found none");
  EXPECT_EQ(refused(R"({"vocab_size": 5})"),
            "expected a hidden_size (or n_embd, d_model), found none");
  EXPECT_EQ(refused(R"({"hidden_size": 5})"),
            "expected a vocab_size, found none; --vocab gives it");
  EXPECT_EQ(refused(R"({"hidden_size": 5, "vocab_size": null})"),
            "expected a vocab_size, found none; --vocab gives it");
}

TEST_F(ModelShapeTest, WhatIsNoConfiguration) {
  EXPECT_EQ(refused(""), "the file is empty");
  EXPECT_EQ(refused(" \n"), "the file is empty");
  EXPECT_EQ(refused("[]"), "expected a JSON object, got one of type array");
  EXPECT_EQ(refused("7"), "expected a JSON object, got one of type number");
  EXPECT_EQ(refused("{"), "expected JSON, got something else at byte 2");
  EXPECT_EQ(refused("\xff\xfe"), "expected JSON, got something else at byte 1");
  EXPECT_EQ(refused(std::string(50 << 20, ' ') + "{}"),
            "expected a model's configuration of some kilobytes, got 50 MiB");
  const std::string adapter =
      R"({"peft_type": "LORA", "base_model_name_or_path": "meta/llama", "r": 8})";
  EXPECT_EQ(refused(adapter),
            "expected a model's config.json, got a LoRA adapter's; give that of its base model, "
            "meta/llama");
  std::filesystem::remove(folder_ / "config.json");
  write(adapter, "adapter_config.json");
  EXPECT_NE(what<InvalidArgument>([&] {
              read_model_shape(folder_.path(), templates::ops());
            }).find("LoRA"),
            std::string::npos);
}

TEST_F(ModelShapeTest, SizesThatAreNone) {
  for (const char* value :
       {"0", "-1", "1.5", "true", "\"7\"", "[7]", "99999999999999999999", "{}"}) {
    EXPECT_TRUE(refused(R"({"hidden_size": 8, "vocab_size": )" + std::string(value) + "}")
                    .starts_with("vocab_size: expected a whole number from 1 to 2147483648, got"))
        << value;
    EXPECT_TRUE(refused(R"({"vocab_size": 8, "hidden_size": )" + std::string(value) + "}")
                    .starts_with("hidden_size: expected a whole number from 1 to 16777216, got"))
        << value;
  }
}

TEST_F(ModelShapeTest, DeepNestingEndsNothing) {
  std::string text;
  for (int i = 0; i < 100000; ++i) text += R"({"text_config":)";
  text += "{}" + std::string(100000, '}');
  EXPECT_EQ(refused(text), "expected a hidden_size (or n_embd, d_model), found none");
}

TEST_F(ModelShapeTest, ASizeThatIsNestedOrHuge) {
  const std::string deep(1'000'000, '[');
  EXPECT_EQ(
      refused(R"({"hidden_size": 8, "vocab_size": )" + deep + std::string(deep.size(), ']') + "}"),
      "vocab_size: expected a whole number from 1 to 2147483648, got an array");
  EXPECT_EQ(refused(R"({"hidden_size": 8, "vocab_size": 1e400})"),
            "expected JSON with numbers that a double can hold");
}

TEST_F(ModelShapeTest, NoSuchFile) {
  EXPECT_EQ(what<InvalidArgument>([] { read_model_shape("no/such", templates::ops()); }),
            "model: no/such: expected a config.json, a folder that holds one, or V=128256,D=4096; "
            "there is no no/such");
  // What cannot be looked at may be there.
  const std::string hidden = '/' + std::string(300, 'x');
  EXPECT_EQ(what<InvalidArgument>([&] { read_model_shape(hidden, templates::ops()); }),
            "model: " + hidden + ": File name too long");
}

}  // namespace
}  // namespace rlk::jit
