#include <map>
#include <set>
#include <utility>

#include "common/text.h"
#include "models/checkpoint.h"
#include "pipeline/pipeline_impl.h"
#include "roundpipe/error.h"
#include "roundpipe/models.h"
#include "roundpipe/pipeline.h"

namespace rp::models {

namespace {

ParameterState find(const std::vector<ParameterState>& parameters, std::int64_t layer, const std::string& name) {
  for (const ParameterState& parameter : parameters) {
    if (parameter.layer == layer && parameter.parameter == name) return parameter;
  }
  throw Error(ExitCode::kUsage, cat("the pipeline has no parameter ", layer, ".", name,
                                    ": it was not made from the model that is to be saved"));
}

bool is_first_node(Pipeline& pipeline) { return pipeline.impl().runtime()->place().node == 0; }

}  // namespace

void save(Pipeline& pipeline, const std::filesystem::path& source, const std::filesystem::path& output,
          const TrainedParts& parts) {
  // A merged pair is rounded only once, so its masters are used; and so are those of parameters for
  // which the files have more digits than the working weights.
  const std::set<std::pair<std::int64_t, std::string>> wider = wider_parameters(source);
  const std::map<std::string, at::Tensor> masters = pipeline.masters([&](const ParameterState& parameter) {
    return parameter.parameter.find(".lora_") != std::string::npos ||
           wider.contains({parameter.layer, parameter.parameter});
  });
  if (!is_first_node(pipeline)) return;
  const std::vector<ParameterState> parameters = pipeline.parameters();
  const auto weight = [&](std::int64_t layer, const std::string& name) {
    const ParameterState parameter = find(parameters, layer, name);
    const auto master = masters.find(parameter.name);
    return master == masters.end() ? parameter.working : master->second;
  };
  export_checkpoint(source, output, weight, parts);
}

void save_adapter(Pipeline& pipeline, const std::filesystem::path& source, const std::filesystem::path& output,
                  const TrainedParts& parts) {
  if (parts.lora.rank == 0) throw Error(ExitCode::kUsage, "save_adapter(): the model has no pairs; use save()");
  const std::map<std::string, at::Tensor> masters = pipeline.masters([](const ParameterState&) { return true; });
  if (!is_first_node(pipeline)) return;
  const std::vector<ParameterState> parameters = pipeline.parameters();
  export_adapter(source, output, parts, [&](std::int64_t layer, const std::string& name) {
    const ParameterState parameter = find(parameters, layer, name);
    const auto master = masters.find(parameter.name);
    return master == masters.end() ? parameter.working : master->second;
  });
}

}  // namespace rp::models
