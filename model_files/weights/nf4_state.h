// model_files/weights/nf4_state.h
// Reads how bitsandbytes describes a weight in NF4: the maps of its codes, and JSON in the tensor
// "NAME.quant_state.bitsandbytes__nf4", such as {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16",
// "shape": [576, 1536], "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.05}.
#pragma once

#include "model_files/weights/checkpoint_tensors.h"
#include "model_files/weights/weight_files.h"

namespace rp {

// Returns the offset of the scales, or 0 without double quantisation. Throws rp::Error (kBadInput)
// naming the stored tensor if it describes another shape, or values, blocks or maps other than those of
// kernels/quantised_weights.h. REQUIRES: the stored tensors have their shapes and dtypes.
[[nodiscard]] float read_nf4_offset(const WeightFiles& weights, const CheckpointTensor& tensor);

}  // namespace rp
