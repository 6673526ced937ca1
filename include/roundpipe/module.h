// roundpipe/module.h
// Describes the user's own torch::nn modules as layers.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "roundpipe/layer.h"

namespace rp {

namespace internal {

std::string readable_type_name(const std::type_info& type);

template <typename T>
std::uint64_t hash_argument(const T& value) {
  if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    return std::hash<std::string_view>{}(value);
  } else if constexpr (std::is_pointer_v<T> || requires { value.get(); }) {
    return 0;  // an address differs between processes
  } else if constexpr (requires { std::hash<T>{}(value); }) {
    return std::hash<T>{}(value);
  } else {
    return 0;
  }
}

// Runs a torch::nn module (its implementation class) as a Layer.
template <typename Module>
class ModuleLayer : public Layer {
 public:
  explicit ModuleLayer(std::shared_ptr<Module> module) : module_(std::move(module)) {}

  std::vector<NamedParameter> parameters() override {
    std::vector<NamedParameter> result;
    for (auto& item : module_->named_parameters()) result.push_back({item.key(), item.value()});
    return result;
  }

  std::vector<NamedBuffer> buffers() override {
    std::vector<NamedBuffer> result;
    for (auto& item : module_->named_buffers()) result.push_back({item.key(), item.value()});
    return result;
  }

  void train(bool on) override { module_->train(on); }

  Tensors forward(const Tensors& inputs) override {
    if constexpr (std::is_invocable_v<decltype(&Module::forward), Module&, const Tensors&>) {
      return module_->forward(inputs);
    } else {
      return {module_->forward(inputs.at(0))};
    }
  }

 private:
  std::shared_ptr<Module> module_;
};

}  // namespace internal

// Describes a torch::nn module of the user as a layer, as in rp::layer<MyBlock>(64, 4). MyBlock
// must be derived from torch::nn::Module and have one `at::Tensor forward(at::Tensor)` or
// `rp::Tensors forward(const rp::Tensors&)`, neither overloaded nor a template. A module holder
// such as torch::nn::Linear works, too. The arguments are copied, and passed to the constructor
// whenever a process builds the layer.
template <typename Module, typename... Arguments>
[[nodiscard]] LayerSpec layer(Arguments... arguments) {
  LayerSpec spec;
  spec.name = internal::readable_type_name(typeid(Module));
  ((spec.arguments_hash = spec.arguments_hash * 1099511628211ULL + internal::hash_argument(arguments)), ...);
  spec.make = [arguments...]() -> std::unique_ptr<Layer> {
    if constexpr (std::is_base_of_v<torch::nn::Module, Module>) {
      return std::make_unique<internal::ModuleLayer<Module>>(std::make_shared<Module>(arguments...));
    } else {
      using Implementation = typename Module::ContainedType;
      return std::make_unique<internal::ModuleLayer<Implementation>>(std::make_shared<Implementation>(arguments...));
    }
  };
  return spec;
}

}  // namespace rp
