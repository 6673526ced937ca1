#include "coordinator/updates/parameter_groups.h"

#include <algorithm>

#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

std::size_t group_of(const std::vector<ParameterGroup>& groups, const TensorRecord& tensor, int layer) {
  ParameterInfo info;
  info.layer = layer;
  info.parameter = tensor.name.data();
  info.name = cat(layer, ".", info.parameter);
  info.shape.assign(tensor.desc.shape.begin(), tensor.desc.shape.begin() + tensor.desc.rank);
  const auto found = std::find_if(groups.begin(), groups.end(), [&info](const ParameterGroup& group) {
    return !group.contains || group.contains(info);
  });
  if (found == groups.end()) {
    throw Error(ExitCode::kUsage,
                cat("step(): no group contains the parameter ", info.name,
                    "; let the last group contain the rest (no `contains`), or freeze the parameter"));
  }
  return static_cast<std::size_t>(found - groups.begin());
}

}  // namespace

ParameterGroupSpans group_parameters(const Catalogue& catalogue, int pipeline,
                                     const std::vector<ParameterGroup>& groups) {
  const PipelineRecord& record = catalogue.pipelines()[pipeline];
  ParameterGroupSpans result;
  for (int layer = 0; layer < static_cast<int>(record.num_layers); ++layer) {
    for (const TensorRecord& tensor : catalogue.tensors_of(record.catalogue_layer(layer))) {
      const UseRecord& use = catalogue.uses()[tensor.use];
      const WeightGroupRecord& weight_group = catalogue.weight_groups()[use.group];
      // A tied group is assigned by its first use. Corrections of routers have a rule of their own.
      if (weight_group.is_trained == 0 || weight_group.is_correction != 0 || weight_group.first_use != tensor.use)
        continue;
      std::vector<ParameterGroupSpan>& spans = result[use.group];
      const std::size_t group = group_of(groups, tensor, layer);
      // A weight group stores a layer's parameters in the layer's order. Padding belongs to the
      // parameter in front of it.
      if (spans.empty() || spans.back().group != group) {
        if (!spans.empty()) spans.back().end = tensor.element_offset;
        spans.push_back({.begin = tensor.element_offset, .end = weight_group.num_elements, .group = group});
      }
    }
  }
  return result;
}

}  // namespace rp
