#include "model_files/mixer_cost.h"

#include <algorithm>

#include "kernels/blocked_attention.h"
#include "kernels/delta_arguments.h"

namespace rp {
namespace {

// Returns the number of pairs of positions that see each other causally in one sequence: the sum
// of min(i, w) over positions i.
double pairs(std::int64_t sequence_length, std::int64_t window) {
  const auto s = static_cast<double>(sequence_length);
  const double w = window > 0 ? std::min(s, static_cast<double>(window)) : s;
  return w * s - w * (w - 1) / 2;
}

// Adds what the attention of large heads costs in addition (models/layers/attention/blocked_attention.cc): scores
// pass through memory, and gradients of keys and values are summed in fp32.
void add_blocks(const AttentionConfig& attention, const ElementwiseTable& table, std::int64_t sequence_length,
                MixerCost& cost) {
  const double scores = static_cast<double>(attention.num_heads) * pairs(sequence_length, attention.window) /
                        static_cast<double>(sequence_length);
  cost.forward_bytes += scores * (56 + 2 * table.pass);
  cost.backward_bytes += scores * (68 + 5 * table.pass);
  cost.backward_numbers = 2 * static_cast<double>(attention.kv_width());
  cost.forward_scores = static_cast<double>(kScoresOfABlock);
  cost.backward_scores = 2 * cost.forward_scores;
}

MixerCost attention_cost(const AttentionConfig& attention, const ElementwiseTable& table,
                         std::int64_t sequence_length) {
  using HeadNorm = AttentionConfig::HeadNorm;
  const auto q = static_cast<double>(attention.query_width());
  // Keys and values of another layer are this layer's inputs.
  const double k = attention.keys_of_layer ? 0 : static_cast<double>(attention.kv_width());
  const double head_norms = attention.head_norm == HeadNorm::kNone ? 0 : q + k;
  const double norms = head_norms + (attention.normalises_values ? k : 0);

  const double gates = attention.has_output_gate ? q : 0;
  MixerCost cost;
  // Q K^T and P V: 2 x 2 Q FLOPs for each pair of positions that see each other; backward has five
  // products instead of two.
  cost.forward_flops = 4 * q * pairs(sequence_length, attention.window);
  cost.backward_flops = 2.5 * cost.forward_flops;
  cost.forward_bytes = norms * table.norm_forward + (q + k) * table.rotary_forward + gates * table.glu_forward;
  cost.backward_bytes = norms * table.norm_backward + (q + k) * table.rotary_backward + gates * table.glu_backward;
  // Queries, keys, values and the output; the values before the norms; the gates and the gated output.
  cost.saved_elements = 2 * q + 2 * k + (attention.values_are_keys ? head_norms : norms) + 2 * gates;
  cost.saved_numbers = static_cast<double>(attention.num_heads);
  switch (attention.head_norm) {
    case HeadNorm::kNone: break;
    case HeadNorm::kEachHead:
      cost.saved_numbers += static_cast<double>(attention.num_heads);
      if (k > 0) cost.saved_numbers += static_cast<double>(attention.num_kv_heads);
      break;
    case HeadNorm::kWholeRow: cost.saved_numbers += 2; break;
  }
  if (k > 0 && attention.normalises_values) cost.saved_numbers += static_cast<double>(attention.num_kv_heads);
  cost.forward_width = q + 2 * k + gates;
  cost.backward_width = 2 * q + 2 * k + gates;
  if (attention.head_dim > kLargestFlashHead) add_blocks(attention, table, sequence_length, cost);
  return cost;
}

MixerCost latent_attention_cost(const LatentAttentionConfig& attention, const ElementwiseTable& table,
                                std::int64_t sequence_length) {
  const auto heads = static_cast<double>(attention.num_heads);
  const auto q = static_cast<double>(attention.query_width()), v = static_cast<double>(attention.value_width());
  const auto kv = static_cast<double>(attention.kv_width());
  const auto ranks = static_cast<double>(attention.query_rank + attention.kv_rank);
  const auto rotated = static_cast<double>((attention.num_heads + 1) * attention.rotated_dim);
  // The kernels need one size, so the smaller ones are padded (models/layers/attention/gpu_attention.cc).
  const double padded = std::max(q, v);
  MixerCost cost;
  // Q K^T and P V; in backward three products of the size of queries and two of that of values.
  cost.forward_flops = 2 * (q + v) * pairs(sequence_length, /*window=*/0);
  cost.backward_flops = 2 * (3 * q + 2 * v) * pairs(sequence_length, /*window=*/0);
  // Queries and keys are put together from their parts, and values are copied. Pairs of neighbours are moved apart
  // before the rotation. The backward pass undoes each of these.
  const double copied = 3 * padded + (attention.pairs_neighbours ? rotated : 0);
  cost.forward_bytes = ranks * table.norm_forward + rotated * table.rotary_forward + 2 * copied * table.pass;
  cost.backward_bytes = ranks * table.norm_backward + rotated * table.rotary_backward + 2 * copied * table.pass;
  // Queries, keys, values and the output; the output without its padding; both rows and their norms.
  cost.saved_elements = 4 * padded + (padded > v ? v : 0) + 2 * ranks;
  cost.saved_numbers = heads + (attention.query_rank > 0 ? 2 : 1);
  cost.forward_width = 3 * padded + kv;
  cost.backward_width = 4 * padded + kv;
  return cost;
}

MixerCost delta_net_cost(const DeltaNetConfig& net, const ElementwiseTable& table, std::int64_t sequence_length) {
  const auto s = static_cast<double>(sequence_length), c = static_cast<double>(kDeltaChunk);
  const auto key = static_cast<double>(net.key_dim), value = static_cast<double>(net.value_dim);
  const auto heads = static_cast<double>(net.num_value_heads), key_heads = static_cast<double>(net.num_key_heads);
  const auto channels = static_cast<double>(net.convolved_width()), v = static_cast<double>(net.value_width());
  const double k = key_heads * key, state = heads * key * value;
  MixerCost cost;
  // The products of a chunk, for each of its tokens. With keys, once for the value heads that share
  // them: K K^T and Q K^T. With the inverse and P: U and P U. With the state: K S, Q S and K^T U. The
  // backward pass computes U again, and two gradients for each product.
  cost.forward_flops = s * (4 * c * k + 4 * c * v + 6 * state);
  cost.backward_flops = s * (4 * c * k + 6 * c * heads * key + 10 * c * v + 14 * state);
  // What the kernels of the rule read and write of queries and keys, of values and outputs, and in
  // fp32: the inverse, P and K K^T of each chunk, and the states; in backward also the states'
  // gradients, U and its gradient, and the gradients of keys before they are summed. The gated norm
  // passes over the output and its gates.
  const double forward_numbers = 4 * c * heads + c * key_heads + state / c;
  const double backward_numbers = 5 * c * heads + 2 * c * key_heads + 4 * state / c + 4 * v + 4 * k;
  cost.forward_bytes =
      channels * table.convolution_forward + (4 * k + 2 * v) * table.pass + 4 * forward_numbers + v * table.glu_forward;
  cost.backward_bytes = channels * table.convolution_backward + (10 * k + 4 * v) * table.pass + 4 * backward_numbers +
                        v * table.glu_backward;
  // The convolution's input and output, the rule's output, gates z, the gated output, a, b and beta.
  cost.saved_elements = 2 * channels + 3 * v + 3 * heads;
  // Decays, the norm of each head, and the state at the beginning of each chunk.
  cost.saved_numbers = 2 * heads + state / c;
  cost.forward_width = 2 * channels + 2 * v;
  cost.backward_width = 2 * channels + 2 * v;
  const models::GpuDeltaInputs call{.sequences = 1,
                                    .length = sequence_length,
                                    .key_heads = net.num_key_heads,
                                    .value_heads = net.num_value_heads,
                                    .key_size = net.key_dim,
                                    .value_size = net.value_dim};
  cost.forward_numbers = static_cast<double>(models::delta_scratch_floats(call)) / s;
  cost.backward_numbers = static_cast<double>(models::delta_grad_scratch_floats(call)) / s;
  return cost;
}

}  // namespace

MixerCost mixer_cost(const DecoderLayerConfig& layer, const ElementwiseTable& table, std::int64_t sequence_length) {
  if (layer.delta_net) return delta_net_cost(*layer.delta_net, table, sequence_length);
  if (layer.latent_attention) return latent_attention_cost(*layer.latent_attention, table, sequence_length);
  return attention_cost(layer.attention, table, sequence_length);
}

}  // namespace rp
