#include "models/llama_weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "common/check.h"
#include "common/text.h"
#include "model_files/output_directory.h"
#include "model_files/safetensors_writer.h"
#include "model_files/shapes.h"
#include "roundpipe/error.h"

namespace rp::models {

namespace {

// Weights are converted in pieces of this many elements.
constexpr std::int64_t kPieceElements = std::int64_t{4} << 20;

at::ScalarType scalar_type(TensorDType dtype, const std::string& name) {
  switch (dtype) {
    case TensorDType::kF32: return at::kFloat;
    case TensorDType::kF16: return at::kHalf;
    case TensorDType::kBF16: return at::kBFloat16;
    case TensorDType::kF64: return at::kDouble;
    default: break;
  }
  throw Error(ExitCode::kBadInput, cat("tensor '", name, "' is of type ", dtype_name(dtype),
                                       ", which is no weight: F32, F16 and BF16 are read"));
}

// What stands before the parameter's name in the name of a tensor of this layer.
std::string prefix(const LlamaConfig& config, std::int64_t layer) {
  if (layer == 0) return "model.embed_tokens.";
  if (layer <= config.num_layers) return cat("model.layers.", layer - 1, ".");
  return "model.";
}

constexpr std::string_view kLmHead = "lm_head.weight";

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

std::string llama_tensor_name(const LlamaConfig& config, std::int64_t layer, const std::string& parameter) {
  if (layer == config.num_layers + 1 && parameter == kLmHead) {
    return config.tie_word_embeddings ? prefix(config, 0) + "weight" : parameter;
  }
  return prefix(config, layer) + parameter;
}

std::string llama_parameter_name(const LlamaConfig& config, std::int64_t layer, const std::string& tensor) {
  if (tensor == kLmHead) return tensor;
  const std::string start = prefix(config, layer);
  RP_ASSERT(tensor.starts_with(start));
  return tensor.substr(start.size());
}

void read_tensor(const WeightFiles& weights, const std::string& name, const at::Tensor& value) {
  const TensorInfo& info = weights.tensor(name);
  const at::ScalarType dtype = scalar_type(info.dtype, name);
  const at::Tensor elements = value.view({-1});
  const auto element_size = static_cast<std::int64_t>(element_bytes(info.dtype));
  RP_ASSERT(static_cast<std::uint64_t>(elements.numel() * element_size) == info.bytes);
  const at::Tensor buffer = at::empty({std::min(kPieceElements, elements.numel())}, dtype);
  for (std::int64_t first = 0; first < elements.numel(); first += kPieceElements) {
    const std::int64_t count = std::min(kPieceElements, elements.numel() - first);
    weights.read(name, buffer.mutable_data_ptr(), static_cast<std::uint64_t>(count * element_size),
                 static_cast<std::uint64_t>(first * element_size));
    elements.narrow(0, first, count).copy_(buffer.narrow(0, 0, count));
  }
}

void check_tied_head(const LlamaConfig& config, const WeightFiles& weights) {
  if (!config.tie_word_embeddings || !weights.contains(kLmHead)) return;
  const std::string embedding = llama_tensor_name(config, 0, "weight");
  const std::uint64_t bytes = weights.tensor(embedding).bytes;
  std::vector<char> ours(std::min<std::uint64_t>(kPieceElements, bytes));
  std::vector<char> heads(ours.size());
  for (std::uint64_t first = 0; first < bytes; first += ours.size()) {
    const std::uint64_t count = std::min<std::uint64_t>(ours.size(), bytes - first);
    weights.read(embedding, ours.data(), count, first);
    weights.read(kLmHead, heads.data(), count, first);
    if (std::memcmp(ours.data(), heads.data(), count) == 0) continue;
    throw untied_head(weights, "has other values than the embedding");
  }
}

void export_llama(const std::filesystem::path& source, const std::filesystem::path& output,
                  const WeightSource& weight) {
  const LlamaConfig config = read_llama_config(source / "config.json");
  const WeightFiles weights = WeightFiles::open(source);
  check_weights(config, weights);
  std::vector<ExpectedTensor> tensors = llama_tensors(config);
  // Some exporters write a tied LM head too; whoever reads such a file may rely on it.
  if (config.tie_word_embeddings && weights.contains(kLmHead)) {
    tensors.push_back({std::string(kLmHead), {config.vocabulary, config.hidden_size}, 0});
  }
  std::vector<TensorDeclaration> declarations;
  for (const ExpectedTensor& tensor : tensors) {
    declarations.push_back({tensor.name, weights.tensor(tensor.name).dtype, tensor.shape});
  }
  OutputDirectory::make(output, [&](const OutputDirectory& directory) {
    SafetensorsWriter writer = SafetensorsWriter::create(directory.path() / "model.safetensors", declarations);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const ExpectedTensor& tensor = tensors[i];
      const bool tied_head = config.tie_word_embeddings && tensor.name == kLmHead;
      const std::string parameter = tied_head ? "weight" : llama_parameter_name(config, tensor.layer, tensor.name);
      const at::Tensor value = weight(tensor.layer, parameter);
      RP_ASSERT(value.sizes() == at::IntArrayRef(tensor.shape));
      write_tensor(writer, tensor.name, value, scalar_type(declarations[i].dtype, tensor.name));
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
