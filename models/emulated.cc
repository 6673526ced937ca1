// Implements rp::models::emulated(): models that have shapes but no weights.
#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <utility>

#include "common/text.h"
#include "model_files/config/model_config.h"
#include "model_files/layer_costs.h"
#include "model_files/layer_tensors.h"
#include "models/layer_parameters.h"
#include "roundpipe/models.h"

namespace rp::models {

namespace {

class EmulatedLayerModule : public Layer {
 public:
  EmulatedLayerModule(const LayerTensors& layer, at::ScalarType dtype) {
    for (const LayerTensor& tensor : layer.tensors) parameters_.push_back(stored_parameter(tensor, dtype));
  }

  std::vector<NamedParameter> parameters() override { return parameters_; }
  Tensors forward(const Tensors&) override {
    throw std::logic_error("an emulated layer has shapes and no weights: nothing can be computed");
  }

 private:
  std::vector<NamedParameter> parameters_;
};

}  // namespace

Model emulated(const std::string& folder_or_preset, const EmulatedBatch& batch, at::ScalarType dtype) {
  const ModelConfig config = config_of_model(folder_or_preset);
  const std::vector<LayerTensors> layers = tensors_of(config, batch.parts);
  const std::vector<LayerCost> costs = layer_costs(config, {.sequences = batch.sequences,
                                                            .sequence_length = batch.sequence_length,
                                                            .element_bytes = at::elementSize(dtype),
                                                            .parts = batch.parts});
  Model model;
  model.set_dtype(dtype);
  std::map<int, std::vector<ParameterUse>> tied;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    LayerSpec spec;
    spec.name = cat(config.name, " ", layers[i].name, " ", i);
    spec.make = [layer = layers[i], dtype] { return std::make_unique<EmulatedLayerModule>(layer, dtype); };
    spec.cost = std::make_shared<LayerCost>(costs[i]);
    for (const LayerTensor& tensor : layers[i].tensors) {
      if (tensor.tied_group >= 0) tied[tensor.tied_group].push_back({static_cast<int>(i), tensor.name});
    }
    model.add(std::move(spec));
  }
  for (const auto& [group, uses] : tied) {
    for (std::size_t i = 1; i < uses.size(); ++i) model.tie(uses.front(), uses[i]);
  }
  return model;
}

}  // namespace rp::models
