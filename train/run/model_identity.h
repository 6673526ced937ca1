// train/run/model_identity.h
// Which model a run trains, as a checkpoint remembers it: a run that goes on with another one would differ without a
// word.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace rp {

struct ModelIdentity {
  std::map<std::string, std::string>
      config;  // config.json by JSON pointer ("/rope_scaling/factor"), the values as JSON
  // A checksum of names, dtypes and shapes and of some bytes, where some weights are not trained; else empty: they are
  // the checkpoint's.
  std::string weights;

  bool operator==(const ModelIdentity&) const = default;
};

// Of a Hugging Face directory. Reads config.json, and with `has_frozen_weights` the headers of the weight files and at
// most 1 MiB of their tensors. Keys that describe where a model came from are left out. Throws rp::Error (kBadInput).
[[nodiscard]] ModelIdentity identity_of_model(const std::filesystem::path& folder, bool has_frozen_weights);

// A line for each difference: "config.json: /rope_theta is 10000, and was 500000".
[[nodiscard]] std::vector<std::string> differences(const ModelIdentity& saved, const ModelIdentity& present);

}  // namespace rp
