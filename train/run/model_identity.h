// train/run/model_identity.h
// Identifies the model that a run trains, so that a resumed run cannot continue with another one
// unnoticed.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace rp {

struct ModelIdentity {
  std::map<std::string, std::string> config;  // config.json by JSON pointer ("/rope_scaling/factor"); values as JSON
  // If some weights are not trained, a checksum of all names, dtypes and shapes and of some bytes;
  // otherwise empty, because all weights come from the checkpoint.
  std::string weights;

  bool operator==(const ModelIdentity&) const = default;
};

// Returns the identity of the model in a Hugging Face directory. Reads config.json and, with
// `has_frozen_weights`, the headers of the weight files and at most 1 MiB of their tensors. Leaves
// out keys that only describe where a model came from. Throws rp::Error (kBadInput).
[[nodiscard]] ModelIdentity identity_of_model(const std::filesystem::path& folder, bool has_frozen_weights);

// Returns a line for each difference: "config.json: /rope_theta is 10000, and was 500000".
[[nodiscard]] std::vector<std::string> differences(const ModelIdentity& saved, const ModelIdentity& present);

}  // namespace rp
