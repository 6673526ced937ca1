// model_files/weights/adapter_config.h
// Reads and writes PEFT's adapter_config.json, and lists the names of an adapter's tensors.
#pragma once

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

// Returns the tensors of an adapter in order of layer: those of the LoRA pairs, and the parameters
// that are themselves trained ("modules_to_save"). A saved module is saved with all of its tensors.
// REQUIRES: parts.lora.rank > 0.
[[nodiscard]] std::vector<CheckpointTensor> adapter_tensors(const ModelConfig& config, const TrainedParts& parts);

// Returns the text of adapter_config.json for an adapter of the model in `base`.
[[nodiscard]] std::string adapter_config_text(const ModelConfig& config, const TrainedParts& parts,
                                              const std::filesystem::path& base);

// Returns the parts that an adapter's folder describes: its pairs, its modules to save in `train`,
// and the folder itself in `adapter`. Throws rp::Error (kBadInput) naming the key for anything that
// is not supported: another kind of adapter, different ranks for some layers, biases.
[[nodiscard]] TrainedParts read_adapter_config(const std::filesystem::path& folder);

// Checks that the adapter's file has exactly the tensors of these parts, with their shapes. Throws
// rp::Error (kBadInput) naming the tensor; the message mentions that the adapter may belong to
// another model.
void check_adapter(const ModelConfig& config, const TrainedParts& parts, const SafetensorsFile& file);

}  // namespace rp
