#include "model_files/weights/quantised_tensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "common/bad_input.h"
#include "common/text.h"
#include "model_files/weights/nf4_state.h"
#include "model_files/weights/stored_tensors.h"

namespace rp {
namespace {

// The places of one matrix's parts.
struct Parts {
  std::byte *codes, *scales, *nested_scales, *offset;
};

Parts parts_of(const MatrixPlace& to) {
  const QuantisedShape& shape = to.shape;
  const QuantisedLayout layout(shape);
  return {.codes = to.bytes + to.matrix * shape.code_bytes(),
          .scales = to.bytes + layout.scales + to.matrix * shape.scale_bytes(),
          .nested_scales = to.bytes + layout.nested_scales + to.matrix * shape.num_nested_scales() * 4,
          .offset = to.bytes + layout.offsets + to.matrix * shape.num_offsets() * 4};
}

Error damaged(const WeightFiles& weights, const std::string& name, const std::string& what) {
  return bad_input(weights.file_of(name), "tensor ", quoted_name(name), " has ", what, ": the file is damaged");
}

// Reads all numbers of a tensor as fp32.
void read_scales(const WeightFiles& weights, const std::string& name, std::int64_t count, std::byte* to) {
  std::vector<float> scales(static_cast<std::size_t>(count));
  if (weights.tensor(name).dtype == DType::kBFloat16) {
    std::vector<std::uint16_t> halves(scales.size());
    weights.read(name, halves.data(), halves.size() * sizeof(halves[0]));
    std::ranges::transform(halves, scales.begin(),
                           [](std::uint16_t half) { return std::bit_cast<float>(std::uint32_t{half} << 16); });
  } else {
    weights.read(name, scales.data(), scales.size() * sizeof(scales[0]));
  }
  const auto wrong = std::ranges::find_if(scales, [](float scale) { return !std::isfinite(scale); });
  if (wrong != scales.end()) throw damaged(weights, name, cat("a scale of ", *wrong));
  std::memcpy(to, scales.data(), scales.size() * sizeof(scales[0]));
}

void read_bytes(const WeightFiles& weights, const std::string& name, std::int64_t count, std::byte* to) {
  weights.read(name, to, static_cast<std::uint64_t>(count));
}

// A part may be every second row of a matrix in the file.
void read_mxfp4(const WeightFiles& weights, const CheckpointTensor& tensor, const TensorPart& part, std::int64_t expert,
                const MatrixPlace& to) {
  constexpr std::byte kNotANumber{0xFF};
  const Parts parts = parts_of(to);
  const std::int64_t rows = to.shape.rows, file_rows = quantised_shape(tensor).rows;
  const auto read_rows = [&](const std::string& name, std::int64_t row_bytes, std::byte* first) {
    std::vector<std::byte> all(static_cast<std::size_t>(file_rows * row_bytes));
    weights.read(name, all.data(), all.size(), static_cast<std::uint64_t>(expert) * all.size());
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::byte* const from = all.data() + (part.first_row + row * part.row_step) * row_bytes;
      std::memcpy(first + row * row_bytes, from, static_cast<std::size_t>(row_bytes));
    }
  };
  const std::string scales = cat(tensor.name, kMxfp4Scales);
  read_rows(cat(tensor.name, kMxfp4Blocks), to.shape.code_bytes() / rows, parts.codes);
  read_rows(scales, to.shape.scale_bytes() / rows, parts.scales);
  if (std::count(parts.scales, parts.scales + to.shape.scale_bytes(), kNotANumber) > 0)
    throw damaged(weights, scales, "a scale of 255, which makes the weights of its block NaN");
}

void read_fp8(const WeightFiles& weights, const CheckpointTensor& tensor, const MatrixPlace& to) {
  const Parts parts = parts_of(to);
  const std::int64_t num_codes = to.shape.code_bytes();
  read_bytes(weights, tensor.name, num_codes, parts.codes);
  const auto is_nan = [](std::byte code) { return (code & std::byte{0x7F}) == std::byte{0x7F}; };
  // Counting all is faster than stopping at the first one.
  if (const auto num_nan = std::count_if(parts.codes, parts.codes + num_codes, is_nan); num_nan > 0)
    throw damaged(weights, tensor.name, cat(num_nan, " NaN among its ", num_codes, " values"));
  read_scales(weights, cat(tensor.name, kFp8Scales), to.shape.num_scales(), parts.scales);
}

void read_nf4(const WeightFiles& weights, const CheckpointTensor& tensor, const MatrixPlace& to) {
  const Parts parts = parts_of(to);
  const std::string scales = cat(tensor.name, kNf4Scales);
  read_bytes(weights, tensor.name, to.shape.code_bytes(), parts.codes);
  if (tensor.format == WeightFormat::kNf4) return read_scales(weights, scales, to.shape.num_scales(), parts.scales);
  read_bytes(weights, scales, to.shape.num_scales(), parts.scales);
  read_scales(weights, cat(tensor.name, kNf4NestedScales), to.shape.num_nested_scales(), parts.nested_scales);
  const float offset = read_nf4_offset(weights, tensor);
  std::memcpy(parts.offset, &offset, sizeof(offset));
}

}  // namespace

void read_quantised_matrix(const WeightFiles& weights, const CheckpointTensor& tensor, const TensorPart& part,
                           std::int64_t expert, const MatrixPlace& to) {
  switch (*tensor.format) {
    case WeightFormat::kMxfp4: return read_mxfp4(weights, tensor, part, expert, to);
    case WeightFormat::kFp8Blocks:
    case WeightFormat::kFp8Tensor: return read_fp8(weights, tensor, to);
    case WeightFormat::kNf4:
    case WeightFormat::kNf4Double: return read_nf4(weights, tensor, to);
  }
}

void read_quantised_part(const WeightFiles& weights, const CheckpointTensor& tensor, const TensorPart& part,
                         const QuantisedShape& shape, std::byte* bytes) {
  if (!tensor.is_of_all_experts) {
    const std::int64_t matrix = std::max<std::int64_t>(part.expert, 0);
    return read_quantised_matrix(weights, tensor, part, 0, {.shape = shape, .matrix = matrix, .bytes = bytes});
  }
  for (std::int64_t expert = 0; expert < shape.matrices; ++expert)
    read_quantised_matrix(weights, tensor, part, expert, {.shape = shape, .matrix = expert, .bytes = bytes});
}

double bound_of_values(const QuantisedWeights& weights, std::int64_t matrix) {
  const QuantisedShape& shape = weights.shape;
  const QuantisedMatrix parts = matrix_of(weights, matrix);
  const auto largest = [](const float* numbers, std::int64_t count) {
    double most = 0;
    for (std::int64_t i = 0; i < count; ++i) most = std::max(most, std::abs(static_cast<double>(numbers[i])));
    return most;
  };
  switch (shape.format) {
    case WeightFormat::kNf4: return largest(static_cast<const float*>(parts.scales), shape.num_scales());
    case WeightFormat::kNf4Double:
      return largest(parts.nested_scales, shape.num_nested_scales()) + largest(parts.offset, 1);
    case WeightFormat::kMxfp4: {
      constexpr int kBias = 127;
      constexpr double kLargestCode = 6;
      const auto* const scales = static_cast<const std::uint8_t*>(parts.scales);
      return std::ldexp(kLargestCode, *std::max_element(scales, scales + shape.num_scales()) - kBias);
    }
    case WeightFormat::kFp8Blocks:
    case WeightFormat::kFp8Tensor:
      return double{kLargestFp8} * largest(static_cast<const float*>(parts.scales), shape.num_scales());
  }
  return 0;
}

}  // namespace rp
