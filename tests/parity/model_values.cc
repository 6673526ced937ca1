// model_values float32|bfloat16 [--gpu] CASE...: each case is a folder that contains a model and
// inputs.safetensors {ids, labels, divisor, optionally documents (roundpipe/models.h), optionally
// z_loss, its coefficient}. Writes what our layers compute to values-DTYPE.safetensors: "logits",
// "loss", "z_loss" and "aux_loss" if they are trained, and the gradient of each tensor of the
// model's files under the tensor's name. All values are written as fp32. The weights of the layers
// are exported to exported-DTYPE. If the folder has an adapter (adapter/), the gradients are those
// of the adapter's tensors under their names, the exported weights include the adapter, and the
// adapter itself is written to adapter-DTYPE.
//
// model_values greedy CASE...: continues the rows of ids in fp32, each time with the token of the
// highest probability, computed by a forward pass over all tokens so far. The new tokens are written
// to greedy.safetensors as "tokens" (fp32, too), and the model is exported to exported-greedy.
//
// With --gpu it computes on a GPU (place.h) and exports nothing. If a case fails, its error is
// written to values-DTYPE.error, and the next cases are computed. Exit code 1: some cases failed;
// 3: a case failed and left the GPU unusable, so that the cases after it were not tried.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "model_files/weights/adapter_config.h"
#include "model_files/weights/checkpoint_tensors.h"
#include "model_files/weights/safetensors_writer.h"
#include "models/checkpoint.h"
#include "models/layers/logit_cap.h"
#include "models/tensor_parts.h"
#include "roundpipe/error.h"
#include "roundpipe/models.h"
#include "tests/models/bound_layers.h"
#include "tests/parity/place.h"

namespace rp::models {
namespace {

using Values = std::map<std::string, at::Tensor>;

void write_values(const std::filesystem::path& path, const Values& values) {
  std::vector<TensorDeclaration> declarations;
  for (const auto& [name, value] : values) declarations.push_back({name, DType::kFloat32, value.sizes().vec()});
  SafetensorsWriter writer = SafetensorsWriter::create(path, declarations);
  for (const auto& [name, value] : values) {
    const at::Tensor dense = value.to(at::kCPU, at::kFloat).contiguous();
    writer.write(name, dense.const_data_ptr(), dense.nbytes());
  }
  writer.commit();
}

at::Tensor logits_of(std::vector<BoundLayer>& layers, Tensors inputs, double softcap) {
  const c10::NoGradGuard no_grad;
  for (BoundLayer& layer : layers) inputs = layer(inputs);
  const at::Tensor logits = at::linear(inputs.at(0), inputs.at(1));
  LogitCap(softcap).apply(logits);
  return logits;
}

// Returns an undefined tensor for a parameter that is not trained.
at::Tensor gradient_of(BoundLayer& layer, const std::string& name) {
  const std::vector<NamedParameter> parameters = layer.parameters();
  const auto found = std::ranges::find(parameters, name, &NamedParameter::name);
  return found->value.requires_grad() ? found->value.grad() : at::Tensor();
}

// Adds the gradients of the tensors of a file, under their names in the file.
void add_gradients(const std::vector<CheckpointTensor>& tensors, std::vector<BoundLayer>& layers, Values& values) {
  for (const CheckpointTensor& tensor : tensors) {
    if (!gradient_of(layers[tensor.parts.front().layer], tensor.parts.front().parameter).defined()) continue;
    const PartSource source = [&](const TensorPart& part, std::int64_t expert) {
      const at::Tensor gradient = gradient_of(layers[part.layer], part.parameter).to(at::kCPU);
      return expert < 0 ? gradient : gradient[expert];
    };
    if (!tensor.is_of_all_experts) {
      values[tensor.name] = assemble(tensor, -1, at::kFloat, source);
      continue;
    }
    std::vector<at::Tensor> experts;
    for (std::int64_t expert = 0; expert < tensor.shape.front(); ++expert)
      experts.push_back(assemble(tensor, expert, at::kFloat, source));
    values[tensor.name] = at::stack(experts);
  }
}

// Returns the source of weights for exports. It keeps a reference to `layers`.
auto weights_of(std::vector<BoundLayer>& layers) {
  return [&layers](std::int64_t layer, const std::string& name) {
    for (const NamedParameter& parameter : layers[layer].parameters()) {
      if (parameter.name == name) return parameter.value.detach();
    }
    throw std::logic_error("export asked for '" + name + "' of layer " + std::to_string(layer));
  };
}

Values greedy_tokens(const std::filesystem::path& folder) {
  constexpr int kNewTokens = 12;
  std::vector<BoundLayer> layers = bound_layers(load(folder, at::kFloat));
  at::Tensor ids = read_safetensors(folder / "inputs.safetensors").at("ids");
  const std::int64_t given = ids.size(1);
  const double softcap = causal_lm_loss_settings(folder.string()).logit_softcap;
  for (int i = 0; i < kNewTokens; ++i) {
    const at::Tensor next_b1 = logits_of(layers, {ids}, softcap).select(1, -1).argmax(-1, /*keepdim=*/true);
    ids = at::cat({ids, next_b1}, 1);
  }
  export_checkpoint(folder, folder / "exported-greedy", weights_of(layers));
  return {{"tokens", ids.narrow(1, given, kNewTokens)}};
}

// `place`: null for the CPU.
Values values_of(const std::filesystem::path& folder, const std::string& dtype_text, const Place* place) {
  const at::ScalarType dtype = dtype_text == "float32" ? at::kFloat : at::kBFloat16;
  const at::Device device = place == nullptr ? at::kCPU : place->device();
  Values given = read_safetensors(folder / "inputs.safetensors");
  for (auto& [name, value] : given) value = value.to(device);
  const bool has_adapter = std::filesystem::exists(folder / "adapter");
  const TrainedParts parts = has_adapter ? read_adapter(folder / "adapter") : TrainedParts{};
  const Model model = load(folder, dtype, parts);
  std::vector<BoundLayer> layers = bound_layers(model, /*shift=*/0, device);
  Tensors inputs;
  inputs.push_back(given.at("ids"));
  if (given.contains("documents")) inputs.push_back(given.at("documents"));
  Values values;
  values["logits"] = logits_of(layers, inputs, causal_lm_loss_settings(folder.string()).logit_softcap);
  CausalLmLossSettings settings = causal_lm_loss_settings(folder.string());
  if (given.contains("z_loss")) settings.z_loss = given.at("z_loss").item<double>();
  const Tensors losses = losses_layer_by_layer(layers, inputs, {given.at("labels"), given.at("divisor")}, settings);
  values["loss"] = losses[0];
  if (settings.z_loss > 0) values["z_loss"] = losses[1];
  if (settings.balance > 0) values["aux_loss"] = losses[losses.size() - 3];
  for (const auto& [first, other] : model.ties()) {
    const at::Tensor sum = gradient_of(layers[first.layer], first.parameter);
    if (sum.defined()) sum.add_(gradient_of(layers[other.layer], other.parameter));
  }
  const auto weight = weights_of(layers);
  if (place == nullptr) export_checkpoint(folder, folder / ("exported-" + dtype_text), weight, parts);
  const ModelConfig config = read_model_config(folder);
  if (has_adapter) {
    if (place == nullptr) export_adapter(folder, folder / ("adapter-" + dtype_text), parts, weight);
    add_gradients(adapter_tensors(config, parts), layers, values);
    return values;
  }
  add_gradients(checkpoint_tensors(config, written_layout(find_expert_layout(config, WeightFiles::open(folder)))),
                layers, values);
  return values;
}

void compute(const std::filesystem::path& folder, const std::string& dtype, const Place* place) {
  write_values(folder / ("values-" + dtype + ".safetensors"), values_of(folder, dtype, place));
}

// Returns whether the GPU still computes after an error. An error inside a kernel persists until
// the process ends.
bool computes(const Place& place) {
  try {
    return at::ones({2}, at::TensorOptions().device(place.device())).sum().item<float>() == 2;
  } catch (const std::exception&) {
    return false;
  }
}

// Returns the exit code.
int compute_all_there(const std::vector<std::filesystem::path>& folders, const std::string& dtype) {
  const std::unique_ptr<Place> place = open_gpu();
  int code = 0;
  for (const std::filesystem::path& folder : folders) {
    std::string failure;
    try {
      compute(folder, dtype, place.get());
      continue;
    } catch (const c10::Error& error) {
      failure = error.what_without_backtrace();
    } catch (const std::exception& error) {
      failure = error.what();
    }
    std::ofstream(folder / ("values-" + dtype + ".error")) << failure << "\n";
    if (!computes(*place)) std::_Exit(3);  // the GPU's memory cannot be freed
    code = 1;
  }
  return code;
}

}  // namespace
}  // namespace rp::models

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string what = argv[1];
  const bool on_gpu = std::string(argv[2]) == "--gpu";
  const std::vector<std::filesystem::path> folders(argv + (on_gpu ? 3 : 2), argv + argc);
  try {
    if (on_gpu) return rp::models::compute_all_there(folders, what);
    for (const std::filesystem::path& folder : folders) {
      if (what == "greedy") {
        rp::models::write_values(folder / "greedy.safetensors", rp::models::greedy_tokens(folder));
      } else {
        rp::models::compute(folder, what, nullptr);
      }
    }
  } catch (const rp::Error& error) {
    std::fprintf(stderr, "model_values: %s\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "model_values: %s\n", error.what());
    return 1;
  }
}
