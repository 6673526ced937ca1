// Tests of multimodal models, of which only the text part is read.
#include <gtest/gtest.h>

#include <regex>

#include "model_files/part_selection.h"
#include "model_files/weights/adapter_config.h"
#include "model_files/weights/exported_files.h"
#include "tests/common/expect_refusal.h"
#include "tests/model_files/tiny_model.h"

namespace rp {
namespace {

using nlohmann::json;

json tiny_text_json() {
  json text = tiny_llama_json();
  text.update({{"model_type", "gemma3_text"},
               {"hidden_activation", "gelu_pytorch_tanh"},
               {"sliding_window", 16},
               {"vocab_size", 10}});
  for (const char* key : {"hidden_act", "rope_theta", "dtype"}) text.erase(key);
  return text;
}

json tiny_gemma3_json() {
  return {{"model_type", "gemma3"},
          {"dtype", "bfloat16"},
          {"text_config", tiny_text_json()},
          {"vision_config", {{"hidden_size", 4}}}};
}

ModelConfig tiny_gemma3(const json& changes = json::object()) { return read_with(tiny_gemma3_json(), changes); }

std::vector<TensorDeclaration> with_eyes(const ModelConfig& config) {
  std::vector<TensorDeclaration> tensors = declarations(config);
  tensors.push_back({"multi_modal_projector.mm_input_projection_weight", DType::kBFloat16, {4, 8}});
  tensors.push_back({"vision_tower.encoder.layers.0.self_attn.q_proj.weight", DType::kInt8, {4, 4}});
  return tensors;
}

TEST(Wrapper, ItsTextConfigIsReadWithWhatHoldsForAllOfTheModel) {
  const ModelConfig config = tiny_gemma3();
  EXPECT_EQ(config.family, "gemma3_text");
  EXPECT_EQ(config.wrapper, "gemma3");
  EXPECT_EQ(config.hidden, 8);
  EXPECT_EQ(config.dtype, DType::kBFloat16);
  EXPECT_TRUE(config.tied_head);
  EXPECT_FALSE(tiny_gemma3({{"tie_word_embeddings", false}}).tied_head);
  json text = tiny_text_json();
  text["tie_word_embeddings"] = false;
  EXPECT_TRUE(tiny_gemma3({{"text_config", text}}).tied_head) << "the flag outside counts";
  EXPECT_EQ(tiny_gemma3({{"quantization_config", {{"quant_method", "fp8"}}}}).quantization, "fp8");
  EXPECT_NE(text_of_layer(config, 0), text_of_layer(read_with(tiny_text_json(), {{"dtype", "bfloat16"}}), 0));
}

// google/gemma-3-4b-it: the other values are defaults of the config class.
TEST(Wrapper, TextsOfPublishedGemma3FilesHaveTheirDefaults) {
  const ModelConfig config = read_with({{"model_type", "gemma3"},
                                        {"text_config",
                                         {{"hidden_size", 2560},
                                          {"intermediate_size", 10240},
                                          {"model_type", "gemma3_text"},
                                          {"num_hidden_layers", 34},
                                          {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                                          {"sliding_window", 1024}}},
                                        {"torch_dtype", "bfloat16"}},
                                       json::object());
  const AttentionConfig& attention = config.layers.at(0).attention;
  EXPECT_EQ(attention.num_heads, 8);
  EXPECT_EQ(attention.num_kv_heads, 4);
  EXPECT_EQ(attention.head_dim, 256);
  EXPECT_EQ(config.vocabulary, 262'208);
  EXPECT_EQ(num_parameters(tensors_of(config)), 3'880'263'168);
}

TEST(Wrapper, AMistral3IsAMistralUnlessItSaysOtherwise) {
  json text = tiny_llama_json();
  text.erase("model_type");
  const ModelConfig config = read_with({{"model_type", "mistral3"}, {"text_config", text}}, json::object());
  EXPECT_EQ(config.family, "mistral");
  EXPECT_EQ(config.layers.at(0).attention.window, 4096);
}

TEST(Wrapper, WithoutATextOfAKnownFamilyItIsRefused) {
  expect_refusal({"config.json", "no text_config", "'gemma3'"}, [] {
    (void)read_with({{"model_type", "gemma3"}}, json::object());
  });
  expect_refusal({"model_type is 'gemma9_text'"}, [] {
    tiny_gemma3({{"text_config", {{"model_type", "gemma9_text"}}}});
  });
  expect_refusal({"model_type is 'gemma9'", "gemma3,"}, [] { tiny_gemma3({{"model_type", "gemma9"}}); });
}

TEST(Wrapper, NamesInFilesAreNotThoseInMemory) {
  const ModelConfig config = tiny_gemma3({{"tie_word_embeddings", false}});
  EXPECT_EQ(name_in_checkpoint(config, 1, "mlp.up_proj.weight"), "language_model.model.layers.0.mlp.up_proj.weight");
  EXPECT_EQ(embedding_in_checkpoint(config), "language_model.model.embed_tokens.weight");
  EXPECT_EQ(checkpoint_tensors(config).back().name, "language_model.lm_head.weight");
  EXPECT_EQ(name_in_model(config, 1, "mlp.up_proj.weight"), "model.language_model.layers.0.mlp.up_proj.weight");
  EXPECT_EQ(name_in_model(config, 3, "norm.weight"), "model.language_model.norm.weight");
  EXPECT_EQ(head_in_model(config), "lm_head.weight");
}

TEST(Wrapper, TensorsOfOtherPartsAreCarriedAlongWhateverTheyAre) {
  const TempDirectory directory;
  (void)directory.write(kConfigFile, tiny_gemma3_json().dump());
  const ModelConfig config = read_model_config(directory.path());
  write_tensors(directory.file("model.safetensors"), with_eyes(config));
  const WeightFiles weights = WeightFiles::open(directory.path());
  check_weights(config, weights);
  EXPECT_EQ(exported_files(config, weights).num_carried(), 2U);
}

TEST(Wrapper, AStrangeTensorInItsTextIsRefusedAndSoIsAHeadThatIsNotTied) {
  const ModelConfig config = tiny_gemma3();
  const auto refuse = [&](const TensorDeclaration& tensor, const std::vector<std::string>& parts) {
    const TempDirectory directory;
    std::vector<TensorDeclaration> tensors = with_eyes(config);
    tensors.push_back(tensor);
    write_tensors(directory.file("model.safetensors"), tensors);
    expect_refusal(parts, [&] { check_weights(config, WeightFiles::open(directory.path())); });
  };
  refuse({"language_model.model.layers.0.self_attn.q_proj.bias", DType::kBFloat16, {8}},
         {"q_proj.bias", "not part of the model"});
  refuse({"language_model.lm_head.weight", DType::kFloat32, {10, 8}},
         {"'language_model.lm_head.weight'", "tie_word_embeddings"});
}

TEST(Wrapper, AdaptersHaveTheNamesInMemoryAndOnePatternThatLeavesOtherPartsAlone) {
  const ModelConfig config = tiny_gemma3();
  TrainedParts parts;
  parts.lora = {.rank = 2, .targets = "q_proj,layers.1.mlp.up_proj"};
  parts.train = "language_model.norm";
  const auto tensors = adapter_tensors(config, parts);
  EXPECT_EQ(tensors.front().name, "base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_A.weight");
  EXPECT_EQ(tensors.back().name, "base_model.model.model.language_model.norm.weight");
  const json text = json::parse(adapter_config_text(config, parts, "base"));
  EXPECT_EQ(text.at("modules_to_save"), json({"model.language_model.norm"}));
  const std::regex pattern(text.at("target_modules").get<std::string>());
  EXPECT_TRUE(std::regex_match("model.language_model.layers.1.self_attn.q_proj", pattern));
  EXPECT_TRUE(std::regex_match("model.language_model.layers.1.mlp.up_proj", pattern));
  EXPECT_FALSE(std::regex_match("model.language_model.layers.0.mlp.up_proj", pattern));
  EXPECT_FALSE(std::regex_match("model.vision_tower.encoder.layers.0.self_attn.q_proj", pattern));
  TrainedParts again = parts;
  again.lora.targets = text.at("target_modules").get<std::string>();
  EXPECT_EQ(summarise(config, again).num_adapted, summarise(config, parts).num_adapted);
}

// transformers loads the text part of a Qwen3.5 alone, and saves it as a text model whose tensors have
// the names that they had in the whole.
TEST(Wrapper, ATextModelMayHaveTheNamesThatItsTensorsHadInTheWhole) {
  json file = tiny_text_json();
  file.update({{"dtype", "bfloat16"}});
  const ModelConfig in_file = read_with(file, json::object());
  ModelConfig whole = in_file;
  whole.file_names.body = "model.language_model.";
  std::vector<TensorDeclaration> tensors = declarations(whole);
  const TempDirectory directory;
  write_tensors(directory.path() / "model.safetensors", tensors);
  const WeightFiles weights = WeightFiles::open(directory.path());
  EXPECT_ANY_THROW(check_weights(in_file, weights));
  const ModelConfig config = adapted_to_files(in_file, weights);
  EXPECT_EQ(config.file_names, whole.file_names);
  EXPECT_EQ(config.module_names, in_file.module_names);
  check_weights(config, weights);
}

TEST(Wrapper, TensorsThatPredictASecondTokenAreNotRead) {
  const ModelConfig config = read_with(tiny_text_json(), {{"dtype", "bfloat16"}});
  std::vector<TensorDeclaration> tensors = declarations(config);
  tensors.push_back({"mtp.layers.0.mlp.up_proj.weight", DType::kBFloat16, {4, 8}});
  const TempDirectory directory;
  write_tensors(directory.path() / "model.safetensors", tensors);
  check_weights(config, WeightFiles::open(directory.path()));
}

}  // namespace
}  // namespace rp
