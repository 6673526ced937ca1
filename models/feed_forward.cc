#include "models/feed_forward.h"

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "models/layers/ops.h"

namespace rp::models {

namespace {

// down(act(gate(x)) * up(x)).
class GatedMlp {
 public:
  GatedMlp(const std::string& name, Activation activation, const LayerParameters& parameters)
      : activation_(activation),
        gate_up_({parameters.linear(name + ".gate_proj"), parameters.linear(name + ".up_proj")}),
        down_(parameters.linear(name + ".down_proj")) {}

  void set_dropout(double dropout) {
    for (LinearWeights& weights : gate_up_) weights.lora.dropout = dropout;
    down_.lora.dropout = dropout;
  }

  [[nodiscard]] at::Tensor forward(const at::Tensor& x, bool is_read) const {
    const std::vector<at::Tensor> gate_up = linears(x, gate_up_);
    return linear(glu(gate_up[0], gate_up[1], activation_), down_, is_read);
  }

 private:
  const Activation activation_;
  std::vector<LinearWeights> gate_up_;
  LinearWeights down_;
};

class Mlp : public FeedForward {
 public:
  Mlp(const MlpConfig& config, const LayerParameters& parameters) : mlp_("mlp", config.activation, parameters) {}

  void set_dropout(double dropout) override { mlp_.set_dropout(dropout); }
  MixtureOutput forward(const at::Tensor& x_bth, const at::Tensor& /*sum_bth*/, bool is_read) const override {
    return {mlp_.forward(x_bth, is_read), {}};
  }

 private:
  GatedMlp mlp_;
};

class Mixture : public FeedForward {
 public:
  Mixture(const MlpConfig& config, const Norm& norm, const LayerParameters& parameters)
      : norm_(norm),
        config_(*config.experts),
        activation_(config.activation),
        experts_{.router = parameters.linear(config_.router_name),
                 .correction_e = parameters.tensor(config_.correction_name()),
                 .router_scale_h = parameters.tensor(ExpertsConfig::kRouterScale),
                 .expert_scale_e = parameters.tensor(ExpertsConfig::kExpertScale),
                 .gate = parameters.linear(config_.name + ".gate_proj"),
                 .up = parameters.linear(config_.name + ".up_proj"),
                 .down = parameters.linear(config_.name + ".down_proj")},
        norm_h_(parameters.tensor(config_.norm + ".weight")),
        post_norm_h_(parameters.tensor(config_.post_norm + ".weight")) {
    if (!config_.shared) return;
    shared_post_norm_h_ = parameters.tensor(config_.shared->post_norm + ".weight");
    shared_.emplace(config_.shared->name, activation_, parameters);
    if (config_.shared->has_gate) shared_gate_ = parameters.linear(config_.shared->name + "_gate");
  }

  void set_dropout(double dropout) override {
    for (LinearWeights* weights : {&experts_.router, &experts_.gate, &experts_.up, &experts_.down, &shared_gate_}) {
      weights->lora.dropout = dropout;
    }
    if (shared_) shared_->set_dropout(dropout);
  }

  MixtureOutput forward(const at::Tensor& x_bth, const at::Tensor& sum_bth, bool /*is_read*/) const override {
    const bool is_apart = norm_h_.defined();
    MixtureOutput output = mixture_of_experts(is_apart ? norm_(sum_bth, norm_h_) : x_bth, is_apart ? sum_bth : x_bth,
                                              experts_, config_, activation_, norm_.epsilon);
    output.y = norm_(output.y, post_norm_h_);
    if (!shared_) return output;
    at::Tensor shared = shared_->forward(x_bth, /*is_read=*/true);
    if (config_.shared->has_gate) shared = linear(x_bth, shared_gate_).sigmoid() * shared;
    output.y = output.y + norm_(shared, shared_post_norm_h_);
    return output;
  }

 private:
  const Norm norm_;
  const ExpertsConfig config_;
  const Activation activation_;
  ExpertWeights experts_;
  // Undefined if the model has no such norm.
  const at::Tensor norm_h_, post_norm_h_;
  at::Tensor shared_post_norm_h_{};
  std::optional<GatedMlp> shared_;
  LinearWeights shared_gate_;  // [1, h]
};

}  // namespace

std::unique_ptr<FeedForward> make_feed_forward(const MlpConfig& config, const Norm& norm,
                                               const LayerParameters& parameters) {
  if (config.experts) return std::make_unique<Mixture>(config, norm, parameters);
  return std::make_unique<Mlp>(config, parameters);
}

}  // namespace rp::models
