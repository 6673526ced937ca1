// model_files/weights/expert_layout.h
// The layouts in which files store the experts of a layer. In memory, gate, up and down each have
// one parameter [expert, out, in].
#pragma once

#include <cstdint>
#include <string_view>

#include "model_files/config/model_config.h"
#include "model_files/weights/weight_files.h"

namespace rp {

// Returns the end of the name of an experts' parameter, such as "gate_proj.weight" for
// "mlp.experts.gate_proj.weight".
[[nodiscard]] std::string_view name_of_expert_part(std::string_view parameter);

enum class ExpertLayout : std::uint8_t {
  // One tensor for each expert and projection: "3.gate_proj.weight" [out, in], "3.gate_proj.bias"
  // [out].
  kEach,
  // Gate and up are one tensor of all experts, with gate's rows first: "gate_up_proj" [expert, out,
  // in] and "gate_up_proj_bias" [expert, out]. "down_proj" and "down_proj_bias" have the same form.
  kFused,
  // The names are those of kFused, but weights are [expert, in, out], and the outputs of gate and
  // up alternate.
  kInterleaved,
  // The weights of kInterleaved, packed along rows of outputs: "gate_up_proj_blocks" [expert, out,
  // in / 32, 16] and "gate_up_proj_scales" [expert, out, in / 32], as bytes (stored_tensors.h).
  kMxfp4,
};

// Detects the layout by the names of the tensors. kFused and kInterleaved have the same names, so
// ExpertsConfig::is_interleaved distinguishes them. Returns kEach if there are no experts. Throws
// rp::Error (kBadInput) if the files mix layouts, naming a tensor of each, and if config.json
// claims a quantisation that the files do not have.
[[nodiscard]] ExpertLayout find_expert_layout(const ModelConfig& config, const WeightFiles& weights);

// Returns the layout in which a model is written: the layout of its files, or kInterleaved if they
// are packed.
[[nodiscard]] ExpertLayout written_layout(ExpertLayout layout);

}  // namespace rp
