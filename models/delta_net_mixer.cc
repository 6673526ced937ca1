#include <ATen/ATen.h>

#include "common/text.h"
#include "models/layers/delta_net/convolution.h"
#include "models/layers/delta_net/delta_rule.h"
#include "models/layers/delta_net/gated_norm.h"
#include "models/layers/delta_net/gates.h"
#include "models/token_mixer.h"

namespace rp::models {

namespace {

// A gated delta rule. Shapes: k key heads of size d, h value heads of size e, c channels, v = h e.
class DeltaNet : public TokenMixer {
 public:
  DeltaNet(const DeltaNetConfig& config, const Norm& norm, const LayerParameters& parameters)
      : config_(config),
        epsilon_(norm.epsilon),
        output_(parameters.linear("linear_attn.out_proj")),
        taps_c1j_(parameters.tensor("linear_attn.conv1d.weight")),
        a_log_h_(parameters.tensor("linear_attn.A_log")),
        dt_bias_h_(parameters.tensor("linear_attn.dt_bias")),
        norm_e_(parameters.tensor("linear_attn.norm.weight")) {
    for (const char* name : {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"})
      inputs_.push_back(parameters.linear(cat("linear_attn.", name)));
  }

  void set_dropout(double dropout) override {
    for (LinearWeights& weights : inputs_) weights.lora.dropout = dropout;
    output_.lora.dropout = dropout;
  }

  at::Tensor forward(const at::Tensor& x_bth, const at::Tensor& documents_bk, KeysAndValues* /*shared*/) override {
    const std::vector<at::Tensor> projected = linears(x_bth, inputs_);
    const at::Tensor &qkv_btc = projected[0], &z_btv = projected[1], &b_bth = projected[2], &a_bth = projected[3];
    const at::Tensor convolved_btc = causal_convolution(qkv_btc, taps_c1j_, documents_bk);
    const std::vector<at::Tensor> parts =
        convolved_btc.split_with_sizes({config_.key_width(), config_.key_width(), config_.value_width()}, -1);
    const std::vector<std::int64_t> keys{config_.num_key_heads, config_.key_dim};
    const std::vector<std::int64_t> values{config_.num_value_heads, config_.value_dim};
    const DecayAndBeta rates = gate_and_beta(a_bth, b_bth, a_log_h_, dt_bias_h_);
    const at::Tensor o_bthe = gated_delta_rule({.q_btkd = parts[0].unflatten(-1, keys),
                                                .k_btkd = parts[1].unflatten(-1, keys),
                                                .v_bthe = parts[2].unflatten(-1, values),
                                                .decay_bth = rates.decay_bth,
                                                .beta_bth = rates.beta_bth,
                                                .documents_bk = documents_bk});
    const at::Tensor normal_bthe = gated_rms_norm(o_bthe, z_btv.unflatten(-1, values), norm_e_, epsilon_);
    return linear(normal_bthe.flatten(2), output_);
  }

 private:
  const DeltaNetConfig config_;
  const double epsilon_;
  std::vector<LinearWeights> inputs_;  // of queries, keys and values together; z; b; a
  LinearWeights output_;
  at::Tensor taps_c1j_;  // of the convolution
  at::Tensor a_log_h_, dt_bias_h_;
  at::Tensor norm_e_;
};

}  // namespace

std::unique_ptr<TokenMixer> make_delta_net(const DeltaNetConfig& config, const Norm& norm,
                                           const LayerParameters& parameters) {
  return std::make_unique<DeltaNet>(config, norm, parameters);
}

}  // namespace rp::models
