#include "train/run/model_identity.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <set>

#include "common/checked_files/checksum.h"
#include "common/checked_files/json_file.h"
#include "common/text.h"
#include "model_files/config/model_config.h"
#include "model_files/weights/weight_files.h"

namespace rp {
namespace {

constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kBytesOfTensor = 4096;
constexpr std::size_t kMaxTensors =
    256;  // tensors whose bytes are read: models have tens of thousands, and the disk may be slow

// Keys of config.json, at any depth, that do not describe the model itself.
const std::set<std::string> kNotOfTheModel = {"_name_or_path", "architectures",        "dtype",
                                              "torch_dtype",   "transformers_version", "use_cache",
                                              "bos_token_id",  "eos_token_id",         "pad_token_id"};

bool matters(const std::string& pointer) {
  // Pointers look like "/architectures/0" and "/text_config/dtype".
  std::size_t begin = 1;
  while (begin <= pointer.size()) {
    const std::size_t end = std::min(pointer.find('/', begin), pointer.size());
    if (kNotOfTheModel.contains(pointer.substr(begin, end - begin))) return false;
    begin = end + 1;
  }
  return true;
}

std::string text_of_key(const std::map<std::string, std::string>& config, const std::string& key) {
  const auto found = config.find(key);
  return found == config.end() ? "absent" : found->second;
}

std::string checksum_of_weights(const WeightFiles& weights) {
  Checksum checksum(ChecksumKind::kXxh128);
  std::array<std::byte, kBytesOfTensor> piece{};
  const std::vector<std::string> names = weights.names();
  const std::size_t distance = (names.size() + kMaxTensors - 1) / kMaxTensors;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string& name = names[i];
    const TensorInfo& info = weights.tensor(name);
    std::string text = cat(name, " ", dtype_name(info.dtype));
    for (const std::int64_t dimension : info.shape) text += cat(" ", dimension);
    checksum.add(text.data(), text.size());
    if (i % distance != 0) continue;
    // The sample is from the tensor's middle: the ends of tables are often zeros or never trained.
    const std::uint64_t bytes = std::min(info.bytes, kBytesOfTensor);
    weights.read(name, piece.data(), bytes, (info.bytes - bytes) / 2);
    checksum.add(piece.data(), bytes);
  }
  return checksum.hex();
}

}  // namespace

ModelIdentity identity_of_model(const std::filesystem::path& folder, bool has_frozen_weights) {
  ModelIdentity identity;
  const nlohmann::json config = read_json_file(folder / kConfigFile, kMaxConfigBytes).flatten();
  for (const auto& [pointer, value] : config.items()) {
    if (matters(pointer)) identity.config[pointer] = value.dump();
  }
  if (has_frozen_weights) identity.weights = checksum_of_weights(WeightFiles::open(folder));
  return identity;
}

std::vector<std::string> differences(const ModelIdentity& saved, const ModelIdentity& present) {
  std::vector<std::string> lines;
  std::set<std::string> keys;
  for (const auto* config : {&saved.config, &present.config}) {
    for (const auto& entry : *config) keys.insert(entry.first);
  }
  for (const std::string& key : keys) {
    const std::string before = text_of_key(saved.config, key), now = text_of_key(present.config, key);
    if (before != now) lines.push_back(cat("config.json: ", key, " is ", now, ", and was ", before));
  }
  if (saved.weights != present.weights) lines.emplace_back("its weights, some of which are not trained, are others");
  return lines;
}

}  // namespace rp
