#include "models/layers/quantised_weights.h"

#include <ATen/ATen.h>

#include "kernels/cpu/quantised/weight_kernels.h"
#include "models/layers/kernel_call.h"

namespace rp::models {

namespace {

QuantisedWeights weights_in(const at::Tensor& bytes, const QuantisedShape& shape) {
  return {.shape = shape, .bytes = static_cast<const std::byte*>(bytes.const_data_ptr())};
}

}  // namespace

at::Tensor expanded(const at::Tensor& bytes, const QuantisedShape& shape, at::IntArrayRef sizes, at::ScalarType dtype) {
  const at::Tensor values = at::empty(sizes, bytes.options().dtype(dtype));
  const QuantisedWeights weights = weights_in(bytes, shape);
  void* const data = values.mutable_data_ptr();
  if (runs_on_gpu(bytes)) {
    const GpuKernels& kernels = gpu_kernels();
    kernels.expand_weights(kernel_dtype(values), weights, data, kernels.current_stream());
    return values;
  }
  share_elements(values.numel(), [&, out = kernel_dtype(values)](std::int64_t begin, std::int64_t end) {
    expand_weights(weight_kernels(), out, weights, data, begin, end);
  });
  return values;
}

at::Tensor expanded_matrix(const at::Tensor& bytes, const QuantisedShape& shape, std::int64_t matrix,
                           at::ScalarType dtype) {
  const at::Tensor values = at::empty({shape.rows, shape.columns}, dtype);
  const QuantisedMatrix parts = matrix_of(weights_in(bytes, shape), matrix);
  void* const data = values.mutable_data_ptr();
  share_elements(values.numel(), [&, out = kernel_dtype(values)](std::int64_t begin, std::int64_t end) {
    weight_kernels().expand(out, parts, data, begin, end);
  });
  return values;
}

bool quantise(const at::Tensor& values, const QuantisedShape& shape, std::int64_t matrix, const at::Tensor& bytes) {
  return quantise_weights(weight_kernels(), kernel_dtype(values), values.const_data_ptr(), shape, matrix,
                          static_cast<std::byte*>(bytes.mutable_data_ptr()));
}

}  // namespace rp::models
