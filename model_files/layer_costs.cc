#include "model_files/layer_costs.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "common/text.h"
#include "model_files/config/layer_border.h"
#include "model_files/mixer_cost.h"
#include "roundpipe/error.h"

namespace rp {
namespace {

// The layout of the store (hoststore/catalogue.h): parameters start at multiples of 32 elements,
// weight groups at multiples of 4096 bytes.
constexpr std::uint64_t kElementAlignment = 32;
constexpr std::uint64_t kGroupAlignment = 4096;

std::uint64_t aligned(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

std::uint64_t bytes_of(double bytes) { return static_cast<std::uint64_t>(std::llround(bytes)); }

// The cost of the gradient of a parameter for a microbatch, per element: traffic until the gradient
// is in the sum, and memory in addition to the sum.
struct GradientCost {
  double bytes = 0;  // through GPU memory
  double workspace_bytes = 0;
};

bool adds_up_in_fp16(const CostSettings& settings) {
  return settings.accumulate == Accumulate::kFp16 && settings.element_bytes == 2;
}

// Follows the implementation of models/ on a GPU. A product adds the weight's gradient to the fp32
// sum itself, unless it accumulates in fp16: then it first computes the gradient in fp16
// (models/layers/linear.h). Gradients of experts are also computed separately if LibTorch's product
// is used (models/layers/grouped_linear.h). Gradients of norms, biases and convolutions are computed
// in fp32, and autograd adds them.
GradientCost gradient_cost(const LayerTensor& tensor, const CostSettings& settings) {
  const auto e = static_cast<double>(settings.element_bytes);
  if (settings.elementwise == Elementwise::kEager) return {.bytes = 3 * e, .workspace_bytes = e};
  if (tensor.shape.size() != 2 && !tensor.is_of_experts) return {.bytes = 12, .workspace_bytes = 4};
  if (tensor.shape.size() == 3) return {.bytes = 8 + 3 * e, .workspace_bytes = e};
  return adds_up_in_fp16(settings) ? GradientCost{.bytes = 8 + e, .workspace_bytes = e} : GradientCost{.bytes = 8};
}

// Computes the costs of one model and one microbatch, layer by layer in their order. The letters are those of
// docs/design/cost-model.md: B sequences, S positions, T = B S tokens, H hidden, Q and K the widths
// of queries and keys, I intermediate, C experts that a token uses, V vocabulary, e bytes per
// element.
class CostModel {
 public:
  CostModel(const ModelConfig& config, const CostSettings& settings)
      : config_(config),
        settings_(settings),
        table_(elementwise_table(settings.elementwise, static_cast<double>(settings.element_bytes))),
        tokens_(settings.sequences * static_cast<double>(settings.sequence_length)),
        e_(static_cast<double>(settings.element_bytes)),
        h_(static_cast<double>(config.hidden)),
        v_(static_cast<double>(config.vocabulary)) {}

  [[nodiscard]] LayerCost embedding(const LayerTensors& tensors) {
    LayerCost cost = sizes_of(tensors);
    cost.input_bytes = bytes_of(tokens_ * 8);  // token numbers
    cost.output_bytes = boundary_bytes(0);
    cost.forward.elementwise_bytes = 2 * tokens_ * h_ * e_;  // rows are read and written
    if (cost.gradient_elements > 0) {
      // The gradient is read; rows of the sum, which is fp32 in models/, are read and written.
      const double row = settings_.elementwise == Elementwise::kFused ? 4 : e_;
      cost.backward.elementwise_bytes = tokens_ * h_ * (e_ + 2 * row);
      cost.saved_bytes = cost.input_bytes;
    }
    return cost;
  }

  // `number` is counted from 1.
  [[nodiscard]] LayerCost decoder_layer(const LayerTensors& tensors, std::int64_t number) {
    const DecoderLayerConfig& layer = config_.layers[number - 1];
    const Widths w(layer, h_);
    const MixerCost mixer = mixer_cost(layer, table_, settings_.sequence_length);
    LayerCost cost = sizes_of(tensors);
    cost.input_bytes = boundary_bytes(number - 1);
    cost.output_bytes = boundary_bytes(number);
    const std::vector<LinearShape> linears = linears_of(layer, config_.hidden);
    add_gemms(linears, tensors, cost);
    cost.forward.attention_flops = settings_.sequences * mixer.forward_flops;
    const double norms = num_norms(layer) * h_;
    const double experts = layer.mlp.experts ? w.c * h_ : 0;
    // Of the residual, of a shared expert and of per-layer inputs; and a factor at the end.
    const double num_sums = 2 + (w.shared > 0 ? 1 : 0) + (w.p > 0 ? 1 : 0);
    const double sums = (num_sums * 3 + (layer.has_scalar ? 2 : 0)) * h_ * e_;
    // A per-layer input: the row, its factor, the projection's factor, their sum and its factor.
    const double input = 11 * w.p * e_;
    cost.forward.elementwise_bytes =
        tokens_ * ((norms + w.p) * table_.norm_forward + mixer.forward_bytes +
                   (w.inner() + w.shared_gates + w.p) * table_.glu_forward + experts * table_.expert_forward + sums +
                   input + lora_bytes(linears, tensors));
    const double mixer_bytes = mixer.forward_width * e_ + mixer.forward_numbers * 4;
    const double mlp_bytes = std::max(3 * w.widest() * e_, weighted_outputs(layer));
    const double tokens_bytes = tokens_ * (2 * h_ * e_ + std::max(mixer_bytes, mlp_bytes));
    cost.forward_workspace_bytes = bytes_of(tokens_bytes + mixer.forward_scores * (e_ + 4));
    if (!settings_.is_trained) return cost;
    const GradientCost gradients = gradients_of(tensors);
    cost.backward.attention_flops = settings_.sequences * mixer.backward_flops;
    cost.backward.elementwise_bytes =
        tokens_ * ((norms + w.p) * table_.norm_backward + mixer.backward_bytes +
                   (w.inner() + w.shared_gates + w.p) * table_.glu_backward + experts * table_.expert_backward + sums +
                   input + 2 * lora_bytes(linears, tensors)) +
        gradients.bytes;
    cost.saved_bytes = saved_bytes(layer, w, mixer, linears, tensors);
    // The gradients of the MLP's inner activations (gate, up, their product) or of the mixer's, in
    // addition to the boundary's gradient; and the largest gradient of a parameter that is not
    // added in place.
    const double mixer_gradient_bytes = mixer.backward_width * e_ + mixer.backward_numbers * 4;
    cost.backward_workspace_bytes = bytes_of(tokens_ * (2 * h_ * e_ + std::max(mlp_bytes, mixer_gradient_bytes)) +
                                             mixer.backward_scores * (e_ + 4) + gradients.workspace_bytes);
    return cost;
  }

  [[nodiscard]] LayerCost head(const LayerTensors& tensors) {
    LayerCost cost = sizes_of(tensors);
    cost.input_bytes = boundary_bytes(config_.num_layers());
    const double chunk = std::min(tokens_, static_cast<double>(settings_.head_chunk_tokens));
    cost.forward.gemm_flops = 2 * tokens_ * h_ * v_;
    cost.forward.elementwise_bytes =
        tokens_ * (h_ * table_.norm_forward + 2 * v_ * e_);  // logits are read for maximum and sum
    cost.forward_workspace_bytes = bytes_of(chunk * v_ * e_ + tokens_ * h_ * e_);
    if (!settings_.is_trained) return cost;
    const GradientCost gradients = gradients_of(tensors);
    cost.backward.gemm_flops = (cost.gradient_elements > 0 ? 2 : 1) * cost.forward.gemm_flops;
    cost.backward.elementwise_bytes = tokens_ * (h_ * table_.norm_backward + 2 * v_ * e_) + gradients.bytes;
    cost.saved_bytes =
        bytes_of(tokens_ * (2 * h_ * e_ + 4));  // input of the norm, normalised states, one fp32 number per token
    // The logits of a chunk, the gradient of all hidden states, and the weight's gradient if it is
    // not added in place.
    cost.backward_workspace_bytes = bytes_of(chunk * v_ * e_ + tokens_ * h_ * e_ + gradients.workspace_bytes);
    return cost;
  }

 private:
  struct Widths {
    Widths(const DecoderLayerConfig& layer, double hidden)
        : i(static_cast<double>(layer.mlp.intermediate)),
          c(static_cast<double>(layer.mlp.uses_per_token())),
          p(layer.per_layer_input ? static_cast<double>(layer.per_layer_input->width) : 0) {
      if (!layer.mlp.experts || !layer.mlp.experts->shared) return;
      shared = static_cast<double>(layer.mlp.experts->shared->intermediate);
      shared_gates = layer.mlp.experts->shared->has_gate ? hidden : 0;
    }
    // The inner widths that a token passes through, and the largest that exists at once.
    [[nodiscard]] double inner() const { return c * i + shared; }
    [[nodiscard]] double widest() const { return std::max(c * i, shared); }
    double i, c;
    double p;  // of per-layer inputs
    double shared = 0, shared_gates = 0;
  };

  // Returns the bytes per token of experts' rows and outputs, and of the outputs times fp32 weights.
  [[nodiscard]] double weighted_outputs(const DecoderLayerConfig& layer) const {
    using Router = ExpertsConfig::Router;
    if (!layer.mlp.experts) return 0;
    const Router router = layer.mlp.experts->router;
    if (router != Router::kSigmoid && router != Router::kScaledInput) return 0;
    return static_cast<double>(layer.mlp.experts->per_token) * h_ * (2 * e_ + 4);
  }

  static double num_norms(const DecoderLayerConfig& layer) {
    double count = layer.per_layer_input ? 1 : 0;
    const auto add = [&](const std::string& name) { count += name.empty() ? 0 : 1; };
    for (const std::string* name :
         {&layer.attention_norm, &layer.attention_post_norm, &layer.mlp_norm, &layer.mlp_post_norm}) {
      add(*name);
    }
    if (!layer.mlp.experts) return count;
    add(layer.mlp.experts->norm);
    add(layer.mlp.experts->post_norm);
    if (layer.mlp.experts->shared) add(layer.mlp.experts->shared->post_norm);
    return count + (layer.mlp.experts->router == ExpertsConfig::Router::kScaledInput ? 1 : 0);
  }

  // Returns the bytes of a microbatch above a layer.
  [[nodiscard]] std::uint64_t boundary_bytes(std::int64_t number) const {
    const std::int64_t of_token = border_bytes(config_, number, static_cast<std::int64_t>(settings_.element_bytes));
    return bytes_of(tokens_ * static_cast<double>(of_token));
  }

  // 2 in out FLOPs per token in forward; the same in backward for the input's gradient, and again
  // for the weight's if the weight is trained.
  void add_gemms(const std::vector<LinearShape>& linears, const LayerTensors& tensors, LayerCost& cost) const {
    for (const LinearShape& linear : linears) {
      const double rows = tokens_ * static_cast<double>(linear.uses_per_token);
      const double base = 2 * rows * static_cast<double>(linear.in) * static_cast<double>(linear.out);
      const double pair = 2 * rows * rank_of(linear, tensors) * static_cast<double>(linear.in + linear.out);
      cost.forward.gemm_flops += base + pair;
      const LayerTensor* weight = tensors.find(linear.name + ".weight");
      if (settings_.is_trained) cost.backward.gemm_flops += (weight->is_trained ? 2 : 1) * base + 2 * pair;
    }
  }

  // Returns the rank of the linear layer's LoRA pair; 0 if it has none.
  [[nodiscard]] double rank_of(const LinearShape& linear, const LayerTensors& tensors) const {
    return tensors.find(linear.name + ".lora_A.weight") == nullptr ? 0 : settings_.parts.lora.rank;
  }

  // Returns the bytes per token: the pair's output is scaled (2 passes; none if fused) and added to
  // the layer's output (3 passes).
  [[nodiscard]] double lora_bytes(const std::vector<LinearShape>& linears, const LayerTensors& tensors) const {
    double width = 0;
    for (const LinearShape& linear : linears) {
      if (rank_of(linear, tensors) > 0) width += static_cast<double>(linear.out * linear.uses_per_token);
    }
    return width * e_ * (settings_.elementwise == Elementwise::kEager ? 5 : 3);
  }

  // Returns what autograd keeps of a decoder layer with flash attention. Per token, in elements:
  // the input and its normalised form; the mixer's activations; the residual sum and its normalised
  // form; gate, up and their product; with a per-layer input its gate, itself, their product and the
  // projection of the embedding. With experts: the gathered rows instead, for each expert of a
  // token, and the experts' outputs for the gradient of their weights. In fp32: one number per row
  // of a norm, and those of the mixer.
  [[nodiscard]] std::uint64_t saved_bytes(const DecoderLayerConfig& layer, const Widths& w, const MixerCost& mixer,
                                          const std::vector<LinearShape>& linears, const LayerTensors& tensors) const {
    const double norms = num_norms(layer);
    double elements = 2 * norms * h_ + mixer.saved_elements + 3 * w.inner() + w.shared_gates + 4 * w.p;
    double rows = norms + mixer.saved_numbers + (w.p > 0 ? 1 : 0);
    if (layer.mlp.experts) {
      elements += 2 * w.c * h_;
      rows += static_cast<double>(layer.mlp.experts->num) + 2 * w.c;
    }
    for (const LinearShape& linear : linears) {
      elements += rank_of(linear, tensors) * static_cast<double>(linear.uses_per_token);
    }
    return bytes_of(tokens_ * (elements * e_ + rows * 4));
  }

  // Returns the sum of the parameters' bytes and the largest of their workspaces.
  [[nodiscard]] GradientCost gradients_of(const LayerTensors& layer) const {
    GradientCost sum;
    for (const LayerTensor& tensor : layer.tensors) {
      if (!tensor.is_trained || tensor.is_correction) continue;
      if (tensor.is_table) {
        // As in embedding().
        const double row = settings_.elementwise == Elementwise::kFused ? 4 : e_;
        sum.bytes += tokens_ * static_cast<double>(tensor.shape[1]) * (e_ + 2 * row);
        continue;
      }
      const GradientCost cost =
          tensor.name == "lm_head.weight" ? head_gradient(tensor) : gradient_cost(tensor, settings_);
      const auto elements = static_cast<double>(tensor.num_elements());
      sum.bytes += elements * cost.bytes;
      sum.workspace_bytes = std::max(sum.workspace_bytes, elements * cost.workspace_bytes);
    }
    return sum;
  }

  // With several chunks, or in fp16, where the division comes late, the head's gradient is first
  // summed in fp32 in a separate buffer: zeros, a product for each chunk, the late division, and
  // autograd's addition (models/layers/gpu_causal_lm_loss.h).
  [[nodiscard]] GradientCost head_gradient(const LayerTensor& weight) const {
    const GradientCost product = gradient_cost(weight, settings_);
    if (settings_.elementwise == Elementwise::kEager) return {.bytes = product.bytes, .workspace_bytes = 4};
    const bool divides_late = adds_up_in_fp16(settings_);
    const double chunks = std::ceil(tokens_ / static_cast<double>(settings_.head_chunk_tokens));
    if (chunks <= 1 && !divides_late) return product;
    return {.bytes = 4 + chunks * product.bytes + (divides_late ? 8 : 0) + 12,
            .workspace_bytes = 4 + product.workspace_bytes};
  }

  // Follows the layout of the store: the trained parameters of a layer, the frozen ones, the frozen buffers
  // and the quantised ones are one weight group each, and a tied parameter or a trained correction is a group of its
  // own.
  [[nodiscard]] LayerCost sizes_of(const LayerTensors& layer) {
    LayerCost cost;
    std::uint64_t trained = 0, frozen = 0, buffers = 0, quantised = 0;
    const auto add_trained = [&](std::uint64_t elements, bool is_stored) {
      const std::uint64_t bytes = aligned(elements * settings_.element_bytes, kGroupAlignment);
      cost.weight_bytes += bytes;
      cost.gradient_bytes += bytes;
      cost.gradient_elements += elements;
      if (is_stored) cost.trained_elements += elements;
    };
    const auto add_frozen = [&](std::uint64_t elements, std::uint64_t element_bytes, bool is_stored) {
      cost.weight_bytes += aligned(elements * element_bytes, kGroupAlignment);
      if (is_stored) cost.frozen_bytes += elements * element_bytes;
    };
    const auto add_correction = [&](std::uint64_t elements) {
      const std::uint64_t bytes = elements * sizeof(float);
      cost.weight_bytes += aligned(bytes, kGroupAlignment);
      cost.gradient_bytes += aligned(bytes, kGroupAlignment);
      cost.gradient_elements += elements;
      cost.correction_bytes += bytes;
    };
    for (const LayerTensor& tensor : layer.tensors) {
      const bool is_trained = tensor.is_trained && settings_.is_trained;
      if (tensor.is_correction && is_trained) {
        add_correction(static_cast<std::uint64_t>(tensor.num_elements()));
        continue;
      }
      if (tensor.format) {
        quantised += aligned(static_cast<std::uint64_t>(tensor.quantised_bytes()), kElementAlignment);
        cost.expanded_bytes += static_cast<std::uint64_t>(tensor.num_elements()) * settings_.element_bytes;
        continue;
      }
      const std::uint64_t elements = aligned(static_cast<std::uint64_t>(tensor.num_elements()), kElementAlignment);
      if (tensor.tied_group < 0) {
        const bool is_group_of_its_own = tensor.is_fp32 && settings_.element_bytes != sizeof(float);
        (is_trained ? trained : is_group_of_its_own ? buffers : frozen) += elements;
        continue;
      }
      const bool is_stored = tied_seen_.insert(tensor.tied_group).second;
      is_trained ? add_trained(elements, is_stored) : add_frozen(elements, settings_.element_bytes, is_stored);
    }
    if (trained > 0) add_trained(trained, /*is_stored=*/true);
    if (frozen > 0) add_frozen(frozen, settings_.element_bytes, /*is_stored=*/true);
    if (buffers > 0) add_frozen(buffers, sizeof(float), /*is_stored=*/true);
    if (quantised > 0) add_frozen(quantised, 1, /*is_stored=*/true);
    return cost;
  }

  const ModelConfig& config_;
  const CostSettings& settings_;
  const ElementwiseTable table_;
  const double tokens_, e_, h_, v_;
  std::set<int> tied_seen_{};  // groups of parameters of the layers so far
};

}  // namespace

std::vector<LayerCost> layer_costs(const ModelConfig& config, const CostSettings& settings) {
  if (!(settings.sequences > 0) || settings.sequence_length < 1 || settings.head_chunk_tokens < 1 ||
      settings.parts.lora.rank < 0 || (settings.element_bytes != 2 && settings.element_bytes != 4)) {
    throw Error(ExitCode::kUsage, cat("costs of ", settings.sequences, " sequences of ", settings.sequence_length,
                                      " tokens, ", settings.element_bytes, " bytes an element, LoRA rank ",
                                      settings.parts.lora.rank, ", logits of ", settings.head_chunk_tokens,
                                      " tokens at a time: numbers must be above 0 (the rank 0 or more), bytes 2 or 4"));
  }
  CostModel model(config, settings);
  const std::vector<LayerTensors> layers = tensors_of(config, settings.parts);
  std::vector<LayerCost> costs;
  costs.push_back(model.embedding(layers.front()));
  for (std::int64_t number = 1; number <= config.num_layers(); ++number)
    costs.push_back(model.decoder_layer(layers[static_cast<std::size_t>(number)], number));
  costs.push_back(model.head(layers.back()));
  return costs;
}

}  // namespace rp
