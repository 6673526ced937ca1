#include "model_files/weights/stored_tensors.h"

#include <algorithm>

#include "common/bad_input.h"
#include "common/text.h"
#include "model_files/layer_tensors.h"
#include "model_files/weights/nf4_state.h"

namespace rp {
namespace {

constexpr DType kWeights[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr DType kScales[] = {DType::kFloat32, DType::kBFloat16};
constexpr DType kFloats[] = {DType::kFloat32};
constexpr DType kFp8Codes[] = {DType::kFloat8E4m3};
constexpr DType kBytes[] = {DType::kUInt8};
constexpr std::int64_t kAnyNumber = -1;

bool is_fp8(std::optional<WeightFormat> format) {
  return format == WeightFormat::kFp8Blocks || format == WeightFormat::kFp8Tensor;
}

bool is_nf4(std::optional<WeightFormat> format) {
  return format == WeightFormat::kNf4 || format == WeightFormat::kNf4Double;
}

std::vector<StoredTensor> mxfp4_tensors(const CheckpointTensor& tensor) {
  std::vector<std::int64_t> scales = tensor.shape;
  scales.back() /= kMxfp4Block;
  std::vector<std::int64_t> blocks = scales;
  blocks.push_back(kMxfp4Block / 2);
  return {{cat(tensor.name, kMxfp4Blocks), blocks, kBytes}, {cat(tensor.name, kMxfp4Scales), scales, kBytes}};
}

std::vector<StoredTensor> nf4_tensors(const CheckpointTensor& tensor) {
  const QuantisedShape shape = quantised_shape(tensor);
  const bool is_double = tensor.format == WeightFormat::kNf4Double;
  const auto stored = [&](std::string_view suffix, std::int64_t length, std::span<const DType> dtypes) {
    return StoredTensor{cat(tensor.name, suffix), {length}, dtypes};
  };
  std::vector<StoredTensor> tensors = {
      {tensor.name, {shape.code_bytes(), 1}, kBytes},
      stored(kNf4Scales, shape.num_scales(), is_double ? std::span<const DType>(kBytes) : kFloats),
      stored(kNf4Map, std::size(kNf4Codes.at), kFloats)};
  if (is_double) {
    tensors.push_back(stored(kNf4NestedScales, shape.num_nested_scales(), kFloats));
    tensors.push_back(stored(kNf4NestedMap, std::size(kNestedMap.at), kFloats));
  }
  tensors.push_back(stored(kNf4State, kAnyNumber, kBytes));
  return tensors;
}

std::string text_of(const std::vector<std::int64_t>& shape) {
  return shape == std::vector{kAnyNumber} ? "[any]" : shape_text(shape);
}

bool has_shape(const TensorInfo& found, const std::vector<std::int64_t>& shape) {
  return std::ranges::equal(found.shape, shape,
                            [](std::int64_t is, std::int64_t wanted) { return wanted == kAnyNumber || is == wanted; });
}

void check_dtype(const StoredTensor& stored, const WeightFiles& weights) {
  const DType found = weights.tensor(stored.name).dtype;
  if (std::ranges::find(stored.dtypes, found) != stored.dtypes.end()) return;
  std::vector<std::string> names;
  for (const DType dtype : stored.dtypes) names.emplace_back(dtype_name(dtype));
  const bool are_codes = found == DType::kFloat8E4m3 || found == DType::kUInt8;
  throw bad_input(weights.file_of(stored.name), "tensor ", quoted_name(stored.name), " has dtype ", dtype_name(found),
                  ", but must be ", list_of(names),
                  are_codes && stored.dtypes.data() == kWeights
                      ? "; it looks quantised, but its scales are missing or have other names"
                      : "");
}

}  // namespace

QuantisedShape quantised_shape(const CheckpointTensor& tensor) {
  return quantised_shape(*tensor.format, tensor.shape, tensor.is_of_all_experts);
}

std::vector<StoredTensor> stored_tensors(const CheckpointTensor& tensor) {
  if (!tensor.format) return {{tensor.name, tensor.shape, kWeights}};
  const std::string scales = cat(tensor.name, kFp8Scales);
  const auto blocks = [&](std::size_t dimension) { return (tensor.shape[dimension] + kFp8Side - 1) / kFp8Side; };
  switch (*tensor.format) {
    case WeightFormat::kMxfp4: return mxfp4_tensors(tensor);
    case WeightFormat::kFp8Blocks:
      return {{tensor.name, tensor.shape, kFp8Codes}, {scales, {blocks(0), blocks(1)}, kScales}};
    case WeightFormat::kFp8Tensor: return {{tensor.name, tensor.shape, kFp8Codes}, {scales, {}, kScales}};
    case WeightFormat::kNf4:
    case WeightFormat::kNf4Double: return nf4_tensors(tensor);
  }
  return {};
}

std::vector<std::string> activation_scales(const CheckpointTensor& tensor) {
  constexpr std::string_view kWeight = ".weight";
  if (!is_fp8(tensor.format) || !tensor.name.ends_with(kWeight)) return {};
  const std::string linear = tensor.name.substr(0, tensor.name.size() - kWeight.size());
  return {linear + ".activation_scale", linear + ".input_scale"};
}

std::string_view suffix_of_quantised(WeightFormat format) { return is_fp8(format) ? kFp8Scales : kNf4State; }

void check_stored(const CheckpointTensor& tensor, const WeightFiles& weights) {
  if (tensor.format == WeightFormat::kMxfp4 && tensor.shape.back() % kMxfp4Block != 0) {
    throw bad_input(weights.directory(), "tensor ", quoted_name(tensor.name), " of shape ", shape_text(tensor.shape),
                    ", which config.json calls for, ", "does not divide into blocks of ", kMxfp4Block,
                    ", but the weight files hold experts in such blocks");
  }
  const std::vector<StoredTensor> all_stored = stored_tensors(tensor);
  for (const StoredTensor& stored : all_stored) {
    if (!weights.contains(stored.name)) {
      const StoredTensor& other = stored.name == all_stored.front().name ? all_stored.back() : all_stored.front();
      throw bad_input(weights.directory(), "the weight files have no tensor ", quoted_name(stored.name), " of shape ",
                      text_of(stored.shape), ", which config.json calls for",
                      tensor.format ? cat(" together with ", quoted_name(other.name)) : "");
    }
    check_dtype(stored, weights);
    const TensorInfo& found = weights.tensor(stored.name);
    if (!has_shape(found, stored.shape)) {
      throw bad_input(weights.file_of(stored.name), "tensor ", quoted_name(stored.name), " has shape ",
                      shape_text(found.shape), ", but config.json calls for ", text_of(stored.shape));
    }
  }
  if (is_nf4(tensor.format)) (void)read_nf4_offset(weights, tensor);
}

}  // namespace rp
