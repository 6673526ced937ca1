#include "models/checkpoint.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "common/check.h"
#include "common/text.h"
#include "model_files/adapter_config.h"
#include "model_files/layer_tensors.h"
#include "model_files/output_directory.h"
#include "model_files/safetensors_writer.h"
#include "models/lora.h"
#include "models/scalar_type.h"
#include "roundpipe/error.h"

namespace rp::models {

namespace {

// Weights are converted in pieces of this many elements.
constexpr std::int64_t kPieceElements = std::int64_t{4} << 20;

at::ScalarType weight_type(DType dtype, const std::string& name) {
  if (is_working_dtype(dtype) || dtype == DType::kFloat64) return scalar_type_of(dtype);
  throw Error(ExitCode::kBadInput, cat("tensor '", name, "' is of type ", dtype_name(dtype),
                                       ", which is no weight: F32, F16 and BF16 are read"));
}

// Weight files of any format, and lists of them: what is not copied to an exported directory.
bool is_weight_file(const std::filesystem::path& path) {
  static constexpr std::string_view kEndings[] = {".safetensors", ".index.json", ".bin", ".pt", ".pth", ".gguf",
                                                  ".h5",          ".msgpack",    ".onnx"};
  const std::string name = path.filename().string();
  return std::any_of(std::begin(kEndings), std::end(kEndings),
                     [&name](std::string_view ending) { return name.ends_with(ending); });
}

void write_tensor(SafetensorsWriter& writer, const std::string& name, const at::Tensor& value, at::ScalarType dtype) {
  const at::Tensor elements = value.detach().contiguous().view({-1});
  for (std::int64_t first = 0; first < elements.numel(); first += kPieceElements) {
    const at::Tensor piece =
        elements.narrow(0, first, std::min(kPieceElements, elements.numel() - first)).to(dtype).contiguous();
    writer.write(name, piece.const_data_ptr(), piece.nbytes());
  }
}

}  // namespace

namespace {

template <typename Source>
void read_pieces(const Source& weights, const std::string& name, const at::Tensor& value) {
  const TensorInfo& info = weights.tensor(name);
  const at::ScalarType dtype = weight_type(info.dtype, name);
  const at::Tensor elements = value.view({-1});
  const auto element_size = static_cast<std::int64_t>(dtype_bytes(info.dtype));
  RP_ASSERT(static_cast<std::uint64_t>(elements.numel() * element_size) == info.bytes);
  const at::Tensor buffer = at::empty({std::min(kPieceElements, elements.numel())}, dtype);
  for (std::int64_t first = 0; first < elements.numel(); first += kPieceElements) {
    const std::int64_t count = std::min(kPieceElements, elements.numel() - first);
    weights.read(name, buffer.mutable_data_ptr(), static_cast<std::uint64_t>(count * element_size),
                 static_cast<std::uint64_t>(first * element_size));
    elements.narrow(0, first, count).copy_(buffer.narrow(0, 0, count));
  }
}

// Where a linear layer has a pair: the weight with it.
at::Tensor merged(const WeightSource& weight, const CheckpointTensor& tensor, const at::Tensor& value, const LayerTensors& layer,
                  const LoraSettings& lora) {
  constexpr std::string_view kWeight = ".weight";
  if (!tensor.parameter.ends_with(kWeight)) return value;
  const std::string linear = tensor.parameter.substr(0, tensor.parameter.size() - kWeight.size());
  if (layer.find(linear + ".lora_A.weight") == nullptr) return value;
  const auto part = [&](const std::string& name) {
    const at::Tensor whole = weight(tensor.layer, linear + name);
    return tensor.expert < 0 ? whole : whole[tensor.expert];
  };
  LoraPair pair{.a_ri = part(".lora_A.weight"), .b_or = part(".lora_B.weight"), .scale = lora.scale()};
  if (lora.is_dora) pair.magnitude_o = part(".lora_magnitude_vector");
  return merged_weight(value, pair);
}

}  // namespace

void read_tensor(const WeightFiles& weights, const std::string& name, const at::Tensor& value) { read_pieces(weights, name, value); }

void read_tensor(const SafetensorsFile& file, const std::string& name, const at::Tensor& value) { read_pieces(file, name, value); }

void check_tied_head(const ModelConfig& config, const WeightFiles& weights) {
  if (!config.tied_head || !weights.contains(kHeadTensor)) return;
  const std::string embedding(kEmbeddingTensor);
  const std::uint64_t bytes = weights.tensor(embedding).bytes;
  std::vector<char> ours(std::min<std::uint64_t>(kPieceElements, bytes));
  std::vector<char> heads(ours.size());
  for (std::uint64_t first = 0; first < bytes; first += ours.size()) {
    const std::uint64_t count = std::min<std::uint64_t>(ours.size(), bytes - first);
    weights.read(embedding, ours.data(), count, first);
    weights.read(kHeadTensor, heads.data(), count, first);
    if (std::memcmp(ours.data(), heads.data(), count) == 0) continue;
    throw untied_head(weights, "has other values than the embedding");
  }
}

void export_adapter(const std::filesystem::path& source, const std::filesystem::path& output, const TrainedParts& parts,
                    const WeightSource& weight) {
  const ModelConfig config = read_model_config(source);
  const std::vector<AdapterTensor> tensors = adapter_tensors(config, parts);
  std::vector<TensorDeclaration> declarations;
  for (const AdapterTensor& tensor : tensors) declarations.push_back({tensor.name, DType::kFloat32, tensor.shape});
  OutputDirectory::make(output, [&](const OutputDirectory& directory) {
    SafetensorsWriter writer = SafetensorsWriter::create(directory.path() / kAdapterWeightsFile, declarations);
    for (const AdapterTensor& tensor : tensors) {
      const at::Tensor parameter = weight(tensor.layer, tensor.parameter);
      write_tensor(writer, tensor.name, tensor.expert < 0 ? parameter : parameter[tensor.expert], at::kFloat);
    }
    writer.commit();
    OutputFile file = OutputFile::create(directory.path() / kAdapterConfigFile);
    const std::string text = adapter_config_text(config, parts, source);
    file.write(text.data(), text.size());
    file.commit();
  });
}

void export_checkpoint(const std::filesystem::path& source, const std::filesystem::path& output, const WeightSource& weight,
                       const TrainedParts& parts) {
  const ModelConfig config = read_model_config(source);
  const WeightFiles weights = WeightFiles::open(source);
  check_weights(config, weights);
  std::vector<CheckpointTensor> tensors = checkpoint_tensors(config);
  // Some exporters write a tied LM head too; whoever reads such a file may rely on it.
  if (config.tied_head && weights.contains(kHeadTensor)) {
    tensors.push_back({std::string(kHeadTensor), {config.vocabulary, config.hidden}, 0, "weight"});
  }
  std::vector<TensorDeclaration> declarations;
  for (const CheckpointTensor& tensor : tensors) {
    declarations.push_back({tensor.name, weights.tensor(tensor.name).dtype, tensor.shape});
  }
  const std::vector<LayerTensors> layers = tensors_of(config, parts);
  OutputDirectory::make(output, [&](const OutputDirectory& directory) {
    SafetensorsWriter writer = SafetensorsWriter::create(directory.path() / "model.safetensors", declarations);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const CheckpointTensor& tensor = tensors[i];
      const at::Tensor parameter = weight(tensor.layer, tensor.parameter);
      const at::Tensor value = tensor.expert < 0 ? parameter : parameter[tensor.expert];
      RP_ASSERT(value.sizes() == at::IntArrayRef(tensor.shape));
      const LayerTensors& layer = layers[static_cast<std::size_t>(tensor.layer)];
      write_tensor(writer, tensor.name, merged(weight, tensor, value, layer, parts.lora), weight_type(declarations[i].dtype, tensor.name));
    }
    writer.commit();
    for (const auto& entry : std::filesystem::directory_iterator(source)) {
      if (entry.is_regular_file() && !is_weight_file(entry.path())) {
        directory.copy_in(entry.path(), entry.path().filename());
      }
    }
  });
}

}  // namespace rp::models
