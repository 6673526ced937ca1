// model_files/layer_costs.h
// Computes what each layer of a model costs for one microbatch. docs/design/cost-model.md has the
// formulas and their symbols.
#pragma once

#include <cstdint>
#include <vector>

#include "model_files/config/model_config.h"
#include "model_files/elementwise_table.h"
#include "model_files/head_chunks.h"
#include "model_files/layer_tensors.h"
#include "scheduler/gpu_profile.h"
#include "scheduler/layer_cost.h"

namespace rp {

struct CostSettings {
  double sequences = 1;  // of a microbatch; may be a fraction if microbatches differ by one sequence
  std::int64_t sequence_length = 2048;
  std::uint64_t element_bytes = 2;  // of weights, activations and gradients: 2 or 4
  TrainedParts parts{};
  bool is_trained = true;  // false: forward only, nothing has gradients
  Elementwise elementwise = Elementwise::kFused;
  // With fp16 a weight's gradient is computed in fp16 before it is added to the fp32 sum.
  Accumulate accumulate = Accumulate::kFp32;
  std::int64_t head_chunk_tokens = kGpuHeadChunkTokens;  // tokens whose logits exist at a time
};

// Returns the costs by layer: embedding, decoder layers, head (final norm, LM head, loss). Throws
// rp::Error (kUsage) for settings that are not above 0 (a LoRA rank may be 0) or element bytes
// other than 2 or 4.
[[nodiscard]] std::vector<LayerCost> layer_costs(const ModelConfig& config, const CostSettings& settings);

}  // namespace rp
