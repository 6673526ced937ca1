// models/checkpoint.h
// Moves weights between a model's layers and a Hugging Face directory.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "model_files/config/model_config.h"
#include "model_files/weights/checkpoint_tensors.h"
#include "model_files/weights/weight_files.h"
#include "roundpipe/trained_parts.h"

namespace rp::models {

// Compares the LM head of a tied model with the embedding, if the files have an LM head. Throws
// rp::Error (kBadInput) if any value differs. REQUIRES: check_weights() found no fault.
void check_tied_head(const ModelConfig& config, const WeightFiles& weights);

// Returns the parameters, with their layers, that the files of a 16-bit model hold in fp32. Rounding
// them to 16 bits in an export would lose what the source had. Throws rp::Error (kBadInput).
[[nodiscard]] std::set<std::pair<std::int64_t, std::string>> wider_parameters(const std::filesystem::path& source);

// Returns the current value of a parameter, in any floating dtype.
using WeightSource = std::function<at::Tensor(std::int64_t layer, const std::string& parameter)>;

// Writes the pairs of `parts`, and the weights that are trained in addition to them, to the new
// directory `output`, as PEFT does: adapter_config.json and adapter_model.safetensors in fp32.
// Throws as export_checkpoint() does.
void export_adapter(const std::filesystem::path& source, const std::filesystem::path& output, const TrainedParts& parts,
                    const WeightSource& weight);

// Writes the model of directory `source`, with the weights that `weight` returns, to the new
// directory `output`: the source's weight files and index (model_files/weights/exported_files.h),
// in which tensors that are neither trained nor merged keep their bytes, its configuration and its side files
// (model_files/weights/side_files.h), with their permissions. Pairs of `parts` are merged into their weights. The
// directory appears complete or not at all. Throws rp::Error: kBadInput for the source, kOutputFailed for the output.
void export_checkpoint(const std::filesystem::path& source, const std::filesystem::path& output,
                       const WeightSource& weight, const TrainedParts& parts = {});

}  // namespace rp::models
