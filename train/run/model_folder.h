// train/run/model_folder.h
// What people give as a model that is none, and what to do about it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace rp {

// Why `model` cannot be the folder of a model, with a remedy: a name of the hub, a checkpoint or an output directory of
// `train`, an adapter, weights of another format. Nothing where it may be one.
[[nodiscard]] std::optional<std::string> why_no_model(const std::filesystem::path& model);

}  // namespace rp
