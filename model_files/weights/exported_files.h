// model_files/weights/exported_files.h
// The weight files of an exported model: those that it was read from, with the same tensors in the same order, and
// their index.
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
  std::string name{};    // in its directory
  std::string header{};  // byte for byte the source's, where its tensors are the same
  std::vector<TensorDeclaration> declarations{};
  std::vector<std::optional<std::size_t>>
      checkpoint{};  // of each declaration its place in ExportedFiles::tensors; absent: carried along
};

struct ExportedFiles {
  std::vector<CheckpointTensor> tensors{};  // as they are written: none is packed
  std::vector<ExportedFile> files{};        // in the order of WeightFiles::files()
  std::string index{};                      // the text of model.safetensors.index.json; empty: there is none
  std::string config{};                     // the text of config.json

  [[nodiscard]] std::uint64_t bytes() const;      // of all tensors
  [[nodiscard]] std::size_t num_carried() const;  // tensors that are carried along
};

// Tensors that are packed become bf16, where their blocks are, in written_layout(); index and config.json are changed
// only where that changes them. A tied LM head is written where the source has one. REQUIRES: check_weights() found no
// fault.
[[nodiscard]] ExportedFiles exported_files(const ModelConfig& config, const WeightFiles& weights);

}  // namespace rp
