// tests/random/packed_layer.h
// A layer as a user writes it whose weight is stored in fewer bits than it computes with, and is
// expanded once for each task.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "roundpipe/layer.h"
#include "tests/random/draw.h"
#include "tests/random/random_layers.h"

namespace rp::test {

// Computes tanh(W x + b): W = (codes - 128) / 256 is frozen and has a byte for each element, b is
// trained. Throws if no task has begun.
class PackedDense : public Layer {
 public:
  PackedDense(std::int64_t width, at::ScalarType dtype)
      : codes_(placeholder({width, width}, at::kByte)), bias_(placeholder({width}, dtype)) {}

  std::vector<NamedParameter> parameters() override {
    return {{.name = "codes", .value = codes_, .keeps_dtype = true}, {.name = "bias", .value = bias_}};
  }

  void begin_task() override { weight_ = (codes_.to(at::kFloat) - 128) / 256; }
  void end_task() override { weight_ = at::Tensor(); }

  Tensors forward(const Tensors& list) override {
    if (!weight_.defined()) throw std::logic_error("the layer runs outside of a task");
    Tensors result = list;
    result[kX] = at::tanh(at::linear(list[kX], weight_.to(list[kX].scalar_type()), bias_));
    return result;
  }

 private:
  at::Tensor codes_, bias_;
  at::Tensor weight_;  // between begin_task() and end_task(); every dtype has its values
};

inline LayerSpec packed_dense(std::uint64_t seed, std::int64_t width, at::ScalarType dtype) {
  LayerSpec spec;
  spec.name = "PackedDense";
  spec.arguments_hash = seed;
  spec.make = [width, dtype] { return std::make_unique<PackedDense>(width, dtype); };
  spec.initialize = [seed](const std::string& parameter, const at::Tensor& value) {
    Draw draw(seed);
    value.copy_(parameter == "codes" ? draw.integers(256, value.sizes()) : draw.normal(value.sizes()) * 0.1);
  };
  return spec;
}

}  // namespace rp::test
