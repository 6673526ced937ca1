#include "models/llama.h"

#include <ATen/ATen.h>

#include <limits>
#include <optional>
#include <utility>

#include "common/text.h"
#include "models/attention.h"
#include "models/documents.h"
#include "models/embedding.h"
#include "models/kernel_call.h"
#include "models/linear.h"
#include "models/ops.h"
#include "models/rotary.h"
#include "roundpipe/error.h"
#include "roundpipe/recompute.h"

namespace rp::models {

namespace {

// The second tensor between layers, where there is one.
at::Tensor documents_of(const Tensors& inputs) { return inputs.size() > 1 ? inputs[1] : at::Tensor(); }

// The outputs of a layer: what it was told of documents is handed on.
Tensors with_documents(const at::Tensor& x_bth, const Tensors& inputs) {
  const at::Tensor documents_bk = documents_of(inputs);
  return documents_bk.defined() ? Tensors{x_bth, documents_bk} : Tensors{x_bth};
}

// Placeholders of a linear layer's parameters.
struct Linear {
  Linear(std::int64_t out, std::int64_t in, bool with_bias, at::ScalarType dtype)
      : weights{.weight_oi = placeholder({out, in}, dtype)} {
    if (with_bias) weights.bias_o = placeholder({out}, dtype);
  }

  void append_to(std::vector<NamedParameter>& parameters, const std::string& name) const {
    parameters.push_back({name + ".weight", weights.weight_oi});
    if (weights.bias_o.defined()) parameters.push_back({name + ".bias", weights.bias_o});
  }

  [[nodiscard]] at::Tensor operator()(const at::Tensor& x, bool is_read = true) const { return linear(x, weights, is_read); }

  LinearWeights weights;
};

class LlamaEmbedding : public Layer {
 public:
  LlamaEmbedding(const LlamaConfig& config, at::ScalarType dtype)
      : padding_id_(config.padding_id), weight_vh_(placeholder({config.vocabulary, config.hidden_size}, dtype)) {}

  std::vector<NamedParameter> parameters() override { return {{"weight", weight_vh_}}; }

  Tensors forward(const Tensors& inputs) override {
    const at::Tensor x_bth = embed(weight_vh_, inputs.at(0), padding_id_), documents_bk = documents_of(inputs);
    if (!documents_bk.defined() || !runs_on_gpu(x_bth)) return with_documents(x_bth, inputs);
    // Nothing on a GPU can throw: sequences with wrong lengths become NaN, as wrong tokens do.
    const at::Tensor wrong_b11 = have_wrong_lengths(documents_bk, x_bth.size(1)).view({-1, 1, 1});
    return with_documents(x_bth.masked_fill(wrong_b11, std::numeric_limits<double>::quiet_NaN()), inputs);
  }

 private:
  std::int64_t padding_id_;
  at::Tensor weight_vh_;
};

class LlamaBlock : public Layer {
 public:
  LlamaBlock(const LlamaConfig& config, at::ScalarType dtype)
      : config_(config),
        frequencies_(rotary_frequencies(config)),
        input_norm_h_(placeholder({config.hidden_size}, dtype)),
        q_proj_(config.num_heads * config.head_dim, config.hidden_size, config.attention_bias, dtype),
        k_proj_(config.num_kv_heads * config.head_dim, config.hidden_size, config.attention_bias, dtype),
        v_proj_(config.num_kv_heads * config.head_dim, config.hidden_size, config.attention_bias, dtype),
        o_proj_(config.hidden_size, config.num_heads * config.head_dim, config.attention_bias, dtype),
        attention_norm_h_(placeholder({config.hidden_size}, dtype)),
        gate_proj_(config.intermediate_size, config.hidden_size, config.mlp_bias, dtype),
        up_proj_(config.intermediate_size, config.hidden_size, config.mlp_bias, dtype),
        down_proj_(config.hidden_size, config.intermediate_size, config.mlp_bias, dtype) {}

  std::vector<NamedParameter> parameters() override {
    std::vector<NamedParameter> result = {{"input_layernorm.weight", input_norm_h_}};
    q_proj_.append_to(result, "self_attn.q_proj");
    k_proj_.append_to(result, "self_attn.k_proj");
    v_proj_.append_to(result, "self_attn.v_proj");
    o_proj_.append_to(result, "self_attn.o_proj");
    result.push_back({"post_attention_layernorm.weight", attention_norm_h_});
    gate_proj_.append_to(result, "mlp.gate_proj");
    up_proj_.append_to(result, "mlp.up_proj");
    down_proj_.append_to(result, "mlp.down_proj");
    return result;
  }

  Tensors forward(const Tensors& inputs) override {
    const at::Tensor& x_bth = inputs.at(0);
    const at::Tensor attended_bth = attention(rms_norm(x_bth, input_norm_h_, config_.rms_norm_eps), documents_of(inputs));
    const auto [y_bth, normal_bth] = add_rms_norm(x_bth, attended_bth, attention_norm_h_, config_.rms_norm_eps);
    return with_documents(y_bth + mlp(normal_bth), inputs);
  }

 private:
  [[nodiscard]] at::Tensor attention(const at::Tensor& x_bth, const at::Tensor& documents_bk) {
    const std::int64_t batch = x_bth.size(0), length = x_bth.size(1), head_dim = config_.head_dim;
    RotaryTable table = rotary_table(length, x_bth);
    if (documents_bk.defined()) table = rotary_table_at(table, document_positions(documents_bk, length));
    const auto heads = [&](const at::Tensor& x, std::int64_t count) {
      return x.view({batch, length, count, head_dim});
    };
    const std::vector<at::Tensor> qkv = linears(x_bth, {q_proj_.weights, k_proj_.weights, v_proj_.weights});
    const at::Tensor q_btnd = rotate_heads(heads(qkv[0], config_.num_heads), table);
    const at::Tensor k_btmd = rotate_heads(heads(qkv[1], config_.num_kv_heads), table);
    const at::Tensor v_btmd = heads(qkv[2], config_.num_kv_heads);
    return o_proj_(causal_attention(q_btnd, k_btmd, v_btmd, documents_bk).flatten(2));
  }

  [[nodiscard]] at::Tensor mlp(const at::Tensor& x_bth) const {
    const std::vector<at::Tensor> gate_up = linears(x_bth, {gate_proj_.weights, up_proj_.weights});
    return down_proj_(swiglu(gate_up[0], gate_up[1]), outputs_are_read());
  }

  // The table for `length` positions, with the dtype of x and where x is. On the CPU computed anew only when the
  // microbatches' length or dtype changes; on a GPU it would take memory in every layer.
  RotaryTable rotary_table(std::int64_t length, const at::Tensor& x) {
    const at::ScalarType dtype = x.scalar_type();
    if (frequencies_.device() != x.device()) frequencies_ = frequencies_.to(x.device(), /*non_blocking=*/true);
    if (runs_on_gpu(x)) return make_rotary_table(frequencies_, length, dtype);
    if (!table_ || table_length_ != length || table_dtype_ != dtype) {
      table_ = make_rotary_table(frequencies_, length, dtype);
      table_length_ = length;
      table_dtype_ = dtype;
    }
    return *table_;
  }

  LlamaConfig config_;
  at::Tensor frequencies_;  // fp32 [d / 2]
  at::Tensor input_norm_h_;
  Linear q_proj_, k_proj_, v_proj_, o_proj_;
  at::Tensor attention_norm_h_;
  Linear gate_proj_, up_proj_, down_proj_;

  std::optional<RotaryTable> table_;
  std::int64_t table_length_ = 0;
  at::ScalarType table_dtype_ = at::kFloat;
};

class LlamaHead : public Layer {
 public:
  LlamaHead(const LlamaConfig& config, at::ScalarType dtype)
      : epsilon_(config.rms_norm_eps),
        norm_h_(placeholder({config.hidden_size}, dtype)),
        weight_vh_(placeholder({config.vocabulary, config.hidden_size}, dtype)) {}

  std::vector<NamedParameter> parameters() override {
    return {{"norm.weight", norm_h_}, {"lm_head.weight", weight_vh_}};
  }

  Tensors forward(const Tensors& inputs) override {
    return {rms_norm(inputs.at(0), norm_h_, epsilon_), weight_vh_};
  }

 private:
  double epsilon_;
  at::Tensor norm_h_;
  at::Tensor weight_vh_;
};

}  // namespace

std::unique_ptr<Layer> make_llama_embedding(const LlamaConfig& config, at::ScalarType dtype) {
  return std::make_unique<LlamaEmbedding>(config, dtype);
}

std::unique_ptr<Layer> make_llama_block(const LlamaConfig& config, at::ScalarType dtype) {
  return std::make_unique<LlamaBlock>(config, dtype);
}

std::unique_ptr<Layer> make_llama_head(const LlamaConfig& config, at::ScalarType dtype) {
  return std::make_unique<LlamaHead>(config, dtype);
}

}  // namespace rp::models
