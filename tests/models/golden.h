// tests/models/golden.h
// The golden values of tools/make_llama_golden.py, and layers bound to weights as the runtime binds them.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "model_files/safetensors.h"
#include "roundpipe/model.h"

namespace rp::models {

inline std::filesystem::path golden_directory() { return RP_GOLDEN_DIRECTORY; }
inline std::filesystem::path tiny_directory() { return golden_directory() / "tiny"; }

// All tensors of a safetensors file.
inline std::map<std::string, at::Tensor> read_safetensors(const std::filesystem::path& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::map<std::string, at::Tensor> result;
  for (const auto& [name, info] : file.tensors()) {
    const at::ScalarType dtype = info.dtype == TensorDType::kI64   ? at::kLong
                                 : info.dtype == TensorDType::kF32 ? at::kFloat
                                                                   : at::kBFloat16;
    const at::Tensor value = at::empty(info.shape, dtype);
    file.read(name, value.mutable_data_ptr(), info.bytes);
    result.emplace(name, value);
  }
  return result;
}

// A layer whose parameters are views of one flat block of weights, and whose gradients accumulate in views of one flat
// fp32 block.
class BoundLayer {
 public:
  // `shift` elements (a multiple of 32: 64 bytes) stay free before the first parameter of each block.
  BoundLayer(const LayerSpec& spec, at::ScalarType dtype, std::int64_t shift = 0) : layer_(spec.make()) {
    std::int64_t elements = shift;
    for (const NamedParameter& parameter : layer_->parameters()) elements += padded(parameter.value.numel());
    const at::Tensor weights = at::zeros({elements}, dtype);
    const at::Tensor gradients = at::zeros({elements}, at::kFloat);
    std::int64_t first = shift;
    for (NamedParameter& parameter : layer_->parameters()) {
      const std::int64_t count = parameter.value.numel();
      const auto view = [&](const at::Tensor& block) {
        return block.narrow(0, first, count).view(parameter.value.sizes());
      };
      const at::Tensor initial = at::zeros(parameter.value.sizes(), at::kFloat);
      spec.initialize(parameter.name, initial);
      view(weights).copy_(initial);
      parameter.value.set_data(view(weights));
      parameter.value.set_grad_dtype(at::kFloat);
      parameter.value.mutable_grad() = view(gradients);
      first += padded(count);
    }
    weights_ = weights;
    gradients_ = gradients;
  }

  Tensors operator()(const Tensors& inputs) { return layer_->forward(inputs); }
  [[nodiscard]] std::vector<NamedParameter> parameters() { return layer_->parameters(); }
  [[nodiscard]] const at::Tensor& gradients() const { return gradients_; }

 private:
  static std::int64_t padded(std::int64_t elements) { return (elements + 31) / 32 * 32; }

  std::unique_ptr<Layer> layer_;
  at::Tensor weights_;
  at::Tensor gradients_;
};

// max |a - b| / max |b|
inline double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return 1e30;
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>() /
         std::max(1e-30, b.to(at::kDouble).abs().max().item<double>());
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         std::memcmp(a.contiguous().const_data_ptr(), b.contiguous().const_data_ptr(), a.nbytes()) == 0;
}

}  // namespace rp::models
