// model_files/weights/expert_layout.h
// The ways in which files hold a layer's experts, whose parameters are one [expert, out, in] each for gate, up and
// down.
#pragma once

#include <cstdint>
#include <string_view>

#include "model_files/config/model_config.h"
#include "model_files/weights/weight_files.h"

namespace rp {

// Names of the experts' parameters, and of their tensors in files, begin with it.
inline constexpr std::string_view kExpertsPrefix = "mlp.experts.";

enum class ExpertLayout : std::uint8_t {
  // A tensor for each expert and projection, "3.gate_proj.weight" [out, in] and "3.gate_proj.bias" [out].
  kEach,
  // Gate and up in one tensor of all experts, "gate_up_proj" [expert, out, in] and "gate_up_proj_bias" [expert, out],
  // gate's rows first;
  // "down_proj" and "down_proj_bias" likewise.
  kFused,
  // The same names; weights are [expert, in, out], and the outputs of gate and up take turns.
  kInterleaved,
  // Weights of the last one packed by rows of outputs: "gate_up_proj_blocks" [expert, out, in / 32, 16] and
  // "gate_up_proj_scales" [expert, out,
  // in / 32], bytes (mxfp4.h).
  kMxfp4,
};

// Goes by the names of tensors; of the two fused layouts, which have the same names, ExpertsConfig::is_interleaved
// tells which it is. kEach where there are no experts. Throws rp::Error (kBadInput) naming a tensor of each layout
// where there are several, and where the files are not quantised as config.json says.
[[nodiscard]] ExpertLayout find_expert_layout(const ModelConfig& config, const WeightFiles& weights);

// The layout that a model has when it is written: that of its files, and of packed ones kInterleaved.
[[nodiscard]] ExpertLayout written_layout(ExpertLayout layout);

}  // namespace rp
