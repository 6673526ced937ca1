#include "model_files/layer_costs.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "hoststore/catalogue.h"
#include "tests/common/expect_refusal.h"

namespace rp {
namespace {

ModelConfig with_layers(const std::vector<DecoderLayerConfig>& layers) {
  return {.name = "tiny", .hidden = 8, .vocabulary = 10, .layers = layers};
}

DecoderLayerConfig tiny_layer() {
  DecoderLayerConfig layer;
  layer.attention.num_heads = 4;
  layer.attention.num_kv_heads = layer.attention.head_dim = 2;
  layer.mlp.intermediate = 12;
  return layer;
}

ModelConfig tiny_model() { return with_layers({tiny_layer(), tiny_layer()}); }

ModelConfig tiny_moe() {
  DecoderLayerConfig layer = tiny_layer();
  layer.mlp.experts = ExpertsConfig{.num = 6, .per_token = 2};
  return with_layers({layer, layer});
}

std::set<std::string> names_of(const LayerTensors& layer) {
  std::set<std::string> names;
  for (const LayerTensor& tensor : layer.tensors) names.insert(tensor.name);
  return names;
}

TEST(LayerTensors, PresetsHaveThePublishedNumberOfParameters) {
  // The models' own figures, to the digits that are published; exact to the parameter where config
  // and checkpoint agree.
  const std::map<std::string, std::int64_t> published = {{"smollm2-135m", 134'515'008},
                                                         {"llama3.2-1b", 1'235'814'400},
                                                         {"llama3.2-3b", 3'212'749'824},
                                                         {"llama3.1-8b", 8'030'261'248},
                                                         {"llama3.1-70b", 70'553'706'496},
                                                         {"qwen3-0.6b", 596'049'920},
                                                         {"qwen3-1.7b", 1'720'574'976},
                                                         {"qwen3-4b", 4'022'468'096},
                                                         {"qwen3-8b", 8'190'735'360},
                                                         {"qwen3-14b", 14'768'307'200},
                                                         {"qwen3-32b", 32'762'123'264},
                                                         {"qwen3-30b-a3b", 30'532'122'624},
                                                         {"qwen3-235b", 235'093'634'560},
                                                         {"gpt-oss-20b", 20'914'757'184},
                                                         {"gpt-oss-120b", 116'829'156'672},
                                                         {"qwen2.5-0.5b", 494'032'768},
                                                         {"qwen2.5-1.5b", 1'543'714'304},
                                                         {"qwen2.5-3b", 3'085'938'688},
                                                         {"qwen2.5-7b", 7'615'616'512},
                                                         {"qwen2.5-14b", 14'770'033'664},
                                                         {"qwen2.5-32b", 32'763'876'352},
                                                         {"qwen2.5-72b", 72'706'203'648},
                                                         {"mistral-7b", 7'248'023'552},
                                                         {"mistral-nemo-12b", 12'247'782'400},
                                                         {"mistral-small-24b", 23'572'403'200},
                                                         {"gemma3-1b", 999'885'952},
                                                         {"gemma3-4b", 3'880'263'168},
                                                         {"gemma3-12b", 11'766'034'176},
                                                         {"gemma3-27b", 27'009'346'304},
                                                         {"smollm3-3b", 3'075'098'624},
                                                         {"olmo3-7b", 7'298'011'136},
                                                         {"olmo3-32b", 32'233'522'176},
                                                         {"ministral3-3b", 3'429'006'336},
                                                         {"ministral3-8b", 8'489'553'920},
                                                         {"ministral3-14b", 13'506'073'600},
                                                         // The text parts, as transformers counts them.
                                                         {"qwen3.5-0.8b", 752'393'024},
                                                         {"qwen3.5-4b", 4'205'751'296},
                                                         {"qwen3.5-9b", 8'953'803'264},
                                                         {"qwen3.5-27b", 26'895'998'464},
                                                         {"qwen3.5-35b-a3b", 34'660'610'688},
                                                         {"glm4.5-air", 106'852'245'504},
                                                         {"glm4.6", 352'797'814'784},
                                                         {"glm4.7-flash", 29'943'390'976},
                                                         {"deepseek-v3", 671'026'404'352},
                                                         {"moonlight-16b", 15'960'108'544},
                                                         {"gemma4-e2b", 4'628'569'344},
                                                         {"gemma4-e4b", 7'463'013'376},
                                                         {"gemma4-26b-a4b", 25'233'141'760},
                                                         {"gemma4-31b", 30'697'345'280}};
  EXPECT_EQ(preset_names().size(), published.size());
  for (const auto& [name, parameters] : published) {
    EXPECT_EQ(num_parameters(tensors_of(preset_config(name))), parameters) << name;
  }
}

TEST(LayerTensors, LoraTrainsPairsOnlyWithOrWithoutExperts) {
  const ModelConfig model = preset_config("qwen3-235b");
  const std::vector<LayerTensors> all = tensors_of(model, {.lora = {.rank = 32, .on_experts = true}});
  const std::vector<LayerTensors> attention = tensors_of(model, {.lora = {.rank = 32}});
  // r (in + out) for each linear layer, times 94 decoder layers.
  const std::int64_t attention_pairs = 94LL * 32 * (4096 + 8192 + 2 * (4096 + 512) + 8192 + 4096);
  const std::int64_t expert_pairs = 94LL * 32 * (128 * 3 * (4096 + 1536) + 4096 + 128);
  EXPECT_EQ(num_trained(attention), attention_pairs);
  EXPECT_EQ(num_trained(all), attention_pairs + expert_pairs);
  EXPECT_EQ(num_parameters(all), num_parameters(tensors_of(model)) + num_trained(all));
  EXPECT_TRUE(names_of(all[1]).contains("mlp.experts.down_proj.lora_B.weight"));
  EXPECT_FALSE(names_of(attention[1]).contains("mlp.gate.lora_A.weight"));
  EXPECT_EQ(num_trained({all.front(), all.back()}), 0);
}

TEST(LayerCosts, BytesAreTheStores) {
  for (const char* name : {"smollm2-135m", "llama3.1-8b", "gpt-oss-20b", "qwen3.5-0.8b", "glm4.5-air", "moonlight-16b",
                           "gemma4-e2b", "gemma4-26b-a4b"}) {
    for (const auto& [rank, corrections] : {std::pair(0, false), std::pair(16, false), std::pair(0, true)}) {
      const ModelConfig model = preset_config(name);
      // Without pairs nothing is frozen, and with them most is.
      const TrainedParts lora{.lora = {.rank = rank, .on_experts = true},
                              .corrections = corrections,
                              .frozen_weights = rank > 0 ? FrozenWeights::kNf4 : FrozenWeights::kAsInFiles};
      std::vector<LayerRequest> requests;
      for (const LayerTensors& layer : tensors_of(model, lora)) {
        LayerRequest& request = requests.emplace_back();
        for (const LayerTensor& tensor : layer.tensors) {
          if (tensor.format) {
            request.parameters.push_back({.name = tensor.name,
                                          .dtype = DType::kUInt8,
                                          .shape = {tensor.quantised_bytes()},
                                          .tied_group = -1,
                                          .is_trained = false});
            continue;
          }
          request.parameters.push_back({.name = tensor.name,
                                        .dtype = tensor.is_fp32 ? DType::kFloat32 : DType::kBFloat16,
                                        .shape = tensor.shape,
                                        .tied_group = tensor.tied_group,
                                        .is_trained = tensor.is_trained,
                                        .is_correction = tensor.is_correction && tensor.is_trained});
        }
      }
      const Catalogue catalogue = Catalogue::lay_out(requests, 1, false);
      const std::vector<LayerCost> costs = layer_costs(model, {.parts = lora});
      ASSERT_EQ(static_cast<std::size_t>(catalogue.num_layers()), costs.size());
      std::uint64_t gradients = 0, stored = 0;
      for (int layer = 0; layer < catalogue.num_layers(); ++layer) {
        const LayerCost& cost = costs[layer];
        std::uint64_t uploaded = 0;
        for (const UseId use : catalogue.uses_of(CatalogueLayer(layer))) {
          uploaded += catalogue.weight_groups()[catalogue.uses()[use].group].device_bytes();
        }
        EXPECT_EQ(cost.weight_bytes, uploaded) << name << " layer " << layer;
        gradients += cost.gradient_bytes;
        stored += 2 * cost.trained_elements + cost.frozen_bytes + cost.correction_bytes;
      }
      EXPECT_EQ(gradients, catalogue.gradient_bytes()) << name;
      EXPECT_NEAR(static_cast<double>(stored), static_cast<double>(catalogue.parameter_bytes()),
                  4096.0 * 2 * static_cast<double>(costs.size()));
    }
  }
}

TEST(LayerCosts, OperationsFollowTheFormulas) {
  const std::vector<LayerCost> costs = layer_costs(tiny_model(), {.sequences = 3, .sequence_length = 5});
  ASSERT_EQ(costs.size(), 4U);
  const double tokens = 15, linear = 8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 12;
  EXPECT_EQ(costs[1].forward.gemm_flops, 2 * tokens * linear);
  EXPECT_EQ(costs[1].backward.gemm_flops, 4 * tokens * linear);
  EXPECT_EQ(costs[1].forward.attention_flops, 3 * (5 * 6 / 2) * 8 * 4)
      << "each of 5 positions sees itself and those before";
  EXPECT_EQ(costs[1].backward.attention_flops, 2.5 * costs[1].forward.attention_flops);
  EXPECT_EQ(costs[3].forward.gemm_flops, 2 * tokens * 8 * 10);
  EXPECT_EQ(costs[3].backward.gemm_flops, 4 * tokens * 8 * 10);
  EXPECT_EQ(costs[1].output_bytes, 15U * 8 * 2);
  EXPECT_EQ(costs[0].forward.gemm_flops, 0);
  // 4 H + 2 Q + 2 K + 3 I elements; 2 norms and 4 heads in fp32.
  EXPECT_EQ(costs[1].saved_bytes, 15U * (2 * (32 + 16 + 8 + 36) + 4 * (2 + 4)));
}

TEST(LayerCosts, AWindowSavesPairsAndExpertsCountOnlyWhatATokenUses) {
  DecoderLayerConfig short_window = tiny_layer(), long_window = tiny_layer();
  short_window.attention.window = 3;
  long_window.attention.window = 300;
  const std::vector<LayerCost> sliding = layer_costs(with_layers({short_window, tiny_layer()}), {.sequence_length = 5});
  EXPECT_EQ(sliding[1].forward.attention_flops, (1 + 2 + 3 + 3 + 3) * 8 * 4);
  EXPECT_EQ(sliding[2].forward.attention_flops, (1 + 2 + 3 + 4 + 5) * 8 * 4);
  EXPECT_EQ(layer_costs(with_layers({long_window}), {.sequence_length = 5})[1].forward.attention_flops,
            sliding[2].forward.attention_flops);

  const LayerCost cost = layer_costs(tiny_moe(), {.sequence_length = 5})[1];
  EXPECT_EQ(cost.forward.gemm_flops, 2 * 5 * (8 * 8 + 2 * 8 * 4 + 8 * 8 + 6 * 8 + 2 * 3 * 8 * 12));
  EXPECT_GT(cost.weight_bytes, 2U * 6 * 3 * 8 * 12) << "all experts are uploaded";
}

TEST(LayerCosts, GatesOfTheOutputsAndPartsOfAMixtureCount) {
  DecoderLayerConfig gated = tiny_layer();
  gated.attention.has_output_gate = true;
  const LayerCost plain = layer_costs(tiny_model(), {.sequence_length = 5})[1];
  const LayerCost cost = layer_costs(with_layers({gated}), {.sequence_length = 5})[1];
  EXPECT_EQ(cost.forward.gemm_flops - plain.forward.gemm_flops, 2 * 5 * 8 * 8);
  EXPECT_EQ(cost.forward.elementwise_bytes - plain.forward.elementwise_bytes, 5 * 8 * 3 * 2);
  EXPECT_EQ(cost.saved_bytes - plain.saved_bytes, 5U * 2 * 8 * 2);

  ModelConfig shared = tiny_moe();
  const LayerCost without = layer_costs(shared, {.sequence_length = 5})[1];
  shared.layers[0].mlp.experts->shared = SharedExpertConfig{.name = "mlp.shared", .intermediate = 7, .has_gate = true};
  const LayerCost with = layer_costs(shared, {.sequence_length = 5})[1];
  EXPECT_EQ(with.forward.gemm_flops - without.forward.gemm_flops, 2 * 5 * (3 * 8 * 7 + 8));
  EXPECT_EQ(with.forward.elementwise_bytes - without.forward.elementwise_bytes, 5 * 2 * 3 * (7 + 8 + 8));
  EXPECT_EQ(with.saved_bytes - without.saved_bytes, 5U * 2 * (3 * 7 + 8));
}

// 4 heads: queries of 3 + 2 elements, values of 4, which are padded; 7 and 9 elements in the rows.
TEST(LayerCosts, LatentAttentionHasTheCostsOfItsFormulas) {
  DecoderLayerConfig layer = tiny_layer();
  layer.attention = {};
  layer.latent_attention = LatentAttentionConfig{
      .num_heads = 4, .query_rank = 7, .kv_rank = 9, .plain_dim = 3, .rotated_dim = 2, .value_dim = 4};
  const LayerCost cost = layer_costs(with_layers({layer}), {.sequences = 3, .sequence_length = 5})[1];
  const double tokens = 15, q = 4 * 5, v = 4 * 4, rotated = 5 * 2, pairs = 3 * (5 * 6 / 2);
  const double linear = 8 * 7 + 7 * q + 8 * (9 + 2) + 9 * 4 * (3 + 4) + v * 8 + 3 * 8 * 12;
  EXPECT_EQ(cost.forward.gemm_flops, 2 * tokens * linear);
  EXPECT_EQ(cost.forward.attention_flops, 2 * (q + v) * pairs);
  EXPECT_EQ(cost.backward.attention_flops, 2 * (3 * q + 2 * v) * pairs);
  const double norms = (2 * 8 + 7 + 9) * 2, glu = 12 * 3, sums = 2 * 3 * 8;  // passes per token
  EXPECT_EQ(cost.forward.elementwise_bytes, tokens * 2 * (norms + rotated * 2 + 2 * (3 * q + rotated) + glu + sums));
  EXPECT_EQ(cost.saved_bytes, 15U * (2 * (32 + 4 * 20 + 16 + 2 * 16 + 36) + 4 * (2 + 4 + 2)));
  layer.latent_attention->pairs_neighbours = false;
  layer.latent_attention->value_dim = 5;
  layer.latent_attention->query_rank = 0;
  const LayerCost other = layer_costs(with_layers({layer}), {.sequences = 3, .sequence_length = 5})[1];
  EXPECT_EQ(other.forward.elementwise_bytes, tokens * 2 * ((2 * 8 + 9) * 2 + rotated * 2 + 2 * 3 * q + glu + sums));
  EXPECT_EQ(other.saved_bytes, 15U * (2 * (32 + 4 * 20 + 2 * 9 + 36) + 4 * (2 + 4 + 1)));
}

// k = 3, v = 5 and D = 4 heads; N = 2 * 2 * 3 + 4 * 5 = 32 channels (docs/design/cost-model.md).
TEST(LayerCosts, AGatedDeltaRuleHasTheCostsOfItsFormulas) {
  DecoderLayerConfig layer = tiny_layer();
  layer.attention = {};
  layer.delta_net = DeltaNetConfig{.num_key_heads = 2, .num_value_heads = 4, .key_dim = 3, .value_dim = 5, .taps = 4};
  const LayerCost cost = layer_costs(with_layers({layer}), {.sequences = 3, .sequence_length = 5})[1];
  const double tokens = 15, linear = 8 * (32 + 20 + 4 + 4) + 8 * 20 + 3 * 8 * 12;
  EXPECT_EQ(cost.forward.gemm_flops, 2 * tokens * linear);
  EXPECT_EQ(cost.forward.attention_flops, tokens * (256 * 2 * 3 + 4 * (256 * 5 + 6 * 3 * 5)));
  EXPECT_EQ(cost.backward.attention_flops, tokens * (256 * 2 * 3 + 4 * (384 * 3 + 640 * 5 + 14 * 3 * 5)));
  const double norms = 2 * 8 * 2, glu = 12 * 3, sums = 2 * 3 * 8;  // passes per token
  const double rule = 4 * 6 + 2 * 20, numbers = 256 * 4 + 64 * 2 + 4 * 15 / 64.0;
  EXPECT_EQ(cost.forward.elementwise_bytes, tokens * (2 * (norms + 32 * 2 + rule + 20 * 3 + glu + sums) + 4 * numbers));
  EXPECT_EQ(cost.saved_bytes,
            15U * (2 * (32 + 2 * 32 + 3 * 20 + 3 * 4 + 36) + 4 * 2 + 4 * 2 * 4) + 15 * 4 * 4 * 15 / 64);
}

// For each chunk of 64 tokens, a part of one counts as a whole one: two matrices, c, a state's
// gradient, two rows of values and the sums of a slice for each value head; K K^T, the lengths and two
// rows of keys for each key head.
TEST(LayerCosts, AGatedDeltaRuleHoldsTheScratchMemoryOfItsKernels) {
  DecoderLayerConfig layer = tiny_layer();
  layer.attention = {};
  layer.mlp.intermediate = 1;
  layer.delta_net = DeltaNetConfig{.num_key_heads = 2, .num_value_heads = 4, .key_dim = 3, .value_dim = 5, .taps = 4};
  const LayerCost cost = layer_costs(with_layers({layer}), {.sequences = 3, .sequence_length = 65})[1];
  const double chunks = 3 * 2, forward = 4 * 2 * 64 * 65 + 2 * 64 * 66;
  const double backward = forward + 4 * (3 * 5 + 1 + 2 * 64 * (5 + 1)) + 2 * 2 * 64 * 3;
  const double activations = 3 * 65 * 2 * (2 * 8 + 2 * 32 + 2 * 20);
  EXPECT_EQ(cost.forward_workspace_bytes, activations + chunks * 4 * forward);
  EXPECT_GE(cost.backward_workspace_bytes, activations + chunks * 4 * backward);
  EXPECT_LT(cost.backward_workspace_bytes, activations + chunks * 4 * backward + 8 * 64 * 4);
}

TEST(LayerCosts, WithLoraTheBaseHasNoWeightGradients) {
  const ModelConfig model = tiny_model();
  const LayerCost full = layer_costs(model, {.sequence_length = 5})[1];
  const LayerCost lora = layer_costs(model, {.sequence_length = 5, .parts = {.lora = {.rank = 2}}})[1];
  const double pairs = 2 * 5 * 2 * (16 + 12 + 12 + 16 + 3 * 20);
  EXPECT_EQ(lora.forward.gemm_flops, full.forward.gemm_flops + pairs);
  EXPECT_EQ(lora.backward.gemm_flops, full.forward.gemm_flops + 2 * pairs);
  EXPECT_EQ(lora.gradient_elements, 14U * 32) << "seven pairs, each tensor padded to 32 elements";
  EXPECT_GT(lora.frozen_bytes, 0U);
  const LayerCost head = layer_costs(model, {.sequence_length = 5, .parts = {.lora = {.rank = 2}}})[3];
  EXPECT_EQ(head.backward.gemm_flops, head.forward.gemm_flops) << "the frozen head gives its input's gradient only";
  EXPECT_EQ(head.gradient_bytes, 0U);
}

TEST(LayerCosts, WithoutTrainingThereIsNoBackward) {
  for (const LayerCost& cost : layer_costs(tiny_model(), {.is_trained = false})) {
    EXPECT_EQ(cost.backward.gemm_flops + cost.backward.attention_flops + cost.backward.elementwise_bytes, 0);
    EXPECT_EQ(cost.gradient_bytes + cost.saved_bytes + cost.backward_workspace_bytes, 0U);
  }
}

TEST(LayerCosts, TheHeadsLogitsAreNeverWhole) {
  const ModelConfig model = preset_config("qwen3-32b");
  const LayerCost head = layer_costs(model, {.sequence_length = 28'672}).back();
  const std::uint64_t logits = 28'672ULL * 151'936 * 2;
  const std::uint64_t weight_gradient = 151'936ULL * 5120 * 4;
  EXPECT_LT(head.backward_workspace_bytes, weight_gradient + logits / 8);
  const auto forward_bytes = [](std::int64_t chunk) {
    return 2ULL * (static_cast<std::uint64_t>(chunk) * 151'936 + 28'672ULL * 5120);
  };
  EXPECT_EQ(head.forward_workspace_bytes, forward_bytes(kGpuHeadChunkTokens)) << "as the loss on a GPU takes them";
  const LayerCost on_processor =
      layer_costs(model, {.sequence_length = 28'672, .head_chunk_tokens = kHeadChunkTokens}).back();
  EXPECT_EQ(on_processor.forward_workspace_bytes, forward_bytes(kHeadChunkTokens));
}

// The weights of a decoder layer of tiny_model(), and the bytes that its activations move in a
// backward of 15 tokens.
constexpr double kTinyWeights = 8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 12;
constexpr double kTinyMoves = 15 * (16 * 6 + 12 * 4 + 12 * 10 + 2 * 3 * 8 * 2);
constexpr std::uint64_t kTinyWorkspace = 15 * 2 * (2 * 8 + 3 * 12);

TEST(LayerCosts, AProductAddsItsWeightsGradientToTheSumItself) {
  const LayerCost cost = layer_costs(tiny_model(), {.sequences = 3, .sequence_length = 5})[1];
  EXPECT_EQ(cost.backward.elementwise_bytes, kTinyMoves + 8 * kTinyWeights + 12 * 2 * 8)
      << "autograd adds those of the norms";
  EXPECT_EQ(cost.backward_workspace_bytes, kTinyWorkspace + 4 * 8)
      << "a norm's gradient is the largest next to the sums";
}

TEST(LayerCosts, AProductThatAddsUpInFp16MakesTheGradientFirst) {
  const CostSettings settings{.sequences = 3, .sequence_length = 5, .accumulate = Accumulate::kFp16};
  const LayerCost cost = layer_costs(tiny_model(), settings)[1];
  EXPECT_EQ(cost.backward.elementwise_bytes, kTinyMoves + 10 * kTinyWeights + 12 * 2 * 8);
  EXPECT_EQ(cost.backward_workspace_bytes, kTinyWorkspace + 2 * 8 * 12) << "the MLP's";
  CostSettings wide = settings;
  wide.element_bytes = 4;
  const double in_fp16 = layer_costs(tiny_model(), wide)[1].backward.elementwise_bytes;
  wide.accumulate = Accumulate::kFp32;
  EXPECT_EQ(in_fp16, layer_costs(tiny_model(), wide)[1].backward.elementwise_bytes)
      << "products of fp32 add up in fp32";
}

TEST(LayerCosts, GradientsOfExpertsAreMadeAndClearedFirst) {
  const double experts = 6 * 3 * 8 * 12, others = 8 * 8 + 2 * 8 * 4 + 8 * 8 + 6 * 8;
  const LayerCost cost = layer_costs(tiny_moe(), {.sequence_length = 5})[1];
  const double moves = 5 * (16 * 6 + 12 * 4 + 2 * 12 * 10 + 2 * 8 * 10 + 2 * 3 * 8 * 2);
  EXPECT_EQ(cost.backward.elementwise_bytes, moves + 14 * experts + 8 * others + 12 * 2 * 8);
  EXPECT_EQ(cost.backward_workspace_bytes, 5U * 2 * (2 * 8 + 3 * 2 * 12) + 2 * 6 * 8 * 12);
}

TEST(LayerCosts, TheHeadsGradientIsAddedInPlaceUnlessThereAreSeveralChunks) {
  // Per element of the weight, in addition to the norm's bytes and those of the logits.
  const auto head_of = [](double tokens_per_chunk, Accumulate accumulate) {
    return layer_costs(tiny_model(), {.sequences = 3,
                                      .sequence_length = 5,
                                      .accumulate = accumulate,
                                      .head_chunk_tokens = static_cast<std::int64_t>(tokens_per_chunk)})
        .back();
  };
  const double weight = 8 * 10, others = 15 * (8 * 6 + 2 * 10 * 2) + 12 * 8;
  const auto workspace = [](std::uint64_t chunk) { return chunk * 10 * 2 + 15 * 8 * 2; };
  const LayerCost one = head_of(15, Accumulate::kFp32), three = head_of(7, Accumulate::kFp32),
                  fp16 = head_of(15, Accumulate::kFp16);
  EXPECT_EQ(one.backward.elementwise_bytes, others + 8 * weight);
  EXPECT_EQ(one.backward_workspace_bytes, workspace(15) + 4 * 8) << "the norm's gradient";
  EXPECT_EQ(three.backward.elementwise_bytes, others + (4 + 3 * 8 + 12) * weight)
      << "zeros, three products, autograd's addition";
  EXPECT_EQ(three.backward_workspace_bytes, workspace(7) + 4 * 8 * 10);
  EXPECT_EQ(fp16.backward.elementwise_bytes, others + (4 + 10 + 8 + 12) * weight) << "and divided late";
  EXPECT_EQ(fp16.backward_workspace_bytes, workspace(15) + 6 * 8 * 10);
}

TEST(LayerCosts, AnEmbeddingAddsTheRowsThatOccurInFp32) {
  const LayerCost fused = layer_costs(tiny_model(), {.sequence_length = 5}).front();
  EXPECT_EQ(fused.backward.elementwise_bytes, 5 * 8 * (2 + 8));
  const LayerCost eager = layer_costs(tiny_model(), {.sequence_length = 5, .elementwise = Elementwise::kEager}).front();
  EXPECT_EQ(eager.backward.elementwise_bytes, 5 * 8 * (2 + 4)) << "gradients of its dtype, as the published runs have";
}

TEST(LayerCosts, FusedOperationsMoveFewerBytesThanEagerOnes) {
  for (const std::string& name : preset_names()) {
    const LayerCost fused = layer_costs(preset_config(name), {})[1];
    const LayerCost eager = layer_costs(preset_config(name), {.elementwise = Elementwise::kEager})[1];
    EXPECT_LT(fused.forward.elementwise_bytes, eager.forward.elementwise_bytes) << name;
    EXPECT_EQ(fused.forward.gemm_flops, eager.forward.gemm_flops) << name;
  }
}

TEST(LayerCosts, ImpossibleSettingsAreRefusedWithTheNumbers) {
  expect_error(ExitCode::kUsage, {"costs of 0 sequences"}, [] { (void)layer_costs(tiny_model(), {.sequences = 0}); });
  expect_error(ExitCode::kUsage, {"of 0 tokens"}, [] { (void)layer_costs(tiny_model(), {.sequence_length = 0}); });
  expect_error(ExitCode::kUsage, {"3 bytes", "2 or 4"}, [] { (void)layer_costs(tiny_model(), {.element_bytes = 3}); });
  expect_error(ExitCode::kUsage, {"rank -1"},
               [] { (void)layer_costs(tiny_model(), {.parts = {.lora = {.rank = -1}}}); });
}

}  // namespace
}  // namespace rp
