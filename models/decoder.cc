#include "models/decoder.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "common/bad_input.h"
#include "common/text.h"
#include "model_files/layer_tensors.h"
#include "model_files/part_selection.h"
#include "models/border.h"
#include "models/feed_forward.h"
#include "models/layer_parameters.h"
#include "models/layers/documents.h"
#include "models/layers/embedding.h"
#include "models/layers/expert_balance.h"
#include "models/layers/kernel_call.h"
#include "models/layers/ops.h"
#include "models/per_layer_input.h"
#include "models/token_mixer.h"
#include "roundpipe/recompute.h"

namespace rp::models {

namespace {

class Embedding : public Layer {
 public:
  Embedding(const ModelConfig& config, const LayerTensors& tensors, at::ScalarType dtype)
      : padding_id_(config.padding_id),
        scale_(rounded_scale(config.embedding_scale, dtype)),
        above_(border_above(config, 0)),
        parameters_(tensors, {}, dtype) {}

  std::vector<NamedParameter> parameters() override { return parameters_.all(); }

  Tensors forward(const Tensors& inputs) override {
    Border border = Border::of(inputs, {});
    border.ids_bt = inputs.at(0);
    const at::Tensor rows_bth = embed(parameters_.all()[0].value, border.ids_bt, padding_id_);
    border.x_bth = scale_ == 1 ? rows_bth : rows_bth * scale_;
    border.embeddings_bth = border.x_bth;
    if (!border.documents_bk.defined() || !runs_on_gpu(rows_bth)) return border.tensors(above_);
    // Code on a GPU cannot throw. Therefore sequences with wrong document lengths become NaN, just as
    // wrong tokens do.
    const at::Tensor wrong_b11 = have_wrong_lengths(border.documents_bk, rows_bth.size(1)).view({-1, 1, 1});
    border.x_bth = border.x_bth.masked_fill(wrong_b11, std::numeric_limits<double>::quiet_NaN());
    return border.tensors(above_);
  }

 private:
  std::int64_t padding_id_;
  double scale_;  // rounded to the activations' dtype
  LayerBorder above_;
  LayerParameters parameters_;
};

std::unique_ptr<TokenMixer> make_mixer(const DecoderLayerConfig& layer, const Norm& norm,
                                       const LayerParameters& parameters) {
  if (layer.delta_net) return make_delta_net(*layer.delta_net, norm, parameters);
  if (layer.latent_attention) return make_latent_attention(*layer.latent_attention, norm, parameters);
  return make_attention(layer.attention, norm, parameters);
}

class DecoderLayer : public Layer {
 public:
  // `number` is counted from 0.
  DecoderLayer(const ModelConfig& config, std::int64_t number, const TrainedParts& parts, at::ScalarType dtype)
      : DecoderLayer(config, config.layers.at(number), number, parts, dtype) {}

  DecoderLayer(const ModelConfig& config, const DecoderLayerConfig& layer, std::int64_t number,
               const TrainedParts& parts, at::ScalarType dtype)
      : dropout_(parts.lora.dropout),
        below_(border_above(config, number)),
        above_(border_above(config, number + 1)),
        keys_layer_(layer.attention.keys_of_layer.value_or(number)),
        shares_keys_(layer.attention.keys_of_layer || std::ranges::binary_search(above_.key_layers, number)),
        norm_{.epsilon = config.norm_epsilon, .kind = config.norm},
        parameters_(tensors_of_layer(config, number + 1, parts), parts.lora, dtype),
        mixer_(make_mixer(layer, norm_, parameters_)),
        mlp_(make_feed_forward(layer.mlp, norm_, parameters_)),
        attention_norm_h_(parameters_.tensor(layer.attention_norm + ".weight")),
        attention_post_norm_h_(parameters_.tensor(layer.attention_post_norm + ".weight")),
        mlp_norm_h_(parameters_.tensor(layer.mlp_norm + ".weight")),
        mlp_post_norm_h_(parameters_.tensor(layer.mlp_post_norm + ".weight")),
        scalar_(parameters_.tensor("layer_scalar")) {
    if (!layer.per_layer_input) return;
    input_.emplace(config, layer, parameters_, dtype);
    trains_embedding_ = PartSelection(parts).trains(embedding_in_model(config));
  }

  std::vector<NamedParameter> parameters() override { return parameters_.all(); }

  void begin_task() override { parameters_.begin_task(); }
  void end_task() override { parameters_.end_task(); }

  void train(bool on) override {
    mixer_->set_dropout(on ? dropout_ : 0);
    mlp_->set_dropout(on ? dropout_ : 0);
    if (input_) input_->set_dropout(on ? dropout_ : 0);
  }

  Tensors forward(const Tensors& inputs) override {
    Border border = Border::of(inputs, below_);
    // Otherwise each layer would compute a gradient, and pass it on, that no layer reads.
    if (input_ && !trains_embedding_) border.embeddings_bth = border.embeddings_bth.detach();
    const at::Tensor mixed_bth = norm_(mixed(border), attention_post_norm_h_);
    const auto [y_bth, normal_bth] = mlp_norm_h_.defined()
                                         ? add_rms_norm(border.x_bth, mixed_bth, mlp_norm_h_, norm_.epsilon, norm_.kind)
                                         : unnormalised(border.x_bth + mixed_bth);
    // If a norm follows, its backward pass reads the MLP's output.
    const MixtureOutput output = mlp_->forward(normal_bth, y_bth, outputs_are_read() || mlp_post_norm_h_.defined());
    border.x_bth = y_bth + norm_(output.y, mlp_post_norm_h_);
    border.balance = sum_of(border.balance, output.balance);
    if (input_) border.x_bth = input_->added_to(border.x_bth, border.ids_bt, border.embeddings_bth);
    if (scalar_.defined()) border.x_bth = border.x_bth * scalar_;
    return border.tensors(above_);
  }

 private:
  // Returns the mixer's output. Puts keys and values that other layers use into the border.
  [[nodiscard]] at::Tensor mixed(Border& border) const {
    return mixer_->forward(norm_(border.x_bth, attention_norm_h_), border.documents_bk,
                           shares_keys_ ? &border.keys[keys_layer_] : nullptr);
  }

  static NormalisedSum unnormalised(const at::Tensor& sum) { return {sum, sum}; }

  const double dropout_;
  const LayerBorder below_, above_;
  const std::int64_t keys_layer_;  // whose keys and values this layer uses
  const bool shares_keys_;         // with other layers
  const Norm norm_;
  LayerParameters parameters_;
  const std::unique_ptr<TokenMixer> mixer_;
  const std::unique_ptr<FeedForward> mlp_;
  // Undefined if the model has no such norm.
  const at::Tensor attention_norm_h_, attention_post_norm_h_, mlp_norm_h_, mlp_post_norm_h_;
  std::optional<PerLayerInput> input_{};
  bool trains_embedding_ = false;
  const at::Tensor scalar_;  // [1]; undefined if the layer has none
};

class Head : public Layer {
 public:
  Head(const ModelConfig& config, const LayerTensors& tensors, at::ScalarType dtype)
      : norm_{.epsilon = config.norm_epsilon, .kind = config.norm}, parameters_(tensors, {}, dtype) {}

  std::vector<NamedParameter> parameters() override { return parameters_.all(); }

  Tensors forward(const Tensors& inputs) override {
    const ExpertBalance balance = Border::of(inputs, {}).balance;
    const at::Tensor x_bth = norm_(inputs.at(0), parameters_.all()[0].value);
    const at::Tensor& weight_vh = parameters_.all()[1].value;
    if (!balance.is_defined()) return {x_bth, weight_vh};
    return {x_bth, weight_vh, balance.probabilities_e, balance.counts};
  }

 private:
  Norm norm_;
  LayerParameters parameters_;
};

}  // namespace

std::unique_ptr<Layer> make_embedding(const ModelConfig& config, const TrainedParts& parts, at::ScalarType dtype) {
  return std::make_unique<Embedding>(config, tensors_of_layer(config, 0, parts), dtype);
}

std::unique_ptr<Layer> make_decoder_layer(const ModelConfig& config, std::int64_t number, const TrainedParts& parts,
                                          at::ScalarType dtype) {
  return std::make_unique<DecoderLayer>(config, number, parts, dtype);
}

std::unique_ptr<Layer> make_head(const ModelConfig& config, const TrainedParts& parts, at::ScalarType dtype) {
  return std::make_unique<Head>(config, tensors_of_layer(config, config.num_layers() + 1, parts), dtype);
}

std::optional<std::string> what_is_missing(const ModelConfig& config) {
  if (!config.quantization.empty() && !config.quantised_format)
    return cat("weights quantised by ", quoted_name(config.quantization), "; convert them to bf16 first");
  return std::nullopt;
}

}  // namespace rp::models
