// models/tensor_parts.h
// Moves values between parameters and the tensors of files that consist of parts of them
// (model_files/weights/checkpoint_tensors.h). In addition to the parameter itself, at most the
// values of one expert are in memory: there is never a second copy of a tensor of all experts.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "common/dtype.h"
#include "model_files/weights/checkpoint_tensors.h"
#include "model_files/weights/safetensors_writer.h"
#include "model_files/weights/weight_files.h"

namespace rp::models {

// Returns LibTorch's dtype for a tensor of files. Throws rp::Error (kBadInput), with the tensor's
// `name`, if weights cannot have this dtype.
[[nodiscard]] at::ScalarType weight_type(DType dtype, const std::string& name);

// Reads the values that `tensor` has of a parameter into `value`, the whole parameter, and converts
// them to its dtype. Quantised values are expanded, and rounded once. Throws rp::Error (kBadInput). REQUIRES: `value`
// is contiguous and has the parameter's shape; `part` is one of the tensor's parts; check_weights() found no fault.
void read_part(const WeightFiles& weights, const CheckpointTensor& tensor, const TensorPart& part,
               const at::Tensor& value);

// The same for the file of an adapter.
void read_part(const SafetensorsFile& file, const CheckpointTensor& tensor, const TensorPart& part,
               const at::Tensor& value);

// Returns the values of a part's parameter: those of `expert`, or all if `expert` is -1. They may
// have any floating dtype.
using PartSource = std::function<at::Tensor(const TensorPart& part, std::int64_t expert)>;

// Joins the parts of a tensor as in the file, in `dtype`: those of one expert if the tensor
// contains all experts, otherwise the whole tensor.
[[nodiscard]] at::Tensor assemble(const CheckpointTensor& tensor, std::int64_t expert, at::ScalarType dtype,
                                  const PartSource& source);

// Writes a tensor, which is not quantised, in `dtype`. REQUIRES: this tensor is the next one that the
// writer expects.
void write_tensor(SafetensorsWriter& writer, const CheckpointTensor& tensor, at::ScalarType dtype,
                  const PartSource& source);

}  // namespace rp::models
