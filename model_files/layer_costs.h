// model_files/layer_costs.h
// What each layer of a model costs for one microbatch. The formulas, with their symbols: docs/design/cost-model.md.
#pragma once

#include <cstdint>
#include <vector>

#include "model_files/config/model_config.h"
#include "model_files/head_chunks.h"
#include "model_files/layer_tensors.h"
#include "scheduler/gpu_profile.h"
#include "scheduler/layer_cost.h"

namespace rp {

// How often elementwise operations go through GPU memory.
enum class Elementwise {
  kFused,  // one pass for each RMSNorm, rotary embedding, SwiGLU, sum: as our layers are written
  kEager,  // each operation of transformers' layers by itself: the published runs
};

struct CostSettings {
  double sequences = 1;  // of a microbatch; need not be whole where microbatches differ by one
  std::int64_t sequence_length = 2048;
  std::uint64_t element_bytes = 2;  // of weights, activations and gradients: 2 or 4
  TrainedParts parts{};
  bool is_trained = true;  // false: forward only, nothing has gradients
  Elementwise elementwise = Elementwise::kFused;
  Accumulate accumulate =
      Accumulate::kFp32;  // in fp16 a weight's gradient is made in fp16 before it is added to the fp32 sum
  std::int64_t head_chunk_tokens = kGpuHeadChunkTokens;  // whose logits exist at a time
};

// By layer: embedding, decoder layers, head (final norm, LM head, loss). Throws rp::Error (kUsage) for settings that
// are not above 0.
[[nodiscard]] std::vector<LayerCost> layer_costs(const ModelConfig& config, const CostSettings& settings);

}  // namespace rp
