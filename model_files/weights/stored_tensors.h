// model_files/weights/stored_tensors.h
// The tensors in which files store a tensor of a checkpoint: itself or, if it is quantised, its codes,
// their scales and descriptions of them.
//
// Suffixes of the names, and shapes; r and c are the rows and columns of a weight, n = r c:
// - MXFP4, all e experts: "_blocks" [e, r, c / 32, 16], "_scales" [e, r, c / 32].
// - 8-bit floats: the codes have no suffix; "_scale_inv" [ceil(r / 128), ceil(c / 128)], or [] with one
//   scale for the matrix.
// - NF4: the codes [ceil(n / 2), 1] have no suffix; ".absmax" [ceil(n / 64)], ".quant_map" [16], and the
//   JSON of nf4_state.h; with double quantisation also ".nested_absmax" [ceil(n / 64 / 256)] and
//   ".nested_quant_map" [256].
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/dtype.h"
#include "model_files/weights/checkpoint_tensors.h"
#include "model_files/weights/weight_files.h"

namespace rp {

inline constexpr std::string_view kMxfp4Blocks = "_blocks", kMxfp4Scales = "_scales";
inline constexpr std::string_view kFp8Scales = "_scale_inv";
inline constexpr std::string_view kNf4Scales = ".absmax", kNf4Map = ".quant_map";
inline constexpr std::string_view kNf4NestedScales = ".nested_absmax", kNf4NestedMap = ".nested_quant_map";
inline constexpr std::string_view kNf4State = ".quant_state.bitsandbytes__nf4";

struct StoredTensor {
  std::string name{};
  std::vector<std::int64_t> shape{};  // -1: any number
  std::span<const DType> dtypes{};    // those that it may have
};

// Returns the tensors that a file has for `tensor`, the weight or its codes first.
[[nodiscard]] std::vector<StoredTensor> stored_tensors(const CheckpointTensor& tensor);

// Returns the names of further tensors that files may have for a weight in 8-bit floats: the scales with
// which its inputs would be rounded ("activation_scheme": "static"). They are not read.
[[nodiscard]] std::vector<std::string> activation_scales(const CheckpointTensor& tensor);

// Returns the suffix of a tensor that files have next to each weight in this format, and next to no
// other weight. REQUIRES: `format` is not kMxfp4.
[[nodiscard]] std::string_view suffix_of_quantised(WeightFormat format);

// Returns the sizes of a quantised tensor as those of a parameter. For a tensor of all experts, each
// expert is a matrix. REQUIRES: the tensor has a format.
[[nodiscard]] QuantisedShape quantised_shape(const CheckpointTensor& tensor);

// Checks that the files have all stored tensors of `tensor`, with their shapes and dtypes, and for NF4
// that they describe the format. Throws rp::Error (kBadInput) naming the stored tensor.
void check_stored(const CheckpointTensor& tensor, const WeightFiles& weights);

}  // namespace rp
