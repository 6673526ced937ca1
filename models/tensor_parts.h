// models/tensor_parts.h
// Moves values between parameters and the tensors of files that consist of parts of them
// (model_files/weights/checkpoint_tensors.h). In addition to the parameter itself, at most the
// values of one expert are in memory: there is never a second copy of a tensor of all experts.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

#include "common/dtype.h"
#include "kernels/quantised_weights.h"
#include "model_files/weights/checkpoint_tensors.h"
#include "model_files/weights/safetensors_writer.h"
#include "model_files/weights/weight_files.h"

namespace rp::models {

// Returns LibTorch's dtype for a tensor of files. Throws rp::Error (kBadInput), with the tensor's
// `name`, if weights cannot have this dtype.
[[nodiscard]] at::ScalarType weight_type(DType dtype, const std::string& name);

// Reads the values that `tensor` has of a parameter into `value`, the whole parameter, and converts
// them to its dtype. Throws rp::Error (kBadInput). REQUIRES: `value` is contiguous and has the
// parameter's shape; `part` is one of the tensor's parts; check_weights() found no fault.
void read_part(const WeightFiles& weights, const CheckpointTensor& tensor, const TensorPart& part,
               const at::Tensor& value);

// The same for the file of an adapter.
void read_part(const SafetensorsFile& file, const CheckpointTensor& tensor, const TensorPart& part,
               const at::Tensor& value);

// Returns the format of a tensor that the files have quantised; nullopt if it is not.
[[nodiscard]] std::optional<WeightFormat> format_of(const CheckpointTensor& tensor);

// Reads the part of a quantised parameter that `tensor` has, as it is in the files, into `bytes`, the
// whole parameter (models/layers/quantised_weights.h). Throws rp::Error (kBadInput). REQUIRES:
// format_of(tensor) is the parameter's format; the same of `part` as read_part().
void read_quantised_part(const WeightFiles& weights, const CheckpointTensor& tensor, const TensorPart& part,
                         const QuantisedShape& shape, const at::Tensor& bytes);

// Returns the values of a part's parameter: those of `expert`, or all if `expert` is -1. They may
// have any floating dtype.
using PartSource = std::function<at::Tensor(const TensorPart& part, std::int64_t expert)>;

// Joins the parts of a tensor as in the file, in `dtype`: those of one expert if the tensor
// contains all experts, otherwise the whole tensor.
[[nodiscard]] at::Tensor assemble(const CheckpointTensor& tensor, std::int64_t expert, at::ScalarType dtype,
                                  const PartSource& source);

// Writes a tensor, which is not packed, in `dtype`. REQUIRES: this tensor is the next one that the
// writer expects.
void write_tensor(SafetensorsWriter& writer, const CheckpointTensor& tensor, at::ScalarType dtype,
                  const PartSource& source);

}  // namespace rp::models
