#include "common/text.h"
#include "models/checkpoint.h"
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

}  // namespace

void save(Pipeline& pipeline, const std::filesystem::path& source, const std::filesystem::path& output,
          const TrainedParts& parts) {
  pipeline.synchronize();
  const std::vector<ParameterState> parameters = pipeline.parameters();
  const auto weight = [&](std::int64_t layer, const std::string& name) {
    const ParameterState parameter = find(parameters, layer, name);
    return name.find(".lora_") == std::string::npos ? parameter.working
                                                    : parameter.master;  // a merged pair is rounded only once
  };
  export_checkpoint(source, output, weight, parts);
}

void save_adapter(Pipeline& pipeline, const std::filesystem::path& source, const std::filesystem::path& output,
                  const TrainedParts& parts) {
  if (parts.lora.rank == 0) throw Error(ExitCode::kUsage, "save_adapter(): the model has no pairs; use save()");
  pipeline.synchronize();
  const std::vector<ParameterState> parameters = pipeline.parameters();
  export_adapter(source, output, parts, [&](std::int64_t layer, const std::string& name) {
    const ParameterState parameter = find(parameters, layer, name);
    return parameter.master.defined() ? parameter.master : parameter.working;
  });
}

}  // namespace rp::models
