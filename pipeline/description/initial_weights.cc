#include "pipeline/description/initial_weights.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include "pipeline/description/description.h"
#include "pipeline/description/tensors.h"

namespace rp {

namespace {

// Seeds the default generator for the initial weights of one layer, and restores the program's own
// state at the end.
class InitialSeed {
 public:
  InitialSeed(std::uint64_t seed, int layer)
      : generator_(at::detail::getDefaultCPUGenerator()), saved_(generator_.get_state()) {
    generator_.set_current_seed(seed * 0x9e3779b97f4a7c15ULL + static_cast<std::uint64_t>(layer) + 1);
  }
  ~InitialSeed() { generator_.set_state(saved_); }
  InitialSeed(const InitialSeed&) = delete;
  InitialSeed& operator=(const InitialSeed&) = delete;

 private:
  at::Generator generator_;
  at::Tensor saved_;
};

void write_parameter(const TensorRecord& record, const NamedParameter& parameter, const LayerSpec& spec, Store& store) {
  const WeightGroupRecord& group = store.catalogue().weight_groups()[store.catalogue().uses()[record.use].group];
  const at::Tensor working = parameter_view(store, record, 0);
  const at::Tensor in_store = group.is_trained != 0 ? master_view(store, record, Version(0)) : working;
  // On several nodes, this one has only a part of the master.
  const at::Tensor master = in_store.defined() ? in_store : at::empty(working.sizes(), at::kFloat);
  if (spec.initialize) {
    const bool is_direct = master.scalar_type() == at::kFloat || parameter.keeps_dtype;
    const at::Tensor value = is_direct ? master : at::empty(master.sizes(), at::kFloat);
    spec.initialize(parameter.name, value);
    if (!is_direct) master.copy_(value);
  } else {
    master.copy_(parameter.value);
  }
  if (!in_store.defined()) {
    const OwnedPart owned = owned_master(store, record, Version(0));
    at::Tensor(owned.value)
        .copy_(master.view({-1}).narrow(0, static_cast<std::int64_t>(owned.begin), owned.value.numel()));
  }
  if (master.data_ptr() != working.data_ptr()) working.copy_(master);
}

}  // namespace

std::map<int, std::vector<NamedBuffer>> write_initial_weights(const Model& model, const PipelineRecord& pipeline,
                                                              Store& store, const std::function<void()>& on_layer) {
  const c10::NoGradGuard no_grad;
  const Catalogue& catalogue = store.catalogue();
  std::map<int, std::vector<NamedBuffer>> buffers;
  for (int index = 0; index < model.num_layers(); ++index) {
    const LayerSpec& spec = model.layers()[index];
    const CatalogueLayer number = pipeline.catalogue_layer(index);
    const InitialSeed seed(pipeline.seed, index);
    const std::unique_ptr<Layer> layer = spec.make();
    const std::vector<NamedParameter> values = layer->parameters();
    compare_parameters(values, catalogue, number);
    const auto tensors = catalogue.tensors_of(number);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (is_first_use(catalogue, tensors[i])) write_parameter(tensors[i], values[i], spec, store);
    }
    if (std::vector<NamedBuffer> own = layer->buffers(); !own.empty()) buffers[index] = std::move(own);
    on_layer();
  }
  return buffers;
}

std::map<int, std::vector<NamedBuffer>> initial_buffers(const Model& model, const PipelineRecord& pipeline) {
  const c10::NoGradGuard no_grad;
  std::map<int, std::vector<NamedBuffer>> buffers;
  for (int index = 0; index < model.num_layers(); ++index) {
    const InitialSeed seed(pipeline.seed, index);
    const std::unique_ptr<Layer> layer = model.layers()[index].make();
    if (std::vector<NamedBuffer> own = layer->buffers(); !own.empty()) buffers[index] = std::move(own);
  }
  return buffers;
}

}  // namespace rp
