#include "train/trained_model.h"

#include "common/text.h"
#include "roundpipe/models.h"
#include "train/run/run_directory.h"

namespace rp {

std::string write_trained_model(Pipeline& pipeline, const TrainSettings& settings) {
  const TrainedParts& parts = settings.parts;
  const RunDirectory directory(settings.output);
  if (parts.lora.rank == 0) {
    models::save(pipeline, settings.model, directory.final_model(), parts);
    return cat("the model is in ", directory.final_model().string());
  }
  std::string text;
  if (settings.saves_merged) {
    models::save(pipeline, settings.model, directory.merged_model(), parts);
    text = cat("the model with its adapter is in ", directory.merged_model().string(), ", ");
  }
  models::save_adapter(pipeline, settings.model, directory.final_model(), parts);
  return cat(text, "the adapter is in ", directory.final_model().string());
}

}  // namespace rp
