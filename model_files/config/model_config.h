// model_files/config/model_config.h
// Describes a decoder-only transformer: everything that its mathematics, its sizes and its costs
// depend on, except the weights.
//
// The source of each family (model_files/config/families/) fills it from a config.json. All other
// code about models is written once, for this description: the tensors of its layers and its files
// (layer_tensors.h), the costs of layers (layer_costs.h) and the layers themselves
// (models/decoder.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "kernels/formulas.h"
#include "kernels/quantised_weights.h"

namespace rp {

// Rotary position embedding of a head, or of its first part, whose first and second halves form the
// rotated pairs.
struct RopeConfig {
  // kProportional rotates a share of the pairs of a whole head, those that turn fastest.
  enum class Kind : std::uint8_t { kNone, kPlain, kLinear, kLlama3, kYarn, kProportional };
  Kind kind = Kind::kPlain;
  double theta = 10'000;
  // The share of each head's elements that are rotated; these are its first ones. kProportional: the share of pairs.
  double rotated_part = 1;
  double factor = 1;  // all but kPlain: positions are stretched by this factor
  // kLlama3, kYarn: the number of positions that the model was first trained on.
  std::int64_t original_positions = 0;
  double low_freq_factor = 1, high_freq_factor = 4;  // kLlama3
  double beta_fast = 32, beta_slow = 1;              // kYarn
  bool truncates = true;                             // kYarn: the bounds of the ramp are rounded to whole numbers
  double attention_factor = 1;                       // kYarn: cosine and sine are multiplied by it
  bool rounds_table = true;  // cosine and sine are rounded to the dtype of activations; false: fp32

  bool operator==(const RopeConfig&) const = default;
};

struct AttentionConfig {
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;  // divides num_heads
  std::int64_t head_dim = 0;      // even; need not be hidden / num_heads
  double scale = 0;               // the scores are multiplied by it
  std::int64_t window = 0;        // positions that a token sees, including itself; 0: all up to itself
  bool qkv_bias = false;
  bool output_bias = false;
  // The norm of queries and keys before the rotation: over each head, or over all heads of a token
  // as one row.
  enum class HeadNorm : std::uint8_t { kNone, kEachHead, kWholeRow };
  HeadNorm head_norm = HeadNorm::kNone;
  bool normalises_values = false;  // values pass a norm over each head without a weight
  // There is no projection of values: they are the keys before their norm.
  bool values_are_keys = false;
  // The decoder layer, counted from 0, whose keys and values this one uses in place of its own. It is an earlier one
  // with the same kv heads and head_dim.
  std::optional<std::int64_t> keys_of_layer{};
  bool has_sinks = false;  // an additional logit for each query head
  // Each output is multiplied by the sigmoid of a gate. The queries' projection has the gates, too: for each head its
  // queries and then its gates.
  bool has_output_gate = false;
  RopeConfig rope{};
  // Queries at position p of their document are multiplied by 1 + growth * ln(1 + floor(p /
  // positions)) and rounded, after the rotation, which such a layer must have. 0: they are not
  // multiplied.
  double query_growth = 0;
  std::int64_t query_growth_positions = 0;

  [[nodiscard]] std::int64_t query_width() const { return num_heads * head_dim; }
  [[nodiscard]] std::int64_t kv_width() const { return num_kv_heads * head_dim; }
  // The number of elements of a head that are rotated, as transformers computes it.
  [[nodiscard]] std::int64_t rotated_dim() const {
    if (rope.kind == RopeConfig::Kind::kProportional) return head_dim;
    return static_cast<std::int64_t>(static_cast<double>(head_dim) * rope.rotated_part);
  }
  bool operator==(const AttentionConfig&) const = default;
};

// Multi-head latent attention (arXiv 2405.04434), as in DeepSeek V3: the keys and values of all heads are computed from
// a row of kv_rank elements. A head of a query or key has a plain part and then a rotated one, which all heads of a
// key have in common.
struct LatentAttentionConfig {
  std::int64_t num_heads = 0;
  std::int64_t query_rank = 0;  // queries are computed from a row of this many elements; 0: from the layer's input
  std::int64_t kv_rank = 0;
  std::int64_t plain_dim = 0, rotated_dim = 0, value_dim = 0;  // of a head; rotated_dim is even
  double scale = 0;                                            // the scores are multiplied by it
  bool has_bias = false;         // the layers to and from the hidden size have biases, except the one of query_rank 0
  bool pairs_neighbours = true;  // elements 2i and 2i + 1 of the rotated part form a pair; false: its halves do
  double norm_epsilon = 1e-6;    // of the norms of the two rows
  RopeConfig rope{};

  [[nodiscard]] std::int64_t query_dim() const { return plain_dim + rotated_dim; }
  [[nodiscard]] std::int64_t query_width() const { return num_heads * query_dim(); }
  // The plain parts of the keys, and the values.
  [[nodiscard]] std::int64_t kv_width() const { return num_heads * (plain_dim + value_dim); }
  [[nodiscard]] std::int64_t value_width() const { return num_heads * value_dim; }
  bool operator==(const LatentAttentionConfig&) const = default;
};

// A gated delta rule (arXiv 2412.06464) with a short causal convolution before it, as in Qwen3.5. Each value head keeps
// a state [key_dim, value_dim] of its document, so the time is linear in the length.
struct DeltaNetConfig {
  std::int64_t num_key_heads = 0;
  std::int64_t num_value_heads = 0;         // a multiple of num_key_heads: value head i uses key head i / (their ratio)
  std::int64_t key_dim = 0, value_dim = 0;  // of a head
  std::int64_t taps = 0;                    // positions that the convolution sees, including the current one

  [[nodiscard]] std::int64_t key_width() const { return num_key_heads * key_dim; }
  [[nodiscard]] std::int64_t value_width() const { return num_value_heads * value_dim; }
  // The channels of the convolution: queries, keys, values.
  [[nodiscard]] std::int64_t convolved_width() const { return 2 * key_width() + value_width(); }
  bool operator==(const DeltaNetConfig&) const = default;
};

// An MLP that every token passes through in addition to its experts.
struct SharedExpertConfig {
  std::string name{};  // of the module, such as "mlp.shared_expert"
  std::int64_t intermediate = 0;
  std::string post_norm{};  // the name of a norm of its output; empty: none
  bool has_gate = false;    // its output is multiplied by the sigmoid of a linear layer "NAME_gate" with one output

  bool operator==(const SharedExpertConfig&) const = default;
};

// A set of MLPs, of which each token uses a few.
struct ExpertsConfig {
  std::int64_t num = 0;
  std::int64_t per_token = 0;
  // kSoftmaxFirst: softmax over all experts, then the largest; kLargestFirst: softmax over the
  // largest. kSigmoid (arXiv 2412.19437): the sigmoid of each logit, in fp32; the largest are found
  // after a correction of each expert has been added, which keeps the experts evenly loaded and does
  // not count in the weights. kScaledInput: kSoftmaxFirst of the router's own norm, without a weight, times a vector
  // and 1 / sqrt(hidden); the weights are fp32, and are multiplied by a number of each expert at the end.
  enum class Router : std::uint8_t { kSoftmaxFirst, kLargestFirst, kSigmoid, kScaledInput };
  Router router = Router::kSoftmaxFirst;
  bool normalises = false;  // all but kLargestFirst: the weights of a token's experts are divided by their sum
  // kSigmoid: experts are in groups of equal size. A token's experts are in groups_per_token of them,
  // those with the largest sums of their two largest experts.
  std::int64_t num_groups = 1, groups_per_token = 1;
  double weight_scale = 1;               // kSigmoid: the weights are multiplied by it at the end
  double balance_coefficient = 0;        // of the auxiliary loss
  std::string name = "mlp.experts";      // of the module
  std::string router_name = "mlp.gate";  // of its linear layer
  // The name of a norm that the experts have instead of the MLP's. Router and norm then read the sum that the MLP's
  // norm reads. Empty: none.
  std::string norm{};
  std::string post_norm{};  // the name of a norm of the experts' output; empty: none
  bool is_interleaved =
      false;  // the layout of files with all experts in one tensor: ExpertLayout::kInterleaved, else kFused
  std::optional<SharedExpertConfig> shared{};

  // Returns the name of the corrections of kSigmoid, as in transformers.
  [[nodiscard]] std::string correction_name() const { return router_name + ".e_score_correction_bias"; }
  // The names of the vector and of the experts' numbers of kScaledInput.
  static constexpr const char *kRouterScale = "router.scale", *kExpertScale = "router.per_expert_scale";
  bool operator==(const ExpertsConfig&) const = default;
};

struct MlpConfig {
  std::int64_t intermediate = 0;  // of each expert if there are experts
  Activation activation = Activation::kSilu;
  bool has_bias = false;  // also applies to the router
  std::optional<ExpertsConfig> experts{};

  // The number of MLPs, and so of rows, that each token passes through.
  [[nodiscard]] std::int64_t uses_per_token() const { return experts ? experts->per_token : 1; }
  bool operator==(const MlpConfig&) const = default;
};

// What a decoder layer reads of each token in addition to x: a row of a table of its own, and a projection of the
// token's embedding, as in Gemma 4. The layer adds post(projection(act(gate(x)) * input)) to x, with the MLP's
// activation. In files, the tables of all layers are one tensor, and so are the projections.
struct PerLayerInputConfig {
  std::int64_t width = 0;
  std::int64_t vocabulary = 0;  // rows of the table

  bool operator==(const PerLayerInputConfig&) const = default;
};

// A decoder layer: x += post(attention(pre(x))); x += post(mlp(pre(x))); then what a per-layer input
// gives, and a factor. A norm whose name is empty does not exist.
struct DecoderLayerConfig {
  AttentionConfig attention{};
  // One of these may take the place of attention.
  std::optional<LatentAttentionConfig> latent_attention{};
  std::optional<DeltaNetConfig> delta_net{};
  MlpConfig mlp{};
  std::string attention_norm = "input_layernorm", mlp_norm = "post_attention_layernorm";
  std::string attention_post_norm{}, mlp_post_norm{};
  std::optional<PerLayerInputConfig> per_layer_input{};  // all layers of a model have it, or none
  bool has_scalar = false;                               // x is multiplied by a number at the end, which is not trained

  bool operator==(const DecoderLayerConfig&) const = default;
};

// The prefixes of the names of a model's tensors.
struct NamePrefixes {
  std::string body = "model.";  // of the embedding, the decoder layers and the final norm
  std::string head{};           // of "lm_head.weight"

  bool operator==(const NamePrefixes&) const = default;
};

// Describes a model. Every value is within the bounds in model_config.cc and the families, and the
// values are consistent with each other.
struct ModelConfig {
  std::string name{};     // of the preset or the folder
  std::string family{};   // model_type, such as "qwen3"
  std::string wrapper{};  // model_type of the multimodal model whose text part this is, such as "gemma3"; empty if the
                          // model is a text model
  NamePrefixes file_names{};    // in weight files
  NamePrefixes module_names{};  // in memory: the names in adapters, and those that select what is trained
  std::int64_t hidden = 0;
  std::int64_t vocabulary = 0;
  std::int64_t max_sequence_length = 0;
  std::int64_t padding_id = -1;  // the token whose embedding is not trained, as in transformers; -1: none
  double norm_epsilon = 1e-6;
  NormKind norm = NormKind::kRounded;
  double embedding_scale = 1;  // rounded to the activations' dtype
  double logit_softcap = 0;    // c: logits are c * tanh(logits / c); 0: none
  bool tied_head = false;      // the LM head is the embedding
  // Layers in files after the last one, which predict further tokens. They are kept and not trained.
  std::int64_t num_further_layers = 0;

  std::optional<DType> dtype{};  // as the file states: one of the dtypes of weights
  std::string quantization{};    // quantisation method of the files' weights, such as "mxfp4"; empty: not quantised
  // The format of the quantised weights; nullopt: none are, or in a format that is not read.
  std::optional<WeightFormat> quantised_format{};
  // The exceptions: linear layers that are not quantised (quantization_config.h, is_quantised()).
  std::vector<std::string> unquantised_layers{};
  std::vector<DecoderLayerConfig> layers{};

  [[nodiscard]] std::int64_t num_layers() const { return static_cast<std::int64_t>(layers.size()); }
  bool operator==(const ModelConfig&) const = default;
};

inline constexpr const char* kConfigFile = "config.json";

// Reads the config.json of a model's folder. Rotary parameters may have the form of transformers 5
// (rope_parameters) or the earlier one (rope_theta, rope_scaling); if both are present they must
// agree. Settings that would change the model's mathematics and that its family does not support
// are errors. Unknown keys are ignored, as every reader of these files must do. For a multimodal
// model the text part is read. Throws rp::Error (kBadInput) naming the file, the key and what it
// must be; for an unknown family, the nearest known one.
[[nodiscard]] ModelConfig read_model_config(const std::filesystem::path& folder);

// Returns everything that a layer of the sequential model is constructed from, as one line: the
// whole config except its name and the other decoder layers. Layer 0 is the embedding, num_layers()
// + 1 the head.
[[nodiscard]] std::string text_of_layer(const ModelConfig& config, std::int64_t layer);

// Returns the sorted names of the presets. model_files/config/presets.json has them in the form of
// config.json.
[[nodiscard]] std::vector<std::string> preset_names();

// Throws rp::Error (kUsage) for an unknown name, with the names of all presets and the nearest one.
[[nodiscard]] ModelConfig preset_config(const std::string& name);

// Returns the config of a model as a user names it: "preset:NAME", a folder, or the name of a
// preset. A folder takes precedence over a preset of the same name.
[[nodiscard]] ModelConfig config_of_model(const std::string& folder_or_preset);

}  // namespace rp
