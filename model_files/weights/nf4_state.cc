#include "model_files/weights/nf4_state.h"

#include <algorithm>
#include <limits>
#include <span>

#include "common/bad_input.h"
#include "common/checked_files/json_file.h"
#include "common/text.h"
#include "model_files/config/config_section.h"
#include "model_files/weights/stored_tensors.h"

namespace rp {
namespace {

// Checks that a map of codes has our values, which the kernels are compiled with.
void check_map(const WeightFiles& weights, const std::string& name, std::span<const float> expected) {
  std::vector<float> found(expected.size());
  weights.read(name, found.data(), expected.size_bytes());
  if (std::ranges::equal(found, expected)) return;
  const auto place = std::ranges::mismatch(found, expected).in1 - found.begin();
  throw bad_input(weights.file_of(name), "tensor ", quoted_name(name), " gives code ", place, " the value ",
                  found[static_cast<std::size_t>(place)], ", but it is ", expected[static_cast<std::size_t>(place)],
                  " in NF4 of bitsandbytes; quantise the model again with a current version of it");
}

// Returns the text of the tensor with the JSON.
std::string state_text(const WeightFiles& weights, const std::string& name) {
  constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 16;
  const std::uint64_t bytes = weights.tensor(name).bytes;
  if (bytes > kMaxBytes)
    throw bad_input(weights.file_of(name), "tensor ", quoted_name(name), " has ", bytes, " bytes; at most ", kMaxBytes,
                    " are read");
  std::string text(bytes, '\0');
  weights.read(name, text.data(), bytes);
  return text;
}

void require_equal(const ConfigSection& state, const char* key, const std::string& found, const std::string& expected) {
  if (found != expected) throw state.refuse(key, " is ", found, ", but must be ", expected);
}

}  // namespace

float read_nf4_offset(const WeightFiles& weights, const CheckpointTensor& tensor) {
  const std::string name = cat(tensor.name, kNf4State);
  const std::filesystem::path place = cat(weights.file_of(name).string(), ", tensor ", quoted_name(name));
  const nlohmann::json json = parse_json_file(place, state_text(weights, name));
  const ConfigSection state(place, json);
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  require_equal(state, "quant_type", quoted_name(state.text("quant_type", "")), quoted_name("nf4"));
  require_equal(state, "blocksize", cat(state.integer("blocksize", kMax)), cat(kNf4Block));
  require_equal(state, "shape", shape_text(state.integers("shape", 0, kMax)), shape_text(tensor.shape));
  check_map(weights, cat(tensor.name, kNf4Map), kNf4Codes.at);
  if (tensor.format != WeightFormat::kNf4Double) return 0;
  require_equal(state, "nested_blocksize", cat(state.integer("nested_blocksize", kMax)), cat(kNestedBlock));
  check_map(weights, cat(tensor.name, kNf4NestedMap), kNestedMap.at);
  constexpr double kLargest = std::numeric_limits<float>::max();
  return static_cast<float>(state.number("nested_offset", -kLargest, kLargest));
}

}  // namespace rp
