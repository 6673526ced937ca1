#include "models/decoder.h"

#include <ATen/ATen.h>

#include <limits>

#include "common/bad_input.h"
#include "common/text.h"
#include "model_files/layer_tensors.h"
#include "models/feed_forward.h"
#include "models/layer_parameters.h"
#include "models/layers/documents.h"
#include "models/layers/embedding.h"
#include "models/layers/expert_balance.h"
#include "models/layers/kernel_call.h"
#include "models/layers/ops.h"
#include "models/token_mixer.h"
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

class Embedding : public Layer {
 public:
  Embedding(const ModelConfig& config, const LayerTensors& tensors, at::ScalarType dtype)
      : padding_id_(config.padding_id),
        scale_(at::scalar_tensor(config.embedding_scale, at::kDouble).to(dtype).item<double>()),
        parameters_(tensors, {}, dtype) {}

  std::vector<NamedParameter> parameters() override { return parameters_.all(); }

  Tensors forward(const Tensors& inputs) override {
    Border border = Border::of(inputs);
    const at::Tensor rows_bth = embed(parameters_.all()[0].value, inputs.at(0), padding_id_);
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
  DecoderLayer(const ModelConfig& config, const DecoderLayerConfig& layer, const LayerTensors& tensors,
               const LoraSettings& lora, at::ScalarType dtype)
      : dropout_(lora.dropout),
        norm_{.epsilon = config.norm_epsilon, .kind = config.norm},
        parameters_(tensors, lora, dtype),
        mixer_(make_mixer(layer, norm_, parameters_)),
        mlp_(make_feed_forward(layer.mlp, parameters_)),
        attention_norm_h_(parameters_.tensor(layer.attention_norm + ".weight")),
        attention_post_norm_h_(parameters_.tensor(layer.attention_post_norm + ".weight")),
        mlp_norm_h_(parameters_.tensor(layer.mlp_norm + ".weight")),
        mlp_post_norm_h_(parameters_.tensor(layer.mlp_post_norm + ".weight")) {}

  std::vector<NamedParameter> parameters() override { return parameters_.all(); }

  void begin_task() override { parameters_.begin_task(); }
  void end_task() override { parameters_.end_task(); }

  void train(bool on) override {
    mixer_->set_dropout(on ? dropout_ : 0);
    mlp_->set_dropout(on ? dropout_ : 0);
  }

  Tensors forward(const Tensors& inputs) override {
    const Border below = Border::of(inputs);
    const at::Tensor& x_bth = below.x_bth;
    const at::Tensor mixed_bth =
        norm_(mixer_->forward(norm_(x_bth, attention_norm_h_), below.documents_bk), attention_post_norm_h_);
    const auto [y_bth, normal_bth] = mlp_norm_h_.defined()
                                         ? add_rms_norm(x_bth, mixed_bth, mlp_norm_h_, norm_.epsilon, norm_.kind)
                                         : unnormalised(x_bth + mixed_bth);
    // If a norm follows, its backward pass reads the MLP's output.
    const MixtureOutput output = mlp_->forward(normal_bth, outputs_are_read() || mlp_post_norm_h_.defined());
    return Border{y_bth + norm_(output.y, mlp_post_norm_h_), below.documents_bk, sum_of(below.balance, output.balance)}
        .tensors();
  }

 private:
  static NormalisedSum unnormalised(const at::Tensor& sum) { return {sum, sum}; }

  const double dropout_;
  const Norm norm_;
  LayerParameters parameters_;
  const std::unique_ptr<TokenMixer> mixer_;
  const std::unique_ptr<FeedForward> mlp_;
  // Undefined if the model has no such norm.
  const at::Tensor attention_norm_h_, attention_post_norm_h_, mlp_norm_h_, mlp_post_norm_h_;
};

class Head : public Layer {
 public:
  Head(const ModelConfig& config, const LayerTensors& tensors, at::ScalarType dtype)
      : norm_{.epsilon = config.norm_epsilon, .kind = config.norm}, parameters_(tensors, {}, dtype) {}

  std::vector<NamedParameter> parameters() override { return parameters_.all(); }

  Tensors forward(const Tensors& inputs) override {
    const ExpertBalance balance = Border::of(inputs).balance;
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
  const DecoderLayerConfig& layer = config.layers.at(number);
  return std::make_unique<DecoderLayer>(config, layer, tensors_of_layer(config, number + 1, parts), parts.lora, dtype);
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
