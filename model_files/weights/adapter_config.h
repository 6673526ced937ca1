// model_files/weights/adapter_config.h
// The adapter_config.json of PEFT, and the names of an adapter's tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "model_files/config/model_config.h"
#include "model_files/weights/checkpoint_tensors.h"
#include "model_files/weights/safetensors.h"
#include "roundpipe/trained_parts.h"

namespace rp {

inline constexpr const char* kAdapterConfigFile = "adapter_config.json";
inline constexpr const char* kAdapterWeightsFile = "adapter_model.safetensors";

// The tensors of an adapter: those of the model's pairs, and those that are trained as they are ("modules_to_save"), in
// order of layer. A module that is saved is saved with all of its tensors. REQUIRES: parts.lora.rank > 0.
[[nodiscard]] std::vector<CheckpointTensor> adapter_tensors(const ModelConfig& config, const TrainedParts& parts);

// The text of adapter_config.json, for an adapter of the model in `base`.
[[nodiscard]] std::string adapter_config_text(const ModelConfig& config, const TrainedParts& parts,
                                              const std::filesystem::path& base);

// The parts that an adapter's folder asks for: its pairs and, in `train`, its modules to save; `adapter` is the folder.
// Throws rp::Error (kBadInput) naming the key for what we do not have: another kind of adapter, other ranks for some
// layers, biases.
[[nodiscard]] TrainedParts read_adapter_config(const std::filesystem::path& folder);

// Checks that the adapter's file has the tensors of these parts, with their shapes, and no others. Throws rp::Error
// (kBadInput) naming the tensor, and that the adapter may be of another model.
void check_adapter(const ModelConfig& config, const TrainedParts& parts, const SafetensorsFile& file);

}  // namespace rp
