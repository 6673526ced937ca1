#include "models/checkpoint.h"
#include "roundpipe/error.h"
#include "roundpipe/models.h"
#include "roundpipe/pipeline.h"

#include "common/text.h"

namespace rp::models {

void save(Pipeline& pipeline, const std::filesystem::path& source, const std::filesystem::path& output) {
  pipeline.synchronize();
  const std::vector<ParameterState> parameters = pipeline.parameters();
  export_checkpoint(source, output, [&parameters](std::int64_t layer, const std::string& name) {
    for (const ParameterState& parameter : parameters) {
      if (parameter.layer == layer && parameter.parameter == name) return parameter.working;
    }
    throw Error(ExitCode::kUsage, cat("the pipeline has no parameter ", layer, ".", name,
                                      ": it was not made from the model that is to be saved"));
  });
}

}  // namespace rp::models
