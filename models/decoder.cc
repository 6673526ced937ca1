#include "models/decoder.h"

#include <ATen/ATen.h>

#include <limits>
#include <map>

#include "common/bad_input.h"
#include "common/text.h"
#include "model_files/layer_tensors.h"
#include "models/layers/attention.h"
#include "models/layers/documents.h"
#include "models/layers/embedding.h"
#include "models/layers/expert_balance.h"
#include "models/layers/experts.h"
#include "models/layers/kernel_call.h"
#include "models/layers/linear.h"
#include "models/layers/ops.h"
#include "models/layers/rotary.h"
#include "roundpipe/recompute.h"

namespace rp::models {

namespace {

// The data that one layer passes to the next.
struct Border {
  at::Tensor x_bth;
  at::Tensor documents_bk{};  // undefined: each sequence is one document
  ExpertBalance balance{};    // sum over the layers below

  static Border of(const Tensors& tensors) {
    const auto at_place = [&](std::size_t place) { return tensors.size() > place ? tensors[place] : at::Tensor(); };
    return {tensors.at(0), at_place(1), {at_place(2), at_place(3)}};
  }

  [[nodiscard]] Tensors tensors() const {
    if (balance.is_defined()) return {x_bth, documents_bk, balance.probabilities_e, balance.counts};
    return documents_bk.defined() ? Tensors{x_bth, documents_bk} : Tensors{x_bth};
  }
};

// Makes placeholders for the tensors of a layer, in their order.
std::vector<NamedParameter> placeholders(const LayerTensors& layer, at::ScalarType dtype) {
  std::vector<NamedParameter> parameters;
  for (const LayerTensor& tensor : layer.tensors)
    parameters.push_back({tensor.name, placeholder(tensor.shape, dtype).requires_grad_(tensor.is_trained)});
  return parameters;
}

class Embedding : public Layer {
 public:
  Embedding(const ModelConfig& config, const LayerTensors& tensors, at::ScalarType dtype)
      : padding_id_(config.padding_id),
        scale_(at::scalar_tensor(config.embedding_scale, at::kDouble).to(dtype).item<double>()),
        parameters_(placeholders(tensors, dtype)) {}

  std::vector<NamedParameter> parameters() override { return parameters_; }

  Tensors forward(const Tensors& inputs) override {
    Border border = Border::of(inputs);
    const at::Tensor rows_bth = embed(parameters_[0].value, inputs.at(0), padding_id_);
    border.x_bth = scale_ == 1 ? rows_bth : rows_bth * scale_;
    if (!border.documents_bk.defined() || !runs_on_gpu(rows_bth)) return border.tensors();
    // Code on a GPU cannot throw. Therefore sequences with wrong document lengths become NaN, just as
    // wrong tokens do.
    const at::Tensor wrong_b11 = have_wrong_lengths(border.documents_bk, rows_bth.size(1)).view({-1, 1, 1});
    border.x_bth = border.x_bth.masked_fill(wrong_b11, std::numeric_limits<double>::quiet_NaN());
    return border.tensors();
  }

 private:
  std::int64_t padding_id_;
  double scale_;  // rounded to the activations' dtype
  std::vector<NamedParameter> parameters_;
};

class DecoderLayer : public Layer {
 public:
  DecoderLayer(const ModelConfig& config, const DecoderLayerConfig& layer, const LayerTensors& tensors,
               const LoraSettings& lora, at::ScalarType dtype)
      : config_(layer),
        lora_(lora),
        epsilon_(config.norm_epsilon),
        norm_kind_(config.norm),
        parameters_(placeholders(tensors, dtype)) {
    if (rotates()) frequencies_ = rotary_frequencies(layer.attention.rope, layer.attention.head_dim);
    for (const NamedParameter& parameter : parameters_) by_name_.emplace(parameter.name, parameter.value);
    for (const char* name : {"q_proj", "k_proj", "v_proj"}) qkv_.push_back(linear_named(cat("self_attn.", name)));
    output_ = linear_named("self_attn.o_proj");
    if (layer.mlp.experts) {
      experts_ = {.router = linear_named(layer.mlp.experts->router_name),
                  .gate = linear_named("mlp.experts.gate_proj"),
                  .up = linear_named("mlp.experts.up_proj"),
                  .down = linear_named("mlp.experts.down_proj")};
    } else {
      for (const char* name : {"gate_proj", "up_proj"}) gate_up_.push_back(linear_named(cat("mlp.", name)));
      down_ = linear_named("mlp.down_proj");
    }
    attention_norm_h_ = named(config_.attention_norm + ".weight");
    attention_post_norm_h_ = named(config_.attention_post_norm + ".weight");
    mlp_norm_h_ = named(config_.mlp_norm + ".weight");
    mlp_post_norm_h_ = named(config_.mlp_post_norm + ".weight");
    query_norm_ = named("self_attn.q_norm.weight");
    key_norm_ = named("self_attn.k_norm.weight");
    sinks_n_ = named("self_attn.sinks");
  }

  std::vector<NamedParameter> parameters() override { return parameters_; }

  void train(bool on) override {
    const double dropout = on ? lora_.dropout : 0;
    for (LinearWeights& weights : qkv_) weights.lora.dropout = dropout;
    for (LinearWeights& weights : gate_up_) weights.lora.dropout = dropout;
    for (LinearWeights* weights : {&output_, &down_, &experts_.router, &experts_.gate, &experts_.up, &experts_.down}) {
      weights->lora.dropout = dropout;
    }
  }

  Tensors forward(const Tensors& inputs) override {
    const Border below = Border::of(inputs);
    const at::Tensor& x_bth = below.x_bth;
    const at::Tensor attended_bth =
        norm(attention(norm(x_bth, attention_norm_h_), below.documents_bk), attention_post_norm_h_);
    const auto [y_bth, normal_bth] = mlp_norm_h_.defined()
                                         ? add_rms_norm(x_bth, attended_bth, mlp_norm_h_, epsilon_, norm_kind_)
                                         : unnormalised(x_bth + attended_bth);
    const MixtureOutput mixed = mlp(normal_bth);
    return Border{y_bth + norm(mixed.y, mlp_post_norm_h_), below.documents_bk, sum_of(below.balance, mixed.balance)}
        .tensors();
  }

 private:
  // Returns an undefined tensor if there is no parameter of this name.
  [[nodiscard]] at::Tensor named(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? at::Tensor() : found->second;
  }
  [[nodiscard]] LinearWeights linear_named(const std::string& name) const {
    return {.weight_oi = named(name + ".weight"), .bias_o = named(name + ".bias"), .lora = pair_named(name)};
  }
  [[nodiscard]] LoraPair pair_named(const std::string& name) const {
    return {.a_ri = named(name + ".lora_A.weight"),
            .b_or = named(name + ".lora_B.weight"),
            .magnitude_o = named(name + ".lora_magnitude_vector"),
            .scale = lora_.scale(),
            .dropout = lora_.dropout};
  }

  // Returns x itself if the model has no such norm.
  [[nodiscard]] at::Tensor norm(const at::Tensor& x, const at::Tensor& weight) const {
    return weight.defined() ? rms_norm(x, weight, epsilon_, norm_kind_) : x;
  }
  static NormalisedSum unnormalised(const at::Tensor& sum) { return {sum, sum}; }

  // Splits a projection [b, t, count * d] into heads, and normalises them if the model does.
  [[nodiscard]] at::Tensor heads(const at::Tensor& x, std::int64_t count, const at::Tensor& weight) const {
    const bool is_whole_row = config_.attention.head_norm == AttentionConfig::HeadNorm::kWholeRow;
    const at::Tensor rows = is_whole_row ? norm(x, weight) : x;
    const at::Tensor x_btnd = rows.view({x.size(0), x.size(1), count, config_.attention.head_dim});
    return is_whole_row ? x_btnd : norm(x_btnd, weight);
  }

  [[nodiscard]] bool rotates() const { return config_.attention.rope.kind != RopeConfig::Kind::kNone; }

  [[nodiscard]] at::Tensor attention(const at::Tensor& x_bth, const at::Tensor& documents_bk) {
    const std::vector<at::Tensor> qkv = linears(x_bth, qkv_);
    const AttentionConfig& attention = config_.attention;
    at::Tensor q_btnd = heads(qkv[0], attention.num_heads, query_norm_);
    at::Tensor k_btmd = heads(qkv[1], attention.num_kv_heads, key_norm_);
    const at::Tensor v_btmd = qkv[2].view({x_bth.size(0), x_bth.size(1), attention.num_kv_heads, attention.head_dim});
    if (rotates()) {
      const std::int64_t length = x_bth.size(1);
      RotaryTable table = rotary_table(length, x_bth);
      std::optional<RotaryTable> of_queries =
          growing_table(table, attention.query_growth, attention.query_growth_positions, x_bth.scalar_type());
      if (documents_bk.defined()) {
        const at::Tensor positions_bt = document_positions(documents_bk, length);
        table = rotary_table_at(table, positions_bt);
        if (of_queries) of_queries = rotary_table_at(*of_queries, positions_bt);
      }
      q_btnd = rotate_heads(q_btnd, of_queries ? *of_queries : table);
      k_btmd = rotate_heads(k_btmd, table);
    }
    const AttentionRule rule{
        .scale = attention.scale, .window = attention.window, .sinks_n = sinks_n_, .documents_bk = documents_bk};
    return linear(causal_attention(q_btnd, k_btmd, v_btmd, rule).flatten(2), output_);
  }

  // Returns no balance if the layer has no experts.
  [[nodiscard]] MixtureOutput mlp(const at::Tensor& x_bth) const {
    if (config_.mlp.experts) return mixture_of_experts(x_bth, experts_, *config_.mlp.experts, config_.mlp.activation);
    const std::vector<at::Tensor> gate_up = linears(x_bth, gate_up_);
    // If a norm follows, its backward pass reads the product, so the product cannot be left out.
    return {linear(glu(gate_up[0], gate_up[1], config_.mlp.activation), down_,
                   outputs_are_read() || mlp_post_norm_h_.defined()),
            {}};
  }

  // Returns the table for `length` positions, with the dtype and device of x. On the CPU it is
  // computed again only if the length or dtype of the microbatches changes. On a GPU it is always
  // computed again, because a stored table would occupy memory for every layer.
  RotaryTable rotary_table(std::int64_t length, const at::Tensor& x) {
    const at::ScalarType dtype = config_.attention.rope.rounds_table ? x.scalar_type() : at::kFloat;
    const double factor = config_.attention.rope.attention_factor;
    if (frequencies_.device() != x.device()) frequencies_ = frequencies_.to(x.device(), /*non_blocking=*/true);
    if (runs_on_gpu(x)) return make_rotary_table(frequencies_, length, dtype, factor);
    if (!table_ || table_length_ != length || table_dtype_ != dtype) {
      table_ = make_rotary_table(frequencies_, length, dtype, factor);
      table_length_ = length;
      table_dtype_ = dtype;
    }
    return *table_;
  }

  const DecoderLayerConfig config_;
  const LoraSettings lora_;
  const double epsilon_;
  const NormKind norm_kind_;
  const std::vector<NamedParameter> parameters_;
  std::map<std::string, at::Tensor> by_name_;
  std::vector<LinearWeights> qkv_, gate_up_;
  LinearWeights output_, down_;
  ExpertWeights experts_;
  // Undefined if the model has no such norm.
  at::Tensor attention_norm_h_, attention_post_norm_h_, mlp_norm_h_, mlp_post_norm_h_;
  at::Tensor query_norm_, key_norm_;  // undefined, [d] or [n d], and [d] or [m d]
  at::Tensor sinks_n_;                // undefined if there are none
  at::Tensor frequencies_;            // fp32 [d / 2]

  std::optional<RotaryTable> table_;
  std::int64_t table_length_ = 0;
  at::ScalarType table_dtype_ = at::kFloat;
};

class Head : public Layer {
 public:
  Head(const ModelConfig& config, const LayerTensors& tensors, at::ScalarType dtype)
      : epsilon_(config.norm_epsilon), norm_kind_(config.norm), parameters_(placeholders(tensors, dtype)) {}

  std::vector<NamedParameter> parameters() override { return parameters_; }

  Tensors forward(const Tensors& inputs) override {
    const ExpertBalance balance = Border::of(inputs).balance;
    const at::Tensor x_bth = rms_norm(inputs.at(0), parameters_[0].value, epsilon_, norm_kind_);
    if (!balance.is_defined()) return {x_bth, parameters_[1].value};
    return {x_bth, parameters_[1].value, balance.probabilities_e, balance.counts};
  }

 private:
  double epsilon_;
  NormKind norm_kind_;
  std::vector<NamedParameter> parameters_;
};

}  // namespace

std::unique_ptr<Layer> make_embedding(const ModelConfig& config, const TrainedParts& parts, at::ScalarType dtype) {
  return std::make_unique<Embedding>(config, tensors_of_layer(config, 0, parts), dtype);
}

std::unique_ptr<Layer> make_decoder_layer(const ModelConfig& config, std::int64_t number, const TrainedParts& parts,
                                          at::ScalarType dtype) {
  const DecoderLayerConfig& layer = config.layers.at(number);
  return std::make_unique<DecoderLayer>(config, layer, tensors_of_layer(config, number + 1, parts), parts.lora, dtype);
}

std::unique_ptr<Layer> make_head(const ModelConfig& config, const TrainedParts& parts, at::ScalarType dtype) {
  return std::make_unique<Head>(config, tensors_of_layer(config, config.num_layers() + 1, parts), dtype);
}

std::optional<std::string> what_is_missing(const ModelConfig& config) {
  if (!config.quantization.empty() && config.quantization != "mxfp4")
    return cat("weights quantised by ", quoted_name(config.quantization), "; convert them to bf16 first");
  return std::nullopt;
}

}  // namespace rp::models
