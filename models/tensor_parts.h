// models/tensor_parts.h
// Moves values between parameters and tensors of files, whose parts they are
// (model_files/weights/checkpoint_tensors.h). What is held besides is at most one expert's: no second copy of a tensor
// of all experts is ever in memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "common/dtype.h"
#include "model_files/weights/checkpoint_tensors.h"
#include "model_files/weights/safetensors_writer.h"
#include "model_files/weights/weight_files.h"

namespace rp::models {

// The dtype of tensor `name` in files. Throws rp::Error (kBadInput) if that is none of a weight.
[[nodiscard]] at::ScalarType weight_type(DType dtype, const std::string& name);

// Reads what `tensor` has of a parameter, which is `value`, and converts it to its dtype. Throws rp::Error (kBadInput).
// REQUIRES: `value` is contiguous and has the parameter's shape; `part` is one of the tensor's; check_weights() found
// no fault.
void read_part(const WeightFiles& weights, const CheckpointTensor& tensor, const TensorPart& part,
               const at::Tensor& value);

// The same from an adapter's file.
void read_part(const SafetensorsFile& file, const CheckpointTensor& tensor, const TensorPart& part,
               const at::Tensor& value);

// Gives what a part has of its parameter: of `expert`, or all of it where that is -1. Of any floating dtype.
using PartSource = std::function<at::Tensor(const TensorPart& part, std::int64_t expert)>;

// Puts the parts of a tensor together as the file has them, in `dtype`: of one expert where it is of all experts, else
// all of it.
[[nodiscard]] at::Tensor assemble(const CheckpointTensor& tensor, std::int64_t expert, at::ScalarType dtype,
                                  const PartSource& source);

// Writes a tensor, which is not packed, in `dtype`. REQUIRES: it is its turn.
void write_tensor(SafetensorsWriter& writer, const CheckpointTensor& tensor, at::ScalarType dtype,
                  const PartSource& source);

}  // namespace rp::models
