// model_files/weights/exported_files.h
// The weight files of an exported model and their index. They correspond to the files that the
// model was read from, with the same tensors in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model_files/weights/checkpoint_tensors.h"
#include "model_files/weights/safetensors_writer.h"
#include "model_files/weights/weight_files.h"

namespace rp {

struct ExportedFile {
  std::string name{};    // without a directory
  std::string header{};  // identical to the source's header if its tensors are the same
  std::vector<TensorDeclaration> declarations{};
  // For each declaration its index in ExportedFiles::tensors; nullopt: copied from the source.
  std::vector<std::optional<std::size_t>> checkpoint{};
};

struct ExportedFiles {
  std::vector<CheckpointTensor> tensors{};  // as they are written: none is quantised
  std::vector<ExportedFile> files{};        // in the order of WeightFiles::files()
  std::string index{};                      // the text of model.safetensors.index.json; empty if there is none
  std::string config{};                     // the text of config.json

  [[nodiscard]] std::uint64_t bytes() const;      // of all tensors
  [[nodiscard]] std::size_t num_carried() const;  // the number of tensors that are copied from the source
};

// Returns the files to write. Quantised tensors become bf16 in the place of their codes, in
// written_layout(), and scales are left out; index and config.json change only if there are such
// tensors. A tied LM head is written if the source has one. REQUIRES: check_weights() has accepted the
// files.
[[nodiscard]] ExportedFiles exported_files(const ModelConfig& config, const WeightFiles& weights);

}  // namespace rp
