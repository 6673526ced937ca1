// train/model_identity.h
// Which model a run trains, as a checkpoint remembers it: a run that goes on with another one would differ without a word.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace rp {

struct ModelIdentity {
  std::map<std::string, std::string> config;  // config.json by JSON pointer ("/rope_scaling/factor"), the values as JSON
  std::string weights;                        // a checksum of names, dtypes and shapes and of some bytes of every tensor

  bool operator==(const ModelIdentity&) const = default;
};

// Of a Hugging Face directory. Reads config.json and at most 4 KiB of each tensor. Throws rp::Error (kBadInput).
[[nodiscard]] ModelIdentity identity_of_model(const std::filesystem::path& folder);

// A line for each difference that changes what is computed: "config.json: /rope_theta is 10000, and was 500000". Keys that describe
// where a model came from are left alone, and so are the weights where `weights_matter` is false: where all are trained, they are the
// checkpoint's.
[[nodiscard]] std::vector<std::string> differences(const ModelIdentity& saved, const ModelIdentity& present, bool weights_matter);

}  // namespace rp
