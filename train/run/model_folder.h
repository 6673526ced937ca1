// train/run/model_folder.h
// Explains why a path that a user passed as a model is not one, with a remedy.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace rp {

// Returns why `model` cannot be the folder of a model, with a remedy: it is a name of the Hugging
// Face hub, a checkpoint or an output directory of `train`, an adapter, or has weights of another
// format. Returns nothing if it may be a model.
[[nodiscard]] std::optional<std::string> why_no_model(const std::filesystem::path& model);

}  // namespace rp
