#include "models/checkpoint.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "common/checked_files/output_directory.h"
#include "model_files/layer_tensors.h"
#include "model_files/weights/adapter_config.h"
#include "model_files/weights/exported_files.h"
#include "model_files/weights/safetensors_writer.h"
#include "model_files/weights/side_files.h"
#include "models/layers/lora.h"
#include "models/layers/quantised_weights.h"
#include "models/tensor_parts.h"

namespace rp::models {

namespace {

// The number of bytes that are compared or copied at a time.
constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;

// Copies the bytes unchanged.
void copy_tensor(const SafetensorsFile& source, const std::string& name, SafetensorsWriter& writer) {
  const std::uint64_t bytes = source.tensor(name).bytes;
  std::vector<char> piece(std::min(kPieceBytes, bytes));
  for (std::uint64_t first = 0; first < bytes; first += piece.size()) {
    const std::uint64_t count = std::min<std::uint64_t>(piece.size(), bytes - first);
    source.read(name, piece.data(), count, first);
    writer.write(name, piece.data(), count);
  }
}

// Returns true if no parameter of the tensor is trained, has a pair, or was quantised.
bool is_frozen(const CheckpointTensor& tensor, const std::vector<LayerTensors>& layers) {
  return std::ranges::all_of(tensor.parts, [&](const TensorPart& part) {
    const LayerTensors& layer = layers[part.layer];
    const LayerTensor* parameter = layer.find(part.parameter);
    const std::string linear = part.parameter.substr(0, part.parameter.rfind('.'));
    return !parameter->is_trained && !parameter->format && layer.find(linear + ".lora_A.weight") == nullptr;
  });
}

// Returns the values of a part, expanded if it is quantised, and merged with the LoRA pair of its
// linear layer if there is one.
class MergedParts {
 public:
  // `dtype`: of quantised weights that are expanded.
  MergedParts(const WeightSource& weight, const std::vector<LayerTensors>& layers, const LoraSettings& lora,
              at::ScalarType dtype)
      : weight_(weight), layers_(layers), lora_(lora), dtype_(dtype) {}

  at::Tensor operator()(const TensorPart& part, std::int64_t expert) const {
    constexpr std::string_view kWeight = ".weight";
    const auto of = [&](const std::string& parameter) { return value_of(part.layer, parameter, expert); };
    const at::Tensor value = of(part.parameter);
    if (!part.parameter.ends_with(kWeight)) return value;
    const std::string linear = part.parameter.substr(0, part.parameter.size() - kWeight.size());
    if (layers_[part.layer].find(linear + ".lora_A.weight") == nullptr) return value;
    LoraPair pair{.a_ri = of(linear + ".lora_A.weight"), .b_or = of(linear + ".lora_B.weight"), .scale = lora_.scale()};
    if (lora_.is_dora) pair.magnitude_o = of(linear + ".lora_magnitude_vector");
    return merged_weight(value, pair);
  }

 private:
  [[nodiscard]] at::Tensor value_of(std::int64_t layer, const std::string& parameter, std::int64_t expert) const {
    const at::Tensor whole = weight_(layer, parameter);
    const LayerTensor* tensor = layers_[layer].find(parameter);
    if (tensor->format)
      return expanded_matrix(whole, tensor->quantised_shape(), std::max<std::int64_t>(expert, 0), dtype_);
    return expert < 0 ? whole : whole[expert];
  }

  const WeightSource& weight_;
  const std::vector<LayerTensors>& layers_;
  const LoraSettings& lora_;
  at::ScalarType dtype_;
};

}  // namespace

std::set<std::pair<std::int64_t, std::string>> wider_parameters(const std::filesystem::path& source) {
  const WeightFiles weights = WeightFiles::open(source);
  const ModelConfig config = adapted_to_files(read_model_config(source), weights);
  std::set<std::pair<std::int64_t, std::string>> found;
  if (config.dtype.value_or(DType::kFloat32) == DType::kFloat32) return found;
  for (const CheckpointTensor& tensor : checkpoint_tensors(config, find_expert_layout(config, weights))) {
    if (!weights.contains(tensor.name) || weights.tensor(tensor.name).dtype != DType::kFloat32) continue;
    for (const TensorPart& part : tensor.parts) found.emplace(part.layer, part.parameter);
  }
  return found;
}

void check_tied_head(const ModelConfig& config, const WeightFiles& weights) {
  const std::string embedding = embedding_in_checkpoint(config), head = head_in_checkpoint(config);
  if (!config.tied_head || !weights.contains(head)) return;
  const std::uint64_t bytes = weights.tensor(embedding).bytes;
  std::vector<char> ours(std::min(kPieceBytes, bytes));
  std::vector<char> heads(ours.size());
  for (std::uint64_t first = 0; first < bytes; first += ours.size()) {
    const std::uint64_t count = std::min<std::uint64_t>(ours.size(), bytes - first);
    weights.read(embedding, ours.data(), count, first);
    weights.read(head, heads.data(), count, first);
    if (std::memcmp(ours.data(), heads.data(), count) == 0) continue;
    throw untied_head(config, weights, "has other values than the embedding");
  }
}

void export_adapter(const std::filesystem::path& source, const std::filesystem::path& output, const TrainedParts& parts,
                    const WeightSource& weight) {
  const ModelConfig config = read_model_config(source);
  const std::vector<CheckpointTensor> tensors = adapter_tensors(config, parts);
  std::vector<TensorDeclaration> declarations;
  for (const CheckpointTensor& tensor : tensors) declarations.push_back({tensor.name, DType::kFloat32, tensor.shape});
  OutputDirectory::make(output, ChecksumKind::kSha256, [&](const OutputDirectory& directory) {
    SafetensorsWriter writer = SafetensorsWriter::create(directory, kAdapterWeightsFile, declarations);
    for (const CheckpointTensor& tensor : tensors) {
      write_tensor(writer, tensor, at::kFloat, [&](const TensorPart& part, std::int64_t expert) {
        const at::Tensor parameter = weight(part.layer, part.parameter);
        return expert < 0 ? parameter : parameter[expert];
      });
    }
    writer.commit();
    directory.write_file(kAdapterConfigFile, adapter_config_text(config, parts, source));
  });
}

void export_checkpoint(const std::filesystem::path& source, const std::filesystem::path& output,
                       const WeightSource& weight, const TrainedParts& parts) {
  const WeightFiles weights = WeightFiles::open(source);
  const ModelConfig config = adapted_to_files(read_model_config(source), weights);
  check_weights(config, weights);
  const ExportedFiles exported = exported_files(config, weights);
  const std::vector<LayerTensors> layers = tensors_of(config, parts);
  OutputDirectory::make(output, ChecksumKind::kSha256, [&](const OutputDirectory& directory) {
    // All files are created first, because each reserves its space.
    std::vector<SafetensorsWriter> writers;
    for (std::size_t i = 0; i < exported.files.size(); ++i) {
      const ExportedFile& file = exported.files[i];
      writers.push_back(SafetensorsWriter::create(directory, file.name, file.declarations, file.header,
                                                  weights.files()[i].permissions()));
    }
    for (std::size_t i = 0; i < writers.size(); ++i) {
      const ExportedFile& file = exported.files[i];
      for (std::size_t place = 0; place < file.declarations.size(); ++place) {
        const TensorDeclaration& declaration = file.declarations[place];
        if (!file.checkpoint[place]) {
          copy_tensor(weights.files()[i], declaration.name, writers[i]);
          continue;
        }
        const CheckpointTensor& tensor = exported.tensors[*file.checkpoint[place]];
        const bool is_unchanged = weights.contains(tensor.name) && is_frozen(tensor, layers);
        if (is_unchanged && weights.tensor(tensor.name).dtype == declaration.dtype) {
          copy_tensor(weights.files()[i], declaration.name, writers[i]);
          continue;
        }
        const at::ScalarType dtype = weight_type(declaration.dtype, tensor.name);
        write_tensor(writers[i], tensor, dtype, MergedParts(weight, layers, parts.lora, dtype));
      }
      writers[i].commit();
    }
    const auto write_text = [&](const char* name, const std::string& text) {
      directory.write_file(name, text, InputFile::open(source / name).permissions());
    };
    write_text(kConfigFile, exported.config);
    if (!exported.index.empty()) write_text(kIndexFile, exported.index);
    for (const SideFile& each : find_side_files(weights).copied) directory.copy_in(each.file, each.name);
  });
}

}  // namespace rp::models
